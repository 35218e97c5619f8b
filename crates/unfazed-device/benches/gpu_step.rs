//! Steps of mixtures of experts (synthetic weights) whose layers are on a GPU: prompts, decodes, and what each kernel takes.
//!
//! `cargo bench -p unfazed-device --bench gpu_step -- [olmoe-7b|qwen3-30b-a3b|small] [q4_0|q8_0|q4_k] [gpu|cpu-moe|GPU LAYERS]
//! [threads] [chunk]`; `UNFAZED_TEST_GPU` names the GPU, else it is the first.

#![allow(clippy::panic, clippy::unwrap_used, clippy::print_stdout)]

mod synthetic;

use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_device::gpu::{Adapters, Budget, Gpu, GpuConfig, GpuDevice, Limits};
use unfazed_device::{
    Batch, BatchRow, CpuConfig, CpuDevice, Device, KvShape, PageId, Part, PlacedConfig, PlacedDevice,
};
use unfazed_formats::config::{ExpertConfig, ModelConfig};
use unfazed_formats::{BlockFormat, Extent, FileId, KvType, KvTypes};
use unfazed_kernels::Isa;
use unfazed_store::experts::LayerExperts;
use unfazed_store::{Loader, VectorSource};
use unfazed_wire::{LayerPlace, Place, Placement};

use synthetic::{Blocks, olmoe, source};

fn model(name: &str) -> ModelConfig {
    let of = |count, used, feed_forward| Some(ExpertConfig { count, used, feed_forward, normalised: true });
    match name {
        "qwen3-30b-a3b" => {
            ModelConfig { heads: 32, kv_heads: 4, experts: of(128, 8, 768), ..olmoe(48, 151_936) }
        }
        "small" => {
            ModelConfig { hidden: 256, heads: 4, kv_heads: 2, experts: of(8, 2, 256), ..olmoe(2, 2048) }
        }
        _ => olmoe(16, 50_304),
    }
}

type Of<D> = (Vec<<D as Device>::Matrix>, <D as Device>::Experts, Vec<<D as Device>::Vector>);

struct Bench {
    device: PlacedDevice,
    layers: Vec<Of<PlacedDevice>>,
    embedding: <PlacedDevice as Device>::Matrix,
    output: <PlacedDevice as Device>::Matrix,
    norm: <PlacedDevice as Device>::Vector,
    config: ModelConfig,
}

const PAGE_TOKENS: usize = 32;
const PAGES: usize = 320;

fn vector(len: usize) -> VectorSource {
    let extent = Extent { file: FileId(0), offset: 0, len: 4 * len as u64 };
    VectorSource { name: "vector".to_owned(), format: BlockFormat::F32, len, extent }
}

