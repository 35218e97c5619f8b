//! OpenAI's endpoints.
//!
//! | module | what |
//! |---|---|
//! | `chat`, `completions`, `models` | one endpoint each |
//! | `fields` | a request's fields, read one by one |
//! | `settings` | the fields that both endpoints have |
//! | `messages` | a chat's messages, checked |
//! | `prompts` | a completion's prompts: text, token ids, lists of either |
//! | `prepare` | tokens counted against the context, settings made into sequences |
//! | `admission` | a request as it was let in, as it is kept |
//! | `told` | what engines told of it, as it is kept |
//! | `choice` | one sequence from its first token to its end |
//! | `making` | an answer that is being made of what engines tell |
//! | `forms` | all choices as one body or as a stream |
//! | `adopt` | an answer that another front began |
//! | `answer` | a request from its arrival to its response |
//! | `response` | usage, timings, ids and the rest that both endpoints answer with |
//! | `logprobs` | log probabilities in both endpoints' shapes |

pub(crate) mod admission;
pub(crate) mod adopt;
pub(crate) mod answer;
pub(crate) mod chat;
mod choice;
pub(crate) mod completions;
mod fields;
mod forms;
mod logprobs;
pub(crate) mod making;
mod messages;
pub(crate) mod models;
mod prepare;
mod prompts;
mod response;
mod settings;
mod told;

/// Reads a body as both endpoints do, chats first, without a model. The statuses of the errors.
pub fn parse_request(body: &[u8]) -> [Result<(), u16>; 2] {
    /// Token ids are below it.
    const VOCAB: usize = 1000;
    let chat = chat::Parsed::read(body, VOCAB).map(drop);
    let completion = completions::Parsed::read(body, VOCAB).map(drop);
    [chat, completion].map(|result| result.map_err(|error| error.status.as_u16()))
}
