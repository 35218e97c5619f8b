//! How fast the disk is that models are stored on, and what each model there would get from it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use unfazed_formats::source::{ByteSource, FileSource};
use unfazed_formats::{Checkpoint, Headers};
use unfazed_host::disk::{self, Disk};
use unfazed_host::disk_rates::{DiskRates, RandomRate};
use unfazed_model::Sources;
use unfazed_store::experts::source::PARTS;
use unfazed_store::storage::measure::{DepthFound, Rate, Reads, SEQUENTIAL_BYTES, find_depth, measure};
use unfazed_store::{LocalOptions, LocalStorage, SystemClock};

use crate::failure;
use crate::stderr::Stderr;

/// A smaller file says little about a disk.
const LEAST_BYTES: u64 = 16 << 20;
/// Most models of a folder that are looked at.
const MOST_MODELS: usize = 64;
/// Random reads that are measured in any case.
const RANDOM_BYTES: [usize; 3] = [64 << 10, 1 << 20, 4 << 20];
/// Most sizes of random reads.
const MOST_SIZES: usize = 8;
/// Sizes are rounded up to this.
const SIZE_STEP: usize = 64 << 10;
/// Hit rates for which a speed is said, in per cent.
const HITS: [u32; 4] = [0, 50, 75, 90];
/// A read that takes longer ends it: the disk is as good as away.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Reads at a time that can be tried.
const MOST_DEPTH: usize = 32;

/// A model that was found.
struct Model {
    name: String,
    bytes: u64,
    experts: Option<Experts>,
}

/// What its experts need.
struct Experts {
    /// Bytes of one expert of one layer.
    unit: u64,
    /// Bytes of all experts that a token uses.
    token: u64,
}

/// What was measured.
struct Measured {
    depth: DepthFound,
    sequential: Rate,
    random: Vec<(usize, Rate)>,
}

/// A disk that was measured.
pub(super) struct Storage {
    path: PathBuf,
    disk: Disk,
    rates: Option<DiskRates>,
    /// How it was read: by which calls, and whether past the page cache.
    engine: &'static str,
    direct: bool,
    measured: Measured,
    models: Vec<Model>,
    /// Where the rates are kept.
    kept: Option<PathBuf>,
}

impl Storage {
    /// Measures the disk that a model, or a folder of models, is on.
    pub(super) fn measure(path: &Path, time: Duration, stderr: &Stderr) -> anyhow::Result<Storage> {
        let (models, files) = find(path)?;
        let file = files.into_iter().max_by_key(ByteSource::len).filter(|file| file.len() >= LEAST_BYTES);
        let Some(file) = file else {
            let mib = LEAST_BYTES >> 20;
            bail!(
                "{}: no file of {mib} MiB or more to read: give a model, or a folder with one",
                path.display()
            );
        };
        let disk = disk::of(file.file());
        // Past the page cache: the disk is what is asked about.
        let options = LocalOptions { depth: Some(MOST_DEPTH), cached: false, ..LocalOptions::default() };
        let storage = LocalStorage::new(&[file], options)?;
        let measured = measure_all(&storage, &models, time, stderr)?;
        let rates = rates(&disk, &measured);
        let kept = rates.as_ref().and_then(|rates| keep(&disk, rates));
        let (engine, direct) = (storage.engine(), storage.reads_directly(0));
        Ok(Storage { path: path.to_owned(), disk, rates, engine, direct, measured, models, kept })
    }

    /// What was measured, by the name that it was asked for by.
    pub(super) fn place(&self) -> String {
        self.path.display().to_string()
    }

    /// The disk and its rates.
    pub(super) fn measured(&self) -> (Disk, Option<DiskRates>) {
        (self.disk.clone(), self.rates.clone())
    }

