//! The rounding of activations to int8.
//!
//! A block of 32 or 256 activations shares the scale `max|x| / 127`; a quant is `x * (127 / max|x|)`, rounded half
//! to even. Every step is one IEEE operation or an exact one, so all instruction sets agree. Two cases apart:
//!
//! - A block without any magnitude of at least [`TINY`] counts as zero: scale 0, quants 0.
//! - A block with an infinity or a NaN has a NaN for scale and zero quants. Whatever is multiplied by it becomes
//!   NaN, so that a fault upstream shows in the logits instead of being rounded away.

use unfazed_formats::BlockFormat;

use crate::LANES;
use crate::lanes::Lanes;
use crate::panel::Spec;

/// Blocks whose largest magnitude is below this count as zero: 127 over it might overflow.
pub(crate) const TINY: f32 = 1e-30;

/// How many activations share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grain {
    /// They stay f32.
    Float,
    /// 32.
    Per32,
    /// 256.
    Per256,
}

impl Grain {
    /// What the weights of a format are multiplied by. Any format can be multiplied by [`Grain::Float`] too, with
    /// weights dequantised exactly; that is slow, and a reference for tests.
    pub const fn of(format: BlockFormat) -> Grain {
        match Spec::of(format) {
            None => Grain::Float,
            Some(spec) if spec.step() == 1 => Grain::Per32,
            Some(_) => Grain::Per256,
        }
    }

    /// Activations that share a scale, or `None` for floats.
    pub const fn block(self) -> Option<usize> {
        match self {
            Grain::Float => None,
            Grain::Per32 => Some(32),
            Grain::Per256 => Some(256),
        }
    }
}

/// Adding this to a float below 2^22 leaves the float rounded half to even in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Rounds a block of whole vectors; returns its scale.
#[inline(always)]
pub(crate) fn quantise_block<L: Lanes>(l: L, x: &[f32], quants: &mut [i8]) -> f32 {
    let (x, _) = x.as_chunks::<LANES>();
    let zero = l.splat(0.0);
    let (mut largest, mut spoilt) = (zero, zero);
    for x in x {
        let x = l.load(x);
        largest = l.max(l.max(x, l.sub(zero, x)), largest);
        // Zero times a number is zero, of whatever sign, times anything else a NaN.
        spoilt = l.fma(x, zero, spoilt);
    }
    let largest = l.largest(largest);
    let finite = l.sum(spoilt) == 0.0;
    if !finite || largest < TINY {
        quants.fill(0);
        return if finite { 0.0 } else { f32::NAN };
    }
    let inverse = l.splat(127.0 / largest);
    for (quants, x) in quants.as_chunks_mut::<LANES>().0.iter_mut().zip(x) {
        let rounded = l.add(l.mul(l.load(x), inverse), l.splat(ROUND));
        *quants = l.array(rounded).map(|rounded| rounded.to_bits() as i8);
    }
    largest / 127.0
}
