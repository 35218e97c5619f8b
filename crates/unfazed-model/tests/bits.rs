//! A whole model's logits are the same bits for any number of threads, any batch, any chunk and any instruction set.

#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

mod common;

use std::path::{Path, PathBuf};

use common::cpu::{Mode, Runner, Setup, Streamed};
use unfazed_formats::config::Family;
use unfazed_formats::{BlockFormat, Checkpoint};
use unfazed_kernels::Isa;
use unfazed_testkit::{Mix, SyntheticModel, shape, vocabulary};

/// Prompts of different lengths, made of tokens that a text would have.
fn prompts(count: usize, longest: usize) -> Vec<Vec<u32>> {
    let token = |i: usize| (i as u32).wrapping_mul(2_654_435_761) >> 20;
    (0..count)
        .map(|p| (0..longest - p * longest / (2 * count)).map(|i| token(p * 1000 + i)).collect())
        .collect()
}

fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-moe-29m-Q4_0.gguf")
}

fn demo(setup: Setup) -> Runner {
    Runner::open_with(&demo_path(), setup)
}

fn bits(logits: &[Vec<Vec<f32>>]) -> Vec<Vec<u32>> {
    let of = |sequence: &Vec<Vec<f32>>| sequence.iter().flatten().map(|logit| logit.to_bits()).collect();
    logits.iter().map(of).collect()
}

fn equal(what: &str, found: &[Vec<u32>], expected: &[Vec<u32>]) {
    assert_eq!(found.len(), expected.len());
    for (sequence, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len());
        let differ = found.iter().zip(expected).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 0, "{what}: {differ} of {} logits of sequence {sequence} differ", found.len());
    }
}

#[test]
fn logits_do_not_depend_on_threads_batch_or_chunk() {
    let setup = Setup { mode: Mode::Shipped, isa: Isa::best(), threads: 1, chunk: 64, streamed: None };
    let prompts = prompts(16, 24);
    let expected: Vec<_> =
        prompts.iter().map(|p| demo(setup).batch(std::slice::from_ref(p)).remove(0)).collect();
    let expected = bits(&expected);
    for (threads, batch, chunk) in [(2, 1, 1), (1, 3, 7), (2, 3, 64), (1, 16, 512), (2, 16, 7), (2, 16, 512)]
    {
        let mut runner = demo(Setup { threads, chunk, ..setup });
        let found: Vec<_> = prompts.chunks(batch).flat_map(|prompts| runner.batch(prompts)).collect();
        equal(&format!("{threads} threads, batch {batch}, chunk {chunk}"), &bits(&found), &expected);
    }
}

#[test]
fn a_long_prompt_has_the_same_logits_in_chunks_of_any_size() {
    let setup = Setup { mode: Mode::Shipped, isa: Isa::best(), threads: 2, chunk: 512, streamed: None };
    let prompt = prompts(1, 600);
    let expected = bits(&demo(setup).batch(&prompt));
    for chunk in [1, 7, 64] {
        equal(&format!("chunk {chunk}"), &bits(&demo(Setup { chunk, ..setup }).batch(&prompt)), &expected);
    }
}

#[test]
fn logits_do_not_depend_on_where_experts_are() {
    let setup = Setup { mode: Mode::Shipped, isa: Isa::best(), threads: 2, chunk: 64, streamed: None };
    let prompts = prompts(5, 40);
    let expected = bits(&demo(setup).batch(&prompts));
    let (units, least) = demo_experts();
    for (slots, ring) in [(units, 2), (units / 2, 3), (units.div_ceil(10), 8), (least, 2), (1, 2)] {
        for (threads, chunk) in [(1, 1), (2, 4), (2, 16), (2, 512)] {
            let mut runner =
                demo(Setup { threads, chunk, streamed: Some(Streamed { slots, ring }), ..setup });
            let what = format!("{slots} slots, a ring of {ring}, {threads} threads, chunk {chunk}");
            equal(&what, &bits(&runner.batch(&prompts)), &expected);
            equal(&format!("{what}, again"), &bits(&runner.batch(&prompts)), &expected);
        }
    }
}

/// All experts of the demo model, and those that one token uses.
fn demo_experts() -> (usize, usize) {
    let config = Checkpoint::open(&demo_path()).unwrap().config;
    let experts = config.experts.unwrap();
    (config.layers * experts.count, config.layers * experts.used)
}

#[test]
fn logits_do_not_depend_on_the_instruction_set() {
    let setup = Setup { mode: Mode::Shipped, isa: Isa::Reference, threads: 2, chunk: 64, streamed: None };
    let prompts = prompts(3, 40);
    let expected = bits(&demo(setup).batch(&prompts));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        equal(isa.name(), &bits(&demo(Setup { isa, ..setup }).batch(&prompts)), &expected);
    }
}

#[test]
fn logits_of_every_format_are_the_same_on_every_instruction_set() {
    let folder = tempfile::tempdir().unwrap();
    for format in BlockFormat::GGUF {
        let path = folder.path().join("model.gguf");
        let config = shape::tiny(Family::Qwen3Moe, vocabulary::tiny_len());
        let model = SyntheticModel {
            name: "tiny".to_owned(),
            config,
            mix: Mix::uniform(format),
            tokenizer: vocabulary::tiny_metadata(),
            seed: 3,
            router_skew: None,
        };
        model.write(&path, 2, &|_, _| ()).unwrap();
        // More rows than registers have room for, and an odd number of them.
        let prompts = vec![(0..41).map(|i| i * 37 % 256).collect(), vec![7, 8, 9]];
        let setup =
            Setup { mode: Mode::Shipped, isa: Isa::Reference, threads: 1, chunk: 512, streamed: None };
        let logits = Runner::open_with(&path, setup).batch(&prompts);
        assert!(logits.iter().flatten().flatten().all(|logit| logit.is_finite()), "{format:?}");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let found = Runner::open_with(&path, Setup { isa, threads: 2, ..setup }).batch(&prompts);
            equal(&format!("{format:?} {}", isa.name()), &bits(&found), &bits(&logits));
        }
    }
}
