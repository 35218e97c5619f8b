//! Experts that are read while requests run: the same answers, whatever is in memory, and what is kept from run to run.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;

use crate::expert_model::{
    ALL, ExpertModel, LAYERS, PATH, answers, assert_same, end, request, sampled, steps,
};
use crate::processes::signal_to;
use crate::streams::{Answer, Stream};
use crate::support::{Server, one_line_error, output, program, text, until};

/// Greedy and sampled, short and of many chunks.
fn requests() -> Vec<Value> {
    vec![request(1, 20, 40), sampled(2, 300, 40), sampled(3, 5, 60), request(4, 500, 20), sampled(5, 100, 40)]
}

/// The number behind `name=` in a line of the log.
fn number(line: &str, name: &str) -> usize {
    let (_, behind) = line.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("no {name}: {line}"));
    behind.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Lines of a log that have a text in them.
fn lines<'a>(log: &'a str, part: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains(part)).collect()
}

#[test]
fn answers_are_the_same_bits_however_many_experts_have_slots() {
    let model = ExpertModel::new();
    let expected = model.undisturbed(&requests());
    assert!(!model.log().contains("expert cache"), "all experts are in memory");
    for slots in [ALL / 10, model.least_slots()] {
        let slots = slots.to_string();
        let mut server = model.serve(&["--stream-experts", "on", "--expert-cache", &slots]);
        assert!(model.log().contains(&format!("expert cache {slots} slots")), "{}", model.log());
        assert_same(&answers(&server, &requests()), &expected, &format!("side by side, {slots} slots"));
        for (request, expected) in requests().iter().zip(&expected) {
            let alone = answers(&server, std::slice::from_ref(request));
            assert_same(&alone, std::slice::from_ref(expected), &format!("alone, {slots} slots"));
        }
        end(&mut server);
    }
    let log = model.log();
    let ends = lines(&log, "of the experts that answers used");
    assert_eq!(ends.len(), 2, "{log}");
    for line in ends {
        println!("{line}");
        assert!(number(line, "filled") > 100 && number(line, "streamed") > 1000, "{line}");
    }
}

#[test]
fn slots_of_a_killed_engine_serve_the_next_one_and_the_stream_goes_on() {
    let model = ExpertModel::new();
    let requests = [sampled(7, 100, 200)];
    let expected = model.undisturbed(&requests);
    // Room for all that the answer needs.
    let slots = ALL - 8;
    let mut server = model.serve(&["--stream-experts", "on", "--expert-cache", &slots.to_string()]);
    assert_same(&answers(&server, &requests), &expected, "before");
    kill_in_the_middle(&server, &requests, &expected);
    end(&mut server);

    let log = model.log();
    let kept: Vec<usize> = lines(&log, "expert cache").iter().map(|line| number(line, "kept")).collect();
    let [end] = lines(&log, "of the experts that answers used")[..] else { panic!("{log}") };
    println!("{kept:?} of {slots} slots were kept; {end}");
    assert_eq!((kept.len(), kept[0]), (2, 0), "{log}");
    assert!(kept[1] > slots / 4, "{log}");
    // It may have guessed what the first one did not.
    assert_eq!(number(end, "filled"), number(end, "looked_ahead"), "{end}");
    assert_eq!((number(end, "streamed"), number(end, "uses") > 500), (0, true), "{end}");
    assert!(!log.contains("is not what was put into its slot"), "{log}");
}

#[test]
fn an_engine_that_is_killed_again_and_again_over_the_smallest_cache_changes_no_answer() {
    let model = ExpertModel::new();
    let requests = [sampled(7, 100, 200), request(8, 400, 100), sampled(9, 10, 200)];
    let expected = model.undisturbed(&requests);
    let server = model.serve(&["--expert-cache", &model.least_slots().to_string()]);
    for _ in 0..4 {
        kill_in_the_middle(&server, &requests, &expected);
    }
}

/// Kills the engine once the first of some streams has begun. They go on with the answers that they always get, and the next
/// engine reads no other weights than experts.
fn kill_in_the_middle(server: &Server, requests: &[Value], expected: &[Answer]) {
    let mut streams: Vec<_> = requests.iter().map(|request| Stream::open(server, PATH, request)).collect();
    let mut tokens = 0;
    while tokens < 20 {
        tokens += streams[0].next().unwrap();
    }
    signal_to(server.engine(), Signal::KILL);
    assert_eq!(server.event("engine_exit")["signal"], 9);
    let ready = server.event("engine_ready");
    assert_eq!(ready["read_bytes"], 0, "{ready}");
    let resumed = server.event("request_resumed");
    assert!(resumed["tokens"].as_u64().unwrap() < 200, "{resumed}");
    let answers: Vec<_> = streams.into_iter().map(Stream::finish).collect();
    assert_same(&answers, expected, "after a kill");
}

