//! Attention over keys and values in pages.
//!
//! | file | what |
//! |---|---|
//! | `layout.rs` | how a page is laid out |
//! | `element.rs` | f16 (and f32, for a test mode) as elements of a page |
//! | `store.rs` | one position into a page |
//! | `attend.rs` | queries against all positions that they see |
//! | `digest.rs` | whether a page still holds what was stored |

mod attend;
mod digest;
mod element;
mod layout;
mod store;

pub use attend::{AttentionScratch, Queries, attend};
pub use digest::{KvBits, digest};
pub use element::KvElement;
pub use layout::KvLayout;
pub use store::store;
