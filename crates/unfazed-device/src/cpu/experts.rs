//! A mixture of experts whose experts are in memory, or come from the expert store while the step is computed.
//!
//! What comes is computed while the rest is read. A step of few rows takes experts in any order, as it keeps their outputs
//! apart; one of many rows takes them in ascending order, in groups. So the sums are the same bits wherever experts were.

#![allow(unsafe_code)]

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use unfazed_formats::BlockFormat;
use unfazed_formats::config::ExpertConfig;
use unfazed_kernels::vector::{choose_experts, rms_norm};
use unfazed_store::experts::trace::Step as TracedStep;
use unfazed_store::experts::{ExpertStore, Order};
use unfazed_store::{PackedStack, StoreError};

use super::dense::{Product, multiply};
use super::device::CpuDevice;
use super::disjoint::Disjoint;
use super::feed_forward::{Expert, Inner, Matrices};
use super::mixture::{FEW_ROWS, Outer, add_up};
use super::routing::Routing;
use super::step::Step;
use crate::operations::SequenceFailure;

/// Experts of a step of many rows that are computed at once, at most. The ring holds some more.
const GROUP: usize = 8;
/// A step that chooses so many times as many experts as there are uses nearly all of them: 98 of 100, were they chosen
/// alike.
const NEARLY_ALL: usize = 4;

/// Is told which experts each step used.
pub type TraceSink = Box<dyn FnMut(&TracedStep) + Send>;

/// The experts of a layer.
pub struct CpuExperts {
    layer: u32,
    place: Place,
}

enum Place {
    Memory(Box<Stacks>),
    /// Gate, up and down are of these formats.
    Store([BlockFormat; 3]),
}

/// All experts of a layer in memory.
struct Stacks {
    gate: PackedStack,
    up: PackedStack,
    down: PackedStack,
}

/// Where experts come from that are not in memory.
pub(super) struct Streaming {
    store: Arc<ExpertStore>,
    ahead: Ahead,
}

/// What is to be read after what the next mixture needs.
enum Ahead {
    Nothing,
    /// These experts of a layer, perhaps.
    Some(u32, Vec<u32>),
    /// All of a layer.
    All(u32),
}

impl Streaming {
    pub(super) fn new(store: Arc<ExpertStore>) -> Streaming {
        Streaming { store, ahead: Ahead::Nothing }
    }

    fn read_ahead(&mut self) -> Result<(), StoreError> {
        match mem::replace(&mut self.ahead, Ahead::Nothing) {
            Ahead::Nothing => Ok(()),
            Ahead::Some(layer, experts) => self.store.look_ahead(layer, &experts),
            Ahead::All(layer) => self.store.read_ahead(layer),
        }
    }
}

impl CpuExperts {
    pub(super) fn in_memory(layer: usize, [gate, up, down]: [PackedStack; 3]) -> CpuExperts {
        CpuExperts { layer: layer as u32, place: Place::Memory(Box::new(Stacks { gate, up, down })) }
    }

    pub(super) fn in_store(layer: usize, formats: [BlockFormat; 3]) -> CpuExperts {
        CpuExperts { layer: layer as u32, place: Place::Store(formats) }
    }

    /// Formats of gate, up and down.
    fn formats(&self) -> [BlockFormat; 3] {
        match &self.place {
            Place::Memory(stacks) => {
                [&stacks.gate, &stacks.up, &stacks.down].map(|stack| stack.layout().format())
            }
            Place::Store(formats) => *formats,
        }
    }
}

/// Tiles of experts that stand together, run by run.
fn runs(experts: &[Expert]) -> impl Iterator<Item = Range<usize>> {
    let runs = experts.chunk_by(|a, b| a.tiles.end == b.tiles.start);
    runs.filter_map(|run| Some(run.first()?.tiles.start..run.last()?.tiles.end))
}

impl CpuDevice {
    /// As [`crate::Device::mixture`]; the step has rows, and uses experts.
    pub(super) fn mix(&mut self, router: &PackedStack, experts: &CpuExperts, config: &ExpertConfig) {
        let (rows, hidden) = (self.rows(), self.widths.hidden);
        let [gate, up, _] = experts.formats();
        let formats = [router.layout().format(), gate, up];
        self.input.round(&mut self.compute, &formats, &self.arena.normed[..rows * hidden], hidden);
        self.route(router, config);
        self.trace(experts.layer);
        self.gather_input([gate, up]);
        let chosen = mem::take(&mut self.routing.experts);
        match &experts.place {
            Place::Memory(stacks) => {
                let all = chosen.iter().map(|expert| Matrices {
                    gate: stacks.gate.matrix(expert.index),
                    up: stacks.up.matrix(expert.index),
                    down: stacks.down.matrix(expert.index),
                });
                self.group(&chosen, &all.collect::<Vec<_>>());
            }
            Place::Store(_) => self.stream(experts.layer, &chosen),
        }
        self.routing.experts = chosen;
        if rows <= FEW_ROWS {
            let residual = &mut self.arena.residual[..rows * hidden];
            add_up(self.compute.isa, &self.routing, hidden, &self.arena.outputs, residual);
        }
    }

