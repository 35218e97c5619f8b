//! The kernels, each at work of a fixed size.

use half::f16;
use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::{Group, Half};
use unfazed_formats::config::RopePairing;
use unfazed_kernels::activations::{Grain, QuantisedRows, Tile};
use unfazed_kernels::attention::{AttentionScratch, KvLayout, Queries, attend, digest, store};
use unfazed_kernels::matmul::matmul;
use unfazed_kernels::panel::{PackedMatrix, PanelBuffer, PanelLayout, pack_panel, unpack_row};
use unfazed_kernels::vector::{add_scaled, rms_norm, rotate, silu_mul, softmax};
use unfazed_kernels::{Isa, LANES};

/// Rows and columns of a matrix: two panels, so that kernels may take them together.
const MATRIX: (usize, usize) = (2 * LANES, 1024);
const HEAD_DIM: usize = 128;
const PAGE: usize = 32;
const VECTOR: usize = 4096;

/// Takes a name and a kernel.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&str, &mut dyn FnMut());

/// Gives all kernels to `take`, one after the other, in all instruction sets that this processor has.
pub(crate) fn each(take: Take<'_>) {
    let sets: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.available()).collect();
    for format in BlockFormat::all().filter(|&format| chosen(format)) {
        packing(take, format);
        for &isa in &sets {
            matrix(take, isa, format);
        }
    }
    for isa in sets {
        rounding(take, isa);
        attention(take, isa);
        vectors(take, isa);
    }
}

/// All formats, but of the affine ones, which differ in few instructions, one for each number of bits.
fn chosen(format: BlockFormat) -> bool {
    match format {
        BlockFormat::Affine(affine) => affine.group == Group::Of64 && affine.scale == Half::BF16,
        _ => true,
    }
}

fn name(format: BlockFormat) -> String {
    match format {
        BlockFormat::Affine(affine) => format!("affine of {} bits", affine.bits.count()),
        _ => format!("{format:?}"),
    }
}

/// Bytes that look random; scales among them are 2^-7 to 2^-4.
fn bytes(count: usize) -> impl Iterator<Item = u8> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        0x20 + (state >> 56) as u8 % 0x10
    })
    .take(count)
}

/// Numbers from -1.27 to 1.27.
fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 37 % 255) as f32 / 100.0 - 1.27).collect()
}

fn layout(format: BlockFormat) -> PanelLayout {
    match PanelLayout::new(format, MATRIX.0, MATRIX.1) {
        Some(layout) => layout,
        None => unreachable!("{format:?} has whole blocks in {} columns", MATRIX.1),
    }
}

fn packing(take: Take<'_>, format: BlockFormat) {
    let layout = layout(format);
    let rows: Vec<u8> = bytes(LANES * layout.row_bytes()).collect();
    let mut panel = PanelBuffer::new(layout.panel_bytes());
    take(&format!("pack {}", name(format)), &mut || pack_panel(&layout, &rows, &mut panel));
}

fn matrix(take: Take<'_>, isa: Isa, format: BlockFormat) {
    let layout = layout(format);
    let mut weights = PanelBuffer::new(layout.bytes());
    weights.iter_mut().zip(bytes(layout.bytes())).for_each(|(weight, byte)| *weight = byte);
    let matrix = match PackedMatrix::new(layout, &weights) {
        Ok(matrix) => matrix,
        Err(error) => unreachable!("{error}"),
    };
    let mut out = vec![0.0; 64 * MATRIX.0];
    for rows in [1, 64] {
        let tile = tile(isa, format, rows);
        take(&format!("matmul {} {} rows {rows}", name(format), isa.name()), &mut || {
            matmul(isa, &matrix, 0..layout.panels(), &tile, &mut out, MATRIX.0);
        });
    }
    if isa == Isa::Reference {
        let mut row = vec![0.0; MATRIX.1];
        take(&format!("unpack_row {}", name(format)), &mut || unpack_row(&matrix, 3, &mut row));
    }
}

