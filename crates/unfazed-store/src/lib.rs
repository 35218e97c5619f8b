//! Weights on their way from files into packed panels: extents are read (never mapped) and packed.
//!
//! | module | what |
//! |---|---|
//! | [`reader`] | the trait through which extents are read, and plain positional reads |
//! | [`source`] | which extents make up a matrix |
//! | [`loader`] | reading and packing with several threads, with progress |
//! | [`memory`] | buffers: aligned memory of our own, or a part of memory that outlives this process |
//! | [`kv`] | KV pages in memory that outlives this process |
//! | [`weights`] | packed weights in memory that outlives this process |

mod error;
pub mod kv;
pub mod loader;
pub mod memory;
pub mod reader;
pub mod source;
pub mod weights;

pub use error::StoreError;
pub use kv::KvMemory;
pub use loader::{Loader, PackedStack};
pub use memory::Buffer;
pub use reader::{PositionalReader, Reader};
pub use source::{MatrixSource, VectorSource};
pub use weights::WeightMemory;
