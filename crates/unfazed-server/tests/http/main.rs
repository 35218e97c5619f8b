//! The HTTP layer against an engine inside the test's process that speaks the wire protocol and answers by a script.

// Clippy exempts test functions by itself, and not what they call. Bodies are written in place, as `json!(...)`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::needless_pass_by_value)]

mod bounds;
mod chat;
mod completions;
mod deaths;
mod fake_engine;
mod lifecycle;
mod refusals;
mod server;
mod streams;
