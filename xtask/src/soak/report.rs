//! What a run comes to: a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::board::Tally;
use super::device::Told;
use super::sampler::Samples;
use super::striker::Blow;

/// All of a run.
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) seconds: f64,
    /// Classes of faults that could not be had here, and why.
    pub(super) left_out: Vec<String>,
    pub(super) blows: Vec<Blow>,
    /// Faults that the program brought about by itself, with what each cost.
    pub(super) device: BTreeMap<String, Told>,
    /// Events of the server by name.
    pub(super) events: BTreeMap<String, usize>,
    pub(super) tally: Tally,
    pub(super) samples: Samples,
    /// Reads of the model's file system.
    pub(super) reads: usize,
    pub(super) restarts: u64,
    pub(super) resumed: u64,
    pub(super) descriptors: [usize; 2],
}

/// Times of a class of faults, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
struct Times {
    count: usize,
    median_ms: f64,
    worst_ms: f64,
}

impl Report {
    /// Times from fault to next token by class.
    fn times(&self) -> Vec<(String, Times)> {
        let mut by_class: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for blow in &self.blows {
            by_class.entry(blow.class.to_owned()).or_default().push(blow.to_next_token_ms);
        }
        let mut rows: Vec<_> = by_class.into_iter().map(|(class, of)| (class, times(of))).collect();
        for (class, told) in &self.device {
            rows.push((format!("device: {class}"), Times { count: told.count, ..times(told.costs.clone()) }));
        }
        let struck = self.blows.iter().map(|blow| blow.to_next_token_ms);
        let all = struck.chain(self.device.values().flat_map(|told| told.costs.iter().copied())).collect();
        rows.push(("all".to_owned(), Times { count: self.faults(), ..times(all) }));
        rows
    }

    /// Faults of all kinds.
    pub(super) fn faults(&self) -> usize {
        self.blows.len() + self.device.values().map(|told| told.count).sum::<usize>()
    }

    /// The table.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |line: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{line}");
        };
        line(format!("{:32} {:>7} {:>28}", "", "", "fault to next token, ms"));
        line(format!("{:32} {:>7} {:>14} {:>13}", "fault", "count", "median", "worst"));
        for (class, times) in self.times() {
            line(format!("{class:32} {:>7} {:>14.0} {:>13.0}", times.count, times.median_ms, times.worst_ms));
        }
        for left_out in &self.left_out {
            line(format!("left out: {left_out}"));
        }
        let tally = &self.tally;
        line(String::new());
        let mut row = |name: &str, value: String| line(format!("{name:40} {value}"));
        row("seed", self.seed.to_string());
        row("time", format!("{:.0} s", self.seconds));
        row("requests", format!("{}, {} of them by the OpenAI package", tally.requests, tally.openai));
        row("answered in full, left by their clients", format!("{}, {}", tally.answered, tally.left));
        row("streams cut and continued", tally.cuts.to_string());
        row("tokens of full answers", tally.tokens.to_string());
        row("engines restarted, sequences resumed", format!("{}, {}", self.restarts, self.resumed));
        row("reads of the model's file system", self.reads.to_string());
        row("sequences in the server at most", self.samples.most_sequences.to_string());
        row("front, resident MiB, quartiles", mib(self.samples.resident.quartiles()));
        row("front, anonymous MiB, quartiles", mib(self.samples.anonymous.quartiles()));
        row("resident MiB at most, in each half", mib(self.samples.resident.halves()));
        row("descriptors at the start, at the end", format!("{:?}", self.descriptors));
        row("failed by name", tally.failed_by_name.to_string());
        row("lost", tally.losses.len().to_string());
        text
    }

    /// Writes all of it.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.json())? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    fn json(&self) -> Value {
        let tally = &self.tally;
        json!({
            "seed": self.seed,
            "seconds": self.seconds,
            "faults": self.times().into_iter().collect::<BTreeMap<_, _>>(),
            "left_out": self.left_out,
            "blows": self.blows,
            "events": self.events,
            "requests": tally.requests,
            "requests_by_openai_package": tally.openai,
            "answered": tally.answered,
            "left": tally.left,
            "cuts": tally.cuts,
            "tokens": tally.tokens,
            "failed_by_name": tally.failed_by_name,
            "lost": tally.losses.len(),
            "losses": tally.losses,
            "engine_restarts": self.restarts,
            "sequences_resumed": self.resumed,
            "model_reads": self.reads,
            "front_resident_bytes": self.samples.resident.quartiles(),
            "front_anonymous_bytes": self.samples.anonymous.quartiles(),
            "front_resident_bytes_most_of_halves": self.samples.resident.halves(),
            "descriptors": self.descriptors,
        })
    }
}

fn times(mut of: Vec<f64>) -> Times {
    of.sort_by(f64::total_cmp);
    let at = |at: usize| of.get(at).copied().unwrap_or(f64::NAN);
    Times { count: of.len(), median_ms: at(of.len() / 2), worst_ms: at(of.len().saturating_sub(1)) }
}

fn mib<const N: usize>(bytes: [u64; N]) -> String {
    bytes.map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20))).join("  ")
}
