//! Heads and attention.

use unfazed_device::gpu::kernels::attend_decode::{AttendDecode, DecodePlace};
use unfazed_device::gpu::kernels::attend_prompt::{AttendPrompt, BLOCK_ROWS, PromptPlace};
use unfazed_device::gpu::kernels::heads::{Heads, HeadsPlace};
use unfazed_device::gpu::kernels::kv::KvText;
use unfazed_device::gpu::kernels::step::{StepCounts, StepData, StepShape};
use unfazed_device::gpu::trial::{Prepared, Trial};
use unfazed_device::gpu::{Gpu, Kernel};
use unfazed_device::{Batch, BatchRow, PageId};
use unfazed_formats::config::{RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{KvType, KvTypes};
use unfazed_kernels::vector::RopeFrequencies;

/// Positions of a page.
const PAGE: usize = 64;
const DIM: usize = 128;
const KV_HEADS: usize = 4;

/// Prints a table of all kernels whose name has this part.
pub(crate) fn run(gpu: &Gpu, part: &str) {
    println!("kernel | shape | us | TFLOP/s or GB/s");
    let bench = Bench { gpu, part };
    let small = gpu.info.software;
    let of = |keys, values| KvTypes { keys, values };
    let f16 = of(KvType::F16, KvType::F16);
    for types in [f16, of(KvType::Q8_0, KvType::Q8_0), of(KvType::Q8_0, KvType::Q4_0)] {
        let contexts: &[usize] = if small { &[100] } else { &[100, 128, 1000, 4000, 32_000] };
        for context in contexts {
            for rows in [1, 8] {
                bench.decode(types, rows, *context);
            }
        }
    }
    for types in [f16, of(KvType::F32, KvType::F32), of(KvType::Q8_0, KvType::Q8_0)] {
        let chunks: &[(usize, usize)] =
            if small { &[(0, 64)] } else { &[(0, 512), (0, 2048), (6144, 2048), (0, 8192)] };
        for (start, rows) in chunks {
            bench.prompt(types, *start, *rows);
        }
    }
    for types in [f16, of(KvType::Q8_0, KvType::Q4_0)] {
        for rows in [1, 8, if small { 32 } else { 2048 }] {
            bench.heads(types, rows);
        }
    }
}

/// Numbers of no pattern, without large ones.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

struct Bench<'g> {
    gpu: &'g Gpu,
    part: &'g str,
}

