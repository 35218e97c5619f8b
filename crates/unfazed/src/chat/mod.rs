//! The chat in the terminal.
//!
//! | module | what |
//! |---|---|
//! | [`endpoint`] | which server: address and key |
//! | [`client`] | one request to it, and the answer as it comes |
//! | [`input`] | what a person types: messages of several lines, commands |
//! | [`session`] | the conversation |
//! | [`terminal`] | the loop of reading and answering |

pub(crate) mod client;
pub(crate) mod endpoint;
mod input;
pub(crate) mod session;
pub(crate) mod terminal;
