//! A whole world in one thread, driven by one seed: real engines over simulated devices, one after the other in the same
//! memory, with a clock and a front of its own. Thousands of runs take seconds, and each can be had again by its seed.
//!
//! | module | what |
//! |---|---|
//! | `toy` | the device |
//! | `front` | what a front does, and what a client checks |
//! | [`shrink`] | from a run that loses something to the few faults that it takes |

mod front;
pub mod shrink;
mod toy;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use unfazed_device::Batch;
use unfazed_engine::kept::KeptPages;
use unfazed_engine::{Engine, Limits, pressure};
use unfazed_fault::{Action, Class, Origin};
use unfazed_formats::{BlockFormat, Checkpoint};
use unfazed_kernels::Isa;
use unfazed_model::{Model, Sources};
use unfazed_store::{Clock, WaitObserver};
use unfazed_testkit::TinyModel;
use unfazed_wire::memory::{Access, KvSegment, Mapping, Segment};
use unfazed_wire::{RequestId, Sampling, Submit, ToFront};

use self::front::Front;
use self::toy::{Pages, ToyDevice};
use crate::device::{Bug, SimDevice, Steps};
use crate::plan::{FaultName, FaultPlan, Place, Scripted, mix};

/// A run that takes more steps hangs.
const MOST_STEPS: u64 = 50_000;
/// Memory is short after one step in so many.
const MEMORY_SHORT_ONE_IN: u64 = 9;
/// Engines that a run may take.
const MOST_ENGINES: u64 = 5_000;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Of requests and of what is delivered before an engine ends.
    pub seed: u64,
    /// Which of the seed's requests there are.
    pub requests: Vec<u64>,
    /// Faults.
    pub plan: FaultPlan,
    /// A bug that is planted, for the checker to find.
    pub bug: Option<Bug>,
}

impl Scenario {
    /// What a seed stands for: some requests, and every class of fault that can come in a step, at a rate of its own.
    pub fn of_seed(seed: u64, bug: Option<Bug>) -> Scenario {
        let steps = Class::ALL.into_iter().filter(|class| Place::Step.holds(*class));
        let rate = 60 + mix(seed) % 400;
        let plan = FaultPlan {
            seed,
            one_in: steps.map(|class| (FaultName(class), rate)).collect(),
            ..FaultPlan::default()
        };
        Scenario { seed, requests: (0..2 + mix(seed ^ 1) % 9).collect(), plan, bug }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Faults that happened, in order.
    pub faults: Vec<Scripted>,
    /// Steps computed.
    pub steps: u64,
    /// Engines started.
    pub engines: u64,
    /// Tokens that clients got.
    pub tokens: usize,
    /// What was lost.
    pub loss: Option<String>,
}

/// What worlds are made of: a model's shapes.
pub struct Ground {
    sources: Sources,
    vocab: usize,
}

impl Ground {
    /// Lays it.
    ///
    /// # Errors
    ///
    /// A system without room for a small file.
    pub fn new() -> Result<Ground, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = folder.path().join("toy.gguf");
        let model = TinyModel::new(unfazed_formats::config::Family::Llama, BlockFormat::F32);
        model.write_gguf(&path).map_err(|error| error.to_string())?;
        let checkpoint = Checkpoint::open(&path).map_err(|error| error.to_string())?;
        let vocab = checkpoint.config.vocab;
        let sources = Sources::find(&(&checkpoint).into()).map_err(|error| error.to_string())?;
        Ok(Ground { sources, vocab })
    }

    /// Runs a scenario, and before it the same without faults to know what clients must see.
    ///
    /// # Errors
    ///
    /// A system without memory to share.
    pub fn run(&self, scenario: &Scenario) -> Result<Outcome, String> {
        let quiet = Scenario { plan: FaultPlan::default(), bug: None, ..scenario.clone() };
        let (undisturbed, expected) = World::new(self, &quiet, None)?.run()?;
        if let Some(loss) = undisturbed.loss {
            return Err(format!("the undisturbed run lost something: {loss}"));
        }
        Ok(World::new(self, scenario, Some(expected))?.run()?.0)
    }
}

