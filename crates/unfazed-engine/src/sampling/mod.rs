//! From logits to a token, and to log probabilities.
//!
//! | module | what |
//! |---|---|
//! | [`settings`] | which settings make sense |
//! | [`adjust`] | bias and penalties, before anything is chosen |
//! | [`select`] | the most likely tokens in order, without sorting the vocabulary |
//! | [`sampler`] | temperature, top-k, top-p, min-p and the choice |
//! | [`philox`] | the random draw: a function of (seed, choice, position) |
//! | [`logprobs`] | log probabilities of the model's own distribution |
//!
//! All of it is deterministic to the bit on every machine: sums have a fixed order, exp and log are those of
//! `unfazed-kernels`, ties go to the lower token id.

pub mod adjust;
pub mod logprobs;
pub mod philox;
pub mod sampler;
pub mod select;
pub mod settings;
mod weights;

pub use adjust::Occurrences;
pub use logprobs::token_logprobs;
pub use sampler::Sampler;
