//! Events for machines: typed here, printed by the program as one JSON object a line with `"event"` first. A released
//! key never changes its meaning. `docs/events.md` lists them.

use std::sync::Arc;

use serde::Serialize;
use unfazed_wire::{GpuInUse, SandboxInfo};

/// Where events go. Called from several threads, must not block for long.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// Something that a program which runs the server wants to know.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The port is bound; `/health` answers, requests wait for the model.
    Listening {
        /// Bound address.
        host: String,
        /// Bound port.
        port: u16,
    },
    /// Another process has the machine's GPU, and the server waits for it before it begins.
    GpuLockWait {
        /// The process that took its lock; `null` if it does not say.
        pid: Option<u32>,
        /// What that process calls itself.
        label: String,
        /// Its command line.
        command: String,
        /// Since when it has it, as it wrote itself.
        since: Option<String>,
        /// The lock.
        file: String,
        /// All of it, for people.
        message: String,
    },
    /// Weights are being loaded.
    Loading {
        /// The model's name towards clients.
        model: String,
        /// Bytes loaded.
        done_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
        /// Mean rate so far, in 10^6 bytes per second.
        mb_per_s: f64,
        /// Time left at that rate, in seconds; `null` while unknown.
        eta_s: Option<f64>,
    },
    /// The model answers. Sent once; of later engines `engine_ready` tells.
    Ready(Box<Ready>),
    /// Another engine took the place of one that died.
    EngineReady {
        /// Time from its start to ready, in milliseconds.
        load_ms: f64,
        /// Bytes of weights that it read from the model's files.
        read_bytes: u64,
        /// Bytes of packed weights that it found in memory.
        kept_bytes: u64,
        /// What computes, as in `ready`.
        engine: &'static str,
        /// Layers of which any part is on a GPU.
        gpu_layers: usize,
    },
    /// An engine process ended without being told to.
    EngineExit {
        /// Its exit code, if it ended by itself.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// `signal`, `code`, `out_of_memory` (the kernel ended it), `stalled` (the watchdog did), `link_ended` (it was
        /// killed, as it had closed its link), `left_behind` (it cannot be ended), `never_started`, `load_failed`,
        /// `other_build` or `unknown`.
        cause: &'static str,
        /// What is known about it, for people.
        message: String,
        /// Sequences that go on in the next engine.
        requests: usize,
        /// Sequences that ended with it.
        failed_requests: usize,
    },
    /// Another engine will be started.
    EngineRestart {
        /// Deaths in a row without progress, the last one included.
        attempt: u32,
        /// Time until then, in milliseconds.
        wait_ms: u64,
    },
    /// An engine goes on with a sequence that another one had begun.
    RequestResumed {
        /// Its number.
        request: u64,
        /// Tokens of its answer so far.
        tokens: usize,
        /// Positions whose keys and values were still there.
        kept_positions: usize,
        /// Positions to be computed again before its next token.
        missing_positions: usize,
    },
    /// A sequence may have ended the engine: suspects are tested one at a time.
    RequestSuspected {
        /// Its number.
        request: u64,
        /// Deaths in a row in which it gained nothing.
        deaths: u32,
    },
    /// A sequence ended the engine by itself and was given up.
    RequestQuarantined {
        /// Its number.
        request: u64,
        /// How often it did.
        deaths: u32,
    },
    /// An engine cannot be ended and keeps its memory.
    MemoryStruck {
        /// How much.
        bytes: u64,
        /// KV pages that the next engine has.
        kv_pages: usize,
    },
    /// An engine that was left behind has ended.
    MemoryReturned {
        /// Bytes that it had kept.
        bytes: u64,
    },
    /// The engine waits for something outside, such as a disk.
    Waiting {
        /// What for.
        what: String,
        /// Since when, in milliseconds.
        ms: u64,
    },
    /// Memory ran out, and the engine returned some of it to the system.
    MemoryGivenUp {
        /// Bytes of KV pages that no sequence had.
        page_bytes: u64,
        /// Slots for experts that are closed now and were not before.
        slots: usize,
        /// Bytes of them.
        slot_bytes: u64,
        /// Slots that are still open.
        open_slots: usize,
    },
    /// There has been memory for long enough: the engine uses slots again that it had given up.
    MemoryTakenUp {
        /// How many.
        slots: usize,
        /// Slots that are open now.
        open_slots: usize,
    },
    /// Something went wrong, and this is what was decided.
    Fault {
        /// Its class, as `docs/faults.md` lists them.
        class: &'static str,
        /// What told so, for people.
        evidence: String,
        /// What is done about it.
        action: &'static str,
        /// How often the class came in a row, from 1.
        attempt: u32,
        /// Time lost, in milliseconds; `null` of an engine's end, whose `recovered` tells.
        cost_ms: Option<f64>,
        /// Positions of all sequences that have to be computed again.
        positions: usize,
    },
    /// Something is given up, so that the rest goes on.
    Degraded {
        /// `placement` or `memory`.
        ladder: &'static str,
        /// What there was.
        from: String,
        /// What there is.
        to: String,
        /// The fault.
        class: &'static str,
    },
    /// An engine computes again after a fault (`class`, `action`, `attempt`, `cost_ms`), or what was given up is taken up
    /// again (`ladder`, `from`, `to`). The others are `null`.
    Recovered {
        /// The fault.
        class: Option<&'static str>,
        /// What was done.
        action: Option<&'static str>,
        /// How often the class had come in a row.
        attempt: Option<u32>,
        /// From the fault until now, in milliseconds.
        cost_ms: Option<f64>,
        /// `placement` or `memory`.
        ladder: Option<&'static str>,
        /// What there was.
        from: Option<String>,
        /// What there is.
        to: Option<String>,
    },
    /// A guard started a process of the server that it guards.
    GuardStarted {
        /// The server's program.
        program: String,
        /// The process, which leads a group of the same number.
        pid: u32,
        /// Where it is told to listen, on this machine alone.
        private_port: u16,
    },
    /// The guarded server answers, and has computed a token.
    GuardReady {
        /// The server's program.
        program: String,
        /// Its model's name; `null` if it does not tell.
        model: Option<String>,
        /// Where the guard listens.
        host: String,
        /// The guard's port, for clients.
        port: u16,
        /// The server's port, for the guard.
        private_port: u16,
        /// Time from its start to ready, in milliseconds.
        load_ms: f64,
        /// Processes that were started after another one's end.
        restarts: u64,
    },
    /// Another process of a guarded server goes on with a request that one before it had.
    RequestContinued {
        /// Its number, as the guard counts them.
        request: u64,
        /// `retried`: from the beginning, as nothing was sent. `replayed`: from the beginning, what was sent is compared and
        /// left out. `continued`: behind what was sent.
        how: &'static str,
        /// Tokens that it goes on behind.
        tokens: u64,
        /// The answer is the one that would have come.
        exact: bool,
    },
    /// Events are missing here: nobody had read any for so long that too many waited.
    EventsDropped {
        /// How many.
        count: u64,
    },
    /// The journal on disk was opened.
    JournalOpened {
        /// Streams that it keeps.
        streams: usize,
        /// Places that hold no whole record. A server that was killed while it wrote leaves one.
        bad_records: u64,
        /// Bytes that no whole record is in.
        skipped_bytes: u64,
        /// Streams that were dropped: too old, more than may be kept, or without a beginning.
        dropped: u64,
    },
    /// Nothing can be written to the journal; streams go on, and would not outlive the server now. It is tried again.
    JournalBroken {
        /// Why.
        message: String,
    },
    /// The journal can be written again.
    JournalMended,
    /// A new front was started, which is to take over from this one.
    Restarting {
        /// Its process.
        pid: u32,
    },
    /// The new front has taken over. This one stays for the connections of its clients and ends with the new one.
    HandedOver {
        /// The new front's process.
        pid: u32,
        /// Answers that it goes on with or keeps.
        answers: usize,
        /// How long no answer went on, in milliseconds; the new front's engine starts after that.
        pause_ms: f64,
    },
    /// The new front did not take over. This one goes on as if nothing had been.
    RestartFailed {
        /// Why.
        message: String,
    },
    /// This front has taken over from another one.
    TookOver {
        /// Answers that it goes on with or keeps.
        answers: usize,
        /// Weights and KV pages came with them.
        memory: bool,
    },
    /// The server was told to end: new requests are refused, running ones go on.
    Draining {
        /// Sequences that have not ended.
        requests: usize,
        /// Longest time that they have, in milliseconds.
        limit_ms: u64,
    },
    /// The server has ended.
    Shutdown {
        /// Sequences that were ended unfinished.
        unfinished_requests: usize,
    },
}

