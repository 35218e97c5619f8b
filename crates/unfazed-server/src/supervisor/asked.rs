//! Questions that a process of its own answers, since who is asked may hang or crash: drivers.

use std::io::{self, Read};
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::launch::{ChildProcess, relax};
use super::{EngineProgram, Exit, Process};

/// No answer is longer.
const MOST_BYTES: u64 = 1 << 20;
/// Between two looks at whether a process has ended.
const TICK: Duration = Duration::from_millis(2);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The process cannot be started.
    #[error("a process to ask them in cannot be started: {0}")]
    Start(#[from] io::Error),
    /// It took too long, and was ended.
    #[error("they gave no answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// It ended otherwise than well.
    #[error("the process that asked them ended with {0}")]
    Ended(String),
}

impl EngineProgram {
    /// What the program writes on its standard output when it is started as `engine` with these arguments alone. Within
    /// `patience` it has ended, or is ended and left behind.
    ///
    /// # Errors
    ///
    /// It cannot be started, takes too long, crashes or fails.
    pub fn answer(&self, arguments: &[&str], patience: Duration) -> Result<Vec<u8>, NoAnswer> {
        let begun = Instant::now();
        let mut command = self.part("engine");
        relax(&mut command);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (told, answer) = channel();
        let output = child.stdout.take();
        let process = ChildProcess::new(child);
        let reader = thread::Builder::new().name("answer".to_owned()).spawn(move || {
            let mut bytes = Vec::new();
            if let Some(output) = output {
                // What was read before an error is what there is.
                let _ = output.take(MOST_BYTES).read_to_end(&mut bytes);
            }
            // Nobody may wait any more.
            let _ = told.send(bytes);
        });
        let answer = match reader {
            Ok(_) => answer.recv_timeout(patience),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        };
        while answer.is_ok() && begun.elapsed() < patience {
            match process.exit() {
                None => thread::sleep(TICK),
                Some(Exit { code: Some(0), .. }) => return Ok(answer.unwrap_or_default()),
                Some(exit) => return Err(NoAnswer::Ended(ending(exit))),
            }
        }
        process.kill();
        leave(process);
        Err(NoAnswer::Late(patience))
    }
}

/// Reaps a process that was killed, whenever that is: in a driver it may take its time.
fn leave(process: ChildProcess) {
    const LONGEST: Duration = Duration::from_secs(60);
    let killed = Instant::now();
    let reap = move || {
        while process.exit().is_none() && killed.elapsed() < LONGEST {
            thread::sleep(Duration::from_millis(50));
        }
    };
    // Without a thread it is reaped with this process.
    let _ = thread::Builder::new().name("reaper".to_owned()).spawn(reap);
}

fn ending(exit: Exit) -> String {
    match exit {
        Exit { signal: Some(signal), .. } => format!("signal {signal}"),
        Exit { code: Some(code), .. } => format!("code {code}"),
        Exit { .. } => "nobody knows what".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A program that is a shell script; its first argument is `engine`.
    fn ask(text: &str, patience: Duration) -> Result<Vec<u8>, NoAnswer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        EngineProgram::at(path).answer(&["--adapters"], patience)
    }

    #[test]
    fn an_answer_is_what_was_written_by_a_process_that_ended_well() {
        assert_eq!(ask("echo \"$@\"", PATIENCE).unwrap(), b"engine --adapters\n");
    }

    #[test]
    fn a_process_that_crashes_or_fails_gives_no_answer_and_takes_nobody_along() {
        let crashed = ask("echo half; kill -SEGV $$", PATIENCE).unwrap_err();
        assert_eq!(crashed.to_string(), "the process that asked them ended with signal 11");
        let failed = ask("exit 3", PATIENCE).unwrap_err();
        assert_eq!(failed.to_string(), "the process that asked them ended with code 3");
        assert!(matches!(EngineProgram::at("/nowhere").answer(&[], PATIENCE), Err(NoAnswer::Start(_))));
    }

    #[test]
    fn a_process_that_hangs_is_left_behind_with_all_that_it_started() {
        let begun = Instant::now();
        let late = ask("sleep 600 & echo begun; wait", Duration::from_millis(300)).unwrap_err();
        assert_eq!(late.to_string(), "they gave no answer within 0.3 s");
        // One that has written all and does not end hangs as well.
        assert!(matches!(ask("exec >&-; sleep 600", Duration::from_millis(300)), Err(NoAnswer::Late(_))));
        assert!(begun.elapsed() < PATIENCE);
    }
}
