//! What the guarded server writes: passed on as it is, read line by line, and the last of it kept.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::mpsc::UnboundedSender;
use unfazed_fault::{Class, Origin, classify};

/// Longest line that is read as one; more is read as another line.
const LONGEST_LINE: usize = 64 << 10;
/// Most bytes of the last lines that are kept.
const TAIL_BYTES: usize = 16 << 10;
/// Most of a last line that is told.
const LAST_WORDS: usize = 300;
/// Faults that wait to be looked at; further ones of the same moment tell nothing new.
const MOST_WAITING: usize = 32;

/// Which of its two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Takes whole lines of the guarded server. Called from threads of its own.
pub type OutputSink = Arc<dyn Fn(Stream, Vec<u8>) + Send + Sync>;

/// A line that tells of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) class: Class,
    pub(super) line: String,
}

/// The last lines, for the time when it has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<String>,
    bytes: usize,
    /// Faults told and not yet looked at.
    waiting: usize,
    /// Outputs that have not ended.
    open: usize,
}

impl Tail {
    /// What the last lines say: the class if they tell one, and the line that does or else the last one.
    pub(super) fn last_words(&self) -> (Class, String) {
        let lines = self.lock();
        let text = lines.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let report = classify(&text);
        let line = match report.class {
            Class::Unknown => lines.lines.iter().rev().find(|line| !line.trim().is_empty()).cloned(),
            _ => Some(report.evidence.to_owned()),
        };
        (report.class, line.unwrap_or_default().chars().take(LAST_WORDS).collect())
    }

    /// All that was written has been read.
    pub(super) fn is_whole(&self) -> bool {
        self.lock().open == 0
    }

    /// A fault was looked at.
    pub(super) fn looked(&self) {
        let mut lines = self.lock();
        lines.waiting = lines.waiting.saturating_sub(1);
    }

    fn add(&self, line: &[u8], faults: &UnboundedSender<Told>) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches(['\n', '\r']);
        let report = classify(line);
        let mut lines = self.lock();
        lines.lines.push_back(line.to_owned());
        lines.bytes = lines.bytes.saturating_add(line.len());
        while lines.bytes > TAIL_BYTES
            && let Some(first) = lines.lines.pop_front()
        {
            lines.bytes = lines.bytes.saturating_sub(first.len());
        }
        let tells = matches!(report.class.origin(), Origin::Device | Origin::Storage);
        if tells && lines.waiting < MOST_WAITING {
            lines.waiting = lines.waiting.saturating_add(1);
            // Nobody looks any more once the server is given up.
            let _ = faults.send(Told { class: report.class, line: report.evidence.to_owned() });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads an output to its end in a thread of its own.
pub(super) fn read(
    stream: Stream,
    mut output: impl Read + Send + 'static,
    sink: OutputSink,
    tail: Tail,
    faults: UnboundedSender<Told>,
) -> std::io::Result<()> {
    tail.lock().open += 1;
    let work = move || {
        let (mut buffer, mut held) = (vec![0; 16 << 10], Vec::new());
        loop {
            // An error of a pipe is its end.
            let read = output.read(&mut buffer).unwrap_or(0);
            held.extend_from_slice(buffer.get(..read).unwrap_or_default());
            while let Some(line) = take_line(&mut held, read == 0) {
                tail.add(&line, &faults);
                sink(stream, line);
            }
            if read == 0 {
                let mut lines = tail.lock();
                lines.open = lines.open.saturating_sub(1);
                return;
            }
        }
    };
    thread::Builder::new().name("guarded-output".to_owned()).spawn(work).map(drop)
}

/// A whole line, with a line feed at its end even if it was cut there.
fn take_line(held: &mut Vec<u8>, last: bool) -> Option<Vec<u8>> {
    let end = held.iter().take(LONGEST_LINE).position(|&byte| byte == b'\n').map(|at| at + 1);
    let end = end.or((held.len() >= LONGEST_LINE).then_some(LONGEST_LINE));
    let end = end.or((last && !held.is_empty()).then_some(held.len()))?;
    let rest = held.split_off(end);
    let mut line = std::mem::replace(held, rest);
    if line.last() != Some(&b'\n') {
        line.push(b'\n');
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn lines(bytes: &'static [u8]) -> (Vec<Vec<u8>>, Tail, Vec<Told>) {
        let (send, lines) = std::sync::mpsc::channel();
        let sink: OutputSink = Arc::new(move |_, line| send.send(line).unwrap());
        let (told, mut faults) = mpsc::unbounded_channel();
        let tail = Tail::default();
        read(Stream::Stderr, bytes, sink, tail.clone(), told).unwrap();
        let lines: Vec<_> = lines.iter().collect();
        let faults = std::iter::from_fn(|| faults.blocking_recv()).collect();
        (lines, tail, faults)
    }

    #[test]
    fn lines_are_passed_on_as_they_are_and_faults_are_told() {
        let (lines, tail, faults) = lines(
            b"loading \xff\n[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) \
              (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).\nlast words",
        );
        assert_eq!(lines.len(), 3);
        assert_eq!(lines.first().unwrap(), b"loading \xff\n");
        assert_eq!(lines.last().unwrap(), b"last words\n");
        assert_eq!(faults.len(), 1);
        assert_eq!(faults.first().unwrap().class, Class::SubmissionsIgnored);
        assert_eq!(tail.last_words().0, Class::SubmissionsIgnored);
    }

    #[test]
    fn of_a_server_that_says_nothing_known_the_last_line_is_kept() {
        let (_, tail, faults) = lines(b"one\ntwo\n\n");
        assert_eq!((tail.last_words(), faults), ((Class::Unknown, "two".to_owned()), Vec::new()));
    }

    #[test]
    fn neither_a_line_without_end_nor_many_of_them_fill_memory() {
        let (mut held, tail) = (vec![b'x'; LONGEST_LINE * 3 + 5], Tail::default());
        let (told, _faults) = mpsc::unbounded_channel();
        let mut cut = Vec::new();
        while let Some(line) = take_line(&mut held, true) {
            tail.add(&line, &told);
            cut.push(line.len());
        }
        assert_eq!(cut, [LONGEST_LINE + 1, LONGEST_LINE + 1, LONGEST_LINE + 1, 6]);
        assert!(tail.lock().bytes <= TAIL_BYTES);
    }

    #[test]
    fn a_flood_of_faults_is_told_in_part() {
        let (told, mut faults) = mpsc::unbounded_channel();
        let tail = Tail::default();
        for _ in 0..1000 {
            tail.add(b"Caused GPU Hang Error", &told);
        }
        assert_eq!(std::iter::from_fn(|| faults.try_recv().ok()).count(), MOST_WAITING);
        (0..MOST_WAITING).for_each(|_| tail.looked());
        tail.add(b"Caused GPU Hang Error", &told);
        assert!(faults.try_recv().is_ok());
    }
}