/// A run in progress.
struct World<'g> {
    ground: &'g Ground,
    scenario: Scenario,
    limits: Limits,
    front: Front,
    clock: SimClock,
    pages: Pages,
    sizes: KvSegment,
    mapping: Arc<Mapping>,
    steps: Rc<RefCell<Log>>,
    /// Set by a step that its engine does not survive.
    dies: Rc<Cell<bool>>,
    cpu_alone: bool,
    outcome: Outcome,
}

#[derive(Debug, Default)]
struct Log {
    faults: Vec<Scripted>,
    steps: u64,
}

impl<'g> World<'g> {
    fn new(
        ground: &'g Ground,
        scenario: &Scenario,
        expected: Option<BTreeMap<RequestId, Vec<u32>>>,
    ) -> Result<World<'g>, String> {
        let limits = limits(scenario.seed, ground.vocab);
        let submits = scenario.requests.iter().map(|&number| submit(scenario.seed, number, ground.vocab));
        let sizes = KvSegment { pages: limits.pages, page_bytes: 8 };
        let bytes = sizes.bytes().ok_or("too many pages")? as u64;
        let segment = Segment::create("a simulation", bytes).map_err(|error| error.to_string())?;
        let mapping = Mapping::new(&segment, Access::Write).map_err(|error| error.to_string())?;
        Ok(World {
            ground,
            scenario: scenario.clone(),
            front: Front::new(submits.collect(), expected),
            clock: SimClock::default(),
            pages: Pages::new(&limits),
            limits,
            sizes,
            mapping: Arc::new(mapping),
            steps: Rc::default(),
            dies: Rc::default(),
            cpu_alone: false,
            outcome: Outcome::default(),
        })
    }

    fn run(mut self) -> Result<(Outcome, BTreeMap<RequestId, Vec<u32>>), String> {
        while self.outcome.loss.is_none() && !self.front.is_done() {
            self.outcome.engines += 1;
            if self.outcome.engines > MOST_ENGINES {
                self.outcome.loss = Some(format!("no end after {MOST_ENGINES} engines"));
                break;
            }
            self.live()?;
        }
        let log = self.steps.take();
        let answers = self.front.answers();
        let tokens = answers.values().map(Vec::len).sum();
        let Log { faults, steps } = log;
        Ok((Outcome { faults, steps, tokens, ..self.outcome }, answers))
    }

    /// One engine, from its start to its end or that of all requests.
    fn live(&mut self) -> Result<(), String> {
        let mut engine = self.engine()?;
        self.front.hand_over().into_iter().for_each(|message| engine.handle(message));
        while !engine.idle() {
            let messages = engine.step();
            let dies = self.dies.take();
            // An engine that dies may have told all of its step, or nothing.
            let told = match dies {
                true => self.draw(self.steps.borrow().steps) as usize % (messages.len() + 1),
                false => messages.len(),
            };
            for message in messages.iter().take(told) {
                self.cpu_alone |=
                    matches!(message, ToFront::Fault(report) if report.action == Action::StepDown);
                if let Err(loss) = self.front.hear(message) {
                    self.outcome.loss = Some(loss);
                    return Ok(());
                }
            }
            if self.steps.borrow().steps > MOST_STEPS {
                self.outcome.loss = Some(format!("no end after {MOST_STEPS} steps"));
                return Ok(());
            }
            if dies || engine.is_over() {
                return Ok(());
            }
            let draw = self.draw(self.steps.borrow().steps ^ 0x5eed);
            if draw.is_multiple_of(MEMORY_SHORT_ONE_IN) {
                pressure::give_up(&mut engine, None, draw % 64);
            }
        }
        if engine.free_pages() != self.limits.pages {
            self.outcome.loss =
                Some(format!("{} of {} pages are free in the end", engine.free_pages(), self.limits.pages));
        }
        Ok(())
    }

    fn engine(&self) -> Result<Engine<SimDevice<ToyDevice, WorldSteps>>, String> {
        let steps = WorldSteps {
            plan: self.scenario.plan.clone(),
            engine: self.outcome.engines,
            cpu_alone: self.cpu_alone,
            step: 0,
            log: Rc::clone(&self.steps),
            dies: Rc::clone(&self.dies),
        };
        let toy = ToyDevice::new(self.pages.clone(), self.ground.vocab);
        let mut device = SimDevice::new(toy, steps, Box::new(self.clock.clone()));
        if let Some(bug) = self.scenario.bug {
            device = device.with_bug(bug);
        }
        let model: Model<_> = self.ground.sources.load(&mut device).map_err(|error| error.to_string())?;
        let kept = KeptPages::new(Arc::clone(&self.mapping), self.sizes, self.limits.page_tokens);
        let engine = Engine::new(model, device, self.limits, Isa::best(), Box::new(self.clock.clone()));
        Ok(engine.with_kept_pages(kept).after_faults(&self.front.troubles, Arc::new(Nobody)))
    }

    fn draw(&self, at: u64) -> u64 {
        mix(mix(self.scenario.seed ^ 3) ^ at)
    }
}

