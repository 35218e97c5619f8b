//! `orphan-scan`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use unfazed_guard::breadcrumb::{self, Orphan};
use unfazed_guard::local_time::iso;

use super::{Guard, printable, span};

#[derive(Debug, Args)]
pub(super) struct OrphanScanArgs {
    /// Seconds after which work that did not end counts [default: METALGUARD_SUBPROC_ORPHAN_THRESHOLD_SEC, or 90]
    #[arg(long, value_name = "SECONDS", value_parser = span)]
    threshold_sec: Option<f64>,
}

pub(super) fn run(guard: &Guard<'_>, args: &OrphanScanArgs) -> anyhow::Result<ExitCode> {
    let threshold = args.threshold_sec.unwrap_or(guard.settings.orphan_seconds);
    let orphans = if guard.settings.orphans_disabled {
        Vec::new()
    } else {
        breadcrumb::orphans(guard.places()?.breadcrumbs(), threshold, guard.now)?
    };
    let json = || {
        let orphan = |orphan: &Orphan| {
            let age = (orphan.age * 10.0).round() / 10.0;
            json!({"model_id": orphan.model, "pre_ts": iso(orphan.at), "age_sec": age, "pid": orphan.pid})
        };
        json!({"threshold_sec": threshold, "orphans": orphans.iter().map(orphan).collect::<Vec<_>>()})
    };
    guard.print(json, || lines(&orphans, threshold))?;
    Ok(ExitCode::from(u8::from(!orphans.is_empty())))
}

fn lines(orphans: &[Orphan], threshold: f64) -> String {
    if orphans.is_empty() {
        return format!("No orphan SUBPROC_PRE entries (threshold {threshold:.0}s).\n");
    }
    let mut lines = format!(
        "{} orphan SUBPROC_PRE entries (threshold {threshold:.0}s): perhaps a panic is on its way\n",
        orphans.len()
    );
    for orphan in orphans {
        let pid = orphan.pid.map_or("?".to_owned(), |pid| pid.to_string());
        let (model, at) = (printable(&orphan.model), iso(orphan.at));
        lines.push_str(&format!("  pid={pid} model={model} age={:.0}s pre_ts={at}\n", orphan.age));
    }
    lines
}
