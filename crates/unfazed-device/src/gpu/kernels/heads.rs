//! Between the projections and attention: norm of each head of query and key, rotation, and keys and values into their pages.
//!
//! A workgroup has the rows of a span (a sequence's positions in one panel of 16) and one head, so that no two share a word of
//! a panel, in which neighbouring positions lie side by side. Sixteen threads have a row; what they add up goes in an order
//! that depends on nothing else. What is stored is rounded as the CPU rounds it, to the bit: by integers where WGSL leaves
//! rounding open.

use unfazed_formats::KvType;
use unfazed_formats::config::RopePairing;
use unfazed_kernels::LANES;

use super::super::kernel::{Access, Kernel};
use super::kv::{BLOCK, KvText};
use super::step::STEP;

/// What is done to the heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Keys and values.
    pub kv: KvText,
    /// RMS norm of each head of query and key, with this epsilon.
    pub norm: Option<f32>,
    /// Rotation of the first so many dimensions, an even number of them up to the width of a head.
    pub rope: Option<(RopePairing, usize)>,
}

/// The immediates: where in the buffer of activations rows are, in f32s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsPlace {
    /// The first row's query, `[heads * head_dim]`.
    pub query: u32,
    /// Its key, `[kv_heads * head_dim]`.
    pub key: u32,
    /// Its value.
    pub value: u32,
    /// From a row's query to the next one's.
    pub query_stride: u32,
    /// From a row's key to the next one's; the same for values.
    pub key_stride: u32,
    /// Numbers of tables before this layer's among those of a row.
    pub table: u32,
}

impl HeadsPlace {
    /// As the kernel reads it.
    pub fn bytes(&self) -> [u8; 24] {
        let HeadsPlace { query, key, value, query_stride, key_stride, table } = *self;
        bytemuck::cast([query, key, value, query_stride, key_stride, table])
    }
}

impl Heads {
    /// The kernel. Bindings: the step, activations (queries are written in place), the layer's keys and values (written), norm
    /// weights of query and then key (`[2, head_dim]`; not read without a norm). Immediates: [`HeadsPlace`]. Grid:
    /// [`Heads::grid`].
    pub fn kernel(&self) -> Kernel {
        let Heads { heads, kv, norm, rope } = self;
        let blocks = kv.head_dim.div_ceil(BLOCK);
        let source = [
            BINDINGS,
            STEP,
            &kv.places(),
            &format!("const HEADS = {heads}u;\nconst NB = {blocks}u;\n"),
            SHARED,
            ROUNDING,
            &store_text("keys", kv.types.keys, key_words(kv.types.keys), KEY_SCALES),
            &store_text("values", kv.types.values, value_words(kv.types.values), VALUE_SCALES),
            &main_text(self),
        ]
        .concat();
        let rotated = rope.map_or_else(|| "plain".to_owned(), |(pairing, n)| format!("{pairing:?} {n}"));
        Kernel {
            name: format!(
                "heads {heads} {} {rotated} {}",
                kv.name(),
                if norm.is_some() { "norm" } else { "" }
            ),
            source,
            bindings: vec![Access::Read, Access::Write, Access::Write, Access::Read],
            immediates: 24,
        }
    }

    /// Workgroups for so many spans.
    pub fn grid(&self, spans: u32) -> [u32; 3] {
        [(self.heads + 2 * self.kv.kv_heads) as u32, spans, 1]
    }
}

const BINDINGS: &str = "
struct Place { query: u32, key: u32, value: u32, query_stride: u32, key_stride: u32, table: u32 }
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> kv: array<u32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
var<immediate> place: Place;
";

/// Rows are one number apart from a multiple of the banks.
const SHARED: &str = "
const PITCH = DIM + 1u;
var<workgroup> rows: array<f32, 16u * PITCH>;
var<workgroup> sums: array<f32, 256>;
var<workgroup> peaks: array<atomic<u32>, 16u * NB>;
var<workgroup> scales: array<u32, 16u * NB>;
";

