//! Streams that go on, of each kind.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::guard::{Answer, Guard, chat, completion};
use crate::made_up::{Does, Life, Plan, chat_text, text_behind};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Streams go on behind their last token, however short they are.
const BEHIND: [&str; 2] = ["--replay-seconds", "0"];
const TOKENS: usize = 60;

/// Each process but the last dies after so many tokens.
fn dying(llama: bool, after: &[usize]) -> Plan {
    let lives = after.iter().map(|after| Life::new(*after, Does::Abort)).collect();
    Plan { llama, lives, ..Plan::default() }
}

fn how(guard: &Guard) -> Value {
    guard.server.event("request_continued")["how"].clone()
}

/// Wherever a stream is cut it goes on behind the last border between tokens: in a text that reads as other tokens than it was
/// made of, and in the middle of a character.
#[test]
fn a_greedy_stream_goes_on_behind_its_very_tokens_wherever_it_is_cut() {
    let cuts: Vec<usize> = (1..24).collect();
    let guard = Guard::of(&dying(true, &cuts), &BEHIND);
    let mut body = chat("hello", 300);
    body["stream_options"] = json!({"include_usage": true});
    let answer = guard.read(CHAT, &body);
    answer.assert_whole(&chat_text("hello", 300));
    assert!(answer.text.contains('🦀'), "{}", answer.text);
    assert_eq!(
        (answer.finished.as_slice(), answer.roles, answer.done),
        (&["length".to_owned()][..], 1, true)
    );
    assert_eq!(
        (&answer.usage["completion_tokens"], &answer.usage["total_tokens"]),
        (&json!(300), &json!(322))
    );
    assert!(answer.mark["resumed"].as_u64().unwrap() >= 15, "{:?}", answer.mark);
    assert_eq!(
        answer.comments.iter().filter(|text| text.contains("continued")).count() as u64,
        answer.mark["resumed"]
    );
    assert!(["retried", "continued"].contains(&how(&guard).as_str().unwrap()));
}

#[test]
fn completions_and_llama_servers_own_go_on_too_with_the_same_counts() {
    for path in [COMPLETIONS, "/completion"] {
        let guard = Guard::of(&dying(true, &[17, 9, 23]), &BEHIND);
        let answer = guard.read(path, &completion("Once upon", TOKENS));
        answer.assert_whole(&text_behind("Once upon", TOKENS));
        assert_eq!(answer.mark["resumed"], 3, "{path}: {answer:?}");
        if path == COMPLETIONS {
            assert_eq!(answer.usage["completion_tokens"], TOKENS);
            assert_eq!(answer.usage["prompt_tokens"], "Once upon".len());
        } else {
            assert_eq!(answer.last["tokens_predicted"], TOKENS);
            assert_eq!(answer.last["tokens_evaluated"], "Once upon".len());
        }
    }
}

/// The last token was sent, its end was not.
#[test]
fn a_stream_that_is_cut_behind_its_last_token_ends() {
    for (llama, flags) in [(true, &BEHIND[..]), (false, &[])] {
        let lives = vec![Life::new(0, Does::AbortAtEnd)];
        let guard = Guard::of(&Plan { llama, lives, ..Plan::default() }, flags);
        let mut body = chat("hello", TOKENS);
        body["stream_options"] = json!({"include_usage": true});
        let answer = guard.read(CHAT, &body);
        answer.assert_whole(&chat_text("hello", TOKENS));
        assert_eq!((answer.finished.as_slice(), answer.done), (&["length".to_owned()][..], true));
        assert_eq!(
            (&answer.usage["completion_tokens"], &answer.mark["resumed"]),
            (&json!(TOKENS), &json!(1))
        );
    }
}

#[test]
fn a_stream_that_comes_out_the_same_is_computed_again_and_sent_once() {
    for llama in [false, true] {
        let guard = Guard::of(&dying(llama, &[20, 40, 50]), &[]);
        let answer = guard.read(CHAT, &chat("hello", TOKENS));
        answer.assert_whole(&chat_text("hello", TOKENS));
        assert_eq!((&answer.mark["resumed"], &answer.mark["exact"]), (&json!(3), &json!(true)));
        assert_eq!((answer.finished.as_slice(), answer.roles), (&["length".to_owned()][..], 1));
        assert_eq!(how(&guard), "replayed");
    }
}

