//! Every class of fault, acted out by a simulated device, storage and process: no answer changes, and each is told. Needs the
//! feature `fault-plan`.

#![cfg(target_os = "linux")]
// A test ends by panicking; clippy's exemption covers test functions only, not what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "program/processes.rs"]
mod processes;
#[path = "program/streams.rs"]
mod streams;
#[path = "program/support.rs"]
mod support;

use std::sync::OnceLock;

use serde_json::{Value, json};
use streams::{Answer, Stream};
use support::{Server, until};

const SERVER: [&str; 8] =
    ["--context", "512", "--parallel", "8", "--prefill-chunk", "32", "--stall-ms", "1500"];
const PATH: &str = "/v1/completions";

/// Short and long prompts, each number another one.
fn requests() -> Vec<Value> {
    let request = |number: usize| {
        json!({
            "prompt": "Once upon a time there was a cat who liked the rain. ".repeat(1 + number * 4),
            "max_tokens": 60,
            "ignore_eos": true,
            "temperature": 0.8,
            "seed": number,
            "logprobs": 3,
        })
    };
    (0..5).map(request).collect()
}

/// Answers of streams that run side by side.
fn answers(server: &Server, requests: &[Value]) -> Vec<Answer> {
    let streams: Vec<Stream> = requests.iter().map(|request| Stream::open(server, PATH, request)).collect();
    streams.into_iter().map(Stream::finish).collect()
}

/// What nothing disturbs.
fn undisturbed() -> &'static [Answer] {
    static ANSWERS: OnceLock<Vec<Answer>> = OnceLock::new();
    ANSWERS.get_or_init(|| answers(&Server::start(&SERVER), &requests()))
}

/// A server that follows a plan.
fn server(plan: &Value, more: &[&str]) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, plan.to_string()).unwrap();
    let plan = ["--fault-plan", path.to_str().unwrap()];
    Server::start(&[&SERVER[..], &plan, more].concat())
}

fn at(engine: u64, step: u64, fault: &str) -> Value {
    json!({"engine": engine, "step": step, "fault": fault})
}

/// Answers under a plan equal those without one. Returns the server and the events of it.
fn nothing_is_lost(plan: &Value, more: &[&str]) -> (Server, Vec<Value>) {
    let server = server(plan, more);
    for (number, (answer, expected)) in answers(&server, &requests()).iter().zip(undisturbed()).enumerate() {
        answer.assert_equals(expected, &format!("request {number} under {plan}"));
    }
    let events = server.past_events();
    (server, events)
}

fn named<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

