//! A real llama-server, where there is one: `UNFAZED_TEST_LLAMA_SERVER` names the program and `UNFAZED_TEST_LLAMA_MODEL` a GGUF
//! model (the demo model, if it does not). `UNFAZED_RESUME_SEED` chooses the moments.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};
use unfazed_testkit::rng::Rng;

use crate::guard::{Answer, Guard, exists};
use crate::support::until;

const PROGRAM: &str = "UNFAZED_TEST_LLAMA_SERVER";
const MODEL: &str = "UNFAZED_TEST_LLAMA_MODEL";
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/stories-moe-29m-Q4_0.gguf");
const PROMPTS: [&str; 4] = [
    "Once upon a time there was a cat",
    "The little dog ran into the forest",
    "One day Tim found a red ball",
    "Lily loved to bake bread with",
];
const TOKENS: usize = 300;
const KILLS: usize = 10;

fn guard(flags: &[&str], server: &[&str]) -> Guard {
    let program = std::env::var(PROGRAM).expect("names a llama-server");
    let model = std::env::var(MODEL).unwrap_or_else(|_| DEMO.to_owned());
    assert!(exists(&program) && exists(&model), "{program} and {model} are files");
    let mut command = vec![program.as_str(), "-m", &model, "-np", "4", "-c", "8192"];
    command.extend(server);
    Guard::of_program(flags, &command)
}

fn body(prompt: &str, chat: bool) -> Value {
    let mut body = json!({"temperature": 0, "max_tokens": TOKENS, "ignore_eos": true, "cache_prompt": false,
        "stream_options": {"include_usage": true}});
    if chat {
        body["messages"] = json!([{"role": "user", "content": prompt}]);
    } else {
        body["prompt"] = prompt.into();
    }
    body
}

/// Four streams side by side. `disturb` gets how many bytes of text have come so far, and whether all have ended.
fn four(guard: &Guard, chat: bool, disturb: impl FnOnce(&AtomicUsize, &dyn Fn() -> bool)) -> Vec<Answer> {
    let path = if chat { "/v1/chat/completions" } else { "/v1/completions" };
    let (bytes, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let streams = PROMPTS.map(|prompt| {
            let (bytes, ended) = (&bytes, &ended);
            scope.spawn(move || {
                let answer = guard.stream(path, &body(prompt, chat)).finish_with(|more| {
                    bytes.fetch_add(more, Ordering::Relaxed);
                });
                ended.fetch_add(1, Ordering::Relaxed);
                answer
            })
        });
        disturb(&bytes, &|| ended.load(Ordering::Relaxed) == PROMPTS.len());
        streams.into_iter().map(|stream| stream.join().unwrap()).collect()
    })
}

/// What happened to streams that were disturbed: how many are the undisturbed ones, and where the others begin to differ.
fn compare(expected: &[Answer], answers: &[Answer]) -> (usize, Vec<Option<usize>>) {
    let at = expected.iter().zip(answers).map(|(a, b)| {
        assert_eq!(b.error, Value::Null, "{b:?}");
        assert!(b.done && b.finished == ["length"], "{b:?}");
        assert_eq!(b.usage["completion_tokens"], TOKENS);
        let differs = a.text.bytes().zip(b.text.bytes()).position(|(a, b)| a != b);
        differs.or((a.text != b.text).then_some(a.text.len().min(b.text.len())))
    });
    let at: Vec<_> = at.collect();
    (at.iter().filter(|at| at.is_none()).count(), at)
}

fn killed(flags: &[&str], server: &[&str], chat: bool) -> (usize, usize) {
    let seed = std::env::var("UNFAZED_RESUME_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut moments = Rng::new(seed, "kills", 0);
    let guard = guard(flags, server);
    let undisturbed = |_: &AtomicUsize, _: &dyn Fn() -> bool| {};
    let (expected, again) = (four(&guard, chat, undisturbed), four(&guard, chat, undisturbed));
    let (same, at) = compare(&expected, &again);
    let begun = Instant::now();
    let mut kills = 0;
    let step = expected.iter().map(|answer| answer.text.len()).sum::<usize>() / (KILLS + 1);
    let answers = four(&guard, chat, |bytes, ended| {
        while kills < KILLS {
            let more = step / 2 + moments.word() as usize % (step / 2);
            let goal = bytes.load(Ordering::Relaxed) + more;
            until("more text", || bytes.load(Ordering::Relaxed) >= goal || ended());
            if ended() {
                return;
            }
            let restarts = guard.status()["restarts"].as_u64().unwrap();
            guard.kill(Signal::KILL);
            kills += 1;
            until("the next process", || {
                let status = guard.status();
                status["restarts"].as_u64().unwrap() > restarts && status["state"] != "restarting"
            });
        }
    });
    let (equal, differ) = compare(&expected, &answers);
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{flags:?} {server:?} chat {chat}: undisturbed again: {same} of 4 equal {at:?}; killed {kills} times in {seconds:.1} s: \
         {equal} of 4 equal {differ:?}"
    );
    assert_eq!(kills, KILLS, "the streams were long enough");
    assert_eq!(guard.status()["lost_requests"], 0);
    (same, equal)
}

#[test]
#[ignore = "needs a llama-server, which UNFAZED_TEST_LLAMA_SERVER names"]
fn a_real_llama_server_that_is_killed_ten_times_gives_the_same_greedy_streams() {
    for chat in [true, false] {
        assert_eq!(killed(&[], &[], chat), (4, 4));
    }
}

/// Behind the last token: the very same where llama-server computes prompts as it does answers, token by token.
#[test]
#[ignore = "needs a llama-server, which UNFAZED_TEST_LLAMA_SERVER names"]
fn a_real_llama_server_goes_on_behind_its_last_token() {
    assert_eq!(killed(&["--replay-seconds", "0"], &["-ub", "1", "-b", "64"], true), (4, 4));
    // With its usual rounding no error, and mostly the same text.
    killed(&["--replay-seconds", "0"], &[], true);
}

#[test]
#[ignore = "needs a llama-server, which UNFAZED_TEST_LLAMA_SERVER names"]
fn a_real_llama_server_that_is_stopped_is_found() {
    let guard = guard(&["--stall-ms", "5000"], &[]);
    let expected = four(&guard, true, |_, _| {});
    let answers = four(&guard, true, |bytes, _| {
        until("some text", || bytes.load(Ordering::Relaxed) > 400);
        guard.kill(Signal::STOP);
    });
    assert_eq!(compare(&expected, &answers).0, 4);
    assert_eq!(guard.server.event("engine_exit")["cause"], "stalled");
}
