//! What of a format the kernels are compiled for, and in which form they get its codes.
//!
//! The formats need only a few kernels: how codes lie in a panel and what they stand for is gone when the kernels see
//! them (`unpack.rs`).

use unfazed_formats::BlockFormat;

use crate::Isa;
use crate::panel::{Spec, Values};

/// A kind of integer dot product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dot {
    /// Unsigned codes times signed quants, added up in 32 bits (`vpdpbusd`, `usdot`).
    Unsigned,
    /// Unsigned codes times signed quants, two products added in 16 bits, saturated (`vpmaddubsw`).
    Pairs,
    /// Signed codes times signed quants, added up in 32 bits (`sdot`).
    Signed,
}

impl Dot {
    /// What an instruction set has.
    pub(crate) const fn of(isa: Isa) -> Dot {
        match isa {
            Isa::Avx2 => Dot::Pairs,
            Isa::Neon => Dot::Signed,
            Isa::Reference | Isa::AvxVnni | Isa::Avx512 | Isa::I8mm => Dot::Unsigned,
        }
    }
}

/// In which form a kernel gets codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// The value and [`Spec::offset`], unsigned. To make up for it a sum starts from minus the offset times the sum of
    /// the quants.
    Stored,
    /// The same, but the sum is had in 16 bits, one of bytes 0 and 1 of a lane and one of 2 and 3, and so are the starts.
    /// It may wrap on the way: that the result fits is enough.
    Halves,
    /// The value. Those of unsigned codes of 8 bits less 128, and the sum starts from 128 times the sum of the quants.
    Value,
}

/// The form of codes for a kind of dot product, where `signed` values of magnitude `largest` at most are added up over
/// `sub` columns.
pub(crate) const fn operand(dot: Dot, signed: bool, largest: i32, sub: usize) -> Operand {
    match dot {
        Dot::Unsigned => Operand::Stored,
        Dot::Signed => Operand::Value,
        // A half of a sum has half of the products.
        Dot::Pairs if signed && largest * 127 * (sub as i32 / 2) <= i16::MAX as i32 => Operand::Halves,
        Dot::Pairs if !signed && largest <= 127 => Operand::Stored,
        Dot::Pairs => Operand::Value,
    }
}

/// What a kernel is compiled for.
pub(crate) trait Shape {
    /// Groups of 32 columns that share a scale of the activations: 1, or 8 in superblocks.
    const STEP: usize;
    /// Columns that share a scale before that of the block: 16 or 32.
    const SUB: usize;
    /// Whether there are minimums; then the values are not negative, else some are.
    const MINIMUMS: bool;
    /// The largest magnitude of a value.
    const LARGEST: i32;
    /// The format, if the kernel is compiled for one alone: all that depends on it is known then.
    const FORMAT: Option<BlockFormat> = None;

    /// The form of the codes.
    #[inline(always)]
    fn operand(dot: Dot) -> Operand {
        operand(dot, !Self::MINIMUMS, Self::LARGEST, Self::SUB)
    }

    /// Whether the sums start from something.
    #[inline(always)]
    fn starts(dot: Dot) -> bool {
        match Self::operand(dot) {
            Operand::Stored | Operand::Halves => !Self::MINIMUMS,
            Operand::Value => Self::MINIMUMS && Self::LARGEST > 127,
        }
    }
}

/// Evaluates an expression with `$Shape` standing for the format's own shape, or `$other` if it has none. Kernels of their own
/// have the formats that most weights are in; in the others' a group's layout is looked up.
macro_rules! for_own {
    ($format:expr, $Shape:ident => $body:expr, $other:expr) => {
        $crate::matmul::shape::for_own!($format, $Shape, $body, $other;
            Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4, IQ4_XS)
    };
    ($format:expr, $Shape:ident, $body:expr, $other:expr; $($known:ident),*) => {
        match $format {
            $(unfazed_formats::BlockFormat::$known => {
                enum $Shape {}

                impl $Shape {
                    const SPEC: Spec = match Spec::of(unfazed_formats::BlockFormat::$known) {
                        Some(spec) => spec,
                        None => panic!("a format of integer codes"),
                    };
                }

                impl Shape for $Shape {
                    const STEP: usize = Self::SPEC.step();
                    const SUB: usize = Self::SPEC.sub();
                    const MINIMUMS: bool = Self::SPEC.minimums();
                    const LARGEST: i32 = $crate::matmul::shape::largest(&Self::SPEC);
                    const FORMAT: Option<unfazed_formats::BlockFormat> =
                        Some(unfazed_formats::BlockFormat::$known);
                }

                $body
            })*
            _ => $other,
        }
    };
}
pub(crate) use for_own;

