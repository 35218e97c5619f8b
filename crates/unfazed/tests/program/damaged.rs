//! Damaged model files: a refusal in one line that names the file, the field and the value; never a crash.

use std::path::PathBuf;

use serde_json::Value;
use unfazed_testkit::damage::{Damage, Damager};

use crate::support::{Server, chat, one_line_error, output};

const SEED: u64 = 20;

/// A folder with a damaged copy of the demo model.
struct Damaged {
    folder: tempfile::TempDir,
    file: String,
}

impl Damaged {
    fn new(damage: Damage) -> Damaged {
        let good = std::fs::read(demo()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = format!("{}.gguf", damage.name());
        let bytes = Damager::new(&good, SEED).unwrap().apply(damage);
        std::fs::write(folder.path().join(&file), bytes).unwrap();
        Damaged { folder, file }
    }

    fn path(&self) -> String {
        self.folder.path().join(&self.file).into_os_string().into_string().unwrap()
    }
}

fn demo() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "models", "stories-moe-29m-Q4_0.gguf"].iter().collect()
}

/// The field that a refusal must name, and the value where one was written.
fn told(damage: Damage) -> [&'static str; 2] {
    let tensor = unfazed_testkit::damage::TENSOR;
    match damage {
        Damage::Empty => ["magic", "missing"],
        Damage::MagicOnly => ["version", "missing"],
        Damage::NotGguf => ["magic is", "GGUF"],
        Damage::TruncatedHalf | Damage::TruncatedLast100Bytes => ["offset of tensor", "the file ends at"],
        Damage::TruncatedInHeader => ["tokenizer.ggml.tokens", "bytes are left"],
        Damage::Version99 => ["version", "99"],
        Damage::TensorCountHuge => ["tensor count", "1152921504606846976"],
        Damage::KvCountHuge => ["metadata count", "1152921504606846976"],
        Damage::FirstKeyLengthHuge => ["length of metadata key 0", "4611686018427387904"],
        Damage::OffsetPastEnd | Damage::OffsetMisaligned | Damage::OffsetOverlaps => ["offset", tensor],
        Damage::OffsetWraps => ["offset", "18446744073709551584"],
        Damage::DimsHuge => ["dimensions", "4611686018427387904"],
        // Twice the rows: the tensor reaches into the next one.
        Damage::DimsWrong => ["overlaps", tensor],
        Damage::DimsZero => ["dimensions", "[0, 256]"],
        Damage::TypeUnknown => ["type", "250"],
        Damage::WeightsRandomBytes => ["", ""],
    }
}

#[test]
fn every_damaged_header_is_refused_in_one_line_that_names_file_and_field() {
    for damage in Damage::ALL.into_iter().filter(|&damage| damage != Damage::WeightsRandomBytes) {
        let damaged = Damaged::new(damage);
        for command in [&["serve"][..], &["run", "Hello"]] {
            let line = one_line_error(&output(&[command, &["-m", &damaged.path()]].concat()));
            assert!(line.contains(&damaged.file), "the file: {line}");
            for part in told(damage) {
                assert!(line.contains(part), "{part} in the refusal of {damage:?}: {line}");
            }
        }
    }
}

#[test]
fn random_weights_load_and_a_request_ends_with_an_answer_or_an_error_by_name() {
    let damaged = Damaged::new(Damage::WeightsRandomBytes);
    let server = Server::start(&["-m", &damaged.path()]);
    for _ in 0..2 {
        let (status, body) = server.request("POST", "/v1/chat/completions", "", &chat("Hello", 8));
        let body: Value = serde_json::from_str(&body).unwrap();
        match status {
            200 => assert!(body["choices"][0]["finish_reason"].is_string(), "{body}"),
            500 => assert_eq!(body["error"]["code"], "nonfinite_logits", "{body}"),
            other => panic!("status {other}: {body}"),
        }
    }
    assert_eq!(server.request("GET", "/health", "", &Value::Null).0, 200, "the server is alive");
}
