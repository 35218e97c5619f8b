//! What the bytes of a panel mean.

use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::{Bits, Half};
use unfazed_formats::block::small_floats::{e8m0, e8m0_half};

use crate::LANES;

use super::half::{bf16_lanes, e4m3_to_f32, f16_lanes, half_of_ue4m3};
use super::layout::{Geometry, LINE, SCALES};
use super::spec::{Scales, Spec, Values};

/// Columns that [`unpack_columns`] works on at a time: the largest block.
pub(crate) const CHUNK: usize = 256;

/// A step of 32 or 256 columns of 16 rows, taken apart: columns that are multiplied by activations of one scale.
/// Weight `k` of a row is `d * scales[k / sub] * values[k] + m * minimums[k / sub]`.
pub(crate) struct Unpacked {
    /// What the codes stand for, by column.
    pub(crate) values: [[i16; LANES]; CHUNK],
    /// Scale of each sub-block; 1 if there are none.
    pub(crate) scales: [[f32; LANES]; 16],
    /// Integer minimum of each sub-block; 1 if there is one for all.
    pub(crate) minimums: [[i16; LANES]; 16],
    /// Scale of the block; 1 if there is none.
    pub(crate) d: [f32; LANES],
    /// Factor of the minimums (for the K formats it is negative dmin); unused without minimums.
    pub(crate) m: [f32; LANES],
}

impl Unpacked {
    pub(crate) const fn new() -> Unpacked {
        Unpacked {
            values: [[0; LANES]; CHUNK],
            scales: [[1.0; LANES]; 16],
            minimums: [[1; LANES]; 16],
            d: [1.0; LANES],
            m: [0.0; LANES],
        }
    }

    /// Takes a step of a panel apart. All steps that one `Unpacked` sees must be of the same format.
    #[inline(always)]
    pub(crate) fn unpack(&mut self, spec: &Spec, geometry: &Geometry, panel: &[u8], step: usize) {
        let first = step * spec.step();
        self.unpack_scales(spec, geometry, panel, first);
        let (groups, _) = self.values.as_chunks_mut::<32>();
        for (g, values) in groups[..spec.step()].iter_mut().enumerate() {
            unpack_group(spec, &panel[geometry.group_at(first + g)..][..geometry.group], values);
        }
    }

    /// Takes the scales apart that belong to group `first` (and those after it in a superblock).
    #[inline(always)]
    fn unpack_scales(&mut self, spec: &Spec, geometry: &Geometry, panel: &[u8], first: usize) {
        let block = first / spec.groups;
        let scales = &panel[geometry.scales_at(block)..];
        let header = &panel[geometry.block_at(block)..][..geometry.header];
        let d = match spec.scales {
            Scales::F16 | Scales::Bytes(_) | Scales::K4 | Scales::K6 | Scales::Affine(Half::F16) => {
                f16_lanes(scales)
            }
            Scales::Affine(Half::BF16) => bf16_lanes(scales),
            Scales::E8m0 => std::array::from_fn(|lane| e8m0_half(scales[lane])),
            Scales::Ue4m3 => [1.0; LANES],
        };
        self.d = d.map(|d| d * spec.factor);
        match spec.scales {
            Scales::F16 | Scales::E8m0 => {}
            Scales::Affine(Half::F16) => self.m = f16_lanes(&header[SCALES..]),
            Scales::Affine(Half::BF16) => self.m = bf16_lanes(&header[SCALES..]),
            Scales::Ue4m3 => {
                let subs = header.chunks_exact(LANES).skip(first % spec.groups * 2);
                for (scales, bytes) in self.scales[..2].iter_mut().zip(subs) {
                    *scales = std::array::from_fn(|lane| half_of_ue4m3(bytes[lane]));
                }
            }
            Scales::Bytes(_) => {
                for (scales, bytes) in self.scales.iter_mut().zip(header.chunks_exact(LANES)) {
                    *scales = std::array::from_fn(|lane| f32::from(bytes[lane] as i8));
                }
            }
            Scales::K4 => self.unpack_k_scales::<16>(header),
            Scales::K6 => self.unpack_k_scales::<8>(header),
        }
    }

    #[inline(always)]
    fn unpack_k_scales<const SUBS: usize>(&mut self, header: &[u8]) {
        self.m = f16_lanes(&header[SCALES..]).map(|dmin| -dmin);
        let (low, high) = header[2 * SCALES..].split_at(SUBS * LANES);
        for x in 0..SUBS * LANES {
            let top = if SUBS == 8 { high[x % LINE] >> (x / LINE * 4) } else { 0 };
            self.scales[x / LANES][x % LANES] = f32::from(low[x] & 15 | (top & 3) << 4);
            self.minimums[x / 32 * 2 + x % 2][x % 32 / 2] = i16::from(low[x] >> 4 | (top & 12) << 2);
        }
    }
}

