//! A model on the CPU device, and its logits at all positions of some sequences.

use std::path::Path;
use std::sync::Arc;

use unfazed_device::cpu::{CpuConfig, CpuDevice};
use unfazed_device::{Batch, BatchRow, KvShape, PageId};
use unfazed_formats::{Checkpoint, Headers, KvTypes};
use unfazed_kernels::Isa;
use unfazed_model::{Model, Sources};
use unfazed_store::experts::{ExpertConfig, ExpertSources, ExpertStore, PolicyKind, SlotMemory};
use unfazed_store::{Loader, LocalOptions, LocalStorage, Reader, StorageReader};
use unfazed_wire::memory::ExpertSegment;

const PAGE_TOKENS: usize = 32;
const PAGES: usize = 64;
/// Most rows of a step, whatever the chunk.
const MAX_ROWS: usize = 512;

/// How activations are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// f32 throughout.
    Float,
    /// As served.
    Shipped,
}

/// How a model is computed.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub mode: Mode,
    pub isa: Isa,
    pub threads: usize,
    /// Most rows of a step that are used.
    pub chunk: usize,
    /// How experts are streamed; `None`: all are in memory.
    pub streamed: Option<Streamed>,
}

/// How experts are streamed.
#[derive(Clone, Copy, Debug)]
pub struct Streamed {
    pub slots: usize,
    pub ring: usize,
}

/// A loaded model.
pub struct Runner {
    device: CpuDevice,
    model: Model<CpuDevice>,
    chunk: usize,
}

fn experts(sources: &Sources, reader: &Arc<dyn Reader>, streamed: Streamed) -> Arc<ExpertStore> {
    let sources = ExpertSources::new(sources.experts()).unwrap();
    let sizes = ExpertSegment { slots: streamed.slots, slot_bytes: sources.slot_bytes() };
    let memory = SlotMemory::private(sizes).unwrap();
    let (policy, ring) = (PolicyKind::default(), streamed.ring);
    let config = ExpertConfig { policy, threads: 3, ring, files: 1, profile: None };
    Arc::new(ExpertStore::new(sources, Arc::clone(reader), memory, config).unwrap())
}

impl Runner {
    pub fn open(path: &Path, mode: Mode) -> Runner {
        // All instruction sets give the same bits; the best one gives them soonest.
        Runner::open_with(path, Setup { mode, isa: Isa::best(), threads: 2, chunk: 64, streamed: None })
    }

    pub fn open_with(path: &Path, setup: Setup) -> Runner {
        let Setup { mode, isa, threads, chunk, streamed } = setup;
        let checkpoint = Checkpoint::open(path).unwrap();
        let sources = Sources::find(&Headers::from(&checkpoint)).unwrap();
        let storage = LocalStorage::new(&checkpoint.files, LocalOptions::default()).unwrap();
        let reader: Arc<dyn Reader> = Arc::new(StorageReader::new(Arc::new(storage)));
        let model = &checkpoint.config;
        let kv = KvShape {
            layers: model.layers,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            page_tokens: PAGE_TOKENS,
            pages: PAGES,
            types: KvTypes::default(),
        };
        let config = CpuConfig {
            isa,
            threads: threads.into(),
            model,
            kv,
            max_rows: MAX_ROWS,
            max_logit_rows: MAX_ROWS,
            float_activations: mode == Mode::Float,
            kv_memory: None,
            experts: streamed.map(|streamed| experts(&sources, &reader, streamed)),
            trace: None,
            pulse: Arc::default(),
            loader: Loader::new(reader, threads, Box::new(|_| ())),
        };
        let mut device = CpuDevice::new(config).unwrap();
        let model = sources.load(&mut device).unwrap();
        Runner { device, model, chunk }
    }

    /// Logits at all positions of a prompt, computed in chunks, and of a continuation, computed token by token.
    pub fn prompt_and_continuation(&mut self, prompt: &[u32], continuation: &[u32]) -> Vec<Vec<f32>> {
        let tokens = [prompt, continuation].concat();
        let mut logits = Vec::new();
        while logits.len() < tokens.len() {
            let start = logits.len();
            let rows = if start < prompt.len() { self.chunk.min(prompt.len() - start) } else { 1 };
            let all = self.step(std::slice::from_ref(&tokens), &[(0, start, rows)]);
            logits.extend(all.into_iter().map(|(_, row)| row));
        }
        logits
    }

    /// Logits at all positions of sequences that are computed side by side: each step takes the next rows of all of
    /// them, in turn, up to the chunk.
    pub fn batch(&mut self, sequences: &[Vec<u32>]) -> Vec<Vec<Vec<f32>>> {
        let mut logits: Vec<Vec<Vec<f32>>> = sequences.iter().map(|_| Vec::new()).collect();
        let mut first = 0;
        loop {
            let mut left = self.chunk;
            let mut parts = Vec::new();
            for turn in 0..sequences.len() {
                let sequence = (first + turn) % sequences.len();
                let start = logits[sequence].len();
                // Uneven parts, so that sequences are at different positions.
                let part = (self.chunk / sequences.len()).max(1) + sequence % 3;
                let rows = part.min(left).min(sequences[sequence].len() - start);
                left -= rows;
                if rows > 0 {
                    parts.push((sequence, start, rows));
                }
            }
            if parts.is_empty() {
                return logits;
            }
            first = (first + 1) % sequences.len();
            for (sequence, row) in self.step(sequences, &parts) {
                logits[sequence].push(row);
            }
        }
    }

    /// One step with rows of some sequences, as (sequence, first position, rows); its logits with their sequences.
    fn step(&mut self, sequences: &[Vec<u32>], parts: &[(usize, usize, usize)]) -> Vec<(usize, Vec<f32>)> {
        let share = PAGES / sequences.len();
        let mut batch = Batch::default();
        let mut owners = Vec::new();
        for &(sequence, start, rows) in parts {
            let pages = (start + rows).div_ceil(PAGE_TOKENS);
            assert!(pages <= share);
            for (position, &token) in sequences[sequence].iter().enumerate().skip(start).take(rows) {
                batch.rows.push(BatchRow {
                    token,
                    sequence: batch.sequences.len(),
                    position,
                    logits: true,
                    generated: false,
                });
                owners.push(sequence);
            }
            // Pages from the end, so that page numbers and positions do not coincide.
            let page = |index: usize| PageId((PAGES - 1 - sequence * share - index) as u32);
            batch.sequences.push((0..pages).map(page).collect());
        }
        let logits = self.model.forward(&mut self.device, &batch).unwrap().logits;
        let vocab = logits.len() / owners.len();
        owners.into_iter().zip(logits.chunks(vocab).map(<[f32]>::to_vec)).collect()
    }
}
