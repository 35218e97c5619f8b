//! The ways to split text before byte-level BPE, by the names that GGUF files carry (`tokenizer.ggml.pre`).
//!
//! The expressions define the formats. They are those of the models' own `tokenizer.json` where it has them
//! (SmolLM, Llama 3, Qwen 2) and llama.cpp's (`llm_tokenizer_bpe` in src/llama-vocab.cpp) for `deepseek-llm`
//! and `default`. Expressions are applied one after another; each splits the pieces that the one before left
//! into matches and what is between them.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// Names that are known, for the error about one that is not.
pub(crate) const SUPPORTED: &str = "smollm, gpt-2, llama-bpe, qwen2, deepseek-llm, default";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Letters of alphabets that have cases.
const DEEPSEEK_WORDS: &str = concat!(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
    r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
    r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
    r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
    r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}",
    r"\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}",
    r"\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
    r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}",
    r"\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}",
    r"\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}",
    r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
    r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
);
const DEEPSEEK_MARKS: &str =
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
const DEEPSEEK_CJK: &str = r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";

/// A named way to split.
pub(crate) struct Named {
    /// Regular expressions, applied one after another.
    expressions: &'static [&'static str],
    /// A piece that is a token as it stands is not merged up from its bytes.
    pub(crate) ignore_merges: bool,
    /// The models that use it begin with a BOS token unless they say otherwise.
    pub(crate) add_bos: bool,
}

/// The way that `name` stands for, `None` if it is not known.
pub(crate) fn named(name: &str) -> Option<Named> {
    let plain = |expressions| Named { expressions, ignore_merges: false, add_bos: false };
    Some(match name {
        "smollm" => plain(&[r"\p{N}", GPT2]),
        "gpt-2" => plain(&[GPT2]),
        "llama-bpe" => Named { expressions: &[LLAMA3], ignore_merges: true, add_bos: true },
        "qwen2" => plain(&[QWEN2]),
        "deepseek-llm" => {
            plain(&[r"[\r\n]", DEEPSEEK_WORDS, DEEPSEEK_MARKS, r"\s+$", DEEPSEEK_CJK, r"\p{N}+"])
        }
        "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
        _ => return None,
    })
}

impl Named {
    /// The pre-tokenizer: the splits, then the byte alphabet.
    pub(crate) fn build(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps = Vec::with_capacity(self.expressions.len() + 1);
        for &expression in self.expressions {
            let pattern = SplitPattern::Regex(expression.to_owned());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
        }
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Sequence::new(steps).into())
    }
}
