//! What the codes, scales and minimums of each format are: the constants that packing, unpacking and the kernels
//! share.
//!
//! The codebook formats are expanded when they are packed: a weight becomes the number of its value in a table of
//! at most 16, so that one byte shuffle decodes it. Looking entries of 8 weights up in the grids themselves takes
//! gathers, several times slower than the memory that is saved.
//!
//! Packing rounds nothing. A product with int8 activations is exact up to the dot product of a sub-block (in i32, whatever
//! the table or width) and the sum of minimums; it is rounded, once each, where a dot product meets the scale of its
//! sub-block and is added, where the block's scale, its minimums and the activations' scale come in. For formats without
//! sub-scales the first of these is exact too.

use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::{Bits, Half};
use unfazed_formats::block::grids::{
    FP4_VALUES, IQ2_MAGNITUDES, IQ3_S_MAGNITUDES, IQ3_XXS_MAGNITUDES, IQ4_VALUES,
};

/// A format of integer codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Groups of 32 columns in a block.
    pub groups: usize,
    /// Bits of a code.
    pub bits: Bits,
    /// What a code stands for.
    pub values: Values,
    /// What the values are multiplied by.
    pub scales: Scales,
    /// A power of two that belongs to the scale of the block, which as an f16 it might not fit.
    pub factor: f32,
}

/// What a code stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// The code less this.
    Less(u8),
    /// An entry of a table.
    Table([i8; 16]),
}

/// Scales of a block, and minimums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// An f16.
    F16,
    /// Half of an E8M0.
    E8m0,
    /// Scale and bias, of this kind of float.
    Affine(Half),
    /// Half of a UE4M3 for each 16 columns, none for the block.
    Ue4m3,
    /// An f16, and a signed byte for so many columns.
    Bytes(usize),
    /// Scale and minimum as f16, and both again, of 4 bits, for each 16 columns.
    K4,
    /// Scale and minimum as f16, and both again, of 6 bits, for each 32 columns.
    K6,
}

impl Spec {
    /// What a format is; `None` if its weights are floats.
    pub const fn of(format: BlockFormat) -> Option<Spec> {
        use BlockFormat::*;
        let (bits, values, scales) = match format {
            F32 | F16 | BF16 | FP8 | MXFP8 => return None,
            Q4_0 => (Bits::Four, Values::Less(8), Scales::F16),
            Q4_1 => (Bits::Four, Values::Less(0), Scales::Affine(Half::F16)),
            Q5_0 => (Bits::Five, Values::Less(16), Scales::F16),
            Q5_1 => (Bits::Five, Values::Less(0), Scales::Affine(Half::F16)),
            Q8_0 => (Bits::Eight, Values::Less(128), Scales::F16),
            IQ4_NL => (Bits::Four, Values::Table(IQ4_VALUES), Scales::F16),
            MXFP4 => (Bits::Four, Values::Table(FP4_VALUES), Scales::E8m0),
            NVFP4 => (Bits::Four, Values::Table(FP4_VALUES), Scales::Ue4m3),
            Affine(affine) => (affine.bits, Values::Less(0), Scales::Affine(affine.scale)),
            Q2_K => (Bits::Two, Values::Less(0), Scales::K4),
            Q3_K => (Bits::Three, Values::Less(4), Scales::Bytes(16)),
            Q4_K => (Bits::Four, Values::Less(0), Scales::K6),
            Q5_K => (Bits::Five, Values::Less(0), Scales::K6),
            Q6_K => (Bits::Six, Values::Less(32), Scales::Bytes(16)),
            TQ1_0 | TQ2_0 => (Bits::Two, Values::Less(1), Scales::F16),
            IQ1_S => (Bits::Three, IQ1, Scales::Bytes(32)),
            IQ1_M => (Bits::Three, IQ1, Scales::Bytes(16)),
            IQ2_XXS => (Bits::Three, IQ2, Scales::Bytes(32)),
            IQ2_XS | IQ2_S => (Bits::Three, IQ2, Scales::Bytes(16)),
            IQ3_XXS => (Bits::Four, signed_eight(IQ3_XXS_MAGNITUDES), Scales::Bytes(32)),
            IQ3_S => (Bits::Four, signed_eight(IQ3_S_MAGNITUDES), Scales::Bytes(32)),
            IQ4_XS => (Bits::Four, Values::Table(IQ4_VALUES), Scales::Bytes(32)),
        };
        let factor = match format {
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S => 0.125,
            IQ3_XXS => 0.25,
            _ => 1.0,
        };
        Some(Spec { groups: format.block_weights() / 32, bits, values, scales, factor })
    }

    /// What unsigned operands of dot products are more than the values: the codes themselves, or the table with the
    /// largest magnitude of a negative value added.
    pub const fn offset(&self) -> u8 {
        match self.values {
            Values::Less(offset) => offset,
            Values::Table(table) => {
                let (mut least, mut i) = (0, 0);
                while i < 16 {
                    if table[i] < least {
                        least = table[i];
                    }
                    i += 1;
                }
                least.unsigned_abs()
            }
        }
    }

    /// Columns that are scaled alike before the scale of the block: 16 or 32.
    pub const fn sub(&self) -> usize {
        match self.scales {
            Scales::Ue4m3 | Scales::K4 => 16,
            Scales::Bytes(columns) => columns,
            _ => 32,
        }
    }

    /// Whether something is added that all weights of a sub-block share.
    pub const fn minimums(&self) -> bool {
        matches!(self.scales, Scales::Affine(_) | Scales::K4 | Scales::K6)
    }

    /// Groups of 32 columns that are multiplied by activations of one scale: 8 in superblocks, else 1.
    pub const fn step(&self) -> usize {
        if self.groups == 8 { 8 } else { 1 }
    }
}

/// Eight times -1, 0 and 1 and an eighth, and then the same less an eighth. (The fourth entries are never used.)
const IQ1: Values = Values::Table([-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

/// The magnitudes, and then the same negative.
const IQ2: Values = {
    let [a, b, c] = [IQ2_MAGNITUDES[0] as i8, IQ2_MAGNITUDES[1] as i8, IQ2_MAGNITUDES[2] as i8];
    Values::Table([a, b, c, 0, -a, -b, -c, 0, 0, 0, 0, 0, 0, 0, 0, 0])
};

/// Eight magnitudes, and then the same negative.
const fn signed_eight(magnitudes: [u8; 8]) -> Values {
    let (mut table, mut i) = ([0; 16], 0);
    while i < 8 {
        table[i] = magnitudes[i] as i8;
        table[i + 8] = -(magnitudes[i] as i8);
        i += 1;
    }
    Values::Table(table)
}
