//! Faults of the device: the program brings them about by itself, as a plan says, and tells each in an event.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use unfazed_sim::device::Bug;

use super::program::{Events, Launch};

/// The flag of builds for tests.
const FLAG: &str = "--fault-plan";
/// One in so many steps of an engine has such a fault.
const ONE_IN: [(&str, u64); 12] = [
    ("gpu_timeout", 400),
    ("gpu_hang", 1500),
    ("gpu_page_fault", 1500),
    ("gpu_innocent_victim", 600),
    ("gpu_interactivity", 600),
    ("gpu_discarded", 600),
    ("cmd_buffer_oom", 1000),
    ("gpu_device_lost", 1500),
    ("gpu_submissions_ignored", 2000),
    ("non_finite", 600),
    ("wire_broken", 3000),
    ("bug", 3000),
];

/// Whether the program can have such faults.
pub(super) fn possible(launch: &Launch) -> Result<bool> {
    Ok(launch.output(&["serve", "--help"])?.contains(FLAG))
}

/// Writes the plan of a seed; returns the flags for it. A device that was given up is soon tried again.
pub(super) fn plan(folder: &Path, seed: u64, bug: Option<Bug>) -> Result<[String; 4]> {
    let path: PathBuf = folder.join("fault-plan.json");
    let plan = json!({"seed": seed, "one_in": BTreeMap::from(ONE_IN), "bug": bug});
    std::fs::write(&path, plan.to_string())?;
    Ok([FLAG.to_owned(), path.display().to_string(), "--recover-after".to_owned(), "5".to_owned()])
}

/// Faults of one class that the program told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    pub(super) count: usize,
    /// What those cost that say so, in milliseconds.
    pub(super) costs: Vec<f64>,
}

/// The faults of the plan by class. Others are told as well, such as those that we struck.
pub(super) fn told(events: &Events) -> BTreeMap<String, Told> {
    let mut faults: BTreeMap<String, Told> = BTreeMap::new();
    for (_, event) in events.from(0) {
        let planned = ONE_IN.iter().find(|(class, _)| event["event"] == "fault" && event["class"] == *class);
        if let Some((class, _)) = planned {
            let told = faults.entry((*class).to_owned()).or_default();
            told.count += 1;
            told.costs.extend(event["cost_ms"].as_f64());
        }
    }
    faults
}

/// How often each event came.
pub(super) fn counts(events: &Events) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, event) in events.from(0) {
        let name = event["event"].as_str().unwrap_or("no event").to_owned();
        let name = match &event["cause"] {
            Value::String(cause) => format!("{name} {cause}"),
            _ => name,
        };
        *counts.entry(name).or_default() += 1;
    }
    counts
}
