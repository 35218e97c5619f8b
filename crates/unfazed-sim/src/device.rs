//! A device that fails as it is told to, around one that computes.
//!
//! What it does to a step is what drivers do: the work is reported lost, or is reported done and was thrown away, which only
//! the receipt shows. Keys and values of a failed step are garbage in its pages, and those of a lost device are all gone.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use unfazed_device::{
    Batch, CpuDevice, Device, DeviceError, Fault, Generation, PageId, PageSpan, Part, PlacedDevice,
    StepOutput,
};
use unfazed_fault::{Class, Latch};
use unfazed_formats::config::{ExpertConfig, RopeConfig};
use unfazed_store::experts::LayerExperts;
use unfazed_store::{Clock, MatrixSource, VectorSource};

/// How long a hung step is waited for.
const VERDICT: Duration = Duration::from_millis(20);

/// Least number of steps between two whose results are not finite: the first is computed again within so many.
const BETWEEN_NON_FINITE: u32 = 32;

/// What becomes of a step.
pub trait Steps {
    /// Called as each step begins; may end the process.
    fn next(&mut self, batch: &Batch) -> Option<Class>;
}

/// Bugs that a device layer could have, planted to see that they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bug {
    /// What a driver reports done is committed, without a receipt that it ran.
    CommitBeforeVerdict,
    /// Pages are used after their generation: what they held on an earlier device is taken for what they hold.
    UseAfterGeneration,
}

/// What can be lost on a device.
pub trait Losable {
    /// All keys and values are gone.
    fn lose_pages(&mut self);
}

impl Losable for CpuDevice {
    fn lose_pages(&mut self) {
        CpuDevice::lose_pages(self);
    }
}

impl Losable for PlacedDevice {
    fn lose_pages(&mut self) {
        PlacedDevice::lose_pages(self);
    }
}

/// The device.
pub struct SimDevice<D, S> {
    inner: D,
    steps: S,
    clock: Box<dyn Clock>,
    /// The fault of the present generation.
    latch: Latch,
    /// What becomes of the present step.
    fate: Option<Class>,
    /// Logits of the present step, where they are not the inner device's.
    logits: Vec<f32>,
    /// Steps since results were not finite.
    finite_steps: u32,
    bug: Option<Bug>,
    /// Digests that were computed, for a bug to remember.
    digests: BTreeMap<(PageId, usize), u64>,
}

impl<D, S> SimDevice<D, S> {
    /// A device around `inner`, whose steps `steps` disturbs.
    pub fn new(inner: D, steps: S, clock: Box<dyn Clock>) -> SimDevice<D, S> {
        let latch = Latch::default();
        SimDevice {
            inner,
            steps,
            clock,
            latch,
            fate: None,
            logits: Vec::new(),
            finite_steps: u32::MAX,
            bug: None,
            digests: BTreeMap::new(),
        }
    }

    /// Plants a bug.
    #[must_use]
    pub fn with_bug(mut self, bug: Bug) -> SimDevice<D, S> {
        self.bug = Some(bug);
        self
    }

    fn fail(&mut self, class: Class) -> DeviceError {
        self.latch.report(self.latch.generation(), class);
        DeviceError::Fault(Fault { class, evidence: evidence(class).to_owned() })
    }
}

/// What a driver says.
fn evidence(class: Class) -> &'static str {
    match class {
        Class::Timeout => {
            "simulated: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"
        }
        Class::Hang => "simulated: no receipt came before the deadline",
        Class::SubmissionsIgnored => {
            "simulated: Ignored (for causing prior/excessive GPU errors) \
             (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"
        }
        Class::InnocentVictim => {
            "simulated: Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"
        }
        Class::OutOfMemory => {
            "simulated: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
        }
        Class::PageFault => {
            "simulated: GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)"
        }
        Class::Interactivity => {
            "simulated: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
        }
        Class::DeviceLost => "simulated: VK_ERROR_DEVICE_LOST",
        Class::Discarded => "simulated: success was reported and the receipt is that of the step before",
        _ => "simulated",
    }
}

impl<D: Device + Losable, S: Steps> Device for SimDevice<D, S> {
    type Matrix = D::Matrix;
    type Vector = D::Vector;
    type Experts = D::Experts;

    fn load_matrix(&mut self, part: Part, source: &MatrixSource) -> Result<D::Matrix, DeviceError> {
        self.inner.load_matrix(part, source)
    }

    fn load_vector(&mut self, part: Part, source: &VectorSource) -> Result<D::Vector, DeviceError> {
        self.inner.load_vector(part, source)
    }

