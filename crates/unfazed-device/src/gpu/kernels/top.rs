//! The largest logits of each row, so that few bytes go back to the host, and whether all of them are numbers.
//!
//! Passes narrow a row down: each takes chunks of 4,096 candidates to 64, until one chunk is left. In a chunk the 64th largest is
//! found by the digits of numbers that have the order of the floats, and what is not below it is taken in the order of ids: so
//! of equals the lower ids come first, and nothing depends on which thread was faster.

use std::fmt::Write as _;

use super::super::kernel::{Access, Kernel};

/// How many are found.
pub const TOP: usize = 64;
/// Candidates of a chunk.
const CHUNK: usize = 4096;

/// The immediates of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopPlace {
    /// Candidates of a row.
    pub candidates: u32,
}

impl TopPlace {
    /// As the kernel reads it.
    pub fn bytes(&self) -> [u8; 4] {
        self.candidates.to_le_bytes()
    }

    /// Workgroups of the pass over so many rows.
    pub fn grid(&self, rows: u32) -> [u32; 3] {
        [self.chunks(), rows, 1]
    }

    /// What the next pass has to do; `None` after the last one.
    pub fn next(&self) -> Option<TopPlace> {
        (self.chunks() > 1).then(|| TopPlace { candidates: self.chunks() * TOP as u32 })
    }

    /// f32s and ids, two words each, that the pass leaves of so many rows.
    pub fn out_words(&self, rows: usize) -> usize {
        rows * self.chunks() as usize * TOP * 2
    }

    fn chunks(&self) -> u32 {
        self.candidates.div_ceil(CHUNK as u32)
    }
}

/// Which pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopPass {
    /// Over logits, `[rows, candidates]`.
    First,
    /// Over what the pass before it left.
    Later,
}

/// The kernel of a pass. Bindings: logits, or what the pass before left; the results (written), `[rows, chunks, 64]` {f32, id}.
/// Immediates: [`TopPlace`].
///
/// After the last pass the results of a row, `[64]`, descend; of equals the lower id comes first. What is no number or infinite
/// comes as a NaN, before all others. If there are fewer than 64 candidates, the id of the rest is `u32::MAX`.
pub fn top(pass: TopPass) -> Kernel {
    let (name, element, key, id) = match pass {
        TopPass::First => ("first", "f32", "key(bitcast<u32>(candidates[i]))", "i % place.candidates"),
        TopPass::Later => (
            "later",
            "vec2<u32>",
            "select(key(candidates[i].x), 0u, candidates[i].x == 0xffffffffu)",
            "candidates[i].y",
        ),
    };
    let source = format!(
        "
struct Place {{ candidates: u32 }}
var<immediate> place: Place;
@group(0) @binding(0) var<storage, read> candidates: array<{element}>;
@group(0) @binding(1) var<storage, read_write> found: array<vec2<u32>>;
fn candidate(i: u32) -> u32 {{ return {key}; }}
fn id_of(i: u32) -> u32 {{ return {id}; }}
{KEYS}{}",
        MAIN.replace("LOADS", &loads())
    );
    Kernel { name: format!("top {name}"), source, bindings: vec![Access::Read, Access::Write], immediates: 4 }
}

/// WGSL: all of a thread's candidates are asked for before the first one is waited for.
fn loads() -> String {
    let mut text = String::new();
    for i in 0..CHUNK / 256 {
        let _ = writeln!(text, "    let at{i} = group.x * 4096u + t + {}u;", i * 256);
        let _ = writeln!(text, "    let c{i} = candidate(row + min(at{i}, place.candidates - 1u));");
    }
    for i in 0..CHUNK / 256 {
        let _ = writeln!(text, "    put(t + {}u, select(0u, c{i}, at{i} < place.candidates));", i * 256);
    }
    text
}

/// Integers in the order of the floats: zeros are equal, what is no finite number is above all. Nothing is 0.
const KEYS: &str = "
fn key(bits: u32) -> u32 {
    if ((bits & 0x7f800000u) == 0x7f800000u) { return 0xffffffffu; }
    if ((bits & 0x80000000u) == 0u) { return bits | 0x80000000u; }
    return select(~bits, 0x80000000u, bits == 0x80000000u);
}
fn value(key: u32) -> u32 {
    if (key == 0xffffffffu) { return 0x7fc00000u; }
    if (key == 0u) { return 0xffffffffu; }
    return select(~key, key & 0x7fffffffu, key >= 0x80000000u);
}
";

