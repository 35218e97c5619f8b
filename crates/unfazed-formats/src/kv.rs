//! How keys and values are kept: block formats that a cache may have.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::BlockFormat;

/// A value's row takes a whole number of these, so that floats fill vectors.
const VALUE_LANES: usize = 16;

/// A block format for keys or for values. Names are those of llama-server (`--cache-type-k`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(non_camel_case_types, missing_docs)]
pub enum KvType {
    F32,
    #[default]
    F16,
    BF16,
    Q8_0,
    Q4_0,
}

impl KvType {
    /// All, the most exact first.
    pub const ALL: [KvType; 5] = [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8_0, KvType::Q4_0];

    /// Name in settings and events.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::BF16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
        }
    }

    /// Sizes of its blocks.
    pub const fn format(self) -> BlockFormat {
        match self {
            KvType::F32 => BlockFormat::F32,
            KvType::F16 => BlockFormat::F16,
            KvType::BF16 => BlockFormat::BF16,
            KvType::Q8_0 => BlockFormat::Q8_0,
            KvType::Q4_0 => BlockFormat::Q4_0,
        }
    }

    /// Whether heads of this width are whole blocks.
    pub const fn divides(self, head_dim: usize) -> bool {
        head_dim.is_multiple_of(self.format().block_weights())
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a type of keys and values: f32, f16, bf16, q8_0 and q4_0 are")]
pub struct UnknownKvType;

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(name: &str) -> Result<KvType, UnknownKvType> {
        KvType::ALL.into_iter().find(|kind| kind.name() == name).ok_or(UnknownKvType)
    }
}

/// How a cache keeps keys, and how values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvTypes {
    /// Keys.
    pub keys: KvType,
    /// Values.
    pub values: KvType,
}

impl KvTypes {
    /// The same for both.
    pub const fn both(kind: KvType) -> KvTypes {
        KvTypes { keys: kind, values: kind }
    }

    /// Bytes of a head's key and of its value at one position. Values of floats are filled up to a multiple of 16
    /// elements. `None` if a head is not whole blocks, or the size overflows.
    pub fn position_bytes(self, head_dim: usize) -> Option<[usize; 2]> {
        let width = head_dim.checked_next_multiple_of(VALUE_LANES)?;
        let divides = self.keys.divides(head_dim) && self.values.divides(head_dim);
        let bytes = [self.keys.format().row_bytes(head_dim)?, self.values.format().row_bytes(width)?];
        divides.then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in KvType::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("q3_k".parse::<KvType>(), Err(UnknownKvType));
    }

    #[test]
    fn a_position_takes_its_blocks_and_floats_fill_vectors() {
        let types = |keys, values| KvTypes { keys, values };
        assert_eq!(KvTypes::default().position_bytes(128), Some([256, 256]));
        assert_eq!(types(KvType::F16, KvType::F32).position_bytes(24), Some([48, 128]));
        assert_eq!(types(KvType::Q8_0, KvType::Q4_0).position_bytes(64), Some([68, 36]));
        assert_eq!(types(KvType::Q8_0, KvType::F16).position_bytes(80), None);
        assert_eq!(types(KvType::F16, KvType::Q4_0).position_bytes(16), None);
    }
}
