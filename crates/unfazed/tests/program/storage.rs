//! `unfazed doctor` and `unfazed cache-replay`.

use std::path::{Path, PathBuf};
use std::process::Output;

use unfazed_store::experts::Units;
use unfazed_store::experts::trace::{Step, TraceHeader, TraceWriter};

use crate::support::{one_line_error, program, text};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/stories-moe-29m-Q4_0.gguf")
}

/// Runs the program with a cache folder of its own.
fn output_in(cache: &tempfile::TempDir, args: &[&str]) -> Output {
    program(args).env("XDG_CACHE_HOME", cache.path()).output().unwrap()
}

/// Runs the program to a good end, or to one that says that this machine could be better.
fn good(cache: &tempfile::TempDir, args: &[&str]) -> String {
    let output = output_in(cache, args);
    let stdout = text(&output.stdout);
    let warned = args[0] == "doctor" && stdout.contains(" should be done: ");
    assert_eq!(output.status.code(), Some(i32::from(warned)), "{}", text(&output.stderr));
    stdout
}

#[test]
fn doctor_measures_a_models_disk_and_keeps_it_for_later_runs() {
    let cache = tempfile::tempdir().unwrap();
    let demo = demo();
    let demo = demo.to_str().unwrap();
    let shown = good(&cache, &["doctor", "--storage", demo, "--seconds", "0.02"]);
    for part in [
        "reads at a time are enough",
        "in a row, 1024 KiB",
        "random, 64 KiB",
        "random, 4096 KiB",
        "tories",
        "do: unfazed calibrate",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    let kept = cache.path().join("unfazed");
    let kept: Vec<_> = std::fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&kept[0]).unwrap()).unwrap();
    assert!(kept["depth"].as_u64().unwrap() >= 1 && kept["sequential"].as_f64().unwrap() > 0.0, "{kept}");
    let folder = Path::new(demo).parent().unwrap().to_str().unwrap();
    let json = output_in(&cache, &["doctor", "-m", folder, "--seconds", "0.02", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let storage = &json["storage"];
    assert!(storage["depth"].as_u64().unwrap() >= 1 && storage["random"].as_array().unwrap().len() >= 3);
    assert!(storage["models"][0]["name"].as_str().unwrap().contains("tories"), "{storage}");
    assert_eq!(storage["models"][0]["speeds"][3]["hits_percent"], 90, "{storage}");
    let disk = json["lines"].as_array().unwrap().iter().find(|line| line["check"] == "disk").unwrap();
    assert!(disk["found"].as_str().unwrap().contains("MB/s in a row"), "{disk}");
}

#[test]
fn doctor_says_what_it_needs_where_there_is_nothing_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let error = one_line_error(&output_in(&folder, &["doctor", "--storage", path]));
    assert!(error.contains("give a model, or a folder with one"), "{error}");
    let missing = folder.path().join("nothing");
    let error = one_line_error(&output_in(&folder, &["doctor", "--storage", missing.to_str().unwrap()]));
    assert!(error.contains("nothing"), "{error}");
}

/// A trace in which 4 of 16 experts are used most.
fn trace(path: &Path) {
    let header = TraceHeader {
        model: "a model".to_owned(),
        units: Units { layers: 4, experts: 16 },
        used: 2,
        expert_bytes: 1_000_000,
        other_bytes: 10_000_000,
    };
    let mut writer = TraceWriter::new(std::fs::File::create(path).unwrap(), &header).unwrap();
    for i in 0..500u32 {
        let experts = vec![i % 4, if i % 5 == 0 { i / 5 % 16 } else { (i + 1) % 4 }];
        let layers = (0..4).map(|layer| (layer, experts.clone())).collect();
        writer.step(&Step { tokens: 1, layers }).unwrap();
    }
    writer.flush().unwrap();
}

/// The cells of a table's row.
fn cells(row: &str) -> Vec<&str> {
    row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn a_trace_is_replayed_with_every_policy_and_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat.trace");
    trace(&path);
    let path = path.to_str().unwrap();
    let args =
        ["cache-replay", path, "--slots", "8,32,100%", "--storage-rate", "1000", "--memory-rate", "10"];
    let shown = good(&folder, &args);
    assert!(shown.contains("a model: 500 tokens, 64 experts"), "{shown}");
    let rows: Vec<_> =
        shown.lines().filter(|line| line.contains("lru") || line.contains("s3-fifo")).map(cells).collect();
    assert_eq!(rows.len(), 6, "{shown}");
    let hits = |policy: &str, slots: &str| -> f64 {
        rows.iter().find(|row| row[0] == slots && row[2] == policy).unwrap()[3].parse().unwrap()
    };
    for policy in ["lru", "s3-fifo"] {
        assert!(
            hits(policy, "8") < hits(policy, "32") && hits(policy, "32") <= hits(policy, "64"),
            "{shown}"
        );
        assert!(hits(policy, "64") > 95.0, "all fit: {shown}");
    }
    assert!(rows.iter().all(|row| row[5].parse::<f64>().unwrap() <= row[6].parse().unwrap()), "{shown}");
    assert_eq!(good(&folder, &args), shown, "the same trace gives the same");
}

#[test]
fn a_replay_without_rates_says_hits_alone_and_one_that_misses_a_measurement_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat.trace");
    trace(&path);
    let path = path.to_str().unwrap();
    let shown = good(&folder, &["cache-replay", path, "--slots", "8", "--policy", "lfu"]);
    let row = cells(shown.lines().last().unwrap());
    assert_eq!((row[2], row[5], row[6]), ("lfu", "-", "-"), "{shown}");
    let error = one_line_error(&output_in(&folder, &["cache-replay", path, "--storage", path]));
    assert!(error.contains("unfazed doctor --storage"), "{error}");
    let error = one_line_error(&output_in(&folder, &["cache-replay", path, "--storage-rate", "1000"]));
    assert!(error.contains("unfazed calibrate") && error.contains("--memory-rate"), "{error}");
    let demo = demo();
    let error = one_line_error(&output_in(&folder, &["cache-replay", demo.to_str().unwrap()]));
    assert!(error.contains("stories-moe-29m-Q4_0.gguf") && error.contains("--expert-trace"), "{error}");
}
