//! Attention over pages, against the CPU's.

use unfazed_device::gpu::kernels::attend_decode::{AttendDecode, DecodePlace};
use unfazed_device::gpu::kernels::attend_prompt::{AttendPrompt, BLOCK_ROWS, PromptPlace};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_formats::{KvType, KvTypes};
use unfazed_kernels::Isa;
use unfazed_kernels::attention::{AttentionScratch, Queries, attend};

use crate::pages::{Rows, Shape, noise};
use crate::support::gpu;

/// A layer with keys and values of some sequences in its pages, and queries of some rows.
struct Case {
    shape: Shape,
    rows: Rows,
    pages: Vec<u8>,
    /// `[rows, heads * head_dim]`.
    queries: Vec<f32>,
}

impl Case {
    /// Sequences are `(position of the first row, rows)`; those before and those of the rows are in the pages.
    fn new(shape: Shape, sequences: &[(usize, usize)]) -> Case {
        let (layout, width) = (shape.layout(), shape.kv_heads * shape.head_dim);
        let rows = Rows::new(shape.page_tokens, sequences);
        // What nobody has stored is no number in any type.
        let mut pages = vec![0xff; rows.pages * layout.page_bytes()];
        for (i, (start, count)) in sequences.iter().enumerate() {
            let mut all = Rows::new(shape.page_tokens, &[(0, start + count)]);
            all.batch.sequences = vec![rows.batch.sequences[i].clone()];
            let [keys, values] = [1, 2].map(|seed| noise(seed + 10 * i as u32, (start + count) * width, 1.0));
            all.store(&layout, &mut pages, &keys, &values);
        }
        let queries = noise(3, rows.batch.rows.len() * shape.heads * shape.head_dim, 3.0);
        Case { shape, rows, pages, queries }
    }

    /// The contexts that the CPU makes.
    fn expected(&self) -> Vec<f32> {
        let (shape, layout) = (&self.shape, self.shape.layout());
        let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let mut scratch = AttentionScratch::new(group, dim);
        let mut out = vec![0.0; self.queries.len()];
        let queries = self.queries.chunks(group * dim).zip(out.chunks_mut(group * dim));
        for (i, (vectors, out)) in queries.enumerate() {
            let (row, head) = (&self.rows.batch.rows[i / shape.kv_heads], i % shape.kv_heads);
            let pages = &self.rows.batch.sequences[row.sequence];
            let block = |index: usize| {
                let page = &self.pages[pages[index].0 as usize * layout.page_bytes()..];
                &page[layout.block(0, head)]
            };
            let positions = vec![row.position; group];
            let queries = Queries { positions: &positions, vectors, out };
            attend(Isa::Reference, &layout, &block, queries, &mut scratch);
        }
        out
    }

    /// Those of the kernels of decode mode. `at_least` says for how many segments they are laid out.
    fn decode(&self, at_least: u32) -> Option<Vec<f32>> {
        let gpu = gpu()?;
        let attend = AttendDecode { heads: self.shape.heads, kv: self.shape.text() };
        let (data, counts) = self.rows.data(32, &[]);
        let width = (self.shape.heads * self.shape.head_dim) as u32;
        let segments = attend.segments(counts.longest).max(at_least);
        let place = DecodePlace {
            query: 0,
            query_stride: width,
            context: 0,
            context_stride: width,
            segments,
            first: 0,
        };
        let queries: &[u8] = bytemuck::cast_slice(&self.queries);
        let context = vec![0xff; queries.len()];
        let parts = vec![0xff; 16.max(attend.part_len(counts.rows as usize, segments as usize) * 4)];
        let trial = Trial {
            buffers: &[&data, queries, &self.pages, &self.pages, &context, &parts],
            immediates: &place.bytes(),
            grid: attend.grid(counts.rows, segments),
        };
        let got = once(gpu, &attend.kernel(), &trial).unwrap();
        if segments == 1 {
            return Some(bytemuck::pod_collect_to_vec(&got[4]));
        }
        let trial = Trial {
            buffers: &[&data, &got[5], &context],
            immediates: &place.bytes(),
            grid: [self.shape.heads as u32, counts.rows, 1],
        };
        Some(bytemuck::pod_collect_to_vec(&once(gpu, &attend.merge(), &trial).unwrap()[2]))
    }

    /// Those of the kernel of prompt mode, of everything that the device can do or of f32 alone.
    fn prompt(&self, floats: bool) -> Option<Vec<f32>> {
        let gpu = gpu()?;
        let attend = AttendPrompt { heads: self.shape.heads, kv: self.shape.text() };
        let (data, counts) = self.rows.data(BLOCK_ROWS, &[]);
        let width = (self.shape.heads * self.shape.head_dim) as u32;
        let place = PromptPlace { query: 0, query_stride: width, context: 0, context_stride: width };
        let queries: &[u8] = bytemuck::cast_slice(&self.queries);
        let context = vec![0xff; queries.len()];
        let trial = Trial {
            buffers: &[&data, queries, &self.pages, &self.pages, &context],
            immediates: &place.bytes(),
            grid: attend.grid(counts.blocks),
        };
        let mut abilities = gpu.abilities.clone();
        if floats {
            abilities.cooperative.clear();
        }
        let got = once(gpu, &attend.kernel(&abilities), &trial).unwrap();
        Some(bytemuck::pod_collect_to_vec(&got[4]))
    }
}

