//! Our own server, guarded: its front is killed, and with it all of it.

use rustix::process::Signal;
use serde_json::json;

use crate::guard::{Answer, Guard};
use crate::support::until;

/// Greedy streams side by side, each killed in the middle again and again; and one that is not streamed.
#[test]
fn an_unfazed_server_that_is_killed_costs_nothing_but_time() {
    let server = ["--parallel", "4", "--context", "512"];
    let mut command = vec![env!("CARGO_BIN_EXE_unfazed"), "serve"];
    command.extend(server);
    let guard = Guard::of_program(&[], &command);
    let body =
        |prompt: &str| json!({"prompt": prompt, "max_tokens": 150, "temperature": 0, "ignore_eos": true});
    let prompts = ["Once upon a time", "A cat sat", "The rain", "One day"];
    let run = || -> Vec<Answer> {
        std::thread::scope(|scope| {
            let all: Vec<_> = prompts
                .map(|prompt| scope.spawn(|| guard.read("/v1/completions", &body(prompt))))
                .into_iter()
                .collect();
            all.into_iter().map(|answer| answer.join().unwrap()).collect()
        })
    };
    let expected = run();
    let answers = std::thread::scope(|scope| {
        let answers = scope.spawn(run);
        for kill in 1..=3 {
            until("streams are running", || guard.status()["requests"] != 0);
            // Soon, and not at once: some of each stream was sent.
            std::thread::sleep(std::time::Duration::from_millis(100 * kill));
            guard.kill(Signal::KILL);
            until("the next one is ready", || {
                guard.status()["restarts"] == kill && guard.status()["state"] == "ready"
            });
        }
        answers.join().unwrap()
    });
    for (answer, expected) in answers.iter().zip(&expected) {
        answer.assert_whole(&expected.text);
        assert_eq!((&answer.finished, &answer.usage), (&expected.finished, &expected.usage));
    }
    assert_eq!(guard.status()["lost_requests"], 0);
}
