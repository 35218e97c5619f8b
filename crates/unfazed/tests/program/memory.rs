//! Memory that outlives an engine: what somebody writes into it changes no answer.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::process::Signal;
use serde_json::{Value, json};
use unfazed_wire::memory::{Access, KvSegment, Mapping, PageRecord, Segment};

use crate::processes::{links, signal_to, until_stopped};
use crate::streams::{Answer, Stream};
use crate::support::{Server, until};

/// The memory for KV pages of a server, as any process of this user can open it.
struct KvMemory {
    file: File,
    sizes: KvSegment,
    mapping: Mapping,
}

/// The server's segments: files that can be read and written, if the system lets anybody write.
fn segments(server: &Server) -> Vec<File> {
    let links = links(server.child.id());
    let own = links.into_iter().filter(|(_, target)| target.starts_with("/memfd:unfazed"));
    own.map(|(path, _)| File::options().read(true).write(true).open(path).unwrap()).collect()
}

fn is_sealed(file: &File) -> bool {
    let segment = Segment::received("a test", OwnedFd::from(file.try_clone().unwrap()), 0).unwrap();
    segment.contents_are_sealed().unwrap()
}

impl KvMemory {
    fn of(server: &Server) -> KvMemory {
        let file = segments(server).into_iter().find(|file| !is_sealed(file)).unwrap();
        let len = file.metadata().unwrap().size();
        let pages = usize::try_from(server.ready["settings"]["kv_pages"].as_u64().unwrap()).unwrap();
        let records = KvSegment { pages, page_bytes: 0 }.data_offset().unwrap();
        let sizes = KvSegment { pages, page_bytes: (usize::try_from(len).unwrap() - records) / pages };
        assert_eq!(sizes.bytes().unwrap() as u64, len);
        let segment = Segment::received("a test", OwnedFd::from(file.try_clone().unwrap()), len).unwrap();
        let mapping = Mapping::new(&segment, Access::Write).unwrap();
        KvMemory { file, sizes, mapping }
    }

    /// Pages that hold something, with their records.
    fn used(&self) -> Vec<(usize, PageRecord)> {
        let pages = 0..self.sizes.pages;
        let used: Vec<_> =
            pages.filter_map(|page| Some((page, self.sizes.read(&self.mapping, page)?))).collect();
        assert!(used.len() > 3, "{used:?}");
        used
    }

    fn write(&self, page: usize, record: PageRecord) {
        self.sizes.write(&self.mapping, page, record);
    }

    /// Changes the bytes from `offset` on.
    fn change(&self, offset: usize, len: usize, change: impl Fn(u8) -> u8) {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset as u64).unwrap();
        bytes.iter_mut().for_each(|byte| *byte = change(*byte));
        self.file.write_all_at(&bytes, offset as u64).unwrap();
    }

    fn page(&self, page: usize) -> usize {
        self.sizes.data_offset().unwrap() + page * self.sizes.page_bytes
    }
}

/// A chat with a prompt of several pages.
fn long_chat() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a story of a small cat in the rain. ".repeat(20)}],
        "max_tokens": 60,
        "ignore_eos": true,
        "temperature": 0.8,
        "seed": 5,
        "logprobs": true,
        "top_logprobs": 3,
    })
}

/// The answer to [`long_chat`] of an engine that dies in the middle, when `harm` was done to the memory that it leaves, and
/// the event that says how the next one went on.
fn answer_after(server: &Server, harm: impl FnOnce(&KvMemory)) -> (Answer, Value) {
    let mut stream = Stream::open(server, "/v1/chat/completions", &long_chat());
    let mut tokens = 0;
    while tokens < 20 {
        tokens += stream.next().unwrap();
    }
    let engine = server.engine();
    signal_to(engine, Signal::STOP);
    until_stopped(engine);
    harm(&KvMemory::of(server));
    signal_to(engine, Signal::KILL);
    let resumed = server.event("request_resumed");
    (stream.finish(), resumed)
}

