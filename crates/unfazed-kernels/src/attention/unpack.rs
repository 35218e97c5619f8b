//! Panels as f32, exact: an f16 scale times a code has at most 19 digits of an f32's 24.

use half::{bf16, f16};
use unfazed_formats::KvType;

use super::KvLayout;
use super::block::BLOCK;
use super::element::{KvElement, vectors};
use crate::LANES;
use crate::lanes::Lanes;

/// Keys of a panel: `[dimension][position % 16]`.
#[inline(always)]
pub(super) fn keys<L: Lanes>(l: L, layout: &KvLayout, block: &[u8], panel: usize, out: &mut [[f32; LANES]]) {
    let (scales, codes) = layout.keys.of(block, panel);
    // Sixteen scales serve a block of dimensions, sixteen pairs of vectors.
    let scales = vectors::<f16>(scales);
    unpack(l, layout.keys.kind, codes, out, |pair| l.load_half(&scales[pair / (BLOCK / 2)]));
}

/// Values of a panel: `[position % 16][dimension]`.
#[inline(always)]
pub(super) fn values<L: Lanes>(
    l: L,
    layout: &KvLayout,
    block: &[u8],
    panel: usize,
    out: &mut [[f32; LANES]],
) {
    let (scales, codes) = layout.values.of(block, panel);
    // A scale serves a pair of vectors.
    let scales = vectors::<f16>(scales).as_flattened();
    unpack(l, layout.values.kind, codes, out, |pair| l.splat(scales[pair].to_f32()));
}

/// Vectors of a panel; `scale` is that of each pair.
#[inline(always)]
fn unpack<L: Lanes>(
    l: L,
    kind: KvType,
    codes: &[u8],
    out: &mut [[f32; LANES]],
    scale: impl Fn(usize) -> L::V,
) {
    match kind {
        KvType::F32 => floats::<L, f32>(l, codes, out),
        KvType::F16 => floats::<L, f16>(l, codes, out),
        KvType::BF16 => floats::<L, bf16>(l, codes, out),
        KvType::Q8_0 => {
            let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<BLOCK>().0);
            for (pair, (out, codes)) in pairs.enumerate() {
                let scale = scale(pair);
                for (out, codes) in out.iter_mut().zip(codes.as_chunks::<LANES>().0) {
                    l.store(l.mul(l.load(&codes.map(|code| f32::from(code as i8))), scale), out);
                }
            }
        }
        KvType::Q4_0 => {
            let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<LANES>().0);
            for (pair, ([low, high], codes)) in pairs.enumerate() {
                let scale = scale(pair);
                let number = |nibble: u8| (i32::from(nibble) - 8) as f32;
                l.store(l.mul(l.load(&codes.map(|code| number(code & 15))), scale), low);
                l.store(l.mul(l.load(&codes.map(|code| number(code >> 4))), scale), high);
            }
        }
    }
}

#[inline(always)]
fn floats<L: Lanes, E: KvElement>(l: L, codes: &[u8], out: &mut [[f32; LANES]]) {
    for (out, codes) in out.iter_mut().zip(vectors::<E>(codes)) {
        l.store(E::load(l, codes), out);
    }
}
