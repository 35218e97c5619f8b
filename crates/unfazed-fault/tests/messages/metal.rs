//! Metal, MLX, and panics of macOS.

use unfazed_fault::Class::*;

use crate::Case;

pub(crate) const METAL: &[Case] = &[
    (
        Timeout,
        "SharpAI/SwiftLM --gpu-layers",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
    ),
    (
        Timeout,
        "ml-explore/mlx 3803, wrapped",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error:\n[METAL] Command buffer execution failed:\nCaused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
    ),
    (
        Timeout,
        "jundot/omlx 2098, without the code",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error:\n[METAL] Command buffer execution failed:\nCaused GPU Timeout Error",
    ),
    (
        Timeout,
        "jundot/omlx 2029",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).",
    ),
    (
        Timeout,
        "lyogavin/airllm 367",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)\nzsh: abort      python3 ./test.py",
    ),
    (
        Timeout,
        "jax-ml/jax 19110",
        "Error: command buffer exited with error status.\n\tThe Metal Performance Shaders operations encoded on it may not have completed.\n\tError:\n\t(null)\n\tCaused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)\n\t<AGXG13GFamilyCommandBuffer: 0x104c33850>",
    ),
    (
        Timeout,
        "ollama/ollama 17902",
        "Error: 500 Internal Server Error: mlx runner failed: panic: mlx: [METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout). at /Users/runner/work/ollama/ollama/build/darwin-sources/_deps/mlx-c-src/mlx/c/transforms.cpp:73 (exit: exit status 2)",
    ),
    (Timeout, "Niko1221/Strata", "ERR verify: timed out at layer 18; its GPU waits were released (#267)"),
    (
        Hang,
        "jundot/omlx 4224, names, with its victim",
        "kIOGPUCommandBufferCallbackErrorInnocentVictim\nkIOGPUCommandBufferCallbackErrorHang",
    ),
    (
        Hang,
        "jundot/omlx 4224, gpuEvent report",
        "restart_reason 4 \"firmware-detected lockup\", signature 579",
    ),
    (
        Hang,
        "MetalPetal/MetalPetal 177, with its victims",
        "Execution of the command buffer was aborted due to an error during execution. Discarded (victim of GPU error/recovery) (IOAF code 5)\nExecution of the command buffer was aborted due to an error during execution. Caused GPU Hang Error (IOAF code 3)",
    ),
    (
        InnocentVictim,
        "MetalPetal/MetalPetal 177",
        "2020-07-16 13:24:53.670141 MetalPetalDemo[2522:421635] Execution of the command buffer was aborted due to an error during execution. Discarded (victim of GPU error/recovery) (IOAF code 5)",
    ),
    (
        InnocentVictim,
        "ml-explore/mlx, metal/device.cpp",
        "[METAL] Command buffer execution failed: Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim).",
    ),
    (
        SubmissionsIgnored,
        "ggml-org/llama.cpp 8886",
        "ggml_metal_graph_compute: command buffer 0 failed with status 5\nerror: Ignored (for causing prior/excessive GPU errors) (00000004:kIOAccelCommandBufferCallbackErrorSubmissionsIgnored)",
    ),
    (
        SubmissionsIgnored,
        "flutter/flutter 146011",
        "Execution of the command buffer was aborted due to an error during execution. Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
    ),
    (
        SubmissionsIgnored,
        "jundot/omlx 3706, in the driver's words, after its cause",
        "RuntimeError: [METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).\nRuntimeError: [METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).",
    ),
    (
        OutOfMemory,
        "ggml-org/llama.cpp 7010",
        "ggml_metal_graph_compute: command buffer 6 failed with status 5\nerror: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    ),
    (
        OutOfMemory,
        "ggml-org/llama.cpp 22673",
        "ggml_metal_synchronize: error: command buffer 1 failed with status 5\nerror: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    ),
    (
        OutOfMemory,
        "gfx-rs/wgpu 9545",
        "Execution of the command buffer was aborted due to an error during execution. Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    ),
    (
        OutOfMemory,
        "ml-explore/mlx 63",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [malloc_or_wait] Unable to allocate 9663676416 bytes.",
    ),
    (
        OutOfMemory,
        "lmstudio-ai/lmstudio-bug-tracker 2240",
        "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum allowed buffer size of 30150672384 bytes.",
    ),
    (
        PageFault,
        "ml-explore/mlx, metal/device.cpp",
        "[METAL] Command buffer execution failed: GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault).",
    ),
    (
        Interactivity,
        "ollama/ollama 15194",
        "500 Internal Server Error: mlx runner failed: libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
    ),
    (
        Interactivity,
        "jundot/omlx 1387, wrapped",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error:\n[METAL] Command buffer execution failed: Impacting Interactivity\n(0000000e: kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
    ),
    (
        Interactivity,
        "ggml-org/llama.cpp 22214, in ggml's words, before what followed",
        "ggml_metal_synchronize: error: command buffer 0 failed with status 5\nerror: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)\nggml_metal_graph_compute: backend is in error state from a previous command buffer failure - recreate the backend to recover\nllama_decode: failed to decode, ret = -3",
    ),
    (
        CommandBufferFailed,
        "ggml-org/llama.cpp 22214",
        "backend is in error state from a previous command buffer failure - recreate the backend to recover",
    ),
    (CommandBufferFailed, "ggml-org/llama.cpp 22214, its end", "llama_decode: failed to decode, ret = -3"),
    (
        CommandBufferFailed,
        "ggml-org/llama.cpp 6114",
        "ggml_metal_graph_compute: command buffer 0 failed with status 5",
    ),
    (
        CommandBufferFailed,
        "ggml-org/llama.cpp 20306",
        "kIOGPUCommandBufferCallbackErrorBackgroundExecutionNotPermitted",
    ),
    (DescriptorLeak, "ml-explore/mlx 3849", "    [metal::malloc] Resource limit (499000) exceeded."),
    (
        CompletionAbort,
        "ml-explore/mlx 3317",
        "libc++abi: __cxa_throw -> failed_throw -> std::terminate -> abort\nlibmlx.dylib: check_error(MTL::CommandBuffer*)\nlibmlx.dylib: [completion handler block]\nMetal: -[_MTLCommandBuffer didCompleteWithStartTime:endTime:error:]",
    ),
    (
        CompletionAbort,
        "jundot/omlx 354",
        "Thread 1 Crashed::  Dispatch queue: com.Metal.CompletionQueueDispatch\n0   libsystem_kernel.dylib              __pthread_kill + 8\n8   libc++abi.dylib                     __cxa_throw + 92\n9   libmlx.dylib                        mlx::core::gpu::check_error(MTL::CommandBuffer*) + 244",
    ),
    (
        CompletionAbort,
        "jundot/omlx 1548",
        "Exception Type:    EXC_CRASH (SIGABRT)\nTermination Reason:  Namespace SIGNAL, Code 6, Abort trap: 6\nThread 35 Crashed::  Dispatch queue: com.Metal.CompletionQueueDispatch",
    ),
    (
        PrepareCountUnderflow,
        "jundot/omlx 862",
        "panic(cpu 7 caller 0xfffffe004418be28): \"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550\nDebugger message: panic\nMemory ID: 0x6",
    ),
    (
        PrepareCountUnderflow,
        "exo-explore/exo 1972",
        "the same `IOGPUMemory.cpp:550` \"completeMemory() prepare count underflow\" assertion",
    ),
    (PendingMemorySet, "ml-explore/mlx 3346, the signature", "fPendingMemorySet @IOGPUGroupMemory.cpp:219"),
    (
        RemoveMemoryObject,
        "ml-explore/mlx 3186",
        "panic(cpu 0): \"IOGPUGroupMemory::remove_memory_object() memory object not found\"\n              @IOGPUGroupMemory.cpp:323",
    ),
    (
        WatchdogNoCheckins,
        "exo-explore/exo 1939, wrapped",
        "panic(cpu 23 caller 0xfffffe003848c02c): watchdog timeout: no checkins\nfrom watchdogd in 92 seconds (11276 total checkins since monitoring last enabled)",
    ),
    (ContextStoreTimeout, "metal-guard 0.11.7, its signature", "IOGPUCommandQueue: context store timeout"),
];
