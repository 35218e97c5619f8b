//! Gathering weights into huge pages, in the background.
//!
//! It makes the next engine quick: with huge pages a process that holds gigabytes is gone at once instead of after
//! 20 ms a gigabyte, and the next one is at full speed at once. It takes about a second and a half a gigabyte of one
//! core, which nobody waits for.

use std::sync::{Arc, Weak};
use std::thread;

use unfazed_wire::memory::Mapping;

/// What is gathered at once.
const HUGE_PAGE: usize = 2 << 20;
/// Failures after which a system is taken not to know how.
const FAILURES: usize = 8;

/// Starts the thread for the first `used` bytes of a mapping; it ends with its work, or with the mapping.
pub(crate) fn gather(mapping: &Arc<Mapping>, used: usize) {
    let mapping = Arc::downgrade(mapping);
    let started = thread::Builder::new().name("huge-pages".to_owned()).spawn(move || {
        if let Err(error) = give_way() {
            tracing::debug!(%error, "huge pages are not gathered, since it would slow requests");
            return;
        }
        // Not among the fields of the line below, which are only computed where it is logged.
        let gathered = gather_now(&mapping, used);
        tracing::debug!(gathered, used, "huge pages under the weights");
    });
    if let Err(error) = started {
        tracing::debug!(%error, "no thread to gather huge pages");
    }
}

/// Gathers them before it returns: the bytes that are in huge pages now.
pub(crate) fn gather_now(mapping: &Weak<Mapping>, used: usize) -> usize {
    let (mut gathered, mut failures) = (0, 0);
    for start in (0..used).step_by(HUGE_PAGE) {
        let Some(mapping) = mapping.upgrade() else { return gathered };
        let end = start.saturating_add(HUGE_PAGE).min(mapping.len());
        if mapping.collapse(start..end) {
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
