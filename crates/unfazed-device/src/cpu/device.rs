//! The operations of the CPU device.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use unfazed_fault::Class;
use unfazed_formats::ModelConfig;
use unfazed_formats::config::{ExpertConfig, RopeConfig};
use unfazed_kernels::Isa;
use unfazed_kernels::panel::unpack_row;
use unfazed_kernels::vector::{RopeFrequencies, rms_norm, rotate};
use unfazed_store::experts::trace::Step as TracedStep;
use unfazed_store::experts::{ExpertStore, LayerExperts};
use unfazed_store::{Buffer, Loader, MatrixSource, PackedStack, VectorSource};
use unfazed_wire::Threads;

use super::arena::{Arena, Widths};
use super::attention::Attention;
use super::compute::Compute;
use super::dense::{Product, multiply};
use super::digest::digests;
use super::disjoint::Disjoint;
use super::experts::{CpuExperts, Streaming, TraceSink};
use super::feed_forward::{Expert, Matrices};
use super::operand::Operand;
use super::pages::{Blocks, Pages};
use super::placement;
use super::pool::Pool;
use super::routing::Routing;
use super::step::{Limits, Step};
use crate::{Batch, Device, DeviceError, Generation, KvShape, PageId, PageSpan, Part, StepOutput};

/// How a CPU device is set up.
pub struct CpuConfig<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// Compute threads, the caller among them; the device is used by the thread that makes it.
    pub threads: Threads,
    /// Shape of the model.
    pub model: &'a ModelConfig,
    /// Shape of the KV pages; layers, heads and head width are the model's.
    pub kv: KvShape,
    /// Most rows in a step.
    pub max_rows: usize,
    /// Most rows of a step that may want logits.
    pub max_logit_rows: usize,
    /// Test mode: activations, keys and values stay f32, for comparison with float references. Slow.
    pub float_activations: bool,
    /// What weights are read with.
    pub loader: Loader,
    /// Memory for the KV pages, as an earlier device left it; `None` takes memory of the device's own. Not used with
    /// float activations.
    pub kv_memory: Option<Buffer<u8>>,
    /// Where experts come from, if not all of them are loaded.
    pub experts: Option<Arc<ExpertStore>>,
    /// Is told which experts each step used.
    pub trace: Option<TraceSink>,
    /// Goes up with each layer that is computed and each page that is checked: in a long step it tells a stuck device
    /// from a slow one.
    pub pulse: Arc<AtomicU64>,
}

/// The CPU as a device.
pub struct CpuDevice {
    pub(super) compute: Compute,
    loader: Loader,
    threads: Threads,
    limits: Limits,
    pub(super) widths: Widths,
    pub(super) arena: Arena,
    pages: Pages,
    pub(super) step: Step,
    /// What enters matrices from the residual's side.
    pub(super) input: Operand,
    /// What enters a down projection.
    pub(super) inner: Operand,
    pub(super) routing: Routing,
    pub(super) streaming: Option<Streaming>,
    /// With what is known of the step in progress.
    pub(super) trace: Option<(TraceSink, TracedStep)>,
    rope: Option<(RopeConfig, RopeFrequencies)>,
    /// The step's rotations are in the arena.
    rope_ready: bool,
    pulse: Arc<AtomicU64>,
}