/// A server that answers, with its effective settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ready {
    /// Bound port.
    pub port: u16,
    /// Bound address.
    pub host: String,
    /// The model's name towards clients.
    pub model: String,
    /// What computes: `cpu`, `gpu`, or `gpu+cpu` where both have layers or one of them has the output.
    pub engine: &'static str,
    /// The GPUs among it.
    pub gpus: Vec<Gpu>,
    /// The model takes images.
    pub vision: bool,
    /// What is where.
    pub partition: Partition,
    /// Effective settings.
    pub settings: EffectiveSettings,
    /// Time from the engine's start to ready, in milliseconds.
    pub load_ms: f64,
    /// What was lowered, from what to what and why, and what the model lacks.
    pub notes: Vec<String>,
}

/// A GPU that is computed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its driver and that one's version.
    pub driver: String,
    /// A processor that acts as a GPU.
    pub software: bool,
}

impl From<&GpuInUse> for Gpu {
    fn from(gpu: &GpuInUse) -> Gpu {
        Gpu { name: gpu.name.clone(), driver: gpu.driver.clone(), software: gpu.software }
    }
}

/// How layers and memory are divided. Sizes are in 10^9 bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Partition {
    /// `cpu`: all layers on the CPU. `full_gpu`: all layers and the output on GPUs. `layer_partitioned`: some. `ssd_streaming`:
    /// experts are read when they are needed, wherever layers are.
    pub strategy: &'static str,
    /// What all of it takes over the machine's memory: above 1 where experts are streamed.
    pub overcommit_ratio: f64,
    /// Weights, those of streamed experts included.
    pub model_weight_gb: f64,
    /// All KV pages.
    pub kv_cache_gb: f64,
    /// All weights, KV pages and scratch.
    pub total_required_gb: f64,
    /// The machine's memory under all limits.
    pub system_ram_gb: f64,
    /// Layers of which any part is on a GPU.
    pub gpu_layers: usize,
    /// Layers on the CPU alone.
    pub cpu_layers: usize,
    /// Layers whose attention is on a GPU, and whose network or experts are on the CPU.
    pub split_layers: usize,
    /// Layers in all.
    pub total_layers: usize,
    /// Predicted tokens per second of one sequence; `null` without a measurement to predict from.
    pub estimated_tok_s: Option<f64>,
}

