//! A GPU as a part of a device: the layers that are on it, from weights to logits.
//!
//! Operations record dispatches; what is recorded is sent when a command buffer is full, when the residual goes back to the
//! processor and at a step's end. Nothing is believed before its receipt was seen.
//!
//! | file | what |
//! |---|---|
//! | `live.rs` | what is on a device of one generation |
//! | `weights.rs` | weights, and what they are made of again |
//! | `rows.rs` | the rows of a step: generated ones and prompts |
//! | `arena.rs` | activations, laid out once for the largest step |
//! | `key.rs` | what a prepared kernel is remembered by |
//! | `attention.rs` | heads, keys and values, attention |
//! | `decode.rs` | the operations on generated rows |
//! | `prompt.rs` | the operations on prompts |
//! | `pages.rs` | keys and values to shared memory and back |

mod arena;
mod attention;
mod decode;
mod key;
mod live;
mod pages;
mod prompt;
mod rows;
mod weights;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_fault::{Class, Generation, Latch};
use unfazed_formats::ModelConfig;
use unfazed_formats::config::{ExpertConfig, RopeConfig};
use unfazed_kernels::attention::KvLayout;
use unfazed_kernels::vector::RopeFrequencies;
use unfazed_store::PackedStack;

use self::key::Operand;
use self::live::{Live, LiveConfig};
use self::pages::Snapshot;
use self::rows::Rows;
use self::weights::Copies;
pub use self::weights::{Experts, MatrixId, VectorId};
use super::adapter::AdapterInfo;
use super::budget::Budget;
use super::open::Gpu;
use super::queue::{Figures, Queue, Ticket};
use crate::{Batch, DeviceError, Fault, KvShape};

/// Opens the adapter, again and again.
pub type Opener = Box<dyn Fn() -> Result<Arc<Gpu>, DeviceError> + Send>;

/// How a GPU is set up.
pub struct GpuConfig<'a> {
    /// Opens it.
    pub open: Opener,
    /// Shape of the model.
    pub model: &'a ModelConfig,
    /// Shape of the KV pages of the whole model.
    pub kv: KvShape,
    /// Layers whose attention is here.
    pub layers: Vec<usize>,
    /// Most rows in a step.
    pub max_rows: usize,
    /// Most rows of a step that may want logits.
    pub max_logit_rows: usize,
    /// Most bytes of its memory.
    pub limit: u64,
    /// Threads that fill uploads.
    pub threads: usize,
    /// How long a command buffer may take, and what is known of kernels.
    pub budget: Budget,
    /// How long a step may take before the GPU counts as hung, by what kind of GPU it is.
    pub patience: Box<dyn Fn(&AdapterInfo) -> Duration>,
}

/// A model's shape, as far as kernels are made for it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) vocab: usize,
    pub(super) layout: KvLayout,
    pub(super) experts: Option<ExpertConfig>,
    pub(super) feed_forward: usize,
    pub(super) rope: RopeConfig,
    pub(super) max_rows: usize,
    pub(super) max_logit_rows: usize,
    pub(super) pages: usize,
}

impl Shape {
    /// Numbers of a row's queries.
    fn query(&self) -> usize {
        self.heads * self.layout.head_dim()
    }

    /// Numbers of a row's keys, and of its values.
    fn kv(&self) -> usize {
        self.layout.kv_heads() * self.layout.head_dim()
    }

    /// Experts of a row; 1 in a dense network.
    fn used(&self) -> usize {
        self.experts.map_or(1, |experts| experts.used)
    }

    /// Columns of what is multiplied.
    fn columns(&self, operand: Operand) -> usize {
        match operand {
            Operand::Residual => self.hidden,
            Operand::Context => self.query(),
            Operand::Inner => self.feed_forward,
        }
    }
}

/// A GPU.
pub struct GpuDevice {
    open: Opener,
    shape: Shape,
    frequencies: RopeFrequencies,
    /// Layers whose keys and values are here.
    layers: Vec<usize>,
    /// Bytes of a layer's share of a page.
    page_bytes: usize,
    limit: u64,
    threads: usize,
    patience: Duration,
    copies: Copies,
    latch: Latch,
    /// `None` after a fault, until it is made again.
    live: Option<Live>,
    rows: Rows,
    /// The norm that the next products are of.
    norm: Option<(VectorId, f32)>,
    /// The norms of heads that the next attention begins with.
    head_norms: Option<(VectorId, VectorId, f32)>,
    logits: Vec<super::readback::Readback>,
    snapshots: VecDeque<Snapshot>,
    scratch: Vec<f32>,
    sent: Option<Ticket>,
}

