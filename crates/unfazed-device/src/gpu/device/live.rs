//! What is on a device of one generation: all of it goes when the device does.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_fault::Generation;
use unfazed_kernels::panel::PanelLayout;

use super::Shape;
use super::arena::{Arena, PromptArena, words};
use super::key::{Form, Key, Mode, Operand};
use super::weights::{MatrixId, VectorId};
use crate::DeviceError;
use crate::gpu::budget::Cost;
use crate::gpu::kernel::{Kernel, Pipeline};
use crate::gpu::kernels::shard::Shard;
use crate::gpu::memory::{Bound, Buffer, Group, Memory, Ready};
use crate::gpu::open::Gpu;
use crate::gpu::queue::Queue;
use crate::gpu::upload::Uploader;

/// A matrix, or a stack of equal ones, on the device.
pub(super) struct Matrix {
    pub(super) layout: PanelLayout,
    pub(super) parts: usize,
    pub(super) buffer: Ready<Buffer>,
}

impl Matrix {
    /// Panels, or experts, that are bound together, and where their bytes are.
    fn shards(&self, gpu: &Gpu) -> Vec<Shard> {
        match self.parts {
            1 => Shard::divide(self.layout.panels(), self.layout.panel_bytes(), &gpu.abilities),
            parts => Shard::divide(parts, self.layout.bytes(), &gpu.abilities),
        }
    }

    /// All of it.
    pub(super) fn all(&self) -> Bound<'_> {
        Bound::from(&self.buffer)
    }

    /// A shard of it.
    pub(super) fn bound(&self, shard: Shard) -> Bound<'_> {
        let piece = if self.parts == 1 { self.layout.panel_bytes() } else { self.layout.bytes() } as u64;
        match NonZeroU64::new(piece * u64::from(shard.count)) {
            Some(bytes) => Bound::part(&self.buffer, piece * u64::from(shard.first), bytes),
            None => Bound::from(&self.buffer),
        }
    }
}

/// A kernel with its buffers.
struct Prepared {
    pipeline: Arc<Pipeline>,
    group: Group,
    shard: Shard,
}

/// A device and everything on it.
pub(super) struct Live {
    pub(super) gpu: Arc<Gpu>,
    pub(super) memory: Memory,
    pub(super) queue: Queue,
    pub(super) uploader: Uploader,
    pub(super) matrices: Vec<Matrix>,
    pub(super) vectors: Vec<Ready<Buffer>>,
    /// Keys and values, one buffer for each layer whose attention is here: `[page][kv head]` block.
    pub(super) kv: Vec<Ready<Buffer>>,
    pub(super) decode: Arena,
    pub(super) prompt: Arena,
    pub(super) many: PromptArena,
    /// Parts of attentions over many positions.
    pub(super) parts: Ready<Buffer>,
    /// Rows of prompts as matrices want them.
    pub(super) rounded: HashMap<(Operand, Form), Vec<Ready<Buffer>>>,
    /// Norm weights of queries and keys, one behind the other.
    pub(super) head_norms: HashMap<(VectorId, VectorId), Ready<Buffer>>,
    pipelines: HashMap<String, Arc<Pipeline>>,
    prepared: HashMap<Key, Vec<Prepared>>,
}

/// What a device is made with.
pub(super) struct LiveConfig {
    pub(super) gpu: Arc<Gpu>,
    pub(super) generation: Generation,
    pub(super) queue: Queue,
    pub(super) limit: u64,
    pub(super) threads: usize,
    pub(super) patience: Duration,
}

impl Live {
    /// A device with room for activations, keys and values, and no weights.
    pub(super) fn new(config: LiveConfig, kv: &[u64], shape: &Shape) -> Result<Live, DeviceError> {
        let LiveConfig { gpu, generation, queue, limit, threads, patience } = config;
        let memory = Memory::new(Arc::clone(&gpu), generation, limit);
        let kv = kv.iter().map(|bytes| memory.scratch("KV pages", *bytes)).collect::<Result<_, _>>()?;
        let [decode, prompt] = [Arena::new(&memory, shape)?, Arena::new(&memory, shape)?];
        let many = PromptArena::new(&memory, shape)?;
        let parts = memory.scratch("parts of attentions", words(shape.parts()?, 1))?;
        let uploader = Uploader::new(&queue, threads, patience)?;
        Ok(Live {
            gpu,
            memory,
            queue,
            uploader,
            matrices: Vec::new(),
            vectors: Vec::new(),
            kv,
            decode,
            prompt,
            many,
            parts,
            rounded: HashMap::new(),
            head_norms: HashMap::new(),
            pipelines: HashMap::new(),
            prepared: HashMap::new(),
        })
    }

