//! Parts of a matrix, or of a stack of experts, for adapters that bind less than all of it at once; and the scalars of a
//! dispatch.

use unfazed_kernels::panel::PanelLayout;

use crate::gpu::Abilities;

/// Where a binding may start, whatever the adapter.
const ALIGNMENT: u64 = 256;

/// Panels of a matrix, or experts of a stack, that are bound and dispatched together: the binding begins with the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The first panel or expert.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Shard {
    /// All `count` of them.
    pub fn all(count: usize) -> Shard {
        Shard { first: 0, count: count as u32 }
    }

    /// All panels of a matrix.
    pub fn whole(layout: &PanelLayout) -> Shard {
        Shard::all(layout.panels())
    }

    /// Divides `count` pieces of `bytes` bytes, in order, into as few bindings as an adapter can have. Each starts where a
    /// binding may, if the pieces do not exceed a quarter of the largest binding.
    pub fn divide(count: usize, bytes: usize, abilities: &Abilities) -> Vec<Shard> {
        let bytes = (bytes as u64).max(1);
        let most = (abilities.binding_bytes / bytes).clamp(1, count.max(1) as u64);
        // Pieces are whole lines of 64 bytes.
        let aligned = if bytes.is_multiple_of(ALIGNMENT) { 1 } else { 4 };
        let most = if most < count as u64 && most > aligned { most / aligned * aligned } else { most };
        let starts = (0..count as u64).step_by(most as usize);
        starts
            .map(|first| Shard { first: first as u32, count: most.min(count as u64 - first) as u32 })
            .collect()
    }
}

/// WGSL of [`immediates`].
pub(super) const IMMEDIATES: &str = "
struct Dispatch { rows: u32, first: u32, count: u32 }
var<immediate> dispatch: Dispatch;
";

/// Bytes of [`immediates`].
pub(super) const IMMEDIATE_BYTES: u32 = 12;

/// The scalars of a dispatch of `rows` rows with a shard of the weights, for the decode kernels and the embedding.
pub fn immediates(rows: usize, shard: Shard) -> [u8; IMMEDIATE_BYTES as usize] {
    let words = [rows as u32, shard.first, shard.count];
    std::array::from_fn(|i| words[i / 4].to_le_bytes()[i % 4])
}
