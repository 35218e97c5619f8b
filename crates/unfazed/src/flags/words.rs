//! The words of other servers for the same settings, in one table: what each is here, and in which unit its number is.

use std::ffi::OsString;

/// How the value behind a word is written, and so how it is rewritten for the flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// As the flag takes it.
    Same,
    /// Binary megabytes, as a bare number.
    Mebibytes,
    /// Binary gigabytes, as a bare number.
    Gibibytes,
    /// Decimal gigabytes, as a bare number.
    Gigabytes,
    /// `512s` for slots, or a size.
    SlotsOrSize,
    /// Strata's names of types of keys and values.
    StrataTypes,
    /// No value: being there turns the flag on.
    On,
}

/// A word, the flag that it means, and its unit.
struct Word(&'static str, &'static str, Unit);

/// Words of llama.cpp, ik_llama.cpp, SwiftLM, Strata, ds4, colibri, oMLX, mlx-lm and mistral.rs.
const WORDS: [Word; 35] = [
    Word("--ctx-size", "--context", Unit::Same),
    Word("--ctx", "--context", Unit::Same),
    Word("--max-context", "--context", Unit::Same),
    Word("-np", "--parallel", Unit::Same),
    Word("--max-seqs", "--parallel", Unit::Same),
    Word("--max-concurrent-requests", "--parallel", Unit::Same),
    Word("-npl", "--n-parallel", Unit::Same),
    Word("-pg", "--n-prompt-gen", Unit::Same),
    // The chunk, but a flag of its own where measurements are asked for.
    Word("-ub", "--ubatch-size", Unit::Same),
    Word("--ubatch-size", "--prefill-chunk", Unit::Same),
    Word("--prefill-size", "--prefill-chunk", Unit::Same),
    Word("--prefill-step-size", "--prefill-chunk", Unit::Same),
    Word("--prefill", "--prefill-chunk", Unit::Same),
    Word("-tb", "--threads-batch", Unit::Same),
    Word("-Cr", "--cpu-range", Unit::Same),
    Word("-ctk", "--cache-type-k", Unit::Same),
    Word("-ctv", "--cache-type-v", Unit::Same),
    Word("--kv", "--kv-type", Unit::StrataTypes),
    Word("--mem-limit", "--memory", Unit::Mebibytes),
    Word("--ram", "--memory", Unit::Gigabytes),
    Word("--moe-cache-mib", "--expert-cache", Unit::Mebibytes),
    Word("--moe-stream-cache", "--expert-cache", Unit::SlotsOrSize),
    Word("--ssd-streaming-cache-experts", "--expert-cache", Unit::Same),
    Word("--resident-budget-gib", "--expert-cache", Unit::Gibibytes),
    Word("-ngl", "--gpu-layers", Unit::Same),
    Word("--n-gpu-layers", "--gpu-layers", Unit::Same),
    Word("-cmoe", "--cpu-moe", Unit::Same),
    Word("-ncmoe", "--n-cpu-moe", Unit::Same),
    Word("-ts", "--split", Unit::Same),
    Word("--tensor-split", "--split", Unit::Same),
    Word("-mg", "--gpu", Unit::Same),
    Word("--main-gpu", "--gpu", Unit::Same),
    Word("--gpus", "--gpu", Unit::Same),
    Word("--ssd-streaming", "--stream-experts", Unit::On),
    Word("--moe-stream", "--stream-experts", Unit::On),
];

/// The flag whose value may be left out, and what it is then. (To `clap` an optional value would swallow a prompt.)
const BARE: (&str, [&str; 3], &str) = ("--stream-experts", ["auto", "on", "off"], "on");

/// Words that mean a flag, for `clap`: it names the nearest of them when a word is unknown.
pub(super) fn aliases(flag: &str) -> impl Iterator<Item = &'static str> {
    let words = WORDS.iter().filter(move |Word(_, meant, _)| meant.strip_prefix("--") == Some(flag));
    words.filter_map(|Word(word, ..)| word.strip_prefix("--"))
}

