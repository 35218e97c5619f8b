//! The fields that chat and completions have in common.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use unfazed_wire::{MOST_REPEAT_STOP_TOKENS, Penalties, Sampling};

use super::super::error::ApiError;
use super::fields::{Fields, unexpected};

/// Most choices of a prompt.
const MAX_CHOICES: u64 = 128;
/// Most stop strings; OpenAI takes 4.
const MAX_STOPS: usize = 16;
/// Longest stop string, in bytes: it bounds the text held back.
const MAX_STOP_BYTES: usize = 256;
/// Most tokens whose log probabilities are shown beside each other.
pub(crate) const MAX_TOP_LOGPROBS: u64 = 20;
/// Largest bias; makes a token certain or impossible.
const MAX_BIAS: f32 = 100.0;

/// Repetition penalties that are taken. The engine takes no smaller one: a request that it refuses is a 500.
const REPETITION: RangeInclusive<f32> = 1e-6..=10.0;

/// Fields whose answers would be wrong if they were ignored.
const UNSUPPORTED: [&str; 6] =
    ["grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "structured_outputs"];

/// How a request wants its answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) stream: bool,
    /// The stream ends with usage.
    pub(crate) include_usage: bool,
    /// Choices for each prompt.
    pub(crate) choices: usize,
    pub(crate) stops: Vec<String>,
    pub(crate) ignore_eos: bool,
    /// Tokens within which a repetition ends the answer, 0 for none; `None` leaves it to the server's setting.
    pub(crate) repeat_stop_tokens: Option<usize>,
    /// Most tokens of an answer; `None` leaves it to the endpoint.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) sampling: Sampling,
}

impl Settings {
    /// Reads and checks the fields. `vocab` bounds the tokens that may be biased.
    pub(crate) fn read(fields: &Fields<'_>, vocab: usize) -> Result<Settings, ApiError> {
        refuse_unsupported(fields)?;
        fields.get::<String>("model", "the model's name")?;
        let max_tokens = match max_tokens(fields, "max_completion_tokens")? {
            None => max_tokens(fields, "max_tokens")?,
            most => most,
        };
        Ok(Settings {
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage: include_usage(fields)?,
            choices: fields.integer("n", 1..=MAX_CHOICES)?.unwrap_or(1) as usize,
            stops: stops(fields)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            repeat_stop_tokens: repeat_stop_tokens(fields)?,
            max_tokens,
            sampling: sampling(fields, vocab)?,
        })
    }
}

/// llama.cpp's word for as many as the context leaves is -1.
fn max_tokens(fields: &Fields<'_>, name: &str) -> Result<Option<usize>, ApiError> {
    if fields.get::<i64>(name, "a whole number").is_ok_and(|most| most == Some(-1)) {
        return Ok(Some(usize::MAX));
    }
    let most = fields.integer(name, 0..=u64::MAX)?;
    Ok(most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)))
}

/// A pattern that stands three times takes three tokens.
fn repeat_stop_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    const NAME: &str = "repeat_stop_tokens";
    match fields.integer(NAME, 0..=MOST_REPEAT_STOP_TOKENS as u64)? {
        Some(tokens @ 1..3) => {
            let expected = format!("0 or a whole number from 3 to {MOST_REPEAT_STOP_TOKENS}");
            Err(unexpected(NAME, &tokens.to_string(), &expected))
        }
        tokens => Ok(tokens.map(|tokens| tokens as usize)),
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    for name in UNSUPPORTED {
        if fields.has(name) {
            return Err(ApiError::unsupported(name, format!("{name} is not supported")));
        }
    }
    let format: Option<BTreeMap<String, serde_json::Value>> =
        fields.get("response_format", "an object with a type")?;
    match format.as_ref().map(|format| format.get("type")) {
        None => Ok(()),
        Some(Some(serde_json::Value::String(kind))) if kind == "text" => Ok(()),
        Some(kind) => {
            let kind = kind.map_or("missing".to_owned(), ToString::to_string);
            let message = format!("response_format.type is {kind}: only \"text\" is supported");
            Err(ApiError::unsupported("response_format", message))
        }
    }
}

fn include_usage(fields: &Fields<'_>) -> Result<bool, ApiError> {
    #[derive(serde::Deserialize)]
    struct StreamOptions {
        include_usage: Option<bool>,
    }
    let expected = "an object whose include_usage is true or false";
    let options: Option<StreamOptions> = fields.get("stream_options", expected)?;
    Ok(options.and_then(|options| options.include_usage).unwrap_or(false))
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Stop {
        One(String),
        Several(Vec<String>),
    }
    let stops = match fields.get("stop", "a string or a list of strings")? {
        None => return Ok(Vec::new()),
        Some(Stop::One(stop)) => vec![stop],
        Some(Stop::Several(stops)) => stops,
    };
    if stops.len() > MAX_STOPS {
        let message = format!("stop has {} strings: at most {MAX_STOPS} are taken", stops.len());
        return Err(ApiError::field("stop", message));
    }
    for stop in &stops {
        if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
            let message =
                format!("stop has a string of {} bytes: 1 to {MAX_STOP_BYTES} are taken", stop.len());
            return Err(ApiError::field("stop", message));
        }
    }
    Ok(stops)
}

