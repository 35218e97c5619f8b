//! Inputs for kernel tests: random and adversarial file rows and activations.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use half::f16;
use unfazed_formats::BlockFormat;
use unfazed_formats::block::Affine;
use unfazed_formats::block::affine::{Bits, Group, Half};
use unfazed_kernels::Isa;
use unfazed_kernels::activations::{Grain, QuantisedRows, Tile};
use unfazed_kernels::matmul::matmul;
use unfazed_kernels::panel::{PackedMatrix, PanelBuffer, PanelLayout, pack_panel};

/// The instruction sets of this processor.
pub fn instruction_sets() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available()).collect()
}

/// Every format, but of the affine ones, which differ in how large a group is and what its scale is, one for each
/// width and each group: what takes long for all of them is tested with these.
pub fn formats() -> Vec<BlockFormat> {
    let few = |affine: &Affine| {
        let halves = [Half::F16, Half::BF16];
        let i = Bits::ALL.iter().position(|bits| *bits == affine.bits).unwrap();
        (affine.group, affine.scale) == (Group::ALL[i % 3], halves[i / 3])
    };
    BlockFormat::all()
        .filter(|format| !matches!(format, BlockFormat::Affine(affine) if !few(affine)))
        .collect()
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// How the float scales of blocks (or float weights) are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scales {
    /// Of the size that models have.
    Ordinary,
    /// Zero, negative zero, smallest, subnormal and largest: all finite.
    Extreme,
    /// Any bits: infinities and NaNs too.
    Any,
}

impl Scales {
    pub const ALL: [Scales; 3] = [Scales::Ordinary, Scales::Extreme, Scales::Any];

    fn f16(self, random: &mut Random) -> u16 {
        const EXTREME: [u16; 8] = [0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff];
        const SPECIAL: [u16; 5] = [0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff];
        match self {
            Scales::Ordinary => f16::from_f32(random.float() * 0.02).to_bits(),
            Scales::Extreme => EXTREME[random.below(8)],
            Scales::Any if random.below(16) == 0 => SPECIAL[random.below(5)],
            Scales::Any => random.bits() as u16,
        }
    }

    /// An E8M0 scale.
    fn exponent(self, random: &mut Random) -> u8 {
        match self {
            Scales::Ordinary => 118 + random.below(4) as u8,
            Scales::Extreme => [0, 1, 2, 3, 200, 254][random.below(6)],
            Scales::Any => random.bits() as u8,
        }
    }
}

/// Bytes of the codes and integer scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bytes {
    Random,
    All(u8),
}

/// `rows` file rows.
pub fn file_rows(
    format: BlockFormat,
    rows: usize,
    columns: usize,
    scales: Scales,
    bytes: Bytes,
    random: &mut Random,
) -> Vec<u8> {
    let mut out = vec![0; rows * format.row_bytes(columns).unwrap()];
    for block in out.chunks_exact_mut(format.block_bytes()) {
        for byte in block.iter_mut() {
            *byte = match bytes {
                Bytes::Random => random.bits() as u8,
                Bytes::All(byte) => byte,
            };
        }
        let mut put = |at: usize, random: &mut Random| {
            block[at..at + 2].copy_from_slice(&scales.f16(random).to_le_bytes());
        };
        match format {
            BlockFormat::F32 => {
                let value = match scales {
                    Scales::Ordinary => random.float().to_bits(),
                    _ => u32::from(scales.f16(random)) << 16 | random.below(2) as u32,
                };
                block.copy_from_slice(&value.to_le_bytes());
            }
            BlockFormat::F16 => put(0, random),
            BlockFormat::BF16 if scales == Scales::Ordinary => {
                block.copy_from_slice(&half::bf16::from_f32(random.float()).to_le_bytes());
            }
            BlockFormat::BF16 => put(0, random),
            BlockFormat::Q4_1
            | BlockFormat::Q5_1
            | BlockFormat::Q4_K
            | BlockFormat::Q5_K
            | BlockFormat::Affine(Affine { scale: Half::F16, .. }) => {
                put(0, random);
                put(2, random);
            }
            BlockFormat::Affine(_) => {
                // bf16: the range that f16 has, and what is special in f16.
                for at in [0, 2] {
                    let bits = f16::from_bits(scales.f16(random)).to_f32().to_bits();
                    block[at..at + 2].copy_from_slice(&bits.to_le_bytes()[2..]);
                }
            }
            BlockFormat::Q2_K => {
                put(80, random);
                put(82, random);
            }
            BlockFormat::Q3_K => put(108, random),
            BlockFormat::Q6_K => put(208, random),
            BlockFormat::TQ1_0 => put(52, random),
            BlockFormat::TQ2_0 => put(64, random),
            BlockFormat::IQ1_M => {
                for (i, nibble) in scales
                    .f16(random)
                    .to_le_bytes()
                    .map(|byte| [byte & 15, byte >> 4])
                    .as_flattened()
                    .iter()
                    .enumerate()
                {
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
                }
            }
            BlockFormat::MXFP4 | BlockFormat::MXFP8 => block[0] = scales.exponent(random),
            BlockFormat::NVFP4 if scales == Scales::Ordinary => {
                block[..4].fill_with(|| 0x10 + random.below(16) as u8);
            }
            BlockFormat::NVFP4 => {}
            BlockFormat::FP8 => {
                let scale = f16::from_bits(scales.f16(random)).to_f32() * 1.001;
                block[..4].copy_from_slice(&scale.to_le_bytes());
            }
            _ => put(0, random),
        }
        if scales != Scales::Any && matches!(format, BlockFormat::FP8 | BlockFormat::MXFP8) {
            // No NaN among the weights.
            let codes = block.len() / 32 * 32;
            let start = block.len() - codes;
            block[start..].iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte ^= 1);
        }
    }
    out
}

