//! What the page cache holds, asked without reading anything and read without waiting for a disk.

#![cfg_attr(target_os = "linux", allow(unsafe_code))]

use std::fs::File;

/// Whether the page cache holds all bytes from `offset` on. A system that cannot tell holds none.
#[cfg(target_os = "linux")]
pub(crate) fn holds(file: &File, offset: u64, len: usize) -> bool {
    match pages(file, offset, len) {
        Some((cached, all)) => cached >= all,
        None => probe(file, offset, len),
    }
}

/// Pages of these bytes that the page cache holds, and all of their pages. `None` where the kernel is older than that
/// question (cachestat, Linux 6.5) or refuses to answer it.
#[cfg(target_os = "linux")]
pub(crate) fn pages(file: &File, offset: u64, len: usize) -> Option<(u64, u64)> {
    use std::os::fd::AsRawFd;

    /// Its number is the same on every architecture.
    const SYS_CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }
    if len == 0 {
        return None;
    }
    let page = rustix::param::page_size() as u64;
    let range = Range { offset, len: len as u64 };
    // Cached, dirty, being written back, evicted, recently evicted.
    let mut counts = [0u64; 5];
    // SAFETY: the kernel reads one range and writes five counts, both of its own layout and alive for the call.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0u32) };
    let last = offset.checked_add(len as u64)?.div_ceil(page);
    (result == 0).then_some((counts[0], last - offset / page))
}

/// Reads a byte of the first, the middle and the last page. A page that is not there may be fetched by the kernel in the
/// background, which is why three must do.
#[cfg(target_os = "linux")]
fn probe(file: &File, offset: u64, len: usize) -> bool {
    let last = len.saturating_sub(1) as u64;
    [0, last / 2, last].into_iter().all(|at| read_now(file, offset.saturating_add(at), &mut [0]) == 1)
}

/// Fills `buf` as far as the page cache goes, from `offset` on. Returns how far that is.
#[cfg(target_os = "linux")]
pub(crate) fn read_now(file: &File, offset: u64, buf: &mut [u8]) -> usize {
    use std::io::IoSliceMut;

    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(done as u64);
        match preadv2(file, &mut [IoSliceMut::new(rest)], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    done
}

/// macOS answers neither question: reads that pass the cache by take what it holds all the same.
#[cfg(not(target_os = "linux"))]
pub(crate) fn holds(_file: &File, _offset: u64, _len: usize) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pages(_file: &File, _offset: u64, _len: usize) -> Option<(u64, u64)> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read_now(_file: &File, _offset: u64, _buf: &mut [u8]) -> usize {
    0
}
