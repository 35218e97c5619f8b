//! MLX's affine formats: a group of weights shares a scale and a bias, `w = scale * code + bias`.
//!
//! MLX keeps codes, scales and biases in three tensors. A row of ours is one group after the other: scale, bias
//! (16 bits each), then the codes, a little-endian stream of bits as in MLX. The product is rounded to f32 (exact
//! for all widths: 11 bits times 8), then the sum.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// An affine format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Affine {
    /// Bits of a code.
    pub bits: Bits,
    /// Weights that share scale and bias.
    pub group: Group,
    /// What scale and bias are stored as.
    pub scale: Half,
}

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Bits {
    Two = 2,
    Three = 3,
    Four = 4,
    Five = 5,
    Six = 6,
    Eight = 8,
}

/// Weights that share scale and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Group {
    Of32 = 32,
    Of64 = 64,
    Of128 = 128,
}

/// A float of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Half {
    F16,
    BF16,
}

impl Bits {
    /// All widths.
    pub const ALL: [Bits; 6] = [Bits::Two, Bits::Three, Bits::Four, Bits::Five, Bits::Six, Bits::Eight];

    /// The number of bits.
    pub const fn count(self) -> usize {
        self as usize
    }
}

impl Group {
    /// All sizes.
    pub const ALL: [Group; 3] = [Group::Of32, Group::Of64, Group::Of128];

    /// The number of weights.
    pub const fn weights(self) -> usize {
        self as usize
    }
}

impl Half {
    /// The value of a little-endian float of this kind.
    pub fn value(self, bytes: [u8; 2]) -> f32 {
        match self {
            Half::F16 => f16::from_le_bytes(bytes).to_f32(),
            Half::BF16 => bf16::from_le_bytes(bytes).to_f32(),
        }
    }
}

impl Affine {
    /// All affine formats.
    pub fn all() -> impl Iterator<Item = Affine> {
        Bits::ALL.into_iter().flat_map(|bits| {
            Group::ALL.into_iter().flat_map(move |group| {
                [Half::F16, Half::BF16].into_iter().map(move |scale| Affine { bits, group, scale })
            })
        })
    }

    /// Bytes of a group: scale, bias, codes.
    pub const fn block_bytes(self) -> usize {
        4 + self.group.weights() / 8 * self.bits.count()
    }
}

/// Turns whole groups into weights. Both must be of the same number of groups.
pub(super) fn dequantise(affine: Affine, blocks: &[u8], out: &mut [f32]) {
    let groups = blocks.chunks_exact(affine.block_bytes());
    for (group, out) in groups.zip(out.chunks_exact_mut(affine.group.weights())) {
        let [s0, s1, b0, b1, codes @ ..] = group else { continue };
        let (scale, bias) = (affine.scale.value([*s0, *s1]), affine.scale.value([*b0, *b1]));
        let (bits, mask) = (affine.bits.count(), (1u16 << affine.bits.count()) - 1);
        for (i, weight) in out.iter_mut().enumerate() {
            let (byte, shift) = (i * bits / 8, i * bits % 8);
            // A code spans two bytes at most; the last one ends with its byte.
            let next = codes.get(byte + 1).copied().unwrap_or_default();
            let code = u16::from_le_bytes([codes[byte], next]) >> shift & mask;
            *weight = scale * f32::from(code) + bias;
        }
    }
}
