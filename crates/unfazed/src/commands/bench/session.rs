//! A model, its engines and its tests, one after the other.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use unfazed_device::cpu::{Meter, Rates};
use unfazed_engine::local::Local;
use unfazed_formats::{BlockFormat, ByteSource, Checkpoint, Headers, TensorInfo};
use unfazed_host::calibration::Machine;
use unfazed_kernels::Isa;
use unfazed_model::{Cost, Sources};
use unfazed_plan::{PAGE_TOKENS, Plan, Settings, Tokens};

use super::limit::{Limit, better};
use super::measure::Measured;
use super::print::Printer;
use super::record::Record;
use super::streaming::Streaming;
use super::workload::Workload;
use super::{BenchArgs, Test, kernels};
use crate::adapters::Found;
use crate::commands::calibrate;
use crate::failure::OutputClosed;
use crate::flags::{Placement, ProcessorFlags};
use crate::stderr::Stderr;
use crate::{launch, machine};

/// How an engine is set up, and how large its steps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) threads: usize,
    pub(super) threads_batch: usize,
    pub(super) n_batch: usize,
    pub(super) n_ubatch: usize,
}

/// What is the same for all models.
pub(super) struct Session<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) placement: &'a Placement,
    pub(super) isa: Isa,
    pub(super) stderr: &'a Stderr,
    /// Whose rates are kept.
    pub(super) machine: Machine,
}

/// An engine and what is measured beside it.
struct Loaded {
    measured: Measured,
    experts: Option<Streaming>,
    meter: Option<Meter>,
    cost: Cost,
    /// Bytes of keys and values of a position.
    kv_position: f64,
}

