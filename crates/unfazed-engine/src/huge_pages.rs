//! Gathering weights into huge pages, in the background.
//!
//! It makes the next engine quick: with huge pages a process that holds gigabytes is gone at once instead of after
//! 20 ms a gigabyte, and the next one is at full speed at once. It takes about a second and a half a gigabyte of one
//! core, which nobody waits for.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use unfazed_store::experts::ExpertStore;
use unfazed_wire::memory::Mapping;

/// What is gathered at once.
const HUGE_PAGE: usize = 2 << 20;
/// Failures after which a system is taken not to know how.
const FAILURES: usize = 8;
/// How often it is looked whether slots are filled.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Starts the thread for the first `used` bytes of a mapping; it ends with its work, or with the mapping.
pub(crate) fn gather(mapping: &Arc<Mapping>, used: usize) {
    let mapping = Arc::downgrade(mapping);
    in_background(move || {
        // Not among the fields of the line below, which are only computed where it is logged.
        let gathered = gather_now(&mapping, used);
        tracing::debug!(gathered, used, "huge pages under the weights");
    });
}

/// Starts the thread for slots of experts. It waits until they are filled: pages that nobody has touched cannot be gathered.
pub(crate) fn gather_slots(store: &Arc<ExpertStore>) {
    let store = Arc::downgrade(store);
    in_background(move || {
        loop {
            let Some(full) = store.upgrade().map(|store| store.full()) else { return };
            if let Some(used) = full {
                // Through the store: memory of slots that were given up stays the system's.
                let gathered = gather_with(used, |range| Some(store.upgrade()?.gather(range)));
                return tracing::debug!(gathered, used, "huge pages under the slots of experts");
            }
            thread::sleep(LOOK_AGAIN);
        }
    });
}

fn in_background(work: impl FnOnce() + Send + 'static) {
    let started = thread::Builder::new().name("huge-pages".to_owned()).spawn(move || match give_way() {
        Ok(()) => work(),
        Err(error) => {
            tracing::debug!(%error, "huge pages are not gathered, since it would slow requests");
        }
    });
    if let Err(error) = started {
        tracing::debug!(%error, "no thread to gather huge pages");
    }
}

/// Gathers them before it returns: the bytes that are in huge pages now.
pub(crate) fn gather_now(mapping: &Weak<Mapping>, used: usize) -> usize {
    gather_with(used, |range| {
        let mapping = mapping.upgrade()?;
        let end = range.end.min(mapping.len());
        Some(mapping.collapse(range.start..end))
    })
}

/// `collapse` says whether it gathered a range, `None` once there is nothing left to gather.
fn gather_with(used: usize, collapse: impl Fn(Range<usize>) -> Option<bool>) -> usize {
    let (mut gathered, mut failures) = (0, 0);
    for start in (0..used).step_by(HUGE_PAGE) {
        let end = start.saturating_add(HUGE_PAGE).min(used.next_multiple_of(HUGE_PAGE));
        let Some(collapsed) = collapse(start..end) else { return gathered };
        if collapsed {
            gathered += end - start;
        } else {
            failures += 1;
            if failures >= FAILURES && gathered == 0 {
                return gathered;
            }
        }
    }
    gathered
}

/// Only cores that nobody else wants.
#[cfg(target_os = "linux")]
fn give_way() -> std::io::Result<()> {
    // Of this thread alone: on Linux that is what a priority belongs to.
    Ok(rustix::process::setpriority_process(None, 19)?)
}

#[cfg(not(target_os = "linux"))]
fn give_way() -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
