//! Memory that outlives an engine.
//!
//! | module | what |
//! |---|---|
//! | [`segment`] | a piece of memory behind a descriptor: made by the front, handed over, sealed |
//! | [`mapping`] | a segment in an engine's address space |
//! | [`weights`] | what is where in the memory for weights |
//! | [`kv`] | what is where in the memory for KV pages |
//! | [`experts`] | what is where in the memory for expert slots |
//! | [`whole_pages`] | which pages can be returned when some of what lies side by side is given up |
//!
//! The front makes segments and never maps them: whatever an engine does to them, the front reads no byte that could
//! fault. An engine trusts nothing in them that it did not check: lengths come from its own computation, and what an
//! earlier engine left counts only with a mark or a digest that fits.

pub mod experts;
pub mod kv;
pub mod mapping;
pub mod segment;
pub mod weights;
pub mod whole_pages;

pub use experts::{ExpertSegment, SLOT_RECORD_BYTES, SlotRecord};
pub use kv::{KvSegment, PageRecord};
pub use mapping::{Access, Mapping};
pub use segment::{Segment, SegmentError};
pub use weights::{EXTENTS_MAX, WEIGHTS_OFFSET, WeightExtent};
pub use whole_pages::Row;

/// Words as one number that changes with every bit of theirs. Against accidents, not against intent.
pub fn mix<const N: usize>(words: [u64; N]) -> u64 {
    words.into_iter().fold(0x9e37_79b9_7f4a_7c15, |mixed, word| {
        let mixed = (mixed ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    })
}