#[test]
fn pages_that_somebody_wrote_into_are_computed_again_and_the_answer_is_the_same() {
    let server = Server::start(&["--context", "1024", "--parallel", "2"]);
    let undisturbed = Stream::open(&server, "/v1/chat/completions", &long_chat()).finish();
    assert_eq!(undisturbed.error, Value::Null);
    let positions = undisturbed.usage["prompt_tokens"].as_u64().unwrap();

    let (answer, resumed) = answer_after(&server, |_| ());
    answer.assert_equals(&undisturbed, "an unharmed memory");
    assert!(resumed["kept_positions"].as_u64().unwrap() >= positions, "{resumed}");

    type Harm = (&'static str, fn(&KvMemory));
    let harms: [Harm; 6] = [
        ("pages overwritten", |memory| {
            for (page, _) in memory.used() {
                memory.change(memory.page(page), memory.sizes.page_bytes, |byte| !byte);
            }
        }),
        ("a bit of each page flipped", |memory| {
            for (page, _) in memory.used() {
                memory.change(memory.page(page), 1, |byte| byte ^ 1);
            }
        }),
        ("records overwritten", |memory| memory.change(0, memory.page(0), |byte| byte.wrapping_add(77))),
        ("records of more positions than a page has", |memory| {
            for (page, record) in memory.used() {
                memory.write(page, PageRecord { positions: u32::MAX, ..record });
            }
        }),
        ("records with other digests", |memory| {
            for (page, record) in memory.used() {
                memory.write(page, PageRecord { digest: record.digest ^ 1, ..record });
            }
        }),
        ("records of other pages", |memory| {
            let used = memory.used();
            for ((page, _), (_, record)) in used.iter().zip(used.iter().cycle().skip(1)) {
                memory.write(*page, *record);
            }
        }),
    ];
    for (what, harm) in harms {
        let before = server.metric("unfazed_positions_recomputed_total");
        let (answer, resumed) = answer_after(&server, harm);
        answer.assert_equals(&undisturbed, what);
        assert_eq!(resumed["kept_positions"], 0, "{what}: {resumed}");
        let computed = server.metric("unfazed_positions_recomputed_total") - before;
        assert!(
            computed >= positions as f64,
            "{what}: {computed} of {positions} positions were computed again"
        );
    }
}

#[test]
fn each_type_of_keys_and_values_serves_and_goes_on_from_the_pages_of_a_killed_engine() {
    for [keys, values] in [["q8_0", "q8_0"], ["q4_0", "bf16"], ["f32", "q4_0"]] {
        let server = Server::start(&["--context", "1024", "-ctk", keys, "--cache-type-v", values]);
        let settings = &server.ready["settings"];
        assert_eq!([&settings["cache_type_k"], &settings["cache_type_v"]], [keys, values]);
        let undisturbed = Stream::open(&server, "/v1/chat/completions", &long_chat()).finish();
        assert_eq!(undisturbed.error, Value::Null);
        let positions = undisturbed.usage["prompt_tokens"].as_u64().unwrap();
        let (answer, resumed) = answer_after(&server, |_| ());
        answer.assert_equals(&undisturbed, keys);
        assert!(resumed["kept_positions"].as_u64().unwrap() >= positions, "{resumed}");
    }
}

#[test]
fn nobody_can_write_the_weights_or_change_the_length_of_any_segment() {
    let server = Server::start(&[]);
    let segments = segments(&server);
    assert_eq!(segments.len(), 2, "weights and KV pages");
    let weights: Vec<_> = segments.iter().filter(|file| is_sealed(file)).collect();
    assert_eq!(weights.len(), 1);
    assert!(weights[0].write_all_at(b"other weights", 0).is_err());
    for segment in &segments {
        let len = segment.metadata().unwrap().size();
        assert!(segment.set_len(len - 1).is_err() && segment.set_len(len + 1).is_err());
    }
    until("the server answers", || !server.ask("Hello", 5).is_empty());
}