impl CpuDevice {
    /// Starts the threads and lays out activations and pages for the largest step.
    pub fn new(config: CpuConfig<'_>) -> Result<CpuDevice, DeviceError> {
        let CpuConfig { isa, threads, model, kv, max_rows, max_logit_rows, float_activations, .. } = config;
        let CpuConfig { loader, kv_memory, experts, trace, pulse, .. } = config;
        let setup = |text: String| DeviceError::Setup(text);
        if !isa.available() {
            return Err(setup(format!("this processor does not run {}", isa.name())));
        }
        if (kv.layers, kv.kv_heads, kv.head_dim) != (model.layers, model.kv_heads, model.head_dim) {
            return Err(setup(format!("KV pages are laid out as {kv:?}, which is not the model's shape")));
        }
        if model.kv_heads == 0 || !model.heads.is_multiple_of(model.kv_heads) || model.heads == 0 {
            return Err(setup(format!("{} heads share {} key heads", model.heads, model.kv_heads)));
        }
        if model.rope.dimensions > model.head_dim || !model.rope.dimensions.is_multiple_of(2) {
            return Err(setup(format!("{} of {} dimensions rotate", model.rope.dimensions, model.head_dim)));
        }
        let widths = Widths::of(model).ok_or_else(|| setup("the heads are too wide".to_owned()))?;
        let pages = Pages::new(&kv, float_activations, kv_memory)
            .ok_or_else(|| setup(format!("KV pages cannot be laid out as {kv:?}")))??;
        let arena = Arena::new(&widths, max_rows, max_logit_rows)?;
        let pool =
            Pool::new(&threads).map_err(|source| DeviceError::Threads { threads: threads.most(), source })?;
        let group = model.heads / model.kv_heads;
        let limits = Limits { rows: max_rows, logit_rows: max_logit_rows, vocab: model.vocab, kv, group };
        Ok(CpuDevice {
            compute: Compute::new(isa, float_activations, pool, group, model.head_dim),
            loader: placement::place_readers(loader, &threads),
            threads,
            limits,
            widths,
            arena,
            pages,
            step: Step::new(&limits),
            input: Operand::default(),
            inner: Operand::default(),
            routing: Routing::default(),
            streaming: experts.map(Streaming::new),
            trace: trace.map(|sink| (sink, TracedStep::default())),
            rope: None,
            rope_ready: false,
            pulse,
        })
    }

    /// All keys and values are gone, as they are with a device that was lost.
    #[cfg(feature = "sim")]
    pub fn lose_pages(&mut self) {
        self.pages.memory.fill(0xa5);
    }

    /// The residual of the step's rows, `[rows, hidden]`.
    pub(crate) fn residual(&self) -> &[f32] {
        &self.arena.residual[..self.rows() * self.widths.hidden]
    }

    /// The same, to be written.
    pub(crate) fn residual_mut(&mut self) -> &mut [f32] {
        let len = self.rows() * self.widths.hidden;
        &mut self.arena.residual[..len]
    }

    /// Keys and values of a layer in a page: the blocks of its heads.
    pub(crate) fn layer_page(&self, layer: usize, page: PageId) -> &[u8] {
        self.pages.layer(layer, page)
    }

    /// The same, to be written.
    pub(crate) fn layer_page_mut(&mut self, layer: usize, page: PageId) -> &mut [u8] {
        self.pages.layer_mut(layer, page)
    }

    /// What weights were read with.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Rows of the step.
    pub(super) fn rows(&self) -> usize {
        self.step.rows.len()
    }

    /// Adds products of all rows of an operand with a matrix to the residual.
    fn add_product(&mut self, inner: bool, matrix: &PackedStack) {
        let rows = self.rows();
        let operand = if inner { &self.inner } else { &self.input };
        let residual = &mut self.arena.residual[..rows * self.widths.hidden];
        let product = Product {
            matrix: matrix.matrix(0),
            tiles: operand.tiles(matrix.layout().format()),
            out: Disjoint::new(residual),
            add: true,
        };
        multiply(&mut self.compute, &[product]);
    }

    /// Cosines and sines for the positions of all rows.
    fn prepare_rotation(&mut self, rope: &RopeConfig) {
        if self.rope.as_ref().is_none_or(|(config, _)| config != rope) {
            self.rope = Some((rope.clone(), RopeFrequencies::new(rope)));
            self.rope_ready = false;
        }
        let (Some((_, frequencies)), false) = (&self.rope, self.rope_ready) else { return };
        let width = (2 * frequencies.pairs()).max(1);
        let rows = &self.step.rows;
        let tables = &mut self.arena.rope[..rows.len() * width];
        // A sine with its cosine costs as much as some forty other numbers.
        self.compute.each_row(tables, width, 20, &|row, table| {
            frequencies.table(rows[row].position, table);
        });
        self.rope_ready = true;
    }
}

impl Device for CpuDevice {
    type Matrix = PackedStack;
    type Vector = Vec<f32>;
    type Experts = CpuExperts;

