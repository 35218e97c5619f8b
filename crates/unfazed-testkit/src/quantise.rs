//! Floats to blocks, plainly: each block's scale is taken from its extremes, with no search for a better one.
//! Good enough to make models for tests; not what a quantiser for use would do.

use half::{bf16, f16};
use unfazed_formats::BlockFormat;

/// The formats that [`quantise`] knows.
pub const QUANTISED: [BlockFormat; 11] = {
    use BlockFormat::{BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K]
};

/// Turns weights into whole blocks. `None` if they do not fill whole blocks, or the format is not one of
/// [`QUANTISED`].
pub fn quantise(format: BlockFormat, weights: &[f32]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(format.row_bytes(weights.len())?);
    match format {
        BlockFormat::F32 => out.extend(weights.iter().flat_map(|weight| weight.to_le_bytes())),
        BlockFormat::F16 => {
            out.extend(weights.iter().flat_map(|weight| f16::from_f32(*weight).to_le_bytes()));
        }
        BlockFormat::BF16 => {
            out.extend(weights.iter().flat_map(|weight| bf16::from_f32(*weight).to_le_bytes()));
        }
        BlockFormat::Q4_0 => each(weights, |block| symmetric(block, 4, &mut out)),
        BlockFormat::Q5_0 => each(weights, |block| symmetric(block, 5, &mut out)),
        BlockFormat::Q4_1 => each(weights, |block| ranged(block, 4, &mut out)),
        BlockFormat::Q5_1 => each(weights, |block| ranged(block, 5, &mut out)),
        BlockFormat::Q8_0 => each(weights, |block| q8_0(block, &mut out)),
        BlockFormat::Q4_K => each(weights, |block| k_block(block, 4, &mut out)),
        BlockFormat::Q5_K => each(weights, |block| k_block(block, 5, &mut out)),
        BlockFormat::Q6_K => each(weights, |block| q6_k(block, &mut out)),
        _ => return None,
    }
    Some(out)
}

fn each<const N: usize>(weights: &[f32], encode: impl FnMut(&[f32; N])) {
    let (blocks, _) = weights.as_chunks::<N>();
    blocks.iter().for_each(encode);
}

/// A scale as it is stored, and as it will be read.
fn stored(scale: f32) -> ([u8; 2], f32) {
    let half = f16::from_f32(scale);
    (half.to_le_bytes(), half.to_f32())
}

/// `value / scale`, to the nearest whole number from `low` to `high`; 0 where there is no scale.
fn nearest(value: f32, scale: f32, low: i32, high: i32) -> i32 {
    let quotient = if scale == 0.0 { 0.0 } else { (value / scale).round() };
    (quotient as i32).clamp(low, high)
}

fn largest(weights: &[f32]) -> f32 {
    weights.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or_default()
}

fn range(weights: &[f32]) -> (f32, f32) {
    weights
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), weight| (low.min(*weight), high.max(*weight)))
}

/// Fifth bits, if there are five, then nibbles: the layout of the formats with 32 weights.
fn put_bits(quants: &[i32; 32], bits: u32, out: &mut Vec<u8>) {
    if bits == 5 {
        let high = quants.iter().enumerate().fold(0u32, |word, (i, q)| word | ((*q as u32 >> 4) & 1) << i);
        out.extend(high.to_le_bytes());
    }
    let (low, high) = quants.split_at(16);
    out.extend(low.iter().zip(high).map(|(low, high)| (*low as u8 & 0x0F) | (*high as u8 & 0x0F) << 4));
}

/// Q4_0 and Q5_0: the weight of the largest size becomes the lowest quant.
fn symmetric(weights: &[f32; 32], bits: u32, out: &mut Vec<u8>) {
    let half = 1 << (bits - 1);
    let (bytes, d) = stored(largest(weights) / -(half as f32));
    out.extend(bytes);
    put_bits(&weights.map(|weight| nearest(weight, d, -half, half - 1) + half), bits, out);
}

/// Q4_1 and Q5_1: from the smallest weight to the largest.
fn ranged(weights: &[f32; 32], bits: u32, out: &mut Vec<u8>) {
    let top = (1 << bits) - 1;
    let (low, high) = range(weights);
    let ((d_bytes, d), (m_bytes, m)) = (stored((high - low) / top as f32), stored(low));
    out.extend(d_bytes);
    out.extend(m_bytes);
    put_bits(&weights.map(|weight| nearest(weight - m, d, 0, top)), bits, out);
}

