//! Steps of a mixture of experts in the shape of OLMoE-7B (4 of its 16 layers, synthetic weights), by operation: a prompt,
//! decodes of one sequence and of several, and both at a depth of 4096 positions.
//!
//! `cargo bench -p unfazed-device --bench step -- [q4_0|q8_0|q4_k] [threads] [decodes] [f16|bf16|q8_0|q4_0]`

#![allow(clippy::panic)]

mod synthetic;

use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_device::{Batch, BatchRow, CpuConfig, CpuDevice, Device, KvShape, PageId, Part};
use unfazed_formats::config::{ExpertConfig, ModelConfig};
use unfazed_formats::{BlockFormat, KvType, KvTypes};
use unfazed_kernels::Isa;
use unfazed_store::experts::LayerExperts;
use unfazed_store::{Buffer, Loader};

use synthetic::{Blocks, olmoe, source};

type Matrix = <CpuDevice as Device>::Matrix;
type Experts = <CpuDevice as Device>::Experts;

const EXPERTS: ExpertConfig = ExpertConfig { count: 64, used: 8, feed_forward: 1024, normalised: false };

fn model() -> ModelConfig {
    ModelConfig { context: 4096, experts: Some(EXPERTS), ..olmoe(4, 49_152) }
}

fn load(device: &mut CpuDevice, format: BlockFormat, rows: usize, columns: usize) -> Matrix {
    device
        .load_matrix(Part::Output, &source("bench", format, 1, [rows, columns]))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn load_layer(device: &mut CpuDevice, format: BlockFormat, layer: usize) -> (Vec<Matrix>, Experts) {
    let mut all: Vec<Matrix> = (0..4).map(|_| load(device, format, 2048, 2048)).collect();
    all.push(load(device, BlockFormat::F32, 64, 2048));
    let stack = |rows, columns| source("bench", format, 64, [rows, columns]);
    let experts = LayerExperts { gate: stack(1024, 2048), up: stack(1024, 2048), down: stack(2048, 1024) };
    (all, device.load_experts(layer, &experts).unwrap_or_else(|error| panic!("{error}")))
}

const PAGE_TOKENS: usize = 32;
const PAGES: usize = 160;
const CHUNK: usize = 512;

const OPERATIONS: [&str; 8] = ["embed", "norm", "qkv", "rotate", "attend", "context", "mixture", "output"];

fn step(
    device: &mut CpuDevice,
    layers: &[(Vec<Matrix>, Experts)],
    output: &Matrix,
    config: &ModelConfig,
    batch: &Batch,
    times: &mut [Duration; 8],
) {
    let weight = vec![1.0; config.hidden];
    let mut last = Instant::now();
    let mut lap = |operation: usize| {
        times[operation] += last.elapsed();
        last = Instant::now();
    };
    device.begin(batch).unwrap_or_else(|error| panic!("{error}"));
    device.embed(output);
    lap(0);
    for (layer, (m, experts)) in layers.iter().enumerate() {
        device.norm(&weight, 1e-5);
        lap(1);
        device.project_qkv(&m[0], &m[1], &m[2]);
        lap(2);
        device.rotate(&config.rope);
        lap(3);
        device.attend(layer);
        lap(4);
        device.project_context(&m[3]);
        lap(5);
        device.norm(&weight, 1e-5);
        lap(1);
        device.mixture(&m[4], experts, &EXPERTS);
        lap(6);
    }
    device.output(&weight, 1e-5, output);
    lap(7);
}

/// A device and what it computes with.
struct Bench {
    device: CpuDevice,
    layers: Vec<(Vec<Matrix>, Experts)>,
    output: Matrix,
    config: ModelConfig,
}

impl Bench {
    fn new(format: BlockFormat, threads: usize, types: KvTypes) -> Bench {
        let config = model();
        let ModelConfig { kv_heads, head_dim, layers, .. } = config;
        let kv = KvShape { layers, kv_heads, head_dim, page_tokens: PAGE_TOKENS, pages: PAGES, types };
        // Positions that no step of the bench computes hold something all the same.
        let position: usize = types.position_bytes(head_dim).map_or(0, |bytes| bytes.iter().sum());
        let bytes = PAGES * PAGE_TOKENS * layers * kv_heads * position;
        let mut pages = Buffer::zeroed("KV pages", bytes).unwrap_or_else(|error| panic!("{error}"));
        pages.fill(0x11);
        let device = CpuDevice::new(CpuConfig {
            isa: Isa::best(),
            threads: threads.into(),
            model: &config,
            kv,
            max_rows: CHUNK,
            max_logit_rows: 16,
            float_activations: false,
            kv_memory: Some(pages),
            experts: None,
            trace: None,
            pulse: Arc::default(),
            loader: Loader::new(Arc::new(Blocks::new(format)), threads, Box::new(|_| {})),
        });
        let mut device = device.unwrap_or_else(|error| panic!("{error}"));
        let layers = (0..config.layers).map(|layer| load_layer(&mut device, format, layer)).collect();
        let output = load(&mut device, format, config.vocab, 2048);
        Bench { device, layers, output, config }
    }

    /// `steps` steps of `rows` rows for each of `sequences` sequences, from a position on: the time of each operation in
    /// one of them.
    fn steps(&mut self, what: &str, steps: usize, sequences: usize, position: usize, rows: usize) {
        let pages = PAGES / sequences;
        let pages =
            |sequence| (sequence * pages..(sequence + 1) * pages).map(|page| PageId(page as u32)).collect();
        let mut batch = Batch { rows: Vec::new(), sequences: (0..sequences).map(pages).collect() };
        let mut times = [Duration::ZERO; OPERATIONS.len()];
        for start in (0..steps).map(|step| position + step * rows) {
            batch.rows.clear();
            for (sequence, i) in (0..sequences).flat_map(|sequence| (0..rows).map(move |i| (sequence, i))) {
                let position = start + i;
                let token = ((position + sequence * 31) * 7919 % self.config.vocab) as u32;
                batch.rows.push(BatchRow {
                    token,
                    sequence,
                    position,
                    logits: i + 1 == rows,
                    generated: false,
                });
            }
            step(&mut self.device, &self.layers, &self.output, &self.config, &batch, &mut times);
        }
        let (steps, total) = (steps.max(1) as u32, times.iter().sum::<Duration>());
        print!("{what:24} {:>9.1?}", total / steps);
        for (name, time) in OPERATIONS.iter().zip(times) {
            print!(" | {name} {:.1?}", time / steps);
        }
        println!();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let argument = |i: usize| arguments.get(i).map(String::as_str);
    let format = match argument(0) {
        Some("q8_0") => BlockFormat::Q8_0,
        Some("q4_k") => BlockFormat::Q4_K,
        _ => BlockFormat::Q4_0,
    };
    let threads = argument(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let decodes: usize = argument(2).and_then(|n| n.parse().ok()).unwrap_or(64);
    let kind: KvType = argument(3).and_then(|name| name.parse().ok()).unwrap_or_default();
    let begun = Instant::now();
    let mut bench = Bench::new(format, threads, KvTypes::both(kind));
    println!(
        "{format:?}, {threads} threads, {}, KV {kind}; loaded in {:?}",
        Isa::best().name(),
        begun.elapsed()
    );
    for round in 0..2 {
        bench.steps(&format!("prompt of 512, round {round}"), 1, 1, 0, CHUNK);
    }
    bench.steps("prompt at 3584", 1, 1, 3584, CHUNK);
    bench.steps("decode", decodes, 1, 512, 1);
    bench.steps("decode at 4096", decodes, 1, 4096, 1);
    bench.steps("decode of 4", decodes, 4, 100, 1);
    bench.steps("decode of 16", decodes, 16, 100, 1);
}
