//! What a person types: messages of one or several lines, and commands.

/// What was entered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A message for the model.
    Message(String),
    /// A command.
    Command(Command),
    /// Something that begins with a slash and is no command.
    Unknown(String),
}

/// A command of the chat.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Lists the commands.
    Help,
    /// Forgets the conversation.
    Clear,
    /// Shows or sets the system prompt.
    System(Option<String>),
    /// Writes the conversation to a file.
    Save(String),
    /// Ends the chat.
    Quit,
}

/// What `/help` prints.
pub(crate) const HELP: &str = "\
/clear           forget the conversation
/system [TEXT]   show the system prompt, or set it and start anew
/save FILE       write the conversation to a file, as JSON
/quit            end (also Ctrl-D)
Several lines: end a line with \\, or put the message between lines of \"\"\".
Ctrl-C stops an answer.";

const FENCE: &str = "\"\"\"";

/// Puts lines together into entries.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    lines: Vec<String>,
    fenced: bool,
}

impl Assembler {
    /// True in the middle of a message of several lines.
    pub(crate) fn is_open(&self) -> bool {
        self.fenced || !self.lines.is_empty()
    }

    /// Drops what was begun.
    pub(crate) fn discard(&mut self) {
        *self = Assembler::default();
    }

    /// Takes a line; gives the entry that it completes. Blank entries are none.
    pub(crate) fn push(&mut self, line: &str) -> Option<Entry> {
        if self.fenced {
            return match line.trim_end().strip_suffix(FENCE) {
                Some(last) => {
                    if !last.is_empty() {
                        self.lines.push(last.to_owned());
                    }
                    self.message()
                }
                None => {
                    self.lines.push(line.to_owned());
                    None
                }
            };
        }
        if self.lines.is_empty() {
            if let Some(first) = line.trim_start().strip_prefix(FENCE) {
                return self.open_fence(first);
            }
            // A pasted text of several lines that begins with a slash is no command.
            if line.starts_with('/') && !line.contains('\n') {
                return Some(command(line));
            }
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                self.lines.push(part.to_owned());
                None
            }
            None => {
                self.lines.push(line.to_owned());
                self.message()
            }
        }
    }

    fn open_fence(&mut self, first: &str) -> Option<Entry> {
        self.fenced = true;
        if first.trim().is_empty() {
            return None;
        }
        // The rest of the first line counts, and may end the block at once.
        self.push(first)
    }

    fn message(&mut self) -> Option<Entry> {
        let text = std::mem::take(self).lines.join("\n");
        (!text.trim().is_empty()).then_some(Entry::Message(text))
    }
}

fn command(line: &str) -> Entry {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let argument = (!rest.is_empty()).then(|| rest.to_owned());
    Entry::Command(match (name, argument) {
        ("/help" | "/?" | "/h", _) => Command::Help,
        ("/clear" | "/new" | "/reset", _) => Command::Clear,
        ("/system", text) => Command::System(text),
        ("/save", Some(file)) => Command::Save(file),
        ("/quit" | "/exit" | "/bye" | "/q", _) => Command::Quit,
        _ => return Entry::Unknown(line.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<Entry> {
        let mut assembler = Assembler::default();
        text.lines().filter_map(|line| assembler.push(line)).collect()
    }

    fn message(text: &str) -> Entry {
        Entry::Message(text.to_owned())
    }

    #[test]
    fn a_line_is_a_message_and_blank_ones_are_none() {
        assert_eq!(entries("hello\n\n  \nagain"), [message("hello"), message("again")]);
    }

    #[test]
    fn a_backslash_at_the_end_goes_on_with_the_next_line() {
        assert_eq!(entries("one\\\n/two\\\nthree\nfour"), [message("one\n/two\nthree"), message("four")]);
    }

    #[test]
    fn a_fenced_block_is_one_message_with_its_blank_lines() {
        assert_eq!(entries("\"\"\"\none\n\n/two\\\n\"\"\"\nx"), [message("one\n\n/two\\"), message("x")]);
        assert_eq!(entries("\"\"\"one\ntwo\"\"\""), [message("one\ntwo")]);
        assert_eq!(entries("\"\"\"one\"\"\""), [message("one")]);
        assert_eq!(entries("\"\"\"\n\"\"\""), []);
    }

    #[test]
    fn commands_take_the_rest_of_their_line() {
        assert_eq!(
            entries("/system  You are a cat. \n/system\n/save\n/bye\n/hlep me"),
            [
                Entry::Command(Command::System(Some("You are a cat.".to_owned()))),
                Entry::Command(Command::System(None)),
                Entry::Unknown("/save".to_owned()),
                Entry::Command(Command::Quit),
                Entry::Unknown("/hlep me".to_owned()),
            ]
        );
    }

    #[test]
    fn what_was_begun_can_be_dropped() {
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push("\"\"\""), None);
        assert!(assembler.is_open());
        assembler.discard();
        assert_eq!(assembler.push("x"), Some(message("x")));
    }
}