/// Settings as they are in force.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EffectiveSettings {
    /// Longest sequence (prompt and answer), in tokens.
    pub context: usize,
    /// Sequences computed side by side.
    pub parallel: usize,
    /// Most rows in one step.
    pub chunk: usize,
    /// Compute threads of a step of one row (a token of one answer).
    pub threads: usize,
    /// Compute threads of a step of more rows (a prompt, several answers).
    pub threads_batch: usize,
    /// Instruction set in use.
    pub isa: String,
    /// KV pages.
    pub kv_pages: usize,
    /// Positions in a KV page.
    pub page_tokens: usize,
    /// What keys are kept as.
    pub cache_type_k: &'static str,
    /// What values are kept as.
    pub cache_type_v: &'static str,
    /// Experts that memory holds at once, of those of all layers together.
    pub expert_slots: usize,
    /// Experts of all layers; 0 for a model without.
    pub experts: usize,
    /// Sequences that may wait.
    pub max_queue: usize,
    /// Whether clients need a key.
    pub api_key: bool,
    /// Rights that the engine has given up.
    pub sandbox: Sandbox,
}

/// Rights that an engine has given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    /// System calls that reach out of the process.
    pub seccomp: bool,
    /// Files but those that it needs: `abi` and the version of Landlock's interface; `null` if that is not in force.
    pub landlock: Option<String>,
    /// `restricted`: it reads through an io_uring ring that can do nothing else. `none`: it reads by threads.
    pub rings: &'static str,
    /// What is not in force, with the reason.
    pub missing: Vec<String>,
}

impl From<&SandboxInfo> for Sandbox {
    fn from(info: &SandboxInfo) -> Sandbox {
        Sandbox {
            seccomp: info.seccomp,
            landlock: info.landlock.map(|version| format!("abi {version}")),
            rings: if info.ring { "restricted" } else { "none" },
            missing: info.missing.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_name_first() {
        let event = Event::EngineRestart { attempt: 2, wait_ms: 200 };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"event":"engine_restart","attempt":2,"wait_ms":200}"#);
        let text = serde_json::to_string(&Event::Listening { host: "::1".to_owned(), port: 1 }).unwrap();
        assert!(text.starts_with(r#"{"event":"listening","#));
    }

    /// The lines of a type's definition in this file.
    fn definition(head: &str) -> impl Iterator<Item = &'static str> {
        let (_, rest) = include_str!("events.rs").split_once(head).unwrap();
        rest.split_once("\n}").unwrap().0.lines().filter(|line| !line.contains("///"))
    }

    fn field(line: &str) -> Option<&str> {
        let (name, _) = line.trim_start().trim_start_matches("pub ").split_once(": ")?;
        Some(name)
    }

    #[test]
    fn every_event_is_documented_with_all_its_fields() {
        let docs =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md")).unwrap();
        let (mut row, mut events) = ("", 0);
        for line in definition("pub enum Event {") {
            if let Some(field) = field(line) {
                assert!(row.contains(&format!("`{field}`")), "{field} is not in docs/events.md: {row}");
            } else if let Some(variant) =
                line.trim().split([' ', '(', ',']).next().filter(|name| name.len() > 2)
            {
                let name = snake_case(variant);
                let begins = format!("| `{name}` |");
                row = docs.lines().find(|row| row.starts_with(&begins)).unwrap_or_default();
                assert_ne!(row, "", "{name} is not in docs/events.md");
                events += 1;
            }
        }
        assert!(events > 10, "{events} events were found in this file");
        for (head, path) in [
            ("pub struct Ready {", ""),
            ("pub struct Gpu {", "gpus."),
            ("pub struct Partition {", "partition."),
            ("pub struct EffectiveSettings {", "settings."),
            ("pub struct Sandbox {", "settings.sandbox."),
        ] {
            for field in definition(head)
                .filter_map(field)
                .filter(|name| !["partition", "settings", "sandbox"].contains(name))
            {
                assert!(docs.contains(&format!("`{path}{field}`")), "{path}{field} is not in docs/events.md");
            }
        }
    }

    /// As `serde` names a variant.
    fn snake_case(variant: &str) -> String {
        let parts = variant.char_indices().map(|(at, c)| {
            let line = if at > 0 && c.is_uppercase() { "_" } else { "" };
            format!("{line}{}", c.to_lowercase())
        });
        parts.collect()
    }
}
