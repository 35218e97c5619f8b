//! The loop without a socket: messages in, steps, messages out.

use std::mem;
use std::sync::Arc;

use unfazed_device::{Device, DeviceError};
use unfazed_fault::Class;
use unfazed_kernels::Isa;
use unfazed_model::Model;
use unfazed_store::{Clock, WaitObserver};
use unfazed_wire::{Failure, FailureKind, Submit, ToEngine, ToFront};

use crate::Limits;
use crate::advance::Advance;
use crate::faults::Faults;
use crate::kept::{Found, KeptPages, Written};
use crate::outcome::Outcome;
use crate::pressure;
use crate::sampling::Sampler;
use crate::scheduler::{Scheduler, Submitted};

/// A loaded model that serves requests. Call [`Engine::handle`] with each message and [`Engine::step`] while it is not
/// [idle](Engine::idle).
pub struct Engine<D: Device> {
    pub(crate) model: Model<D>,
    pub(crate) device: D,
    isa: Isa,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) scheduler: Scheduler,
    sampler: Sampler,
    /// Keys and values that outlive this process.
    pub(crate) kept: Option<KeptPages>,
    pub(crate) faults: Faults,
    /// Messages about requests that never came to run.
    outbox: Vec<ToFront>,
    shutting_down: bool,
}

impl<D: Device> Engine<D> {
    /// An engine for a model on a device that was laid out for `limits`. `isa` is for sampling and changes no result.
    pub fn new(model: Model<D>, device: D, limits: Limits, isa: Isa, clock: Box<dyn Clock>) -> Engine<D> {
        Engine {
            model,
            device,
            isa,
            clock,
            scheduler: Scheduler::new(limits),
            sampler: Sampler::new(isa),
            kept: None,
            faults: Faults::default(),
            outbox: Vec::new(),
            shutting_down: false,
        }
    }

    /// Its KV pages outlive it, and some were left by an earlier engine.
    #[must_use]
    pub fn with_kept_pages(mut self, kept: KeptPages) -> Engine<D> {
        self.scheduler.spare(kept.left());
        self.kept = Some(kept);
        self
    }

    /// Earlier engines had faults of these classes, so many of each, that are not overcome; `waits` is told what this one
    /// waits for.
    #[must_use]
    pub fn after_faults(mut self, troubles: &[(Class, u32)], waits: Arc<dyn WaitObserver>) -> Engine<D> {
        self.faults.go_on(troubles, self.clock.now());
        self.faults.waits = Some(waits);
        self
    }

    /// Takes a message. A request that cannot be served is failed by the next step's messages; one that bears the
    /// number of a live request is failed, and the live one goes on.
    pub fn handle(&mut self, message: ToEngine) {
        match message {
            ToEngine::Submit(submit) => self.submit(*submit),
            ToEngine::Cancel(request) => self.scheduler.cancel(request),
            ToEngine::Shutdown => self.shutting_down = true,
            // The process sees to it, which has the experts as well.
            ToEngine::GiveUp { .. } | ToEngine::OpenUp { .. } => {}
            // The front said it already; a second one changes nothing.
            ToEngine::Start(_) => tracing::warn!("a second Start was ignored"),
        }
    }

    /// Lets the next waiting request run, if there is room, and says so. [`Engine::step`] does it too; by itself it lets the
    /// front know who takes part in a step before it is computed.
    pub fn admit_next(&mut self) -> Option<ToFront> {
        let first = self.scheduler.next()?;
        let found = match &self.kept {
            Some(kept) if first.may_keep > 0 => {
                kept.find(&mut self.device, &first.tokens, first.may_keep).unwrap_or_else(|error| {
                    tracing::warn!(%error, "KV pages of an earlier engine are of no use");
                    Found::default()
                })
            }
            _ => Found::default(),
        };
        let sequence = self.scheduler.admit(found, self.clock.now())?;
        if let (Some(kept), Some(pages)) = (&mut self.kept, &sequence.pages) {
            kept.reserved(pages.all(), sequence.computed);
        }
        let (request, kept, missing) = (sequence.request, sequence.computed, sequence.pending());
        Some(ToFront::Admitted { request, kept, missing })
    }

