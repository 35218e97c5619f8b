//! Attention against a plain f64 computation, and its bits across instruction sets and groupings.

#![allow(clippy::unwrap_used)]

use half::{bf16, f16};
use unfazed_formats::{KvType, KvTypes};
use unfazed_kernels::Isa;
use unfazed_kernels::attention::{
    AttentionScratch, HeadRows, KvLayout, Queries, SPAN, attend, attend_span, digest, join_spans,
    partial_len, store,
};

/// Numbers in [-1, 1), the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    fn many(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// One head's keys and values in pages that lie in a scattered order, with rubbish wherever nothing was stored.
struct Cache {
    layout: KvLayout,
    table: Vec<usize>,
    memory: Vec<u8>,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

const LAYER: usize = 1;
const HEAD: usize = 2;
const F16: KvTypes = KvTypes::both(KvType::F16);
const F32: KvTypes = KvTypes::both(KvType::F32);

/// As floats of any size a NaN, and as a scale.
const RUBBISH: u8 = 0xff;

impl Cache {
    fn new(isa: Isa, types: KvTypes, head_dim: usize, page_tokens: usize, positions: usize) -> Cache {
        let layout = KvLayout::new(2, 3, head_dim, page_tokens, types).unwrap();
        let pages = positions.div_ceil(page_tokens) + 1;
        let table: Vec<usize> = (0..pages).map(|i| (i * 7 + 3) % pages).collect();
        let table = if pages.is_multiple_of(7) { (0..pages).rev().collect() } else { table };
        let mut numbers = Numbers(head_dim as u64);
        let mut cache = Cache {
            layout,
            table,
            memory: vec![RUBBISH; pages * layout.page_bytes()],
            keys: (0..positions).map(|_| numbers.many(head_dim)).collect(),
            values: (0..positions).map(|_| numbers.many(head_dim)).collect(),
        };
        // Runs that begin and end anywhere in a panel, in a page.
        let mut position = 0;
        while position < positions {
            let slot = position % page_tokens;
            let end = positions.min(position + (page_tokens - slot).min(1 + position * 7 % 40));
            let gathered = |all: &[Vec<f32>]| all[position..end].concat();
            let (keys, values) = (gathered(&cache.keys), gathered(&cache.values));
            let rows = |numbers| HeadRows { numbers, stride: head_dim };
            let start = cache.table[position / page_tokens] * layout.page_bytes();
            let block = &mut cache.memory[start..][layout.block(LAYER, HEAD)];
            store(isa, &layout, block, slot..slot + end - position, rows(&keys), rows(&values));
            position = end;
        }
        cache
    }

    fn block(&self, page: usize) -> &[u8] {
        &self.memory[self.table[page] * self.layout.page_bytes()..][self.layout.block(LAYER, HEAD)]
    }

    fn attend(&self, isa: Isa, positions: &[usize], vectors: &[f32]) -> Vec<f32> {
        let head_dim = self.layout.head_dim();
        let mut out = vec![f32::NAN; positions.len() * head_dim];
        let mut scratch = AttentionScratch::new(positions.len(), head_dim);
        let queries = Queries { positions, vectors, out: &mut out };
        attend(isa, &self.layout, &|page| self.block(page), queries, &mut scratch);
        out
    }

    /// The same of one query, span by span, the last one first.
    fn attend_spans(&self, isa: Isa, position: usize, vectors: &[f32]) -> Vec<f32> {
        let head_dim = self.layout.head_dim();
        let mut scratch = AttentionScratch::new(1, head_dim);
        let mut spans = vec![f32::NAN; (position / SPAN + 1) * partial_len(head_dim)];
        for (span, out) in spans.chunks_mut(partial_len(head_dim)).enumerate().rev() {
            let queries = Queries { positions: &[position], vectors, out };
            attend_span(isa, &self.layout, &|page| self.block(page), span, queries, &mut scratch);
        }
        let mut out = vec![f32::NAN; head_dim];
        join_spans(isa, &mut spans, partial_len(head_dim), &mut out);
        out
    }