/// How activations are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activations {
    Ordinary,
    /// Every one the same: quants 127.
    Constant,
    /// 127 and -127 in turn.
    Alternating,
    /// One large, the rest small.
    Outlier,
    /// Every third block zero, in between.
    Holes,
    Subnormal,
    Huge,
    /// A NaN or an infinity somewhere.
    NonFinite,
}

impl Activations {
    pub const ALL: [Activations; 8] = [
        Activations::Ordinary,
        Activations::Constant,
        Activations::Alternating,
        Activations::Outlier,
        Activations::Holes,
        Activations::Subnormal,
        Activations::Huge,
        Activations::NonFinite,
    ];

    pub fn row(self, columns: usize, random: &mut Random) -> Vec<f32> {
        let special = random.below(columns);
        (0..columns)
            .map(|i| {
                let x = random.float();
                match self {
                    Activations::Ordinary => x,
                    Activations::Constant => 3.0,
                    Activations::Alternating => [7.0, -7.0][i % 2],
                    Activations::Outlier if i == special => 1e4,
                    Activations::Outlier => x * 1e-3,
                    Activations::Holes if i / 32 % 3 == 0 => 0.0,
                    Activations::Holes => x,
                    Activations::Subnormal => x * 1e-38,
                    Activations::Huge => x * f32::MAX,
                    Activations::NonFinite if i == special => {
                        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.below(3)]
                    }
                    Activations::NonFinite => x,
                }
            })
            .collect()
    }
}

/// A packed matrix that owns its bytes.
pub struct Packed {
    pub layout: PanelLayout,
    pub bytes: PanelBuffer,
}

impl Packed {
    pub fn new(format: BlockFormat, rows: usize, columns: usize, file: &[u8]) -> Packed {
        let layout = PanelLayout::new(format, rows, columns).unwrap();
        let mut bytes = PanelBuffer::new(layout.bytes());
        let panels = bytes.chunks_exact_mut(layout.panel_bytes());
        for (panel, rows) in panels.zip(file.chunks(16 * layout.row_bytes())) {
            pack_panel(&layout, rows, panel);
        }
        Packed { layout, bytes }
    }

    pub fn matrix(&self) -> PackedMatrix<'_> {
        PackedMatrix::new(self.layout, &self.bytes).unwrap()
    }
}

/// Rows rounded to a grain.
pub fn quantised(isa: Isa, grain: Grain, x: &[Vec<f32>]) -> QuantisedRows {
    let mut rows = QuantisedRows::new();
    rows.resize(grain, x.len(), x[0].len());
    for (row, x) in x.iter().enumerate() {
        rows.quantise(isa, row, x);
    }
    rows
}

/// The whole product, `[x.len()][rows]`, panels divided into calls at `cut`.
pub fn product(isa: Isa, w: &Packed, grain: Grain, x: &[Vec<f32>], cut: usize) -> Vec<f32> {
    let rows = quantised(isa, grain, x);
    let mut tile = Tile::new();
    tile.gather(isa, w.layout.format(), &rows, &(0..x.len()).collect::<Vec<_>>());
    let n = w.layout.rows();
    let mut out = vec![f32::NAN; x.len() * n];
    let panels = w.layout.panels();
    for range in [0..cut.min(panels), cut.min(panels)..panels] {
        let start = 16 * range.start;
        if start < n {
            matmul(isa, &w.matrix(), range, &tile, &mut out[start..], n);
        }
    }
    out
}

/// Equal bits, or both NaN.
pub fn same(a: &[f32], b: &[f32]) -> Result<(), String> {
    assert_eq!(a.len(), b.len());
    match (0..a.len()).find(|&i| a[i].to_bits() != b[i].to_bits() && !(a[i].is_nan() && b[i].is_nan())) {
        None => Ok(()),
        Some(i) => Err(format!("result {i} is {:e} and {:e}", a[i], b[i])),
    }
}
