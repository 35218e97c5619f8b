//! From the front's `Start` to an engine that computes.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use unfazed_device::cpu::{CpuConfig, CpuDevice};
use unfazed_device::{Device, DeviceError, KvShape};
use unfazed_formats::source::FileSource;
use unfazed_formats::{Headers, Identity, KvType, KvTypes, ModelConfig};
use unfazed_kernels::Isa;
use unfazed_model::{ModelError, Sources};
use unfazed_store::storage::tune;
use unfazed_store::{
    Clock, Loader, LocalOptions, LocalStorage, Patience, Reader, Storage, StorageReader, StoreError,
    SystemClock, Wait, WaitObserver,
};
use unfazed_wire::memory::Mapping;
use unfazed_wire::{LoadFault, ReadyInfo, Start};

use crate::beat::Progress;
use crate::clock::milliseconds;
use crate::experts::{self, Experts};
use crate::gpus::{self, Layout};
use crate::memory::{self, Memory};
use crate::sandbox::Sandbox;
use crate::{Engine, EngineError, Limits, Parts};

/// An engine that computes, and what the front must know of it.
pub(crate) struct Loaded<D: Device> {
    pub(crate) engine: Engine<D>,
    pub(crate) ready: ReadyInfo,
    /// The weights' memory, and how much of it is used.
    pub(crate) weights: Option<(Arc<Mapping>, usize)>,
    /// Experts that are not among the weights.
    pub(crate) experts: Option<Experts>,
}

/// Finds the model's tensors, checks them, and loads what an earlier engine has not loaded.
///
/// # Errors
///
/// [`EngineError::Load`] with one line that names what is wrong.
pub(crate) fn load<P: Parts>(
    start: &Start,
    mut descriptors: Vec<OwnedFd>,
    sandbox: Sandbox,
    progress: &Progress,
    parts: &P,
) -> Result<Loaded<P::Device>, EngineError> {
    let clock = SystemClock::new();
    let isa = Isa::choose(start.isa.as_deref()).map_err(refusal)?;
    let memory = Memory::receive(start, &mut descriptors)?;
    let headers = Headers::decode(&start.headers).map_err(refusal)?;
    let limits = limits(start, headers.config.vocab)?;
    let sources = Sources::find(&headers).map_err(refusal)?;
    let streams = start.experts.is_some();
    let to_load = sources.bytes() - if streams { sources.expert_bytes() } else { 0 };
    progress.to_load.store(to_load, Ordering::Relaxed);
    let trace = match (start.expert_trace, start.expert_trace.then(|| descriptors.pop()).flatten()) {
        (false, _) => None,
        (true, Some(file)) => Some(experts::trace(file, &headers, &sources)?),
        (true, None) => return Err(trouble("the file for the trace of experts was not handed over")),
    };
    // A mount that hangs does so at the first look.
    let wait = Wait::new(&*progress.waits, "the model's files".to_owned());
    let files = files(&headers, descriptors)?;
    drop(wait);
    let identity = experts::stamp(&headers.identities);
    let (storage, ring) = storage(&headers.files, &files)?;
    let sandbox = sandbox.no_more_rings(ring);
    let storage = parts.storage(start, storage).map_err(refusal)?;
    let (waits, time) = (Arc::clone(&progress.waits), Arc::new(SystemClock::new()));
    // Reads are declared waits.
    let reader: Arc<dyn Reader> = Arc::new(StorageReader::patient(storage, Patience::default(), time, waits));
    let experts = start.experts.as_ref().zip(memory.experts.as_ref()).map(|(streamed, memory)| {
        Experts::new(streamed, &sources, Arc::clone(&reader), memory, identity, clock.now())
    });
    let experts = experts.transpose()?;
    let model = &headers.config;
    let types = kv_types(start)?;
    let kv = kv_shape(model, &limits, types);
    let (kv_memory, kept) = memory::pages(&memory.kv, &kv)?;
    let config = CpuConfig {
        isa,
        threads: start.threads.clone(),
        model,
        kv,
        max_rows: limits.chunk,
        max_logit_rows: limits.logit_rows,
        float_activations: false,
        loader: loader(reader, start.threads.most(), progress).into_memory(memory.weights),
        kv_memory: Some(kv_memory.pages),
        experts: experts.as_ref().map(|experts| Arc::clone(&experts.store)),
        trace,
        pulse: Arc::clone(&progress.pulse),
    };
    let cpu = CpuDevice::new(config).map_err(|error| device_failure(&error))?;
    cpu.loader().expect(sources.in_order(!streams));
    let layout = Layout { model, kv, max_rows: limits.chunk, max_logit_rows: limits.logit_rows };
    let mut device = parts.device(start, cpu, &layout).map_err(|error| device_failure(&error))?;
    let loaded = sources.load(&mut device).map_err(|error| load_failure(&error))?;
    let loader = device.as_ref().cpu().loader();
    if let Err(error) = loader.seal() {
        // It computes all the same; the front sees that the seal is missing.
        tracing::warn!(%error, "the weights could be written by another engine");
    }
    let ready = ReadyInfo {
        isa: isa.name().to_owned(),
        threads: start.threads.decode,
        weight_bytes: to_load,
        kv_bytes: kv_bytes(model, &limits, types),
        load_ms: milliseconds(Duration::ZERO, clock.now()),
        read_bytes: loader.bytes_read(),
        kept_bytes: loader.bytes_kept(),
        sandbox,
        placement: start.placement.clone(),
        gpus: gpus::in_use(device.as_ref()),
    };
    let weights = loader.mapping();
    let engine = Engine::new(loaded, device, limits, isa, Box::new(clock)).with_kept_pages(kept);
    let waits: Arc<dyn WaitObserver> = Arc::clone(&progress.waits) as _;
    let mut engine = engine.after_faults(&start.troubles, waits);
    engine.warm_up();
    Ok(Loaded { engine, ready, weights, experts })
}

