//! WGSL that reads weights from packed panels: the same bytes as the CPU's, one template for all block formats.
//!
//! What a kernel does: it puts [`PRELUDE`] into its text once, and [`Codec::wgsl`] once for each matrix, with a prefix (here `w`)
//! and the name of the matrix's binding, a `var<storage, read> NAME: array<u32>` of whole panels. It then has, for a group of
//! 32 columns of the row that is lane `lane` (row % 16) of the panel that starts at word `panel`:
//!
//! ```text
//! fn w_load(panel: u32, lane: u32, group: u32) -> w_Raw       everything that is read from memory, so that it can be read early
//! fn w_weights(raw: w_Raw, lane: u32, group: u32) -> F32x32   the weights, exactly: v0.x to v7.w are columns 0 to 31
//!
//! and where [`Codec::integers`]:
//! fn w_codes(raw: w_Raw) -> Int8x32                           dword i has int8 of columns 4i to 4i + 3, lowest byte first:
//!                                                             .a dwords 0 to 3 (columns 0 to 15), .b dwords 4 to 7
//! fn w_scales(raw: w_Raw, lane: u32, group: u32) -> vec4<f32> scale of columns 0 to 15, of 16 to 31, minimum of each
//! ```
//!
//! A weight is `scale * (int8 + bias) + minimum`, with [`Codec::bias`] the same for all weights of a format: so a dot product
//! with int8 activations is `scale * (dot + bias * sum of activations) + minimum * sum of activations`. Unless
//! [`Codec::halves`] both scales are the same and both minimums; unless [`Codec::minimums`] these are zero.
//!
//! Panels are [`Codec::panel_words`] apart. Sixteen threads that have neighbouring lanes read whole lines of 64 bytes.

use std::fmt::Write as _;

use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::{Bits, Half};
use unfazed_kernels::panel::{Geometry, PanelLayout, Scales, Spec, Values};

use super::table::lookup;

/// What the text of each codec refers to.
pub const PRELUDE: &str = "
struct Int8x32 { a: vec4<u32>, b: vec4<u32> }
struct F32x32 {
    v0: vec4<f32>, v1: vec4<f32>, v2: vec4<f32>, v3: vec4<f32>,
    v4: vec4<f32>, v5: vec4<f32>, v6: vec4<f32>, v7: vec4<f32>,
}
fn half_of(word: u32, lane: u32) -> f32 { return unpack2x16float(word >> ((lane & 1u) * 16u)).x; }
fn bf16_of(word: u32, lane: u32) -> f32 { return bitcast<f32>((word >> ((lane & 1u) * 16u)) << 16u); }
fn byte_of(word: u32, i: u32) -> u32 { return (word >> ((i & 3u) * 8u)) & 255u; }
fn int_of(word: u32, i: u32) -> f32 { return f32(bitcast<i32>(word << (24u - (i & 3u) * 8u)) >> 24u); }
fn halved_e8m0(e: u32) -> f32 { return bitcast<f32>(select((e - 1u) << 23u, (e + 1u) << 21u, e < 2u)); }
fn e8m0(e: u32) -> f32 {
    let bits = select(e << 23u, 0x00400000u, e == 0u);
    return bitcast<f32>(select(bits, 0x7fc00000u, e == 255u));
}
fn e4m3_as_f16(b: u32) -> u32 {
    let size = b & 127u;
    return ((b & 128u) << 8u) | select(size << 7u, 0x7e00u, size == 127u);
}
fn e4m3x4(a: u32, b: u32, c: u32, d: u32) -> vec4<f32> {
    let low = unpack2x16float(e4m3_as_f16(a) | (e4m3_as_f16(b) << 16u));
    let high = unpack2x16float(e4m3_as_f16(c) | (e4m3_as_f16(d) << 16u));
    return vec4<f32>(low, high) * 256.0;
}
";

/// Reads the weights of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    format: BlockFormat,
    spec: Option<Spec>,
    geometry: Geometry,
    panel_words: u32,
}

impl Codec {
    /// That of a matrix. Its columns must be whole groups of 32.
    pub fn of(layout: &PanelLayout) -> Codec {
        let format = layout.format();
        let panel_words = (layout.panel_bytes() / 4) as u32;
        Codec { format, spec: Spec::of(format), geometry: Geometry::of(format), panel_words }
    }

    /// Words of 4 bytes from one panel to the next.
    pub fn panel_words(&self) -> u32 {
        self.panel_words
    }

    /// Whether the weights are integer codes with scales; else they are floats.
    pub fn integers(&self) -> bool {
        self.spec.is_some()
    }