/// The shape with these constants.
pub(crate) enum Form<const STEP: usize, const SUB: usize, const MINIMUMS: bool, const LARGEST: i32> {}

impl<const STEP: usize, const SUB: usize, const MINIMUMS: bool, const LARGEST: i32> Shape
    for Form<STEP, SUB, MINIMUMS, LARGEST>
{
    const STEP: usize = STEP;
    const SUB: usize = SUB;
    const MINIMUMS: bool = MINIMUMS;
    const LARGEST: i32 = LARGEST;
}

/// The largest magnitude of a value of a format, rounded up so that formats share kernels.
pub(crate) const fn largest(spec: &Spec) -> i32 {
    let codes = (1 << spec.bits.count()) - 1;
    let mut largest = 0;
    match spec.values {
        Values::Less(offset) => {
            let offset = offset as i32;
            largest = if codes - offset > offset { codes - offset } else { offset };
        }
        Values::Table(table) => {
            let mut i = 0;
            while i < table.len() {
                let magnitude = (table[i] as i32).abs();
                largest = if magnitude > largest { magnitude } else { largest };
                i += 1;
            }
        }
    }
    let sizes = if spec.minimums() { [15, 31, 63, 255] } else { [16, 32, 64, 128] };
    let mut i = 0;
    while i < sizes.len() {
        if sizes[i] >= largest {
            return sizes[i];
        }
        i += 1;
    }
    i32::MAX
}

/// How the sums of a kernel start, for the tile to prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Starts {
    /// The sum of the quants times this; nothing if it is 0.
    pub(crate) factor: i32,
    /// In two halves of 16 bits: of the quants that are bytes 0 and 1 of each four (low), and of the others.
    pub(crate) halves: bool,
}

/// How the sums of a format start where there is this kind of dot product.
pub(crate) fn starts(dot: Dot, spec: &Spec) -> Starts {
    let operand = operand(dot, !spec.minimums(), largest(spec), spec.sub());
    let factor = i32::from(removed(operand, spec)) - i32::from(spec.offset());
    Starts { factor, halves: operand == Operand::Halves }
}

/// What is taken from the stored codes to have a form of them.
pub(crate) fn removed(operand: Operand, spec: &Spec) -> u8 {
    match operand {
        Operand::Stored | Operand::Halves => 0,
        Operand::Value if spec.minimums() && largest(spec) > 127 => 128,
        Operand::Value => spec.offset(),
    }
}

/// Evaluates an expression with `$Shape` standing for the shape of `$spec`, or `$other` if no kernel is compiled for it.
/// The magnitude of values matters to 16-bit sums alone (`pairs`, a constant); `wide` ones share kernels.
macro_rules! for_shape {
    ($pairs:expr, $spec:expr, $Shape:ident => $body:expr, $other:expr) => {{
        let (spec, largest) = ($spec, $crate::matmul::shape::largest($spec));
        if $pairs {
            $crate::matmul::shape::for_shape!(@ spec, largest, $Shape, $body, $other;
                1 32 false 16, 1 32 false 128, 1 16 false 16,
                1 32 true 15, 1 32 true 31, 1 32 true 63, 1 32 true 255,
                8 16 false 16, 8 16 false 32, 8 16 false 64,
                8 32 false 16, 8 32 false 64, 8 32 false 128,
                8 16 true 15, 8 32 true 15, 8 32 true 31
            )
        } else {
            let wide = if largest > 128 { 255 } else { 128 - i32::from(spec.minimums()) };
            $crate::matmul::shape::for_shape!(@ spec, wide, $Shape, $body, $other;
                1 32 false 128, 1 16 false 128, 1 32 true 127, 1 32 true 255,
                8 16 false 128, 8 32 false 128, 8 16 true 127, 8 32 true 127
            )
        }
    }};
    (@ $spec:ident, $size:ident, $Shape:ident, $body:expr, $other:expr;
        $($step:literal $sub:literal $minimums:literal $largest:literal),*) => {
        match ($spec.step(), $spec.sub(), $spec.minimums(), $size) {
            $(($step, $sub, $minimums, $largest) => {
                type $Shape = $crate::matmul::shape::Form<$step, $sub, $minimums, $largest>;
                $body
            })*
            _ => $other,
        }
    };
}
pub(crate) use for_shape;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_of_codes_has_a_kernel() {
        for format in BlockFormat::all() {
            if let Some(spec) = Spec::of(format) {
                for pairs in [true, false] {
                    let served = for_shape!(pairs, &spec, S => S::LARGEST >= largest(&spec), false);
                    assert!(served, "{format:?}");
                }
            }
        }
    }
}
