//! From tokens to what a client may see.
//!
//! | module | what |
//! |---|---|
//! | `stop` | finds stop strings in text that comes in pieces |
//! | `visible` | one sequence's tokens as visible text and log probabilities |

mod stop;
mod visible;

pub(crate) use stop::StopStrings;
pub(crate) use visible::{Piece, Scored, Visible};