/// A thread has sixteen neighbours. `keys` has one word between those of two threads, for the banks.
const MAIN: &str = "
var<workgroup> keys: array<u32, 4352>;
// Of each 32 threads, that they wait for each other less.
var<workgroup> counts: array<atomic<u32>, 2048>;
var<workgroup> sums: array<u32, 256>;
var<workgroup> sixteens: array<u32, 16>;
var<workgroup> border: vec2<u32>;
var<workgroup> chosen: array<vec2<u32>, 64>;

fn put(i: u32, key: u32) { keys[i / 16u * 17u + i % 16u] = key; }

// Sums from each thread's number to the first one's.
fn add_up(t: u32, mine: u32) {
    sums[t] = mine;
    workgroupBarrier();
    var sum = 0u;
    if (t < 16u) {
        for (var i = 0u; i < 16u; i++) { sum += sums[t * 16u + i]; }
        sixteens[t] = sum;
    }
    workgroupBarrier();
    sum = 0u;
    for (var i = 0u; i < t / 16u; i++) { sum += sixteens[i]; }
    for (var i = t / 16u * 16u; i <= t; i++) { sum += sums[i]; }
    workgroupBarrier();
    sums[t] = sum;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let row = group.y * place.candidates;
LOADS    // Digits of the 64th largest, the first one first: how many are above a digit, of those that have the digits before.
    var prefix = 0u;
    var wanted = 64u;
    for (var digit = 0u; digit < 4u; digit++) {
        let shift = 24u - 8u * digit;
        for (var i = 0u; i < 8u; i++) { atomicStore(&counts[i * 256u + t], 0u); }
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {
            let k = keys[t * 17u + i];
            if (digit == 0u || (k >> (shift + 8u)) == prefix) { atomicAdd(&counts[t / 32u * 256u + 255u - ((k >> shift) & 255u)], 1u); }
        }
        workgroupBarrier();
        var mine = 0u;
        for (var i = 0u; i < 8u; i++) { mine += atomicLoad(&counts[i * 256u + t]); }
        add_up(t, mine);
        if (sums[t] >= wanted && sums[t] - mine < wanted) { border = vec2<u32>(255u - t, sums[t] - mine); }
        workgroupBarrier();
        prefix = (prefix << 8u) | border.x;
        wanted -= border.y;
        workgroupBarrier();
    }
    // Those above it, and as many of those that equal it as are wanted.
    var above = 0u;
    var equal = 0u;
    for (var i = 0u; i < 16u; i++) {
        let k = keys[t * 17u + i];
        above += select(0u, 1u, k > prefix);
        equal += select(0u, 1u, k == prefix);
    }
    add_up(t, (above << 16u) | equal);
    var at_above = (sums[t] >> 16u) - above;
    var at_equal = (sums[t] & 0xffffu) - equal;
    for (var i = 0u; i < 16u; i++) {
        let k = keys[t * 17u + i];
        let at = group.x * 4096u + t * 16u + i;
        let c = vec2<u32>(k, select(0xffffffffu, at, at < place.candidates));
        if (k > prefix) {
            chosen[at_above] = c;
            at_above += 1u;
        } else if (k == prefix) {
            if (at_equal < wanted) { chosen[64u - wanted + at_equal] = c; }
            at_equal += 1u;
        }
    }
    workgroupBarrier();
    if (t < 64u) {
        let c = chosen[t];
        var place_of = t;
        if (groups.x == 1u) {
            place_of = 0u;
            for (var i = 0u; i < 64u; i++) {
                let o = chosen[i];
                let before = o.x > c.x || (o.x == c.x && (o.y < c.y || (o.y == c.y && i < t)));
                place_of += select(0u, 1u, before);
            }
        }
        let id = select(c.y, id_of(row + min(c.y, place.candidates - 1u)), c.y != 0xffffffffu);
        found[(group.y * groups.x + group.x) * 64u + place_of] = vec2<u32>(value(c.x), id);
    }
}
";
