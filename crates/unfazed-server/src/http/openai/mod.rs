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
//! | `choice` | one sequence from its submission to its end |
//! | `answer` | all choices of a request, as one body or as a stream |
//! | `response` | usage, timings, ids and the rest that both endpoints answer with |
//! | `logprobs` | log probabilities in both endpoints' shapes |

mod answer;
pub(crate) mod chat;
mod choice;
pub(crate) mod completions;
mod fields;
mod logprobs;
mod messages;
pub(crate) mod models;
mod prepare;
mod prompts;
mod response;
mod settings;
