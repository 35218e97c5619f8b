//! Sixteen lanes do the same on every instruction set, for every kind of number.

use half::f16;
use unfazed_kernels::lanes::{Kernel, Lanes, dispatch};
use unfazed_kernels::{Isa, LANES};

/// Zeros, ones, the ends of all ranges, what rounds to even in f16, infinities and NaN.
const NUMBERS: [f32; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    3.0,
    1.0 / 3.0,
    -7.25e-3,
    1e-45,
    -1e-40,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::EPSILON,
    1.000_000_1,
    65504.0,
    65519.99,
    65520.0,
    2.980_232_2e-8,
    2.980_232_6e-8,
    6.097_555e-5,
    1.000_488_3,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// Every operation on `a`, `b` and `c`.
struct Operations([[f32; LANES]; 3]);

impl Kernel for Operations {
    type Output = Vec<(&'static str, [f32; LANES])>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        let [a, b, c] = self.0.map(|x| l.load(&x));
        let mut half = [f16::ZERO; LANES];
        l.store_half(a, &mut half);
        [
            ("splat", l.splat(self.0[0][3])),
            ("load", a),
            ("load_half", l.load_half(&half)),
            ("load_part", l.load_part(&self.0[0][..5], self.0[1][0])),
            ("add", l.add(a, b)),
            ("sub", l.sub(a, b)),
            ("mul", l.mul(a, b)),
            ("div", l.div(a, b)),
            ("fma", l.fma(a, b, c)),
            ("max", l.max(a, b)),
            ("min", l.min(a, b)),
            ("sum", l.splat(l.sum(a))),
            ("largest", l.splat(l.largest(a))),
        ]
        .map(|(name, v)| (name, l.array(v)))
        .into()
    }
}

fn sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn every_operation_has_the_same_bits_on_every_instruction_set() {
    let n = NUMBERS.len();
    for first in 0..n * n {
        let pick = |step: usize| std::array::from_fn(|lane| NUMBERS[(first / step + lane * step) % n]);
        let numbers = [std::array::from_fn(|lane| NUMBERS[(first + lane) % n]), pick(n), pick(5)];
        let want = dispatch(Isa::Reference, Operations(numbers));
        for isa in sets() {
            for ((name, got), (_, want)) in dispatch(isa, Operations(numbers)).iter().zip(&want) {
                assert!(got.iter().zip(want).all(|(a, b)| same(*a, *b)), "{name} {isa:?}: {got:?}, {want:?}");
            }
        }
    }
}

struct PowersOfTwo([f32; LANES]);

impl Kernel for PowersOfTwo {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [f32; LANES] {
        l.array(l.pow2(l.load(&self.0)))
    }
}

#[test]
fn powers_of_two_are_exact_over_the_whole_range() {
    for first in (-126..=112).step_by(LANES / 2) {
        let n = std::array::from_fn(|lane| (first + lane as i32).min(127));
        for isa in sets() {
            let got = dispatch(isa, PowersOfTwo(n.map(|n| n as f32)));
            assert_eq!(got.map(f64::from), n.map(|n| 2f64.powi(n)), "{isa:?}");
        }
    }
}

struct FromHalf([f16; LANES]);

impl Kernel for FromHalf {
    type Output = ([f32; LANES], [f16; LANES]);

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        let v = l.load_half(&self.0);
        let mut back = self.0;
        l.store_half(v, &mut back);
        (l.array(v), back)
    }
}

#[test]
fn every_f16_becomes_its_f32_and_itself_again() {
    for first in (0..=u16::MAX).step_by(LANES) {
        let x = std::array::from_fn(|lane| f16::from_bits(first + lane as u16));
        for isa in sets() {
            let (wide, back) = dispatch(isa, FromHalf(x));
            for lane in 0..LANES {
                assert!(same(wide[lane], x[lane].to_f32()), "{isa:?}: {:?}", x[lane]);
                assert!(
                    back[lane].to_bits() == x[lane].to_bits() || x[lane].is_nan() && back[lane].is_nan(),
                    "{isa:?}"
                );
            }
        }
    }
}
