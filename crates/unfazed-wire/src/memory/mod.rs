//! Memory that outlives an engine.
//!
//! | module | what |
//! |---|---|
//! | [`segment`] | a piece of memory behind a descriptor: made by the front, handed over, sealed |
//! | [`mapping`] | a segment in an engine's address space |
//! | [`kv`] | what is where in the memory for KV pages |
//!
//! The front makes segments and never maps them: whatever an engine does to them, the front reads no byte that could
//! fault. An engine trusts nothing in them that it did not check: lengths come from its own computation, and what an
//! earlier engine left counts only with a mark or a digest that fits.

pub mod kv;
pub mod mapping;
pub mod segment;

pub use kv::{KvSegment, PageRecord};
pub use mapping::{Access, Mapping};
pub use segment::{Segment, SegmentError};