fn sampling(fields: &Fields<'_>, vocab: usize) -> Result<Sampling, ApiError> {
    let repetition = match fields.number("repetition_penalty", REPETITION)? {
        None => fields.number("repeat_penalty", REPETITION)?,
        penalty => penalty,
    };
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
        // llama.cpp's word for all is 0, the one of others -1.
        top_k: fields
            .get::<i64>("top_k", "a whole number")?
            .map_or(0, |k| u32::try_from(k.max(0)).unwrap_or(0)),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
        penalties: Penalties {
            repetition: repetition.unwrap_or(1.0),
            presence: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            frequency: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        },
        logit_bias: logit_bias(fields, vocab)?,
        seed: seed(fields)?,
        choice: 0,
    })
}

/// The seed that was sent, else a random one. Negative ones are seeds too.
fn seed(fields: &Fields<'_>) -> Result<u64, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Seed {
        Positive(u64),
        Negative(i64),
    }
    match fields.get("seed", "a whole number of 64 bits")? {
        Some(Seed::Positive(seed)) => Ok(seed),
        Some(Seed::Negative(seed)) => Ok(seed.cast_unsigned()),
        None => getrandom::u64().map_err(|error| ApiError::internal(format!("no random seed: {error}"))),
    }
}

fn logit_bias(fields: &Fields<'_>, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let expected = "an object of token ids and numbers from -100 to 100";
    let biases: Option<BTreeMap<String, f32>> = fields.get("logit_bias", expected)?;
    let checked = biases.unwrap_or_default().into_iter().map(|(token, bias)| {
        let id = token.parse().ok().filter(|id| (*id as usize) < vocab);
        match id {
            Some(id) if (-MAX_BIAS..=MAX_BIAS).contains(&bias) => Ok((id, bias)),
            Some(_) => {
                Err(unexpected("logit_bias", &format!("{token}: {bias}"), "a number from -100 to 100"))
            }
            None => {
                let expected = format!("a token id below {vocab}");
                Err(unexpected("logit_bias", &format!("{token:?}: {bias}"), &expected))
            }
        }
    });
    // Two texts may be one id.
    checked.collect::<Result<BTreeMap<u32, f32>, ApiError>>().map(|biases| biases.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Settings, String> {
        let fields = Fields::parse(body.as_bytes()).unwrap();
        Settings::read(&fields, 100)
            .map_err(|error| error.body()["error"]["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn defaults_are_openais() {
        let settings = read("{}").unwrap();
        let seed = settings.sampling.seed;
        assert_eq!(settings.sampling, Sampling { seed, ..Sampling::default() });
        assert_eq!((settings.choices, settings.stream, settings.max_tokens), (1, false, None));
        assert_ne!(seed, read("{}").unwrap().sampling.seed);
    }

    #[test]
    fn every_spelling_of_a_setting_is_read() {
        let settings =
            read(r#"{"repeat_penalty": 1.5, "top_k": -1, "seed": -1, "stop": "x", "max_tokens": 3}"#)
                .unwrap();
        assert_eq!(settings.sampling.penalties.repetition, 1.5);
        assert_eq!((settings.sampling.top_k, settings.sampling.seed), (0, u64::MAX));
        assert_eq!((settings.stops, settings.max_tokens), (vec!["x".to_owned()], Some(3)));
        for (body, tokens) in [
            ("{}", None),
            (r#"{"repeat_stop_tokens": 0}"#, Some(0)),
            (r#"{"repeat_stop_tokens": 3}"#, Some(3)),
        ] {
            assert_eq!(read(body).unwrap().repeat_stop_tokens, tokens);
        }
        let settings =
            read(r#"{"logit_bias": {"7": -100, "9": 1}, "max_tokens": 3, "max_completion_tokens": 4}"#);
        let settings = settings.unwrap();
        assert_eq!(settings.sampling.logit_bias, [(7, -100.0), (9, 1.0)]);
        assert_eq!(settings.max_tokens, Some(4));
        assert_eq!(read(r#"{"max_tokens": -1}"#).unwrap().max_tokens, Some(usize::MAX));
    }

    #[test]
    fn what_is_out_of_range_or_unsupported_is_refused_by_name_and_value() {
        for (body, name, value) in [
            (r#"{"temperature": 3}"#, "temperature", "3"),
            (r#"{"temperature": 1e400}"#, "temperature", "1e400"),
            (r#"{"n": 0}"#, "n", "0"),
            (r#"{"repeat_stop_tokens": 2}"#, "repeat_stop_tokens", "2"),
            (r#"{"repeat_stop_tokens": 4097}"#, "repeat_stop_tokens", "4097"),
            (r#"{"repeat_stop_tokens": -1}"#, "repeat_stop_tokens", "-1"),
            (r#"{"stop": ""}"#, "stop", "0 bytes"),
            (r#"{"stop": [1]}"#, "stop", "[1]"),
            (r#"{"logit_bias": {"100": 1}}"#, "logit_bias", "100"),
            (r#"{"logit_bias": {"1": 101}}"#, "logit_bias", "101"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty", "0"),
            (r#"{"repeat_penalty": 1e-7}"#, "repeat_penalty", "1e-7"),
            (r#"{"response_format": {"type": "json_object"}}"#, "response_format", "json_object"),
            (r#"{"grammar": "root ::= x"}"#, "grammar", "not supported"),
            (r#"{"max_tokens": -2}"#, "max_tokens", "-2"),
            (r#"{"max_tokens": 18446744073709551616}"#, "max_tokens", "from 0 to 18446744073709551615"),
            (r#"{"model": 1}"#, "model", "1"),
            (r#"{"stream_options": {"include_usage": "yes"}}"#, "stream_options", "yes"),
        ] {
            let message = read(body).unwrap_err();
            assert!(message.contains(name) && message.contains(value), "{body}: {message}");
        }
        assert!(read(r#"{"response_format": {"type": "text"}}"#).is_ok());
    }
}
