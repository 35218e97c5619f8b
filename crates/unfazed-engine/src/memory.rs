//! The memory that the front handed over: what an earlier engine has put there is found again.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use unfazed_device::KvShape;
use unfazed_kernels::attention::KvLayout;
use unfazed_store::{KvMemory, WeightMemory};
use unfazed_wire::Start;
use unfazed_wire::memory::{KvSegment, Segment};

use crate::EngineError;
use crate::kept::KeptPages;
use crate::load::{refusal, trouble};

/// Memory for weights, KV pages and experts, checked against what the front says of it.
pub(crate) struct Memory {
    pub(crate) weights: WeightMemory,
    pub(crate) kv: Segment,
    /// Slots for experts, if they are streamed.
    pub(crate) experts: Option<Segment>,
}

impl Memory {
    /// Takes the last descriptors off: those for weights, for KV pages, and for experts if they are streamed.
    pub(crate) fn receive(start: &Start, descriptors: &mut Vec<OwnedFd>) -> Result<Memory, EngineError> {
        let experts = start.experts.as_ref().map(|streamed| {
            let missing = || trouble("the memory for experts was not handed over");
            let experts = descriptors.pop().ok_or_else(missing)?;
            Segment::received("expert slots", experts, streamed.memory).map_err(trouble)
        });
        let experts = experts.transpose()?;
        let (Some(kv), Some(weights)) = (descriptors.pop(), descriptors.pop()) else {
            return Err(trouble("the memory for weights and KV pages was not handed over"));
        };
        let weights = Segment::received("weights", weights, start.weight_memory).map_err(trouble)?;
        let weights = WeightMemory::open(weights)
            .map_err(|error| trouble(format!("the memory for weights cannot be mapped: {error}")))?;
        let kv = Segment::received("KV pages", kv, start.kv_memory).map_err(trouble)?;
        Ok(Memory { weights, kv, experts })
    }
}

/// Lays KV pages out, and reads what an earlier engine said of them.
pub(crate) fn pages(kv: &Segment, shape: &KvShape) -> Result<(KvMemory, KeptPages), EngineError> {
    let layout = KvLayout::new(shape.layers, shape.kv_heads, shape.head_dim, shape.page_tokens, shape.types)
        .ok_or_else(|| refusal(format!("KV pages cannot be laid out as {shape:?}")))?;
    let sizes = KvSegment { pages: shape.pages, page_bytes: layout.page_bytes() };
    let memory = KvMemory::open(kv, &sizes).map_err(trouble)?;
    let kept = KeptPages::new(Arc::clone(&memory.mapping), sizes, shape.page_tokens);
    Ok((memory, kept))
}
