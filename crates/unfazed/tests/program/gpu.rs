//! GPUs as the program finds them: in a process of its own, by name, and in plans. (What they compute is tested elsewhere.)

use serde_json::{Value, json};

use crate::support::{one_line_error, output, program, text};

/// The adapters of this machine.
fn adapters() -> Vec<Value> {
    let output = output(&["engine", "--adapters"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let adapters = answer["adapters"].as_array().unwrap().clone();
    let required = std::env::var("UNFAZED_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required || !adapters.is_empty(), "UNFAZED_REQUIRE_GPU is set, and there is none: {answer}");
    adapters
}

fn plan(args: &[&str]) -> Value {
    let output = output(&[&["plan", "--json"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn adapters_are_told_with_driver_and_memory() {
    for adapter in adapters() {
        assert!(!adapter["name"].as_str().unwrap().is_empty(), "{adapter}");
        assert!(["Vulkan", "Metal"].contains(&adapter["backend"].as_str().unwrap()), "{adapter}");
        let (memory, free) = (adapter["memory"].as_u64(), adapter["free"].as_u64());
        assert!(memory.is_none_or(|memory| memory > 0), "{adapter}");
        assert!(free.is_none_or(|free| memory.is_some_and(|memory| free <= memory)), "{adapter}");
    }
}

#[test]
fn without_a_gpu_layers_that_were_asked_for_are_told_and_strict_refuses_them() {
    let plan = plan(&["--gpu", "off", "-ngl", "5"]);
    assert_eq!(plan["gpu"], Value::Null);
    assert_eq!(plan["pools"].as_array().unwrap().len(), 1);
    assert_eq!(plan["notes"], json!(["--gpu-layers lowered from 5 to 0: --gpu off"]));
    let refused = output(&["plan", "--gpu", "off", "-ngl", "5", "--strict"]);
    assert!(one_line_error(&refused).ends_with("; --gpu-layers 0 would pass"), "{}", text(&refused.stderr));
}

#[test]
fn a_gpu_that_is_named_holds_the_last_layers_and_a_software_one_none_unasked() {
    let adapters = adapters();
    let Some(first) = adapters.first() else { return };
    let named = plan(&["--gpu", "0", "-ngl", "3", "-c", "512", "--gpu-budget-ms", "20"]);
    let gpu = &named["gpu"];
    assert_eq!(
        (&gpu["gpu_layers"], &gpu["output"], &gpu["budget_ms"]),
        (&json!(3), &json!(false), &json!(20))
    );
    assert_eq!(gpu["ladder"], json!(["gpu:3", "gpu:1", "cpu"]));
    assert_eq!(gpu["adapters"][0]["name"], first["name"]);
    let pool = &named["pools"][1];
    assert_eq!((&pool["kind"], &pool["name"]), (&json!("gpu"), &first["name"]));
    let parts = pool["parts"].as_array().unwrap().iter();
    let taken: u64 = parts.map(|part| part["bytes"].as_u64().unwrap()).sum();
    assert!(pool["budget_bytes"].as_u64().is_none_or(|budget| taken <= budget), "{pool}");
    if adapters.iter().all(|adapter| adapter["software"] == true) {
        assert_eq!(plan(&[])["gpu"], Value::Null);
    }
    let people = text(&output(&["plan", "--gpu", "0", "-ngl", "3"]).stdout);
    assert!(people.contains("3 of 8 layers are on the GPU. After faults: gpu:1, then cpu."), "{people}");
    assert!(people.lines().all(|line| line.chars().count() <= 80), "{people}");
}

#[test]
fn a_gpu_that_is_not_there_is_refused_by_name() {
    let mut command = program(&["plan", "--gpu", "no such card"]);
    let refused = command.output().unwrap();
    let line = one_line_error(&refused);
    assert!(line.contains("--gpu no such card: "), "{line}");
    if cfg!(target_os = "linux") {
        let mut command = program(&["plan", "--gpu", "0"]);
        let none =
            command.env("VK_DRIVER_FILES", "/nowhere").env("VK_ICD_FILENAMES", "/nowhere").output().unwrap();
        assert!(one_line_error(&none).contains("no GPU was found"), "{}", text(&none.stderr));
    }
}
