//! Weights on their way from files into packed panels: extents are read (never mapped) and packed.
//!
//! | module | what |
//! |---|---|
//! | [`reader`] | the trait through which extents are read, and plain positional reads |
//! | [`source`] | which extents make up a matrix |
//! | [`loader`] | reading and packing with several threads, with progress |
//! | [`memory`] | memory for packed weights, aligned and zeroed |

mod error;
pub mod loader;
pub mod memory;
pub mod reader;
pub mod source;

pub use error::StoreError;
pub use loader::{Loader, PackedStack};
pub use memory::Buffer;
pub use reader::{PositionalReader, Reader};
pub use source::{MatrixSource, VectorSource};
