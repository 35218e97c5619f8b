//! What is started: the engine's first message, the memory that it gets, and what is told once it is ready.

use std::net::SocketAddr;

use unfazed_formats::{Checkpoint, Headers};
use unfazed_plan::gpu::Rung;
use unfazed_plan::{Experts, GpuPlan, PAGE_TOKENS, Plan, needs};
use unfazed_wire::memory::WEIGHTS_OFFSET;
use unfazed_wire::{Gpus, Placement, ReadyInfo, Start, StreamedExperts, Threads};

use crate::events::{EffectiveSettings, Event, Gpu, Partition, Ready, Sandbox};
use crate::supervisor::Sizes;
use crate::{ServeOptions, ServerError};

pub(super) fn memory_sizes(checkpoint: &Checkpoint, plan: &Plan) -> Sizes {
    let experts = plan.experts.as_ref().filter(|all| all.streaming);
    Sizes {
        slots: experts.map_or(0, |experts| experts.slots()),
        least_slots: experts.map_or(0, |experts| experts.least()),
        weights: plan.weight_bytes.0.saturating_add(WEIGHTS_OFFSET as u64),
        experts: experts.map_or(0, |all| all.slot_bytes().0),
        scratch: plan.scratch_bytes.0,
        pages: plan.pages,
        page_bytes: usize::try_from(needs::page(&checkpoint.config, plan.cache).0).unwrap_or(usize::MAX),
        least_pages: plan.context.0.div_ceil(PAGE_TOKENS),
    }
}

/// The engine's first message. The keeper fills in the memory.
pub(super) fn start_message(
    options: &ServeOptions,
    checkpoint: &Checkpoint,
    plan: &Plan,
) -> Result<Start, ServerError> {
    let headers = Headers::from(checkpoint).encode().map_err(|error| ServerError::System {
        what: "the model's headers cannot be handed over",
        source: std::io::Error::other(error),
    })?;
    Ok(Start {
        headers,
        context: plan.context.0,
        parallel: plan.parallel,
        pages: plan.pages,
        page_tokens: PAGE_TOKENS,
        cache_type_k: plan.cache.keys.to_string(),
        cache_type_v: plan.cache.values.to_string(),
        chunk: plan.chunk.0,
        threads: Threads {
            decode: plan.threads,
            batch: plan.batch_threads,
            processors: options.processors.clone(),
            pin: options.pin,
        },
        isa: options.isa.clone(),
        weight_memory: 0,
        kv_memory: 0,
        experts: streamed(plan, &options.expert_policy),
        expert_trace: options.expert_trace.is_some(),
        engine: 0,
        troubles: Vec::new(),
        cpu_alone: true,
        placement: Placement::cpu(checkpoint.config.layers),
        gpus: plan.gpu.as_ref().map_or_else(Gpus::default, GpuPlan::gpus),
        fault_plan: options.fault_plan.clone(),
    })
}

/// The ladder of placements: the plan's, or those that the options name, in which the processor computes.
pub(super) fn rungs(options: &ServeOptions, checkpoint: &Checkpoint, plan: &Plan) -> Vec<Rung> {
    match &plan.gpu {
        Some(gpu) => gpu.rungs.clone(),
        None => {
            let cpu = |name: &String| Rung {
                name: name.clone(),
                placement: Placement::cpu(checkpoint.config.layers),
            };
            options.placements.iter().map(cpu).collect()
        }
    }
}

/// How experts are streamed, if they are. The keeper fills in the memory.
fn streamed(plan: &Plan, policy: &str) -> Option<StreamedExperts> {
    let experts = plan.experts.as_ref().filter(|experts| experts.streaming)?;
    Some(StreamedExperts {
        slots: experts.slots(),
        open: experts.slots(),
        least: experts.least(),
        slot_bytes: usize::try_from(experts.ring_slot_bytes.0).unwrap_or(usize::MAX),
        ring: experts.ring_slots,
        policy: policy.to_owned(),
        memory: 0,
    })
}

/// What makes the `ready` event once the engine says what it is.
pub(super) fn ready_event(
    options: &ServeOptions,
    plan: &Plan,
    address: SocketAddr,
) -> Box<dyn Fn(&ReadyInfo) -> Event + Send> {
    let plan = plan.clone();
    let (model, max_queue, api_key) =
        (options.model_id.clone(), options.max_queue, !options.api_keys.is_empty());
    Box::new(move |info| {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let streamed = plan.experts.as_ref().filter(|experts| experts.streaming);
        let experts = streamed.map_or(0.0, |experts| gb(experts.file_bytes().0));
        let (weights, kv) = (gb(info.weight_bytes) + experts, gb(info.kv_bytes));
        let required = weights + kv + gb(plan.scratch_bytes.0);
        let system = unfazed_host::memory().map_or(0.0, |memory| gb(memory.total));
        Event::Ready(Box::new(Ready {
            port: address.port(),
            host: address.ip().to_string(),
            model: model.clone(),
            engine: info.placement.engine(),
            gpus: info.gpus.iter().map(Gpu::from).collect(),
            vision: false,
            partition: Partition {
                strategy: match info.placement.engine() {
                    _ if streamed.is_some() => "ssd_streaming",
                    "gpu" => "full_gpu",
                    "cpu" => "cpu",
                    _ => "layer_partitioned",
                },
                overcommit_ratio: if system > 0.0 { required / system } else { 0.0 },
                model_weight_gb: weights,
                kv_cache_gb: kv,
                total_required_gb: required,
                system_ram_gb: system,
                gpu_layers: info.placement.gpu_layers(),
                cpu_layers: info.placement.cpu_layers(),
                split_layers: info.placement.split_layers(),
                total_layers: info.placement.layers.len(),
                estimated_tok_s: plan.decode.map(|decode| decode.tokens_per_second),
            },
            settings: EffectiveSettings {
                context: plan.context.0,
                parallel: plan.parallel,
                chunk: plan.chunk.0,
                threads: info.threads,
                threads_batch: plan.batch_threads,
                isa: info.isa.clone(),
                kv_pages: plan.pages,
                page_tokens: PAGE_TOKENS,
                cache_type_k: plan.cache.keys.name(),
                cache_type_v: plan.cache.values.name(),
                expert_slots: plan.experts.as_ref().map_or(0, Experts::slots),
                experts: plan.experts.as_ref().map_or(0, Experts::all),
                max_queue,
                api_key,
                sandbox: Sandbox::from(&info.sandbox),
            },
            load_ms: info.load_ms,
            notes: plan.notes.clone(),
        }))
    })
}
