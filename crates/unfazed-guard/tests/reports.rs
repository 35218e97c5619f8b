//! Reports of each signature, as macOS would write them: read, dated, judged.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use unfazed_fault::Class;
use unfazed_guard::gate::{self, Decision};
use unfazed_guard::places::Folder;
use unfazed_guard::reports::{Kind, Report, Scan, Signature, TimeFrom, parse, scan};
use unfazed_guard::settings::GateSettings;
use unfazed_guard::state::State;

/// The reports of signatures that the gate counts.
const COUNTED: [(&str, Signature); 7] = [
    ("prepare_count_underflow.panic", Signature::PrepareCountUnderflow),
    ("plain_text.panic", Signature::PrepareCountUnderflow),
    ("pending_memory_set.panic", Signature::PendingMemorySet),
    ("remove_memory_object.panic", Signature::RemoveMemoryObject),
    ("ctxstore_timeout.panic", Signature::ContextStoreTimeout),
    ("metal_oom.panic", Signature::MetalOom),
    ("watchdogd_no_checkins.panic", Signature::WatchdogNoCheckins),
];
/// Panics of other causes.
const UNRELATED: [&str; 3] =
    ["unrelated_disk.panic", "unrelated_underflow.panic", "unrelated_userspace_watchdog.panic"];
/// Reports that do not say what happened.
const DAMAGED: [&str; 3] = ["torn.panic", "torn_in_header.panic", "no_panic_string.panic"];

/// A made-up report of an event at a time.
fn report(name: &str, at: Timestamp) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let calendar = format!("{:#x}", at.as_second());
    text.replace("@TIMESTAMP@", &at.strftime("%Y-%m-%d %H:%M:%S.00 +0000").to_string())
        .replace("@CALENDAR@", &calendar)
}

/// A folder of reports.
struct Reports(tempfile::TempDir);

impl Reports {
    fn new() -> Reports {
        Reports(tempfile::tempdir().unwrap())
    }

    /// Puts a report of an event so many hours ago, under a name.
    fn put(&self, name: &str, file: &str, hours: i64) -> PathBuf {
        let path = self.0.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, report(name, ago(hours))).unwrap();
        path
    }

    fn scan(&self) -> Scan {
        let folder = |path: PathBuf, must_exist| Folder { path, must_exist };
        let folders = [folder(self.0.path().to_owned(), true), folder(self.0.path().join("Retired"), false)];
        scan(&folders, ago(72), Timestamp::now())
    }

    fn decision(&self) -> Decision {
        let state = State { sentinel: Ok(None), ack: Ok(None), breaker: Ok(None) };
        gate::evaluate(&self.scan(), &state, &GateSettings::default(), "ack", Timestamp::now()).decision
    }
}

fn ago(hours: i64) -> Timestamp {
    Timestamp::now().checked_sub(SignedDuration::from_hours(hours)).unwrap()
}

/// Whether a time is so many hours ago, give or take what a slow machine takes.
fn is_about(at: Timestamp, hours: i64) -> bool {
    ago(hours).duration_since(at).abs() < SignedDuration::from_mins(10)
}

/// Makes a file look as old as that.
fn age(path: &Path, hours: u64) {
    let at = SystemTime::now() - Duration::from_secs(hours * 3600);
    std::fs::File::options().append(true).open(path).unwrap().set_modified(at).unwrap();
}

#[test]
fn each_signature_is_found_and_closes_the_gate() {
    for (name, signature) in COUNTED {
        let reports = Reports::new();
        let file = reports.put(name, "panic-full-2026-04-16-233327.0002.panic", 1);
        let scan = reports.scan();
        let [panic] = scan.panics.as_slice() else { panic!("{name}: {scan:?}") };
        assert_eq!((panic.signature, panic.when.from), (signature, TimeFrom::Calendar), "{name}");
        assert!(is_about(panic.when.at, 1), "{name}: {}", panic.when.at);
        assert_eq!(panic.file, file);
        assert!(panic.explanation.starts_with("panic(cpu"), "{name}: {}", panic.explanation);
        assert!(panic.pid.is_some(), "{name}");
        assert_eq!(reports.decision(), Decision::Wait, "{name}");
    }
    let found: Vec<Signature> = COUNTED.iter().map(|(_, signature)| *signature).collect();
    let all = Signature::ALL.iter().filter(|signature| signature.counts());
    assert!(all.clone().all(|signature| found.contains(signature)), "one signature has no report here");
}