impl Bench<'_> {
    /// Times a kernel; `work` is in operations or bytes.
    fn time(&self, kernel: &Kernel, trial: &Trial<'_>, shape: &str, work: f64, operations: bool) {
        if !kernel.name.contains(self.part) {
            return;
        }
        let prepared = Prepared::new(self.gpu, kernel, trial).unwrap();
        let once = prepared.run(2).unwrap().as_secs_f64() / 2.0;
        let times = (0.02 / once).clamp(1.0, 200.0) as usize;
        let mut seconds: Vec<f64> =
            (0..5).map(|_| prepared.run(times).unwrap().as_secs_f64() / times as f64).collect();
        seconds.sort_by(f64::total_cmp);
        let median = seconds[2];
        let rate = if operations {
            format!("{:.1} TFLOP/s", work / median / 1e12)
        } else {
            format!("{:.0} GB/s", work / median / 1e9)
        };
        println!("{} | {shape} | {:.1} | {rate}", kernel.name, median * 1e6);
    }

    fn decode(&self, types: KvTypes, rows: usize, context: usize) {
        let kv = KvText::new(KV_HEADS, DIM, PAGE, types).unwrap();
        let attend = AttendDecode { heads: 32, kv };
        let steps = step(&(0..rows).map(|_| (context - 1, 1)).collect::<Vec<_>>(), &[]);
        let width = 32 * DIM;
        let segments = attend.segments(context as u32);
        let place = DecodePlace {
            query: 0,
            query_stride: width as u32,
            context: 0,
            context_stride: width as u32,
            segments,
            first: 0,
        };
        let queries = bytes(&noise(rows * width));
        let pages = vec![0x11; steps.pages * kv.page_bytes()];
        let parts = vec![0; 16.max(attend.part_len(rows, segments as usize) * 4)];
        let buffers: [&[u8]; 6] = [&steps.data, &queries, &pages, &pages, &queries, &parts];
        let immediates = &place.bytes();
        let shape = format!("{rows} rows of {context}");
        let work = (rows * context * kv.page_bytes() / PAGE) as f64;
        let grid = attend.grid(rows as u32, segments);
        self.time(&attend.kernel(), &Trial { buffers: &buffers, immediates, grid }, &shape, work, false);
        if segments > 1 {
            let buffers: [&[u8]; 3] = [&steps.data, &parts, &queries];
            let trial = Trial { buffers: &buffers, immediates, grid: [32, rows as u32, 1] };
            self.time(&attend.merge(), &trial, &shape, parts.len() as f64, false);
        }
    }

    fn prompt(&self, types: KvTypes, start: usize, rows: usize) {
        let (heads, kv) = (16, KvText::new(KV_HEADS, DIM, PAGE, types).unwrap());
        let attend = AttendPrompt { heads, kv };
        let steps = step(&[(start, rows)], &[]);
        let width = (heads * DIM) as u32;
        let place = PromptPlace { query: 0, query_stride: width, context: 0, context_stride: width };
        let queries = bytes(&noise(rows * heads * DIM));
        let pages = vec![0x11; steps.pages * kv.page_bytes()];
        let buffers: [&[u8]; 5] = [&steps.data, &queries, &pages, &pages, &queries];
        let immediates = &place.bytes();
        // What is seen: two products of DIM multiplications and additions.
        let seen: usize = (start..start + rows).map(|position| position + 1).sum();
        let work = (seen * heads * DIM * 4) as f64;
        let trial = Trial { buffers: &buffers, immediates, grid: attend.grid(steps.counts.blocks) };
        let kernel = attend.kernel(&self.gpu.abilities);
        self.time(&kernel, &trial, &format!("{rows} rows from {start}"), work, true);
    }

    fn heads(&self, types: KvTypes, rows: usize) {
        let kv = KvText::new(KV_HEADS, DIM, PAGE, types).unwrap();
        let (pairing, scaling) = (RopePairing::Halves, RopeScaling::None);
        let rope = RopeFrequencies::new(&RopeConfig { base: 1e6, dimensions: DIM, pairing, scaling });
        let steps = step(&[(64, rows)], &[rope]);
        let heads = Heads { heads: 32, kv, norm: Some(1e-6), rope: Some((pairing, DIM)) };
        let (query, key) = ((32 * DIM) as u32, (KV_HEADS * DIM) as u32);
        let stride = query + 2 * key;
        let place = HeadsPlace {
            query: 0,
            key: query,
            value: query + key,
            query_stride: stride,
            key_stride: stride,
            table: 0,
        };
        let x = bytes(&noise(rows * stride as usize));
        let weights = bytes(&noise(2 * DIM));
        let pages = vec![0; steps.pages * kv.page_bytes()];
        let buffers: [&[u8]; 4] = [&steps.data, &x, &pages, &weights];
        let trial =
            Trial { buffers: &buffers, immediates: &place.bytes(), grid: heads.grid(steps.counts.spans) };
        self.time(&heads.kernel(), &trial, &format!("{rows} rows"), 2.0 * x.len() as f64, false);
    }
}

struct Steps {
    data: Vec<u8>,
    counts: StepCounts,
    pages: usize,
}

/// A step of sequences of `(position of the first row, rows)`.
fn step(sequences: &[(usize, usize)], ropes: &[RopeFrequencies]) -> Steps {
    let mut batch = Batch::default();
    let mut pages = 0;
    for (sequence, (start, rows)) in sequences.iter().enumerate() {
        let count = (start + rows).div_ceil(PAGE);
        batch.sequences.push((pages..pages + count).map(|page| PageId(page as u32)).collect());
        pages += count;
        let row = |position| BatchRow { token: 0, sequence, position, logits: false, generated: false };
        batch.rows.extend((*start..start + rows).map(row));
    }
    let mut data = StepData::new(StepShape { page_tokens: PAGE, pages, block_rows: BLOCK_ROWS });
    let counts = data.pack(1, &batch, ropes).unwrap();
    Steps { data: data.bytes().to_vec(), counts, pages }
}
