//! What was asked for, with defaults filled in: senseless settings are refused, useless ones changed with one line.

use std::fmt::Display;

use unfazed_formats::{KvTypes, ModelConfig};

use crate::experts::Store;
use crate::refusal::{Condition, Refusal, Suggestion, exact};
use crate::{Bytes, ExpertCache, Machine, PAGE_TOKENS, Settings, StreamExperts, Tokens};

/// Prompt positions in one step if nobody asks and nothing is streamed: long enough that each expert of a layer sees several
/// rows, short enough that running answers get their next token within a fraction of a second.
pub(crate) const DEFAULT_CHUNK: usize = 512;
/// Sequences side by side if nobody asks.
const DEFAULT_PARALLEL: usize = 8;
/// Beyond this a step's rows no longer fit any cache and a table of sequences becomes unwieldy.
const MAX_PARALLEL: usize = 256;
/// Largest chunk: an arena row costs tens of kilobytes.
pub(crate) const MAX_CHUNK: usize = 8192;
/// A context below this answers nothing useful.
const MIN_CONTEXT: usize = PAGE_TOKENS;

/// Settings that make sense for the model and the machine.
pub(crate) struct Asked {
    /// What was asked for, or what the model was trained for.
    pub(crate) context: usize,
    pub(crate) parallel: usize,
    /// At least `parallel`.
    pub(crate) chunk: Option<usize>,
    pub(crate) threads: usize,
    pub(crate) batch_threads: usize,
    pub(crate) cache: KvTypes,
    /// Memory that may be used.
    pub(crate) budget: Bytes,
    /// Slots for experts that were asked for: enough for a row, no more than there are experts.
    pub(crate) slots: Option<usize>,
    pub(crate) stream: StreamExperts,
}

/// What was changed.
pub(crate) struct Changes<'s> {
    settings: &'s Settings,
    pub(crate) notes: Vec<String>,
}

/// A change of a setting: to which value, as it is written on the command line, and the settings with it.
pub(crate) struct Change {
    pub(crate) setting: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) to: String,
    pub(crate) settings: Settings,
}

