//! From the front's `Start` to an engine that computes.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use unfazed_device::KvShape;
use unfazed_device::cpu::{CpuConfig, CpuDevice};
use unfazed_formats::source::FileSource;
use unfazed_formats::{Checkpoint, ModelConfig};
use unfazed_kernels::Isa;
use unfazed_model::Sources;
use unfazed_store::{Loader, PositionalReader};
use unfazed_wire::link::{LinkError, Sender};
use unfazed_wire::{ReadyInfo, Start, ToFront};

use crate::clock::milliseconds;
use crate::{Clock, Engine, EngineError, Limits, MonotonicClock};

/// Least time between two messages about progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Reads the model's headers, checks them, loads the weights and tells the front how far it is.
///
/// # Errors
///
/// [`EngineError::Load`] with one line that names what is wrong, or a link that failed.
pub(crate) fn load(
    start: &Start,
    files: Vec<OwnedFd>,
    sender: &mut Sender,
) -> Result<(Engine<CpuDevice>, ReadyInfo), EngineError> {
    let clock = MonotonicClock::new();
    let isa = isa(start.isa.as_deref())?;
    let mut checkpoint = Checkpoint::read(sources(&start.files, files)?).map_err(refusal)?;
    let limits = limits(start, checkpoint.config.vocab)?;
    let sources = Sources::find(&checkpoint).map_err(refusal)?;
    let reader = Arc::new(PositionalReader::of(&mut checkpoint));
    let model = &checkpoint.config;
    let kv = KvShape {
        layers: model.layers,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        page_tokens: limits.page_tokens,
        pages: limits.pages,
    };
    let config = CpuConfig {
        isa,
        threads: start.threads,
        model,
        kv,
        max_rows: limits.chunk,
        max_logit_rows: limits.logit_rows,
        float_activations: false,
        loader: Loader::new(reader, start.threads, Box::new(|_| ())),
    };
    let mut device = CpuDevice::new(config).map_err(refusal)?;
    let mut progress = Progress { sender, clock, total: sources.bytes(), told: None, broken: None };
    let loaded = sources.load(&mut device, &mut |done| progress.tell(done));
    if let Some(error) = progress.broken {
        return Err(error.into());
    }
    let ready = ReadyInfo {
        isa: isa.name().to_owned(),
        threads: start.threads,
        weight_bytes: sources.bytes(),
        kv_bytes: kv_bytes(model, &limits),
        load_ms: milliseconds(Duration::ZERO, clock.now()),
        read_bytes: sources.bytes(),
        kept_bytes: 0,
    };
    Ok((Engine::new(loaded.map_err(refusal)?, device, limits, isa, Box::new(clock)), ready))
}

/// One line for people.
fn refusal(error: impl std::fmt::Display) -> EngineError {
    EngineError::Load(error.to_string().replace('\n', " "))
}

fn isa(name: Option<&str>) -> Result<Isa, EngineError> {
    let Some(name) = name else { return Ok(Isa::best()) };
    let names = Isa::ALL.map(Isa::name).join(", ");
    let Some(isa) = Isa::from_name(name) else {
        return Err(refusal(format!("instruction set {name} is unknown: there are {names}")));
    };
    if !isa.available() {
        let best = Isa::best().name();
        return Err(refusal(format!("this processor does not run {name}: the best it runs is {best}")));
    }
    Ok(isa)
}

fn sources(names: &[String], files: Vec<OwnedFd>) -> Result<Vec<FileSource>, EngineError> {
    if names.len() != files.len() {
        return Err(refusal(format!("{} files were named and {} handed over", names.len(), files.len())));
    }
    let source = |(name, file): (&String, OwnedFd)| {
        FileSource::new(name, File::from(file))
            .map_err(|error| refusal(format!("{name}: cannot be read: {error}")))
    };
    names.iter().zip(files).map(source).collect()
}

fn limits(start: &Start, vocab: usize) -> Result<Limits, EngineError> {
    let limits = Limits {
        context: start.context,
        parallel: start.parallel,
        chunk: start.chunk,
        logit_rows: Limits::logit_rows_for(start.chunk),
        pages: start.pages,
        page_tokens: start.page_tokens,
        vocab,
    };
    match limits.zero() {
        Some(name) => Err(refusal(format!("{name} is 0: it must be at least 1"))),
        None => Ok(limits),
    }
}

/// All KV pages, as the plan counts them.
fn kv_bytes(model: &ModelConfig, limits: &Limits) -> u64 {
    unfazed_plan::needs::page(model).0.saturating_mul(limits.pages as u64)
}

/// Tells the front how much is loaded, now and then and at the end.
struct Progress<'a> {
    sender: &'a mut Sender,
    clock: MonotonicClock,
    total: u64,
    told: Option<Duration>,
    broken: Option<LinkError>,
}

impl Progress<'_> {
    fn tell(&mut self, done: u64) {
        let now = self.clock.now();
        let soon = self.told.is_some_and(|told| now < told + PROGRESS_EVERY);
        if self.broken.is_some() || (soon && done < self.total) {
            return;
        }
        self.told = Some(now);
        self.broken = self.sender.send(&ToFront::Loading { done, total: self.total }).err();
    }
}