/// Rounding as the CPU does it: f16 and bf16 half to even, scales and codes of blocks from quotients that are exact where it
/// matters.
const ROUNDING: &str = "
fn half_bits(x: u32) -> u32 {
    let sign = (x >> 16u) & 0x8000u;
    let a = x & 0x7fffffffu;
    if (a > 0x7f800000u) { return sign | 0x7e00u | ((a >> 13u) & 0x3ffu); }
    if (a >= 0x477ff000u) { return sign | 0x7c00u; }
    if (a >= 0x38800000u) { return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u); }
    if (a < 0x33000000u) { return sign; }
    let shift = 126u - (a >> 23u);
    let m = (a & 0x7fffffu) | 0x800000u;
    let h = m >> shift;
    return sign | (h + select(0u, 1u, (m & ((1u << shift) - 1u)) + (h & 1u) > (1u << (shift - 1u))));
}
fn brain_bits(x: u32) -> u32 {
    if ((x & 0x7fffffffu) > 0x7f800000u) { return (x >> 16u) | 0x40u; }
    return (x + 0x7fffu + ((x >> 16u) & 1u)) >> 16u;
}
fn half_value(h: u32) -> f32 {
    let m = h & 0x3ffu;
    let e = (h >> 10u) & 31u;
    let a = select(bitcast<f32>(((e + 112u) << 23u) | (m << 13u)), f32(m) * 5.9604644775390625e-8, e == 0u);
    return select(a, -a, (h & 0x8000u) != 0u);
}
// The order of numbers by magnitude; the positive one of two is above.
fn rank(x: f32) -> u32 { let b = bitcast<u32>(x); return ((b << 1u) | (b >> 31u)) ^ 1u; }
// The scale of a block as f16: zero if no scale reaches its numbers, NaN if a number is beyond every scale.
fn eighth(peak: u32) -> u32 {
    let e = (peak >> 23u) & 255u;
    if (e < 90u) { return 0u; }
    return spoil(half_bits(select((peak ^ 0x80000000u) - (3u << 23u), 0x7f800000u, e == 255u)));
}
fn part127(peak: u32) -> u32 {
    let e = (peak >> 23u) & 255u;
    if (e < 90u) { return 0u; }
    if (e == 255u) { return 0x7e00u; }
    let n = ((peak & 0x7fffffu) | 0x800000u) << 7u;
    var q = n / 127u;
    let r = n % 127u;
    if (q >= 0x1000000u) {
        let odd = q & 1u;
        q = q >> 1u;
        q += odd & select(q & 1u, 1u, r != 0u);
        return spoil(half_bits(((e - 6u) << 23u) + (q - 0x800000u)));
    }
    q += select(0u, 1u, 2u * r > 127u);
    return spoil(half_bits(((e - 7u) << 23u) + (q - 0x800000u)));
}
fn spoil(h: u32) -> u32 {
    let a = h & 0x7fffu;
    return select(select(h, 0u, a == 0u), 0x7e00u, a >= 0x7c00u);
}
// x over d as the CPU rounds it. A quotient may be off in its last digits here; near a half the difference decides, which is
// exact, and what the nearest f32 to the quotient would be a half of goes to the even side.
fn code(x: f32, scale: u32, low: f32, high: f32) -> i32 {
    if (scale == 0u || scale == 0x7e00u) { return 0; }
    let d = half_value(scale);
    let q = clamp(x / d, low, high);
    let below = floor(q);
    let half = below + 0.5;
    if (abs(q - half) > 0.001) { return i32(round(q)); }
    let over = x - half * d;
    let smaller = (over < 0.0) != ((d < 0.0) != (half < 0.0));
    let ulp = bitcast<f32>((bitcast<u32>(half) & 0x7f800000u) - (24u << 23u)) * abs(d);
    let tie = select(ulp, 0.5 * ulp, smaller && abs(half) == 0.5);
    if (abs(over) <= tie) { return i32(round(half)); }
    return i32(below) + select(0, 1, (over > 0.0) == (d > 0.0));
}
fn put(at: u32, word: u32, mask: u32) {
    if (mask == 0u) { return; }
    if (mask == 0xffffffffu) { kv[at] = word; } else { kv[at] = (kv[at] & ~mask) | (word & mask); }
}
";

/// One text for each of so many.
fn each(count: usize, text: impl Fn(usize) -> String) -> String {
    (0..count).map(text).collect::<Vec<_>>().join("\n    ")
}

/// WGSL: sums of squares to a common factor. A value has a factor of one, as have all without a norm.
fn norm_text(epsilon: f32, each_thread: usize) -> String {
    let squares = each(each_thread, |i| format!("sum = fma(x{i}, x{i}, sum);"));
    let weigh = each(each_thread, |i| format!("x{i} = x{i} * factor * select(1.0, w{i}, query || key);"));
    format!(
        "var sum = 0.0;
    {squares}
    sums[t] = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var i = 0u; i < 16u; i++) {{ sum += sums[row * 16u + i]; }}
    let factor = select(1.0, 1.0 / sqrt(sum / f32(DIM) + {epsilon:e}), query || key);
    {weigh}"
    )
}