    /// For programs.
    pub(super) fn json(&self) -> Json<'_> {
        let Disk { file_system, remote, device, model, usb, rotational } = &self.disk;
        let random = self.measured.random.iter().map(|(bytes, rate)| JsonReads {
            bytes: *bytes as u64,
            bytes_per_second: rate.bytes_per_second,
            latency_ms: rate.latency * 1e3,
        });
        let models = self.models.iter().map(|found| JsonModel {
            name: &found.name,
            bytes: found.bytes,
            load_s: found.bytes as f64 / self.measured.sequential.bytes_per_second,
            expert_bytes: found.experts.as_ref().map(|experts| experts.unit),
            speeds: found.experts.iter().flat_map(|experts| self.speeds(experts)).collect(),
        });
        Json {
            file_system: file_system.as_deref(),
            device: device.as_deref(),
            model: model.as_deref(),
            remote: *remote,
            usb: *usb,
            rotational: *rotational,
            reads_by: self.engine,
            direct: self.direct,
            depth: self.measured.depth.depth,
            sequential_bytes_per_second: self.measured.sequential.bytes_per_second,
            random: random.collect(),
            models: models.collect(),
            kept: self.kept.as_deref(),
        }
    }

    fn speeds(&self, experts: &Experts) -> [JsonSpeed; HITS.len()] {
        HITS.map(|hits| JsonSpeed {
            hits_percent: hits,
            tokens_per_second: speed(experts, &self.measured, hits),
        })
    }

    /// For people.
    pub(super) fn show(&self, out: &mut impl Write) -> io::Result<()> {
        let Storage { disk, engine, measured, models, .. } = self;
        let how = if self.direct { "direct reads" } else { "no direct reads: through the page cache" };
        writeln!(out, "{disk}; {engine}, {how}")?;
        if let Some(caution) = disk.caution() {
            writeln!(out, "Mind: {caution}.")?;
        }
        let tried = measured.depth.tried.iter();
        let tried: Vec<_> =
            tried.map(|(depth, rate)| format!("{depth}: {:.0}", rate.bytes_per_second / 1e6)).collect();
        let depth = measured.depth.depth;
        writeln!(out, "{depth} reads at a time are enough (MB/s by number: {})\n", tried.join(", "))?;
        writeln!(out, "| reads                 |    MB/s | ms each |")?;
        writeln!(out, "| :-------------------- | ------: | ------: |")?;
        let mut row = |name: String, rate: &Rate| {
            writeln!(out, "| {name:21} | {:7.0} | {:7.2} |", rate.bytes_per_second / 1e6, rate.latency * 1e3)
        };
        row("in a row, 1024 KiB".to_owned(), &measured.sequential)?;
        for (bytes, rate) in &measured.random {
            row(format!("random, {} KiB", bytes >> 10), rate)?;
        }
        show_models(out, measured, models)?;
        if let Some(path) = &self.kept {
            writeln!(out, "\nKept in {}", path.display())?;
        }
        Ok(())
    }
}

/// A disk for programs. Rates are bytes a second.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    file_system: Option<&'a str>,
    device: Option<&'a str>,
    model: Option<&'a str>,
    remote: bool,
    usb: bool,
    rotational: bool,
    reads_by: &'static str,
    direct: bool,
    depth: usize,
    sequential_bytes_per_second: f64,
    random: Vec<JsonReads>,
    models: Vec<JsonModel<'a>>,
    kept: Option<&'a Path>,
}

/// Random reads of one size.
#[derive(Serialize)]
struct JsonReads {
    bytes: u64,
    bytes_per_second: f64,
    latency_ms: f64,
}

/// What a model would get from the disk.
#[derive(Serialize)]
struct JsonModel<'a> {
    name: &'a str,
    bytes: u64,
    load_s: f64,
    expert_bytes: Option<u64>,
    speeds: Vec<JsonSpeed>,
}

/// Tokens a second at most if so many experts in a hundred are in memory already.
#[derive(Serialize)]
struct JsonSpeed {
    hits_percent: u32,
    tokens_per_second: f64,
}

/// The models that are there, and files to read.
fn find(path: &Path) -> anyhow::Result<(Vec<Model>, Vec<FileSource>)> {
    let metadata = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if !metadata.is_dir() || path.join("config.json").is_file() {
        let checkpoint = Checkpoint::open(path)?;
        return Ok((vec![model(&checkpoint)], checkpoint.files));
    }
    let (mut models, mut files) = (Vec::new(), Vec::new());
    let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let is_model = path.extension().is_some_and(|extension| extension == "gguf")
            || path.join("config.json").is_file();
        if is_model && models.len() < MOST_MODELS {
            match Checkpoint::open(&path) {
                Ok(checkpoint) => {
                    models.push(model(&checkpoint));
                    files.extend(checkpoint.files);
                    continue;
                }
                // The later parts of a split model are no models by themselves.
                Err(error) => tracing::info!("left out: {}", failure::line(&error.into())),
            }
        }
        if path.is_file()
            && let Ok(file) = File::open(&path)
        {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            files.extend(FileSource::new(name, file));
        }
    }
    Ok((models, files))
}

/// What a model needs of a disk. One that cannot be served can still be read.
fn model(checkpoint: &Checkpoint) -> Model {
    let cost = Sources::find(&Headers::from(checkpoint)).map(|sources| sources.cost()).ok();
    let layers = checkpoint.config.layers.max(1) as u64;
    let experts = cost.filter(|cost| cost.experts > 0).map(|cost| Experts {
        unit: cost.expert.bytes / layers,
        token: cost.expert.bytes.saturating_mul(cost.used as u64),
    });
    Model { name: checkpoint.name.clone(), bytes: checkpoint.tensor_bytes, experts }
}

