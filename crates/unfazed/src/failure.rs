//! How the program ends: 0 when all went well (a closed pipe included), 1 with one line on stderr when not. Usage
//! errors end with 2, by `clap`.

use std::io;
use std::process::ExitCode;

use crate::stderr::Stderr;

/// The exit code of a result; an error is told on stderr in one line, behind what waits to be written there.
pub(crate) fn exit_code(result: anyhow::Result<ExitCode>, stderr: &Stderr) -> ExitCode {
    let code = match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            stderr.write(format!("error: {}\n", line(&error)));
            ExitCode::FAILURE
        }
    };
    stderr.flush();
    code
}

/// An error and its causes in one line. A cause that its error quotes already is left out, and so are control
/// characters: values from files must not steer a terminal.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace(|c: char| c.is_control(), "\u{fffd}")
}

/// True if the reader of our output went away: a clean end, as in `unfazed run ... | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken_pipe = error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    });
    broken_pipe && error.is::<OutputClosed>()
}

/// Marks an error of writing to our own output, so that a broken pipe elsewhere is still an error.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl std::fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cannot write to standard output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn an_error_is_one_line_and_says_nothing_twice() {
        let io = io::Error::new(io::ErrorKind::NotFound, "no such\nfile");
        let error = anyhow::Error::new(io).context("model.gguf: cannot read header: no such\nfile");
        let error = error.context("cannot load");
        assert_eq!(line(&error), "cannot load: model.gguf: cannot read header: no such file");
    }

    #[test]
    fn values_from_files_cannot_steer_the_terminal() {
        assert_eq!(line(&anyhow::anyhow!("key is \u{1b}[2Jx")), "key is \u{fffd}[2Jx");
    }

    #[test]
    fn only_a_broken_pipe_of_our_own_output_is_a_clean_end() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        let ours = Err::<(), _>(pipe()).context(OutputClosed).unwrap_err();
        assert!(is_broken_pipe(&ours));
        let other = Err::<(), _>(pipe()).context("the link to the engine").unwrap_err();
        assert!(!is_broken_pipe(&other));
        let full =
            Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull)).context(OutputClosed).unwrap_err();
        assert!(!is_broken_pipe(&full));
    }
}