/// WGSL: a thread has pairs of its own, of which both are read before one is written. A table's numbers were read before.
fn rotation_text(pairing: RopePairing, dimensions: usize) -> [String; 2] {
    let pairs = dimensions / 2;
    let (a, b) = match pairing {
        RopePairing::Halves => ("i".to_owned(), format!("i + {pairs}u")),
        RopePairing::Neighbours => ("2u * i".to_owned(), "2u * i + 1u".to_owned()),
    };
    let turns = each(pairs.div_ceil(LANES), |n| {
        format!(
            "if (lane + {at}u < {pairs}u) {{ turn(row * PITCH, lane + {at}u, c{n}, s{n}); }}",
            at = n * LANES
        )
    });
    let function = format!(
        "
fn turn(at: u32, i: u32, c: f32, s: f32) {{
    let a = rows[at + {a}];
    let b = rows[at + {b}];
    rows[at + {a}] = fma(a, c, b * -s);
    rows[at + {b}] = fma(b, c, a * s);
}}
"
    );
    [function, format!("if (query || key) {{ {turns} }}\n    workgroupBarrier();")]
}

/// Puts the rows into a panel, slots from `slot` on: words of codes, and of scales.
fn store_text(what: &str, kind: KvType, (words, word): (&str, String), scales: &str) -> String {
    let codes = if what == "keys" { "KEY_CODES" } else { "VALUE_CODES" };
    let mut text = String::new();
    if let Some(scale) = scale_of(kind) {
        text += &format!(
            "
fn scale_{what}(t: u32) {{
    for (var i = t; i < 16u * NB; i += 256u) {{
        let r = atomicLoad(&peaks[i]) ^ 1u;
        scales[i] = {scale}((r >> 1u) | (r << 31u));
    }}
}}
fn put_scales_{what}(t: u32, panel: u32, slot: u32, count: u32) {{
    for (var w = t; w < 8u * NB; w += 256u) {{
        var word = 0u;
        var mask = 0u;
        for (var j = 0u; j < 2u; j++) {{
            {scales}
            if (r < count) {{ word |= scales[r * NB + b] << (16u * j); mask |= 0xffffu << (16u * j); }}
        }}
        put(panel + w, word, mask);
    }}
}}
"
        );
    }
    text += &format!(
        "
fn put_{what}(t: u32, panel: u32, slot: u32, count: u32) {{
    for (var w = t; w < {words}; w += 256u) {{
        var word = 0u;
        var mask = 0u;
        {word}
        put(panel + {codes} + w, word, mask);
    }}
}}
"
    );
    text
}

fn scale_of(kind: KvType) -> Option<&'static str> {
    match kind {
        KvType::Q8_0 => Some("part127"),
        KvType::Q4_0 => Some("eighth"),
        KvType::F32 | KvType::F16 | KvType::BF16 => None,
    }
}

/// Scales of keys: `[block][slot]`. A slot before the first one wraps to a row that there is not.
const KEY_SCALES: &str = "let b = w / 8u; let r = w % 8u * 2u + j - slot;";
/// Scales of values: `[slot][block]`.
const VALUE_SCALES: &str = "let b = (2u * w + j) % NB; let r = (2u * w + j) / NB - slot;";

fn bits(kind: KvType, at: &str) -> String {
    match kind {
        KvType::F32 => format!("bitcast<u32>(rows[{at}])"),
        KvType::F16 => format!("half_bits(bitcast<u32>(rows[{at}]))"),
        KvType::BF16 => format!("brain_bits(bitcast<u32>(rows[{at}]))"),
        KvType::Q8_0 => {
            format!("(bitcast<u32>(code(rows[{at}], scales[r * NB + d / 32u], -127.0, 127.0)) & 255u)")
        }
        KvType::Q4_0 => {
            format!("bitcast<u32>(code(rows[{at}], scales[r * NB + d / 32u], -8.0, 7.0) + 8)")
        }
    }
}

/// Words of a panel of keys, and what is in one: several slots of a dimension, of Q4_0 of two.
fn key_words(kind: KvType) -> (&'static str, String) {
    let (words, slots, dims) = match kind {
        KvType::F32 => ("16u * DIM", 1, 1),
        KvType::F16 | KvType::BF16 => ("8u * DIM", 2, 1),
        KvType::Q8_0 => ("4u * DIM", 4, 1),
        KvType::Q4_0 => ("2u * DIM", 4, 2),
    };
    let (each, number) = (32 / slots, bits(kind, "r * PITCH + d"));
    let all = if slots == 1 { "0xffffffff".to_owned() } else { format!("{:#x}", (1u64 << each) - 1) };
    let text = format!(
        "let first = w % {lanes}u * {slots}u - slot;
        for (var j = 0u; j < {slots}u; j++) {{
            let r = first + j;
            if (r < count) {{
                for (var k = 0u; k < {dims}u; k++) {{
                    let d = w / {lanes}u * {dims}u + k;
                    word |= {number} << ({each}u * j + 4u * k);
                }}
                mask |= {all}u << ({each}u * j);
            }}
        }}",
        lanes = 16 / slots,
    );
    (words, text)
}

