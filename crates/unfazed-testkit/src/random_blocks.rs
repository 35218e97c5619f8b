//! Random blocks whose weights have mean zero and a given standard deviation, made without quantising anything:
//! the quants are random bits and the scales follow from them.

use half::{bf16, f16};
use unfazed_formats::BlockFormat;
use unfazed_formats::block::small_floats::{e8m0_half, ue4m3_half};

use crate::quantise::pack_k_scales;
use crate::rng::Rng;

/// Standard deviations of even whole numbers below 16, 32 and 256.
const SPREAD_4_BITS: f32 = 4.61;
const SPREAD_5_BITS: f32 = 9.23;
const SPREAD_8_BITS: f32 = 73.9;

/// The same for 6 bits, and for 4 and 5 bits where the lowest became the middle.
const SPREAD_6_BITS: f32 = 18.5;
const SPREAD_4_BITS_CENTRED: f32 = 4.18;
const SPREAD_5_BITS_CENTRED: f32 = 8.8;

/// Root mean squares of weights over the scale: 2 bits with random scales of 4, three values of four, IQ1_M, and
/// E2M1 floats doubled.
const SPREAD_2_BITS: f32 = 9.84;
const SPREAD_TERNARY: f32 = 0.707;
const SPREAD_IQ1_M: f32 = 7.2;
const SPREAD_FP4: f32 = 5.85;

/// Root mean squares of scales from 32 to 63 and from 64 to 127.
const SCALE_6_BITS: f32 = 48.4;
const SCALE_8_BITS: f32 = 97.3;

/// Fills `out` with whole blocks.
pub fn random_blocks(format: BlockFormat, standard_deviation: f32, rng: &mut Rng, out: &mut [u8]) {
    let s = standard_deviation;
    match format {
        BlockFormat::F32 => each(out, |block| *block = rng.centred(s).to_le_bytes()),
        BlockFormat::F16 => each(out, |block| *block = f16::from_f32(rng.centred(s)).to_le_bytes()),
        BlockFormat::BF16 => each(out, |block| *block = bf16::from_f32(rng.centred(s)).to_le_bytes()),
        _ => {
            rng.fill(out);
            match format {
                BlockFormat::Q4_0 => each(out, |block| q4_0(block, s, rng)),
                BlockFormat::Q5_0 => each(out, |block| q5_0(block, s, rng)),
                BlockFormat::Q4_1 => each::<20>(out, |block| ranged(block, s / SPREAD_4_BITS, 7.5, rng)),
                BlockFormat::Q5_1 => each::<24>(out, |block| ranged(block, s / SPREAD_5_BITS, 15.5, rng)),
                BlockFormat::Q8_0 => each::<34>(out, |block| put(block, 0, near(s / SPREAD_8_BITS, rng))),
                BlockFormat::Q4_K => each::<144>(out, |block| k_block(block, s / SPREAD_4_BITS, 7.5, rng)),
                BlockFormat::Q5_K => each::<176>(out, |block| k_block(block, s / SPREAD_5_BITS, 15.5, rng)),
                BlockFormat::Q6_K => each(out, |block| q6_k(block, s, rng)),
                BlockFormat::Q2_K => each(out, |block| q2_k(block, s, rng)),
                BlockFormat::TQ2_0 => each(out, |block| tq2_0(block, s, rng)),
                BlockFormat::IQ1_M => each(out, |block| iq1_m(block, s, rng)),
                BlockFormat::MXFP4 => each(out, |block: &mut [u8; 17]| {
                    block[0] = between(e8m0_half, s / SPREAD_FP4, rng);
                }),
                BlockFormat::NVFP4 => each(out, |block: &mut [u8; 36]| {
                    block[..4].fill_with(|| between(ue4m3_half, s / SPREAD_FP4, rng));
                }),
                _ => {
                    let (at, spread) = scale_and_spread(format);
                    // The sign of the scale is random: the values of some formats lean to one side.
                    each_of(format.block_bytes(), out, |block| {
                        let sign = if rng.word() & 1 == 0 { 1.0 } else { -1.0 };
                        put(block, at, near(sign * s / spread, rng));
                    });
                }
            }
        }
    }
}

/// Where the scale of a block lies whose other bytes may be anything, and the root mean square of its weights over
/// the scale.
fn scale_and_spread(format: BlockFormat) -> (usize, f32) {
    match format {
        BlockFormat::Q3_K => (108, 43.4),
        BlockFormat::TQ1_0 => (52, 0.817),
        BlockFormat::IQ1_S => (0, 7.2),
        BlockFormat::IQ2_XXS => (0, 53.4),
        BlockFormat::IQ2_XS => (0, 55.9),
        BlockFormat::IQ2_S => (0, 56.2),
        BlockFormat::IQ3_XXS => (0, 142.5),
        BlockFormat::IQ3_S => (0, 139.9),
        BlockFormat::IQ4_XS => (0, 1242.0),
        // IQ4_NL.
        _ => (0, 67.6),
    }
}

