//! The plan: one value that holds every decision about memory.

use serde::{Deserialize, Serialize};
use unfazed_formats::{KvType, KvTypes, ModelConfig};

use crate::{Bytes, PAGE_TOKENS, Settings, Tokens, needs};

/// Prompt positions in one step if nobody asks: long enough that each expert of a layer sees several rows, short enough
/// that running answers get their next token within a fraction of a second.
const DEFAULT_CHUNK: Tokens = Tokens(512);
/// Sequences side by side if nobody asks.
const DEFAULT_PARALLEL: usize = 8;
/// Beyond this a step's rows no longer fit any cache and a table of sequences becomes unwieldy.
const MAX_PARALLEL: usize = 256;
/// Largest chunk: an arena row costs tens of kilobytes.
const MAX_CHUNK: Tokens = Tokens(8192);
/// A context below this answers nothing useful.
const MIN_CONTEXT: Tokens = Tokens(PAGE_TOKENS);
/// Share of the memory beside weights and scratch that KV pages may take if nobody asks for more: the rest is the page
/// cache's and other programs'.
const KV_SHARE: u64 = 2;
/// Kept free for the front, the engine's own code and what the kernel needs.
const RESERVE: Bytes = Bytes(256 << 20);

/// The machine's numbers that a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Memory that the engine may use: free memory under all limits.
    pub available: Bytes,
    /// Compute threads if nobody asks for a number: cores that are worth one.
    pub cores: usize,
    /// The most compute threads that do not wait for each other.
    pub most_threads: usize,
}

/// What was decided. What it accepts can be served: any prompt up to `context`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Packed weights.
    pub weight_bytes: Bytes,
    /// All KV pages.
    pub kv_bytes: Bytes,
    /// Activations and logits of the largest step.
    pub scratch_bytes: Bytes,
    /// What was lowered, from what to what and why: one line each.
    pub notes: Vec<String>,
}

/// Settings that cannot be served: the one condition that failed and the number that would pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A setting makes no sense.
    #[error("--{setting} {value}: {reason}")]
    Setting {
        /// Its name on the command line.
        setting: &'static str,
        /// What was asked for.
        value: usize,
        /// Why not, with the number that would pass.
        reason: String,
    },
    /// Keys or values cannot be kept so.
    #[error("--{setting} {kind}: heads of {head_dim} are not whole blocks of 32: f32, f16 and bf16 pass")]
    Cache {
        /// Its name on the command line.
        setting: &'static str,
        /// What was asked for.
        kind: KvType,
        /// Width of the model's heads.
        head_dim: usize,
    },
    /// The model does not fit.
    #[error(
        "the model needs {need} of memory ({parts}) and {have} are free: free some, or take a smaller model"
    )]
    Memory {
        /// Bytes needed at the smallest settings.
        need: Bytes,
        /// Bytes there are.
        have: Bytes,
        /// The parts of the need.
        parts: String,
    },
}

/// Makes the plan. `weights` are the bytes of the packed weights ([`needs::packed_weights`]).
pub fn plan(
    model: &ModelConfig,
    weights: Bytes,
    machine: &Machine,
    settings: &Settings,
) -> Result<Plan, Refusal> {
    let mut notes = Vec::new();
    let cache = check_cache(model, settings.cache)?;
    let asked = check(model, machine, settings, &mut notes)?;
    let weight_bytes = weights;
    let scratch_bytes = needs::scratch(model, asked.chunk, asked.parallel);
    let page = needs::page(model, cache);
    let fixed = [weight_bytes, scratch_bytes, RESERVE].into_iter().fold(Bytes(0), saturating_sum);
    let free = machine.available.saturating_sub(fixed);
    let smallest = page * MIN_CONTEXT.0.div_ceil(PAGE_TOKENS) as u64;
    if free < smallest {
        return Err(Refusal::Memory {
            need: saturating_sum(fixed, smallest),
            have: machine.available,
            parts: format!(
                "weights {weight_bytes}, one step {scratch_bytes}, smallest context {smallest}, reserve {RESERVE}"
            ),
        });
    }

    let fit = Tokens(pages_in(free, page).saturating_mul(PAGE_TOKENS));
    let context = asked.context.min(fit);
    if context < asked.context {
        notes.push(format!(
            "--context lowered from {} to {context}: one token's keys and values take {}, and {free} are left for them",
            asked.context,
            Bytes(page.0 / PAGE_TOKENS as u64),
        ));
    }
    let one = context.0.div_ceil(PAGE_TOKENS);
    let wanted = one.saturating_mul(asked.parallel);
    let pages = wanted.min(pages_in(Bytes(free.0 / KV_SHARE), page)).max(one);
    if pages < wanted && settings.parallel.is_some() {
        notes.push(format!(
            "KV pages for {} sequences of {context} tokens would take {}: {} are used, requests wait when they are full",
            asked.parallel,
            page * wanted as u64,
            page * pages as u64,
        ));
    }
    Ok(Plan {
        context,
        parallel: asked.parallel,
        chunk: asked.chunk,
        pages,
        threads: asked.threads,
        batch_threads: asked.batch_threads,
        cache,
        weight_bytes,
        kv_bytes: page * pages as u64,
        scratch_bytes,
        notes,
    })
}