impl Bench {
    fn new(
        config: ModelConfig,
        format: BlockFormat,
        placement: Placement,
        threads: usize,
        chunk: usize,
        limits: Limits,
    ) -> Bench {
        let ModelConfig { kv_heads, head_dim, layers, .. } = config;
        let types = KvTypes::both(KvType::F16);
        let kv = KvShape { layers, kv_heads, head_dim, page_tokens: PAGE_TOKENS, pages: PAGES, types };
        let cpu = CpuDevice::new(CpuConfig {
            isa: Isa::best(),
            threads: threads.into(),
            model: &config,
            kv,
            max_rows: chunk,
            max_logit_rows: 64,
            float_activations: false,
            kv_memory: None,
            experts: None,
            trace: None,
            pulse: Arc::default(),
            loader: Loader::new(Arc::new(Blocks::new(format)), threads, Box::new(|_| {})),
        })
        .unwrap();
        let wanted = std::env::var("UNFAZED_TEST_GPU").unwrap_or_else(|_| "0".to_owned());
        let open = move || Gpu::open(&Adapters::find().choose(Some(&wanted))?).map(Arc::new);
        let own = placement.layers.iter().enumerate().filter(|(_, place)| place.attention.is_gpu());
        let gpu = GpuDevice::new(GpuConfig {
            open: Box::new(open),
            model: &config,
            kv,
            layers: own.map(|(layer, _)| layer).collect(),
            max_rows: chunk,
            max_logit_rows: 64,
            limit: u64::MAX,
            threads,
            budget: Budget::new(limits),
            patience: Box::new(|_| Duration::from_secs(120)),
        })
        .unwrap();
        let mut device = PlacedDevice::new(PlacedConfig { cpu, gpus: vec![gpu], placement, kv }).unwrap();
        let ModelConfig { hidden, heads, kv_heads, head_dim, vocab, .. } = config;
        let ExpertConfig { count, feed_forward, .. } = config.experts.unwrap();
        let (query, kv) = (heads * head_dim, kv_heads * head_dim);
        let layers = (0..config.layers)
            .map(|layer| {
                let mut load = |part, name, format, shape| {
                    device.load_matrix(part, &source(name, format, 1, shape)).unwrap()
                };
                let own = Part::Attention(layer);
                let shapes = [[query, hidden], [kv, hidden], [kv, hidden], [hidden, query]];
                let mut all: Vec<_> =
                    shapes.into_iter().map(|shape| load(own, "matrix", format, shape)).collect();
                all.push(load(Part::FeedForward(layer), "router", BlockFormat::F32, [count, hidden]));
                let stack = |shape| source("experts", format, count, shape);
                let (inner, outer) = ([feed_forward, hidden], [hidden, feed_forward]);
                let experts = LayerExperts { gate: stack(inner), up: stack(inner), down: stack(outer) };
                let experts = device.load_experts(layer, &experts).unwrap();
                let norms = [
                    device.load_vector(own, &vector(hidden)).unwrap(),
                    device.load_vector(Part::FeedForward(layer), &vector(hidden)).unwrap(),
                    device.load_vector(own, &vector(head_dim)).unwrap(),
                ];
                (all, experts, norms.into_iter().collect())
            })
            .collect();
        let shape = [vocab, hidden];
        let embedding = device.load_matrix(Part::Embedding, &source("matrix", format, 1, shape)).unwrap();
        let output = device.load_matrix(Part::Output, &source("matrix", format, 1, shape)).unwrap();
        let norm = device.load_vector(Part::Output, &vector(hidden)).unwrap();
        Bench { device, layers, embedding, output, norm, config }
    }

    /// A step; returns how long it took to record it.
    fn step(&mut self, batch: &Batch) -> f64 {
        let begun = Instant::now();
        let Bench { device, layers, embedding, output, norm, config } = self;
        device.begin(batch).unwrap();
        device.embed(embedding);
        let experts_config = config.experts.unwrap();
        for (layer, (m, experts, v)) in layers.iter().enumerate() {
            device.norm(&v[0], 1e-5);
            device.project_qkv(&m[0], &m[1], &m[2]);
            device.norm_heads(&v[2], &v[2], 1e-5);
            device.rotate(&config.rope);
            device.attend(layer);
            device.project_context(&m[3]);
            device.norm(&v[1], 1e-5);
            device.mixture(&m[4], experts, &experts_config);
        }
        device.output(norm, 1e-5, output);
        let recorded = begun.elapsed().as_secs_f64();
        std::hint::black_box(device.finish().unwrap().logits.first().copied());
        recorded
    }

    /// Seconds of each of some steps of `rows` rows for each of some sequences, from a position on; in all, and to record.
    fn steps(&mut self, steps: usize, sequences: usize, position: usize, rows: usize) -> Vec<(f64, f64)> {
        let pages = PAGES / sequences;
        let pages =
            |sequence| (sequence * pages..(sequence + 1) * pages).map(|page| PageId(page as u32)).collect();
        let mut batch = Batch { rows: Vec::new(), sequences: (0..sequences).map(pages).collect() };
        let mut times = Vec::new();
        for start in (0..steps).map(|step| position + step * rows) {
            batch.rows.clear();
            for (sequence, i) in (0..sequences).flat_map(|sequence| (0..rows).map(move |i| (sequence, i))) {
                let position = start + i;
                let token = ((position + sequence * 31) * 7919 % self.config.vocab) as u32;
                let (logits, generated) = (i + 1 == rows, rows == 1);
                batch.rows.push(BatchRow { token, sequence, position, logits, generated });
            }
            let begun = Instant::now();
            let recorded = self.step(&batch);
            times.push((begun.elapsed().as_secs_f64(), recorded));
        }
        times
    }

