//! The HTTP layer against an engine inside the test's process that speaks the wire protocol and answers by a script.

mod chat;
mod completions;
mod fake_engine;
mod lifecycle;
mod refusals;
mod server;
