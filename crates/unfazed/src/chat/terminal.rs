//! The loop of reading and answering in a terminal, and one answer for pipes.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::client::Statistics;
use super::input::{Assembler, Command, Entry, HELP};
use super::session::{Outcome, Session};
use crate::failure::{self, OutputClosed};

/// Exit code of a program that Ctrl-C ended, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Answers one question and ends.
pub(crate) fn answer_once(
    runtime: &Runtime,
    session: &mut Session,
    question: String,
) -> anyhow::Result<ExitCode> {
    let outcome = answer(runtime, session, question)?;
    Ok(if outcome.stopped { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Reads and answers until the person ends it.
pub(crate) fn chat(runtime: &Runtime, session: &mut Session) -> anyhow::Result<ExitCode> {
    let config = Config::builder().auto_add_history(false).build();
    let mut editor = DefaultEditor::with_config(config).context("cannot read from the terminal")?;
    note(&format!("Chatting with {}. /help lists the commands, Ctrl-D ends.", session.model()));
    catch_interrupts(runtime)?;
    let mut entry = Assembler::default();
    loop {
        let prompt = if entry.is_open() { "... " } else { ">>> " };
        match editor.readline(prompt) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    // Only a help for typing: without it the chat goes on.
                    let _ = editor.add_history_entry(line.as_str());
                }
                if let Some(entry) = entry.push(&line)
                    && !handle(runtime, session, entry)?
                {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Err(ReadlineError::Interrupted) => {
                if !entry.is_open() {
                    note("Ctrl-D or /quit ends the chat.");
                }
                entry.discard();
            }
            Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
    }
}

/// From now on Ctrl-C no longer ends the program, not even in the moment between a question and its answer. (While a
/// line is typed it is a key like any other.)
fn catch_interrupts(runtime: &Runtime) -> anyhow::Result<()> {
    let _inside = runtime.enter();
    // The handler stays for good, whoever listens.
    drop(signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?);
    Ok(())
}

/// Does what was entered; false ends the chat. A question that fails does not end it.
fn handle(runtime: &Runtime, session: &mut Session, entry: Entry) -> anyhow::Result<bool> {
    match entry {
        Entry::Message(question) => {
            if let Err(error) = answer(runtime, session, question) {
                if error.is::<OutputClosed>() {
                    return Err(error);
                }
                complain(&failure::line(&error));
            }
        }
        Entry::Unknown(line) => {
            complain(&format!("{line}: no such command, or something is missing; see /help"))
        }
        Entry::Command(Command::Quit) => return Ok(false),
        Entry::Command(Command::Help) => note(HELP),
        Entry::Command(Command::Clear) => {
            session.clear();
            note("The conversation is forgotten.");
        }
        Entry::Command(Command::System(None)) => {
            note(session.system().unwrap_or("There is no system prompt."))
        }
        Entry::Command(Command::System(Some(text))) => {
            session.set_system(text);
            note("The system prompt is set; the conversation starts anew.");
        }
        Entry::Command(Command::Save(file)) => match save(session, &file) {
            Ok(()) => note(&format!("Saved to {file}.")),
            Err(error) => complain(&format!("{file}: {error}")),
        },
    }
    Ok(true)
}

fn save(session: &Session, file: &str) -> io::Result<()> {
    std::fs::write(file, format!("{:#}\n", session.to_json()))
}

fn answer(runtime: &Runtime, session: &mut Session, question: String) -> anyhow::Result<Outcome> {
    let mut out = AnswerWriter::new();
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // No handler could be installed: Ctrl-C ends the program, as it does without one.
            std::future::pending::<()>().await;
        }
    };
    let result = runtime.block_on(session.ask(question, &mut out, interrupted));
    out.end_line().context(OutputClosed)?;
    let outcome = result?;
    if io::stderr().is_terminal() {
        let remarks = remarks(&outcome);
        if !remarks.is_empty() {
            note(&remarks);
        }
    }
    Ok(outcome)
}

/// What is worth saying about an answer, in one line.
fn remarks(outcome: &Outcome) -> String {
    let mut parts = Vec::new();
    if outcome.stopped {
        parts.push("stopped".to_owned());
    }
    if let Some(Statistics { prompt_tokens, answer_tokens, per_second, prompt_per_second }) =
        outcome.statistics
    {
        parts.push(format!("{answer_tokens} tokens{}", rate(per_second)));
        parts.push(format!("prompt {prompt_tokens} tokens{}", rate(prompt_per_second)));
    }
    if outcome.finish.as_deref() == Some("length") {
        parts.push("cut off at the longest answer or the end of the context".to_owned());
    }
    if outcome.finish.as_deref() == Some("repetition") {
        parts.push("ended because it repeats itself".to_owned());
    }
    if outcome.forgotten > 0 {
        parts.push(
            "the oldest messages were forgotten: the conversation no longer fits the context".to_owned(),
        );
    }
    parts.join(" · ")
}

fn rate(per_second: Option<f64>) -> String {
    per_second.map(|rate| format!(", {rate:.1} tokens/s")).unwrap_or_default()
}

/// A line beside the conversation.
fn note(text: &str) {
    // Nothing is lost if stderr is closed.
    let _ = writeln!(io::stderr(), "{}", console::style(text).dim().for_stderr());
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{} {text}", console::style("error:").red().for_stderr());
}

/// Standard output for an answer: on a terminal without control characters, which a model could use to steer it.
struct AnswerWriter {
    terminal: bool,
    mid_line: bool,
}

impl AnswerWriter {
    fn new() -> AnswerWriter {
        AnswerWriter { terminal: io::stdout().is_terminal(), mid_line: false }
    }

    /// Ends a line that was begun.
    fn end_line(&mut self) -> io::Result<()> {
        if self.mid_line {
            self.write_all(b"\n")?;
            self.flush()?;
        }
        Ok(())
    }
}

impl Write for AnswerWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.terminal {
            io::stdout().write_all(&without_controls(bytes))?;
        } else {
            io::stdout().write_all(bytes)?;
        }
        if let Some(last) = bytes.last() {
            self.mid_line = *last != b'\n';
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

/// Without C0 controls other than tab and newline (the escape character is one), and without C1 controls, which are
/// `C2 80` to `C2 9F` in UTF-8.
fn without_controls(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_cannot_steer_the_terminal() {
        assert_eq!(without_controls("a\u{1b}[2J\tb\n\u{9b}é".as_bytes()), "a[2J\tb\né".as_bytes());
    }

    #[test]
    fn remarks_give_rates_and_what_went_otherwise() {
        let statistics = Statistics {
            prompt_tokens: 20,
            answer_tokens: 12,
            per_second: Some(34.56),
            prompt_per_second: None,
        };
        let mut outcome = Outcome { statistics: Some(statistics), ..Outcome::default() };
        assert_eq!(remarks(&outcome), "12 tokens, 34.6 tokens/s · prompt 20 tokens");
        outcome.finish = Some("length".to_owned());
        assert!(remarks(&outcome).contains("cut off"));
        assert_eq!(remarks(&Outcome { stopped: true, ..Outcome::default() }), "stopped");
    }
}
