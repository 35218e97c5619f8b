//! Which parts of a model memory is spent on, and in what order.
//!
//! With all experts in memory: a context of 2,048 tokens, the chunk, the context, then the pages of further sequences.
//!
//! With experts on disk, each of these only when the one before is complete:
//!
//! 1. the least that works: dense weights, slots for the experts of one token in every layer, ring and staging, a short
//!    chunk, one KV page;
//! 2. the context up to 2,048 tokens;
//! 3. the chunk that was asked for, or 512;
//! 4. the context that was asked for, or 8,192 tokens;
//! 5. pages for as many sequences as were asked for, of up to 2,048 tokens each;
//! 6. the slots that were asked for, or a quarter of all experts: from there on most tokens find most of their experts;
//! 7. the chunk of step 10 up to 1,024;
//! 8. slots for half of all experts;
//! 9. the context up to 16,384 tokens;
//! 10. the chunk at which a prompt is no longer bound by the disk;
//! 11. slots for all experts;
//! 12. the context that the model was trained for, and pages of further sequences.
//!
//! All experts stay in memory where they fit beside the context of step 4 and the chunk that prompts need then.

use crate::ask::{Asked, Change, Changes, DEFAULT_CHUNK, MAX_CHUNK};
use crate::fill::{Costs, Goal, Take, pages_for};
use crate::predict::Predictor;
use crate::refusal::Refusal;
use crate::{Bytes, ExpertCache, PAGE_TOKENS, Settings, StreamExperts, Tokens};

/// Chunk that is never gone below for lack of memory, if nobody asked for less.
const LEAST_CHUNK: usize = 32;
/// Chunk where experts are streamed and no rate was measured: so many positions share a read of all experts.
const STREAMED_CHUNK: usize = 2048;
/// Context that comes before everything else: requests and their answers are rarely shorter.
const SHORT_CONTEXT: usize = 2048;
/// A context that nobody asked for comes before slots up to the first of these, and before slots for more than half of the
/// experts up to the second one.
const FIRST_CONTEXT: usize = 8192;
const SECOND_CONTEXT: usize = 16_384;
/// Chunk that comes before slots for half of the experts, if prompts need a longer one.
const FIRST_STREAMED_CHUNK: usize = 1024;
/// Parts of all experts that slots are raised to one after the other: a quarter, a half.
const USEFUL_PART: usize = 4;
const LARGE_PART: usize = 2;
/// Slots for all experts but this share of them are raised to all: then nothing is streamed, and the step from almost all to
/// all is the largest of all steps.
const NEARLY_ALL: usize = 20;
/// Share of the memory beside weights and scratch that KV pages of further sequences may take: the rest is the page cache's
/// and other programs'.
const KV_SHARE: u64 = 2;

/// What was chosen.
pub(crate) struct Chosen {
    pub(crate) take: Take,
    /// All experts are in memory although fewer slots were asked for.
    pub(crate) raised: bool,
    /// GPUs hold the keys and values of a shorter context than the processor's memory.
    pub(crate) lowered_by_gpu: bool,
}

struct Chooser<'a> {
    costs: &'a Costs<'a>,
    asked: &'a Asked,
    settings: &'a Settings,
    room: Bytes,
    predictor: Option<&'a Predictor<'a>>,
}

/// Chooses. What is chosen fits, unless nothing does: then it is what must.
pub(crate) fn choose(
    costs: &Costs<'_>,
    asked: &Asked,
    settings: &Settings,
    room: Bytes,
    predictor: Option<&Predictor<'_>>,
) -> Chosen {
    let chooser = Chooser { costs, asked, settings, room, predictor };
    let resident = || Chosen { take: chooser.resident(), raised: false, lowered_by_gpu: false };
    let streamed = |slots| Chosen { take: chooser.streamed(slots), raised: false, lowered_by_gpu: false };
    let Some(store) = &costs.store else { return resident() };
    match (asked.stream, asked.slots) {
        (StreamExperts::Off, _) => resident(),
        (StreamExperts::On, slots) => streamed(slots),
        (StreamExperts::Auto, Some(slots)) if slots < store.most() => {
            let nearly_all = store.most() - slots <= store.most() / NEARLY_ALL;
            if nearly_all && chooser.resident_fits() {
                return Chosen { raised: true, ..resident() };
            }
            streamed(Some(slots))
        }
        (StreamExperts::Auto, _) => {
            let least = |slots| costs.of(&chooser.least(slots));
            // Of a tiny model ring and staging are larger than what they would save.
            if chooser.resident_fits() || least(None) <= least(Some(store.least())) {
                resident()
            } else {
                streamed(None)
            }
        }
    }
}

