//! The prompts of a completion: text, token ids, or a list of either.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// One or several of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

/// What `prompt` may be, for errors.
pub(crate) const EXPECTED: &str = "a string, a list of token ids, or a list of at most 4096 of either";
/// Most prompts that are read. How many a server takes at a time is checked later, and is less.
const MAX_PROMPTS: usize = 4096;

/// An element of the list: a token of the only prompt, or a prompt of several.
enum Element {
    Token(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Prompts, A::Error> {
                let (mut tokens, mut prompts) = (Vec::new(), Vec::new());
                while let Some(element) = elements.next_element()? {
                    match element {
                        Element::Token(token) => tokens.push(token),
                        Element::Prompt(prompt) => prompts.push(prompt),
                    }
                    if prompts.len() > MAX_PROMPTS {
                        return Err(A::Error::custom("too many prompts"));
                    }
                    if !tokens.is_empty() && !prompts.is_empty() {
                        return Err(A::Error::custom("token ids beside prompts"));
                    }
                }
                if prompts.is_empty() {
                    prompts.push(Prompt::Tokens(tokens));
                }
                Ok(Prompts(prompts))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id or a prompt")
            }

            fn visit_u64<E: Error>(self, token: u64) -> Result<Element, E> {
                let token = u32::try_from(token).map_err(|_| E::custom("a token id of more than 32 bits"))?;
                Ok(Element::Token(token))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Element, A::Error> {
                let mut tokens = Vec::new();
                while let Some(token) = elements.next_element()? {
                    tokens.push(token);
                }
                Ok(Element::Prompt(Prompt::Tokens(tokens)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Option<Vec<Prompt>> {
        serde_json::from_str::<Prompts>(json).ok().map(|prompts| prompts.0)
    }

    #[test]
    fn text_token_ids_and_lists_of_either_are_prompts() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(parse(r#""a\n""#), Some(vec![text("a\n")]));
        assert_eq!(parse("[1, 2]"), Some(vec![Prompt::Tokens(vec![1, 2])]));
        assert_eq!(parse(r#"["a", "b"]"#), Some(vec![text("a"), text("b")]));
        assert_eq!(parse("[[1], [2, 3]]"), Some(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]));
        assert_eq!(parse("[]"), Some(vec![Prompt::Tokens(vec![])]));
    }

    #[test]
    fn what_is_neither_is_no_prompt() {
        for json in ["1", "{}", "[1, \"a\"]", "[[\"a\"]]", "[-1]", "[4294967296]", "[1.5]", "[[[1]]]", "true"]
        {
            assert_eq!(parse(json), None, "{json}");
        }
        assert_eq!(parse(&format!("[{}\"\"]", "\"\",".repeat(MAX_PROMPTS))), None);
    }
}
