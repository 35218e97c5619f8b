//! Steps of a mixture of experts in the shape of OLMoE-7B (4 of its 16 layers, synthetic weights), by operation.
//!
//! `cargo bench -p unfazed-device --bench step -- [q4_0|q8_0|q4_k] [threads] [decodes]`

#![allow(clippy::panic)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_device::{Batch, BatchRow, CpuConfig, CpuDevice, Device, KvShape, PageId};
use unfazed_formats::config::{ExpertConfig, Family, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{BlockFormat, Extent, FileId};
use unfazed_kernels::Isa;
use unfazed_store::{Loader, MatrixSource, Reader, StoreError};
use unfazed_testkit::random_blocks::random_blocks;
use unfazed_testkit::rng::Rng;

type Matrix = <CpuDevice as Device>::Matrix;

/// Random blocks of one format, the same at every offset.
struct Blocks(Vec<u8>);

impl Reader for Blocks {
    fn read(&self, _: &str, _: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        buf.chunks_mut(self.0.len()).for_each(|part| part.copy_from_slice(&self.0[..part.len()]));
        Ok(())
    }
}

const EXPERTS: ExpertConfig = ExpertConfig { count: 64, used: 8, feed_forward: 1024, normalised: false };

fn model() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3Moe,
        layers: 4,
        hidden: 2048,
        heads: 16,
        kv_heads: 16,
        head_dim: 128,
        feed_forward: 0,
        experts: Some(EXPERTS),
        vocab: 49152,
        context: 4096,
        norm_epsilon: 1e-5,
        rope: RopeConfig {
            base: 10_000.0,
            dimensions: 128,
            pairing: RopePairing::Halves,
            scaling: RopeScaling::None,
        },
        tied_embeddings: false,
    }
}

fn load(device: &mut CpuDevice, format: BlockFormat, parts: usize, rows: usize, columns: usize) -> Matrix {
    let len = (format.row_bytes(columns).unwrap_or(0) * rows) as u64;
    let extent = Extent { file: FileId(0), offset: 0, len };
    let source = MatrixSource { name: "bench".to_owned(), format, rows, columns, parts: vec![extent; parts] };
    device.load_matrix(&source).unwrap_or_else(|error| panic!("{error}"))
}

const OPERATIONS: [&str; 8] = ["embed", "norm", "qkv", "rotate", "attend", "context", "mixture", "output"];

fn step(
    device: &mut CpuDevice,
    layers: &[Vec<Matrix>],
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
    for (layer, m) in layers.iter().enumerate() {
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
        device.mixture(&m[4], &m[5], &m[6], &m[7], &EXPERTS);
        lap(6);
    }
    device.output(&weight, 1e-5, output);
    lap(7);
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
    let config = model();
    let mut blocks = vec![0; format.block_bytes() * 4096];
    random_blocks(format, 0.03, &mut Rng::new(1, "bench", 0), &mut blocks);
    let kv = KvShape { layers: config.layers, kv_heads: 16, head_dim: 128, page_tokens: 32, pages: 64 };
    let device = CpuDevice::new(CpuConfig {
        isa: Isa::best(),
        threads: threads.into(),
        model: &config,
        kv,
        max_rows: 512,
        max_logit_rows: 1,
        float_activations: false,
        kv_memory: None,
        pulse: Arc::default(),
        loader: Loader::new(Arc::new(Blocks(blocks)), threads, Box::new(|_| {})),
    });
    let mut device = device.unwrap_or_else(|error| panic!("{error}"));
    let begun = Instant::now();
    let layers: Vec<Vec<Matrix>> = (0..config.layers)
        .map(|_| {
            let dense = |device: &mut CpuDevice| load(device, format, 1, 2048, 2048);
            let mut all: Vec<Matrix> = (0..4).map(|_| dense(&mut device)).collect();
            all.push(load(&mut device, BlockFormat::F32, 1, 64, 2048));
            all.push(load(&mut device, format, 64, 1024, 2048));
            all.push(load(&mut device, format, 64, 1024, 2048));
            all.push(load(&mut device, format, 64, 2048, 1024));
            all
        })
        .collect();
    let output = load(&mut device, format, 1, config.vocab, 2048);
    println!("{format:?}, {threads} threads, {}; loaded in {:?}", Isa::best().name(), begun.elapsed());

    let sequences = vec![(0..64).map(PageId).collect::<Vec<_>>()];
    let row = |position: usize, logits| BatchRow {
        token: (position * 7919 % config.vocab) as u32,
        sequence: 0,
        position,
        logits,
    };
    let report = |what: &str, steps: u32, times: [Duration; 8]| {
        let total: Duration = times.iter().sum();
        println!("{what}: {:?} a step", total / steps);
        for (name, time) in OPERATIONS.iter().zip(times) {
            println!(
                "  {name:8} {:>12.1?} {:3.0} %",
                time / steps,
                100.0 * time.as_secs_f64() / total.as_secs_f64()
            );
        }
    };
    for round in 0..2 {
        let rows = (0..512).map(|position| row(position, position == 511)).collect();
        let batch = Batch { rows, sequences: sequences.clone() };
        let mut times = [Duration::ZERO; 8];
        step(&mut device, &layers, &output, &config, &batch, &mut times);
        report(&format!("prompt of 512, round {round}"), 1, times);
    }
    let mut times = [Duration::ZERO; 8];
    for i in 0..decodes {
        let batch = Batch { rows: vec![row(512 + i % 1024, true)], sequences: sequences.clone() };
        step(&mut device, &layers, &output, &config, &batch, &mut times);
    }
    report("decode", decodes.max(1) as u32, times);
}