fn tile(isa: Isa, format: BlockFormat, rows: usize) -> Tile {
    let table = quantised(isa, Grain::of(format), rows);
    let mut tile = Tile::new();
    tile.gather(isa, format, &table, &(0..rows).collect::<Vec<_>>());
    tile
}

fn quantised(isa: Isa, grain: Grain, rows: usize) -> QuantisedRows {
    let mut table = QuantisedRows::new();
    table.resize(grain, rows, MATRIX.1);
    let x = floats(rows * MATRIX.1);
    for (row, x) in x.chunks(MATRIX.1).enumerate() {
        table.quantise(isa, row, x);
    }
    table
}

fn rounding(take: Take<'_>, isa: Isa) {
    let set = isa.name();
    let x = floats(MATRIX.1);
    for grain in [Grain::Per32, Grain::Per256] {
        let mut table = quantised(isa, grain, 1);
        take(&format!("quantise {grain:?} {set}"), &mut || table.quantise(isa, 0, &x));
    }
    // One format for each kind of sums that a tile keeps.
    for format in [BlockFormat::Q4_0, BlockFormat::Q4_1, BlockFormat::Q4_K, BlockFormat::Q6_K] {
        let table = quantised(isa, Grain::of(format), 8);
        let mut tile = tile(isa, format, 8);
        take(&format!("gather {format:?} {set}"), &mut || {
            tile.gather(isa, format, &table, &[0, 1, 2, 3, 4, 5, 6, 7]);
        });
    }
}

fn attention(take: Take<'_>, isa: Isa) {
    const POSITIONS: usize = 512;
    let set = isa.name();
    let Some(layout) = KvLayout::new(1, 1, HEAD_DIM, PAGE) else { unreachable!("whole panels") };
    let mut pages = vec![f16::ZERO; POSITIONS / PAGE * layout.page_len()];
    let (key, value) = (floats(HEAD_DIM), floats(HEAD_DIM));
    for (position, page) in (0..POSITIONS).map(|position| (position, position / PAGE * layout.page_len())) {
        let block = &mut pages[page..][layout.block(0, 0)];
        store(isa, &layout, block, position % PAGE, &key, &value);
    }
    take(&format!("attention store {set}"), &mut || {
        store(isa, &layout, &mut pages[layout.block(0, 0)], 5, &key, &value);
    });
    let mut digests = [0; PAGE];
    take(&format!("attention digest {set}"), &mut || {
        digest(isa, &layout, &pages[layout.block(0, 0)], 0..PAGE, &mut digests);
    });
    // The heads of a group at one position, and a chunk of a prompt.
    for (name, positions) in [
        ("decode of 1", vec![POSITIONS - 1]),
        ("decode of 4", vec![POSITIONS - 1; 4]),
        ("prefill of 32", (POSITIONS - 32..POSITIONS).collect()),
    ] {
        let vectors = floats(positions.len() * HEAD_DIM);
        let mut out = vec![0.0; vectors.len()];
        let mut scratch = AttentionScratch::new(positions.len(), HEAD_DIM);
        take(&format!("attention {name} {set}"), &mut || {
            let queries = Queries { positions: &positions, vectors: &vectors, out: &mut out };
            let block = |page: usize| &pages[page * layout.page_len()..][layout.block(0, 0)];
            attend(isa, &layout, block, queries, &mut scratch);
        });
    }
}

fn vectors(take: Take<'_>, isa: Isa) {
    let set = isa.name();
    let (mut x, y) = (floats(VECTOR), floats(VECTOR));
    take(&format!("rms_norm {set}"), &mut || rms_norm(isa, &mut x, &y, 1e-6));
    take(&format!("silu_mul {set}"), &mut || silu_mul(isa, &mut x, &y));
    take(&format!("add_scaled {set}"), &mut || add_scaled(isa, &mut x, 0.5, &y));
    take(&format!("softmax {set}"), &mut || softmax(isa, &mut x));
    let table = floats(HEAD_DIM);
    for pairing in [RopePairing::Halves, RopePairing::Neighbours] {
        take(&format!("rotate {pairing:?} {set}"), &mut || rotate(isa, pairing, &table, HEAD_DIM, &mut x));
    }
}
