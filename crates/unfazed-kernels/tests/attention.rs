//! Attention against a plain f64 computation, and its bits across instruction sets and groupings.

#![allow(clippy::unwrap_used)]

use half::f16;
use unfazed_kernels::Isa;
use unfazed_kernels::attention::{AttentionScratch, KvElement, KvLayout, Queries, attend, digest, store};

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
struct Cache<E> {
    layout: KvLayout,
    table: Vec<usize>,
    memory: Vec<E>,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

const LAYER: usize = 1;
const HEAD: usize = 2;

impl<E: KvElement> Cache<E> {
    fn new(isa: Isa, head_dim: usize, page_tokens: usize, positions: usize, rubbish: E) -> Cache<E> {
        let layout = KvLayout::new(2, 3, head_dim, page_tokens).unwrap();
        let pages = positions.div_ceil(page_tokens) + 1;
        let table: Vec<usize> = (0..pages).map(|i| (i * 7 + 3) % pages).collect();
        let table = if pages.is_multiple_of(7) { (0..pages).rev().collect() } else { table };
        let mut numbers = Numbers(head_dim as u64);
        let mut cache = Cache {
            layout,
            table,
            memory: vec![rubbish; pages * layout.page_len()],
            keys: (0..positions).map(|_| numbers.many(head_dim)).collect(),
            values: (0..positions).map(|_| numbers.many(head_dim)).collect(),
        };
        for position in 0..positions {
            let start = cache.table[position / page_tokens] * layout.page_len();
            let block = &mut cache.memory[start..][layout.block(LAYER, HEAD)];
            let (key, value) = (&cache.keys[position], &cache.values[position]);
            store(isa, &layout, block, position % page_tokens, key, value);
        }
        cache
    }

    fn attend(&self, isa: Isa, positions: &[usize], vectors: &[f32]) -> Vec<f32> {
        let head_dim = self.layout.head_dim();
        let mut out = vec![f32::NAN; positions.len() * head_dim];
        let mut scratch = AttentionScratch::new(positions.len(), head_dim);
        let block = |page: usize| {
            &self.memory[self.table[page] * self.layout.page_len()..][self.layout.block(LAYER, HEAD)]
        };
        attend(isa, &self.layout, block, Queries { positions, vectors, out: &mut out }, &mut scratch);
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
fn attention_is_right_at_every_page_and_segment_border() {
    for (head_dim, page_tokens) in [(64, 32), (128, 16), (80, 48), (8, 32), (24, 128)] {
        let halves = Cache::<f16>::new(Isa::Reference, head_dim, page_tokens, 300, f16::NAN);
        let floats = Cache::<f32>::new(Isa::Reference, head_dim, page_tokens, 300, f32::NAN);
        let mut numbers = Numbers(5);
        for position in [0, 1, 15, 16, 17, 31, 32, 47, 48, 63, 64, 127, 128, 129, 143, 255, 256, 299] {
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

#[test]
fn a_query_has_the_same_bits_alone_and_in_any_group_on_every_instruction_set() {
    for (head_dim, page_tokens) in [(64, 32), (128, 32), (80, 16), (40, 32)] {
        // Runs across two segment borders; a page table in no order; NaN wherever nothing was stored.
        let positions: Vec<usize> = (110..147).chain([3, 260, 200]).collect();
        let queries: Vec<f32> = Numbers(9).many(positions.len() * head_dim).iter().map(|q| q * 5.0).collect();
        let reference = Cache::<f16>::new(Isa::Reference, head_dim, page_tokens, 261, f16::NAN);
        let alone: Vec<f32> = positions
            .iter()
            .zip(queries.chunks(head_dim))
            .flat_map(|(position, query)| reference.attend(Isa::Reference, &[*position], query))
            .collect();
        assert!(alone.iter().all(|x| x.is_finite()));
        for isa in Isa::ALL {
            let cache = Cache::<f16>::new(isa, head_dim, page_tokens, 261, f16::NAN);
            assert!(cache.memory.iter().zip(&reference.memory).all(|(a, b)| a.to_bits() == b.to_bits()));
            for group in [1, 2, 3, 5, 8, 13, 40] {
                let grouped: Vec<f32> = positions
                    .chunks(group)
                    .zip(queries.chunks(group * head_dim))
                    .flat_map(|(positions, queries)| cache.attend(isa, positions, queries))
                    .collect();
                assert_eq!(bits(&grouped), bits(&alone), "{} in groups of {group}", isa.name());
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_reach_those_who_see_them_and_no_one_else() {
    let mut cache = Cache::<f16>::new(Isa::best(), 64, 32, 150, f16::INFINITY);
    let block = cache.table[140 / 32] * cache.layout.page_len();
    let block = &mut cache.memory[block..][cache.layout.block(LAYER, HEAD)];
    store(Isa::best(), &cache.layout, block, 140 % 32, &[0.5; 64], &[f32::NAN; 64]);
    let positions: Vec<usize> = (134..146).collect();
    let out = cache.attend(Isa::best(), &positions, &Numbers(1).many(12 * 64));
    for (position, out) in positions.iter().zip(out.chunks(64)) {
        assert_eq!(out.iter().all(|x| x.is_nan()), *position >= 140, "position {position}");
        assert_eq!(out.iter().all(|x| x.is_finite()), *position < 140, "position {position}");
    }
}

#[test]
fn sizes_that_cannot_be_laid_out_are_refused() {
    assert!(KvLayout::new(1, 1, 64, 24).is_none());
    assert!(KvLayout::new(1, 0, 64, 32).is_none());
    assert!(KvLayout::new(usize::MAX, 8, 128, 32).is_none());
    assert_eq!(KvLayout::new(2, 4, 64, 32).unwrap().page_len(), 2 * 4 * 2 * 64 * 32);
}

#[test]
fn a_digest_is_the_same_however_positions_are_grouped_and_changes_with_every_bit() {
    let cache = Cache::<f16>::new(Isa::best(), 20, 32, 32, f16::NAN);
    let start = cache.table[0] * cache.layout.page_len();
    let mut block = cache.memory[start..][cache.layout.block(LAYER, HEAD)].to_vec();
    let all = |block: &[f16], isa| {
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
    for element in 0..block.len() {
        for bit in [0, 7, 15] {
            let before = block[element];
            block[element] = f16::from_bits(before.to_bits() ^ 1 << bit);
            let differing = all(&block, Isa::best()).iter().zip(&expected).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 1, "element {element} bit {bit}");
            block[element] = before;
        }
    }
}