/// Rewrites what `clap` cannot, up to `--`: words of one dash and several letters, words whose number has a unit of its own,
/// and words without a value.
pub(crate) fn rewrite(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut args = args.peekable();
    let mut rewritten = Vec::new();
    while let Some(arg) = args.next() {
        if arg == "--" {
            rewritten.push(arg);
            break;
        }
        let (name, value) = match arg.to_str() {
            Some(text) => text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value))),
            None => ("", None),
        };
        let word = WORDS
            .iter()
            .find(|Word(word, _, unit)| *word == name && (*unit != Unit::Same || !name.starts_with("--")));
        match word {
            Some(Word(_, flag, unit)) => {
                rewritten.push(OsString::from(flag));
                if *unit == Unit::On {
                    rewritten.push(value.unwrap_or("on").into());
                } else if let Some(value) = value {
                    rewritten.push(unit.rewrite(value).into());
                } else if *unit != Unit::Same
                    && let Some(value) = args.next()
                {
                    rewritten.push(value.to_str().map_or(value.clone(), |text| unit.rewrite(text).into()));
                }
            }
            None => {
                let (flag, values, meant) = BARE;
                let bare =
                    arg == flag && !args.peek().is_some_and(|next| values.iter().any(|value| next == value));
                rewritten.push(arg);
                rewritten.extend(bare.then(|| OsString::from(meant)));
            }
        }
    }
    rewritten.into_iter().chain(args)
}

