//! Rows of tables, of every format.

use unfazed_device::gpu::kernels::embed::Embed;
use unfazed_device::gpu::kernels::shard::{Shard, immediates};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_kernels::panel::unpack_row;

use crate::support::{bytes, gpu};
use crate::weights::{Bytes, Packed, Random, Scales, file_rows, formats};

const TOKENS: [u32; 4] = [0, 37, 21, 16];

#[test]
fn a_token_has_the_bits_of_its_row_in_every_format() {
    let Some(gpu) = gpu() else { return };
    for format in formats() {
        let (rows, columns) = (38, 768);
        let mut random = Random(7);
        let file = file_rows(format, rows, columns, Scales::Ordinary, Bytes::Random, &mut random);
        let table = Packed::new(format, rows, columns, &file);
        let embed = Embed { table: table.layout };
        let out = vec![0; TOKENS.len() * columns * 4];
        let buffers: [&[u8]; 3] = [&table.bytes, &bytes(&TOKENS), &out];
        let immediates = immediates(TOKENS.len(), Shard::whole(&table.layout));
        let trial = Trial { buffers: &buffers, immediates: &immediates, grid: embed.grid(TOKENS.len()) };
        let got = once(gpu, &embed.kernel(), &trial).unwrap();
        for (token, got) in TOKENS.iter().zip(got[2].chunks(columns * 4)) {
            let mut expected = vec![0.0; columns];
            unpack_row(&table.matrix(), *token as usize, &mut expected);
            for (k, (got, expected)) in got.as_chunks().0.iter().zip(expected).enumerate() {
                let got = f32::from_le_bytes(*got);
                // A zero weight may have either sign.
                assert!(got == expected, "{format:?} token {token} column {k}: {got:e}, not {expected:e}");
            }
        }
    }
}

#[test]
fn a_shard_writes_the_rows_of_its_own_tokens_alone() {
    let Some(gpu) = gpu() else { return };
    let format = unfazed_formats::BlockFormat::Q8_0;
    let (rows, columns) = (38, 64);
    let file = file_rows(format, rows, columns, Scales::Ordinary, Bytes::Random, &mut Random(8));
    let table = Packed::new(format, rows, columns, &file);
    let embed = Embed { table: table.layout };
    let mut out = vec![0xff; TOKENS.len() * columns * 4];
    let size = table.layout.panel_bytes();
    for shard in [Shard { first: 0, count: 1 }, Shard { first: 1, count: 2 }] {
        let part = &table.bytes[shard.first as usize * size..][..shard.count as usize * size];
        let buffers: [&[u8]; 3] = [part, &bytes(&TOKENS), &out];
        let immediates = immediates(TOKENS.len(), shard);
        let trial = Trial { buffers: &buffers, immediates: &immediates, grid: embed.grid(TOKENS.len()) };
        let got = once(gpu, &embed.kernel(), &trial).unwrap().swap_remove(2);
        for (i, token) in TOKENS.iter().enumerate() {
            let row = i * columns * 4..(i + 1) * columns * 4;
            let mine = (shard.first..shard.first + shard.count).contains(&(token / 16));
            assert_eq!(got[row.clone()] != out[row], mine, "token {token}, {shard:?}");
        }
        out = got;
    }
}
