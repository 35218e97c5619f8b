//! Real vocabularies: the demo model, and larger ones where the environment names their folder.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)] // A test may.

use std::path::{Path, PathBuf};

use unfazed_formats::Checkpoint;
use unfazed_tokenizer::{SpecialText, Tokenizer};

fn tokenizer(path: &Path) -> Tokenizer {
    let checkpoint = Checkpoint::read(Checkpoint::open_files(path).unwrap()).unwrap();
    Tokenizer::new(&checkpoint.tokenizer, checkpoint.config.vocab).unwrap()
}

fn demo() -> Tokenizer {
    tokenizer(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-moe-29m-Q4_0.gguf"))
}

fn test_models() -> PathBuf {
    PathBuf::from(std::env::var_os("UNFAZED_TEST_MODELS").expect("UNFAZED_TEST_MODELS names a folder"))
}

/// Texts that tokenizers trip over.
const TRICKY: &[&str] = &[
    "Once upon a time, there was a little rabbit named Luna who",
    "In 1984 the café sold 1,250 crêpes — \"très bien!\", said Zoë.",
    "def add(a, b):\n    return a + b\n\n\nclass Foo:\n\tpass\n",
    "I'm sure they'LL say it's DON'T; we’ve ''S",
    "  leading,   inner   and trailing   ",
    "\r\n\r\n \t \n x\u{a0}y\u{3000}z",
    "世界 こんにちは 한국어 العربية עברית ไทย",
    "👋🏽👩‍👩‍👧‍👦 🇨🇭 e\u{301} \u{200b}\u{feff}",
    "3.14159 ½ ² Ⅷ ٣٤٥ 0x1F 1e-10 100_000",
    "<|im_start|>user\nWrite.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_ start|> <|im_start|<|im_end|>> <repo_name>",
    "\u{0}\u{1}\u{7f}\u{80}\u{ad}\u{fffd}\u{10ffff}",
];

#[test]
fn the_demo_model_splits_its_prompts_as_it_was_trained() {
    let tokenizer = demo();
    assert_eq!(tokenizer.vocab_size(), 8192);
    assert_eq!(tokenizer.end_tokens(), [2, 0]);
    assert!(!tokenizer.wants_bos());
    let frozen: &[(&str, &[u32])] = &[
        ("Once", &[6403]),
        (
            "Once upon a time, there was a little rabbit named Luna who",
            &[6403, 1980, 253, 655, 28, 665, 436, 253, 1838, 8122, 3333, 3365, 450, 419, 81, 617],
        ),
        (
            "<|im_start|>user\nWrite a short story for a young child about a brave rabbit.<|im_end|>\n<|im_start|>assistant\n",
            &[
                1, 4093, 198, 71, 608, 85, 253, 1890, 1977, 327, 253, 1805, 811, 563, 253, 3745, 307, 8122,
                3333, 30, 2, 198, 1, 520, 363, 403, 198,
            ],
        ),
        (
            "<|im_start|>user\nExplain in simple words what a river is.<|im_end|>\n<|im_start|>assistant\n",
            &[
                1, 4093, 198, 2516, 439, 402, 281, 2232, 1924, 732, 253, 4626, 314, 30, 2, 198, 1, 520, 363,
                403, 198,
            ],
        ),
        (
            "In 1984 the café sold 1,250 crêpes — \"très bien!\", said Zoë.",
            &[
                788, 216, 33, 41, 40, 36, 260, 1020, 86, 2756, 3459, 216, 33, 28, 34, 37, 32, 1650, 142, 120,
                3030, 1841, 476, 100, 98, 142, 118, 99, 1632, 264, 17, 1002, 1137, 1777, 95, 142, 121, 30,
            ],
        ),
        (
            "def add(a, b):\n    return a + b\n\n\nclass Foo:\n\tpass\n",
            &[
                1604, 803, 24, 81, 28, 278, 727, 472, 1003, 253, 1232, 278, 1116, 198, 2064, 426, 568, 42,
                198, 197, 5467, 198,
            ],
        ),
    ];
    for (text, tokens) in frozen {
        assert_eq!(tokenizer.encode(text, SpecialText::Parse, true).unwrap(), *tokens, "{text:?}");
    }
}

#[test]
fn the_demo_model_gives_tricky_texts_back() {
    let tokenizer = demo();
    for text in TRICKY {
        for special in [SpecialText::Parse, SpecialText::Plain] {
            let tokens = tokenizer.encode(text, special, true).unwrap();
            assert_eq!(tokenizer.decode(&tokens), *text);
        }
    }
}

#[test]
fn long_runs_of_one_character_are_encoded_and_given_back() {
    let tokenizer = demo();
    for run in [" ", "\n", "a", "世", "!", "1", "\t a"] {
        let text = run.repeat(100_000 / run.len()) + "x";
        let tokens = tokenizer.encode(&text, SpecialText::Plain, false).unwrap();
        assert_eq!(tokenizer.decode(&tokens), text);
    }
}

#[test]
#[ignore = "needs UNFAZED_TEST_MODELS: a folder with stories-moe-29m/ (BF16 safetensors)"]
fn tokenizer_json_and_gguf_metadata_of_one_model_give_the_same_tokens() {
    let (gguf, json) = (demo(), tokenizer(&test_models().join("stories-moe-29m")));
    assert_eq!(gguf.special_tokens(), json.special_tokens());
    assert_eq!(gguf.end_tokens(), json.end_tokens());
    for text in TRICKY {
        for special in [SpecialText::Parse, SpecialText::Plain] {
            let tokens = gguf.encode(text, special, true).unwrap();
            assert_eq!(json.encode(text, special, true).unwrap(), tokens, "{text:?}");
            assert_eq!(json.decode(&tokens), *text);
        }
    }
}

#[test]
#[ignore = "needs UNFAZED_TEST_MODELS: a folder with smollm2-135m-instruct-q4_1.gguf"]
fn smollm2_splits_prompts_as_its_reference_does() {
    let tokenizer = tokenizer(&test_models().join("smollm2-135m-instruct-q4_1.gguf"));
    let text = "In 1984 the café sold 1,250 crêpes — \"très bien!\", said Zoë.";
    let tokens = [
        788, 216, 33, 41, 40, 36, 260, 37366, 3459, 216, 33, 28, 34, 37, 32, 1650, 22069, 3030, 1841, 476,
        8489, 42623, 1632, 264, 38500, 1137, 26336, 26547, 30,
    ];
    assert_eq!(tokenizer.encode(text, SpecialText::Parse, true).unwrap(), tokens);
    for text in TRICKY {
        let tokens = tokenizer.encode(text, SpecialText::Parse, true).unwrap();
        assert_eq!(tokenizer.decode(&tokens), *text);
    }
}