/// Types that the model's heads are whole blocks of.
fn check_cache(model: &ModelConfig, cache: KvTypes) -> Result<KvTypes, Refusal> {
    let head_dim = model.head_dim;
    for (setting, kind) in [("cache-type-k", cache.keys), ("cache-type-v", cache.values)] {
        if !kind.divides(head_dim) {
            return Err(Refusal::Cache { setting, kind, head_dim });
        }
    }
    Ok(cache)
}

struct Asked {
    context: Tokens,
    parallel: usize,
    chunk: Tokens,
    threads: usize,
    batch_threads: usize,
}

/// Settings with defaults filled in: senseless ones refused, useless ones lowered.
fn check(
    model: &ModelConfig,
    machine: &Machine,
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<Asked, Refusal> {
    let mut lower = |setting: &'static str,
                     value: Option<usize>,
                     default: usize,
                     least: usize,
                     most: usize,
                     why: &str| {
        match value {
            None => Ok(default.clamp(least, most.max(least))),
            Some(value) if value < least => {
                Err(Refusal::Setting { setting, value, reason: format!("at least {least} is needed") })
            }
            Some(value) if value > most => {
                notes.push(format!("--{setting} lowered from {value} to {most}: {why}"));
                Ok(most)
            }
            Some(value) => Ok(value),
        }
    };
    let trained = model.context;
    let context = lower(
        "context",
        settings.context.map(|t| t.0),
        trained,
        MIN_CONTEXT.0.min(trained),
        trained,
        "the model was trained for no longer one",
    )?;
    let parallel = lower(
        "parallel",
        settings.parallel,
        DEFAULT_PARALLEL,
        1,
        MAX_PARALLEL,
        "more sequences at once than this are no faster",
    )?;
    let chunk = lower(
        "prefill-chunk",
        settings.chunk.map(|t| t.0),
        DEFAULT_CHUNK.0.min(context),
        1,
        MAX_CHUNK.0,
        "a longer step only delays running answers",
    )?;
    let most = machine.most_threads.max(1);
    let mut lower_threads = |setting, asked, default| {
        let why = "that many processors are ours to use, and more threads would wait for each other";
        lower(setting, asked, default, 1, most, why)
    };
    let threads = lower_threads("threads", settings.threads, machine.cores)?;
    let batch_threads = lower_threads("threads-batch", settings.batch_threads, threads)?;
    // A step holds one row of each running sequence, whatever there is of prompts.
    if chunk < parallel && settings.chunk.is_some() {
        notes.push(format!(
            "--prefill-chunk raised from {chunk} to {parallel}: a step holds a row of each of {parallel} sequences"
        ));
    }
    Ok(Asked {
        context: Tokens(context),
        parallel,
        chunk: Tokens(chunk.max(parallel)),
        threads,
        batch_threads,
    })
}

fn saturating_sum(a: Bytes, b: Bytes) -> Bytes {
    Bytes(a.0.saturating_add(b.0))
}

/// Pages that fit, bounded by what a page number (u32) can name.
fn pages_in(free: Bytes, page: Bytes) -> usize {
    (free.0 / page.0.max(1)).min(u64::from(u32::MAX)) as usize
}
