//! How processes end.

use unfazed_fault::Class::*;

use crate::Case;

pub(crate) const PROCESSES: &[Case] = &[
    (
        OutOfMemoryKilled,
        "equinor/ert 7797",
        "2024-04-29T14:55:41,679700+02:00 Out of memory: Killed process 1440763 (perl) total-vm:87033376kB, anon-rss:60356340kB, file-rss:0kB, shmem-rss:0kB, UID:21417 pgtables:169956kB oom_score_adj:0",
    ),
    (
        OutOfMemoryKilled,
        "equinor/ert 7797, the line before",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=perl,pid=1440763,uid=21417",
    ),
    (
        OutOfMemoryKilled,
        "gensyn-ai/rl-swarm 463",
        "[597411.196310] p2pd invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    ),
    (
        OutOfMemoryKilled,
        "ollama/ollama 11231",
        "nixos systemd[1]: ollama.service: Failed with result 'oom-kill'.",
    ),
    (
        OutOfMemoryKilled,
        "ggml-org/llama.cpp 20509",
        "A process of this unit has been killed by the OOM killer.\nControl process exited, code=exited, status=1/FAILURE\nFailed with result 'oom-kill'.",
    ),
    (
        OutOfMemoryKilled,
        "manaflow-ai/cmux 4214",
        "jetsam vm-compressor-space-shortage from aggregate node child RSS",
    ),
    (
        OutOfMemoryKilled,
        "PojavLauncherTeam/PojavLauncher_iOS 97",
        "The process was terminated for exceeding jetsam memory limits",
    ),
    (
        OutOfMemoryKilled,
        "zylon-ai/private-gpt 15",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core dumped)",
    ),
    (OutOfMemoryKilled, "ggml-org/llama.cpp 20059", "ErrorOutOfHostMemory"),
    (BusError, "ggml-org/llama.cpp 666", "Bus error (core dumped)"),
    (
        BusError,
        "golang/go 44491",
        "unexpected fault address 0x7ff9d0019000\nfatal error: fault\n[signal SIGBUS: bus error code=0x2 addr=0x7ff9d0019000 pc=0x499c96]\n\ngoroutine 1 [running]:",
    ),
    (Killed, "equinor/ert 7797, the shell's word", "Killed\n"),
    (Killed, "kaappi/kaappi 2489", "terminated with signal KILL"),
    (Killed, "atomantic/PortOS 3101", "Killed by signal SIGABRT"),
    (
        Killed,
        "ggml-org/llama.cpp 13909, its end",
        "./llama.cpp/llama-cli(+0x95b15)[0x5c5552984b15]\nAborted (core dumped)",
    ),
    (
        Killed,
        "ollama/ollama 6552",
        "Error: llama runner process has terminated: signal: segmentation fault (core dumped)",
    ),
    (Killed, "ollama/ollama 5904", "llama runner process has terminated: signal: aborted (core dumped)"),
    (
        Killed,
        "raphamorim/rio 1342, the shell's word",
        "[1]    27998 IOT instruction (core dumped)  RUST_BACKTRACE=1 rio",
    ),
    (
        Killed,
        "ROCm 3580",
        "nov 07 01:36:56 bernard systemd-coredump[91686]: Process 87058 (pt_main_thread) of user 0 terminated abnormally with signal 6/ABRT, processing...",
    ),
    (Exited, "ollama/ollama 3904", "Error: llama runner process no longer running: -1"),
    (Exited, "ollama/ollama 4775", "Error: llama runner process has terminated: exit status 1"),
    (
        Exited,
        "ollama/ollama 10265",
        "time=2025-04-14T20:20:48.993+08:00 level=ERROR source=server.go:449 msg=\"llama runner terminated\" error=\"exit status 0xc0000409\"",
    ),
    (
        Exited,
        "ollama/ollama 15471",
        "error=\"mlx runner failed: Error: failed to initialize MLX: libmlxc.dylib not found (exit: exit status 1)\"",
    ),
    (
        Exited,
        "jundot/omlx 2029, its app",
        "Server:failed - Server exited with code 6.  Auto-restart failed after 3 attempts",
    ),
    (
        Exited,
        "Niko1221/Strata 2671",
        "ERR lending the prompt path its slots failed: prefill: relayout needs borrowed buffers and a chunk of at most 0\nstrata [server] the engine stopped unexpectedly (exit code 1)",
    ),
    (
        Exited,
        "noonghunna/club-3090 58",
        "(APIServer pid=1) ERROR 05-05 12:36:59 [serving.py:1173] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ),
    (Exited, "JustVugg/colibri 305", "[engine terminated]\n  goodbye"),
    (
        Stalled,
        "eugr/spark-vllm-docker 321",
        "EngineCore crashes with TimeoutError: RPC call to sample_tokens timed out on DGX Spark (GB10)",
    ),
    (
        WireBroken,
        "ollama/ollama 8258",
        "Hello! HowError: an error was encountered while running the model: unexpected EOF",
    ),
    (
        WireBroken,
        "chatboxai/chatbox 2114",
        "{\"error\":\"POST predict: Post \\\"http://127.0.0.1:63330/completion\\\": EOF\"}",
    ),
    (
        WireBroken,
        "EricLBuehler/mistral.rs 44, its end",
        "thread 'tokio-runtime-worker' panicked at mistralrs-server/src/main.rs:548:30:\ncalled `Result::unwrap()` on an `Err` value: RecvError",
    ),
    (
        RunnerPanic,
        "ollama/ollama 10127",
        "panic: failed to decode batch: could not find a kv cache slot (length: 2560)\n\ngoroutine 60 [running]:\ngithub.com/ollama/ollama/runner/ollamarunner.(*Server).run(0xc0002a5c20, {0x557fe316b980, 0xc0003af1d0})",
    ),
    (
        RunnerPanic,
        "ollama/ollama 15770",
        "panic: mlx: There is no Stream(gpu, 1) in current thread. at .../mlx-c-0.6.0/mlx/c/transforms.cpp:73",
    ),
    (
        RunnerPanic,
        "dbalsom/martypc 54, another's panic",
        "thread 'main' panicked at 'Error in Surface::configure: Validation Error",
    ),
    (
        RunnerPanic,
        "ikawrakow/ik_llama.cpp 1282",
        "/app/src/llama-sampling.cpp:733: GGML_ASSERT(iter != probs.end()) failed",
    ),
    (
        RunnerPanic,
        "vllm-project/vllm-ascend 6815, its beginning",
        "(APIServer pid=1631) Traceback (most recent call last):\n(APIServer pid=1631)   File \"/usr/local/python3.11.14/bin/vllm\", line 7, in <module>",
    ),
    (RunnerPanic, "komikndr/raylight 102", "Fatal Python error: Aborted"),
    (
        NonFinite,
        "InternLM/InternLM 459",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    ),
    (
        Bug,
        "a panic of our own",
        "thread 'engine' panicked at crates/unfazed-engine/src/engine.rs:120:9:\nattempt to subtract with overflow",
    ),
];
