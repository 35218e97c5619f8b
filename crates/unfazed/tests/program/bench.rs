//! `unfazed bench` and `unfazed calibrate`.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{one_line_error, program, signal, text, wait};

/// Small tests of the demo model.
const SMALL: [&str; 8] = ["bench", "-p", "32", "-n", "4", "-r", "2", "-o"];

/// Runs the program with a cache folder of its own.
fn output_in(cache: &tempfile::TempDir, args: &[&str]) -> Output {
    program(args).env("XDG_CACHE_HOME", cache.path()).output().unwrap()
}

fn bench(args: &[&str]) -> String {
    let cache = tempfile::tempdir().unwrap();
    let output = output_in(&cache, args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "nothing but results");
    text(&output.stdout)
}

#[test]
fn json_has_the_keys_of_llama_bench() {
    let results: Vec<Value> =
        serde_json::from_str(&bench(&[&SMALL[..], &["json", "-t", "1", "-ub", "16"]].concat())).unwrap();
    assert_eq!(results.len(), 2);
    for key in [
        "build_commit",
        "cpu_info",
        "backends",
        "model_filename",
        "model_type",
        "model_size",
        "model_n_params",
        "n_batch",
        "n_ubatch",
        "n_threads",
        "cpu_mask",
        "cpu_strict",
        "type_k",
        "type_v",
        "n_prompt",
        "n_gen",
        "n_depth",
        "test_time",
        "avg_ns",
        "stddev_ns",
        "avg_ts",
        "stddev_ts",
        "samples_ns",
        "samples_ts",
    ] {
        assert!(results.iter().all(|result| result.get(key).is_some()), "{key} is missing in {results:?}");
    }
    let [prompt, answer] = &results[..] else { panic!("two tests") };
    assert_eq!((&prompt["n_prompt"], &prompt["n_gen"]), (&32.into(), &0.into()));
    assert_eq!((&answer["n_prompt"], &answer["n_gen"]), (&0.into(), &4.into()));
    assert_eq!((&prompt["n_ubatch"], &prompt["n_threads"]), (&16.into(), &1.into()));
    for result in &results {
        let samples: Vec<f64> =
            result["samples_ts"].as_array().unwrap().iter().map(|sample| sample.as_f64().unwrap()).collect();
        let mean = result["avg_ts"].as_f64().unwrap();
        assert_eq!(samples.len(), 2);
        assert!(mean > 0.0 && (mean - (samples[0] + samples[1]) / 2.0).abs() < 1e-6 * mean, "{result}");
    }
}

#[test]
fn every_combination_is_measured_once_in_order() {
    let lines = bench(&[&SMALL[..], &["jsonl", "-pg", "8,2", "-d", "0,40", "-b", "64,16"]].concat());
    let tests: Vec<[u64; 5]> = lines
        .lines()
        .map(|line| {
            let result: Value = serde_json::from_str(line).unwrap();
            ["n_ubatch", "n_depth", "n_prompt", "n_gen", "n_parallel"]
                .map(|key| result[key].as_u64().unwrap())
        })
        .collect();
    let of =
        |rows: u64, depth: u64| [[rows, depth, 32, 0, 1], [rows, depth, 0, 4, 1], [rows, depth, 8, 2, 1]];
    assert_eq!(tests, [of(64, 0), of(64, 40), of(16, 0), of(16, 40)].concat());
}

#[test]
fn several_sequences_are_measured_at_once() {
    let table = bench(&["bench", "-p", "20", "-n", "3", "-npl", "1,4", "-r", "1"]);
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].contains("S_TG t/s"), "{table}");
    assert!(lines[3].starts_with("|    20 |      3 |    4 |     92 |"), "{table}");
}

#[test]
fn the_limit_is_measured_shown_and_kept_for_calibrate() {
    let cache = tempfile::tempdir().unwrap();
    let limited =
        output_in(&cache, &["bench", "-p", "32", "-n", "4", "-r", "1", "-t", "1", "--limit", "-o", "json"]);
    let results: Vec<Value> = serde_json::from_str(&text(&limited.stdout)).unwrap();
    for result in &results {
        assert!(matches!(result["limit"].as_str(), Some("memory" | "compute")), "{result}");
        for key in ["limit_share", "read_gb_per_s", "dot_gmac_per_s"] {
            assert!(result[key].as_f64().is_some_and(|rate| rate > 0.0), "{key} in {result}");
        }
    }
    let folder = cache.path().join("unfazed");
    let [file] =
        &std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..]
    else {
        panic!("one file is kept")
    };
    let kept: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(kept["rates"][0]["threads"], 1);

    let calibrate = |warning: &str| {
        let output = output_in(&cache, &["calibrate"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(warning), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let measured = calibrate("");
    assert_eq!(calibrate(""), measured, "what was measured is shown");
    std::fs::write(file, "{").unwrap();
    calibrate("is damaged");
    let kept: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert!(!kept["rates"].as_array().unwrap().is_empty(), "it was measured again");
}

#[test]
fn flags_that_make_no_sense_are_explained() {
    let usage = |args: &[&str], part: &str| {
        let refused = program(args).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        assert!(text(&refused.stderr).contains(part), "{}", text(&refused.stderr));
        assert!(refused.stdout.is_empty());
    };
    usage(&["bench", "-p", "many"], "1-9+2");
    usage(&["bench", "-pg", "512"], "512,128");
    usage(&["bench", "-o", "xml"], "jsonl");
    usage(&["bench", "-ctk", "q9_9"], "f16");
    usage(&["bench", "--kernels", "-p", "1"], "--kernels");
    usage(&["bench", "-C", "0xzz"], "hexadecimal");
    usage(&["serve", "-Cr", "3-1"], "0-3,8");
    let refused = |args: &[&str], part: &str| {
        let line = one_line_error(&program(args).output().unwrap());
        assert!(line.contains(part), "{line}");
    };
    refused(&["bench", "-p", "0", "-n", "0"], "nothing to measure");
    refused(&["bench", "-n", "100000"], "the model was trained for");
    refused(&["bench", "-t", "100000"], "threads make sense");
    refused(&["bench", "-ub", "0"], "at least 1 row");
    refused(&["bench", "-npl", "4", "-n", "0"], "must be above 0");
    refused(&["bench", "-m", "no/such.gguf"], "such.gguf");
}

#[cfg(target_os = "linux")]
#[test]
fn processors_that_are_not_there_are_named() {
    for args in [["bench", "-Cr", "8000"], ["serve", "--cpu-range", "8000"]] {
        let line = one_line_error(&program(&args).output().unwrap());
        assert!(line.contains("processors 8000 cannot be used"), "{line}");
    }
}

#[test]
fn results_end_cleanly_where_the_reader_does() {
    let mut child = program(&[&SMALL[..], &["jsonl"]].concat()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stderr), "");
}

#[test]
fn ctrl_c_ends_it_and_leaves_whole_lines() {
    let mut child = program(&["bench", "-p", "16", "-n", "0", "-d", "0-400+1", "-r", "1", "-o", "jsonl"])
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child).signal(), Some(2));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let lines: Vec<&str> = [&first[..]].into_iter().chain(rest.lines()).collect();
    assert!(lines.len() < 400, "it did not end early");
    assert!(lines.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines:?}");
}

#[test]
fn threads_may_be_bound_to_processors() {
    let line = bench(&[&SMALL[..], &["jsonl", "-t", "1", "-tb", "1", "--pin"]].concat());
    let result: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(result["cpu_strict"], cfg!(target_os = "linux"));
    assert_ne!(result["cpu_mask"], "0x0");
}
