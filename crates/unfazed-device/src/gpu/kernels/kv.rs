//! Where keys and values are in a layer's buffer, `[page][kv head] block`, and how kernels read them.
//!
//! Blocks are the CPU's, byte for byte: `unfazed_kernels::attention::KvLayout` says how they are laid out.

use unfazed_formats::{KvType, KvTypes};
use unfazed_kernels::LANES;

use super::super::kernel::Access;

/// Numbers in a block of Q8_0 and Q4_0.
pub(super) const BLOCK: usize = 32;

/// Shape of the keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvText {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) page_tokens: usize,
    pub(super) types: KvTypes,
}

impl KvText {
    /// A shape, or `None` if kernels cannot be made for it: a size is zero, `head_dim` is no multiple of 16 or of a type's
    /// blocks or above 256, `page_tokens` no multiple of 16.
    pub fn new(kv_heads: usize, head_dim: usize, page_tokens: usize, types: KvTypes) -> Option<KvText> {
        let whole = types.keys.divides(head_dim) && types.values.divides(head_dim);
        let dim = head_dim > 0 && head_dim.is_multiple_of(LANES) && head_dim <= 256;
        let page = page_tokens > 0 && page_tokens.is_multiple_of(LANES);
        (kv_heads > 0 && whole && dim && page).then_some(KvText { kv_heads, head_dim, page_tokens, types })
    }

    /// Bytes of a page of one layer.
    pub fn page_bytes(&self) -> usize {
        let position = |kind| panel_words(kind, self.head_dim) * 4 / LANES;
        self.kv_heads * self.page_tokens * (position(self.types.keys) + position(self.types.values))
    }

    /// What names a kernel of this shape.
    pub(super) fn name(&self) -> String {
        let KvTypes { keys, values } = self.types;
        format!("{keys} {values} {}x{} {}", self.kv_heads, self.head_dim, self.page_tokens)
    }

    /// Constants, and `panel_at`: which panels of 16 positions are where. Sizes are in words.
    pub(super) fn places(&self) -> String {
        let KvText { kv_heads, head_dim, page_tokens, types } = self;
        let panels = page_tokens / LANES;
        let (key, value) = (panel_words(types.keys, *head_dim), panel_words(types.values, *head_dim));
        let codes =
            |kind: KvType| if kind.format().block_weights() > 1 { LANES * head_dim / BLOCK / 2 } else { 0 };
        format!(
            "
const DIM = {head_dim}u;
const KV_HEADS = {kv_heads}u;
const PAGE_TOKENS = {page_tokens}u;
const KEY_PANEL = {key}u;
const KEY_CODES = {key_codes}u;
const VALUES = {values}u;
const VALUE_PANEL = {value}u;
const VALUE_CODES = {value_codes}u;
const BLOCK_WORDS = {block}u;
fn block_at(page: u32, head: u32) -> u32 {{ return (page * KV_HEADS + head) * BLOCK_WORDS; }}
",
            key_codes = codes(types.keys),
            value_codes = codes(types.values),
            values = panels * key,
            block = panels * (key + value),
        )
    }

    /// Bindings `first` and `first + 1`, both of them the layer's buffer, and functions that read it:
    /// `key_pair(panel, p, quad)` of dimensions `2p` and `2p + 1` four positions each, `value_quad(panel, position, quad)` of
    /// four dimensions. A panel is where it begins, in words.
    pub(super) fn readers(&self, first: u32) -> String {
        let KvTypes { keys, values } = self.types;
        format!(
            "@group(0) @binding({first}) var<storage, read> keys: array<{}>;
@group(0) @binding({second}) var<storage, read> values: array<{}>;
struct Pair {{ a: vec4<f32>, b: vec4<f32> }}
fn brain4(w: vec2<u32>) -> vec4<f32> {{
    return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));
}}
fn half4(w: vec2<u32>) -> vec4<f32> {{ return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)); }}
fn key_pair(panel: u32, p: u32, quad: u32) -> Pair {{ {} }}
fn value_quad(panel: u32, position: u32, quad: u32) -> vec4<f32> {{ {} }}
",
            element(keys),
            element(values),
            key_pair(keys),
            value_quad(values),
            second = first + 1,
        )
    }

    /// How the readers' bindings are used.
    pub(super) const READERS: [Access; 2] = [Access::Read, Access::Read];
}

/// Words of a panel of 16 positions.
fn panel_words(kind: KvType, head_dim: usize) -> usize {
    LANES * kind.format().row_bytes(head_dim).unwrap_or(0) / 4
}

/// What the buffer is an array of: four numbers of floats.
fn element(kind: KvType) -> &'static str {
    match kind {
        KvType::F32 => "vec4<f32>",
        KvType::F16 | KvType::BF16 => "vec2<u32>",
        KvType::Q8_0 | KvType::Q4_0 => "u32",
    }
}

fn key_pair(kind: KvType) -> &'static str {
    match kind {
        KvType::F32 => "let at = panel / 4u + p * 8u + quad; return Pair(keys[at], keys[at + 4u]);",
        KvType::F16 => {
            "let at = panel / 2u + p * 8u + quad; return Pair(half4(keys[at]), half4(keys[at + 4u]));"
        }
        KvType::BF16 => {
            "let at = panel / 2u + p * 8u + quad; return Pair(brain4(keys[at]), brain4(keys[at + 4u]));"
        }
        KvType::Q8_0 => {
            "let s = panel + p / 16u * 8u + quad * 2u;
    let scale = half4(vec2<u32>(keys[s], keys[s + 1u]));
    let at = panel + KEY_CODES + p * 8u + quad;
    return Pair(vec4<f32>(unpack4xI8(keys[at])) * scale, vec4<f32>(unpack4xI8(keys[at + 4u])) * scale);"
        }
        KvType::Q4_0 => {
            "let s = panel + p / 16u * 8u + quad * 2u;
    let scale = half4(vec2<u32>(keys[s], keys[s + 1u]));
    let w = keys[panel + KEY_CODES + p * 4u + quad];
    let a = vec4<f32>(unpack4xU8(w & 0x0f0f0f0fu)) - 8.0;
    let b = vec4<f32>(unpack4xU8((w >> 4u) & 0x0f0f0f0fu)) - 8.0;
    return Pair(a * scale, b * scale);"
        }
    }
}

fn value_quad(kind: KvType) -> &'static str {
    match kind {
        KvType::F32 => "return values[(panel + position * DIM) / 4u + quad];",
        KvType::F16 => "return half4(values[(panel + position * (DIM / 2u)) / 2u + quad]);",
        KvType::BF16 => "return brain4(values[(panel + position * (DIM / 2u)) / 2u + quad]);",
        KvType::Q8_0 => {
            "let s = position * (DIM / 32u) + quad / 8u;
    let scales = unpack2x16float(values[panel + s / 2u]);
    let codes = unpack4xI8(values[panel + VALUE_CODES + position * (DIM / 4u) + quad]);
    return vec4<f32>(codes) * select(scales.x, scales.y, s % 2u == 1u);"
        }
        KvType::Q4_0 => {
            "let s = position * (DIM / 32u) + quad / 8u;
    let scales = unpack2x16float(values[panel + s / 2u]);
    let w = values[panel + VALUE_CODES + position * (DIM / 8u) + quad / 8u * 4u + quad % 4u];
    let codes = unpack4xU8((w >> (quad / 4u % 2u * 4u)) & 0x0f0f0f0fu);
    return (vec4<f32>(codes) - 8.0) * select(scales.x, scales.y, s % 2u == 1u);"
        }
    }
}
