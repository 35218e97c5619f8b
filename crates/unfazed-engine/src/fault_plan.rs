//! Faults on demand, for tests of what follows. Only in builds with the feature `fault-plan`.

use std::sync::LazyLock;

use unfazed_device::Batch;

/// The engine aborts before a step that computes this token.
const ABORT_ON_TOKEN: &str = "UNFAZED_ABORT_ON_TOKEN";

static TOKEN: LazyLock<Option<u32>> = LazyLock::new(|| std::env::var(ABORT_ON_TOKEN).ok()?.parse().ok());

/// Looks at a step that is about to be computed.
pub(crate) fn before(batch: &Batch) {
    if let Some(token) = *TOKEN
        && batch.rows.iter().any(|row| row.token == token)
    {
        tracing::error!(token, "aborting, as the fault plan wants it");
        std::process::abort();
    }
}