    /// Computes a step, if anything runs, and returns what the front must know.
    pub fn step(&mut self) -> Vec<ToFront> {
        let mut out = std::mem::take(&mut self.outbox);
        while let Some(message) = self.admit_next() {
            out.push(message);
        }
        let Some((batch, work)) = self.scheduler.plan() else { return out };
        let begun = self.clock.now();
        let mut outcome = Outcome::default();
        match self.model.forward(&mut self.device, &batch) {
            Ok(output) => {
                let now = self.clock.now();
                let vocab = self.model.config().vocab;
                let mut advance =
                    Advance { isa: self.isa, sampler: &mut self.sampler, outcome: &mut outcome, now };
                if !output.waited.is_zero() {
                    out.push(ToFront::StorageWait { ms: output.waited.as_secs_f64() * 1e3 });
                }
                advance.step(self.scheduler.running(), &work, &output, vocab);
                self.commit();
                self.faults.went_well();
            }
            Err(DeviceError::Fault(fault)) => out.push(self.fault(fault, begun)),
            Err(error) => {
                tracing::error!(%error, "a step failed");
                let running = self.scheduler.running();
                for sequence in work.iter().filter_map(|work| running.get(work.index)) {
                    outcome.fail(sequence.request, FailureKind::Engine, error.to_string());
                }
            }
        }
        self.scheduler.end(outcome.ended());
        outcome.append_to(&mut out);
        out
    }

    /// Notes what is in KV pages and has no record yet, before anybody hears of it.
    fn commit(&mut self) {
        let Some(kept) = &self.kept else { return };
        let mut written = Vec::new();
        for sequence in self.scheduler.running() {
            let Some(pages) = &sequence.pages else { continue };
            let settled = self.device.settled(pages.all(), sequence.computed);
            if settled <= sequence.recorded {
                continue;
            }
            written.push(Written {
                account: &mut sequence.account,
                tokens: &sequence.tokens,
                pages: pages.all(),
                positions: mem::replace(&mut sequence.recorded, settled)..settled,
            });
        }
        if let Err(error) = kept.commit(&mut self.device, written) {
            tracing::warn!(%error, "KV pages are not kept for a later engine any more");
            self.kept = None;
        }
    }

    /// Nothing waits, runs or is to be told: the next message may be waited for.
    pub fn idle(&self) -> bool {
        self.outbox.is_empty() && self.scheduler.is_empty()
    }

    /// A shutdown was asked for and nothing is left to do.
    pub fn finished(&self) -> bool {
        self.shutting_down && self.idle()
    }

    /// Lets the steps that follow have at most so many rows, within what the device was laid out for.
    pub fn limit_rows(&mut self, rows: usize) {
        self.scheduler.limit_rows(rows);
    }

    /// KV pages that no sequence has.
    pub fn free_pages(&self) -> usize {
        self.scheduler.free_pages()
    }

    /// Returns the memory of KV pages to the system that no sequence has, until it has so many bytes again: what they hold is for
    /// an engine after this one. Those that an earlier engine left stay while a sequence waits that may find its own among them.
    /// Returns the bytes that were returned. To be called between steps; allocates nothing.
    pub fn give_up_free_pages(&mut self, bytes: u64) -> u64 {
        let keep = self.scheduler.waits_for_kept();
        let left = |page| self.kept.as_ref().is_some_and(|kept| kept.has(page));
        let free = self.scheduler.free(left);
        pressure::give_up_pages(&mut self.device, self.kept.as_mut(), free, keep, bytes)
    }

    fn submit(&mut self, submit: Submit) {
        let request = submit.request;
        let now = self.clock.now();
        let submitted = match self.shutting_down {
            true => Err((FailureKind::Engine, "the engine is shutting down".to_owned())),
            false => {
                self.scheduler.submit(submit, now).map_err(|reason| (FailureKind::InvalidRequest, reason))
            }
        };
        match submitted {
            Ok(Submitted::Waits) => {}
            Ok(Submitted::Complete(reason, timings)) => {
                self.outbox.push(ToFront::Finished { request, reason, timings });
            }
            Err((kind, message)) => {
                self.outbox.push(ToFront::Failed { request, failure: Failure { kind, message } });
            }
        }
    }
}
