//! Files and what they are on.

use unfazed_fault::Class::*;

use crate::Case;

pub(crate) const STORAGE: &[Case] = &[
    (StorageGone, "vllm-project/vllm-ascend 6815", "OSError: [Errno 116] Stale file handle"),
    (
        StorageGone,
        "pytorch/pytorch 45826",
        "RuntimeError: read(): fd 33 failed with Stale file handle\nterminate called after throwing an instance of 'c10::Error'",
    ),
    (
        StorageGone,
        "harababurel/gcsf 67",
        " ERROR gcsf > Could not mount to /root/mediaserver/drive: Transport endpoint is not connected (os error 107)",
    ),
    (StorageGone, "safetensors/safetensors 195", "OSError: No such device (os error 19)"),
    (
        StorageTransient,
        "JustVugg/colibri 191",
        "[Errno 5] Input/output error: /mnt/llm/colibri/glm52/model-00042-of-00096.safetensors",
    ),
    (
        StorageTransient,
        "dansuh17/segan-pytorch 19",
        "Traceback (most recent call last):\n  File \"model.py\", line 399, in <module>\nOSError: [Errno 5] Input/output error",
    ),
    (
        StorageCorrupt,
        "moly-ai/moly-local 13",
        "llama_model_load: error loading model: tensor 'blk.3.attn_qkv.weight' data is not within the file bounds, model is corrupted or incomplete",
    ),
    (
        StorageCorrupt,
        "Comfy-Org/ComfyUI 3225",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    (
        StorageSlow,
        "openzfs/zfs 15734",
        "[Wed Apr 10 17:58:24 2024] nfs: server 192.168.0.1 not responding, still trying",
    ),
    (
        StorageSlow,
        "linux-surface/linux-surface 1494",
        "[32495.562824] nfs: server thinkcentre not responding, timed out",
    ),
];