    /// What the values are more than the int8 of `w_codes`.
    pub fn bias(&self) -> i32 {
        match self.spec {
            None => 0,
            Some(Spec { bits: Bits::Eight, values: Values::Less(offset), .. }) => 128 - i32::from(offset),
            Some(Spec { values: Values::Less(offset), .. }) => -i32::from(offset),
            Some(Spec { values: Values::Table(table), bits, .. }) => lookup("", &table, bits.count()).bias,
        }
    }

    /// Whether there are minimums.
    pub fn minimums(&self) -> bool {
        self.spec.is_some_and(|spec| spec.minimums())
    }

    /// Whether 16 columns have a scale of their own.
    pub fn halves(&self) -> bool {
        self.spec.is_some_and(|spec| spec.sub() == 16)
    }

    /// Words that a thread reads for a group: how much of it can be on the way at once.
    pub fn group_words(&self) -> usize {
        match self.spec {
            None => 32,
            Some(spec) => spec.bits.count() + scale_words(&spec).len(),
        }
    }

    /// The functions. Their names begin with `prefix` and an underscore.
    pub fn wgsl(&self, prefix: &str, words: &str) -> String {
        match &self.spec {
            Some(spec) => self.integer_text(spec, prefix, words),
            None => self.float_text(prefix, words),
        }
    }

    fn integer_text(&self, spec: &Spec, p: &str, words: &str) -> String {
        let bits = spec.bits.count();
        let mut load = self.places();
        let _ = writeln!(
            load,
            "let at = base + {}u + (group & {}u) * {}u + lane;",
            self.geometry.header / 4,
            self.geometry.groups - 1,
            self.geometry.group / 4
        );
        for i in 0..bits {
            let _ = writeln!(load, "raw.c{i} = {words}[at + {}u];", 16 * i);
        }
        let scales = scale_words(spec);
        for (i, place) in scales.iter().enumerate() {
            let _ = writeln!(load, "raw.s{i} = {words}[{place}];");
        }
        let fields: Vec<String> = (0..bits)
            .map(|i| format!("c{i}: u32"))
            .chain((0..scales.len()).map(|i| format!("s{i}: u32")))
            .collect();
        let mut text = raw_text(p, &fields, &load);
        if let Values::Table(table) = &spec.values {
            text += &lookup(&format!("{p}_table"), table, bits).text;
        }
        let _ = write!(
            text,
            "fn {p}_codes(raw: {p}_Raw) -> Int8x32 {{\n{}}}\n\
             fn {p}_scales(raw: {p}_Raw, lane: u32, group: u32) -> vec4<f32> {{\n{}}}\n",
            codes_text(spec, p),
            scales_text(spec)
        );
        let mut values = String::new();
        for i in 0..8 {
            let (part, scale, minimum) = if i < 4 { ("a", "s.x", "s.z") } else { ("b", "s.y", "s.w") };
            let dword = format!("k.{part}.{}", ["x", "y", "z", "w"][i % 4]);
            let value = format!("{scale} * vec4<f32>(unpack4xI8({dword}) + vec4<i32>({}))", self.bias());
            let value = if spec.minimums() { format!("{value} + {minimum}") } else { value };
            let _ = writeln!(values, "f.v{i} = {value};");
        }
        let _ = write!(
            text,
            "fn {p}_weights(raw: {p}_Raw, lane: u32, group: u32) -> F32x32 {{\n\
             let k = {p}_codes(raw);\nlet s = {p}_scales(raw, lane, group);\nvar f: F32x32;\n{values}return f;\n}}\n"
        );
        text
    }

    /// WGSL: the words where the block of `group` starts and where its scales do.
    fn places(&self) -> String {
        let Geometry { block, lined, groups, .. } = self.geometry;
        let (shift, words) = (groups.trailing_zeros(), block / 4);
        if lined == 0 {
            return format!("let base = panel + (group >> {shift}u) * {words}u;\nlet scales = base;\n");
        }
        let (line, mask, stride) =
            (lined.trailing_zeros(), lined - 1, self.geometry.block_at(lined) / 4 - 16);
        format!(
            "let block = group >> {shift}u;\nlet line = panel + (block >> {line}u) * {stride}u;\n\
             let base = line + 16u + (block & {mask}u) * {words}u;\nlet scales = line + (block & {mask}u) * {}u;\n",
            16 >> line
        )
    }

