//! A made-up server: a program that acts like llama-server, or like one that has nothing but OpenAI's API, and that fails in
//! the ways that users report. It is this test program itself, started once more.
//!
//! | module | what |
//! |---|---|
//! | `mod.rs` | its plan: what it acts like, and how each of its processes fails |
//! | `model` | tokens, and which one follows |
//! | `http` | requests and answers |
//! | `serving` | its endpoints |

mod http;
mod model;
mod serving;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Variable with the plan's file.
const PLAN: &str = "UNFAZED_MADE_UP_PLAN";

/// What it acts like, and how its processes fail, one after the other; those beyond the list do not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// It has llama-server's own endpoints.
    pub(crate) llama: bool,
    /// Its chat thinks before it answers.
    pub(crate) thinks: bool,
    pub(crate) lives: Vec<Life>,
}

/// How a process fails.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Life {
    /// Once it has computed so many tokens for requests.
    pub(crate) after: usize,
    pub(crate) does: Does,
}

/// What it does then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Does {
    /// It goes on.
    #[default]
    Nothing,
    /// It ends as by an exception that nobody catches.
    Abort,
    /// The same behind a request's last token, before it says that it was the last.
    AbortAtEnd,
    /// It ends with an exit code.
    Exit,
    /// It computes nothing more, and answers all the same.
    Hang,
    /// The same, and says that the driver takes no more work.
    SubmissionsIgnored,
    /// Every request fails from then on, and it says what would have to be done.
    DeviceFails,
    /// It is up and never computes anything.
    Mute,
    /// It dies of each request about poison.
    DiesOfPoison,
    /// One request fails for a reason of its own.
    FailsOnce,
    /// It is never up.
    NeverUp,
}

impl Life {
    pub(crate) fn new(after: usize, does: Does) -> Life {
        Life { after, does }
    }
}

/// The command line that starts one, and the environment for it.
pub(crate) fn command(folder: &Path, plan: &Plan) -> (Vec<String>, (String, String)) {
    let file = folder.join("plan.json");
    std::fs::write(&file, serde_json::to_string(plan).unwrap()).unwrap();
    let program = std::env::current_exe().unwrap().display().to_string();
    // To the test runner the port is one more filter, which nothing matches.
    let words = ["--exact", "--include-ignored", "--nocapture", "made_up::a_made_up_server", "{port}"];
    let line = std::iter::once(program).chain(words.map(str::to_owned)).collect();
    (line, (PLAN.to_owned(), file.display().to_string()))
}

/// What the undisturbed server answers to a prompt that was read as `tokens`.
pub(crate) fn text_behind(prompt: &str, tokens: usize) -> String {
    let mut all = model::read(prompt);
    let begin = all.len();
    for _ in 0..tokens {
        let next = model::next(&all);
        all.push(next);
    }
    model::text(&all[begin..])
}

/// The same of a chat with one message.
pub(crate) fn chat_text(message: &str, tokens: usize) -> String {
    text_behind(&serving::render(&serde_json::json!([{"role": "user", "content": message}])), tokens)
}

/// Counts this process, from 0.
fn number_of_this_life(plan: &Path) -> usize {
    let counter = plan.with_extension("lives");
    let lives = std::fs::read_to_string(&counter).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    std::fs::write(counter, (lives + 1).to_string()).unwrap();
    lives
}

#[test]
#[ignore = "a program that other tests start"]
fn a_made_up_server() {
    let path = std::env::var(PLAN).expect("other tests start this one, with a plan");
    let plan: Plan = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let life = plan.lives.get(number_of_this_life(Path::new(&path))).cloned().unwrap_or_default();
    let port = std::env::args().next_back().unwrap().parse().unwrap();
    serving::serve(port, plan, life);
}

/// A field of a JSON object, or null.
fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}
