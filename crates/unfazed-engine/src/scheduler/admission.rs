//! Which requests can be served at all. The front checks the same before it accepts a request; what is refused here is
//! a fault of the front, said by name.

use unfazed_wire::Submit;

use super::Limits;
use crate::sampling::settings;

/// Most tokens of which log probabilities are given at a position. The largest number that an API asks for is 20.
const MOST_LOGPROBS: u32 = 1024;

/// Says what is wrong with a request, if anything.
pub(crate) fn check(submit: &Submit, limits: &Limits) -> Result<(), String> {
    let Limits { context, vocab, .. } = *limits;
    let prompt = &submit.prompt;
    if prompt.is_empty() {
        return Err("the prompt is empty: it needs at least one token".to_owned());
    }
    if prompt.len() > context {
        return Err(format!("the prompt has {} tokens, the context holds {context}", prompt.len()));
    }
    let verified = submit.resumed.as_ref().map_or(&[][..], |progress| &progress.tokens);
    let told = submit.resumed.as_ref().map_or(0, |progress| progress.prompt_logprobs);
    if told >= prompt.len() {
        let count = prompt.len();
        return Err(format!("log probabilities of {told} prompt tokens were told, it has {count}"));
    }
    let room = submit.max_tokens.min(context - prompt.len());
    if verified.len() > room {
        let count = verified.len();
        return Err(format!("{count} tokens of the answer are given, it can have {room}"));
    }
    let tokens = prompt.iter().chain(verified);
    if let Some((position, token)) = tokens.enumerate().find(|(_, token)| **token as usize >= vocab) {
        return Err(format!("token {token} at position {position} is not in the vocabulary of {vocab}"));
    }
    for (field, count) in [("logprobs", submit.logprobs), ("prompt_logprobs", submit.prompt_logprobs)] {
        if let Some(count) = count.filter(|count| *count > MOST_LOGPROBS) {
            return Err(format!("{field} is {count}: it must be at most {MOST_LOGPROBS}"));
        }
    }
    settings::check(&submit.sampling, vocab)
}