#[test]
fn thoughts_are_computed_again_too() {
    let guard = Guard::of(&Plan { thinks: true, ..dying(true, &[20, 45]) }, &BEHIND);
    let answer = guard.read(CHAT, &chat("hello", TOKENS));
    assert_eq!(answer.thoughts + &answer.text, chat_text("hello", TOKENS));
    assert_eq!(how(&guard), "replayed");
}

/// A draw that does not come again: the text so far is all that there is.
#[test]
fn a_sampled_stream_goes_on_and_says_so() {
    for (llama, path) in [(true, CHAT), (true, COMPLETIONS), (false, COMPLETIONS)] {
        let guard = Guard::of(&dying(llama, &[20, 15]), &[]);
        let mut body = if path == CHAT { chat("hello", TOKENS) } else { completion("hello", TOKENS) };
        body["temperature"] = json!(0.8);
        let answer = guard.read(path, &body);
        assert_eq!(answer.error, Value::Null, "{answer:?}");
        assert_eq!(answer.mark, json!({"resumed": 2, "exact": false}), "{path}");
        assert_eq!(answer.finished, ["length"]);
        assert_eq!((how(&guard), answer.ids.len()), (json!("continued"), 1));
        let same = answer.comments.iter().all(|comment| !comment.contains("exact"));
        assert!(same, "{:?}", answer.comments);
    }
}

/// What cannot go on says so by name; what has not begun is asked for again.
#[test]
fn a_sampled_chat_that_cannot_go_on_ends_by_name() {
    let guard = Guard::of(&dying(false, &[20]), &[]);
    let mut body = chat("hello", TOKENS);
    body["temperature"] = json!(0.8);
    let answer = guard.read(CHAT, &body);
    assert_eq!((&answer.error["code"], answer.done), (&json!("stream_cut"), true), "{answer:?}");
    assert_eq!(guard.status()["lost_requests"], 1);
    // With tools, or thoughts, text is not all there is to it.
    for (plan, tools) in [(dying(true, &[20]), json!([{"type": "function"}])), (thinking(), json!([]))] {
        let guard = Guard::of(&plan, &[]);
        let mut body = body.clone();
        body["tools"] = tools;
        assert_eq!(guard.read(CHAT, &body).error["code"], "stream_cut");
    }
}

fn thinking() -> Plan {
    Plan { thinks: true, ..dying(true, &[20]) }
}

#[test]
fn a_sampled_stream_that_was_not_begun_is_asked_for_again() {
    let guard = Guard::of(&dying(false, &[0]), &[]);
    let mut body = chat("hello", TOKENS);
    body["temperature"] = json!(0.8);
    let answer = guard.read(CHAT, &body);
    assert_eq!((&answer.error, answer.roles, answer.done), (&Value::Null, 1, true), "{answer:?}");
    assert_eq!((&answer.mark, how(&guard)), (&Value::Null, json!("retried")));
}

/// An undisturbed stream is the server's own, byte for byte, but for what the guard asks beside.
#[test]
fn an_undisturbed_stream_has_nothing_of_the_guard_in_it() {
    let guard = Guard::of(&dying(true, &[]), &[]);
    for (path, body) in [
        (CHAT, chat("hello", TOKENS)),
        (COMPLETIONS, completion("hello", TOKENS)),
        ("/completion", completion("hello", 20)),
    ] {
        let answer = guard.read(path, &body);
        assert_eq!(
            (&answer.mark, answer.extra, answer.comments),
            (&Value::Null, BTreeSet::new(), Vec::<String>::new())
        );
        assert_eq!(answer.error, Value::Null);
    }
}

/// Stopped in mid stream.
#[test]
fn a_server_that_was_stopped_is_found_and_its_streams_go_on() {
    for llama in [false, true] {
        let guard = Guard::of(&Plan { llama, ..Plan::default() }, &[]);
        let mut stream = guard.stream(CHAT, &chat("hello", 2000));
        stream.until_text(100);
        guard.kill(Signal::STOP);
        let answer: Answer = stream.finish();
        answer.assert_whole(&chat_text("hello", 2000));
        assert_eq!(guard.server.event("engine_exit")["cause"], "stalled");
    }
}
