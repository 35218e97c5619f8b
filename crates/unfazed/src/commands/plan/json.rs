//! The plan for programs. Keys never change their meaning; docs/plan.md describes them.

use serde::Serialize;
use unfazed_plan::gpu::GpuPool;
use unfazed_plan::machine::{Pool, PoolKind};
use unfazed_plan::refusal::{Condition, Part, PartName, Suggestion};
use unfazed_plan::{Experts, GpuPlan, PAGE_TOKENS, Plan, Prediction, Refusal};

use super::Planned;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    accepted: bool,
    model: Model<'a>,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Accepted(Box<Accepted<'a>>),
    Refused(Refused),
}

#[derive(Serialize)]
struct Model<'a> {
    name: &'a str,
    layers: usize,
    experts: usize,
    experts_used: usize,
    context: usize,
    file_bytes: u64,
}

#[derive(Serialize)]
struct Accepted<'a> {
    pools: Vec<PoolReport<'a>>,
    gpu: Option<GpuReport<'a>>,
    settings: Settings,
    kv: Kv,
    experts: Option<ExpertReport>,
    arena: ArenaReport,
    prefill: Option<Speed>,
    decode: Option<Speed>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct PoolReport<'a> {
    kind: PoolKind,
    name: Option<&'a str>,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    bound: Option<&'a str>,
    budget_bytes: Option<u64>,
    parts: Vec<PartReport>,
}

#[derive(Serialize)]
struct GpuReport<'a> {
    adapters: Vec<GpuAdapterReport<'a>>,
    gpu_layers: usize,
    cpu_layers: usize,
    split_layers: usize,
    output: bool,
    ladder: Vec<&'a str>,
    budget_ms: u32,
    host_copy: bool,
}

#[derive(Serialize)]
struct GpuAdapterReport<'a> {
    number: usize,
    name: &'a str,
    software: bool,
    unified: bool,
    layers: usize,
}

#[derive(Serialize)]
struct PartReport {
    part: PartName,
    bytes: u64,
}

#[derive(Serialize)]
struct Settings {
    context: usize,
    parallel: usize,
    prefill_chunk: usize,
    threads: usize,
    threads_batch: usize,
    cache_type_k: &'static str,
    cache_type_v: &'static str,
}

#[derive(Serialize)]
struct Kv {
    pages: usize,
    page_tokens: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct ExpertReport {
    streaming: bool,
    slots: usize,
    experts: usize,
    slots_bytes: u64,
    ring_slots: usize,
    ring_slot_bytes: u64,
    staging_bytes: u64,
    layers: Vec<LayerReport>,
}

#[derive(Serialize)]
struct LayerReport {
    layer: usize,
    slots: usize,
    slot_bytes: u64,
    file_bytes: u64,
}

#[derive(Serialize)]
struct ArenaReport {
    rows: usize,
    bytes: u64,
    sections: Vec<SectionReport>,
}

#[derive(Serialize)]
struct SectionReport {
    holds: unfazed_plan::arena::Activations,
    offset_bytes: u64,
    row_bytes: u64,
    rows: usize,
}

#[derive(Serialize)]
struct Speed {
    rows: usize,
    tokens_per_second: f64,
    bound: &'static str,
    compute_ms: f64,
    memory_ms: f64,
    disk_ms: f64,
    gpu_ms: f64,
}

#[derive(Serialize)]
struct Refused {
    condition: &'static str,
    message: String,
    need_bytes: Option<u64>,
    have_bytes: Option<u64>,
    parts: Vec<PartReport>,
    suggestion: SuggestionReport,
}

#[derive(Default, Serialize)]
struct SuggestionReport {
    setting: Option<&'static str>,
    value: Option<String>,
    free_bytes: Option<u64>,
}

/// What `--json` prints.
pub(super) fn report<'a>(planned: &'a Planned<'_>) -> Report<'a> {
    let checkpoint = planned.checkpoint;
    let (experts, experts_used) =
        checkpoint.config.experts.map_or((0, 0), |experts| (experts.count, experts.used));
    let model = Model {
        name: &checkpoint.name,
        layers: checkpoint.config.layers,
        experts,
        experts_used,
        context: checkpoint.config.context,
        file_bytes: checkpoint.tensor_bytes,
    };
    let outcome = match &planned.outcome {
        Ok(plan) => Outcome::Accepted(Box::new(accepted(plan))),
        Err(refusal) => Outcome::Refused(refused(refusal)),
    };
    Report { accepted: planned.outcome.is_ok(), model, outcome }
}

fn accepted(plan: &Plan) -> Accepted<'_> {
    let Pool { kind, total, free, bound } = &plan.memory;
    let section = |section: &unfazed_plan::arena::Section| SectionReport {
        holds: section.holds,
        offset_bytes: section.offset.0,
        row_bytes: section.row.0,
        rows: section.rows,
    };
    let own = PoolReport {
        kind: *kind,
        name: None,
        total_bytes: Some(total.0),
        free_bytes: Some(free.0),
        bound: bound.as_deref(),
        budget_bytes: Some(plan.budget.0),
        parts: parts(&plan.parts()),
    };
    Accepted {
        pools: [own].into_iter().chain(plan.gpu.iter().flat_map(|gpu| &gpu.pools).map(gpu_pool)).collect(),
        gpu: plan.gpu.as_ref().and_then(gpu),
        settings: Settings {
            context: plan.context.0,
            parallel: plan.parallel,
            prefill_chunk: plan.chunk.0,
            threads: plan.threads,
            threads_batch: plan.batch_threads,
            cache_type_k: plan.cache.keys.name(),
            cache_type_v: plan.cache.values.name(),
        },
        kv: Kv { pages: plan.pages, page_tokens: PAGE_TOKENS, bytes: plan.kv_bytes.0 },
        experts: plan.experts.as_ref().map(experts),
        arena: ArenaReport {
            rows: plan.arena.rows,
            bytes: plan.arena.bytes.0,
            sections: plan.arena.sections.iter().map(section).collect(),
        },
        prefill: plan.prefill.map(speed),
        decode: plan.decode.map(speed),
        notes: &plan.notes,
    }
}