    /// Whether no kernel was compiled yet.
    pub(super) fn is_cold(&self) -> bool {
        self.pipelines.is_empty()
    }

    /// A new buffer with these bytes.
    pub(super) fn upload(
        &mut self,
        label: &str,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<Ready<Buffer>, DeviceError> {
        let target = self.memory.blank(label, bytes.len() as u64)?;
        let pending = self.uploader.fill(&mut self.queue, target, bytes)?;
        pending.ready(&mut self.queue, deadline)
    }

    /// The activations of rows of a mode.
    pub(super) fn arena(&self, mode: Mode) -> &Arena {
        match mode {
            Mode::Decode => &self.decode,
            Mode::Prompt => &self.prompt,
        }
    }

    pub(super) fn matrix(&self, id: MatrixId) -> Result<&Matrix, DeviceError> {
        self.matrices.get(id.0 as usize).ok_or_else(|| unknown("matrix", id.0))
    }

    /// The parts that a matrix or stack is bound in.
    pub(super) fn shards(&self, id: MatrixId) -> Result<Vec<Shard>, DeviceError> {
        Ok(self.matrix(id)?.shards(&self.gpu))
    }

    pub(super) fn vector(&self, id: VectorId) -> Result<&Ready<Buffer>, DeviceError> {
        self.vectors.get(id.0 as usize).ok_or_else(|| unknown("vector", id.0))
    }

    /// A kernel, compiled once.
    fn pipeline(&mut self, kernel: &Kernel) -> Result<Arc<Pipeline>, DeviceError> {
        if let Some(pipeline) = self.pipelines.get(&kernel.name) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = Arc::new(Pipeline::new(&self.gpu, kernel)?);
        self.pipelines.insert(kernel.name.clone(), Arc::clone(&pipeline));
        Ok(pipeline)
    }

    /// Records what `key` stands for: a kernel with its buffers, for each shard of its weights. `make` and `bound` make it at the
    /// first time; `scalars` are a shard's immediates and grid.
    pub(super) fn run(
        &mut self,
        key: Key,
        cost: Cost,
        make: impl FnOnce(&Live) -> Result<(Kernel, Vec<Shard>), DeviceError>,
        bound: impl Fn(&Live, Shard) -> Result<Vec<Bound<'_>>, DeviceError>,
        scalars: impl Fn(Shard) -> (Vec<u8>, [u32; 3]),
    ) -> Result<(), DeviceError> {
        if !self.prepared.contains_key(&key) {
            let all = self.prepare(make, bound)?;
            self.prepared.insert(key, all);
        }
        let Live { prepared, queue, .. } = self;
        for Prepared { pipeline, group, shard } in prepared.get(&key).into_iter().flatten() {
            let (immediates, grid) = scalars(*shard);
            queue.dispatch(pipeline, group, &immediates, grid, cost);
        }
        Ok(())
    }

    fn prepare(
        &mut self,
        make: impl FnOnce(&Live) -> Result<(Kernel, Vec<Shard>), DeviceError>,
        bound: impl Fn(&Live, Shard) -> Result<Vec<Bound<'_>>, DeviceError>,
    ) -> Result<Vec<Prepared>, DeviceError> {
        let (kernel, shards) = make(self)?;
        let pipeline = self.pipeline(&kernel)?;
        let of = |shard| {
            let group = self.memory.bind(&pipeline, &bound(self, shard)?)?;
            Ok(Prepared { pipeline: Arc::clone(&pipeline), group, shard })
        };
        shards.into_iter().map(of).collect()
    }
}

fn unknown(what: &str, id: u32) -> DeviceError {
    DeviceError::Batch(format!("there is no {what} {id} on this GPU"))
}