/// |got - expected| / |expected|.
fn distance(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let off = squares(&mut got.iter().zip(expected).map(|(a, b)| a - b));
    (off / squares(&mut expected.iter().copied())).sqrt() as f32
}

#[track_caller]
fn assert_near(got: &[f32], expected: &[f32], bound: f32) {
    let off = distance(got, expected);
    assert!(off < bound, "off by {off}");
}

#[test]
fn decode_attends_to_contexts_of_any_length() {
    let types = KvTypes::both(KvType::F32);
    for length in [1, 31, 33, 257, 1000] {
        let shape = Shape { heads: 4, kv_heads: 2, head_dim: 64, page_tokens: 32, types };
        let case = Case::new(shape, &[(length - 1, 1)]);
        let Some(got) = case.decode(1) else { return };
        assert_near(&got, &case.expected(), 1e-5);
    }
}

#[test]
fn decode_reads_every_type_with_heads_of_any_width_and_groups_of_any_size() {
    use KvType::{BF16, F16, Q4_0, Q8_0};
    let cases =
        [(8, 1, 128, BF16, Q8_0), (3, 1, 96, Q8_0, Q4_0), (2, 2, 256, Q4_0, BF16), (10, 2, 80, F16, F16)];
    for (heads, kv_heads, head_dim, keys, values) in cases {
        let shape = Shape { heads, kv_heads, head_dim, page_tokens: 16, types: KvTypes { keys, values } };
        let case = Case::new(shape, &[(140, 2), (9, 1)]);
        let Some(got) = case.decode(1) else { return };
        assert_near(&got, &case.expected(), 1e-5);
    }
}

#[test]
fn a_decoded_row_alone_and_among_eight_has_the_same_bits() {
    let types = KvTypes::both(KvType::F16);
    let shape = Shape { heads: 8, kv_heads: 2, head_dim: 64, page_tokens: 48, types };
    let all = Case::new(shape, &[(400, 3), (5, 1), (127, 2), (20, 2)]);
    let Some(together) = all.decode(7) else { return };
    let width = shape.heads * shape.head_dim;
    for row in [0, 3, 5] {
        let mut one = Case { queries: all.queries[row * width..][..width].to_vec(), ..Case::new(shape, &[]) };
        one.rows = Rows { pages: all.rows.pages, ..Rows::new(48, &[]) };
        one.rows.batch.sequences = all.rows.batch.sequences.clone();
        one.rows.batch.rows = vec![all.rows.batch.rows[row]];
        one.pages = all.pages.clone();
        let alone = one.decode(1).unwrap();
        assert!(alone == together[row * width..][..width], "row {row}");
    }
}

#[test]
fn prompts_attend_in_every_type_to_all_that_they_see() {
    use KvType::{BF16, F16, F32, Q4_0, Q8_0};
    let cases =
        [(2, 1, 64, F32, F32), (2, 2, 128, F16, F16), (2, 2, 160, BF16, Q8_0), (3, 1, 96, Q8_0, Q4_0)];
    for (heads, kv_heads, head_dim, keys, values) in cases {
        let shape = Shape { heads, kv_heads, head_dim, page_tokens: 32, types: KvTypes { keys, values } };
        let case = Case::new(shape, &[(0, 70), (45, 31), (64, 1)]);
        let expected = case.expected();
        let Some(got) = case.prompt(true) else { return };
        assert_near(&got, &expected, 1e-5);
        // The same of f16, where there are such products.
        assert_near(&case.prompt(false).unwrap(), &expected, 2e-3);
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_the_chunk_or_the_block_that_it_is_in() {
    let shape =
        Shape { heads: 2, kv_heads: 1, head_dim: 64, page_tokens: 32, types: KvTypes::both(KvType::F16) };
    let width = shape.heads * shape.head_dim;
    let all = Case::new(shape, &[(0, 150)]);
    let Some(whole) = all.prompt(false) else { return };
    for (start, end) in [(0, 37), (37, 39), (39, 150)] {
        let mut rows = Rows::new(shape.page_tokens, &[]);
        rows.pages = all.rows.pages;
        rows.batch.sequences = all.rows.batch.sequences.clone();
        rows.batch.rows = all.rows.batch.rows[start..end].to_vec();
        let queries = all.queries[start * width..end * width].to_vec();
        let chunk = Case { shape, rows, pages: all.pages.clone(), queries };
        assert!(chunk.prompt(false).unwrap() == whole[start * width..end * width], "{start}..{end}");
    }
}