    fn load_matrix(&mut self, _: Part, source: &MatrixSource) -> Result<PackedStack, DeviceError> {
        Ok(self.loader.load_matrix(source)?)
    }

    fn load_vector(&mut self, _: Part, source: &VectorSource) -> Result<Vec<f32>, DeviceError> {
        Ok(self.loader.load_vector(source)?)
    }

    fn load_experts(&mut self, layer: usize, experts: &LayerExperts) -> Result<CpuExperts, DeviceError> {
        let LayerExperts { gate, up, down } = experts;
        if self.streaming.is_some() {
            return Ok(CpuExperts::in_store(layer, [gate.format, up.format, down.format]));
        }
        let stacks =
            [self.loader.load_matrix(gate)?, self.loader.load_matrix(up)?, self.loader.load_matrix(down)?];
        Ok(CpuExperts::in_memory(layer, stacks))
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        if let Some((_, step)) = &mut self.trace {
            *step = TracedStep { tokens: batch.rows.len() as u32, layers: Vec::new() };
        }
        self.rope_ready = false;
        let Threads { decode, batch: many, .. } = self.threads;
        self.compute.take_part(if batch.rows.len() == 1 { decode } else { many });
        self.step.begin(batch, &self.limits)
    }

    fn embed(&mut self, table: &PackedStack) {
        let (hidden, rows) = (self.widths.hidden, &self.step.rows);
        let table = table.matrix(0);
        let residual = &mut self.arena.residual[..rows.len() * hidden];
        self.compute.each_row(residual, hidden, 8, &|row, out| {
            unpack_row(&table, rows[row].token as usize, out);
        });
    }

    fn norm(&mut self, weight: &Vec<f32>, epsilon: f32) {
        self.norm_rows(weight, epsilon);
    }

    fn project_qkv(&mut self, q: &PackedStack, k: &PackedStack, v: &PackedStack) {
        let (rows, hidden) = (self.rows(), self.widths.hidden);
        let formats = [q, k, v].map(|matrix| matrix.layout().format());
        let input = &mut self.input;
        input.round(&mut self.compute, &formats, &self.arena.normed[..rows * hidden], hidden);
        input.gather(&mut self.compute, &formats, &self.step.identity[..rows], &self.step.tiles);
        let out = [&mut self.arena.query, &mut self.arena.key, &mut self.arena.value];
        let products = [q, k, v].into_iter().zip(out).map(|(matrix, out)| Product {
            matrix: matrix.matrix(0),
            tiles: self.input.tiles(matrix.layout().format()),
            out: Disjoint::new(&mut out[..]),
            add: false,
        });
        let products: Vec<Product<'_>> = products.collect();
        multiply(&mut self.compute, &products);
    }

    fn norm_heads(&mut self, q: &Vec<f32>, k: &Vec<f32>, epsilon: f32) {
        let (isa, rows, dim) = (self.compute.isa, self.rows(), self.widths.head_dim);
        for (heads, width, weight) in
            [(&mut self.arena.query, self.widths.query, q), (&mut self.arena.key, self.widths.kv, k)]
        {
            self.compute.each_row(&mut heads[..rows * width], width, 2, &|_, heads| {
                heads.chunks_mut(dim).for_each(|head| rms_norm(isa, head, weight, epsilon));
            });
        }
    }

    fn rotate(&mut self, rope: &RopeConfig) {
        self.prepare_rotation(rope);
        let (isa, rows, dim) = (self.compute.isa, self.rows(), self.widths.head_dim);
        let tables = &self.arena.rope;
        for (heads, width) in
            [(&mut self.arena.query, self.widths.query), (&mut self.arena.key, self.widths.kv)]
        {
            self.compute.each_row(&mut heads[..rows * width], width, 2, &|row, heads| {
                let table = &tables[row * rope.dimensions..(row + 1) * rope.dimensions];
                rotate(isa, rope.pairing, table, dim, heads);
            });
        }
    }