/// Runs `unfazed cache-replay` to a good end.
fn replay(trace: &Path) -> String {
    let output = program(&["cache-replay", trace.to_str().unwrap(), "--slots", "8,50%"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Tokens that were computed for answers: all but the last one of each.
fn computed(answers: &[Answer]) -> u64 {
    answers.iter().map(|answer| answer.usage["total_tokens"].as_u64().unwrap() - 1).sum()
}

#[test]
fn a_trace_counts_each_token_once_and_can_be_replayed() {
    let model = ExpertModel::new();
    let trace = model.beside("chat.trace");
    let mut server = model.serve(&["--expert-cache", "64", "--expert-trace", trace.to_str().unwrap()]);
    let expected = computed(&answers(&server, &requests()));
    end(&mut server);
    let steps = steps(&trace);
    assert_eq!(steps.iter().map(|step| u64::from(step.tokens)).sum::<u64>(), expected);
    for step in &steps {
        assert_eq!(step.layers.len(), LAYERS, "{step:?}");
        for (_, experts) in &step.layers {
            assert!((2..=2 * step.tokens as usize).contains(&experts.len()), "{step:?}");
        }
    }
    let shown = replay(&trace);
    assert!(shown.contains(&format!("many experts: {expected} tokens, {ALL} experts")), "{shown}");
}

#[test]
fn a_trace_goes_on_where_an_engine_was_killed() {
    let model = ExpertModel::new();
    let trace = model.beside("chat.trace");
    let mut server = model.serve(&["--expert-cache", "64", "--expert-trace", trace.to_str().unwrap()]);
    let before = computed(&answers(&server, &requests()));
    signal_to(server.engine(), Signal::KILL);
    server.event("engine_ready");
    let after = computed(&answers(&server, &[request(9, 50, 20)]));
    end(&mut server);
    let counted: u64 = steps(&trace).iter().map(|step| u64::from(step.tokens)).sum();
    assert_eq!(counted, before + after);
    assert!(replay(&trace).contains(&format!("many experts: {counted} tokens")));
}

#[test]
fn a_trace_is_written_over_no_file_that_is_none() {
    let model = ExpertModel::new();
    let own = std::fs::read(model.path()).unwrap();
    let pipe = model.beside("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let args = |trace| ["serve", "--stream-experts", "on", "-m", model.path(), "--expert-trace", trace];
    for (trace, what) in
        [(model.path(), "no trace"), (pipe.to_str().unwrap(), "regular"), ("/dev/full", "regular")]
    {
        let line = one_line_error(&program(&args(trace)).output().unwrap());
        assert!(line.contains("--expert-trace") && line.contains(trace) && line.contains(what), "{line}");
    }
    assert!(std::fs::read(model.path()).unwrap() == own, "the model is as it was");
}

#[test]
fn a_model_that_memory_does_not_hold_is_streamed_without_being_told_to() {
    let model = ExpertModel::new();
    let expected = model.undisturbed(&requests());
    let setting =
        ["--context", "2048", "--prefill-chunk", "32", "--stream-experts", "off", "--memory", "2MiB"];
    let plan = output(&[&["plan", "--json", "-m", model.path()], &setting[..]].concat());
    let refusal: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let memory = refusal["need_bytes"].as_u64().unwrap() - (8 << 20);
    let server = model.serve(&["--memory", &memory.to_string()]);
    assert!(model.log().contains("expert cache"), "{}", model.log());
    assert_same(&answers(&server, &requests()), &expected, "less memory");
}

#[test]
fn a_second_start_fills_slots_with_what_the_first_one_used_most() {
    let model = ExpertModel::new();
    let requests = [sampled(1, 5, 60)];
    let expected = model.undisturbed(&requests);
    let run = |number: usize| {
        let mut server = model.serve(&["--expert-cache", "40"]);
        // What requests have read meanwhile would be counted with it.
        until("slots are filled", || lines(&model.log(), "pre-filled").len() == number);
        assert_same(&answers(&server, &requests), &expected, "a run");
        end(&mut server);
    };
    run(1);
    let profiles: Vec<_> = std::fs::read_dir(model.beside("cache/unfazed"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(profiles.iter().any(|path| path.extension().is_some_and(|kind| kind == "usage")), "{profiles:?}");
    run(2);
    let log = model.log();
    let filled = lines(&log, "pre-filled");
    assert_eq!(filled.len(), 2, "{log}");
    assert!(filled[0].contains("pre-filled 0 of 40 slots"), "{log}");
    assert!(
        filled[1].contains("pre-filled 40 of 40 slots") && filled[1].contains("slot 0 verified"),
        "{log}"
    );
}
