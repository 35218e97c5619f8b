//! A plain read of memory.

/// A read asks for what comes so many bytes later, as kernels do: a processor by itself stops at each page.
const AHEAD: usize = 4096;

/// Reads all whole lines of 64 bytes, and returns something that depends on each of them.
pub fn read(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for line in bytes.as_chunks::<64>().0 {
        fetch(line.as_ptr().wrapping_add(AHEAD));
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_ne_bytes(*word);
        }
    }
    sums.into_iter().fold(0, |all, sum| all ^ sum)
}

#[cfg(target_arch = "x86_64")]
fn fetch(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    // SAFETY: a hint, which reads nothing and is valid for any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Elsewhere the processor is left to itself.
#[cfg(not(target_arch = "x86_64"))]
fn fetch(_address: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_whole_lines_counts() {
        let mut bytes = vec![7u8; 640 + 63];
        let before = read(&bytes);
        for i in 0..640 {
            bytes[i] ^= 0x80;
            assert_ne!(read(&bytes), before, "byte {i}");
            bytes[i] ^= 0x80;
        }
        assert_eq!(read(&bytes[..63]), 0);
    }
}