    /// The router's choices for all rows, sorted by expert. The input was rounded for the router.
    fn route(&mut self, router: &PackedStack, experts: &ExpertConfig) {
        let rows = self.rows();
        let (isa, count, used) = (self.compute.isa, router.layout().rows(), experts.used);
        let format = router.layout().format();
        self.input.gather(&mut self.compute, &[format], &self.step.identity[..rows], &self.step.tiles);
        let logits = &mut self.arena.router[..rows * count];
        let tiles = self.input.tiles(format);
        let product = Product { matrix: router.matrix(0), tiles, out: Disjoint::new(logits), add: false };
        multiply(&mut self.compute, &[product]);

        let normalised = experts.normalised;
        self.routing.choices.resize(rows * used, Default::default());
        let choices = Disjoint::new(&mut self.routing.choices);
        self.compute.each_row(logits, count, 16, &|row, logits| {
            // SAFETY: each row comes up once, and these are its choices.
            let chosen = unsafe { choices.part(row * used..(row + 1) * used) };
            choose_experts(isa, logits, normalised, chosen);
        });
        self.routing.sort(count, used);
    }

    fn trace(&mut self, layer: u32) {
        if let Some((_, step)) = &mut self.trace {
            let chosen = self.routing.experts.iter().map(|expert| expert.index as u32);
            step.layers.push((layer, chosen.collect()));
        }
    }

    /// Lays the rows out for gate and up, in the tiles of the routing.
    pub(super) fn gather_input(&mut self, formats: [BlockFormat; 2]) {
        let Routing { rows, tiles, .. } = &self.routing;
        // A single row is the same for all its experts.
        let parts = if self.step.rows.len() == 1 { &tiles[..1] } else { &tiles[..] };
        self.input.gather(&mut self.compute, &formats, rows, parts);
    }