/// Takes 32 columns of codes apart.
#[inline(always)]
fn unpack_group(spec: &Spec, group: &[u8], values: &mut [[i16; LANES]; 32]) {
    for (k, values) in values.iter_mut().enumerate() {
        let code = match spec.bits {
            Bits::Two => pair(group, k),
            Bits::Three => or(pair(group, k), bit(&group[2 * LINE..], k), 2),
            Bits::Four => nibble(group, k),
            Bits::Five => or(nibble(group, k), bit(&group[4 * LINE..], k), 4),
            Bits::Six => or(nibble(group, k), pair(&group[4 * LINE..], k), 4),
            Bits::Eight => byte(group, k),
        };
        *values = match &spec.values {
            Values::Less(offset) => code.map(|code| i16::from(code) - i16::from(*offset)),
            Values::Table(table) => code.map(|code| i16::from(table[usize::from(code & 15)])),
        };
    }
}

/// Byte `k % 4` of each lane of vector `k / 4`.
#[inline(always)]
fn byte(bytes: &[u8], k: usize) -> [u8; LANES] {
    let vector = &bytes[k / 4 * LINE..][..LINE];
    std::array::from_fn(|lane| vector[4 * lane + k % 4])
}

/// Column `k` of a plane of nibbles.
#[inline(always)]
fn nibble(plane: &[u8], k: usize) -> [u8; LANES] {
    byte(plane, k % 16).map(|byte| byte >> (k / 16 * 4) & 15)
}

/// Column `k` of a plane of bit pairs.
#[inline(always)]
fn pair(plane: &[u8], k: usize) -> [u8; LANES] {
    byte(plane, k / 16 * 4 + k % 4).map(|byte| byte >> (k / 4 % 4 * 2) & 3)
}

/// Column `k` of a plane of bits.
#[inline(always)]
fn bit(plane: &[u8], k: usize) -> [u8; LANES] {
    byte(plane, k % 4).map(|byte| byte >> (k / 4) & 1)
}

#[inline(always)]
fn or(low: [u8; LANES], high: [u8; LANES], shift: u32) -> [u8; LANES] {
    std::array::from_fn(|lane| low[lane] | high[lane] << shift)
}

/// Writes the weights of columns `first..first + out.len()` of a panel, exactly as the block format defines them.
/// Both ends must be whole blocks; at most [`CHUNK`] columns.
#[inline(always)]
pub(crate) fn unpack_columns(format: BlockFormat, panel: &[u8], first: usize, out: &mut [[f32; LANES]]) {
    let geometry = Geometry::of(format);
    match Spec::of(format) {
        Some(spec) => unpack_weights(&spec, &geometry, panel, first, out),
        None => unpack_floats(format, &geometry, panel, first, out),
    }
}

#[inline(always)]
fn unpack_floats(
    format: BlockFormat,
    geometry: &Geometry,
    panel: &[u8],
    first: usize,
    out: &mut [[f32; LANES]],
) {
    match format {
        BlockFormat::FP8 | BlockFormat::MXFP8 => {
            for (g, out) in out.chunks_exact_mut(32).enumerate() {
                unpack_small_floats(format, geometry, panel, first / 32 + g, out);
            }
        }
        _ => {
            let columns = panel[first * geometry.block..].chunks_exact(geometry.block);
            for (out, bytes) in out.iter_mut().zip(columns) {
                *out = match format {
                    BlockFormat::F16 => f16_lanes(bytes),
                    BlockFormat::BF16 => bf16_lanes(bytes),
                    _ => f32_lanes(bytes),
                };
            }
        }
    }
}

/// 32 columns of E4M3 floats.
#[inline(always)]
fn unpack_small_floats(
    format: BlockFormat,
    geometry: &Geometry,
    panel: &[u8],
    group: usize,
    out: &mut [[f32; LANES]],
) {
    let scales = &panel[geometry.scales_at(group / geometry.groups)..];
    let scales = match format {
        BlockFormat::FP8 => f32_lanes(scales),
        _ => std::array::from_fn(|lane| e8m0(scales[lane])),
    };
    let columns = panel[geometry.group_at(group)..].chunks_exact(LANES);
    for (out, bytes) in out.iter_mut().zip(columns) {
        *out = std::array::from_fn(|lane| scales[lane] * e4m3_to_f32(bytes[lane]));
    }
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
fn unpack_weights(spec: &Spec, geometry: &Geometry, panel: &[u8], first: usize, out: &mut [[f32; LANES]]) {
    let columns = 32 * spec.step();
    let mut step = Unpacked::new();
    for (i, out) in out.chunks_exact_mut(columns).enumerate() {
        step.unpack(spec, geometry, panel, first / columns + i);
        for (k, out) in out.iter_mut().enumerate() {
            let (scales, minimums) = (&step.scales[k / spec.sub()], &step.minimums[k / spec.sub()]);
            for lane in 0..LANES {
                let weight = step.d[lane] * scales[lane] * f32::from(step.values[k][lane]);
                let minimum = step.m[lane] * f32::from(minimums[lane]);
                out[lane] = if spec.minimums() { weight + minimum } else { weight };
            }
        }
    }
}
