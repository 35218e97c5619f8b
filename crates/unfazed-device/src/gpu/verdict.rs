//! What came of a submission.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use unfazed_fault::{Class, classify};

use crate::Fault;

/// Work that a driver threw away after so long was ended by its watchdog.
const WATCHDOG: Duration = Duration::from_secs(2);

/// What came of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its receipt is there: it ran, and all before it.
    Executed,
    /// The driver said that it was done, and it was not.
    Discarded {
        /// What the receipt said.
        evidence: String,
        /// How long after it was submitted this was seen.
        after: Duration,
    },
    /// The device is lost; in the driver's words.
    Lost(String),
    /// The GPU's memory did not suffice; in the driver's words.
    OutOfMemory(String),
    /// It was not done by its deadline.
    Hung(String),
    /// wgpu refused it: a fault of ours.
    Refused(String),
}

impl Verdict {
    /// Nothing, or the fault that it is.
    ///
    /// # Errors
    ///
    /// Any verdict but [`Verdict::Executed`].
    pub fn executed(&self) -> Result<(), Fault> {
        let (class, evidence) = match self {
            Verdict::Executed => return Ok(()),
            Verdict::Discarded { evidence, after } if *after >= WATCHDOG => {
                (Class::Timeout, format!("{evidence}, {} ms after it was submitted", after.as_millis()))
            }
            Verdict::Discarded { evidence, .. } => (Class::Discarded, evidence.clone()),
            Verdict::Lost(text) => (lost(text), text.clone()),
            Verdict::OutOfMemory(text) => (Class::OutOfMemory, text.clone()),
            Verdict::Hung(text) => (Class::Hang, text.clone()),
            Verdict::Refused(text) => (Class::Bug, text.clone()),
        };
        Err(Fault { class, evidence })
    }

    /// Of what the driver or wgpu said.
    pub(super) fn of_loss(text: String) -> Verdict {
        if is_memory(&text) { Verdict::OutOfMemory(text) } else { Verdict::Lost(text) }
    }

    /// Of what wgpu refused.
    pub(super) fn of_error(text: String) -> Verdict {
        if is_memory(&text) { Verdict::OutOfMemory(text) } else { Verdict::Refused(text) }
    }
}

/// The class of a driver's words, which may say why the device was lost.
fn lost(text: &str) -> Class {
    match classify(text).class {
        Class::Unknown => Class::DeviceLost,
        class => class,
    }
}

fn is_memory(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("out of memory") || text.contains("not enough memory")
}

/// Calls into wgpu, which panics on some losses. Returns what the panic said.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_a_class_and_keeps_the_drivers_words() {
        let discarded = |ms| Verdict::Discarded {
            evidence: "receipt 3 instead of 4".to_owned(),
            after: Duration::from_millis(ms),
        };
        let cases = [
            (discarded(3), Class::Discarded),
            (discarded(5000), Class::Timeout),
            (Verdict::of_loss("Unknown: Parent device is lost".to_owned()), Class::DeviceLost),
            (Verdict::of_loss("Unknown: Out of memory".to_owned()), Class::OutOfMemory),
            (Verdict::of_error("Not enough memory left.".to_owned()), Class::OutOfMemory),
            (Verdict::of_error("Validation Error".to_owned()), Class::Bug),
            (Verdict::Hung("not done after 2 s".to_owned()), Class::Hang),
        ];
        for (verdict, class) in cases {
            let fault = verdict.executed().unwrap_err();
            assert_eq!(fault.class, class, "{verdict:?}");
            assert!(!fault.evidence.is_empty());
        }
        assert_eq!(Verdict::Executed.executed(), Ok(()));
    }

    #[test]
    fn a_panic_of_wgpu_is_its_text() {
        assert_eq!(guarded(|| 3), Ok(3));
        let said = guarded(|| -> u32 { panic!("Parent device is lost") });
        assert_eq!(said, Err("Parent device is lost".to_owned()));
    }
}