#[test]
fn panics_of_other_causes_are_listed_and_leave_the_gate_open() {
    let reports = Reports::new();
    for (at, name) in UNRELATED.into_iter().enumerate() {
        reports.put(name, &format!("panic-full-{at}.panic"), i64::try_from(at).unwrap() + 1);
    }
    let scan = reports.scan();
    assert_eq!(scan.panics.len(), UNRELATED.len());
    assert!(scan.panics.iter().all(|panic| panic.signature == Signature::Unknown), "{scan:?}");
    assert_eq!(reports.decision(), Decision::Proceed);
}

#[test]
fn the_text_tells_the_time_whatever_the_file_says() {
    let reports = Reports::new();
    // Copied now, written long ago.
    reports.put("remove_memory_object.panic", "panic-full-a.panic", 100);
    assert_eq!(reports.decision(), Decision::Proceed);
    assert!(reports.scan().panics.is_empty());
    // Restored with an old time, written now.
    age(&reports.put("pending_memory_set.panic", "panic-full-b.panic", 1), 500);
    assert_eq!(reports.decision(), Decision::Wait);
}

#[test]
fn without_a_time_in_the_text_the_files_counts_and_that_is_told() {
    let reports = Reports::new();
    let file = reports.put("plain_text.panic", "panic-full-a.panic", 1);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("Calendar", "Kalender")).unwrap();
    age(&file, 5);
    let scan = reports.scan();
    assert_eq!((scan.panics[0].when.from, scan.panics[0].when.from.name()), (TimeFrom::File, "mtime"));
    assert!(is_about(scan.panics[0].when.at, 5), "{scan:?}");
}

#[test]
fn a_panic_that_macos_wrote_twice_is_one() {
    let reports = Reports::new();
    let one = report("remove_memory_object.panic", ago(1));
    for file in ["panic-full-a.panic", ".contents.panic", "Retired/panic-full-a.panic"] {
        let path = reports.0.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &one).unwrap();
    }
    let scan = reports.scan();
    assert_eq!(scan.panics.len(), 1, "{scan:?}");
    assert!(scan.panics[0].file.ends_with("panic-full-a.panic"));
    // Two machines' panics in one second would be two, and so are two of one machine.
    reports.put("pending_memory_set.panic", "panic-full-b.panic", 1);
    assert_eq!(reports.scan().panics.len(), 2);
}

#[test]
fn a_report_that_cannot_be_read_is_told_and_closes_the_gate() {
    for name in DAMAGED {
        let reports = Reports::new();
        let file = reports.put(name, "panic-full-a.panic", 1);
        let scan = reports.scan();
        assert_eq!((scan.panics.len(), scan.unreadable.len()), (0, 1), "{name}: {scan:?}");
        assert_eq!((scan.unreadable[0].kind, &scan.unreadable[0].file), (Kind::Panic, &file));
        assert_eq!(reports.decision(), Decision::Wait, "{name}");
        age(&file, 100);
        assert_eq!(reports.scan(), Scan::default(), "{name}: an old one no longer matters");
    }
    let reports = Reports::new();
    std::os::unix::fs::symlink("/nowhere/at/all", reports.0.path().join("panic-full-a.panic")).unwrap();
    std::fs::write(reports.0.path().join("panic-full-b.panic"), "").unwrap();
    let _socket =
        std::os::unix::net::UnixListener::bind(reports.0.path().join("panic-full-c.panic")).unwrap();
    assert_eq!(reports.scan().unreadable.len(), 3);
    assert_eq!(reports.decision(), Decision::Wait);
}

#[test]
fn a_panic_whose_report_is_cut_behind_its_message_counts() {
    let text = report("remove_memory_object.panic", ago(1));
    let cut = text.find("\"otherString\"").unwrap();
    let Ok(Report::Panic(panic)) = parse(Kind::Panic, &text.as_bytes()[..cut]) else { panic!("it is lost") };
    assert_eq!(panic.signature, Signature::RemoveMemoryObject);
}