    fn load_experts(&mut self, layer: usize, experts: &LayerExperts) -> Result<D::Experts, DeviceError> {
        self.inner.load_experts(layer, experts)
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        if let Some(class) = self.latch.fault() {
            // Nothing runs on a device that has faulted.
            return Err(self.fail(class));
        }
        self.fate = self.steps.next(batch);
        self.finite_steps = self.finite_steps.saturating_add(1);
        if self.fate == Some(Class::NonFinite) {
            // What comes twice in a row is the model's doing, and none of a device's.
            match self.finite_steps < BETWEEN_NON_FINITE {
                true => self.fate = None,
                false => self.finite_steps = 0,
            }
        }
        match self.fate {
            None | Some(Class::NonFinite) => self.inner.begin(batch),
            Some(_) => {
                // The work is lost: something else lies where its keys and values should.
                let mut spoilt = batch.clone();
                for row in &mut spoilt.rows {
                    row.token = row.token.checked_sub(1).unwrap_or(1);
                }
                self.inner.begin(&spoilt)
            }
        }
    }

    fn finish(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        match self.fate.take() {
            None => self.inner.finish(),
            Some(Class::NonFinite) => {
                let output = self.inner.finish()?;
                self.logits = output.logits.to_vec();
                if let Some(first) = self.logits.first_mut() {
                    *first = f32::NAN;
                }
                Ok(StepOutput { logits: &self.logits, ..output })
            }
            Some(Class::Discarded) if self.bug == Some(Bug::CommitBeforeVerdict) => self.inner.finish(),
            Some(class) => {
                self.inner.finish()?;
                if class == Class::Hang {
                    self.clock.sleep(VERDICT);
                }
                Err(self.fail(class))
            }
        }
    }

    fn is_cold(&self) -> bool {
        self.inner.is_cold()
    }

    fn settled(&mut self, pages: &[PageId], positions: usize) -> usize {
        self.inner.settled(pages, positions)
    }

    fn restore(&mut self, pages: &[PageId]) -> Result<(), DeviceError> {
        self.inner.restore(pages)
    }

    fn give_back(&mut self, first: PageId, count: usize) -> std::io::Result<u64> {
        self.inner.give_back(first, count)
    }

    fn generation(&self) -> Generation {
        self.latch.generation()
    }

    fn rebuild(&mut self, after: Class) -> Result<(), DeviceError> {
        match self.latch.rebuilt() {
            Ok(_) => {
                if matches!(after, Class::DeviceLost | Class::PageFault) {
                    self.inner.lose_pages();
                }
                Ok(())
            }
            Err(unusable) => Err(DeviceError::Fault(Fault { class: after, evidence: unusable.to_string() })),
        }
    }

    fn embed(&mut self, table: &D::Matrix) {
        self.inner.embed(table);
    }

    fn norm(&mut self, weight: &D::Vector, epsilon: f32) {
        self.inner.norm(weight, epsilon);
    }

    fn project_qkv(&mut self, q: &D::Matrix, k: &D::Matrix, v: &D::Matrix) {
        self.inner.project_qkv(q, k, v);
    }

    fn norm_heads(&mut self, q: &D::Vector, k: &D::Vector, epsilon: f32) {
        self.inner.norm_heads(q, k, epsilon);
    }

    fn rotate(&mut self, rope: &RopeConfig) {
        self.inner.rotate(rope);
    }

    fn attend(&mut self, layer: usize) {
        self.inner.attend(layer);
    }

    fn project_context(&mut self, w: &D::Matrix) {
        self.inner.project_context(w);
    }

    fn feed_forward(&mut self, gate: &D::Matrix, up: &D::Matrix, down: &D::Matrix) {
        self.inner.feed_forward(gate, up, down);
    }

    fn mixture(&mut self, router: &D::Matrix, experts: &D::Experts, config: &ExpertConfig) {
        self.inner.mixture(router, experts, config);
    }

    fn look_ahead(
        &mut self,
        norm: &D::Vector,
        epsilon: f32,
        router: &D::Matrix,
        experts: &D::Experts,
        config: &ExpertConfig,
    ) {
        self.inner.look_ahead(norm, epsilon, router, experts, config);
    }

    fn output(&mut self, norm: &D::Vector, epsilon: f32, table: &D::Matrix) {
        self.inner.output(norm, epsilon, table);
    }

    fn digests(&mut self, spans: &[PageSpan]) -> Result<Vec<u64>, DeviceError> {
        let mut digests = self.inner.digests(spans)?;
        if self.bug == Some(Bug::UseAfterGeneration) {
            let slots = spans.iter().flat_map(|span| span.slots.clone().map(|slot| (span.page, slot)));
            let stale = self.generation() != Generation::default();
            for (slot, digest) in slots.zip(&mut digests) {
                let known = self.digests.get(&slot).copied();
                if stale && let Some(known) = known {
                    *digest = known;
                }
                self.digests.insert(slot, *digest);
            }
        }
        Ok(digests)
    }
}

impl<D: AsRef<PlacedDevice>, S> AsRef<PlacedDevice> for SimDevice<D, S> {
    fn as_ref(&self) -> &PlacedDevice {
        self.inner.as_ref()
    }
}
