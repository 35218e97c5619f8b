//! The loop without a socket: messages in, steps, messages out.

use unfazed_device::Device;
use unfazed_kernels::Isa;
use unfazed_model::Model;
use unfazed_wire::{Failure, FailureKind, Submit, ToEngine, ToFront};

use crate::Limits;
use crate::advance::Advance;
use crate::clock::Clock;
use crate::outcome::Outcome;
use crate::sampling::Sampler;
use crate::scheduler::Scheduler;

/// A loaded model that serves requests. Call [`Engine::handle`] with each message and [`Engine::step`] while it is not
/// [idle](Engine::idle).
pub struct Engine<D: Device> {
    model: Model<D>,
    device: D,
    isa: Isa,
    clock: Box<dyn Clock>,
    scheduler: Scheduler,
    sampler: Sampler,
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
            outbox: Vec::new(),
            shutting_down: false,
        }
    }

    /// Takes a message. A request that cannot be served is failed by the next step's messages; one that bears the
    /// number of a live request is failed, and the live one goes on.
    pub fn handle(&mut self, message: ToEngine) {
        match message {
            ToEngine::Submit(submit) => self.submit(*submit),
            ToEngine::Cancel(request) => self.scheduler.cancel(request),
            ToEngine::Shutdown => self.shutting_down = true,
            // The front said it already; a second one changes nothing.
            ToEngine::Start(_) => tracing::warn!("a second Start was ignored"),
        }
    }

    /// Computes a step, if anything runs, and returns what the front must know.
    pub fn step(&mut self) -> Vec<ToFront> {
        let mut out = std::mem::take(&mut self.outbox);
        self.scheduler.admit(self.clock.now());
        let Some((batch, work)) = self.scheduler.plan() else { return out };
        let mut outcome = Outcome::default();
        let running = self.scheduler.running();
        match self.model.forward(&mut self.device, &batch) {
            Ok(logits) => {
                let mut rows = logits.chunks_exact(self.model.config().vocab.max(1));
                let (isa, now) = (self.isa, self.clock.now());
                let mut advance = Advance { isa, sampler: &mut self.sampler, outcome: &mut outcome, now };
                for work in &work {
                    if let Some(sequence) = running.get_mut(work.index) {
                        advance.sequence(sequence, &work.positions, &mut rows);
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "a step failed");
                for sequence in work.iter().filter_map(|work| running.get(work.index)) {
                    outcome.fail(sequence.request, FailureKind::Engine, error.to_string());
                }
            }
        }
        self.scheduler.end(outcome.ended());
        outcome.append_to(&mut out);
        out
    }

    /// Nothing waits, runs or is to be told: the next message may be waited for.
    pub fn idle(&self) -> bool {
        self.outbox.is_empty() && self.scheduler.is_empty()
    }

    /// A shutdown was asked for and nothing is left to do.
    pub fn finished(&self) -> bool {
        self.shutting_down && self.idle()
    }

    /// KV pages that no sequence has.
    pub fn free_pages(&self) -> usize {
        self.scheduler.free_pages()
    }

    fn submit(&mut self, submit: Submit) {
        let request = submit.request;
        let refused = match self.shutting_down {
            true => Err((FailureKind::Engine, "the engine is shutting down".to_owned())),
            false => {
                let now = self.clock.now();
                self.scheduler.submit(submit, now).map_err(|reason| (FailureKind::InvalidRequest, reason))
            }
        };
        if let Err((kind, message)) = refused {
            self.outbox.push(ToFront::Failed { request, failure: Failure { kind, message } });
        }
    }
}
