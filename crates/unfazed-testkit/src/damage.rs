//! Damaged copies of a GGUF file, one fault each.

use unfazed_formats::FileId;
use unfazed_formats::gguf::{Header, read_header};
use unfazed_formats::source::MemorySource;

use crate::TestkitError;
use crate::rng::Rng;

/// The tensor whose description is damaged.
pub const TENSOR: &str = "blk.1.attn_q.weight";

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Damage {
    Empty,
    MagicOnly,
    NotGguf,
    TruncatedHalf,
    TruncatedLast100Bytes,
    TruncatedInHeader,
    Version99,
    TensorCountHuge,
    KvCountHuge,
    FirstKeyLengthHuge,
    OffsetPastEnd,
    OffsetWraps,
    OffsetMisaligned,
    OffsetOverlaps,
    DimsHuge,
    DimsWrong,
    DimsZero,
    TypeUnknown,
    /// The only one that a reader of headers cannot see.
    WeightsRandomBytes,
}

impl Damage {
    /// All faults.
    pub const ALL: [Damage; 19] = [
        Damage::Empty,
        Damage::MagicOnly,
        Damage::NotGguf,
        Damage::TruncatedHalf,
        Damage::TruncatedLast100Bytes,
        Damage::TruncatedInHeader,
        Damage::Version99,
        Damage::TensorCountHuge,
        Damage::KvCountHuge,
        Damage::FirstKeyLengthHuge,
        Damage::OffsetPastEnd,
        Damage::OffsetWraps,
        Damage::OffsetMisaligned,
        Damage::OffsetOverlaps,
        Damage::DimsHuge,
        Damage::DimsWrong,
        Damage::DimsZero,
        Damage::TypeUnknown,
        Damage::WeightsRandomBytes,
    ];

    /// The file's name without its ending.
    pub fn name(self) -> &'static str {
        match self {
            Damage::Empty => "empty",
            Damage::MagicOnly => "magic-only",
            Damage::NotGguf => "not-gguf",
            Damage::TruncatedHalf => "truncated-half",
            Damage::TruncatedLast100Bytes => "truncated-last-100-bytes",
            Damage::TruncatedInHeader => "truncated-in-header",
            Damage::Version99 => "version-99",
            Damage::TensorCountHuge => "tensor-count-huge",
            Damage::KvCountHuge => "kv-count-huge",
            Damage::FirstKeyLengthHuge => "first-key-length-huge",
            Damage::OffsetPastEnd => "offset-past-end",
            Damage::OffsetWraps => "offset-wraps",
            Damage::OffsetMisaligned => "offset-misaligned",
            Damage::OffsetOverlaps => "offset-overlaps",
            Damage::DimsHuge => "dims-huge",
            Damage::DimsWrong => "dims-wrong",
            Damage::DimsZero => "dims-zero",
            Damage::TypeUnknown => "type-unknown",
            Damage::WeightsRandomBytes => "weights-random-bytes",
        }
    }
}

/// A sound file and where its fields are.
#[derive(Debug)]
pub struct Damager<'a> {
    good: &'a [u8],
    header: Header,
    /// Offset of the first dimension of [`TENSOR`], of its type and of its offset.
    dimension_at: usize,
    type_at: usize,
    offset_at: usize,
    seed: u64,
}

impl<'a> Damager<'a> {
    /// Takes a sound file that has [`TENSOR`]. Random bytes are drawn from `seed`.
    pub fn new(good: &'a [u8], seed: u64) -> Result<Damager<'a>, TestkitError> {
        let header = read_header(&MemorySource::new("the sound file", good), FileId(0))?;
        let missing = || TestkitError::request("tensor", &TENSOR, "the sound file does not have it");
        let info = header.tensors.iter().find(|tensor| tensor.name == TENSOR).ok_or_else(missing)?;
        // The description starts with the name and its length. Metadata come before it: the last match is it.
        let description: Vec<u8> =
            (TENSOR.len() as u64).to_le_bytes().into_iter().chain(TENSOR.bytes()).collect();
        let described = good.get(..header.data_offset as usize).unwrap_or_default();
        let found = described.windows(description.len()).rposition(|window| window == description);
        let dimension_at = found.ok_or_else(missing)? + description.len() + 4;
        let type_at = dimension_at + 8 * info.shape.len();
        Ok(Damager { good, dimension_at, type_at, offset_at: type_at + 4, header, seed })
    }

    /// A copy of the file with one fault.
    pub fn apply(&self, damage: Damage) -> Vec<u8> {
        let good = self.good;
        let len = good.len();
        let data_at = (self.header.data_offset as usize).min(len);
        let cut = |end: usize| good.get(..end.min(len)).unwrap_or_default().to_vec();
        match damage {
            Damage::Empty => Vec::new(),
            Damage::MagicOnly => cut(4),
            Damage::NotGguf => self.random(4096, damage),
            Damage::TruncatedHalf => cut(len / 2),
            Damage::TruncatedLast100Bytes => cut(len.saturating_sub(100)),
            Damage::TruncatedInHeader => cut(data_at.min(5000)),
            Damage::Version99 => self.patched(4, &99u32.to_le_bytes()),
            Damage::TensorCountHuge => self.patched(8, &(1u64 << 60).to_le_bytes()),
            Damage::KvCountHuge => self.patched(16, &(1u64 << 60).to_le_bytes()),
            Damage::FirstKeyLengthHuge => self.patched(24, &(1u64 << 62).to_le_bytes()),
            Damage::OffsetPastEnd => self.patched(self.offset_at, &(len as u64 * 4 / 32 * 32).to_le_bytes()),
            Damage::OffsetWraps => self.patched(self.offset_at, &(u64::MAX - 31).to_le_bytes()),
            Damage::OffsetMisaligned => {
                self.patched(self.offset_at, &self.word(self.offset_at).wrapping_add(7).to_le_bytes())
            }
            Damage::OffsetOverlaps => self.patched(self.offset_at, &0u64.to_le_bytes()),
            Damage::DimsHuge => self.patched(self.dimension_at, &(1u64 << 62).to_le_bytes()),
            Damage::DimsWrong => {
                self.patched(self.dimension_at, &self.word(self.dimension_at).wrapping_mul(2).to_le_bytes())
            }
            Damage::DimsZero => self.patched(self.dimension_at, &0u64.to_le_bytes()),
            Damage::TypeUnknown => self.patched(self.type_at, &250u32.to_le_bytes()),
            Damage::WeightsRandomBytes => {
                let mut bytes = cut(data_at);
                bytes.extend(self.random(len - data_at, damage));
                bytes
            }
        }
    }

    fn random(&self, len: usize, damage: Damage) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Rng::new(self.seed, damage.name(), 0).fill(&mut bytes);
        bytes
    }

    fn patched(&self, at: usize, field: &[u8]) -> Vec<u8> {
        let mut bytes = self.good.to_vec();
        if let Some(place) = bytes.get_mut(at..at + field.len()) {
            place.copy_from_slice(field);
        }
        bytes
    }

    fn word(&self, at: usize) -> u64 {
        let word = self.good.get(at..).and_then(|rest| rest.first_chunk::<8>());
        word.map_or(0, |word| u64::from_le_bytes(*word))
    }
}