impl Session<'_> {
    /// Measures all tests of a model. Setups that differ in their steps alone share an engine.
    pub(super) fn model(
        &self,
        checkpoint: &Checkpoint,
        path: Option<&Path>,
        tests: &[Test],
        setups: &[Setup],
        printer: &mut Printer<impl Write>,
    ) -> anyhow::Result<()> {
        let blank = self.blank(checkpoint, path);
        for setups in setups.chunk_by(|a, b| (a.threads, a.threads_batch) == (b.threads, b.threads_batch)) {
            let mut loaded = self.load(checkpoint, tests, setups)?;
            for setup in setups {
                for test in tests {
                    let mut measure = |work| self.measure(&mut loaded, &blank, setup, work);
                    match test {
                        Test::Single(work) => {
                            let record = measure(*work)?;
                            printer.single(&record).context(OutputClosed)?;
                        }
                        Test::Batched { prompt, answer } => {
                            let (prompt, answer) = (measure(*prompt)?, measure(*answer)?);
                            printer.batched(&prompt, &answer).context(OutputClosed)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Loads the model for the largest of the tests.
    fn load(&self, checkpoint: &Checkpoint, tests: &[Test], setups: &[Setup]) -> anyhow::Result<Loaded> {
        let plan = self.plan(checkpoint, tests, setups)?;
        let threads = self.placement.threads(plan.threads, plan.batch_threads);
        let stderr = self.stderr.clone();
        let watch = move |done, total| stderr.loading(done, total);
        let Local { engine, experts } =
            unfazed_engine::local::load(checkpoint, &plan, &threads, Some(self.isa.name()), &watch)?;
        self.stderr.status("");
        let meter = match self.args.limit {
            true => Some(
                Meter::new(self.isa, &threads, calibrate::read_bytes())
                    .context("cannot start threads to measure the limit with")?,
            ),
            false => None,
        };
        Ok(Loaded {
            measured: Measured::new(engine, checkpoint.config.vocab, plan.streams()),
            experts: experts.map(|store| Streaming::new(store, &plan)),
            meter,
            cost: Sources::find(&Headers::from(checkpoint))?.cost(),
            kv_position: plan.kv_bytes.0 as f64 / (plan.pages * PAGE_TOKENS).max(1) as f64,
        })
    }

    /// Memory for the largest of the tests: a model or a test that is too large is refused here.
    fn plan(&self, checkpoint: &Checkpoint, tests: &[Test], setups: &[Setup]) -> anyhow::Result<Plan> {
        let works: Vec<Workload> = tests.iter().flat_map(Test::workloads).collect();
        let parallel = works.iter().map(|work| work.parallel).max().unwrap_or(1);
        let least = setups.iter().map(|setup| setup.n_ubatch).min().unwrap_or(1);
        let chunk = setups.iter().map(|setup| setup.n_ubatch).max().unwrap_or(1).max(parallel);
        let trained = checkpoint.config.context;
        let mut context = 1;
        for work in &works {
            let needed = work.context(least.max(work.parallel));
            if needed > trained {
                bail!(
                    "{work} needs a context of {needed}, and the model was trained for {trained}: give less to -p, -n, -d or -npl"
                );
            }
            context = context.max(needed);
        }
        let setup = setups.first().context("there is no setup")?;
        let settings = Settings {
            context: Some(Tokens(context.max(PAGE_TOKENS.min(trained)))),
            parallel: Some(parallel),
            chunk: Some(Tokens(chunk)),
            threads: Some(setup.threads),
            batch_threads: Some(setup.threads_batch),
            cache: self.args.cache.types(),
            ..self.args.memory.settings()
        };
        let machine = machine::for_plan(self.placement, self.isa, checkpoint, Found::default())?;
        let plan = launch::plan(checkpoint, &machine, &settings)?;
        let pages = works
            .iter()
            .map(|work| work.parallel * work.context(least.max(work.parallel)).div_ceil(PAGE_TOKENS));
        let fits = plan.context.0 >= context && plan.parallel == parallel && plan.chunk.0 >= chunk;
        if !fits || plan.pages < pages.max().unwrap_or(0) {
            bail!("the tests do not fit into memory or into a step: {}", plan.notes.join("; "));
        }
        Ok(plan)
    }

    fn measure(
        &self,
        loaded: &mut Loaded,
        blank: &Record,
        setup: &Setup,
        work: Workload,
    ) -> anyhow::Result<Record> {
        let mut record = Record {
            n_batch: setup.n_batch,
            n_ubatch: setup.n_ubatch,
            n_threads: setup.threads,
            n_threads_batch: setup.threads_batch,
            n_prompt: work.prompt,
            n_gen: work.generate,
            n_depth: work.depth,
            n_parallel: work.parallel,
            test_time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            workload: work,
            ..blank.clone()
        };
        // Those of the steps that count most.
        let decodes = work.prompt == 0 && work.parallel == 1;
        let threads = if decodes { setup.threads } else { setup.threads_batch };
        let before = self.rates(loaded, threads);
        if !self.args.no_warmup {
            self.say(&work, "warming up");
            loaded.measured.run(&warm_up(&work), setup.n_ubatch)?;
        }
        let mut samples: Vec<Duration> = Vec::new();
        for repetition in 1..=self.args.repetitions {
            self.say(&work, &format!("run {repetition} of {}", self.args.repetitions));
            let counts = loaded.experts.as_ref().map(Streaming::counts);
            samples.push(loaded.measured.run(&work, setup.n_ubatch)?);
            if self.args.verbose {
                let (last, tokens) =
                    (samples.last().map_or(0.0, Duration::as_secs_f64), work.tokens() as f64);
                self.stderr.status("");
                let experts = loaded.experts.as_ref().zip(counts);
                let experts = experts.map_or(String::new(), |(experts, before)| experts.since(&before, last));
                let rate = tokens / last.max(1e-9);
                self.stderr.write(format!("{work}: {last:.3} s, {rate:.2} t/s{experts}\n"));
            }
        }
        record.set_samples(&samples);
        if let (Some(before), Some(after)) = (before, self.rates(loaded, threads)) {
            let rates = better(before, after);
            calibrate::keep(&self.machine, threads, rates);
            record.set_limit(&Limit::of(&work, setup.n_ubatch, &loaded.cost, loaded.kv_position, rates));
        }
        self.stderr.status("");
        // The line that is written next must not stand behind a status.
        self.stderr.flush();
        Ok(record)
    }

    /// What the machine can do now, with so many threads.
    fn rates(&self, loaded: &mut Loaded, threads: usize) -> Option<Rates> {
        let meter = loaded.meter.as_mut()?;
        self.stderr.status("measuring memory and dot products");
        meter.take_part(threads);
        Some(meter.rates())
    }

    fn say(&self, work: &Workload, what: &str) {
        let line = format!("{work}: {what}");
        self.stderr.status(&line);
        if self.args.progress && !self.stderr.is_terminal() {
            self.stderr.write(line + "\n");
        }
    }

    /// A record with all that is the same for a model's tests.
    fn blank(&self, checkpoint: &Checkpoint, path: Option<&Path>) -> Record {
        let file = || checkpoint.files.first().map_or(String::new(), |file| file.name().to_owned());
        let threads = self.placement.threads(1, 1);
        Record {
            build_commit: unfazed_wire::BUILD_ID,
            cpu_info: unfazed_host::processor_name(),
            backends: "CPU",
            isa: self.isa.name().to_owned(),
            model_filename: path.map_or_else(file, |path| path.display().to_string()),
            model_type: model_type(checkpoint),
            model_size: checkpoint.tensor_bytes,
            model_n_params: checkpoint
                .tensors
                .values()
                .map(TensorInfo::elements)
                .fold(0, u64::saturating_add),
            n_batch: 0,
            n_ubatch: 0,
            n_threads: 0,
            n_threads_batch: 0,
            cpu_mask: ProcessorFlags::mask(self.placement),
            cpu_strict: threads.pin,
            type_k: self.args.cache.types().keys.name(),
            type_v: self.args.cache.types().values.name(),
            n_prompt: 0,
            n_gen: 0,
            n_depth: 0,
            n_parallel: 1,
            test_time: String::new(),
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
            workload: Workload { prompt: 0, generate: 0, depth: 0, parallel: 1 },
        }
    }
}

/// A run before the first that counts: the same prompt, of a generation one token, and nothing before them.
fn warm_up(work: &Workload) -> Workload {
    Workload { generate: work.generate.min(1), depth: 0, ..*work }
}

/// The model's name with the format of most of its bytes, unless it says that itself.
fn model_type(checkpoint: &Checkpoint) -> String {
    let bytes_of = |format: &BlockFormat| -> u64 {
        let tensors = checkpoint.tensors.values().filter(|tensor| tensor.format == *format);
        tensors.map(|tensor| tensor.extent.len).fold(0, u64::saturating_add)
    };
    let name: String = checkpoint.name.chars().filter(|c| !c.is_control()).collect();
    let format = BlockFormat::all().max_by_key(bytes_of).map(kernels::format_name);
    match format {
        Some(format) if !name.to_lowercase().contains(&format.to_lowercase()) => format!("{name} {format}"),
        _ => name,
    }
}
