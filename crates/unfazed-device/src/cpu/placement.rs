//! Which processors threads run on.
//!
//! Results never depend on it; speed does where cores differ, where other programs are bound to cores, and where a
//! machine has several memory nodes. Memory of weights comes from the node of the thread that packs a piece of it, and
//! threads that read are placed as those that compute, so pinned threads on all nodes spread the weights over all nodes
//! and every node's bandwidth is used. Chunks of work are handed out to whoever is free, on any node: a chunk is not
//! read by the node that has it.

use std::io;

use unfazed_store::Loader;
use unfazed_wire::Threads;

/// Binds the calling thread, as thread number `thread`, to its processors; does nothing if none were chosen.
///
/// # Errors
///
/// The system has no such processor or lets this process not use it, or (not Linux) lets no program choose.
pub(super) fn place(threads: &Threads, thread: usize) -> io::Result<()> {
    let all = &threads.processors[..];
    match all.get(thread % all.len().max(1)) {
        None => Ok(()),
        Some(own) if threads.pin => bind(std::slice::from_ref(own)),
        Some(_) => bind(all),
    }
}

/// The loader's threads run where those that compute do.
pub(super) fn place_readers(loader: Loader, threads: &Threads) -> Loader {
    if threads.processors.is_empty() {
        return loader;
    }
    let threads = threads.clone();
    loader.with_thread_start(Box::new(move |thread| {
        // The pool was placed in the same way and would have failed.
        let _ = place(&threads, thread);
    }))
}

#[cfg(target_os = "linux")]
fn bind(processors: &[usize]) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut set = CpuSet::new();
    for &processor in processors {
        if processor >= CpuSet::MAX_CPU {
            return Err(io::Error::other(format!("there is no processor {processor}")));
        }
        set.set(processor);
    }
    sched_setaffinity(None, &set)
        .map_err(|error| io::Error::other(format!("processors {processors:?} cannot be used: {error}")))
}

#[cfg(not(target_os = "linux"))]
fn bind(_processors: &[usize]) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system lets no program choose its processors"))
}

#[allow(clippy::unwrap_used)]
#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity};

    use super::*;

    fn usable() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
    }

    /// What a thread with this number may use after it was placed.
    fn placed(threads: Threads, thread: usize) -> io::Result<Vec<usize>> {
        std::thread::spawn(move || place(&threads, thread).map(|()| usable())).join().unwrap()
    }

    #[test]
    fn a_pinned_thread_has_one_processor_and_others_have_all_that_were_chosen() {
        let processors = usable();
        let chosen = |pin| Threads { processors: processors.clone(), pin, ..Threads::from(2) };
        for thread in 0..5 {
            let own = processors[thread % processors.len()];
            assert_eq!(placed(chosen(true), thread).unwrap(), [own]);
            assert_eq!(placed(chosen(false), thread).unwrap(), processors);
        }
        let anywhere = Threads { pin: true, ..Threads::from(2) };
        assert_eq!(placed(anywhere, 1).unwrap(), processors);
    }

    #[test]
    fn a_processor_that_is_not_there_is_named() {
        for processor in [1000, 1 << 40] {
            let threads = Threads { processors: vec![processor], pin: true, ..Threads::from(1) };
            let error = placed(threads, 0).unwrap_err().to_string();
            assert!(error.contains(&processor.to_string()), "{error}");
        }
    }
}