/// For each block of `size` bytes.
fn each_of(size: usize, out: &mut [u8], fill: impl FnMut(&mut [u8])) {
    out.chunks_exact_mut(size).for_each(fill);
}

fn each<const N: usize>(out: &mut [u8], fill: impl FnMut(&mut [u8; N])) {
    let (blocks, _) = out.as_chunks_mut::<N>();
    blocks.iter_mut().for_each(fill);
}

/// A scale within 25 % of the wanted one.
fn near(scale: f32, rng: &mut Rng) -> f16 {
    f16::from_f32(scale * rng.uniform(0.75, 1.25))
}

fn put(block: &mut [u8], at: usize, value: f16) {
    if let Some(bytes) = block.get_mut(at..at + 2) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Quants are -8 to 7: the lowest becomes 0, so that the mean is zero.
fn q4_0(block: &mut [u8; 18], s: f32, rng: &mut Rng) {
    put(block, 0, near(s / SPREAD_4_BITS_CENTRED, rng));
    for byte in &mut block[2..] {
        // A nibble is zero where its four bits or-ed together are.
        let or = *byte | *byte >> 1;
        let or = or | or >> 2;
        *byte |= (!or & 0x11) << 3;
    }
}

/// Quants are -16 to 15: the lowest becomes 0, so that the mean is zero.
fn q5_0(block: &mut [u8; 22], s: f32, rng: &mut Rng) {
    put(block, 0, near(s / SPREAD_5_BITS_CENTRED, rng));
    let [_, _, h0, h1, h2, h3, nibbles @ ..] = block;
    let mut high = u32::from_le_bytes([*h0, *h1, *h2, *h3]);
    for (i, byte) in nibbles.iter().enumerate() {
        high |= u32::from(byte & 0x0F == 0) << i | u32::from(byte & 0xF0 == 0) << (i + 16);
    }
    [*h0, *h1, *h2, *h3] = high.to_le_bytes();
}

/// Q4_1 and Q5_1: the minimum is minus the middle.
fn ranged(block: &mut [u8], scale: f32, middle: f32, rng: &mut Rng) {
    let d = near(scale, rng);
    put(block, 0, d);
    put(block, 2, f16::from_f32(-middle * d.to_f32()));
}

/// Q4_K and Q5_K: every sub-block's minimum is its scale times the middle.
fn k_block(block: &mut [u8], scale: f32, middle: f32, rng: &mut Rng) {
    let d = near(scale / SCALE_6_BITS, rng);
    put(block, 0, d);
    put(block, 2, f16::from_f32(middle * d.to_f32()));
    let scales = rng.word().to_le_bytes().map(|byte| 32 | byte & 31);
    if let Some(packed) = block.get_mut(4..16) {
        packed.copy_from_slice(&pack_k_scales(&scales, &scales));
    }
}

/// Q6_K: scales of random sign, so that the mean is zero.
fn q6_k(block: &mut [u8; 210], s: f32, rng: &mut Rng) {
    for scale in &mut block[192..208] {
        let size = (64 | *scale & 63) as i8;
        *scale = if *scale & 64 == 0 { size } else { -size } as u8;
    }
    put(block, 208, near(s / (SPREAD_6_BITS * SCALE_8_BITS), rng));
}

/// Q2_K: every sub-block's minimum is its scale times the middle.
fn q2_k(block: &mut [u8; 84], s: f32, rng: &mut Rng) {
    for both in &mut block[..16] {
        *both = *both & 15 | *both << 4;
    }
    let d = near(s / SPREAD_2_BITS, rng);
    put(block, 80, d);
    put(block, 82, f16::from_f32(1.5 * d.to_f32()));
}

/// Quants are -1 to 1: the fourth value becomes the middle one.
fn tq2_0(block: &mut [u8; 66], s: f32, rng: &mut Rng) {
    for pairs in &mut block[..64] {
        *pairs &= !((*pairs & *pairs >> 1 & 0x55) << 1);
    }
    put(block, 64, near(s / SPREAD_TERNARY, rng));
}

/// IQ1_M: the bits of the scale are the top nibbles of four words.
fn iq1_m(block: &mut [u8; 56], s: f32, rng: &mut Rng) {
    let d = near(s / SPREAD_IQ1_M, rng).to_bits();
    for (j, words) in block[48..].chunks_exact_mut(2).enumerate() {
        words[1] = words[1] & 15 | ((d >> (4 * j)) as u8) << 4;
    }
}

/// One of the two codes whose values `scale` lies between, each as often as the mean of the squares needs.
fn between(value: fn(u8) -> f32, scale: f32, rng: &mut Rng) -> u8 {
    let low = (0..126).rev().find(|code| value(*code) <= scale).unwrap_or_default();
    let squares = [value(low), scale, value(low + 1)].map(|value| value * value);
    let share = (squares[1] - squares[0]) / (squares[2] - squares[0]);
    low + u8::from(rng.uniform(0.0, 1.0) < share)
}