impl<'s> Changes<'s> {
    pub(crate) fn new(settings: &'s Settings) -> Changes<'s> {
        Changes { settings, notes: Vec::new() }
    }

    /// Notes that a setting is changed, or refuses that if the user wants no changes.
    pub(crate) fn change(&mut self, from: impl Display, change: Change, why: &str) -> Result<(), Refusal> {
        let Change { setting, verb, to, settings } = change;
        let note = format!("--{setting} {verb} from {from} to {to}: {why}");
        if self.settings.strict {
            let suggestion = Suggestion::Setting { setting, value: to, settings: Box::new(settings) };
            return Err(Refusal { condition: Condition::Changed { setting, note }, suggestion });
        }
        self.notes.push(note);
        Ok(())
    }

    /// A number between two bounds: below the lower one it is refused, above the upper one lowered.
    fn number(
        &mut self,
        value: usize,
        bounds: &Bounds,
        with: impl Fn(usize) -> Settings,
    ) -> Result<usize, Refusal> {
        let Bounds { setting, least, most, why } = *bounds;
        if value < least {
            let suggestion =
                Suggestion::Setting { setting, value: least.to_string(), settings: Box::new(with(least)) };
            return Err(Refusal { condition: Condition::TooSmall { setting, value }, suggestion });
        }
        if value > most {
            let change = Change { setting, verb: "lowered", to: most.to_string(), settings: with(most) };
            self.change(value, change, why)?;
        }
        Ok(value.min(most))
    }
}

/// Of a number.
struct Bounds {
    setting: &'static str,
    least: usize,
    most: usize,
    /// Why no more.
    why: &'static str,
}

/// Checks everything that can be checked without adding up memory.
pub(crate) fn check(
    model: &ModelConfig,
    store: Option<&Store<'_>>,
    machine: &Machine,
    settings: &Settings,
    changes: &mut Changes<'_>,
) -> Result<Asked, Refusal> {
    let cache = cache(model, settings)?;
    let trained = model.context;
    let context = match settings.context {
        None => trained,
        Some(Tokens(value)) => changes.number(
            value,
            &Bounds {
                setting: "context",
                least: MIN_CONTEXT.min(trained),
                most: trained,
                why: "the model was trained for no longer one",
            },
            |value| Settings { context: Some(Tokens(value)), ..*settings },
        )?,
    };
    let parallel = match settings.parallel {
        None => DEFAULT_PARALLEL,
        Some(value) => changes.number(
            value,
            &Bounds {
                setting: "parallel",
                least: 1,
                most: MAX_PARALLEL,
                why: "more sequences at once than this are no faster",
            },
            |value| Settings { parallel: Some(value), ..*settings },
        )?,
    };
    let chunk = chunk(parallel, settings, changes)?;
    let (threads, batch_threads) = threads(machine, settings, changes)?;
    let budget = budget(machine, settings, changes)?;
    let stream = stream(store, settings, changes)?;
    let slots = slots(store, settings, changes)?;
    Ok(Asked { context, parallel, chunk, threads, batch_threads, cache, budget, slots, stream })
}

/// Types that the model's heads are whole blocks of.
fn cache(model: &ModelConfig, settings: &Settings) -> Result<KvTypes, Refusal> {
    let (cache, head_dim) = (settings.cache, model.head_dim);
    let plain = KvTypes::default();
    let other = [
        ("cache-type-k", cache.keys, KvTypes { keys: plain.keys, ..cache }),
        ("cache-type-v", cache.values, KvTypes { values: plain.values, ..cache }),
    ];
    for (setting, kind, passes) in other {
        if !kind.divides(head_dim) {
            let settings = Box::new(Settings { cache: passes, ..*settings });
            let suggestion = Suggestion::Setting { setting, value: plain.keys.to_string(), settings };
            return Err(Refusal { condition: Condition::Cache { setting, kind, head_dim }, suggestion });
        }
    }
    Ok(cache)
}

fn chunk(parallel: usize, settings: &Settings, changes: &mut Changes<'_>) -> Result<Option<usize>, Refusal> {
    let Some(Tokens(value)) = settings.chunk else { return Ok(None) };
    let with = |value| Settings { chunk: Some(Tokens(value)), ..*settings };
    let bounds = Bounds {
        setting: "prefill-chunk",
        least: 1,
        most: MAX_CHUNK,
        why: "a longer step only delays running answers",
    };
    let chunk = changes.number(value, &bounds, with)?;
    // A step holds one row of each running sequence, whatever there is of prompts.
    if chunk < parallel {
        let change = Change {
            setting: "prefill-chunk",
            verb: "raised",
            to: parallel.to_string(),
            settings: with(parallel),
        };
        changes.change(chunk, change, &format!("a step holds a row of each of {parallel} sequences"))?;
    }
    Ok(Some(chunk.max(parallel)))
}

fn threads(
    machine: &Machine,
    settings: &Settings,
    changes: &mut Changes<'_>,
) -> Result<(usize, usize), Refusal> {
    let most = machine.most_threads.max(1);
    let why = "that many processors are ours to use, and more threads would wait for each other";
    let threads = match settings.threads {
        None => machine.cores.clamp(1, most),
        Some(value) => {
            changes.number(value, &Bounds { setting: "threads", least: 1, most, why }, |value| Settings {
                threads: Some(value),
                ..*settings
            })?
        }
    };
    let batch_threads = match settings.batch_threads {
        None => threads,
        Some(value) => {
            let bounds = Bounds { setting: "threads-batch", least: 1, most, why };
            changes.number(value, &bounds, |value| Settings { batch_threads: Some(value), ..*settings })?
        }
    };
    Ok((threads, batch_threads))
}

fn budget(machine: &Machine, settings: &Settings, changes: &mut Changes<'_>) -> Result<Bytes, Refusal> {
    let free = machine.memory.free;
    let Some(asked) = settings.memory else { return Ok(free) };
    if asked > free {
        let bound = machine.memory.bound.as_ref().map_or(String::new(), |bound| format!(" under {bound}"));
        let change = Change {
            setting: "memory",
            verb: "lowered",
            to: exact(free),
            settings: Settings { memory: Some(free), ..*settings },
        };
        changes.change(asked, change, &format!("no more is free{bound}"))?;
    }
    Ok(asked.min(free))
}

fn stream(
    store: Option<&Store<'_>>,
    settings: &Settings,
    changes: &mut Changes<'_>,
) -> Result<StreamExperts, Refusal> {
    if store.is_none() && settings.stream_experts == StreamExperts::On {
        let change = Change {
            setting: "stream-experts",
            verb: "changed",
            to: StreamExperts::Auto.to_string(),
            settings: Settings { stream_experts: StreamExperts::Auto, ..*settings },
        };
        changes.change(StreamExperts::On, change, "the model has no experts")?;
        return Ok(StreamExperts::Auto);
    }
    Ok(settings.stream_experts)
}

/// How many slots were asked for, between those that a row needs and those that all experts have.
fn slots(
    store: Option<&Store<'_>>,
    settings: &Settings,
    changes: &mut Changes<'_>,
) -> Result<Option<usize>, Refusal> {
    let Some(asked) = settings.expert_cache else { return Ok(None) };
    let with = |expert_cache| Settings { expert_cache, ..*settings };
    let change = |verb, slots: usize| Change {
        setting: "expert-cache",
        verb,
        to: slots.to_string(),
        settings: with(Some(ExpertCache::Slots(slots))),
    };
    let Some(store) = store else {
        let change =
            Change { setting: "expert-cache", verb: "changed", to: "auto".to_owned(), settings: with(None) };
        changes.change(asked, change, "the model has no experts")?;
        return Ok(None);
    };
    let (least, most) = (store.least(), store.most());
    let slots = match asked {
        ExpertCache::Slots(slots) => slots,
        ExpertCache::Bytes(bytes) => store.within(bytes),
    };
    // Bytes for more than all experts are a bound that does not bind; slots for more are a mistake.
    if slots > most {
        changes.change(asked, change("lowered", most), "the model has no more experts")?;
    } else if slots < least {
        let why = "a token's experts of every layer must be in memory together";
        changes.change(asked, change("raised", least), why)?;
    }
    let slots = slots.clamp(least, most);
    if settings.stream_experts == StreamExperts::Off && slots < most {
        let suggestion = Suggestion::Setting {
            setting: "stream-experts",
            value: StreamExperts::Auto.to_string(),
            settings: Box::new(Settings { stream_experts: StreamExperts::Auto, ..*settings }),
        };
        return Err(Refusal { condition: Condition::Contradiction { slots, experts: most }, suggestion });
    }
    Ok(Some(slots))
}
