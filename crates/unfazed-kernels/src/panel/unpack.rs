//! What the bytes of a panel mean.

use unfazed_formats::BlockFormat;

use crate::LANES;

use super::half::{bf16_lanes, f16_lanes};
use super::layout::Geometry;

/// Columns that [`unpack_columns`] works on at a time: the largest block.
pub(crate) const CHUNK: usize = 256;

/// A block of 16 rows, taken apart. Weight `k` of a row is
/// `d * scales[k / SUB] * codes[k] + m * minimums[k / SUB]`.
pub(crate) struct Unpacked {
    /// Signed codes, by column.
    pub(crate) codes: [[i8; LANES]; CHUNK],
    /// Integer scale of each sub-block.
    pub(crate) scales: [[i8; LANES]; 16],
    /// Integer minimum of each sub-block.
    pub(crate) minimums: [[i8; LANES]; 16],
    /// Scale of the block.
    pub(crate) d: [f32; LANES],
    /// Factor of the minimums (for the K formats it is negative dmin); unused without minimums.
    pub(crate) m: [f32; LANES],
}

impl Unpacked {
    pub(crate) const fn new() -> Unpacked {
        Unpacked {
            codes: [[0; LANES]; CHUNK],
            scales: [[1; LANES]; 16],
            minimums: [[1; LANES]; 16],
            d: [0.0; LANES],
            m: [0.0; LANES],
        }
    }
}

/// A format of integer codes.
pub(crate) trait Codes {
    /// The format.
    const FORMAT: BlockFormat;
    /// Weights of a block.
    const WEIGHTS: usize = Self::FORMAT.block_weights();
    /// Weights of a sub-block, which share an integer scale.
    const SUB: usize = 32;
    /// Whether there are minimums.
    const MINIMUMS: bool = false;

    /// Takes block `block` of a panel apart.
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked);
}

/// Evaluates an expression with `$Codes` standing for the type that unpacks `$format`, or `$floats` for floats.
macro_rules! for_codes {
    ($format:expr, $codes:ident => $body:expr, $floats:expr) => {{
        use unfazed_formats::BlockFormat;
        use $crate::panel::codes;
        macro_rules! with {
            ($type:ident) => {{
                type $codes = codes::$type;
                $body
            }};
        }
        match $format {
            BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => $floats,
            BlockFormat::Q4_0 => with!(Q4_0),
            BlockFormat::Q4_1 => with!(Q4_1),
            BlockFormat::Q5_0 => with!(Q5_0),
            BlockFormat::Q5_1 => with!(Q5_1),
            BlockFormat::Q8_0 => with!(Q8_0),
            BlockFormat::Q4_K => with!(Q4K),
            BlockFormat::Q5_K => with!(Q5K),
            BlockFormat::Q6_K => with!(Q6K),
        }
    }};
}
pub(crate) use for_codes;

/// Writes the weights of columns `first..first + out.len()` of a panel, exactly as the block format defines them.
/// Both ends must be whole blocks; at most [`CHUNK`] columns.
#[inline(always)]
pub(crate) fn unpack_columns(format: BlockFormat, panel: &[u8], first: usize, out: &mut [[f32; LANES]]) {
    for_codes!(format, C => unpack_weights::<C>(panel, first, out), {
        let size = Geometry::of(format).block;
        let columns = panel[first * size..].chunks_exact(size);
        match format {
            BlockFormat::F16 => out.iter_mut().zip(columns).for_each(|(out, bytes)| *out = f16_lanes(bytes)),
            BlockFormat::BF16 => out.iter_mut().zip(columns).for_each(|(out, bytes)| *out = bf16_lanes(bytes)),
            _ => out.iter_mut().zip(columns).for_each(|(out, bytes)| *out = f32_lanes(bytes)),
        }
    });
}

#[inline(always)]
fn f32_lanes(bytes: &[u8]) -> [f32; LANES] {
    let bytes = &bytes[..4 * LANES];
    std::array::from_fn(|lane| {
        let at = 4 * lane;
        f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    })
}

#[inline(always)]
fn unpack_weights<C: Codes>(panel: &[u8], first: usize, out: &mut [[f32; LANES]]) {
    let mut block = Unpacked::new();
    for (i, out) in out.chunks_exact_mut(C::WEIGHTS).enumerate() {
        C::unpack(panel, first / C::WEIGHTS + i, &mut block);
        for (k, out) in out.iter_mut().enumerate() {
            let (scales, minimums) = (&block.scales[k / C::SUB], &block.minimums[k / C::SUB]);
            for lane in 0..LANES {
                let scale = block.d[lane] * f32::from(scales[lane]);
                let weight = scale * f32::from(block.codes[k][lane]);
                let minimum = block.m[lane] * f32::from(minimums[lane]);
                out[lane] = if C::MINIMUMS { weight + minimum } else { weight };
            }
        }
    }
}
