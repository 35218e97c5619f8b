//! `postmortem`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use unfazed_guard::postmortem::{self, Bundle};
use unfazed_guard::reports::scan;

use super::{Guard, printable};

#[derive(Debug, Args)]
pub(super) struct PostmortemArgs {
    /// Folder to collect in; made if there is none
    #[arg(value_name = "DIR")]
    output_dir: PathBuf,
}

pub(super) fn run(guard: &Guard<'_>, args: &PostmortemArgs) -> anyhow::Result<ExitCode> {
    let folder = &args.output_dir;
    if guard.settings.postmortem_disabled {
        guard.print(
            || json!({"status": "disabled", "output_dir": folder}),
            || "postmortem disabled (METALGUARD_POSTMORTEM_DISABLED=1)\n".to_owned(),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let places = guard.places()?;
    let since = guard.now.checked_sub(postmortem::WINDOW).unwrap_or(guard.now);
    let scan = scan(places.reports(), since, guard.now);
    let bundle = postmortem::collect(folder, places, &scan, &guard.settings, guard.now)
        .with_context(|| format!("{} cannot be written", folder.display()))?;
    bundle.missing.iter().for_each(|missing| guard.warn(missing));
    let json = || {
        json!({
            "status": "collected",
            "output_dir": bundle.folder,
            "panic_count": bundle.panics,
            "index": bundle.index,
            "sentinel": bundle.sentinel,
            "gpu_event_count": bundle.gpu_events,
            "missing": bundle.missing,
        })
    };
    guard.print(json, || lines(&bundle))?;
    Ok(ExitCode::SUCCESS)
}

fn lines(bundle: &Bundle) -> String {
    let mut lines = format!("postmortem bundle: {}\n", printable(&bundle.folder.display().to_string()));
    lines.push_str(&format!("  panic files copied: {}\n", bundle.panics));
    if bundle.gpu_events > 0 {
        lines.push_str(&format!("  GPU events copied: {}\n", bundle.gpu_events));
    }
    lines.push_str(&format!("  index: {}\n", printable(&bundle.index.display().to_string())));
    if let Some(sentinel) = &bundle.sentinel {
        lines.push_str(&format!("  sentinel cooldown written: {}\n", sentinel.display()));
    }
    lines
}