    /// SiLU of gate times up for these experts, rounded and laid out for their down projections. The input was laid out.
    pub(super) fn inner(&mut self, experts: &[Expert], matrices: &[Matrices<'_>]) {
        let Some(Matrices { gate, up, down }) = matrices.first() else { return };
        let compute = &mut self.compute;
        let Routing { rows, tiles, .. } = &self.routing;
        let format = down.layout().format();
        let out = self.inner.rows(compute, format, rows.len(), down.layout().columns());
        let inner = Inner {
            experts,
            matrices,
            gate_tiles: self.input.tiles(gate.layout().format()),
            up_tiles: self.input.tiles(up.layout().format()),
            starts: tiles,
            out,
        };
        inner.run(compute);
        let have = self.step.identity.len();
        self.step.identity.extend(have..rows.len());
        let entries = &self.step.identity[..rows.len()];
        for run in runs(experts) {
            self.inner.gather_some(compute, &[format], entries, tiles, run);
        }
    }

    /// Computes some of the chosen experts.
    fn group(&mut self, experts: &[Expert], matrices: &[Matrices<'_>]) {
        let Some(first) = matrices.first() else { return };
        let (rows, format) = (self.rows(), first.down.layout().format());
        self.inner(experts, matrices);
        let outer = Outer { experts, matrices, routing: &self.routing, tiles: self.inner.tiles(format) };
        if rows <= FEW_ROWS {
            outer.run_few(&mut self.compute, &mut self.arena.outputs);
        } else {
            outer.run_many(&mut self.compute, &mut self.arena.residual[..rows * self.widths.hidden]);
        }
    }

    /// Computes the chosen experts as they come.
    fn stream(&mut self, layer: u32, chosen: &[Expert]) {
        let Some(streaming) = &mut self.streaming else { return };
        let store = Arc::clone(&streaming.store);
        let few = self.step.rows.len() <= FEW_ROWS;
        let (wanted, useless): (Vec<&Expert>, Vec<&Expert>) =
            chosen.iter().partition(|expert| is_wanted(&self.step, &self.routing, expert));
        let numbers: Vec<u32> = wanted.iter().map(|expert| expert.index as u32).collect();
        let order = if few { Order::AsTheyCome } else { Order::Ascending };
        let supply = store.supply(layer, &numbers, order).and_then(|supply| {
            streaming.read_ahead()?;
            Ok(supply)
        });
        useless.into_iter().for_each(|expert| self.leave_out(expert));
        let mut supply = match supply {
            Ok(supply) => supply,
            Err(error) => return wanted.into_iter().for_each(|expert| self.fail(expert, &error)),
        };
        let mut left = wanted;
        while supply.left() > 0 {
            let since = Instant::now();
            let come = supply.next(if few { usize::MAX } else { GROUP });
            self.step.waited += since.elapsed();
            let (mut experts, mut matrices) = (Vec::new(), Vec::new());
            for supplied in &come {
                let index = supplied.id.expert as usize;
                let Some(at) = left.iter().position(|expert| expert.index == index) else { continue };
                let expert = left.swap_remove(at);
                match &supplied.expert {
                    Ok(pin) => {
                        experts.push(expert.clone());
                        matrices.push(Matrices { gate: pin.gate(), up: pin.up(), down: pin.down() });
                    }
                    Err(error) => self.fail(expert, error),
                }
            }
            self.group(&experts, &matrices);
            // What only lost sequences wait for may take as long to fail as what they were lost for.
            if !left.iter().any(|expert| is_wanted(&self.step, &self.routing, expert)) {
                break;
            }
        }
        left.into_iter().for_each(|expert| self.leave_out(expert));
    }

    /// The rows of an expert that cannot be read are lost, and so are the sequences that they are of.
    fn fail(&mut self, expert: &Expert, error: &StoreError) {
        for entry in entries(&self.routing, expert) {
            let sequence = self.step.rows[self.routing.rows[entry]].sequence;
            if self.step.failed.iter().all(|failure| failure.sequence != sequence) {
                self.step.failed.push(SequenceFailure { sequence, reason: error.to_string() });
            }
        }
        self.leave_out(expert);
    }

    /// An expert adds nothing.
    fn leave_out(&mut self, expert: &Expert) {
        if self.rows() > FEW_ROWS {
            return;
        }
        let hidden = self.widths.hidden;
        for entry in entries(&self.routing, expert) {
            self.arena.outputs[entry * hidden..(entry + 1) * hidden].fill(0.0);
        }
    }

    /// As [`crate::Device::look_ahead`]: notes what is to be read once the coming mixture has asked for what it needs.
    pub(super) fn note_ahead(
        &mut self,
        norm: &[f32],
        epsilon: f32,
        router: &PackedStack,
        experts: &CpuExperts,
        config: &ExpertConfig,
    ) {
        let rows = self.rows();
        let Place::Store(_) = experts.place else { return };
        let chosen = rows.saturating_mul(config.used);
        let ahead = if chosen >= NEARLY_ALL.saturating_mul(config.count) {
            Ahead::All(experts.layer)
        } else if rows <= FEW_ROWS && rows > 0 {
            self.norm_rows(norm, epsilon);
            let (hidden, format) = (self.widths.hidden, [router.layout().format()]);
            self.input.round(&mut self.compute, &format, &self.arena.normed[..rows * hidden], hidden);
            self.route(router, config);
            let guessed = self.routing.experts.iter().map(|expert| expert.index as u32);
            Ahead::Some(experts.layer, guessed.collect())
        } else {
            Ahead::Nothing
        };
        if let Some(streaming) = &mut self.streaming {
            streaming.ahead = ahead;
        }
    }

    /// *normed* = RMS norm of *residual*.
    pub(super) fn norm_rows(&mut self, weight: &[f32], epsilon: f32) {
        let (isa, hidden, rows) = (self.compute.isa, self.widths.hidden, self.rows());
        let residual = &self.arena.residual;
        let normed = &mut self.arena.normed[..rows * hidden];
        self.compute.each_row(normed, hidden, 2, &|row, normed| {
            normed.copy_from_slice(&residual[row * hidden..(row + 1) * hidden]);
            rms_norm(isa, normed, weight, epsilon);
        });
    }
}

/// Entries of an expert in the routing.
fn entries(routing: &Routing, expert: &Expert) -> impl Iterator<Item = usize> {
    routing.tiles[expert.tiles.clone()].iter().flat_map(Range::clone)
}

/// Whether an expert has a row of a sequence that has not failed.
fn is_wanted(step: &Step, routing: &Routing, expert: &Expert) -> bool {
    step.failed.is_empty()
        || entries(routing, expert).any(|entry| {
            let sequence = step.rows[routing.rows[entry]].sequence;
            step.failed.iter().all(|failure| failure.sequence != sequence)
        })
}