impl Chooser<'_> {
    /// The least that works.
    fn least(&self, slots: Option<usize>) -> Take {
        let asked = self.asked.chunk.unwrap_or(LEAST_CHUNK);
        let chunk = asked.min(LEAST_CHUNK).max(self.asked.parallel);
        Take { chunk, context_pages: 1, pages: 0, slots }
    }

    /// The chunk that is asked for, or the shorter of two: a default, or the context.
    fn chunk(&self, default: usize) -> usize {
        self.asked.chunk.unwrap_or(default.min(self.asked.context).max(self.asked.parallel))
    }

    /// The chunk that makes prompts as fast as the machine computes, with so many slots at least.
    fn balanced_chunk(&self, slots: Option<usize>) -> usize {
        let plan = self.costs.store.as_ref().zip(slots).map(|(store, slots)| store.plan(slots));
        let blind = if slots.is_some() { STREAMED_CHUNK } else { DEFAULT_CHUNK };
        let chunk = match self.predictor {
            None => blind,
            Some(predictor) => {
                // Without the disk's rate nothing says how long a chunk must be for it.
                let least = if predictor.disk.is_none() { blind } else { DEFAULT_CHUNK };
                predictor.balanced(least, MAX_CHUNK, plan.as_ref())
            }
        };
        self.chunk(chunk)
    }

    /// A context's pages: what was asked for, or no more than `tokens`.
    fn context(&self, tokens: usize) -> usize {
        let asked = self.asked.context;
        pages_for(if self.settings.context.is_some() { asked } else { asked.min(tokens) })
    }

    /// Pages of all sequences that were asked for, each of up to a context of so many pages.
    fn pages_of_all(&self, context: usize) -> usize {
        let sequences = if self.settings.parallel.is_some() { self.asked.parallel } else { 1 };
        context.min(pages_for(SHORT_CONTEXT)).saturating_mul(sequences)
    }

    /// What must fit: the least that works, or all that was asked for where it may not be changed.
    fn demanded(&self, least: Take) -> Take {
        if !self.settings.strict {
            return least;
        }
        let context_pages = if self.settings.context.is_some() { pages_for(self.asked.context) } else { 1 };
        Take {
            chunk: self.asked.chunk.unwrap_or(least.chunk),
            context_pages,
            pages: if least.slots.is_some() { self.pages_of_all(context_pages) } else { 0 },
            slots: least.slots.map(|slots| self.asked.slots.unwrap_or(slots)),
        }
    }

    /// Whether all experts fit beside what comes before them.
    fn resident_fits(&self) -> bool {
        let chunk = self.balanced_chunk(None);
        let take = Take { chunk, context_pages: self.context(FIRST_CONTEXT), ..self.least(None) };
        self.costs.of(&take) <= self.room
    }

    fn resident(&self) -> Take {
        let least = self.least(None);
        if self.costs.of(&least) > self.room {
            return self.demanded(least);
        }
        let goals =
            [Goal::Chunk(self.balanced_chunk(None)), Goal::ContextPages(pages_for(self.asked.context))];
        self.share_rest(self.costs.fill(self.room, least, &goals))
    }

    fn streamed(&self, slots: Option<usize>) -> Take {
        let Some(store) = &self.costs.store else { return self.least(None) };
        let least = self.least(Some(store.least()));
        if self.costs.of(&least) > self.room {
            return self.demanded(least);
        }
        let first = self.context(FIRST_CONTEXT);
        let part = |part: usize| slots.unwrap_or((store.most() / part).max(store.least()));
        let chunk = self.balanced_chunk(Some(store.least()));
        let goals = [
            Goal::ContextPages(pages_for(self.asked.context.min(SHORT_CONTEXT))),
            Goal::Chunk(self.chunk(DEFAULT_CHUNK)),
            Goal::ContextPages(first),
            Goal::Pages(self.pages_of_all(first)),
            Goal::Slots(part(USEFUL_PART)),
            Goal::Chunk(chunk.min(FIRST_STREAMED_CHUNK)),
            Goal::Slots(part(LARGE_PART)),
            Goal::ContextPages(self.context(SECOND_CONTEXT)),
            Goal::Chunk(chunk),
            Goal::Slots(part(1)),
            Goal::ContextPages(pages_for(self.asked.context)),
        ];
        self.share_rest(self.costs.fill(self.room, least, &goals))
    }

    /// Pages for further sequences, of what is left when all else is there.
    fn share_rest(&self, (take, complete): (Take, bool)) -> Take {
        if !complete {
            return take;
        }
        let bare = Take { context_pages: 0, pages: 0, ..take };
        let free = self.room.saturating_sub(self.costs.of(&bare));
        let wanted = take.context_pages.saturating_mul(self.asked.parallel);
        let pages = wanted.min(pages_in(Bytes(free.0 / KV_SHARE), self.costs.page));
        Take { pages: pages.max(take.pages), ..take }
    }
}

