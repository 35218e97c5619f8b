//! The receipt: the last dispatch of each pass writes the next number of a chain.

use crate::gpu::kernel::{Access, Kernel};

/// The kernel. Bindings: the chain (its first word is the last number), a witness of copies, the stamp of what the host wrote.
/// Immediates: the number to write, whether the witness must hold the number before it, and the stamp there must be, or 0.
///
/// The number is written only on top of the one before it, and only if copies and writes that came before have run too. So if
/// anything was left out, the chain stays as it is for good, and nothing after it is taken for done.
pub fn receipt() -> Kernel {
    let source = "
struct Link { number: u32, witnessed: u32, stamp: u32 }
var<immediate> link: Link;
@group(0) @binding(0) var<storage, read_write> chain: array<u32>;
@group(0) @binding(1) var<storage, read> witness: array<u32>;
@group(0) @binding(2) var<storage, read> stamp: array<u32>;

@compute @workgroup_size(1) fn main() {
    let before = link.number - 1u;
    let copied = link.witnessed == 0u || witness[0] == before;
    let written = link.stamp == 0u || stamp[0] == link.stamp;
    if chain[0] == before && copied && written {
        chain[0] = link.number;
    }
}
";
    Kernel {
        name: "receipt".to_owned(),
        source: source.to_owned(),
        bindings: vec![Access::Write, Access::Read, Access::Read],
        immediates: 12,
    }
}