#[test]
fn gpu_events_come_with_reason_and_signature_and_close_nothing() {
    let reports = Reports::new();
    reports.put("gpuEvent-restart.ips", "gpuEvent-python3.12-2026-04-16-100000.ips", 1);
    reports.put("gpuEvent-restart.ips", "Retired/gpuEvent-python3.12-2026-04-14-100000.ips", 50);
    reports.put("gpuEvent-restart.ips", "gpuEvent-python3.12-2026-04-01-100000.ips", 500);
    let scan = reports.scan();
    assert_eq!(scan.gpu_events.len(), 2, "{scan:?}");
    let event = &scan.gpu_events[1].event;
    assert_eq!((event.restart_reason, event.signature, event.class), (Some(4), Some(579), Class::Hang));
    assert_eq!(event.description.as_deref(), Some("firmware-detected lockup"));
    assert_eq!(event.process.as_deref(), Some("python3.12"));
    assert_eq!(reports.decision(), Decision::Proceed);
}

#[test]
fn a_process_that_its_gpu_ended_is_an_abort_and_another_is_none() {
    let reports = Reports::new();
    reports.put("abort_metal.ips", "python3.12-2026-04-16-100000.ips", 1);
    reports.put("abort_other.ips", "editor-2026-04-16-100000.ips", 1);
    let scan = reports.scan();
    let [abort] = scan.aborts.as_slice() else { panic!("{scan:?}") };
    assert_eq!((abort.class, abort.process.as_deref()), (Class::Interactivity, Some("python3.12")));
    assert_eq!(reports.decision(), Decision::Proceed);
}

/// A panic may also come as `.ips`.
#[test]
fn a_panic_is_one_by_its_type_whatever_the_files_name() {
    let text = report("pending_memory_set.panic", ago(1));
    let Ok(Report::Panic(panic)) = parse(Kind::Other, text.as_bytes()) else { panic!("it is lost") };
    assert_eq!(panic.signature, Signature::PendingMemorySet);
    assert_eq!(Kind::of("panic-full-2026-04-16-233327.0002.ips"), Some(Kind::Panic));
    assert_eq!((Kind::of("notes.txt"), Kind::of("panic")), (None, None));
}

/// The classes that metal-guard lacks.
#[test]
fn the_four_classes_of_the_gpu_have_their_names() {
    for (text, name) in [
        ("(00000002:kIOGPUCommandBufferCallbackErrorTimeout)", "gpu_timeout"),
        ("(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)", "gpu_interactivity"),
        ("(00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)", "gpu_innocent_victim"),
        ("(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)", "gpu_submissions_ignored"),
    ] {
        let crash = report("abort_metal.ips", ago(1)).replace(
            "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
            text,
        );
        let Ok(Report::Abort(crash)) = parse(Kind::Other, crash.as_bytes()) else { panic!("{name}") };
        assert_eq!(crash.class.name(), name);
        assert_eq!(crash.class.severity().name(), "process_abort");
        assert_eq!(crash.class.hint().name(), "respawn_now");
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Panic), Just(Kind::GpuEvent), Just(Kind::Other)]
}

proptest! {
    /// Whatever the bytes are, there is an answer, and its text is short and harmless.
    #[test]
    fn any_bytes_are_read_or_refused(kind in kinds(), bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        check(kind, &bytes);
    }

    /// The same of reports with a part replaced.
    #[test]
    fn a_damaged_report_is_read_or_refused(
        kind in kinds(),
        which in 0..COUNTED.len(),
        at in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        junk in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = report(COUNTED[which].0, Timestamp::UNIX_EPOCH).into_bytes();
        let at = at.index(bytes.len());
        let end = (at + junk.len()).min(bytes.len());
        bytes.splice(at..end, junk);
        check(kind, &bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        check(kind, &bytes);
    }
}

fn check(kind: Kind, bytes: &[u8]) {
    if let Ok(Report::Panic(panic)) = parse(kind, bytes) {
        assert!(panic.explanation.chars().count() <= 300);
        assert!(!panic.explanation.contains(char::is_control));
    }
}