fn gpu_pool(pool: &GpuPool) -> PoolReport<'_> {
    let free = pool.free.or(pool.total);
    PoolReport {
        kind: PoolKind::Gpu,
        name: Some(&pool.name),
        total_bytes: pool.total.map(|bytes| bytes.0),
        free_bytes: pool.free.map(|bytes| bytes.0),
        bound: None,
        budget_bytes: free.map(|bytes| bytes.0),
        parts: parts(&pool.parts),
    }
}

fn gpu(plan: &GpuPlan) -> Option<GpuReport<'_>> {
    let placement = plan.placement()?;
    let adapters = plan.pools.iter().map(|pool| GpuAdapterReport {
        number: pool.number,
        name: &pool.name,
        software: pool.software,
        unified: pool.unified,
        layers: pool.layers,
    });
    Some(GpuReport {
        adapters: adapters.collect(),
        gpu_layers: placement.gpu_layers(),
        cpu_layers: placement.cpu_layers(),
        split_layers: placement.split_layers(),
        output: placement.output.is_gpu(),
        ladder: plan.rungs.iter().map(|rung| rung.name.as_str()).collect(),
        budget_ms: plan.budget_ms,
        host_copy: plan.host_copy,
    })
}

fn parts(parts: &[Part]) -> Vec<PartReport> {
    parts.iter().map(|part| PartReport { part: part.part, bytes: part.bytes.0 }).collect()
}

fn experts(experts: &Experts) -> ExpertReport {
    let layers = experts.layers.iter().map(|layer| LayerReport {
        layer: layer.layer,
        slots: layer.slots,
        slot_bytes: layer.slot_bytes.0,
        file_bytes: layer.file_bytes.0,
    });
    ExpertReport {
        streaming: experts.streaming,
        slots: experts.slots(),
        experts: experts.count.saturating_mul(experts.layers.len()),
        slots_bytes: experts.slot_bytes().0,
        ring_slots: experts.ring_slots,
        ring_slot_bytes: experts.ring_slot_bytes.0,
        staging_bytes: experts.staging_bytes.0,
        layers: layers.collect(),
    }
}

fn speed(prediction: Prediction) -> Speed {
    Speed {
        rows: prediction.rows,
        tokens_per_second: prediction.tokens_per_second,
        bound: prediction.bound.name(),
        compute_ms: prediction.compute_seconds * 1e3,
        memory_ms: prediction.memory_seconds * 1e3,
        disk_ms: prediction.disk_seconds * 1e3,
        gpu_ms: prediction.gpu_seconds * 1e3,
    }
}

fn refused(refusal: &Refusal) -> Refused {
    let (need, have, of) = match &refusal.condition {
        Condition::Memory { need, have, parts } => (Some(need.0), Some(have.0), parts.as_slice()),
        _ => (None, None, &[][..]),
    };
    let suggestion = match &refusal.suggestion {
        Suggestion::Setting { setting, value, .. } => SuggestionReport {
            setting: Some(*setting),
            value: Some(value.clone()),
            ..SuggestionReport::default()
        },
        Suggestion::Free { bytes, .. } => {
            SuggestionReport { free_bytes: Some(bytes.0), ..SuggestionReport::default() }
        }
    };
    Refused {
        condition: refusal.condition.name(),
        message: refusal.to_string(),
        need_bytes: need,
        have_bytes: have,
        parts: parts(of),
        suggestion,
    }
}