    fn float_text(&self, p: &str, words: &str) -> String {
        use BlockFormat::{FP8, MXFP8};
        let (mut load, scaled) = match self.format {
            FP8 | MXFP8 => {
                let Geometry { header, group, groups, .. } = self.geometry;
                let at = format!(
                    "let at = base + {}u + (group & {}u) * {}u + (lane >> 2u);\n",
                    header / 4,
                    groups - 1,
                    group / 4
                );
                let place = if self.format == FP8 { "scales + lane" } else { "scales + (lane >> 2u)" };
                (self.places() + &at + &format!("raw.s0 = {words}[{place}];\n"), true)
            }
            _ => (String::new(), false),
        };
        let (stride, place) = match self.format {
            BlockFormat::F32 => (16, "panel + group * 512u + lane"),
            FP8 | MXFP8 => (4, "at"),
            _ => (8, "panel + group * 256u + (lane >> 1u)"),
        };
        let _ = writeln!(load, "let first = {place};");
        for i in 0..32 {
            let _ = writeln!(load, "raw.c{i} = {words}[first + {}u];", stride * i);
        }
        let fields = (0..32).map(|i| format!("c{i}: u32")).chain(scaled.then(|| "s0: u32".to_owned()));
        let mut text = raw_text(p, &fields.collect::<Vec<_>>(), &load);
        let scale = match self.format {
            FP8 => "let scale = bitcast<f32>(raw.s0);\n",
            MXFP8 => "let scale = e8m0(byte_of(raw.s0, lane));\n",
            _ => "",
        };
        let _ = write!(
            text,
            "fn {p}_weights(raw: {p}_Raw, lane: u32, group: u32) -> F32x32 {{\n{scale}var f: F32x32;\n"
        );
        for i in 0..8 {
            let each = |f: &dyn Fn(String) -> String| -> String {
                (0..4).map(|c| f(format!("raw.c{}", 4 * i + c))).collect::<Vec<_>>().join(", ")
            };
            let value = match self.format {
                BlockFormat::F32 => format!("vec4<f32>({})", each(&|word| format!("bitcast<f32>({word})"))),
                BlockFormat::F16 => format!("vec4<f32>({})", each(&|word| format!("half_of({word}, lane)"))),
                FP8 | MXFP8 => format!("scale * e4m3x4({})", each(&|word| format!("byte_of({word}, lane)"))),
                _ => format!("vec4<f32>({})", each(&|word| format!("bf16_of({word}, lane)"))),
            };
            let _ = writeln!(text, "f.v{i} = {value};");
        }
        text + "return f;\n}\n"
    }
}

/// The struct of what is read, and the function that reads it.
fn raw_text(p: &str, fields: &[String], load: &str) -> String {
    format!(
        "struct {p}_Raw {{ {} }}\n\
         fn {p}_load(panel: u32, lane: u32, group: u32) -> {p}_Raw {{\nvar raw: {p}_Raw;\n{load}return raw;\n}}\n",
        fields.join(", ")
    )
}

/// WGSL: places of the words with the scales and minimums of `group`.
fn scale_words(spec: &Spec) -> Vec<String> {
    let halves = "scales + (lane >> 1u)".to_owned();
    let subs = |j: &str| format!("base + ({j}) * 4u + (lane >> 2u)");
    match spec.scales {
        Scales::F16 => vec![halves],
        Scales::E8m0 => vec!["scales + (lane >> 2u)".to_owned()],
        Scales::Affine(_) => vec![halves, "base + 8u + (lane >> 1u)".to_owned()],
        Scales::Ue4m3 => vec![subs("(group & 1u) * 2u"), subs("(group & 1u) * 2u + 1u")],
        Scales::Bytes(32) => vec![halves, subs("group & 7u")],
        Scales::Bytes(_) => vec![halves, subs("(group & 7u) * 2u"), subs("(group & 7u) * 2u + 1u")],
        Scales::K4 => vec![
            halves,
            "base + 8u + (lane >> 1u)".to_owned(),
            format!("16u + {}", subs("(group & 7u) * 2u")),
            format!("16u + {}", subs("(group & 7u) * 2u + 1u")),
            "base + 16u + (group & 7u) * 8u + (lane >> 1u)".to_owned(),
        ],
        Scales::K6 => vec![
            halves,
            "base + 8u + (lane >> 1u)".to_owned(),
            format!("16u + {}", subs("group & 7u")),
            format!("48u + {}", subs("group & 3u")),
            "base + 16u + ((group & 7u) >> 1u) * 8u + (lane >> 1u)".to_owned(),
            "base + 48u + ((group & 3u) >> 1u) * 8u + (lane >> 1u)".to_owned(),
        ],
    }
}

