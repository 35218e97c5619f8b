//! Experts that cannot be read, or are not what they were: those who need them are told, and nobody else notices. Where no FUSE
//! file system can be mounted nothing is tested here.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};
use unfazed_testkit::fuse::FaultyMount;

use crate::expert_model::{ALL, Expert, ExpertModel, PATH, answers, assert_same, request};
use crate::streams::{Answer, Stream, Tally};
use crate::support::Server;

/// A server of a file that is good as yet, and two requests: one uses experts that the other one does not.
struct Setup {
    server: Server,
    mount: FaultyMount,
    model: ExpertModel,
    /// Uses them. Its prompt alone: an answer would have experts in slots that its prompt needs again.
    victim: Value,
    /// Leaves them alone.
    other: Value,
    expected: Vec<Answer>,
    /// Those that only the victim uses.
    experts: Vec<Expert>,
}

impl Setup {
    fn new(slots: impl Fn(&ExpertModel) -> usize) -> Option<Setup> {
        let model = ExpertModel::new();
        let mount = model.mount()?;
        let (victim, mut other) = (request(1, 70, 1), request(2, 30, 600));
        // Long enough to be there meanwhile, and the same token again and again uses few experts.
        other["logit_bias"] = json!({"70": 100});
        let spared: BTreeSet<Expert> = model.used(&other);
        let experts: Vec<Expert> = model.used(&victim).difference(&spared).copied().collect();
        assert!(experts.len() > 10, "{experts:?}");
        let expected = model.undisturbed(std::slice::from_ref(&other));
        let slots = slots(&model).to_string();
        let server = model.serve_from(&mount.file(), &["--stream-experts", "on", "--expert-cache", &slots]);
        Some(Setup { server, mount, model, victim, other, expected, experts })
    }

    /// Where matrices of the experts that only the victim uses begin, each beside a byte in its middle, which belongs to no
    /// block of the file that is read for others.
    fn places(&self) -> Vec<(u64, u64)> {
        let extents = self.experts.iter().flat_map(|expert| self.model.extents(*expert));
        extents.map(|extent| (extent.start, (extent.start + extent.end) / 2)).collect()
    }

    /// What the victim is told.
    fn error(&self, streamed: bool) -> Value {
        if streamed {
            return Stream::open(&self.server, PATH, &self.victim).finish().error;
        }
        let (status, body) = self.server.request("POST", PATH, "", &self.victim);
        assert_eq!(status, 500, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["error"].clone()
    }

    /// While the other one is being answered the victim fails, in one piece or in a stream, with words that name the file and
    /// one of the offsets. The other one gets its answer, then and later.
    fn victim_fails_alone(&self, harm: impl FnOnce(&FaultyMount), offsets: &[u64], streamed: bool) -> String {
        let tally = Tally::default();
        let other = Stream::open(&self.server, PATH, &self.other);
        let (other, error) = thread::scope(|scope| {
            let other = scope.spawn(|| tally.follow(other, 0));
            tally.wait_for_tokens(1);
            harm(&self.mount);
            let error = self.error(streamed);
            assert_eq!(tally.count().ended, 0, "the other one is being answered");
            (other.join().unwrap(), error)
        });
        assert_eq!(error["code"], "storage_error", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("many-experts.gguf"), "{message}");
        assert!(offsets.iter().any(|offset| message.contains(&format!("at {offset}"))), "{message}");
        println!("{message}");

        assert_same(&[other], &self.expected, "at the same time");
        assert_eq!(self.server.request("GET", "/health", "", &Value::Null).0, 200);
        let later = answers(&self.server, std::slice::from_ref(&self.other));
        assert_same(&later, &self.expected, "later");
        let events = self.server.past_events();
        assert!(events.iter().all(|event| event["event"] != "engine_exit"), "{events:?}");
        message.to_owned()
    }
}

#[test]
fn an_expert_that_cannot_be_read_fails_who_needs_it_after_half_a_minute() {
    let Some(setup) = Setup::new(ExpertModel::least_slots) else { return };
    let (offset, at) = setup.places()[0];
    // Before anybody could have had it read as a guess.
    setup.mount.behave(|behaviour| behaviour.unreadable = Some(at..at + 1));
    let message = setup.victim_fails_alone(|_| (), &[offset], false);
    assert!(message.contains("Input/output error"), "{message}");
}

#[test]
fn experts_whose_bytes_are_others_than_before_fail_who_needs_them() {
    let Some(setup) = Setup::new(ExpertModel::least_slots) else { return };
    answers(&setup.server, std::slice::from_ref(&setup.victim));
    let (offsets, bytes): (Vec<u64>, Vec<u64>) = setup.places().into_iter().unzip();
    for streamed in [false, true] {
        // All of them, as a few may be in slots.
        let flip = |mount: &FaultyMount| mount.behave(|behaviour| behaviour.flipped.clone_from(&bytes));
        let message = setup.victim_fails_alone(flip, &offsets, streamed);
        assert!(message.contains("not those that were read before"), "{message}");
    }
    setup.mount.behave(|behaviour| behaviour.flipped.clear());
    answers(&setup.server, std::slice::from_ref(&setup.victim));
}

#[test]
fn a_file_that_gets_shorter_fails_who_needs_experts_that_are_not_in_memory() {
    // All that the other one uses stays in slots.
    let Some(setup) = Setup::new(|_| ALL - 8) else { return };
    let before = answers(&setup.server, std::slice::from_ref(&setup.other));
    assert_same(&before, &setup.expected, "before");
    let offsets: Vec<u64> = setup.places().into_iter().map(|(offset, _)| offset).collect();
    for streamed in [false, true] {
        let cut = |mount: &FaultyMount| mount.behave(|behaviour| behaviour.truncated = Some(1_000_000));
        let message = setup.victim_fails_alone(cut, &offsets, streamed);
        assert!(message.contains("and has 1000000 now"), "{message}");
    }
}
