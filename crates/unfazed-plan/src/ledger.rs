//! The plan: one value that holds every decision about memory.

use serde::{Deserialize, Serialize};
use unfazed_formats::{KvTypes, ModelConfig};

use crate::ask::{self, Asked, Changes};
use crate::choose::{self, Chosen};
use crate::experts::Store;
use crate::fill::{Costs, Take, pages_for};
use crate::gpu::{self, Request};
use crate::machine::Pool;
use crate::predict::{Layout, Prediction, Predictor};
use crate::refusal::{Condition, Part, PartName, Refusal, Suggestion};
use crate::{
    Arena, Bytes, Experts, GpuLayers, GpuPlan, Machine, PAGE_TOKENS, Settings, StreamExperts, Tokens,
    Weights, needs,
};

/// Kept free of every budget: the code and tables of both processes.
const RESERVE: Bytes = Bytes(256 << 20);
/// Share of a budget that is kept free as well: page tables take a 512th of what is mapped, and the kernel's own tables of
/// shared memory about as much; the rest is for what it needs at work.
const RESERVE_SHARE: u64 = 128;

/// What was decided. What it accepts can be served: any prompt up to `context`, in any chunk up to `chunk`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Longest sequence of one request.
    pub context: Tokens,
    /// Sequences computed side by side.
    pub parallel: usize,
    /// Most rows in one step.
    pub chunk: Tokens,
    /// KV pages of [`PAGE_TOKENS`] positions.
    pub pages: usize,
    /// Compute threads of a step of one row.
    pub threads: usize,
    /// Compute threads of a step of more rows.
    pub batch_threads: usize,
    /// What keys and values are kept as.
    pub cache: KvTypes,
    /// Packed weights that are always in memory: all of them, but for experts that are streamed.
    pub weight_bytes: Bytes,
    /// All KV pages.
    pub kv_bytes: Bytes,
    /// Activations and logits of the largest step.
    pub scratch_bytes: Bytes,
    /// Where these are.
    pub arena: Arena,
    /// Experts; `None` for a model without.
    pub experts: Option<Experts>,
    /// What is on GPUs; `None`: the processor computes alone.
    pub gpu: Option<GpuPlan>,
    /// The pool that everything is taken from.
    pub memory: Pool,
    /// How much of it may be taken in all.
    pub budget: Bytes,
    /// How much of that is left free.
    pub reserve_bytes: Bytes,
    /// How fast a prompt should be; `None` where rates were not measured.
    pub prefill: Option<Prediction>,
    /// How fast an answer should be; `None` where rates were not measured.
    pub decode: Option<Prediction>,
    /// What was changed, from what to what and why: one line each.
    pub notes: Vec<String>,
}

impl Plan {
    /// Whether experts are read while requests run.
    pub fn streams(&self) -> bool {
        self.experts.as_ref().is_some_and(|experts| experts.streaming)
    }

    /// The parts of the budget that are taken, none of them empty. Their sum is no more than the budget.
    pub fn parts(&self) -> Vec<Part> {
        let experts = self.experts.as_ref().filter(|experts| experts.streaming);
        let of = |bytes: fn(&Experts) -> Bytes| experts.map_or(Bytes(0), bytes);
        parts([
            (PartName::Weights, self.weight_bytes),
            (PartName::ExpertSlots, of(Experts::slot_bytes)),
            (PartName::Ring, of(Experts::ring_bytes)),
            (PartName::Staging, of(|experts| experts.staging_bytes)),
            (PartName::KvPages, self.kv_bytes),
            (PartName::Scratch, self.scratch_bytes),
            (PartName::Reserve, self.reserve_bytes),
        ])
    }
}

fn parts<const N: usize>(sizes: [(PartName, Bytes); N]) -> Vec<Part> {
    let all = sizes.into_iter().map(|(part, bytes)| Part { part, bytes });
    all.filter(|part| part.bytes > Bytes(0)).collect()
}

/// What a budget keeps free.
fn reserve(budget: Bytes) -> Bytes {
    RESERVE.saturating_add(Bytes(budget.0 / RESERVE_SHARE))
}