    fn attend(&mut self, layer: usize) {
        self.pulse.fetch_add(1, Ordering::Relaxed);
        let Pages { layout, memory } = &mut self.pages;
        let (query, key, value) = (&self.arena.query[..], &self.arena.key[..], &self.arena.value[..]);
        let (step, group) = (&self.step, self.limits.group);
        let context = Disjoint::new(&mut self.arena.context[..]);
        let blocks = Blocks { layout, layer, memory: Disjoint::new(&mut memory[..]) };
        let attention = Attention { step, blocks, group, query, key, value, context };
        attention.run(&mut self.compute, &mut self.arena.partials);
    }

    fn project_context(&mut self, w: &PackedStack) {
        let (rows, width) = (self.rows(), self.widths.query);
        let format = [w.layout().format()];
        self.input.round(&mut self.compute, &format, &self.arena.context[..rows * width], width);
        self.input.gather(&mut self.compute, &format, &self.step.identity[..rows], &self.step.tiles);
        self.add_product(false, w);
    }

    fn feed_forward(&mut self, gate: &PackedStack, up: &PackedStack, down: &PackedStack) {
        let (rows, hidden) = (self.rows(), self.widths.hidden);
        let formats = [gate.layout().format(), up.layout().format()];
        self.input.round(&mut self.compute, &formats, &self.arena.normed[..rows * hidden], hidden);
        self.routing.everyone(rows, &self.step.tiles);
        if rows > 0 {
            self.gather_input(formats);
            let network = Expert { index: 0, tiles: 0..self.routing.tiles.len() };
            let matrices = Matrices { gate: gate.matrix(0), up: up.matrix(0), down: down.matrix(0) };
            self.inner(&[network], &[matrices]);
            self.add_product(true, down);
        }
    }

    fn mixture(&mut self, router: &PackedStack, experts: &CpuExperts, config: &ExpertConfig) {
        if self.rows() > 0 && config.used > 0 {
            self.mix(router, experts, config);
        }
    }

    fn look_ahead(
        &mut self,
        norm: &Vec<f32>,
        epsilon: f32,
        router: &PackedStack,
        experts: &CpuExperts,
        config: &ExpertConfig,
    ) {
        self.note_ahead(norm, epsilon, router, experts, config);
    }

    fn output(&mut self, norm: &Vec<f32>, epsilon: f32, table: &PackedStack) {
        let (isa, hidden, wanted) = (self.compute.isa, self.widths.hidden, &self.step.logits);
        let residual = &self.arena.residual;
        let normed = &mut self.arena.normed[..wanted.len() * hidden];
        self.compute.each_row(normed, hidden, 2, &|i, normed| {
            normed.copy_from_slice(&residual[wanted[i] * hidden..(wanted[i] + 1) * hidden]);
            rms_norm(isa, normed, norm, epsilon);
        });
        let format = [table.layout().format()];
        let normed = &self.arena.normed[..wanted.len() * hidden];
        self.input.round(&mut self.compute, &format, normed, hidden);
        let identity = &self.step.identity[..wanted.len()];
        self.input.gather(&mut self.compute, &format, identity, &self.step.logit_tiles);
        let product = Product {
            matrix: table.matrix(0),
            tiles: self.input.tiles(format[0]),
            out: Disjoint::new(&mut self.arena.logits[..]),
            add: false,
        };
        multiply(&mut self.compute, &[product]);
    }

    fn digests(&mut self, spans: &[PageSpan]) -> Result<Vec<u64>, DeviceError> {
        digests(&mut self.compute, &self.pages, &self.limits.kv, spans, &self.pulse)
    }

    fn finish(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        if let Some((sink, step)) = &mut self.trace {
            sink(step);
        }
        let logits = &self.arena.logits[..self.step.logits.len() * self.widths.vocab];
        Ok(StepOutput { logits, failures: &self.step.failed, waited: self.step.waited })
    }

    fn give_back(&mut self, first: PageId, count: usize) -> std::io::Result<u64> {
        self.pages.give_back(first, count)
    }

    fn generation(&self) -> Generation {
        Generation::default()
    }

    fn rebuild(&mut self, _: Class) -> Result<(), DeviceError> {
        // A processor has nothing to be made again: the next step computes.
        Ok(())
    }
}
