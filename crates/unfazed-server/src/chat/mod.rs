//! Chat templates: messages to a prompt, with a user's text kept apart from the template's.
//!
//! | module | what |
//! |---|---|
//! | [`template`] | [`ChatTemplate`]: a model's template, and what it is given |
//! | `rendering` | a compiled template that is run in this process: work, memory, output and time are bounded |
//! | `process` | renderings in processes of their own, which can be ended |
//! | `renderer` | such a process |
//! | `frames` | what is said between them |
//! | `sentinels` | special-token text of a user, hidden from the template and from the tokenizer |
//! | `values` | requests' JSON as template values |
//! | `functions` | what Hugging Face's renderer offers to templates: `tojson`, `raise_exception`, ... |
//! | `python_json` | JSON as Python writes it |
//! | `error` | what can go wrong, with the template's line |
//!
//! # Whose special token is it?
//!
//! A template writes `<|im_start|>` and means the special token. A user who writes it means ten characters, or
//! tries to speak in somebody else's name. Both end up in one rendered string, so before rendering each
//! special-token text inside of the messages' strings is replaced by a *sentinel*: a private-use character that
//! occurs in neither the messages nor the template. The template may move it about, cut around it, put it into
//! JSON; afterwards each sentinel is turned back into its text, in a segment of its own that the tokenizer must
//! not parse ([`unfazed_tokenizer::SpecialText::Plain`]).
//!
//! Text that only *begins* or *ends* like a special token is guarded too, so that two strings of a user, or a
//! string and the template's text, don't make one where they meet, and so are roles that are not
//! known as such (`'<|' + message.role + '|>'` is how some templates write `<|user|>`). What stays out of reach is
//! a template that deletes characters from the middle of a user's text.
//!
//! A template that asks whether a message contains a special token is told no: to it, the text isn't there.
//! Tokens that steer thinking or tools (`</think>`, `<tool_call>`) are ordinary added tokens in the models that
//! have them, so templates that split answers at them work as everywhere.

mod error;
mod frames;
mod functions;
mod process;
mod python_json;
mod renderer;
mod rendering;
mod sentinels;
pub mod template;
#[cfg(test)]
mod tests;
mod values;

pub use error::TemplateError;
pub use renderer::render_templates;
pub use rendering::Limits;
pub use template::{ChatTemplate, RenderOptions};