/// Nothing can be done before the device is made again.
fn gone() -> DeviceError {
    DeviceError::Fault(Fault {
        class: Class::DeviceLost,
        evidence: "the GPU was given up and not opened again".to_owned(),
    })
}

impl GpuDevice {
    /// Opens a GPU and lays out activations, keys and values.
    ///
    /// # Errors
    ///
    /// The driver's; memory that does not suffice; a model that it cannot be laid out for.
    pub fn new(config: GpuConfig<'_>) -> Result<GpuDevice, DeviceError> {
        let GpuConfig { open, model, kv, layers, max_rows, max_logit_rows, limit, threads, budget, patience } =
            config;
        let setup = |text: String| DeviceError::Setup(text);
        // A page here is the blocks of one layer.
        let layout = KvLayout::new(1, kv.kv_heads, kv.head_dim, kv.page_tokens, kv.types)
            .ok_or_else(|| setup(format!("KV pages cannot be laid out as {kv:?}")))?;
        let shape = Shape {
            hidden: model.hidden,
            heads: model.heads,
            vocab: model.vocab,
            layout,
            experts: model.experts,
            feed_forward: model.experts.map_or(model.feed_forward, |experts| experts.feed_forward),
            rope: model.rope.clone(),
            max_rows,
            max_logit_rows,
            pages: kv.pages,
        };
        if !model.hidden.is_multiple_of(32)
            || !shape.feed_forward.is_multiple_of(32)
            || !kv.head_dim.is_multiple_of(16)
        {
            return Err(setup(format!(
                "rows of {} and {} numbers and heads of {} are no whole blocks",
                model.hidden, shape.feed_forward, kv.head_dim
            )));
        }
        let page_bytes = layout.page_bytes();
        let gpu = open()?;
        let patience = patience(&gpu.info);
        let mut device = GpuDevice {
            open,
            frequencies: RopeFrequencies::new(&shape.rope),
            shape,
            layers,
            page_bytes,
            limit,
            threads,
            patience,
            copies: Copies::default(),
            latch: Latch::default(),
            live: None,
            rows: Rows::default(),
            norm: None,
            head_norms: None,
            logits: Vec::new(),
            snapshots: VecDeque::new(),
            scratch: Vec::new(),
            sent: None,
        };
        device.live = Some(device.laid_out(gpu, budget)?);
        Ok(device)
    }

    /// A device of the present generation.
    fn laid_out(&self, gpu: Arc<Gpu>, budget: Budget) -> Result<Live, DeviceError> {
        let generation = self.latch.generation();
        let queue = Queue::new(Arc::clone(&gpu), generation, budget, self.patience)?;
        let (limit, threads, patience) = (self.limit, self.threads, self.patience);
        let config = LiveConfig { gpu, generation, queue, limit, threads, patience };
        let pages = vec![self.page_bytes as u64 * self.shape.pages as u64; self.layers.len()];
        Live::new(config, &pages, &self.shape)
    }

