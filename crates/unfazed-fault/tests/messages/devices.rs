//! CUDA, ROCm, Vulkan, wgpu, and what Linux says of them.

use unfazed_fault::Class::*;

use crate::Case;

pub(crate) const DEVICES: &[Case] = &[
    (
        OutOfMemory,
        "ollama/ollama 9782",
        "Error: llama runner process has terminated: CUDA error: out of memory",
    ),
    (
        OutOfMemory,
        "EricLBuehler/mistral.rs 44",
        "thread '<unnamed>' panicked at mistralrs-core/src/pipeline/mistral.rs:409:17:\nModel failed with error `DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")`. Please raise an issue.\nthread 'tokio-runtime-worker' panicked at mistralrs-server/src/main.rs:548:30:\ncalled `Result::unwrap()` on an `Err` value: RecvError",
    ),
    (
        OutOfMemory,
        "noonghunna/club-3090 16",
        "(EngineCore pid=112) ERROR 05-01 14:39:06 [core.py:1131] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.56 GiB of which 21.75 MiB is free.",
    ),
    (
        OutOfMemory,
        "ggml-org/llama.cpp 20431",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624",
    ),
    (
        OutOfMemory,
        "ggml-org/llama.cpp 16725",
        "ggml_gallocr_reserve_n: failed to allocate ROCm0 buffer of size 14822711296",
    ),
    (
        OutOfMemory,
        "ggml-org/llama.cpp 15256",
        "ggml_vulkan: Device memory allocation of size 118497280 failed.\nggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\ndouble free or corruption (out)",
    ),
    (OutOfMemory, "Vulkan 1.3, VkResult", "VK_ERROR_OUT_OF_DEVICE_MEMORY"),
    (
        PageFault,
        "ggml-org/llama.cpp 5990",
        "CUDA error: an illegal memory access was encountered\n  current device: 0, in function ggml_backend_cuda_buffer_get_tensor at C:\\Users\\jeff\\git\\ollama\\llm\\llama.cpp\\ggml-cuda.cu:10939\n  cudaDeviceSynchronize()\nGGML_ASSERT: C:\\Users\\jeff\\git\\ollama\\llm\\llama.cpp\\ggml-cuda.cu:244: !\"CUDA error\"",
    ),
    (
        PageFault,
        "ggml-org/llama.cpp 11829",
        "cudaErrorIllegalAddress (error 700) due to \"an illegal memory access was encountered\" on CUDA API call to cudaDeviceSynchronize.",
    ),
    (
        PageFault,
        "ROCm 2804",
        "Memory access fault by GPU node-2 (Agent handle: 0x5640a8bb1980) on address 0x7feea09c5000. Reason: Page not present or supervisor privilege.",
    ),
    (
        PageFault,
        "ROCm/rocm-libraries 1132",
        "Aug 08 22:35:13 ultrabook-jaap kernel: amdgpu 0000:c3:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32794)",
    ),
    (
        Timeout,
        "ggml-org/llama.cpp 27415",
        "/home/jalimhabey/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu:106: CUDA error\n24.15.113.123 E CUDA error: the launch timed out and was terminated",
    ),
    (
        Timeout,
        "ggml-org/llama.cpp 24576",
        "llama-server aborts on cudaErrorLaunchTimeout in MTP speculative draft path",
    ),
    (
        Timeout,
        "ggml-org/llama.cpp 21724",
        "maj 08 19:27:35 RX-78-FPC kernel: amdgpu 0000:c2:00.0: ring gfx_0.0.0 timeout, signaled seq=166926, emitted seq=166928",
    ),
    (
        Hang,
        "lamikr/rocm_sdk_builder 141",
        "HW Exception by GPU node-1 (Agent handle: 0x5ab48bbcc960) reason :GPU Hang",
    ),
    (
        Hang,
        "ROCm 5724",
        "[  950.818174] amdgpu 0000:c5:00.0: amdgpu: MES might be in unrecoverable state, issue a GPU reset",
    ),
    (
        DeviceLost,
        "ggml-org/llama.cpp 27183",
        "terminate called after throwing an instance of 'vk::DeviceLostError'\n  what():  vk::Queue::submit: ErrorDeviceLost",
    ),
    (DeviceLost, "ggml-org/llama.cpp 27076", "ggml_vulkan: device lost on Vulkan0"),
    (
        DeviceLost,
        "raphamorim/rio 1342",
        "thread 'main' panicked at /home/abuild/rpmbuild/BUILD/rioterm-0.2.31-build/rio-0.2.31/vendor/wgpu-25.0.2/src/backend/wgpu_core.rs:3600:38:\nwgpu error: Validation Error\n\nCaused by:\n  In Surface::get_current_texture_view\n    Parent device is lost\n",
    ),
    (DeviceLost, "Vulkan 1.3, VkResult", "VK_ERROR_DEVICE_LOST"),
    (
        DeviceLost,
        "lemonade-sdk/llamacpp-rocm 122",
        "ROCm unspecified launch failure with subsequent GPU reset on Radeon 780M",
    ),
    (DeviceLost, "vllm-project/vllm 5222", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    (
        DeviceLost,
        "wilicc/gpu-burn 1",
        "[74889.644138] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
    ),
    (DeviceLost, "freebsd/drm-kmod 387", "drmn0: GPU reset begin!"),
];
