//! Proof that a command buffer ran, after all before it and on the data that was meant.
//!
//! A driver may report success for a command buffer that it threw away. So each one ends with this kernel: it puts its number
//! into the chain, if the number of the one before it is there and what was uploaded for it has arrived. After one that is
//! missing no later number is ever written, so the host needs to look at the last one alone.

use super::super::kernel::{Access, Kernel};

/// What the chain's buffer holds: three words, and one of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The last number that was written; a new chain's is 0.
    pub last: u32,
    /// How often the kernel ran.
    pub runs: u32,
    /// How often it found its predecessor or its upload missing.
    pub broken: u32,
}

impl Chain {
    /// Bytes of its buffer.
    pub const BYTES: usize = 16;

    /// What a buffer says, or `None` if it is too short.
    pub fn read(bytes: &[u8]) -> Option<Chain> {
        let (words, _) = bytes.as_chunks::<4>();
        let word = |i: usize| words.get(i).map(|word| u32::from_le_bytes(*word));
        Some(Chain { last: word(0)?, runs: word(1)?, broken: word(2)? })
    }
}

/// The immediates: what a receipt writes, and what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Number of the receipt before it.
    pub before: u32,
    /// Its own number.
    pub number: u32,
    /// What the first word of the data has to be (the data of a step begins with the number of its upload).
    pub upload: u32,
}

impl Link {
    /// As the kernel reads it.
    pub fn bytes(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (place, word) in
            bytes.as_chunks_mut::<4>().0.iter_mut().zip([self.before, self.number, self.upload])
        {
            *place = word.to_le_bytes();
        }
        bytes
    }
}

/// The kernel, one workgroup. Bindings: the chain (written), data that was uploaded (its first word is read). Immediates:
/// [`Link`].
pub fn receipt() -> Kernel {
    Kernel {
        name: "receipt".to_owned(),
        source: SOURCE.to_owned(),
        bindings: vec![Access::Write, Access::Read],
        immediates: 12,
    }
}

const SOURCE: &str = "
struct Chain { last: u32, runs: u32, broken: u32, room: u32 }
struct Link { before: u32, number: u32, upload: u32 }
@group(0) @binding(0) var<storage, read_write> chain: Chain;
@group(0) @binding(1) var<storage, read> data: array<u32>;
var<immediate> link: Link;

@compute @workgroup_size(1)
fn main() {
    chain.runs += 1u;
    if (chain.last == link.before && data[0] == link.upload) {
        chain.last = link.number;
    } else {
        chain.broken += 1u;
    }
}
";