/// The model's files, and whether they are read through a ring.
fn storage(names: &[String], files: &[FileSource]) -> Result<(Arc<dyn Storage>, bool), EngineError> {
    let options = LocalOptions { depth: tune::depth(files), ..LocalOptions::default() };
    let storage = LocalStorage::new(files, options);
    let storage = storage.map_err(|error| trouble(format!("{}: {error}", names.join(", "))))?;
    let ring = storage.reads_by_ring();
    Ok((Arc::new(storage), ring))
}

/// Bytes are counted as they come.
fn loader(reader: Arc<dyn Reader>, threads: usize, progress: &Progress) -> Loader {
    let loaded = Arc::clone(&progress.loaded);
    let count = move |done| {
        loaded.fetch_max(done, Ordering::Relaxed);
    };
    Loader::new(reader, threads, Box::new(count))
}

fn kv_types(start: &Start) -> Result<KvTypes, EngineError> {
    let kind = |name: &str| KvType::from_str(name).map_err(|error| refusal(format!("{name}: {error}")));
    Ok(KvTypes { keys: kind(&start.cache_type_k)?, values: kind(&start.cache_type_v)? })
}

fn kv_shape(model: &ModelConfig, limits: &Limits, types: KvTypes) -> KvShape {
    KvShape {
        layers: model.layers,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        page_tokens: limits.page_tokens,
        pages: limits.pages,
        types,
    }
}

/// The model or a setting is at fault; one line for people.
pub(crate) fn refusal(error: impl std::fmt::Display) -> EngineError {
    failure(LoadFault::Model, error)
}

/// The machine is at fault.
pub(crate) fn trouble(error: impl std::fmt::Display) -> EngineError {
    failure(LoadFault::Machine, error)
}

fn failure(fault: LoadFault, error: impl std::fmt::Display) -> EngineError {
    EngineError::Load { fault, message: error.to_string().replace('\n', " ") }
}

/// What the device could not do: shapes and formats are the model's, the rest is the machine's.
fn device_failure(error: &DeviceError) -> EngineError {
    match error {
        DeviceError::Setup(_)
        | DeviceError::Batch(_)
        | DeviceError::Store(
            StoreError::Shape { .. } | StoreError::Extent { .. } | StoreError::Changed { .. },
        ) => refusal(error),
        _ => trouble(error),
    }
}

fn load_failure(error: &ModelError) -> EngineError {
    match error {
        ModelError::Device(error) => device_failure(error),
        _ => refusal(error),
    }
}

/// The files that the front has opened, if they are still what they were then.
fn files(headers: &Headers, files: Vec<OwnedFd>) -> Result<Vec<FileSource>, EngineError> {
    let Headers { files: names, identities, .. } = headers;
    if names.len() != files.len() || identities.len() != files.len() {
        return Err(refusal(format!("{} files were named and {} handed over", names.len(), files.len())));
    }
    let source = |((name, opened), file): ((&String, &Identity), OwnedFd)| {
        let source = FileSource::new(name, File::from(file))
            .map_err(|error| trouble(format!("{name}: cannot be read: {error}")))?;
        match opened.changed(&source.identity()) {
            Some(what) => Err(refusal(StoreError::Changed { file: name.clone(), offset: 0, what })),
            None => Ok(source),
        }
    };
    names.iter().zip(identities).zip(files).map(source).collect()
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
fn kv_bytes(model: &ModelConfig, limits: &Limits, types: KvTypes) -> u64 {
    unfazed_plan::needs::page(model, types).0.saturating_mul(limits.pages as u64)
}
