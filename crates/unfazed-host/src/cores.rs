//! Cores that this process may use.

/// Cores in this process's affinity mask, lowered to its control group's quota (both versions), at least 1. The
/// standard library reads both.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
