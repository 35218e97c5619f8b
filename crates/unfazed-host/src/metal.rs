//! Metal's environment: what has to be set before a process makes its first call.

use std::ffi::OsStr;

/// macOS's GPU driver reads it once, when a process begins to use Metal. With 1 it allows work more time while a display is
/// on; without, it ends long work for the display's sake ("Impacting Interactivity").
pub const RELAXED_TIMEOUT: &str = "AGX_RELAX_CDM_CTXSTORE_TIMEOUT";

/// What [`RELAXED_TIMEOUT`] is to be set to for an engine on `os` ([`std::env::consts::OS`]); `None` leaves it as it is.
/// `current` is what the user has set it to: that stays, an empty value too.
pub fn relaxed_timeout(os: &str, current: Option<&OsStr>) -> Option<&'static str> {
    (os == "macos" && current.is_none()).then_some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_is_relaxed_on_macos_unless_the_user_set_it() {
        assert_eq!(relaxed_timeout("macos", None), Some("1"));
        for set in ["0", "1", ""] {
            assert_eq!(relaxed_timeout("macos", Some(OsStr::new(set))), None);
        }
        assert_eq!(relaxed_timeout("linux", None), None);
    }
}