/// Words of a panel of values, and what is in one: several dimensions of a slot.
fn value_words(kind: KvType) -> (&'static str, String) {
    let (words, dims) = match kind {
        KvType::F32 => ("16u * DIM", 1),
        KvType::F16 | KvType::BF16 => ("8u * DIM", 2),
        KvType::Q8_0 => ("4u * DIM", 4),
        KvType::Q4_0 => ("2u * DIM", 8),
    };
    let (each, number) = (32 / dims, bits(kind, "r * PITCH + d"));
    let (d, shift) = match kind {
        // A byte has dimensions i and i + 16 of a block of 32.
        KvType::Q4_0 => {
            ("v / 4u * 32u + v % 4u * 4u + j / 2u + j % 2u * 16u".to_owned(), "4u * j".to_owned())
        }
        _ => (format!("v * {dims}u + j"), format!("{each}u * j")),
    };
    let text = format!(
        "let r = w / (DIM / {dims}u) - slot;
        let v = w % (DIM / {dims}u);
        if (r < count) {{
            for (var j = 0u; j < {dims}u; j++) {{ let d = {d}; word |= {number} << ({shift}); }}
            mask = 0xffffffffu;
        }}"
    );
    (words, text)
}

/// WGSL: the kernel. All that is read is asked for before any of it is waited for.
fn main_text(heads: &Heads) -> String {
    let Heads { kv, norm, rope, .. } = heads;
    let each_thread = kv.head_dim / LANES;
    let load = |name: &str, buffer: &str, at: &str| {
        each(each_thread, |i| format!("var {name}{i} = {buffer}[{at} + {}u];", i * LANES))
    };
    let numbers = load("x", "x", "at + lane");
    let weights = norm.map_or_else(String::new, |_| load("w", "weight", "select(DIM, 0u, query) + lane"));
    let table = rope.map_or_else(String::new, |(_, dimensions)| {
        let pairs = dimensions / 2;
        each(pairs.div_ceil(LANES), |n| {
            let i = format!("of_row.tables + place.table + min(lane + {}u, {}u)", n * LANES, pairs - 1);
            format!("let c{n} = bitcast<f32>(step[{i}]); let s{n} = bitcast<f32>(step[{i} + {pairs}u]);")
        })
    });
    let norm = norm.map_or_else(String::new, |epsilon| norm_text(epsilon, each_thread));
    let [turn, rotation] = rope.map_or_else(Default::default, |(pairing, n)| rotation_text(pairing, n));
    let keep = each(each_thread, |i| format!("rows[row * PITCH + lane + {}u] = x{i};", i * LANES));
    format!(
        "{turn}
fn peaks_of(row: u32, lane: u32) {{
    for (var d = lane; d < DIM; d += 32u) {{
        let a = rank(rows[row * PITCH + d]);
        atomicMax(&peaks[row * NB + d / 32u], max(a, rank(rows[row * PITCH + d + 16u])));
    }}
}}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let span = step_span(group.y);
    // A row that there is not is computed as the last one, and not stored.
    let row = t / 16u;
    let lane = t % 16u;
    let real = span.first + min(row, span.count - 1u);
    let of_row = step_row(real);
    let position = step[8u + span.first * 4u];
    let query = group.x < HEADS;
    let key = !query && group.x < HEADS + KV_HEADS;
    let head = select((group.x - HEADS) % KV_HEADS, group.x, query);
    let begin = select(select(place.value, place.key, key), place.query, query);
    let at = begin + real * select(place.key_stride, place.query_stride, query) + head * DIM;
    {numbers}
    {weights}
    {table}
    let block = block_at(step[of_row.pages + position / PAGE_TOKENS], head);
    for (var i = t; i < 16u * NB; i += 256u) {{ atomicStore(&peaks[i], 0u); }}
    {norm}
    {keep}
    workgroupBarrier();
    {rotation}
    let panel = position % PAGE_TOKENS / 16u;
    let slot = position % 16u;
    if (query) {{
        for (var d = lane; d < DIM; d += 16u) {{
            if (row < span.count) {{ x[at + d] = rows[row * PITCH + d]; }}
        }}
    }} else if (key) {{
        let panel_at = block + panel * KEY_PANEL;
        {keys}
    }} else {{
        let panel_at = block + VALUES + panel * VALUE_PANEL;
        {values}
    }}
}}
",
        keys = puts("keys", kv.types.keys),
        values = puts("values", kv.types.values),
    )
}

/// Scales first, of which codes are made.
fn puts(what: &str, kind: KvType) -> String {
    let scales = format!(
        "if (row < span.count) {{ peaks_of(row, lane); }}
        workgroupBarrier();
        scale_{what}(t);
        workgroupBarrier();
        put_scales_{what}(t, panel_at, slot, span.count);
        "
    );
    let scales = if scale_of(kind).is_some() { scales } else { String::new() };
    format!("{scales}put_{what}(t, panel_at, slot, span.count);")
}
