//! Units as types, so that bytes are never added to tokens.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The sum, or `None` if it overflows.
            pub fn checked_add(self, other: $name) -> Option<$name> {
                self.0.checked_add(other.0).map($name)
            }
            /// The product, or `None` if it overflows.
            pub fn checked_mul(self, times: $inner) -> Option<$name> {
                self.0.checked_mul(times).map($name)
            }
            /// The sum, or the largest value.
            pub fn saturating_add(self, other: $name) -> $name {
                $name(self.0.saturating_add(other.0))
            }
            /// The product, or the largest value.
            pub fn saturating_mul(self, times: $inner) -> $name {
                $name(self.0.saturating_mul(times))
            }
            /// The difference, or zero.
            pub fn saturating_sub(self, other: $name) -> $name {
                $name(self.0.saturating_sub(other.0))
            }
        }
        impl Add for $name {
            type Output = $name;
            fn add(self, other: $name) -> $name {
                $name(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                self.0 += other.0;
            }
        }
        impl Sub for $name {
            type Output = $name;
            fn sub(self, other: $name) -> $name {
                $name(self.0 - other.0)
            }
        }
        impl Mul<$inner> for $name {
            type Output = $name;
            fn mul(self, times: $inner) -> $name {
                $name(self.0 * times)
            }
        }
    };
}

unit!(
    /// Bytes of memory or storage.
    Bytes,
    u64
);
unit!(
    /// Tokens: positions of a sequence.
    Tokens,
    usize
);

impl fmt::Display for Bytes {
    /// In binary units with three digits: `17.4 GiB`, `512 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        write!(f, "{value:.digits$} {}", UNITS[unit])
    }
}

/// Text that is no number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a number of bytes such as 24G, 512MiB, 8.5GiB or 17179869184 (K, M, G, T are binary, KB to TB decimal)"
)]
pub struct NoBytes;

impl FromStr for Bytes {
    type Err = NoBytes;

    /// A number, whole or with a point, and a unit in any case: none or `B`; `K`, `M`, `G`, `T`, with or without `iB`, for
    /// powers of 1024, as other servers take them; `KB` to `TB` for powers of 1000.
    fn from_str(text: &str) -> Result<Bytes, NoBytes> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit.trim_start().to_ascii_lowercase();
        let (prefix, base) = match unit.strip_suffix('b') {
            None => (unit.as_str(), 1024),
            Some("") => ("", 1024),
            Some(unit) => unit.strip_suffix('i').map_or((unit, 1000), |prefix| (prefix, 1024)),
        };
        let power = match prefix {
            "" => 0,
            "k" => 1,
            "m" => 2,
            "g" => 3,
            "t" => 4,
            _ => return Err(NoBytes),
        };
        // "iB" alone is no unit.
        if prefix.is_empty() && unit == "ib" {
            return Err(NoBytes);
        }
        parse_fixed(number, u64::pow(base, power)).map(Bytes).ok_or(NoBytes)
    }
}

/// A decimal number times a unit, rounded down. Floats would not do: they lose bytes from 2^53 on.
fn parse_fixed(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let part = match fraction {
        "" => 0,
        digits => {
            let scale = u128::pow(10, digits.len() as u32);
            (digits.parse::<u128>().ok()?.checked_mul(u128::from(unit))? / scale) as u64
        }
    };
    whole.checked_add(part)
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well_at_every_size() {
        let text = |n| Bytes(n).to_string();
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(1024), "1.00 KiB");
        assert_eq!(text(17_701_184), "16.9 MiB");
        assert_eq!(text(4 << 30), "4.00 GiB");
        assert_eq!(text(u64::MAX), "16384 PiB");
    }

    #[test]
    fn a_size_is_read_in_the_unit_that_it_names() {
        for (text, bytes) in [
            ("17", 17),
            ("17B", 17),
            ("64k", 64 << 10),
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("8G", 8 << 30),
            ("8.5GiB", (8 << 30) + (1 << 29)),
            ("32GB", 32_000_000_000),
            ("0.001KB", 1),
            ("1.5t", 3 << 39),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "8GG",
            "8ib",
            "8xb",
            "1.2.3",
            "1e9",
            ".",
            ".5G",
            "18446744073709551616",
            "99999999T",
        ] {
            assert_eq!(text.parse::<Bytes>(), Err(NoBytes), "{text}");
        }
    }
}