/// What a device was laid out for, small enough that requests compete.
fn limits(seed: u64, vocab: usize) -> Limits {
    let draw = |at: u64, of: u64| (mix(mix(seed ^ 4) ^ at) % of) as usize;
    let page_tokens = [2, 4, 16][draw(0, 3)];
    let context = 96;
    let chunk = 4 + draw(1, 28);
    Limits {
        context,
        parallel: 1 + draw(2, 6),
        chunk,
        logit_rows: Limits::logit_rows_for(chunk),
        pages: context / page_tokens * (1 + draw(3, 3)),
        page_tokens,
        vocab,
    }
}

fn submit(seed: u64, number: u64, vocab: usize) -> Submit {
    let draw = |at: u64, of: u64| mix(mix(mix(seed ^ 5) ^ number) ^ at) % of;
    let prompt = (0..1 + draw(0, 50)).map(|at| draw(10 + at, vocab as u64) as u32).collect();
    let temperature = if draw(1, 3) == 0 { 0.0 } else { 0.9 };
    Submit {
        request: RequestId(number),
        prompt,
        max_tokens: 1 + draw(2, 40) as usize,
        sampling: Sampling { temperature, seed: draw(3, u64::MAX), ..Sampling::default() },
        stop_tokens: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        repeat_stop_tokens: 0,
        resumed: None,
    }
}

/// Follows the plan and notes what happened.
struct WorldSteps {
    plan: FaultPlan,
    engine: u64,
    cpu_alone: bool,
    step: u64,
    log: Rc<RefCell<Log>>,
    dies: Rc<Cell<bool>>,
}

impl Steps for WorldSteps {
    fn next(&mut self, _: &Batch) -> Option<Class> {
        self.step += 1;
        self.log.borrow_mut().steps += 1;
        let class = self.plan.at_step(self.engine, self.step)?;
        if class.origin() == Origin::Device && self.cpu_alone {
            return None;
        }
        let fault = FaultName(class);
        self.log.borrow_mut().faults.push(Scripted { engine: self.engine, step: self.step, fault });
        if class.origin() == Origin::Device || class == Class::NonFinite {
            return Some(class);
        }
        self.dies.set(true);
        None
    }
}

/// Goes on when somebody waits for it.
#[derive(Clone, Debug, Default)]
struct SimClock(Arc<AtomicU64>);

impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(100, Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Is told of waits that take no time.
struct Nobody;

impl WaitObserver for Nobody {
    fn began(&self, _: String) -> u64 {
        0
    }
    fn changed(&self, _: u64, _: String) {}
    fn ended(&self, _: u64) {}
}