    /// Which GPU.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.live.as_ref().map(|live| &*live.gpu)
    }

    /// Whether nothing was computed on the present device yet.
    pub fn is_cold(&self) -> bool {
        self.live.as_ref().is_some_and(Live::is_cold)
    }

    /// Bytes of its memory that are used.
    pub fn used(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.memory.used())
    }

    /// What was submitted so far.
    pub fn figures(&self) -> Figures {
        self.live.as_ref().map(|live| live.queue.figures()).unwrap_or_default()
    }

    /// What is known of how long kernels take.
    pub fn budget(&self) -> Option<&Budget> {
        self.live.as_ref().map(|live| live.queue.budget())
    }

    /// Which device it is, of those that were opened.
    pub fn generation(&self) -> Generation {
        self.latch.generation()
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    fn live(&mut self) -> Result<&mut Live, DeviceError> {
        self.live.as_mut().ok_or_else(gone)
    }

    /// Uploads a matrix, or a stack of equal ones. The host's copy stays, for the next device.
    ///
    /// # Errors
    ///
    /// Memory that does not suffice, or a fault.
    pub fn load_matrix(&mut self, stack: Arc<PackedStack>) -> Result<MatrixId, DeviceError> {
        let deadline = self.deadline();
        let id = MatrixId(self.copies.matrices.len() as u32);
        weights::upload_matrix(self.live()?, &stack, deadline)?;
        self.copies.matrices.push(stack);
        Ok(id)
    }

    /// Uploads a vector.
    ///
    /// # Errors
    ///
    /// As for a matrix.
    pub fn load_vector(&mut self, values: &[f32]) -> Result<VectorId, DeviceError> {
        let deadline = self.deadline();
        let id = VectorId(self.copies.vectors.len() as u32);
        weights::upload_vector(self.live()?, values, deadline)?;
        self.copies.vectors.push(values.to_vec());
        Ok(id)
    }

    /// Begins a step of a batch that was checked, and sends what kernels need to know of its rows.
    ///
    /// # Errors
    ///
    /// A fault.
    pub fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        self.rows.take(batch);
        (self.norm, self.head_norms) = (None, None);
        self.logits.clear();
        let GpuDevice { live, rows, frequencies, .. } = self;
        let Live { queue, decode, prompt, .. } = live.as_mut().ok_or_else(gone)?;
        decode.send_step(queue, frequencies, batch, &rows.decode)?;
        prompt.send_step(queue, frequencies, batch, &rows.prompt)
    }

    /// The residual of all rows of the batch comes from the processor.
    ///
    /// # Errors
    ///
    /// A fault.
    pub fn write_residual(&mut self, residual: &[f32]) -> Result<(), DeviceError> {
        let GpuDevice { live, rows, shape, scratch, .. } = self;
        let live = live.as_mut().ok_or_else(gone)?;
        for (side, arena) in [(&rows.decode, &live.decode), (&rows.prompt, &live.prompt)] {
            side.gather(residual, shape.hidden, scratch);
            live.queue.write(&arena.residual, 0, bytemuck::cast_slice(scratch));
        }
        Ok(())
    }

    /// The residual goes to the processor, after all that was recorded.
    ///
    /// # Errors
    ///
    /// A fault of anything of it.
    pub fn read_residual(&mut self, residual: &mut [f32]) -> Result<(), DeviceError> {
        let deadline = self.deadline();
        let GpuDevice { live, rows, shape, .. } = self;
        let live = live.as_mut().ok_or_else(gone)?;
        let mut reads = Vec::with_capacity(2);
        for (side, arena) in [(&rows.decode, &live.decode), (&rows.prompt, &live.prompt)] {
            let bytes = 4 * (side.len() * shape.hidden) as u64;
            if bytes > 0 {
                reads.push((side, live.queue.read(&arena.residual, 0, bytes)));
            }
        }
        for (side, read) in reads {
            live.queue.collect(read, deadline, |bytes| {
                let own: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
                side.scatter(&own, shape.hidden, residual);
            })?;
        }
        Ok(())
    }

    /// The products that follow are of the RMS norm of the residual.
    ///
    /// # Errors
    ///
    /// None.
    pub fn norm(&mut self, weight: VectorId, epsilon: f32) -> Result<(), DeviceError> {
        self.norm = Some((weight, epsilon));
        Ok(())
    }

    /// See [`crate::Device::norm_heads`].
    ///
    /// # Errors
    ///
    /// None.
    pub fn norm_heads(&mut self, q: VectorId, k: VectorId, epsilon: f32) -> Result<(), DeviceError> {
        self.head_norms = Some((q, k, epsilon));
        Ok(())
    }

    /// See [`crate::Device::rotate`]: the attention that follows does it.
    ///
    /// # Errors
    ///
    /// Another rotation than the model's.
    pub fn rotate(&mut self, rope: &RopeConfig) -> Result<(), DeviceError> {
        match *rope == self.shape.rope {
            true => Ok(()),
            false => Err(DeviceError::Batch("a rotation that this GPU was not laid out for".to_owned())),
        }
    }

    /// See [`crate::Device::project_qkv`].
    ///
    /// # Errors
    ///
    /// A fault.
    pub fn project_qkv(&mut self, q: MatrixId, k: MatrixId, v: MatrixId) -> Result<(), DeviceError> {
        let norm = self.take_norm()?;
        self.prompt_qkv([q, k, v], norm)?;
        self.decode_qkv([q, k, v], norm)
    }

    /// See [`crate::Device::attend`].
    ///
    /// # Errors
    ///
    /// A fault, or a layer whose keys and values are not here.
    pub fn attend(&mut self, layer: usize) -> Result<(), DeviceError> {
        let norms = self.head_norms.take();
        let own = self.layers.iter().position(|other| *other == layer);
        let own = own.ok_or_else(|| DeviceError::Batch(format!("layer {layer} is not on this GPU")))?;
        // All keys and values are stored first: a generated row may follow rows of its own prompt.
        self.store_heads(own, norms)?;
        self.prompt_attention(own)?;
        self.decode_attention(own)?;
        match own {
            // The GPU begins while the rest of the step is recorded.
            0 => self.submit(),
            _ => Ok(()),
        }
    }

    /// See [`crate::Device::project_context`].
    ///
    /// # Errors
    ///
    /// A fault.
    pub fn project_context(&mut self, w: MatrixId) -> Result<(), DeviceError> {
        self.prompt_context(w)?;
        self.decode_context(w)
    }

    /// See [`crate::Device::feed_forward`].
    ///
    /// # Errors
    ///
    /// A fault.
    pub fn feed_forward(&mut self, gate: MatrixId, up: MatrixId, down: MatrixId) -> Result<(), DeviceError> {
        let norm = self.take_norm()?;
        self.prompt_network(gate, up, down, norm)?;
        self.decode_network(gate, up, down, norm)
    }

    /// See [`crate::Device::mixture`].
    ///
    /// # Errors
    ///
    /// A fault.
    pub fn mixture(
        &mut self,
        router: MatrixId,
        experts: &Experts,
        config: &ExpertConfig,
    ) -> Result<(), DeviceError> {
        let norm = self.take_norm()?;
        self.prompt_mixture(router, experts, config, norm)?;
        self.decode_mixture(router, experts, config, norm)
    }

    /// See [`crate::Device::output`].
    ///
    /// # Errors
    ///
    /// A fault.
    pub fn output(&mut self, norm: VectorId, epsilon: f32, table: MatrixId) -> Result<(), DeviceError> {
        self.norm = None;
        self.list_logits(norm, epsilon, table)
    }

    fn take_norm(&mut self) -> Result<(VectorId, f32), DeviceError> {
        self.norm.take().ok_or_else(|| DeviceError::Batch("products without a norm before them".to_owned()))
    }

    /// Sends what is recorded.
    ///
    /// # Errors
    ///
    /// A fault, of this or of anything before it.
    pub fn submit(&mut self) -> Result<(), DeviceError> {
        self.sent = Some(self.live()?.queue.submit()?);
        Ok(())
    }

    /// Ends a step: waits for everything that was sent. `logits`, if they are here: `[rows that asked, vocab]`.
    ///
    /// # Errors
    ///
    /// A fault of anything of the step.
    pub fn finish(&mut self, logits: Option<&mut Vec<f32>>) -> Result<(), DeviceError> {
        let deadline = self.deadline();
        let reads = mem::take(&mut self.logits);
        let GpuDevice { live, rows, shape, sent, .. } = self;
        let live = live.as_mut().ok_or_else(gone)?;
        if let Some(logits) = logits {
            logits.resize(rows.logit_rows() * shape.vocab, 0.0);
            let places: Vec<&[usize]> = [&rows.decode, &rows.prompt]
                .iter()
                .map(|side| &side.places[..])
                .filter(|p| !p.is_empty())
                .collect();
            for (read, places) in reads.into_iter().zip(places) {
                live.queue.collect(read, deadline, |bytes| take_rows(bytes, places, shape.vocab, logits))?;
            }
        }
        match sent.take() {
            Some(ticket) => Ok(live.queue.verdict(ticket, deadline).executed()?),
            None => Ok(()),
        }
    }

    /// Another device in the place of one that had a fault, with the same weights; keys and values are gone.
    ///
    /// # Errors
    ///
    /// No device can be had in this process.
    pub fn rebuild(&mut self, after: Class) -> Result<(), DeviceError> {
        self.snapshots.clear();
        self.logits.clear();
        self.sent = None;
        self.latch.report(self.latch.generation(), after);
        let budget = self.give_up(after);
        self.latch.rebuilt()?;
        let mut live = self.laid_out((self.open)()?, budget)?;
        self.copies.upload(&mut live, Instant::now() + self.patience.max(Duration::from_secs(60)))?;
        self.live = Some(live);
        Ok(())
    }

    /// Ends the present device, and keeps what it has learnt. A queue that hangs is left alone by [`Gpu`]: its end would be waited
    /// for.
    fn give_up(&mut self, after: Class) -> Budget {
        let Some(mut live) = self.live.take() else { return Budget::default() };
        let mut budget = mem::take(live.queue.budget_mut());
        if matches!(after, Class::Timeout | Class::Interactivity) {
            budget.tripped();
        }
        // Drivers panic on devices that are lost.
        let _ = super::verdict::guarded(move || drop(live));
        budget
    }
}

/// Rows of logits to their places.
fn take_rows(bytes: &[u8], places: &[usize], vocab: usize, logits: &mut [f32]) {
    let row_bytes = (4 * vocab).max(4);
    for (place, row) in places.iter().zip(bytes.chunks_exact(row_bytes)) {
        if let Some(to) = logits.get_mut(place * vocab..(place + 1) * vocab) {
            bytemuck::cast_slice_mut(to).copy_from_slice(row);
        }
    }
}
