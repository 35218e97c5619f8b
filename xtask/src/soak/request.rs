//! What is asked for: a pool of distinct requests, drawn from the seed.

use serde_json::{Map, Value, json};

use super::draw::Draw;

/// Tokens of a prompt and an answer together.
pub(super) const CONTEXT: u64 = 1024;
/// Tokens of an answer: few, so that every client gets on between many faults.
const ANSWER: std::ops::RangeInclusive<u64> = 20..=120;
const CHATS: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Short and frequent: a token each in vocabularies of thousands.
const WORDS: [&str; 16] = [
    "rain", "a", "small", "cat", "ran", "over", "the", "old", "green", "hill", "and", "slept", "it", "was",
    "very", "happy",
];
/// Some of these come in stories, so that answers end by them, and some never do.
const STOPS: [&str; 6] = [" the", ".", " and she", "happy", "\n\n", "zebra"];

/// Something to ask for.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Its number in the pool, and what is special about it.
    pub(super) name: String,
    pub(super) path: &'static str,
    /// Without `stream`.
    pub(super) body: Map<String, Value>,
}

/// The pool of a seed.
pub(super) fn pool(seed: u64, len: u64) -> Vec<Request> {
    (0..len).map(|number| request(&mut Draw::new(seed, "request", number), number)).collect()
}

impl Request {
    /// Sequences that it is to the server.
    pub(super) fn sequences(&self) -> u64 {
        self.body.get("n").and_then(Value::as_u64).unwrap_or(1)
    }

    /// The body to send. A stream's usage is asked for, so that the same can be compared in both forms.
    pub(super) fn body(&self, stream: bool) -> Value {
        let mut body = self.body.clone();
        if stream {
            body.insert("stream".to_owned(), json!(true));
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        Value::Object(body)
    }
}

fn request(draw: &mut Draw, number: u64) -> Request {
    let words = prompt_words(draw);
    let prompt = (0..words).map(|_| *draw.pick(&WORDS)).collect::<Vec<_>>().join(" ");
    let is_chat = draw.percent(50);
    let mut body = Map::new();
    body.insert("model".to_owned(), json!("any"));
    if is_chat {
        body.insert("messages".to_owned(), json!([{"role": "user", "content": prompt}]));
    } else {
        body.insert("prompt".to_owned(), json!(prompt));
    }
    body.insert("seed".to_owned(), json!(draw.seed()));
    body.insert("max_tokens".to_owned(), json!(draw.within(ANSWER)));
    body.extend(sampling(draw));
    let mut name =
        format!("request {number}: {} of {words} words", if is_chat { "chat" } else { "completion" });
    let mut also = |what: &str, fields: Value| {
        name += ", ";
        name += what;
        if let Value::Object(fields) = fields {
            body.extend(fields);
        }
    };
    if draw.percent(50) {
        let likeliest = draw.within(0..=5);
        let fields = json!({"logprobs": true, "top_logprobs": likeliest});
        also("logprobs", if is_chat { fields } else { json!({ "logprobs": likeliest }) });
        if !is_chat && draw.percent(20) {
            also("echo", json!({"echo": true}));
        }
    }
    if draw.percent(60) {
        also("no end token", json!({"ignore_eos": true}));
    }
    if draw.percent(25) {
        also("stop strings", json!({"stop": [draw.pick(&STOPS), draw.pick(&STOPS)]}));
    }
    if draw.percent(15) {
        also("two choices", json!({"n": 2}));
    }
    Request { name, path: if is_chat { CHATS } else { COMPLETIONS }, body }
}

/// A few words, some hundred, or close to the context.
fn prompt_words(draw: &mut Draw) -> u64 {
    match draw.within(0..=9) {
        0..=5 => draw.within(2..=25),
        6..=8 => draw.within(50..=250),
        _ => draw.within(500..=750),
    }
}

fn sampling(draw: &mut Draw) -> Map<String, Value> {
    let mut fields = Map::new();
    if draw.percent(25) {
        fields.insert("temperature".to_owned(), json!(0));
        return fields;
    }
    fields.insert("temperature".to_owned(), json!(draw.within(5..=12) as f64 / 10.0));
    let further = [
        (30, "top_p", json!(0.9)),
        (30, "top_k", json!(40)),
        (20, "min_p", json!(0.05)),
        (20, "repetition_penalty", json!(1.1)),
        (20, "presence_penalty", json!(0.5)),
    ];
    for (percent, field, value) in further {
        if draw.percent(percent) {
            fields.insert(field.to_owned(), value);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_requests_and_another_one_others() {
        let bodies = |seed| pool(seed, 40).into_iter().map(|request| request.body(true)).collect::<Vec<_>>();
        assert_eq!(bodies(1), bodies(1));
        assert!(bodies(1).iter().zip(bodies(2)).all(|(one, other)| *one != other));
    }

    #[test]
    fn a_pool_has_requests_of_all_kinds() {
        let pool = pool(3, 64);
        let having = |field: &str| pool.iter().filter(|request| request.body.contains_key(field)).count();
        for field in ["messages", "prompt", "logprobs", "stop", "n", "echo", "top_k", "ignore_eos"] {
            assert!((1..64).contains(&having(field)), "{field}: {}", having(field));
        }
        assert!(pool.iter().any(|request| request.sequences() == 2));
    }
}
