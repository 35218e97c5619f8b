//! An engine in the caller's own process, without a front: for measurements. Its model and KV pages are in the same kind of
//! memory, and it computes the same steps, as in a process of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use unfazed_device::PlacedDevice;
use unfazed_formats::{Checkpoint, Headers};
use unfazed_plan::{PAGE_TOKENS, Plan, needs};
use unfazed_store::experts::{ExpertStore, PolicyKind};
use unfazed_wire::memory::{KvSegment, Segment, WEIGHTS_OFFSET};
use unfazed_wire::{Gpus, Placement, Start, StreamedExperts, Threads};

use crate::beat::Progress;
use crate::load::{self, Loaded, refusal, trouble};
use crate::sandbox::Sandbox;
use crate::{Engine, EngineError, RealParts, huge_pages};

/// Between two calls of a watcher.
const EVERY: Duration = Duration::from_millis(100);

/// An engine that computes.
pub struct Local {
    /// Itself.
    pub engine: Engine<PlacedDevice>,
    /// Where its experts come from, if they are streamed.
    pub experts: Option<Arc<ExpertStore>>,
}

/// Loads a model as planned. The engine is to be used by the calling thread, which `threads` may bind to processors.
/// `watch` is called now and then with the bytes loaded, and those in all.
///
/// # Errors
///
/// What makes a front give up a model, or a system without the memory that was planned.
pub fn load(
    checkpoint: &Checkpoint,
    plan: &Plan,
    threads: &Threads,
    isa: Option<&str>,
    watch: &(dyn Fn(u64, u64) + Sync),
) -> Result<Local, EngineError> {
    let (start, descriptors) = start(checkpoint, plan, threads, isa)?;
    let progress = Progress::default();
    let (loading, ended) = channel::<()>();
    thread::scope(|scope| {
        let progress = &progress;
        scope.spawn(move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                watch(progress.loaded.load(Ordering::Relaxed), progress.to_load.load(Ordering::Relaxed));
            }
        });
        let loaded = load::load(&start, descriptors, Sandbox::off(), progress, &RealParts);
        drop(loading);
        let Loaded { engine, weights, experts, .. } = loaded?;
        if let Some((mapping, used)) = weights {
            // As an engine's are once it was idle for a while.
            huge_pages::gather_now(&Arc::downgrade(&mapping), used);
        }
        Ok(Local { engine, experts: experts.map(|experts| experts.store) })
    })
}

/// What a front would send.
fn start(
    checkpoint: &Checkpoint,
    plan: &Plan,
    threads: &Threads,
    isa: Option<&str>,
) -> Result<(Start, Vec<OwnedFd>), EngineError> {
    let weight_memory = plan.weight_bytes.0.saturating_add(WEIGHTS_OFFSET as u64);
    let page_bytes = usize::try_from(needs::page(&checkpoint.config, plan.cache).0).unwrap_or(usize::MAX);
    let kv = KvSegment { pages: plan.pages, page_bytes };
    let kv_memory = kv.bytes().ok_or_else(|| refusal("KV pages of that size overflow"))? as u64;
    let files = checkpoint.files.iter().map(|file| file.file().as_fd().try_clone_to_owned());
    let mut descriptors = files.collect::<std::io::Result<Vec<OwnedFd>>>().map_err(trouble)?;
    let streamed = plan.experts.as_ref().filter(|experts| experts.streaming);
    let experts = streamed.map(|experts| StreamedExperts {
        slots: experts.slots(),
        open: experts.slots(),
        least: experts.least(),
        slot_bytes: usize::try_from(experts.ring_slot_bytes.0).unwrap_or(usize::MAX),
        ring: experts.ring_slots,
        policy: PolicyKind::default().name().to_owned(),
        memory: experts.slot_bytes().0,
    });
    let slots = experts.iter().map(|experts| ("expert slots", experts.memory));
    for (what, bytes) in [("weights", weight_memory), ("KV pages", kv_memory)].into_iter().chain(slots) {
        let segment = Segment::create(what, bytes).map_err(trouble)?;
        descriptors.push(segment.as_fd().try_clone_to_owned().map_err(trouble)?);
    }
    let start = Start {
        headers: Headers::from(checkpoint).encode().map_err(refusal)?,
        context: plan.context.0,
        parallel: plan.parallel,
        pages: plan.pages,
        page_tokens: PAGE_TOKENS,
        chunk: plan.chunk.0,
        threads: threads.clone(),
        isa: isa.map(str::to_owned),
        cache_type_k: plan.cache.keys.to_string(),
        cache_type_v: plan.cache.values.to_string(),
        weight_memory,
        kv_memory,
        experts,
        expert_trace: false,
        engine: 1,
        troubles: Vec::new(),
        cpu_alone: true,
        placement: Placement::cpu(checkpoint.config.layers),
        gpus: Gpus::default(),
        fault_plan: None,
    };
    Ok((start, descriptors))
}
