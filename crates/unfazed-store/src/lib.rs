//! Weights on their way from files into packed panels: extents are read (never mapped) and packed.
//!
//! | module | what |
//! |---|---|
//! | [`clock`] | time, injected |
//! | [`storage`] | where files are: attempts at reads, through io_uring or by threads, past the page cache or from it |
//! | [`reader`] | the trait through which extents are read, and reads with patience |
//! | [`source`] | which extents make up a matrix |
//! | `ahead` | reads in the order of a load, begun before their tensor's turn |
//! | [`loader`] | reading and packing with several threads, with progress |
//! | [`memory`] | buffers: aligned memory of our own, or a part of memory that outlives this process |
//! | [`experts`] | experts that do not all fit into memory |
//! | [`kv`] | KV pages in memory that outlives this process |
//! | [`weights`] | packed weights in memory that outlives this process |

mod ahead;
pub mod clock;
mod error;
pub mod experts;
pub mod kv;
pub mod loader;
pub mod memory;
pub mod reader;
pub mod source;
pub mod storage;
pub mod weights;

pub use clock::{Clock, SystemClock};
pub use error::StoreError;
pub use kv::KvMemory;
pub use loader::{Loader, PackedStack};
pub use memory::Buffer;
pub use reader::{Patience, PendingRead, Reader, StorageReader, Wait, WaitObserver};
pub use source::{MatrixSource, Source, VectorSource};
pub use storage::{LocalOptions, LocalStorage, ReadBuffer, Storage};
pub use weights::WeightMemory;
