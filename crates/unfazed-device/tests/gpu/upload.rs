//! Uploads: what arrives is what was sent, and only with a receipt.

use std::time::Instant;

use unfazed_device::gpu::{Bound, Uploader};

use crate::chores::{Bench, PATIENCE, soon, stepped};
use crate::support::fresh;

/// Bytes that differ from piece to piece.
fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

#[test]
fn an_upload_of_several_pieces_arrives_whole() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 4);
    let source = noise((40 << 20) + 7);
    let mut uploader = Uploader::new(&bench.queue, 2, PATIENCE).unwrap();
    let blank = bench.memory.blank("weights", source.len() as u64).unwrap();
    let pending = uploader.fill(&mut bench.queue, blank, &source).unwrap();
    let weights = pending.ready(&mut bench.queue, soon()).unwrap();
    let read = bench.queue.read(&weights, 0, weights.bytes());
    let same = bench.queue.collect(read, soon(), |bytes| bytes[..source.len()] == source).unwrap();
    assert!(same);
}

#[test]
fn a_part_of_a_buffer_in_use_is_replaced_between_steps() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 8);
    let mut uploader = Uploader::new(&bench.queue, 1, PATIENCE).unwrap();
    bench.step(1, 1);
    let words: Vec<u8> = bytemuck::cast_slice(&[50_u32, 60]).to_vec();
    let pending = uploader.place(&mut bench.queue, &bench.words, 8, &words, "slot").unwrap();
    bench.step(2, 1);
    let slot = pending.ready(&mut bench.queue, soon()).unwrap();
    assert_eq!(*slot, "slot");
    let old = stepped(1, 2, 1);
    let (fifty, sixty) = (stepped(50, 2, 1), stepped(60, 2, 1));
    assert_eq!(bench.read(), [old, old, fifty, sixty, old, old, old, old]);
}

#[test]
fn parts_are_where_they_were_meant_to_be_and_the_rest_is_zero() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 4);
    let mut uploader = Uploader::new(&bench.queue, 1, PATIENCE).unwrap();
    let blank = bench.memory.blank("parts", 32).unwrap();
    let parts: [(u64, &[u8]); 2] = [(4, &[1; 4]), (16, &[2; 8])];
    let pending = uploader.fill_parts(&mut bench.queue, blank, &parts).unwrap();
    let ready = pending.ready(&mut bench.queue, soon()).unwrap();
    bench.memory.bind(&bench.pipeline, &[Bound::from(&ready)]).unwrap();
    let read = bench.queue.read(&ready, 0, 32);
    let got = bench.queue.collect(read, soon(), <[u8]>::to_vec).unwrap();
    let mut expected = vec![0; 32];
    expected[4..8].fill(1);
    expected[16..24].fill(2);
    assert_eq!(got, expected);
    let blank = bench.memory.blank("short", 32).unwrap();
    assert!(uploader.fill(&mut bench.queue, blank, &[0; 36]).is_err());
}

/// A measurement: run it by hand on a real GPU, optimised.
#[test]
#[ignore = "a measurement"]
fn how_fast_uploads_are() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 4);
    let source = noise((1 << 30) - 4096);
    let say = |what: &str, begun: Instant| {
        let took = begun.elapsed();
        eprintln!("{what}: {:.1} GB/s in {took:?}", source.len() as f64 / took.as_secs_f64() / 1e9);
    };
    for threads in [1, 2, 4, 8] {
        let mut uploader = Uploader::new(&bench.queue, threads, PATIENCE).unwrap();
        let begun = Instant::now();
        let blank = bench.memory.blank("weights", source.len() as u64).unwrap();
        let pending = uploader.fill(&mut bench.queue, blank, &source).unwrap();
        let weights = pending.ready(&mut bench.queue, soon()).unwrap();
        say(&format!("{threads} threads, a new buffer"), begun);
        for _ in 0..2 {
            let begun = Instant::now();
            let pending = uploader.place(&mut bench.queue, &weights, 0, &source, ()).unwrap();
            pending.ready(&mut bench.queue, soon()).unwrap();
            say(&format!("{threads} threads, the same buffer"), begun);
        }
    }
}
