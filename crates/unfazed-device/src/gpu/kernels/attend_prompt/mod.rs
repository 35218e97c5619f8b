//! Attention of many rows of a sequence, taken together: prompt mode.
//!
//! A workgroup has a block of rows and one query head. It goes over the keys that its last row sees, from position 0 on, a
//! fixed number at a time: scores, the largest so far, exponentials, what was added up before scaled down, weighted values
//! (Milakov and Gimelshein, "Online normalizer calculation for softmax"). What a row does not see has a weight of zero, and
//! adds nothing to it. So the order of a row's additions depends on its position alone, not on the rows that it is with.
//!
//! | file | what |
//! |---|---|
//! | `floats.rs` | f32, for every type of keys and values |
//! | `cooperative.rs` | products of 16x16 matrices of f16, sums in f32; for keys and values that f16 can hold |

mod cooperative;
mod floats;

use unfazed_formats::KvTypes;

use super::kv::KvText;
use crate::gpu::kernel::Kernel;
use crate::gpu::open::Abilities;

/// Rows of a block, for [`StepShape::block_rows`](super::step::StepShape::block_rows).
pub const BLOCK_ROWS: usize = 64;

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttendPrompt {
    /// Query heads, a multiple of the key heads.
    pub heads: usize,
    /// Keys and values.
    pub kv: KvText,
}

/// The immediates: where rows are, in f32s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptPlace {
    /// In the buffer of activations the first row's query, `[heads * head_dim]`.
    pub query: u32,
    /// From a row's query to the next one's.
    pub query_stride: u32,
    /// In its buffer the first row's context.
    pub context: u32,
    /// From a row's context to the next one's.
    pub context_stride: u32,
}

impl PromptPlace {
    /// As the kernel reads it.
    pub fn bytes(&self) -> [u8; 16] {
        let PromptPlace { query, query_stride, context, context_stride } = *self;
        bytemuck::cast([query, query_stride, context, context_stride])
    }
}

/// The immediates in WGSL.
const PLACE: &str = "
struct Place { query: u32, query_stride: u32, context: u32, context_stride: u32 }
var<immediate> place: Place;
";

impl AttendPrompt {
    /// The kernel. Bindings: the step, activations (queries are read), the layer's keys and values twice, contexts (written).
    /// Immediates: [`PromptPlace`]. Grid: [`AttendPrompt::grid`].
    pub fn kernel(&self, abilities: &Abilities) -> Kernel {
        if self.multiplies_matrices(abilities) { cooperative::kernel(self) } else { floats::kernel(self) }
    }

    /// Whether there are products of matrices for it.
    fn multiplies_matrices(&self, abilities: &Abilities) -> bool {
        let KvTypes { keys, values } = self.kv.types;
        let halves = cooperative::takes(keys) && cooperative::takes(values);
        let matrices = abilities.subgroup == Some(32) && abilities.cooperative.contains(&[16; 3]);
        let room = cooperative::shared_bytes(self.kv.head_dim) <= abilities.shared_bytes as usize;
        halves && matrices && abilities.half && room && self.kv.head_dim.is_multiple_of(32)
    }

    /// Workgroups for so many blocks.
    pub fn grid(&self, blocks: u32) -> [u32; 3] {
        [self.heads as u32, blocks, 1]
    }

    /// Sizes that both kernels know, and what scores are multiplied by: exponentials are powers of two.
    fn constants(&self) -> String {
        format!(
            "
const GROUP = {group}u;
const SCALE = {scale:e}f;
",
            group = self.heads / self.kv.kv_heads,
            scale = std::f64::consts::LOG2_E / (self.kv.head_dim as f64).sqrt(),
        )
    }
}