/// Pages that fit, bounded by what a page number (u32) can name.
fn pages_in(free: Bytes, page: Bytes) -> usize {
    (free.0 / page.0.max(1)).min(u64::from(u32::MAX)) as usize
}

/// Pages that there must be where GPUs hold them too: for what was asked for, or for the context that comes first.
pub(crate) fn least_pages(asked: &Asked, settings: &Settings, take: &Take) -> usize {
    let context = if settings.context.is_some() { asked.context } else { asked.context.min(FIRST_CONTEXT) };
    let one = pages_for(context).min(take.context_pages);
    let sequences = settings.parallel.map_or(1, |_| asked.parallel);
    let all = one.min(pages_for(SHORT_CONTEXT)).saturating_mul(sequences);
    one.max(all.min(take.pages))
}

/// One line for each setting that was changed for want of memory.
pub(crate) fn note_changes(
    costs: &Costs<'_>,
    asked: &Asked,
    settings: &Settings,
    chosen: &Chosen,
    changes: &mut Changes<'_>,
) -> Result<(), Refusal> {
    let take = &chosen.take;
    let lowered =
        |setting, to: usize, settings| Change { setting, verb: "lowered", to: to.to_string(), settings };
    if let Some(chunk) = asked.chunk.filter(|chunk| *chunk > take.chunk) {
        let change =
            lowered("prefill-chunk", take.chunk, Settings { chunk: Some(Tokens(take.chunk)), ..*settings });
        let why = format!("its activations would take {}", costs.scratch(&Take { chunk, ..*take }));
        changes.change(chunk, change, &why)?;
    }
    note_context(costs, asked, settings, chosen, changes)?;
    let one = pages_for(asked.context.min(take.context_pages.saturating_mul(PAGE_TOKENS)));
    let (wanted, pages) = (one.saturating_mul(asked.parallel), take.pages.max(one));
    if pages < wanted && settings.parallel.is_some() {
        changes.notes.push(format!(
            "KV pages for {} sequences of {} tokens would take {}: {} are used, requests wait when they are full",
            asked.parallel,
            asked.context.min(take.context_pages.saturating_mul(PAGE_TOKENS)),
            costs.page.saturating_mul(wanted as u64),
            costs.page.saturating_mul(pages as u64),
        ));
    }
    note_slots(costs, asked, settings, chosen, changes)
}

fn note_context(
    costs: &Costs<'_>,
    asked: &Asked,
    settings: &Settings,
    chosen: &Chosen,
    changes: &mut Changes<'_>,
) -> Result<(), Refusal> {
    let take = &chosen.take;
    let context = asked.context.min(take.context_pages.saturating_mul(PAGE_TOKENS));
    if context == asked.context {
        return Ok(());
    }
    let position = Bytes(costs.page.0 / PAGE_TOKENS as u64);
    if settings.context.is_none() {
        let gpu = if chosen.lowered_by_gpu { ", and the GPU holds those of its layers" } else { "" };
        changes.notes.push(format!(
            "--context lowered from {} to {context}: one token's keys and values take {position}{gpu}",
            asked.context
        ));
        return Ok(());
    }
    let left = costs.kv(take);
    let change = Change {
        setting: "context",
        verb: "lowered",
        to: context.to_string(),
        settings: Settings { context: Some(Tokens(context)), ..*settings },
    };
    let why = format!("one token's keys and values take {position}, and {left} are left for them");
    changes.change(asked.context, change, &why)
}

fn note_slots(
    costs: &Costs<'_>,
    asked: &Asked,
    settings: &Settings,
    chosen: &Chosen,
    changes: &mut Changes<'_>,
) -> Result<(), Refusal> {
    let (Some(store), Some(slots)) = (&costs.store, asked.slots) else { return Ok(()) };
    let change = |verb, to: usize| Change {
        setting: "expert-cache",
        verb,
        to: to.to_string(),
        settings: Settings { expert_cache: Some(ExpertCache::Slots(to)), ..*settings },
    };
    // In the words that it was asked in.
    let from = match settings.expert_cache {
        Some(ExpertCache::Bytes(bytes)) => bytes.to_string(),
        _ => slots.to_string(),
    };
    if chosen.raised {
        let why = "all experts fit, and then none is read again";
        return changes.change(from, change("raised", store.most()), why);
    }
    match chosen.take.slots {
        Some(fit) if fit < slots => {
            let why =
                format!("they would take {}, and {} are left for them", store.bytes(slots), store.bytes(fit));
            changes.change(from, change("lowered", fit), &why)
        }
        _ => Ok(()),
    }
}
