//! Limits of open files, as the server needs them and as `unfazed doctor` judges them.

/// Open files of a server beside connections and the model's: engines' links and shared memory, logs, the runtime.
pub const FILES_BESIDE_CONNECTIONS: u64 = 256;
/// Open files below which a server cannot have even a few connections.
pub const FEWEST_FILES: u64 = 64;
