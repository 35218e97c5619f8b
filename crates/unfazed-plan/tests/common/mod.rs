//! Models and machines of any size, as their headers would describe them.

#![allow(dead_code, reason = "several test programs share this, and each uses a part of it")]

use unfazed_formats::config::{ExpertConfig, Family, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{BlockFormat, Extent, FileId, ModelConfig, TensorInfo};
use unfazed_plan::machine::{Pool, PoolKind, Rates};
use unfazed_plan::{Bytes, Machine, Plan, Weights};

pub(crate) const GIB: u64 = 1 << 30;

/// A model's sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) context: usize,
    /// How many, how many used, how wide.
    pub(crate) experts: Option<(usize, usize, usize)>,
    pub(crate) format: BlockFormat,
}

/// Qwen3-30B-A3B's.
pub(crate) const QWEN3_30B: Shape = Shape {
    layers: 48,
    hidden: 2048,
    kv_heads: 4,
    head_dim: 128,
    context: 40960,
    experts: Some((128, 8, 768)),
    format: BlockFormat::Q4_K,
};

/// Like Strata's model: 512 experts in a layer, 1.3 MiB each.
pub(crate) const STRATA: Shape =
    Shape { context: 262_144, experts: Some((512, 10, 512)), format: BlockFormat::Q3_K, ..QWEN3_30B };

impl Shape {
    pub(crate) fn config(&self) -> ModelConfig {
        let experts = self.experts.map(|(count, used, feed_forward)| ExpertConfig {
            count,
            used,
            feed_forward,
            normalised: true,
        });
        ModelConfig {
            family: Family::Qwen3Moe,
            layers: self.layers,
            hidden: self.hidden,
            heads: self.kv_heads * 4,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            feed_forward: self.hidden * 4,
            experts,
            vocab: 50_000,
            context: self.context,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                base: 1e4,
                dimensions: self.head_dim,
                pairing: RopePairing::Halves,
                scaling: RopeScaling::None,
            },
            tied_embeddings: false,
        }
    }

    /// All tensors of the model, by GGUF's names.
    pub(crate) fn tensors(&self) -> Vec<TensorInfo> {
        let (hidden, vocab) = (self.hidden as u64, 50_000);
        let query = (self.kv_heads * 4 * self.head_dim) as u64;
        let kv = (self.kv_heads * self.head_dim) as u64;
        let mut tensors = vec![
            self.tensor("token_embd.weight", &[vocab, hidden]),
            self.tensor("output.weight", &[vocab, hidden]),
            self.tensor("output_norm.weight", &[hidden]),
        ];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[u64]| {
                tensors.push(self.tensor(&format!("blk.{layer}.{name}.weight"), shape));
            };
            add("attn_norm", &[hidden]);
            add("attn_q", &[query, hidden]);
            add("attn_k", &[kv, hidden]);
            add("attn_v", &[kv, hidden]);
            add("attn_output", &[hidden, query]);
            match self.experts {
                Some((count, _, width)) => {
                    let (count, width) = (count as u64, width as u64);
                    add("ffn_gate_inp", &[count, hidden]);
                    add("ffn_gate_exps", &[count, width, hidden]);
                    add("ffn_up_exps", &[count, width, hidden]);
                    add("ffn_down_exps", &[count, hidden, width]);
                }
                None => {
                    add("ffn_gate", &[hidden * 4, hidden]);
                    add("ffn_up", &[hidden * 4, hidden]);
                    add("ffn_down", &[hidden, hidden * 4]);
                }
            }
        }
        tensors
    }

    fn tensor(&self, name: &str, shape: &[u64]) -> TensorInfo {
        let format = if shape.len() < 2 { BlockFormat::F32 } else { self.format };
        let (columns, rows) = shape.split_last().unwrap();
        let blocks = columns.div_ceil(format.block_weights() as u64);
        let len = blocks * format.block_bytes() as u64 * rows.iter().product::<u64>();
        let extent = Extent { file: FileId(0), offset: 0, len };
        TensorInfo { name: name.to_owned(), shape: shape.to_vec(), format, extent }
    }

    pub(crate) fn weights(&self) -> Weights {
        Weights::of(&self.config(), &self.tensors())
    }
}

/// A machine with so much free memory and no measured rates.
pub(crate) fn machine(free: u64) -> Machine {
    let memory = Pool { kind: PoolKind::Memory, total: Bytes(free), free: Bytes(free), bound: None };
    Machine { memory, cores: 4, most_threads: 8, rates: Vec::new(), ..Machine::default() }
}

/// The same with rates, in 10^9 a second.
pub(crate) fn measured(free: u64, read: u64, macs: u64, disk: u64) -> Machine {
    let rates = Rates {
        threads: 4,
        read_per_second: Bytes(read * 1_000_000_000),
        macs_per_second: macs * 1_000_000_000,
    };
    Machine { rates: vec![rates], disk_per_second: Some(Bytes(disk * 1_000_000_000)), ..machine(free) }
}

/// What a plan takes, reserve included.
pub(crate) fn sum(plan: &Plan) -> u64 {
    plan.parts().iter().map(|part| part.bytes.0).sum()
}

/// Asserts that steps of up to so many rows have their places in the arena, none over another, and that there is no place
/// for more.
pub(crate) fn assert_every_chunk_has_its_places(plan: &Plan, rows: usize) {
    for chunk in 1..=rows {
        assert_places(plan, chunk);
    }
    assert!(plan.arena.places(0).is_none() && plan.arena.places(plan.chunk.0 + 1).is_none());
}

/// Asserts that a step of so many rows has its places in the arena, and that they begin where those of the largest begin.
pub(crate) fn assert_places(plan: &Plan, rows: usize) {
    let places = plan.arena.places(rows).unwrap();
    let largest = plan.arena.places(plan.chunk.0).unwrap();
    let mut end = 0;
    for (place, largest) in places.iter().zip(&largest) {
        assert!(place.start >= end && place.end > place.start, "{rows} rows: {places:?}");
        assert!(place.start == largest.start && place.end <= largest.end, "{rows} rows: {places:?}");
        end = place.end;
    }
    assert!(end <= plan.arena.bytes.0 && plan.arena.bytes == plan.scratch_bytes, "{rows} rows end at {end}");
}