impl Unit {
    /// A value as the flag takes it. What is no number in this unit is left to the flag, which says what it takes.
    fn rewrite(self, value: &str) -> String {
        let bare = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match (self, value) {
            (Unit::Mebibytes, _) if bare => format!("{value}MiB"),
            (Unit::Gibibytes, _) if bare => format!("{value}GiB"),
            (Unit::Gigabytes, _) if bare => format!("{value}GB"),
            (Unit::SlotsOrSize, _) => value.strip_suffix('s').unwrap_or(value).to_owned(),
            (Unit::StrataTypes, "int8") => "q8_0".to_owned(),
            (Unit::StrataTypes, "k8v4") => "q8_0,q4_0".to_owned(),
            _ => value.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Args, Command, FromArgMatches};
    use unfazed_plan::{
        Bytes, CpuMoe, ExpertCache, GpuLayers, GpuSettings, HostCopy, Settings, StreamExperts, Tokens,
    };

    use super::*;
    use crate::flags::ModelFlags;

    fn rewritten(line: &str) -> String {
        let args = rewrite(line.split(' ').map(OsString::from));
        args.map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    }

    /// What a line of flags asks the plan for.
    fn settings(line: &str) -> Settings {
        let args = rewrite(["unfazed"].into_iter().chain(line.split(' ')).map(OsString::from));
        let command = ModelFlags::augment_args(Command::new("unfazed"));
        let matches = command.try_get_matches_from(args).unwrap_or_else(|error| panic!("{line}: {error}"));
        ModelFlags::from_arg_matches(&matches).unwrap().settings()
    }

    /// A line of each word, and what it means here.
    fn meanings() -> Vec<(&'static str, Settings)> {
        let none = Settings::default();
        let context = |tokens| Settings { context: Some(Tokens(tokens)), ..none };
        let chunk = |tokens| Settings { chunk: Some(Tokens(tokens)), ..none };
        let memory = |bytes| Settings { memory: Some(Bytes(bytes)), ..none };
        let slots = |slots| Settings { expert_cache: Some(ExpertCache::Slots(slots)), ..none };
        let cache = |bytes| Settings { expert_cache: Some(ExpertCache::Bytes(Bytes(bytes))), ..none };
        let no_gpu = GpuSettings::default();
        let gpu = |gpu| Settings { gpu, ..none };
        let parallel = Settings { parallel: Some(4), ..none };
        let stream = |stream_experts| Settings { stream_experts, ..none };
        let kept = |keys: &str, values: &str| {
            let cache =
                unfazed_formats::KvTypes { keys: keys.parse().unwrap(), values: values.parse().unwrap() };
            Settings { cache, ..none }
        };
        vec![
            ("--context 8k", context(8192)),
            ("-c 8192", context(8192)),
            ("--ctx-size 8192", context(8192)),
            ("--ctx 4096", context(4096)),
            ("--max-context 4096", context(4096)),
            ("--parallel 4", parallel),
            ("-np 4", parallel),
            ("--max-seqs 4", parallel),
            ("--max-concurrent-requests 4", parallel),
            ("--prefill-chunk 2k", chunk(2048)),
            ("--prefill-chunk auto", none),
            ("-ub 512", chunk(512)),
            ("--ubatch-size 512", chunk(512)),
            ("--prefill-size 512", chunk(512)),
            ("--prefill-step-size 2048", chunk(2048)),
            ("--prefill auto", none),
            ("--prefill 8192", chunk(8192)),
            ("--memory 24G", memory(24 << 30)),
            ("--memory auto", none),
            ("--mem-limit 4096", memory(4 << 30)),
            ("--mem-limit=4096", memory(4 << 30)),
            ("--mem-limit 4GiB", memory(4 << 30)),
            ("--ram 25", memory(25_000_000_000)),
            ("--expert-cache 6144", slots(6144)),
            ("--expert-cache 8GiB", cache(8 << 30)),
            ("--expert-cache auto", none),
            ("--moe-cache-mib 2048", cache(2 << 30)),
            ("--moe-stream-cache 64s", slots(64)),
            ("--moe-stream-cache 8G", cache(8 << 30)),
            ("--ssd-streaming-cache-experts 2048", slots(2048)),
            ("--ssd-streaming-cache-experts 32GB", cache(32_000_000_000)),
            ("--resident-budget-gib 7.5", cache((15 << 30) / 2)),
            ("--stream-experts off", stream(StreamExperts::Off)),
            ("--stream-experts", stream(StreamExperts::On)),
            ("--stream-experts --parallel 4", Settings { parallel: Some(4), ..stream(StreamExperts::On) }),
            ("--ssd-streaming", stream(StreamExperts::On)),
            ("--moe-stream", stream(StreamExperts::On)),
            ("--kv-type q8_0", kept("q8_0", "q8_0")),
            ("--kv-type q8_0,q4_0", kept("q8_0", "q4_0")),
            ("--kv-type q8_0 --cache-type-v bf16", kept("q8_0", "bf16")),
            ("-ctk q8_0 -ctv q4_0", kept("q8_0", "q4_0")),
            ("--kv int8", kept("q8_0", "q8_0")),
            ("--kv q4_0", kept("q4_0", "q4_0")),
            ("--kv k8v4", kept("q8_0", "q4_0")),
            ("--gpu-layers 20", gpu(GpuSettings { layers: GpuLayers::Count(20), ..no_gpu })),
            ("--gpu-layers auto", none),
            ("--gpu-layers -1", none),
            ("-ngl 99", gpu(GpuSettings { layers: GpuLayers::Count(99), ..no_gpu })),
            ("-ngl all", gpu(GpuSettings { layers: GpuLayers::All, ..no_gpu })),
            ("--n-gpu-layers 0", gpu(GpuSettings { layers: GpuLayers::Count(0), ..no_gpu })),
            ("--cpu-moe", gpu(GpuSettings { cpu_moe: CpuMoe::All, ..no_gpu })),
            ("-cmoe", gpu(GpuSettings { cpu_moe: CpuMoe::All, ..no_gpu })),
            ("-ncmoe 3", gpu(GpuSettings { cpu_moe: CpuMoe::First(3), ..no_gpu })),
            ("--n-cpu-moe 0", none),
            ("-ts 3,1", gpu(GpuSettings { split: "3,1".parse().ok(), ..no_gpu })),
            ("--tensor-split 3,1", gpu(GpuSettings { split: "3,1".parse().ok(), ..no_gpu })),
            ("-mg 1", none),
            ("--main-gpu 1", none),
            ("--gpus 0,1", none),
            ("--gpu-budget-ms 20", gpu(GpuSettings { budget_ms: 20, ..no_gpu })),
            ("--gpu-host-copy off", gpu(GpuSettings { host_copy: HostCopy::Off, ..no_gpu })),
            ("--strict", Settings { strict: true, ..none }),
            ("-tb 3", Settings { batch_threads: Some(3), ..none }),
        ]
    }

    #[test]
    fn each_word_means_its_flag_in_its_own_unit() {
        for (line, meant) in meanings() {
            assert_eq!(settings(line), meant, "{line}");
        }
    }

    #[test]
    fn no_word_of_the_table_is_without_a_meaning_that_was_checked() {
        let checked: BTreeSet<&str> =
            meanings().iter().flat_map(|(line, _)| line.split([' ', '=']).collect::<Vec<_>>()).collect();
        // Flags of measurements alone, and of processors.
        let elsewhere = ["-npl", "-pg", "-Cr"];
        for Word(word, ..) in &WORDS {
            assert!(checked.contains(word) || elsewhere.contains(word), "{word}");
        }
    }

    #[test]
    fn flags_of_other_servers_are_understood_but_prompts_are_left_alone() {
        assert_eq!(rewritten("unfazed serve -np 4"), "unfazed serve --parallel 4");
        assert_eq!(rewritten("unfazed bench -ub 64 -npl 2"), "unfazed bench --ubatch-size 64 --n-parallel 2");
        assert_eq!(rewritten("unfazed run -- -np --ram 1"), "unfazed run -- -np --ram 1");
        assert_eq!(rewritten("unfazed run --stream-experts hello"), "unfazed run --stream-experts on hello");
        assert_eq!(rewritten("unfazed run --mem-limit"), "unfazed run --memory");
    }

    #[test]
    fn a_value_that_makes_no_sense_is_left_to_the_flag() {
        assert_eq!(rewritten("unfazed serve --ram lots"), "unfazed serve --memory lots");
        assert_eq!(rewritten("unfazed serve --kv fp3"), "unfazed serve --kv-type fp3");
    }
}
