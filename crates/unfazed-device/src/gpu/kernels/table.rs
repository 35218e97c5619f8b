//! Tables of at most 16 values, looked up for four codes of a dword at once by arithmetic: a GPU has no byte shuffle that WGSL
//! reaches, and memory that each thread reads elsewhere is slow.
//!
//! Bit `k` of all four codes is a plane of zeros and ones, and a value is a sum over products of planes: for bits x and y
//! `t0 + (t1 - t0) x + (t2 - t0) y + (t3 - t2 - t1 + t0) x y`. Negative terms borrow from the byte above, but the sum has no
//! negative byte, and so is right in the end.

use std::fmt::Write as _;

/// One in each byte.
const ONES: u32 = 0x0101_0101;

/// WGSL that looks codes up.
pub(super) struct Lookup {
    /// `fn NAME(x: vec4<u32>) -> vec4<u32>`.
    pub(super) text: String,
    /// What int8 results are less than the values.
    pub(super) bias: i32,
}

/// A function that maps codes of `bits` bits, in bytes, to int8.
pub(super) fn lookup(name: &str, table: &[i8; 16], bits: usize) -> Lookup {
    let table = &table[..1 << bits];
    let offset = table.iter().map(|value| -i32::from(*value)).max().unwrap_or(0).max(0);
    let largest = table.iter().map(|value| i32::from(*value) + offset).max().unwrap_or(0);
    // Bytes above 127 are negative as int8.
    let (flip, bias) = if largest > 127 { (0x80 * ONES, 128 - offset) } else { (0, -offset) };
    let mut text = format!("fn {name}(x: vec4<u32>) -> vec4<u32> {{\n");
    let half = table.len() / 2;
    let symmetric = (0..half).all(|i| table[i] == -table[i + half]);
    let values: Vec<i32> = table.iter().map(|value| i32::from(*value)).collect();
    if symmetric {
        planes(&mut text, bits);
        let _ = write!(
            text,
            "let size = {};\nlet negative = size & (p{} * 255u);\nvar y = size - 2u * negative + {}u;\n",
            sum(&values[..half]),
            half,
            offset as u32 * ONES
        );
    } else {
        planes(&mut text, bits);
        let shifted: Vec<i32> = values.iter().map(|value| value + offset).collect();
        let _ = writeln!(text, "var y = {};", select(&shifted));
    }
    if flip != 0 {
        let _ = writeln!(text, "y ^= vec4<u32>({flip}u);");
    }
    text += "return y;\n}\n";
    Lookup { text, bias }
}

/// Planes of the bits, and of the products of the lowest three.
fn planes(text: &mut String, bits: usize) {
    for k in 0..bits {
        let shifted = if k == 0 { "x".to_owned() } else { format!("(x >> vec4<u32>({k}u))") };
        let _ = writeln!(text, "let p{} = {shifted} & vec4<u32>({ONES}u);", 1 << k);
    }
    for set in 1..8usize {
        let low = 1 << set.trailing_zeros();
        if set.count_ones() > 1 && set < 1 << bits {
            let _ = writeln!(text, "let p{set} = p{low} & p{};", set - low);
        }
    }
}

/// The value of at most 8 entries as a sum of planes.
fn sum(values: &[i32]) -> String {
    let mut terms = values.to_vec();
    // The entry of a set of bits less those of all its subsets.
    for bit in (0..3).map(|k| 1 << k).filter(|bit| *bit < values.len()) {
        for set in (0..values.len()).filter(|set| set & bit != 0) {
            terms[set] -= terms[set - bit];
        }
    }
    let mut text = format!("vec4<u32>({}u)", (terms[0] as u32).wrapping_mul(ONES));
    let step = terms.get(1).copied().unwrap_or(0);
    let linear = [1, 2, 4].into_iter().all(|bit| terms.get(bit).is_none_or(|t| *t == step * bit as i32));
    if linear {
        let mask = (values.len() as u32 - 1) * ONES;
        let _ = write!(text, " + (x & vec4<u32>({mask}u)) * {}u", step as u32);
    }
    for (set, term) in terms.iter().enumerate().skip(1) {
        if *term != 0 && !(linear && set.is_power_of_two()) {
            let _ = write!(text, " + p{set} * {}u", *term as u32);
        }
    }
    text
}

/// The value of any number of entries: sums of at most eight, one of which the bits above choose.
fn select(values: &[i32]) -> String {
    if values.len() <= 8 {
        return format!("({})", sum(values));
    }
    let (low, high) = values.split_at(values.len() / 2);
    let mask = format!("(p{} * 255u)", values.len() / 2);
    format!("(({} & ~{mask}) | ({} & {mask}))", select(low), select(high))
}
