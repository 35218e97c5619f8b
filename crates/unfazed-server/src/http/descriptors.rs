//! How many connections the limit of open files leaves room for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use unfazed_host::limits::{FEWEST_FILES, FILES_BESIDE_CONNECTIONS};

use crate::ServerError;

/// Fewer connections make no server.
const LEAST: usize = 16;

/// Raises this process's limit of open files as far as `most` connections beside `files` files of the model need it and
/// the system lets it, and returns how many connections fit.
pub(crate) fn connections(most: usize, files: usize) -> Result<usize, ServerError> {
    let beside = FILES_BESIDE_CONNECTIONS.saturating_add(files as u64);
    let wanted = beside.saturating_add(most as u64);
    let limit = getrlimit(Resource::Nofile);
    // Not to a hard limit that is far above: macOS refuses to, and engines inherit it.
    let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let mut current = limit.current;
    if current.is_some_and(|current| current < raised) {
        match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }) {
            Ok(()) => current = Some(raised),
            Err(error) => tracing::debug!(%error, raised, "the limit of open files cannot be raised"),
        }
    }
    if let Some(limit) = current.filter(|limit| *limit < FEWEST_FILES) {
        let advice =
            format!("the limit is {limit}, and {FEWEST_FILES} are needed (ulimit -n {FEWEST_FILES})");
        let source = std::io::Error::other(advice);
        return Err(ServerError::System { what: "too few open files are allowed", source });
    }
    let fit = fit(current, beside, most);
    if fit < most {
        tracing::info!("open files are limited: at most {fit} connections at a time");
    }
    Ok(fit)
}

/// `None` is no limit.
fn fit(limit: Option<u64>, beside: u64, most: usize) -> usize {
    let room = limit.map_or(u64::MAX, |limit| limit.saturating_sub(beside));
    usize::try_from(room).unwrap_or(usize::MAX).max(LEAST).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_files_and_are_never_none() {
        assert_eq!(fit(Some(1024), 256, 4096), 768);
        assert_eq!(fit(Some(1 << 20), 256, 4096), 4096);
        assert_eq!(fit(None, 256, 4096), 4096);
        assert_eq!(fit(Some(100), 256, 4096), LEAST);
        assert_eq!(fit(Some(100), 256, 8), 8);
    }

    #[test]
    fn the_limit_is_high_enough_for_what_is_said_to_fit() {
        let fit = connections(300, 1).unwrap();
        let limit = getrlimit(Resource::Nofile).current;
        assert!(fit == LEAST || limit.is_none_or(|limit| limit >= 257 + fit as u64), "{fit} {limit:?}");
    }
}
