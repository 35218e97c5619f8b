//! HTTP.
//!
//! | module | what |
//! |---|---|
//! | `router` | paths, and what stands before them: keys, Host and Origin, counting |
//! | `listener` | connections: accepted, served, ended |
//! | `connections` | which connection goes when another needs its place |
//! | `socket` | a connection's bytes: clients that take nothing, an end that keeps the answer |
//! | `descriptors` | how many connections the limit of open files leaves room for |
//! | `body` | a request's body: its limit, its time, and what all bodies take together |
//! | `auth` | API keys |
//! | `origin` | Host and Origin |
//! | `error` | errors in OpenAI's shape |
//! | `status` | how engines and requests fare |
//! | `sse` | server-sent events |
//! | `streams` | streamed answers: made by a task each, read by the responses, resumed |
//! | `random_id` | ids that nobody can guess |
//! | `health`, `metrics` | for load balancers and Prometheus |
//! | `openai` | OpenAI's endpoints |

mod auth;
pub(crate) mod body;
mod connections;
pub(crate) mod descriptors;
pub(crate) mod error;
mod health;
pub(crate) mod listener;
pub(crate) mod metrics;
mod openai;
mod origin;
mod random_id;
pub(crate) mod router;
mod socket;
pub(crate) mod sse;
mod status;
pub(crate) mod streams;

pub(crate) use auth::ApiKeys;
pub(crate) use openai::adopt::adopt;
pub use openai::parse_request;
pub(crate) use origin::Callers;
pub(crate) use random_id::RandomId;
pub(crate) use streams::{Reader, Streams};
