//! Servers that die, hang and fail in the ways that users report: each test bears the name of the report, as project and
//! number. No client notices anything but a pause.

use serde_json::{Value, json};

use crate::guard::{Answer, Guard, chat, completion};
use crate::made_up::{Does, Life, Plan, chat_text, text_behind};

const CHAT: &str = "/v1/chat/completions";

fn plan(llama: bool, lives: &[(usize, Does)]) -> Plan {
    let lives = lives.iter().map(|(after, does)| Life::new(*after, *does)).collect();
    Plan { llama, lives, ..Plan::default() }
}

/// Streams four chats at once.
fn four(guard: &Guard, tokens: usize) -> Vec<Answer> {
    let names = ["one", "two", "three", "four"];
    std::thread::scope(|scope| {
        let all: Vec<_> = names
            .map(|name| scope.spawn(move || guard.read(CHAT, &chat(name, tokens))))
            .into_iter()
            .collect();
        all.into_iter().map(|answer| answer.join().unwrap()).collect()
    })
}

fn assert_four(answers: &[Answer], tokens: usize) {
    for (answer, name) in answers.iter().zip(["one", "two", "three", "four"]) {
        answer.assert_whole(&chat_text(name, tokens));
        assert_eq!(answer.finished, ["length"]);
        assert_eq!(answer.roles, 1, "{answer:?}");
        assert!(answer.done);
    }
}

/// The class of the next fault that leads to another process.
fn fault(guard: &Guard) -> Value {
    loop {
        let fault = guard.server.event("fault");
        if fault["action"] == "new_engine" {
            return fault["class"].clone();
        }
    }
}

/// An exception in a completion handler ends the process (`std::terminate`).
#[test]
fn mlx_3390_a_server_that_aborts_is_started_again_and_its_streams_go_on() {
    for llama in [false, true] {
        let guard = Guard::of(&plan(llama, &[(60, Does::Abort), (150, Does::Abort)]), &[]);
        assert_four(&four(&guard, 50), 50);
        assert_eq!(fault(&guard), "engine_killed");
    }
}

/// "llama runner process no longer running": the client gets 500 and the end of its connection.
#[test]
fn ollama_14983_a_request_that_is_not_streamed_is_answered_by_the_next_process() {
    let guard = Guard::of(&plan(false, &[(30, Does::Exit), (30, Does::Abort)]), &[]);
    let (status, body) = guard.server.request("POST", CHAT, "", &chat("hello", 50));
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], chat_text("hello", 50));
    let exit = guard.server.event("engine_exit");
    assert_eq!((&exit["cause"], &exit["code"]), (&json!("code"), &json!(6)));
    let continued = guard.server.event("request_continued");
    assert_eq!(continued["how"], "retried");
}

/// After one time-out the driver ignores all further work: `/v1/models` answers, nothing generates.
#[test]
fn omlx_3706_a_process_whose_driver_takes_no_more_work_is_replaced_at_once() {
    let guard = Guard::of(&plan(false, &[(70, Does::SubmissionsIgnored)]), &["--stall-ms", "600000"]);
    assert_four(&four(&guard, 40), 40);
    assert_eq!(guard.server.event("engine_exit")["cause"], "device");
    assert_eq!(fault(&guard), "gpu_submissions_ignored");
}

/// Impacting Interactivity, then "recreate the backend": every later request fails.
#[test]
fn llamacpp_22214_a_server_that_answers_everything_with_errors_is_replaced() {
    let guard = Guard::of(&plan(true, &[(70, Does::DeviceFails)]), &[]);
    assert_four(&four(&guard, 40), 40);
    assert_eq!(guard.status()["restarts"], 1);
}

/// The GPU stream of a worker hangs, `/health` still says 200.
#[test]
fn vllm_54629_a_server_that_is_healthy_and_computes_nothing_is_found() {
    for llama in [false, true] {
        let guard = Guard::of(&plan(llama, &[(70, Does::Hang)]), &[]);
        assert_four(&four(&guard, 40), 40);
        assert_eq!(fault(&guard), "engine_stalled");
    }
}

/// The same from the start: it is never taken for ready.
#[test]
fn a_server_that_never_computes_is_never_ready() {
    let guard = Guard::started(&plan(false, &[(0, Does::Mute)]), &[]);
    let answer = guard.read(CHAT, &chat("hello", 20));
    answer.assert_whole(&chat_text("hello", 20));
    assert_eq!(fault(&guard), "engine_stalled");
    assert_eq!(guard.server.event("guard_ready")["restarts"], 1);
}

/// A failed state that needs a human, and requests that are refused while a server is started.
#[test]
fn llama_swap_92_requests_wait_for_a_server_that_fails_again_and_again_and_none_is_refused() {
    let lives = [(20, Does::Abort), (0, Does::Mute), (0, Does::Exit), (5, Does::Abort)];
    let guard = Guard::of(&plan(false, &lives), &["--stall-ms", "1000"]);
    std::thread::scope(|scope| {
        let whole =
            scope.spawn(|| guard.server.request("POST", "/v1/completions", "", &completion("Once", 30)));
        assert_four(&four(&guard, 30), 30);
        let (status, body) = whole.join().unwrap();
        assert_eq!(status, 200, "{body}");
        assert!(body.contains(&json!(text_behind("Once", 30)).to_string()), "{body}");
    });
    assert!(guard.status()["restarts"].as_u64().unwrap() >= 4);
}

/// A request that kills each process is found and failed alone.
#[test]
fn a_request_that_ends_the_server_by_itself_is_given_up_and_others_are_not() {
    let lives: Vec<_> = (0..20).map(|_| (0, Does::DiesOfPoison)).collect();
    let guard = Guard::of(&plan(false, &lives), &[]);
    std::thread::scope(|scope| {
        let poisoned = scope.spawn(|| guard.server.request("POST", CHAT, "", &chat("poison", 30)));
        assert_four(&four(&guard, 200), 200);
        let (status, body) = poisoned.join().unwrap();
        assert_eq!(status, 500, "{body}");
        assert!(body.contains("request_kills_engine"), "{body}");
    });
    assert_eq!(guard.server.event("request_quarantined")["deaths"], 2);
    assert_eq!(guard.status()["lost_requests"], 1);
    guard.read(CHAT, &chat("hello", 20)).assert_whole(&chat_text("hello", 20));
}

/// An error that is the request's own is its answer.
#[test]
fn an_error_of_a_server_that_computes_is_passed_on_and_ends_nothing() {
    let guard = Guard::of(&plan(true, &[(0, Does::FailsOnce)]), &[]);
    let (status, body) = guard.server.request("POST", CHAT, "", &chat("this fails", 20));
    assert_eq!((status, body.contains("Compute error.")), (500, true), "{body}");
    guard.read(CHAT, &chat("hello", 20)).assert_whole(&chat_text("hello", 20));
    assert_eq!(guard.status()["restarts"], 0);
}