/// The least budget, in whole MiB, that holds `bytes` beside its reserve.
fn budget_for(bytes: Bytes) -> Bytes {
    const MIB: u64 = 1 << 20;
    let taken = u128::from(bytes.saturating_add(RESERVE).0);
    let budget = (taken * u128::from(RESERVE_SHARE)).div_ceil(u128::from(RESERVE_SHARE - 1));
    let budget = u64::try_from(budget).unwrap_or(u64::MAX);
    Bytes(budget.checked_next_multiple_of(MIB).unwrap_or(u64::MAX))
}

/// Makes the plan, or says which condition failed and what would pass it.
pub fn plan(
    model: &ModelConfig,
    weights: &Weights,
    machine: &Machine,
    settings: &Settings,
) -> Result<Plan, Refusal> {
    decide(model, weights, machine, settings).map_err(|failure| match failure {
        Failure::Refused(refusal) => refusal,
        Failure::Memory { need, have, parts } => {
            let passes = |settings: &Settings| {
                !matches!(decide(model, weights, machine, settings), Err(Failure::Memory { .. }))
            };
            let suggestion = suggest(need, machine, settings, passes);
            Refusal { condition: Condition::Memory { need, have, parts }, suggestion }
        }
    })
}

/// Why there is no plan.
enum Failure {
    Refused(Refusal),
    Memory { need: Bytes, have: Bytes, parts: Vec<Part> },
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

/// The nearest settings with which the model would fit: those that cost the least first.
fn suggest(
    need: Bytes,
    machine: &Machine,
    settings: &Settings,
    passes: impl Fn(&Settings) -> bool,
) -> Suggestion {
    let auto = Settings { stream_experts: StreamExperts::Auto, ..*settings };
    let memory = Settings { memory: Some(need), ..*settings };
    let one = Settings { parallel: Some(1), ..*settings };
    let cache = Settings { expert_cache: None, ..*settings };
    let tries = [
        (settings.stream_experts != auto.stream_experts, "stream-experts", "auto".to_owned(), auto),
        (
            settings.memory.is_some() && need <= machine.memory.free,
            "memory",
            crate::refusal::exact(need),
            memory,
        ),
        (settings.expert_cache.is_some(), "expert-cache", "auto".to_owned(), cache),
        (settings.parallel.is_some_and(|parallel| parallel > 1), "parallel", "1".to_owned(), one),
    ];
    for (applies, setting, value, settings) in tries {
        if applies && passes(&settings) {
            return Suggestion::Setting { setting, value, settings: Box::new(settings) };
        }
    }
    let settings = Settings { memory: settings.memory.map(|memory| memory.max(need)), ..*settings };
    Suggestion::Free { bytes: need.max(machine.memory.free), settings: Box::new(settings) }
}

fn decide(
    model: &ModelConfig,
    weights: &Weights,
    machine: &Machine,
    settings: &Settings,
) -> Result<Plan, Failure> {
    let mut changes = Changes::new(settings);
    let store = Store::of(weights, model.experts);
    let asked = ask::check(model, store.as_ref(), machine, settings, &mut changes)?;
    let costs = Costs { model, weights, store, page: needs::page(model, asked.cache) };
    let reserve_bytes = reserve(asked.budget);
    let room = asked.budget.saturating_sub(reserve_bytes);
    let predictor = |threads| {
        let rates = machine.rates_with(threads)?;
        let disk = machine.disk_per_second;
        Some(Predictor { weights, experts: model.experts, rates, disk, layout: None })
    };
    let choose =
        |room| choose::choose(&costs, &asked, settings, room, predictor(asked.batch_threads).as_ref());
    let mut chosen = choose(room);
    if costs.of(&chosen.take) > room {
        return Err(too_large(&costs, &chosen.take, asked.budget));
    }
    let gpu = on_gpus(&costs, &asked, settings, machine, room, &choose, &mut chosen, &mut changes)?;
    let take = chosen.take;
    let context = asked.context.min(take.context_pages.saturating_mul(PAGE_TOKENS));
    choose::note_changes(&costs, &asked, settings, &chosen, &mut changes)?;
    let experts = costs.store.as_ref().map(|store| match take.slots {
        Some(slots) => store.plan(slots),
        None => store.whole(),
    });
    let arena = Arena::new(model, take.chunk);
    let layout = |free| {
        let placement = gpu.as_ref()?.placement()?;
        Some(Layout { placement, gpus: &machine.gpus, free })
    };
    let placed = |threads, free| Some(Predictor { layout: layout(free), ..predictor(threads)? });
    let prefill =
        placed(asked.batch_threads, false).and_then(|all| all.prefill(take.chunk, experts.as_ref()));
    let decode = |free| placed(asked.threads, free).and_then(|all| all.decode(experts.as_ref()));
    let with_experts: Vec<usize> = weights.layers.iter().map(|layer| layer.layer).collect();
    let left = gpu.as_ref().and_then(|gpu| {
        gpu::left_to_the_processor(gpu, &with_experts, settings, decode(false), decode(true))
    });
    changes.notes.extend(left);
    Ok(Plan {
        context: Tokens(context),
        parallel: asked.parallel,
        chunk: Tokens(take.chunk),
        pages: take.pages.max(pages_for(context)),
        threads: asked.threads,
        batch_threads: asked.batch_threads,
        cache: asked.cache,
        weight_bytes: costs.weights(&take),
        kv_bytes: costs.kv(&take),
        scratch_bytes: arena.bytes,
        arena,
        prefill,
        decode: decode(false),
        experts,
        gpu,
        memory: machine.memory.clone(),
        budget: asked.budget,
        reserve_bytes,
        notes: changes.notes,
    })
}

/// Puts layers on GPUs, if there are any, which may take KV pages from further sequences.
fn on_gpus(
    costs: &Costs<'_>,
    asked: &Asked,
    settings: &Settings,
    machine: &Machine,
    room: Bytes,
    choose: &dyn Fn(Bytes) -> Chosen,
    chosen: &mut Chosen,
    changes: &mut Changes<'_>,
) -> Result<Option<GpuPlan>, Refusal> {
    if machine.gpus.is_empty() {
        gpu::none(machine.no_gpu.as_deref(), settings, changes)?;
        return Ok(None);
    }
    // What GPUs that share the processor's memory take besides must be left of it.
    if machine.gpus.iter().any(|gpu| gpu.unified) && settings.gpu.layers != GpuLayers::Count(0) {
        let besides = gpu::overhead(costs.model, chosen.take.chunk);
        let less = room.saturating_sub(besides);
        let smaller = choose(less);
        if costs.of(&smaller.take) <= less && smaller.take.slots.is_some() == chosen.take.slots.is_some() {
            *chosen = smaller;
        }
    }
    let take = chosen.take;
    let with = |pages: usize| Take { context_pages: take.context_pages.min(pages), pages, ..take };
    let request = Request {
        model: costs.model,
        weights: costs.weights,
        gpus: &machine.gpus,
        settings,
        page: costs.page,
        chunk: take.chunk,
        streams: take.slots.is_some(),
        least_pages: choose::least_pages(asked, settings, &take),
        most_pages: take.context_pages.max(take.pages),
    };
    let spare = |pages: usize| room.saturating_sub(costs.of(&with(pages)));
    let placed = gpu::choose(&request, &spare, changes)?;
    Ok(placed.map(|(gpu, pages)| {
        chosen.lowered_by_gpu = pages < take.context_pages;
        chosen.take = with(pages);
        gpu
    }))
}

fn too_large(costs: &Costs<'_>, take: &Take, have: Bytes) -> Failure {
    let need = budget_for(costs.of(take));
    let experts = match (&costs.store, take.slots) {
        (Some(store), Some(slots)) => store.bytes(slots),
        _ => Bytes(0),
    };
    let streaming = costs.experts(take).saturating_sub(experts);
    let parts = parts([
        (PartName::Weights, costs.weights(take)),
        (PartName::ExpertSlots, experts),
        (PartName::Ring, streaming),
        (PartName::KvPages, costs.kv(take)),
        (PartName::Scratch, costs.scratch(take)),
        (PartName::Reserve, reserve(need)),
    ]);
    Failure::Memory { need, have, parts }
}