#[test]
fn a_fault_of_the_device_in_a_prompt_and_in_an_answer_costs_no_token() {
    let mended = ["gpu_timeout", "gpu_interactivity", "gpu_page_fault", "gpu_device_lost", "gpu_discarded"];
    for class in mended {
        let plan = json!({"script": [at(1, 2, class), at(1, 40, class)]});
        let (server, events) = nothing_is_lost(&plan, &[]);
        let faults = named(&events, "fault");
        assert_eq!(faults.len(), 2, "{events:?}");
        for fault in &faults {
            assert_eq!(
                (&fault["class"], &fault["action"]),
                (&json!(class), &json!("rebuild_device")),
                "{fault}"
            );
            assert!(fault["cost_ms"].as_f64().unwrap() > 0.0, "{fault}");
        }
        // Keys and values that were verified are used again, unless they are gone with their device.
        let again = faults.iter().map(|fault| fault["positions"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(again > 0, matches!(class, "gpu_page_fault" | "gpu_device_lost"), "{faults:?}");
        assert!(named(&events, "engine_exit").is_empty(), "the same process goes on: {events:?}");
        assert_eq!(server.metric("unfazed_faults_total"), 2.0);
    }
}

#[test]
fn ggml_1545_an_error_belongs_to_a_generation_and_is_over_with_its_device() {
    let plan = json!({"script": [at(1, 5, "gpu_device_lost")]});
    let (server, _) = nothing_is_lost(&plan, &[]);
    let engine = server.engine();
    for _ in 0..3 {
        assert!(!server.ask("Tell me about rain.", 12).is_empty(), "later requests are served");
    }
    assert_eq!(server.engine(), engine, "by the same process");
    assert_eq!(server.metric("unfazed_faults_total"), 1.0);
}

/// `kIOGPUCommandBufferCallbackErrorImpactingInteractivity`, then "recreate the backend", and every later request fails.
#[test]
fn llamacpp_22214_the_backend_is_made_anew_and_later_requests_are_served() {
    let plan = json!({"script": [at(1, 4, "gpu_interactivity")]});
    let (server, events) = nothing_is_lost(&plan, &[]);
    assert_eq!(named(&events, "fault")[0]["action"], "rebuild_device");
    for (answer, expected) in answers(&server, &requests()).iter().zip(undisturbed()) {
        answer.assert_equals(expected, "a later request");
    }
}

/// The runner panics on a time-out of the GPU, and the client gets 500.
#[test]
fn ollama_17902_a_time_out_of_the_gpu_is_tried_again_under_the_same_request() {
    let plan =
        json!({"script": [at(1, 20, "gpu_timeout"), at(1, 21, "gpu_timeout"), at(1, 22, "gpu_timeout")]});
    let (_server, events) = nothing_is_lost(&plan, &[]);
    let resumed: Vec<&Value> =
        named(&events, "request_resumed").iter().map(|event| &event["request"]).collect();
    assert!(
        !resumed.is_empty() && resumed.iter().all(|request| request.as_u64().unwrap() < 5),
        "{resumed:?}"
    );
}

/// An exception in a completion handler is `std::terminate`: whatever a thread of the engine does, the server lives.
#[test]
fn mlx_3390_a_panic_in_the_engine_is_the_engines_alone() {
    let plan = json!({"script": [at(1, 20, "bug"), at(2, 3, "bug")]});
    let (mut server, events) = nothing_is_lost(&plan, &[]);
    assert_eq!(named(&events, "engine_exit").len(), 2, "{events:?}");
    assert!(server.child.try_wait().unwrap().is_none());
}

#[test]
fn an_innocent_victim_tries_the_same_step_again() {
    let plan = json!({"script": [at(1, 30, "gpu_innocent_victim")]});
    let (_server, events) = nothing_is_lost(&plan, &[]);
    assert_eq!(named(&events, "fault")[0]["action"], "retry_step");
}

#[test]
fn omlx_3706_ignored_submissions_and_hangs_end_the_process_and_no_request() {
    for class in ["gpu_submissions_ignored", "gpu_hang"] {
        let plan = json!({"script": [at(1, 3, class), at(2, 30, class)]});
        let (_server, events) = nothing_is_lost(&plan, &[]);
        let actions: Vec<&Value> = named(&events, "fault").iter().map(|fault| &fault["action"]).collect();
        assert_eq!(actions, ["new_engine", "new_engine"], "{events:?}");
        let exits = named(&events, "engine_exit");
        assert_eq!(exits.iter().map(|exit| &exit["cause"]).collect::<Vec<_>>(), ["device", "device"]);
    }
}

#[test]
fn an_engine_that_ends_in_any_way_is_told_by_its_class_and_what_it_cost() {
    let classes = ["engine_killed", "engine_exited", "engine_stalled", "wire_broken", "bug"];
    for class in classes {
        let plan = json!({"script": [at(1, 25, class)]});
        let (_server, events) = nothing_is_lost(&plan, &[]);
        let [fault] = named(&events, "fault")[..] else { panic!("{events:?}") };
        println!("{fault}");
        assert_eq!(fault["class"], class, "{fault}");
        assert_eq!(fault["action"], "new_engine");
        let [recovered] = named(&events, "recovered")[..] else { panic!("{events:?}") };
        assert_eq!(recovered["class"], fault["class"]);
        assert!(recovered["cost_ms"].as_f64().unwrap() > 0.0, "{recovered}");
    }
}

#[test]
fn omlx_2029_restarts_never_give_up() {
    let script: Vec<Value> = (1..=9).map(|engine| at(engine, 2, "engine_exited")).collect();
    let (server, events) = nothing_is_lost(&json!({"script": script}), &[]);
    assert_eq!(named(&events, "engine_exit").len(), 9, "{events:?}");
    assert!(!server.ask("Tell me about rain.", 12).is_empty());
}

#[test]
fn a_device_that_fails_again_and_again_is_left_alone_and_taken_up_again_when_it_was_quiet() {
    let class = "gpu_timeout";
    let script = json!([at(1, 10, class), at(1, 11, class), at(1, 12, class), at(2, 1, class)]);
    let (server, mut events) = nothing_is_lost(&json!({"script": script}), &["--recover-after", "2"]);
    let actions: Vec<&str> =
        named(&events, "fault").iter().map(|fault| fault["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["rebuild_device", "rebuild_device", "new_engine", "step_down"]);
    let [degraded] = named(&events, "degraded")[..] else { panic!("{events:?}") };
    assert_eq!((&degraded["ladder"], &degraded["to"]), (&json!("placement"), &json!("cpu")));
    until("the device is used again", || {
        events.extend(server.past_events());
        named(&events, "recovered").iter().any(|event| event["to"] == "device")
    });
    assert!(!server.ask("Tell me about rain.", 12).is_empty());
    let (status, health) = server.request("GET", "/health", "", &Value::Null);
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!((status, &health["ladder"]["placement"]["rung"]), (200, &json!(0)), "{health}");
    assert_eq!(health["faults"].as_array().unwrap().len(), 4, "{health}");
    assert_eq!(health["faults"][0]["action"], "step_down", "the newest comes first: {health}");
}

#[test]
fn a_device_that_fails_in_every_step_is_done_without_and_blamed_on_no_request() {
    for class in ["gpu_innocent_victim", "cmd_buffer_oom", "gpu_hang", "gpu_device_lost"] {
        let plan = json!({"one_in": {class: 1}});
        let (server, events) = nothing_is_lost(&plan, &[]);
        let degraded = named(&events, "degraded");
        assert!(degraded.iter().any(|event| event["to"] == "cpu"), "{class}: {degraded:?}");
        assert_eq!(server.metric("unfazed_requests_quarantined_total"), 0.0);
    }
}

#[test]
fn results_that_are_not_finite_once_are_computed_again() {
    let plan = json!({"script": [at(1, 20, "non_finite"), at(1, 60, "non_finite")]});
    let (_server, events) = nothing_is_lost(&plan, &[]);
    let actions: Vec<&Value> = named(&events, "fault").iter().map(|fault| &fault["action"]).collect();
    assert_eq!(actions, ["retry_step", "retry_step"], "{events:?}");
}

#[test]
fn reads_that_fail_for_a_while_delay_loading_and_nothing_else() {
    let plan = json!({"seed": 2, "storage_one_in": {"storage_transient": 9, "storage_slow": 9}});
    nothing_is_lost(&plan, &[]);
}

#[test]
fn faults_of_all_classes_at_random_moments_change_no_answer() {
    let device =
        ["gpu_timeout", "gpu_hang", "gpu_submissions_ignored", "gpu_innocent_victim", "gpu_page_fault"];
    let others = ["gpu_interactivity", "gpu_device_lost", "gpu_discarded", "non_finite"];
    let engine = ["engine_killed", "engine_exited", "wire_broken"];
    for seed in 1..=3 {
        let rate = |class: &&str| ((*class).to_owned(), json!(120));
        let rates: serde_json::Map<String, Value> =
            device.iter().chain(&others).chain(&engine).map(rate).collect();
        let (server, events) =
            nothing_is_lost(&json!({"seed": seed, "one_in": rates}), &["--recover-after", "1"]);
        println!("seed {seed}: {} faults in {} events", server.metric("unfazed_faults_total"), events.len());
        assert!(server.metric("unfazed_faults_total") > 3.0);
    }
}

#[test]
fn a_plan_with_a_mistake_is_refused_with_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, r#"{"one_in": {"gpu_tired": 5}}"#).unwrap();
    let output = support::output(&["serve", "--fault-plan", path.to_str().unwrap()]);
    let line = support::one_line_error(&output);
    assert!(line.contains("plan.json") && line.contains("gpu_tired"), "{line}");
}
