//! Attention over keys and values in pages.
//!
//! Keys and values may be kept as f32, f16, bf16, Q8_0 or Q4_0, and differ ([`unfazed_formats::KvTypes`]). What is rounded is
//! what is stored, once: floats half to even, blocks of 32 along a head as `block.rs` says. What is stored is read exactly,
//! and all that follows is f32: so results differ by that one rounding, and by nothing else, from those of f32.
//!
//! | file | what |
//! |---|---|
//! | `layout.rs` | how a page is laid out |
//! | `element.rs` | floats as elements of a page |
//! | `block.rs` | blocks of 32: scales and codes |
//! | `store.rs` | positions into a page |
//! | `unpack.rs` | panels as f32 |
//! | `segment.rs` | the positions that are taken together |
//! | `group.rs` | the queries that are taken together, at one segment |
//! | `partial.rs` | a softmax so far, joined with that of later positions |
//! | `attend.rs` | queries against all positions that they see, or against a span of them |
//! | `digest.rs` | whether a page still holds what was stored |

mod attend;
mod block;
mod digest;
mod element;
mod group;
mod layout;
mod partial;
mod segment;
mod store;
mod unpack;

pub use attend::{AttentionScratch, Queries, SPAN, attend, attend_span};
pub use digest::digest;
pub use layout::KvLayout;
pub use partial::{join_spans, partial_len};
pub use store::{HeadRows, store};