fn measure_all(
    storage: &LocalStorage,
    models: &[Model],
    time: Duration,
    stderr: &Stderr,
) -> anyhow::Result<Measured> {
    let clock = SystemClock::new();
    let step = |what: &str| stderr.status(&format!("Measuring {what}"));
    let limit = READ_LIMIT;
    step("reads in a row");
    let depth = find_depth(storage, &clock, 0, time / 3, READ_LIMIT).context("the disk cannot be read")?;
    let row =
        Reads { file: 0, bytes: SEQUENTIAL_BYTES, depth: depth.depth, random: false, time, limit, seed: 99 };
    let sequential = measure(storage, &clock, row)?;
    let mut random = Vec::new();
    for bytes in sizes(models) {
        step(&format!("random reads of {} KiB", bytes >> 10));
        // As many bytes at a time as in a row, and an expert's three parts at least.
        let at_a_time = (depth.depth * SEQUENTIAL_BYTES).div_ceil(bytes).clamp(PARTS, MOST_DEPTH);
        let reads = Reads { file: 0, bytes, depth: at_a_time, random: true, time, limit, seed: bytes as u64 };
        random.push((bytes, measure(storage, &clock, reads)?));
    }
    stderr.status("");
    Ok(Measured { depth, sequential, random })
}

/// Sizes of random reads: the models' experts, a part at a time, and some others.
fn sizes(models: &[Model]) -> BTreeSet<usize> {
    let part = |experts: &Experts| (experts.unit / PARTS as u64) as usize;
    let parts = models.iter().filter_map(|model| model.experts.as_ref().map(part));
    let parts =
        parts.map(|bytes| bytes.max(1).next_multiple_of(SIZE_STEP)).take(MOST_SIZES - RANDOM_BYTES.len());
    RANDOM_BYTES.into_iter().chain(parts).collect()
}

/// What is kept of it; `None` for a disk that has no name.
fn rates(disk: &Disk, measured: &Measured) -> Option<DiskRates> {
    let random = measured
        .random
        .iter()
        .map(|(bytes, rate)| RandomRate { bytes: *bytes as u64, bytes_per_second: rate.bytes_per_second });
    DiskRates::now(disk, measured.depth.depth, measured.sequential.bytes_per_second, random.collect())
}

/// Keeps it for later runs; where.
fn keep(disk: &Disk, rates: &DiskRates) -> Option<PathBuf> {
    rates.save(disk).inspect_err(|error| tracing::warn!("the measured rates cannot be kept: {error}")).ok()
}

fn show_models(out: &mut impl Write, measured: &Measured, models: &[Model]) -> io::Result<()> {
    if models.is_empty() {
        return Ok(());
    }
    let hits = HITS.map(|hits| format!("{hits:3} % |")).join(" ");
    writeln!(
        out,
        "\nTokens a second at most while experts are read from here, by the share that is in memory already:\n"
    )?;
    writeln!(out, "| model                          |    GB | loads in, s | MiB an expert | {hits}")?;
    writeln!(
        out,
        "| :----------------------------- | ----: | ----------: | ------------: |{}",
        " ----: |".repeat(HITS.len())
    )?;
    for Model { name, bytes, experts } in models {
        let name: String = name.chars().filter(|c| !c.is_control()).take(30).collect();
        let loads = *bytes as f64 / measured.sequential.bytes_per_second;
        let (unit, speeds) = match experts {
            Some(experts) => {
                let speeds = HITS.map(|hits| format!("{:5.2}", speed(experts, measured, hits)));
                (format!("{:.2}", experts.unit as f64 / f64::from(1 << 20)), speeds)
            }
            None => ("-".to_owned(), HITS.map(|_| format!("{:>5}", "-"))),
        };
        let gb = *bytes as f64 / 1e9;
        writeln!(out, "| {name:30} | {gb:5.1} | {loads:11.1} | {unit:>13} | {} |", speeds.join(" | "))?;
    }
    Ok(())
}

/// Tokens a second if reading were all, with this share of hits.
fn speed(experts: &Experts, measured: &Measured, hits: u32) -> f64 {
    let part = experts.unit / PARTS as u64;
    let nearest = measured.random.iter().min_by_key(|(bytes, _)| (*bytes as u64).abs_diff(part));
    let rate = nearest.map_or(0.0, |(_, rate)| rate.bytes_per_second);
    rate / (experts.token as f64 * f64::from(100 - hits) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_the_rate_of_reads_of_that_size_over_the_bytes_that_are_missed() {
        let rate = |rate| Rate { bytes_per_second: rate, reads: 1, latency: 0.0 };
        let depth = DepthFound { depth: 1, tried: Vec::new() };
        let random = vec![(64 << 10, rate(1e6)), (1 << 20, rate(1e9))];
        let measured = Measured { depth, sequential: rate(2e9), random };
        let experts = Experts { unit: 3 << 20, token: 100_000_000 };
        assert_eq!(speed(&experts, &measured, 0), 10.0);
        assert_eq!(speed(&experts, &measured, 75), 40.0);
        let model = |experts| Model { name: String::new(), bytes: 0, experts: Some(experts) };
        let sizes = sizes(&[model(experts), model(Experts { unit: 3 << 18, token: 0 })]);
        assert!(sizes.contains(&(1 << 18)) && sizes.len() == 4);
    }
}