    /// Softmax attention of one query in f64, over keys and values as `round` keeps them.
    fn plain(&self, position: usize, query: &[f32], round: impl Fn(f32) -> f32) -> Vec<f64> {
        let dot =
            |k: &[f32]| k.iter().zip(query).map(|(k, q)| f64::from(round(*k)) * f64::from(*q)).sum::<f64>();
        let scale = (query.len() as f64).sqrt();
        let scores: Vec<f64> = self.keys[..=position].iter().map(|k| dot(k) / scale).collect();
        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        (0..query.len())
            .map(|d| {
                let sum =
                    weights.iter().zip(&self.values).map(|(w, v)| w * f64::from(round(v[d]))).sum::<f64>();
                sum / total
            })
            .collect()
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn attention_is_right_at_every_page_segment_and_span_border() {
    for (head_dim, page_tokens) in [(64, 32), (128, 16), (80, 48), (8, 32), (24, 128)] {
        let halves = Cache::new(Isa::Reference, F16, head_dim, page_tokens, 1100);
        let floats = Cache::new(Isa::Reference, F32, head_dim, page_tokens, 1100);
        let mut numbers = Numbers(5);
        for position in
            [0, 1, 15, 16, 17, 31, 32, 47, 48, 127, 128, 129, 256, 511, 512, 513, 1023, 1024, 1099]
        {
            let query: Vec<f32> = numbers.many(head_dim).iter().map(|q| q * 6.0).collect();
            let got = halves.attend(Isa::Reference, &[position], &query);
            let expected = halves.plain(position, &query, |x| f16::from_f32(x).to_f32());
            assert!(
                got.iter().zip(&expected).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-6),
                "{head_dim} {position}"
            );
            let got = floats.attend(Isa::Reference, &[position], &query);
            let expected = floats.plain(position, &query, |x| x);
            assert!(
                got.iter().zip(&expected).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-6),
                "{head_dim} {position}"
            );
        }
    }
}

/// The bound follows from that on stored numbers, up to 1 here: keys move a score of queries up to 1 by the bound times the
/// root of `head_dim` (a weight by twice as much, in parts of itself), and values move the mean by the bound.
#[test]
fn each_type_stays_as_near_to_f32_as_its_rounding() {
    let (head_dim, positions) = (64, 700);
    let exact = Cache::new(Isa::Reference, F32, head_dim, 32, positions);
    for (kind, bound) in [
        (KvType::F32, 0.0),
        (KvType::F16, 1.0 / 4096.0),
        (KvType::BF16, 1.0 / 512.0),
        (KvType::Q8_0, 0.5 / 127.0 * 1.01),
        (KvType::Q4_0, 1.0 / 8.0 * 1.01),
    ] {
        for types in [
            KvTypes { keys: kind, values: KvType::F32 },
            KvTypes { keys: KvType::F32, values: kind },
            KvTypes { keys: kind, values: KvType::F16 },
        ] {
            let cache = Cache::new(Isa::Reference, types, head_dim, 32, positions);
            for position in [0, 33, 699] {
                let query = Numbers(position as u64).many(head_dim);
                let got = cache.attend(Isa::Reference, &[position], &query);
                let expected = exact.plain(position, &query, |x| x);
                let of_keys = if types.keys == kind { 2.0 * bound * 8.0 } else { 0.0 };
                let of_values = if types.values == kind { bound } else { 1.0 / 4096.0 };
                let allowed = 2e-6 + of_values + ((of_keys as f64).exp() - 1.0);
                let error =
                    got.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
                assert!(error <= allowed, "{types:?} at {position}: {error} of {allowed}");
                assert!(error > 0.0 || kind == KvType::F32 || position == 0, "{types:?} rounds");
            }
        }
    }
}

#[test]
fn bf16_is_rounded_half_to_even() {
    let cache = Cache::new(Isa::best(), KvTypes::both(KvType::BF16), 64, 32, 1);
    let got = cache.attend(Isa::best(), &[0], &[0.0; 64]);
    let expected: Vec<f32> = cache.values[0].iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    assert_eq!(bits(&got), bits(&expected));
}

#[test]
fn a_query_has_the_same_bits_alone_in_any_group_and_in_spans_on_every_instruction_set() {
    let mixed = |keys, values| KvTypes { keys, values };
    for (head_dim, page_tokens, types) in [
        (64, 32, F16),
        (128, 32, F16),
        (80, 16, F16),
        (40, 32, mixed(KvType::F16, KvType::BF16)),
        (64, 32, KvTypes::both(KvType::Q8_0)),
        (128, 16, KvTypes::both(KvType::Q4_0)),
        (96, 32, mixed(KvType::Q8_0, KvType::F16)),
        (32, 64, mixed(KvType::F16, KvType::Q4_0)),
        (24, 32, mixed(KvType::BF16, KvType::F32)),
    ] {
        // Runs across two segment borders and a span's; a page table in no order; NaN wherever nothing was stored.
        let positions: Vec<usize> = (110..147).chain([3, 260, 200, 600, 509, 510, 511, 512, 513]).collect();
        let queries: Vec<f32> = Numbers(9).many(positions.len() * head_dim).iter().map(|q| q * 5.0).collect();
        let reference = Cache::new(Isa::Reference, types, head_dim, page_tokens, 601);
        let alone: Vec<f32> = positions
            .iter()
            .zip(queries.chunks(head_dim))
            .flat_map(|(position, query)| reference.attend(Isa::Reference, &[*position], query))
            .collect();
        assert!(alone.iter().all(|x| x.is_finite()));
        for isa in Isa::ALL {
            let cache = Cache::new(isa, types, head_dim, page_tokens, 601);
            assert!(cache.memory == reference.memory, "{types:?} {}", isa.name());
            for group in [1, 2, 3, 5, 8, 13, 50] {
                let grouped: Vec<f32> = positions
                    .chunks(group)
                    .zip(queries.chunks(group * head_dim))
                    .flat_map(|(positions, queries)| cache.attend(isa, positions, queries))
                    .collect();
                assert_eq!(bits(&grouped), bits(&alone), "{types:?} {} in groups of {group}", isa.name());
            }
            for (position, (query, alone)) in
                positions.iter().zip(queries.chunks(head_dim).zip(alone.chunks(head_dim)))
            {
                let got = cache.attend_spans(isa, *position, query);
                assert_eq!(bits(&got), bits(alone), "{types:?} {} in spans", isa.name());
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_reach_those_who_see_them_and_no_one_else() {
    for types in [F16, KvTypes::both(KvType::Q8_0), KvTypes::both(KvType::Q4_0)] {
        values_that_are_not_finite(types);
    }
}

fn values_that_are_not_finite(types: KvTypes) {
    let mut cache = Cache::new(Isa::best(), types, 64, 32, 150);
    let block = cache.table[140 / 32] * cache.layout.page_bytes();
    let block = &mut cache.memory[block..][cache.layout.block(LAYER, HEAD)];
    let rows = |numbers| HeadRows { numbers, stride: 64 };
    store(Isa::best(), &cache.layout, block, 12..13, rows(&[0.5; 64]), rows(&[f32::NAN; 64]));
    let positions: Vec<usize> = (134..146).collect();
    let out = cache.attend(Isa::best(), &positions, &Numbers(1).many(12 * 64));
    for (position, out) in positions.iter().zip(out.chunks(64)) {
        assert_eq!(out.iter().all(|x| x.is_nan()), *position >= 140, "position {position}");
        assert_eq!(out.iter().all(|x| x.is_finite()), *position < 140, "position {position}");
    }
}

#[test]
fn sizes_that_cannot_be_laid_out_are_refused() {
    assert!(KvLayout::new(1, 1, 64, 24, F16).is_none());
    assert!(KvLayout::new(1, 0, 64, 32, F16).is_none());
    assert!(KvLayout::new(usize::MAX, 8, 128, 32, F16).is_none());
    assert!(KvLayout::new(1, 1, 80, 32, KvTypes::both(KvType::Q8_0)).is_none());
    assert_eq!(KvLayout::new(2, 4, 64, 32, F16).unwrap().page_bytes(), 2 * 2 * 4 * 2 * 64 * 32);
    let mixed = KvTypes { keys: KvType::Q8_0, values: KvType::Q4_0 };
    assert_eq!(KvLayout::new(1, 1, 64, 32, mixed).unwrap().page_bytes(), 32 * 2 * (34 + 18));
}

#[test]
fn a_digest_is_the_same_however_positions_are_grouped_and_changes_with_every_bit() {
    let types = [F16, F32, KvTypes { keys: KvType::Q8_0, values: KvType::Q4_0 }, KvTypes::both(KvType::Q4_0)];
    for types in types {
        digest_of(types);
    }
}

fn digest_of(types: KvTypes) {
    let cache = Cache::new(Isa::best(), types, 32, 32, 32);
    let mut block = cache.block(0).to_vec();
    let all = |block: &[u8], isa| {
        let mut digests = vec![7; 32];
        digest(isa, &cache.layout, block, 0..32, &mut digests);
        digests
    };
    let expected = all(&block, Isa::Reference);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        assert_eq!(all(&block, isa), expected);
        for (first, last) in [(0, 1), (0, 15), (3, 16), (15, 17), (16, 32), (5, 31), (31, 32)] {
            let mut digests = vec![7; last - first];
            digest(isa, &cache.layout, &block, first..last, &mut digests);
            assert_eq!(digests, expected[first..last]);
        }
    }
    for byte in 0..block.len() {
        for bit in [0, 3, 7] {
            block[byte] ^= 1 << bit;
            let differing = all(&block, Isa::best()).iter().zip(&expected).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 1, "{types:?} byte {byte} bit {bit}");
            block[byte] ^= 1 << bit;
        }
    }
}
