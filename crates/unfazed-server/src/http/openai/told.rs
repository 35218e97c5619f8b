//! What an engine told of an answer's sequences, as it is kept: a JSON text for each piece of news.

use serde::{Deserialize, Serialize};
use unfazed_wire::{Failure, FinishReason, RequestId, Timings, TokenEvent, TokenLogprobs};

use crate::supervisor::{Interruption, Update};

/// News of one choice. Names are short as there is one for each token.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    #[serde(rename = "c", default, skip_serializing_if = "is_first")]
    choice: usize,
    #[serde(flatten)]
    told: Told,
}

fn is_first(choice: &usize) -> bool {
    *choice == 0
}

#[derive(Debug, Serialize, Deserialize)]
enum Told {
    #[serde(rename = "t")]
    Token(u32),
    #[serde(rename = "s")]
    Scored(Scores),
    #[serde(rename = "p")]
    Prompt(Vec<Scores>),
    #[serde(rename = "r")]
    Resumed(bool),
    #[serde(rename = "end")]
    Finished(FinishReason, Timings),
    #[serde(rename = "failed")]
    Failed(Failure),
    #[serde(rename = "ended")]
    Interrupted(Interruption),
}

/// A token with log probabilities: the bits of each, as JSON has no infinity.
#[derive(Debug, Serialize, Deserialize)]
struct Scores(u32, u32, Vec<(u32, u32)>);

impl From<&TokenLogprobs> for Scores {
    fn from(scores: &TokenLogprobs) -> Scores {
        let top = scores.top.iter().map(|(token, logprob)| (*token, logprob.to_bits()));
        Scores(scores.token, scores.logprob.to_bits(), top.collect())
    }
}

impl From<Scores> for TokenLogprobs {
    fn from(Scores(token, logprob, top): Scores) -> TokenLogprobs {
        let top = top.into_iter().map(|(token, logprob)| (token, f32::from_bits(logprob)));
        TokenLogprobs { token, logprob: f32::from_bits(logprob), top: top.collect() }
    }
}

/// The text of an update, without line breaks.
pub(super) fn write(choice: usize, update: &Update) -> Vec<u8> {
    let told = match update {
        Update::PromptLogprobs(tokens) => Told::Prompt(tokens.iter().map(Scores::from).collect()),
        Update::Token(TokenEvent { token, logprobs: None, .. }) => Told::Token(*token),
        Update::Token(TokenEvent { logprobs: Some(scores), .. }) => Told::Scored(scores.into()),
        Update::Resumed => Told::Resumed(true),
        Update::Finished(reason, timings) => Told::Finished(*reason, *timings),
        Update::Failed(failure) => Told::Failed(failure.clone()),
        Update::Interrupted(interruption) => Told::Interrupted(interruption.clone()),
    };
    // Numbers and strings, nothing that JSON refuses; an empty text would be dropped when it is read.
    serde_json::to_vec(&Entry { choice, told }).unwrap_or_default()
}

/// Which choice it is of and what was told; `None` if it is no such text.
pub(super) fn read(text: &[u8]) -> Option<(usize, Update)> {
    let Entry { choice, told } = serde_json::from_slice(text).ok()?;
    // Numbers of requests are those of one front.
    let request = RequestId(0);
    let update = match told {
        Told::Token(token) => Update::Token(TokenEvent { request, token, logprobs: None }),
        Told::Scored(scores) => {
            Update::Token(TokenEvent { request, token: scores.0, logprobs: Some(scores.into()) })
        }
        Told::Prompt(tokens) => Update::PromptLogprobs(tokens.into_iter().map(TokenLogprobs::from).collect()),
        Told::Resumed(_) => Update::Resumed,
        Told::Finished(reason, timings) => Update::Finished(reason, timings),
        Told::Failed(failure) => Update::Failed(failure),
        Told::Interrupted(interruption) => Update::Interrupted(interruption),
    };
    Some((choice, update))
}

#[cfg(test)]
mod tests {
    use unfazed_wire::FailureKind;

    use super::*;

    #[test]
    fn what_was_told_is_read_as_it_was_written_to_the_last_bit() {
        let scores =
            TokenLogprobs { token: 7, logprob: f32::NEG_INFINITY, top: vec![(3, -0.1), (7, f32::MIN)] };
        let token = |logprobs| Update::Token(TokenEvent { request: RequestId(0), token: 7, logprobs });
        let timings = Timings { predicted_ms: 0.1 + 0.2, ..Timings::default() };
        let updates = [
            token(None),
            token(Some(scores.clone())),
            Update::PromptLogprobs(vec![scores]),
            Update::Resumed,
            Update::Finished(FinishReason::Length, timings),
            Update::Failed(Failure { kind: FailureKind::Storage, message: "a\nb".to_owned() }),
            Update::Interrupted(Interruption::Quarantined("it".to_owned())),
        ];
        for (choice, update) in updates.iter().enumerate() {
            let text = write(choice, update);
            assert!(!text.contains(&b'\n'));
            let (read_choice, read_update) = read(&text).unwrap();
            assert_eq!((read_choice, format!("{read_update:?}")), (choice, format!("{update:?}")));
        }
        assert_eq!(write(0, &updates[0]), br#"{"t":7}"#);
        for other in [&b""[..], b"{", b"{}", b"{\"t\":-1}", b"[]", b"\xff"] {
            assert!(read(other).is_none());
        }
    }
}
