//! Whether an answer is the undisturbed one.

use serde_json::Value;

use super::answer::{Answer, Choice};

/// Characters of a text that a difference is shown with.
const SHOWN: usize = 60;

/// Judges an answer that ran to its end. `Err` says how a client can tell it from the undisturbed one.
pub(super) fn whole(expected: &Answer, got: &Answer) -> Result<(), String> {
    sound(got)?;
    if got.ends == 0 {
        return Err("the final event is missing".to_owned());
    }
    for (index, expected) in &expected.choices {
        let of = format!("choice {index}");
        let got = got.choices.get(index).ok_or_else(|| format!("{of} is missing"))?;
        same_beginning(expected, got).map_err(|how| format!("{of}: {how}"))?;
        if got.tokens.len() != expected.tokens.len() {
            return Err(format!("{of}: {} tokens, not {}", got.tokens.len(), expected.tokens.len()));
        }
        if got.text != expected.text {
            return Err(format!("{of}: its text ends early, behind {}", shown(&got.text, got.text.len())));
        }
        if got.finish_reason != expected.finish_reason {
            return Err(format!("{of}: finish reason {}, not {}", got.finish_reason, expected.finish_reason));
        }
    }
    if got.choices.len() != expected.choices.len() {
        return Err(format!("{} choices, not {}", got.choices.len(), expected.choices.len()));
    }
    if got.usage != expected.usage {
        return Err(format!("usage {}, not {}", got.usage, expected.usage));
    }
    Ok(())
}

/// Judges what came before its client left: a beginning of the undisturbed answer.
pub(super) fn beginning(expected: &Answer, got: &Answer) -> Result<(), String> {
    sound(got)?;
    for (index, choice) in &got.choices {
        let of = format!("choice {index}");
        let expected = expected.choices.get(index).ok_or_else(|| format!("{of} is one too many"))?;
        same_beginning(expected, choice).map_err(|how| format!("{of}: {how}"))?;
    }
    Ok(())
}

/// Whether the server gave it up by name, rather than doing something that it never may.
pub(super) fn failed_by_name(got: &Answer) -> bool {
    !got.error.is_null()
}

fn sound(got: &Answer) -> Result<(), String> {
    if let Some(flaw) = got.flaws.first() {
        return Err(flaw.clone());
    }
    if !got.error.is_null() {
        return Err(format!("it failed: {}", got.error));
    }
    Ok(())
}

/// Says where the two part, if `got` is no beginning of `expected`.
fn same_beginning(expected: &Choice, got: &Choice) -> Result<(), String> {
    for (at, token) in got.tokens.iter().enumerate() {
        let expected = expected.tokens.get(at).unwrap_or(&Value::Null);
        if token != expected {
            return Err(format!("token {at} is {token}, not {expected}"));
        }
    }
    if !expected.text.starts_with(&got.text) {
        let at = got.text.bytes().zip(expected.text.bytes()).take_while(|(a, b)| a == b).count();
        return Err(format!(
            "text differs at byte {at}: {}, not {}",
            shown(&got.text, at + SHOWN / 2),
            shown(&expected.text, at + SHOWN / 2)
        ));
    }
    Ok(())
}