fn q8_0(weights: &[f32; 32], out: &mut Vec<u8>) {
    let (bytes, d) = stored(largest(weights).abs() / 127.0);
    out.extend(bytes);
    out.extend(weights.map(|weight| nearest(weight, d, -127, 127) as u8));
}

/// Packs 6-bit scales and minima as Q4_K and Q5_K have them.
pub(crate) fn pack_k_scales(scales: &[u8; 8], minima: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | (scales[i + 4] >> 4) << 6;
        packed[i + 4] = minima[i] | (minima[i + 4] >> 4) << 6;
        packed[i + 8] = (scales[i + 4] & 0x0F) | (minima[i + 4] & 0x0F) << 4;
    }
    packed
}

/// Q4_K and Q5_K: sub-blocks of 32 from their smallest weight (or zero, if that is smaller) to their largest.
fn k_block(weights: &[f32; 256], bits: u32, out: &mut Vec<u8>) {
    let top = (1 << bits) - 1;
    let (subs, _) = weights.as_chunks::<32>();
    let ranges: Vec<(f32, f32)> = subs
        .iter()
        .map(|sub| {
            let (low, high) = range(sub);
            (-low.min(0.0), (high.max(0.0) - low.min(0.0)) / top as f32)
        })
        .collect();
    let largest_minimum = ranges.iter().map(|(minimum, _)| *minimum).fold(0.0, f32::max);
    let largest_scale = ranges.iter().map(|(_, scale)| *scale).fold(0.0, f32::max);
    let ((d_bytes, d), (m_bytes, dmin)) = (stored(largest_scale / 63.0), stored(largest_minimum / 63.0));
    let (mut scales, mut minima, mut quants) = ([0u8; 8], [0u8; 8], [[0u8; 32]; 8]);
    for (i, (sub, (minimum, scale))) in subs.iter().zip(ranges).enumerate() {
        scales[i] = nearest(scale, d, 0, 63) as u8;
        minima[i] = nearest(minimum, dmin, 0, 63) as u8;
        let (scale, minimum) = (d * f32::from(scales[i]), dmin * f32::from(minima[i]));
        quants[i] = sub.map(|weight| nearest(weight + minimum, scale, 0, top) as u8);
    }
    out.extend(d_bytes);
    out.extend(m_bytes);
    out.extend(pack_k_scales(&scales, &minima));
    if bits == 5 {
        out.extend((0..32).map(|l| (0..8).fold(0u8, |byte, sub| byte | (quants[sub][l] >> 4) << sub)));
    }
    for pair in quants.chunks(2) {
        if let [low, high] = pair {
            out.extend(low.iter().zip(high).map(|(low, high)| (low & 0x0F) | (high & 0x0F) << 4));
        }
    }
}

/// Q6_K: sub-blocks of 16, each with a signed scale.
fn q6_k(weights: &[f32; 256], out: &mut Vec<u8>) {
    let (subs, _) = weights.as_chunks::<16>();
    let wanted: Vec<f32> = subs.iter().map(|sub| largest(sub) / -32.0).collect();
    let (d_bytes, d) = stored(largest(&wanted).abs() / 127.0);
    let (mut scales, mut quants) = ([0i8; 16], [0u8; 256]);
    for (i, (sub, wanted)) in subs.iter().zip(wanted).enumerate() {
        scales[i] = nearest(wanted, d, -127, 127) as i8;
        let scale = d * f32::from(scales[i]);
        for (l, weight) in sub.iter().enumerate() {
            quants[16 * i + l] = (nearest(*weight, scale, -32, 31) + 32) as u8;
        }
    }
    let (mut low, mut high) = ([0u8; 128], [0u8; 64]);
    for (i, quant) in quants.iter().enumerate() {
        let (part, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        low[64 * part + 32 * (quarter % 2) + l] |= (quant & 0x0F) << (4 * (quarter / 2));
        high[32 * part + l] |= (quant >> 4) << (2 * quarter);
    }
    out.extend(low);
    out.extend(high);
    out.extend(scales.map(|scale| scale as u8));
    out.extend(d_bytes);
}
