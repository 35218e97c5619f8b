//! `unfazed plan`, of models that are headers and a hole where the weights would be.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use unfazed_formats::ModelConfig;
use unfazed_formats::config::ExpertConfig;
use unfazed_host::disk;
use unfazed_host::disk_rates::{DiskRates, RandomRate, file_name};
use unfazed_testkit::shape::Preset;
use unfazed_testkit::{Mix, SyntheticModel, vocabulary};

use crate::support::{one_line_error, output, program, text};

const GIB: u64 = 1 << 30;

/// A file with the headers of a model, in a folder that is removed with it.
struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Model {
    fn new(config: ModelConfig, mix: &str) -> Model {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let mix = Mix::from_name(mix).unwrap();
        let tokenizer = vocabulary::tiny_metadata();
        let name = "a large model".to_owned();
        let model = SyntheticModel { name, config, mix, tokenizer, seed: 1, router_skew: None };
        model.write_headers(&path).unwrap();
        Model { _folder: folder, path }
    }

    /// 17 GB.
    fn qwen3_30b() -> Model {
        Model::new(Preset::Qwen3A3b.config(vocabulary::tiny_len()), "q4_k")
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn plan(&self, args: &[&str]) -> Output {
        output(&[&["plan", "-m", self.path()], args].concat())
    }

    /// An accepted plan as JSON.
    fn json(&self, args: &[&str]) -> Value {
        let output = self.plan(&[&["--json"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(plan["accepted"], true);
        plan
    }
}

/// Bytes of all parts, and of the budget.
fn sum_and_budget(plan: &Value) -> (u64, u64) {
    let pool = &plan["pools"][0];
    let parts = pool["parts"].as_array().unwrap().iter();
    (parts.map(|part| part["bytes"].as_u64().unwrap()).sum(), pool["budget_bytes"].as_u64().unwrap())
}

#[test]
fn the_table_fits_a_terminal_and_names_every_part() {
    let model = Model::qwen3_30b();
    for args in [&["--memory", "6GiB"][..], &["--memory", "6GiB", "--context", "100k"]] {
        let output = model.plan(args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let table = text(&output.stdout);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        for part in [
            "a large model",
            "48 layers, 128 experts",
            "weights",
            "expert slots",
            "ring for experts",
            "keys and values",
            "activations",
            "reserve",
            "as --memory says",
            "of 6144 have a slot",
            "--prefill-chunk",
            "tokens",
        ] {
            assert!(table.contains(part), "{part} is missing in\n{table}");
        }
    }
    let demo = text(&output(&["plan"]).stdout);
    assert!(
        demo.contains("experts are in memory") && demo.lines().all(|line| line.chars().count() <= 80),
        "{demo}"
    );
}

#[test]
fn a_model_of_400_gb_is_planned_from_its_headers() {
    let config = ModelConfig {
        layers: 92,
        // Many small experts, so that the least of it fits a small machine.
        experts: Some(ExpertConfig { count: 1280, used: 4, feed_forward: 512, normalised: true }),
        context: 202_752,
        ..Preset::Qwen3A3b.config(vocabulary::tiny_len())
    };
    let model = Model::new(config, "q8_0");
    let plan = model.json(&["--expert-cache", "auto"]);
    assert!(plan["model"]["file_bytes"].as_u64().unwrap() > 350_000_000_000, "{plan}");
    let (sum, budget) = sum_and_budget(&plan);
    assert!(sum <= budget && plan["experts"]["streaming"] == true);
    assert_eq!(plan["experts"]["layers"].as_array().unwrap().len(), 92);
    let read = std::fs::metadata(&model.path).unwrap();
    let on_disk = std::os::unix::fs::MetadataExt::blocks(&read) * 512;
    assert!(on_disk < 64 << 20, "the file is a hole: {on_disk} bytes on disk");
}

/// Every key of an object and of what is in it.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            found.insert(key.clone());
            keys(value, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn every_key_of_the_json_is_documented() {
    let docs =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plan.md")).unwrap();
    let model = Model::qwen3_30b();
    let mut found = BTreeSet::new();
    let Some(report) = measured(&model, &["--memory", "8GiB"]) else { return };
    keys(&report, &mut found);
    let refusal = model.plan(&["--json", "--memory", "1GiB"]);
    keys(&serde_json::from_slice(&refusal.stdout).unwrap(), &mut found);
    assert!(found.len() > 40, "{found:?}");
    for key in found {
        assert!(docs.contains(&format!("`{key}`")) || docs.contains(&format!(".{key}`")), "{key}");
    }
}

/// A plan on this machine as it was measured now, with a disk of 2 GB/s. `None` where the disk has no name to keep that under.
fn measured(model: &Model, args: &[&str]) -> Option<Value> {
    let cache = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = program(args).env("XDG_CACHE_HOME", cache.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        output
    };
    run(&["calibrate"]);
    let disk = disk::of(&File::open(model.path()).unwrap());
    let rate = RandomRate { bytes: 1 << 20, bytes_per_second: 2e9 };
    let rates = DiskRates::now(&disk, 8, 3e9, vec![rate])?;
    rates.save_to(&cache.path().join("unfazed").join(file_name(&disk)?)).unwrap();
    let table = text(&run(&[&["plan", "-m", model.path()], args].concat()).stdout);
    assert!(table.contains("| prefill ") && table.contains("| decode "), "{table}");
    let report = run(&[&["plan", "--json", "-m", model.path()], args].concat()).stdout;
    Some(serde_json::from_slice(&report).unwrap())
}

#[test]
fn a_measured_machine_predicts_speeds_and_says_what_bounds_them() {
    let Some(plan) = measured(&Model::qwen3_30b(), &["--memory", "8GiB"]) else { return };
    let decode = &plan["decode"];
    // Some eight experts of 2.65 MB in each of 48 layers, of which more than half are read at 2 GB/s.
    assert!(decode["disk_ms"].as_f64().unwrap() > 100.0 && decode["bound"] == "disk", "{decode}");
    for step in [decode, &plan["prefill"]] {
        assert!(
            step["tokens_per_second"].as_f64().unwrap() > 0.0 && step["rows"].as_u64().unwrap() > 0,
            "{step}"
        );
    }
}

#[test]
fn a_refusal_names_bytes_by_part_and_a_setting_that_passes() {
    let model = Model::qwen3_30b();
    let line = one_line_error(&model.plan(&["--memory", "1GiB"]));
    for part in
        ["the model needs", "weights", "expert slots", "activations", "1.00 GiB are free", "would pass"]
    {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    let refused = model.plan(&["--json", "--memory", "1GiB"]);
    assert_eq!(refused.status.code(), Some(1));
    let refusal: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!((&refusal["accepted"], &refusal["condition"]), (&false.into(), &"memory".into()));
    assert_eq!(refusal["suggestion"]["setting"], "memory");
    let plan = model.json(&["--memory", refusal["suggestion"]["value"].as_str().unwrap()]);
    let (sum, budget) = sum_and_budget(&plan);
    assert_eq!(budget, refusal["need_bytes"].as_u64().unwrap());
    assert!(sum <= budget);

    let strict = one_line_error(&model.plan(&["--memory", "8GiB", "--strict", "--expert-cache", "64"]));
    assert!(
        strict.contains("raised from 64 to 384") && strict.contains("--expert-cache 384 would pass"),
        "{strict}"
    );
}

#[test]
fn words_of_other_servers_mean_the_same_and_a_mistyped_one_names_the_nearest() {
    let model = Model::qwen3_30b();
    let slots =
        |args: &[&str]| model.json(&[&["--memory", "8GiB"], args].concat())["experts"]["slots"].clone();
    let thousand = slots(&["--expert-cache", "1000"]);
    assert_eq!(thousand, 1000);
    assert_eq!(slots(&["--moe-stream-cache", "1000s"]), thousand);
    assert_eq!(slots(&["--moe-cache-mib=2048"]), slots(&["--expert-cache", "2GiB"]));
    let mistyped = |args: &[&str], nearest: &str| {
        let output = model.plan(args);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(nearest), "{}", text(&output.stderr));
    };
    mistyped(&["--moe-cache-mb", "5"], "'--moe-cache-mib'");
    mistyped(&["--ctx-sise", "5"], "'--ctx-size'");
    mistyped(&["--expert-cach", "5"], "'--expert-cache'");
    mistyped(&["--memory", "24"], "24GiB");
}

#[test]
#[cfg(target_os = "linux")]
fn a_control_groups_limit_binds_the_plan() {
    let model = Model::qwen3_30b();
    for limit in [8 * GIB, 6 * GIB] {
        if unfazed_host::memory().unwrap().available <= limit {
            eprintln!("skipped: less than {limit} bytes are free");
            continue;
        }
        let Some(group) = crate::group::Group::limited(limit) else { return };
        let mut plan = group.command(env!("CARGO_BIN_EXE_unfazed"));
        let output = plan.args(["plan", "--json", "-m", model.path()]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let pool = &plan["pools"][0];
        assert_eq!(pool["total_bytes"], limit);
        assert!(pool["bound"].as_str().unwrap().contains("unfazed-test"), "{pool}");
        let (sum, budget) = sum_and_budget(&plan);
        // A program that reads headers has little in use.
        assert!(sum <= budget && budget < limit && budget > limit - limit / 8, "{pool}");
        assert_eq!(plan["experts"]["streaming"], true);
        assert!(plan["experts"]["slots"].as_u64().unwrap() > 1000, "{plan}");
    }
}
