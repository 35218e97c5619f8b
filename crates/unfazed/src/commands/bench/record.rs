//! The result of a test. Fields are called as llama-bench calls those that mean the same.

use std::time::Duration;

use serde::Serialize;

use super::limit::Limit;
use super::workload::Workload;

/// A result, with all that it depends on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Record {
    pub(super) build_commit: &'static str,
    pub(super) cpu_info: String,
    pub(super) backends: &'static str,
    pub(super) isa: String,
    pub(super) model_filename: String,
    pub(super) model_type: String,
    pub(super) model_size: u64,
    pub(super) model_n_params: u64,
    pub(super) n_batch: usize,
    pub(super) n_ubatch: usize,
    pub(super) n_threads: usize,
    pub(super) n_threads_batch: usize,
    pub(super) cpu_mask: String,
    pub(super) cpu_strict: bool,
    pub(super) type_k: &'static str,
    pub(super) type_v: &'static str,
    pub(super) n_prompt: usize,
    pub(super) n_gen: usize,
    pub(super) n_depth: usize,
    pub(super) n_parallel: usize,
    pub(super) test_time: String,
    pub(super) avg_ns: u64,
    pub(super) stddev_ns: u64,
    pub(super) avg_ts: f64,
    pub(super) stddev_ts: f64,
    /// What binds the test: `memory` or `compute`; null where it was not asked for, as all that follows.
    pub(super) limit: Option<&'static str>,
    /// Mean share of that limit, 1 being all of it.
    pub(super) limit_share: Option<f64>,
    /// 10^9 bytes per second.
    pub(super) read_gb_per_s: Option<f64>,
    /// 10^9 multiply-adds per second.
    pub(super) dot_gmac_per_s: Option<f64>,
    pub(super) samples_ns: Vec<u64>,
    pub(super) samples_ts: Vec<f64>,
    #[serde(skip)]
    pub(super) workload: Workload,
}

impl Record {
    /// Puts the times of a test's repetitions in.
    pub(super) fn set_samples(&mut self, samples: &[Duration]) {
        let tokens = self.workload.tokens() as f64;
        let ns: Vec<f64> = samples.iter().map(|time| time.as_nanos() as f64).collect();
        self.samples_ts = ns.iter().map(|ns| tokens * 1e9 / ns.max(1.0)).collect();
        self.samples_ns =
            samples.iter().map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).collect();
        let (mean, deviation) = mean_and_deviation(&ns);
        (self.avg_ns, self.stddev_ns) = (mean as u64, deviation as u64);
        (self.avg_ts, self.stddev_ts) = mean_and_deviation(&self.samples_ts);
    }

    /// Puts the limit in, once the samples are.
    pub(super) fn set_limit(&mut self, limit: &Limit) {
        let shares = self.samples_ns.iter().map(|ns| limit.share(*ns as f64 / 1e9));
        self.limit = Some(limit.name());
        self.limit_share = Some(shares.sum::<f64>() / self.samples_ns.len().max(1) as f64);
        self.read_gb_per_s = Some(limit.rates.read / 1e9);
        self.dot_gmac_per_s = Some(limit.rates.macs / 1e9);
    }

    /// Mean time of the test.
    pub(super) fn seconds(&self) -> f64 {
        self.avg_ns as f64 / 1e9
    }
}

/// Mean and standard deviation of a sample; the deviation of a single number is 0.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, if values.len() < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A result of two repetitions.
    pub(crate) fn record(workload: Workload) -> Record {
        let mut record = Record {
            build_commit: "build",
            cpu_info: "a \"fast\" one".to_owned(),
            backends: "CPU",
            isa: "avx2".to_owned(),
            model_filename: "model.gguf".to_owned(),
            model_type: "stories Q4_0".to_owned(),
            model_size: 17 << 20,
            model_n_params: 29_000_000,
            n_batch: 2048,
            n_ubatch: 512,
            n_threads: 2,
            n_threads_batch: 2,
            cpu_mask: "0x0".to_owned(),
            cpu_strict: false,
            type_k: "f16",
            type_v: "f16",
            n_prompt: workload.prompt,
            n_gen: workload.generate,
            n_depth: workload.depth,
            n_parallel: workload.parallel,
            test_time: "2026-11-30T12:00:00Z".to_owned(),
            avg_ns: 0,
            stddev_ns: 0,
            avg_ts: 0.0,
            stddev_ts: 0.0,
            limit: None,
            limit_share: None,
            read_gb_per_s: None,
            dot_gmac_per_s: None,
            samples_ns: Vec::new(),
            samples_ts: Vec::new(),
            workload,
        };
        record.set_samples(&[Duration::from_millis(400), Duration::from_millis(600)]);
        record
    }

    #[test]
    fn rates_are_means_of_each_repetitions_rate() {
        let record = record(Workload { prompt: 120, generate: 0, depth: 0, parallel: 2 });
        assert_eq!((record.avg_ns, record.stddev_ns), (500_000_000, 141_421_356));
        assert_eq!((record.samples_ts[0] as u32, record.samples_ts[1] as u32), (600, 400));
        assert_eq!(record.avg_ts.round() as u32, 500);
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
    }
}