/// The end of a text's first `len` bytes.
fn shown(text: &str, len: usize) -> String {
    let mut end = len.min(text.len());
    let mut start = end.saturating_sub(SHOWN);
    while !text.is_char_boundary(end) {
        end += 1;
    }
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    format!("{:?}", text.get(start..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn part(text: &str, logprob: f64, finish_reason: Option<&str>) -> Value {
        let token = json!({"token": text, "bytes": text.as_bytes(), "logprob": logprob, "top_logprobs": []});
        let delta = json!({"content": text});
        json!({"choices": [{"index": 0, "delta": delta, "logprobs": {"content": [token]}, "finish_reason": finish_reason}]})
    }

    /// The chunks of a stream, but for its end.
    fn chunks() -> Vec<Value> {
        vec![
            part("Once", -0.5, None),
            part(" upon", -0.25, None),
            part(" a", -0.125, Some("length")),
            json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}),
        ]
    }

    fn answer(chunks: &[Value]) -> Answer {
        let mut answer = Answer::default();
        for chunk in chunks {
            answer.add(chunk);
        }
        answer.end();
        answer
    }

    /// What is said of the stream after a change.
    fn said(change: impl FnOnce(&mut Vec<Value>)) -> String {
        let mut changed = chunks();
        change(&mut changed);
        whole(&answer(&chunks()), &answer(&changed)).unwrap_err()
    }

    #[test]
    fn the_undisturbed_answer_passes_and_so_does_the_same_as_a_whole() {
        let expected = answer(&chunks());
        assert_eq!(whole(&expected, &answer(&chunks())), Ok(()));
        let content: Vec<Value> = chunks()
            .iter()
            .take(3)
            .map(|chunk| chunk["choices"][0]["logprobs"]["content"][0].clone())
            .collect();
        let body = json!({
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Once upon a"},
                "logprobs": {"content": content},
                "finish_reason": "length",
            }],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3},
        });
        assert_eq!(whole(&expected, &Answer::whole(&body)), Ok(()));
    }

    #[test]
    fn a_changed_token_is_found_and_its_place_told() {
        let how = said(|chunks| chunks[1] = part(" over", -0.25, None));
        assert!(how.starts_with("choice 0: token 1 is"), "{how}");
        let how = said(|chunks| chunks[1] = part(" upon", -0.250001, None));
        assert!(how.starts_with("choice 0: token 1 is"), "a log probability is part of a token: {how}");
        let without = |text: &str| json!({"choices": [{"index": 0, "text": text, "finish_reason": null}]});
        let differing =
            whole(&answer(&[without("Once upon a")]), &answer(&[without("Once over a")])).unwrap_err();
        assert!(differing.starts_with("choice 0: text differs at byte 5"), "{differing}");
    }

    #[test]
    fn a_token_too_few_or_too_many_is_found() {
        let how = said(|chunks| drop(chunks.remove(1)));
        assert!(how.starts_with("choice 0: token 1 is"), "{how}");
        let how = said(|chunks| chunks.insert(1, chunks[1].clone()));
        assert!(how.starts_with("choice 0: token 2 is"), "{how}");
        let how = said(|chunks| chunks.insert(3, part(" time", -1.0, None)));
        assert!(how.contains("had ended, then came"), "{how}");
    }

    #[test]
    fn a_doubled_final_event_is_found() {
        assert_eq!(said(|chunks| chunks.push(chunks[3].clone())), "usage came twice");
        let mut twice = answer(&chunks());
        twice.end();
        assert_eq!(whole(&answer(&chunks()), &twice), Err("the end came twice".to_owned()));
        let mut late = answer(&chunks());
        late.add(&part(" time", -1.0, None));
        assert!(whole(&answer(&chunks()), &late).unwrap_err().starts_with("after the end came"));
    }

    #[test]
    fn a_missing_final_event_is_found() {
        let mut endless = Answer::default();
        for chunk in chunks() {
            endless.add(&chunk);
        }
        assert_eq!(whole(&answer(&chunks()), &endless), Err("the final event is missing".to_owned()));
        let how = said(|chunks| chunks[2] = part(" a", -0.125, None));
        assert_eq!(how, "choice 0: finish reason null, not \"length\"");
        let how = said(|chunks| drop(chunks.pop()));
        assert!(how.starts_with("usage null, not"), "{how}");
        let empty = whole(&answer(&chunks()), &answer(&[])).unwrap_err();
        assert_eq!(empty, "choice 0 is missing");
    }

    #[test]
    fn an_error_is_a_loss_and_one_by_name() {
        let failed = answer(&[json!({"error": {"code": "engine_error", "message": "the engine failed"}})]);
        assert!(whole(&answer(&chunks()), &failed).unwrap_err().contains("engine_error"));
        assert!(failed_by_name(&failed));
        assert!(!failed_by_name(&answer(&chunks())));
    }

    #[test]
    fn what_a_client_got_before_it_left_has_to_be_a_beginning() {
        let expected = answer(&chunks());
        let mut left = Answer::default();
        left.add(&chunks()[0]);
        assert_eq!(beginning(&expected, &left), Ok(()));
        left.add(&part(" over", -0.25, None));
        assert!(beginning(&expected, &left).unwrap_err().starts_with("choice 0: token 1 is"));
    }
}