    /// A prompt of some tokens in chunks: tokens a second, the best and the median of some rounds.
    fn prompt(&mut self, tokens: usize, chunk: usize, rounds: usize) {
        let chunk = chunk.min(tokens);
        let mut all: Vec<f64> = (0..rounds)
            .map(|_| self.steps(tokens / chunk, 1, 0, chunk).iter().map(|(all, _)| all).sum())
            .collect();
        all.sort_by(f64::total_cmp);
        let rate = |seconds: f64| tokens as f64 / seconds;
        println!("prompt {tokens}: {:.0} tokens/s, median {:.0}", rate(all[0]), rate(all[all.len() / 2]));
    }

    fn decode(&mut self, steps: usize, sequences: usize, position: usize) {
        let mut all = self.steps(steps, sequences, position, 1);
        let mut recorded: Vec<f64> = all.iter().map(|(_, recorded)| *recorded).collect();
        recorded.sort_by(f64::total_cmp);
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all: Vec<f64> = all.into_iter().map(|(all, _)| all).collect();
        let rate = |seconds: f64| sequences as f64 / seconds;
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        println!(
            "decode of {sequences} at {position}: {:.1} tokens/s median, {:.1} mean ({:.3} ms, {:.3} to record)",
            rate(all[all.len() / 2]),
            rate(mean),
            all[all.len() / 2] * 1e3,
            recorded[recorded.len() / 2] * 1e3
        );
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let argument = |i: usize| arguments.get(i).map(String::as_str);
    let name = argument(0).unwrap_or("small");
    let format = match argument(1) {
        Some("q8_0") => BlockFormat::Q8_0,
        Some("q4_k") => BlockFormat::Q4_K,
        _ => BlockFormat::Q4_0,
    };
    let config = model(name);
    let gpu = LayerPlace::whole(Place::Gpu(0));
    let mut placement =
        Placement { embedding: Place::Cpu, layers: vec![gpu; config.layers], output: Place::Gpu(0) };
    match argument(2) {
        Some("cpu-moe") => placement.layers.iter_mut().for_each(|layer| layer.feed_forward = Place::Cpu),
        Some(number) if number.parse::<usize>().is_ok() => {
            let on_cpu = config.layers.saturating_sub(number.parse().unwrap());
            placement.layers.iter_mut().take(on_cpu).for_each(|layer| *layer = LayerPlace::whole(Place::Cpu));
            placement.output = Place::Cpu;
        }
        _ => {}
    }
    let threads = argument(3).and_then(|n| n.parse().ok()).unwrap_or(2);
    let chunk: usize = argument(4).and_then(|n| n.parse().ok()).unwrap_or(512);
    let begun = Instant::now();
    let whole = placement.engine() == "gpu";
    let mut bench = Bench::new(config.clone(), format, placement.clone(), threads, chunk, Limits::default());
    let used = bench.device.gpus()[0].used();
    println!(
        "== {name} {format:?} {} {threads} threads, chunk {chunk}; {:.2} GB on the GPU, loaded in {:.1?}",
        argument(2).unwrap_or("gpu"),
        used as f64 / 1e9,
        begun.elapsed()
    );
    let (prompt, decodes) = if name == "small" { (512, 8) } else { (2048, 64) };
    let busy = |bench: &Bench| bench.device.gpus()[0].figures().busy_ns as f64 / 1e6;
    bench.prompt(prompt, chunk, 4);
    bench.decode(decodes, 1, prompt);
    bench.decode(decodes, 1, 0);
    let before = busy(&bench);
    bench.decode(decodes, 1, prompt);
    println!("  of which the GPU was busy {:.3} ms", (busy(&bench) - before) / decodes as f64);
    bench.decode(decodes / 2, 8, 100);
    let figures = bench.device.gpus()[0].figures();
    println!(
        "submissions {}, worst {:.2} ms, busy {:.1} ms",
        figures.executed,
        figures.worst_ns as f64 / 1e6,
        figures.busy_ns as f64 / 1e6
    );
    if !whole {
        return;
    }
    // Each kernel by itself.
    drop(bench);
    let limits = Limits { dispatches: 1, ..Limits::default() };
    let mut bench = Bench::new(config, format, placement, threads, chunk, limits);
    bench.steps(2, 1, 0, chunk);
    bench.steps(8, 1, prompt, 1);
    println!("{}", bench.device.gpus()[0].budget().unwrap().to_text());
}