/// WGSL: from the planes to int8.
fn codes_text(spec: &Spec, p: &str) -> String {
    let pairs =
        |i: usize| format!("((vec4<u32>(raw.c{i}) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u))");
    let bit = |i: usize, half: usize| {
        let shifts = if half == 0 { "0u, 1u, 2u, 3u" } else { "4u, 5u, 6u, 7u" };
        format!("((vec4<u32>(raw.c{i}) >> vec4<u32>({shifts})) & vec4<u32>(0x01010101u))")
    };
    let nibbles = |half: usize| {
        let plane = "vec4<u32>(raw.c0, raw.c1, raw.c2, raw.c3)";
        let shifted = if half == 0 { plane.to_owned() } else { format!("({plane} >> vec4<u32>(4u))") };
        format!("({shifted} & vec4<u32>(0x0f0f0f0fu))")
    };
    let dwords = |half: usize| match spec.bits {
        Bits::Two => pairs(half),
        Bits::Three => format!("({} | ({} << vec4<u32>(2u)))", pairs(half), bit(2, half)),
        Bits::Four => nibbles(half),
        Bits::Five => format!("({} | ({} << vec4<u32>(4u)))", nibbles(half), bit(4, half)),
        Bits::Six => format!("({} | ({} << vec4<u32>(4u)))", nibbles(half), pairs(4 + half)),
        Bits::Eight => {
            let i = 4 * half;
            format!(
                "(vec4<u32>(raw.c{}, raw.c{}, raw.c{}, raw.c{}) ^ vec4<u32>(0x80808080u))",
                i,
                i + 1,
                i + 2,
                i + 3
            )
        }
    };
    let value = |half: usize| match spec.values {
        Values::Less(_) => dwords(half),
        Values::Table(_) => format!("{p}_table({})", dwords(half)),
    };
    format!("return Int8x32({}, {});\n", value(0), value(1))
}

/// WGSL: from words to scales and minimums.
fn scales_text(spec: &Spec) -> String {
    let factor = if spec.factor == 1.0 { String::new() } else { format!(" * {:?}", spec.factor) };
    match spec.scales {
        Scales::F16 => format!("return vec4<f32>(vec2<f32>(half_of(raw.s0, lane){factor}), vec2<f32>());\n"),
        Scales::E8m0 => {
            "return vec4<f32>(vec2<f32>(halved_e8m0(byte_of(raw.s0, lane))), vec2<f32>());\n".to_owned()
        }
        Scales::Affine(half) => {
            let of = if half == Half::F16 { "half_of" } else { "bf16_of" };
            format!("return vec4<f32>(vec2<f32>({of}(raw.s0, lane)), vec2<f32>({of}(raw.s1, lane)));\n")
        }
        Scales::Ue4m3 => "let bits = (byte_of(raw.s0, lane) << 7u) | (byte_of(raw.s1, lane) << 23u);\n\
                          return vec4<f32>(unpack2x16float(bits) * 128.0, vec2<f32>());\n"
            .to_owned(),
        Scales::Bytes(32) => format!(
            "return vec4<f32>(vec2<f32>((half_of(raw.s0, lane){factor}) * int_of(raw.s1, lane)), vec2<f32>());\n"
        ),
        Scales::Bytes(_) => format!(
            "let d = half_of(raw.s0, lane){factor};\n\
             return vec4<f32>(d * int_of(raw.s1, lane), d * int_of(raw.s2, lane), 0.0, 0.0);\n"
        ),
        Scales::K4 => "let d = half_of(raw.s0, lane);\nlet m = -half_of(raw.s1, lane);\n\
                       let low = (lane & 1u) * 2u;\n\
                       return vec4<f32>(d * f32(byte_of(raw.s2, lane) & 15u), d * f32(byte_of(raw.s3, lane) & 15u), \
                       m * f32(byte_of(raw.s4, low) >> 4u), m * f32(byte_of(raw.s4, low + 1u) >> 4u));\n"
            .to_owned(),
        // The second four sub-blocks have the high nibbles of the top bits.
        Scales::K6 => "let shift = group & 4u;\nlet low = (lane & 1u) * 2u + (group & 1u);\n\
                       let top = byte_of(raw.s3, lane) >> shift;\nlet top_m = byte_of(raw.s5, low) >> shift;\n\
                       let scale = (byte_of(raw.s2, lane) & 15u) | ((top & 3u) << 4u);\n\
                       let minimum = (byte_of(raw.s4, low) >> 4u) | ((top_m & 12u) << 2u);\n\
                       return vec4<f32>(vec2<f32>(half_of(raw.s0, lane) * f32(scale)), \
                       vec2<f32>(-half_of(raw.s1, lane) * f32(minimum)));\n"
            .to_owned(),
    }
}
