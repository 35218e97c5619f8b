//! API keys.

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};

use super::error::ApiError;

/// The keys that are let in.
#[derive(Clone, Default)]
pub(crate) struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// No keys let everybody in.
    pub(crate) fn new(keys: Vec<String>) -> ApiKeys {
        ApiKeys(keys)
    }

    /// Looks for a key in `Authorization: Bearer` or `x-api-key`.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        match sent_key(headers) {
            None => Err(ApiError::unauthorized(
                "an API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            )),
            Some(key) if self.holds(key) => Ok(()),
            Some(_) => Err(ApiError::unauthorized("the API key is not known")),
        }
    }

    /// Compares with every key, without an early end, so that the time taken tells nothing but lengths.
    fn holds(&self, sent: &[u8]) -> bool {
        let equal = |known: &String| known.as_bytes().ct_eq(sent);
        self.0.iter().fold(Choice::from(0), |any, known| any | equal(known)).into()
    }
}

fn sent_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn check(name: &'static str, value: &'static str) -> bool {
        let keys = ApiKeys::new(vec!["first".to_owned(), "second".to_owned()]);
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        keys.check(&headers).is_ok()
    }

    #[test]
    fn each_key_is_let_in_by_either_header_and_nothing_else_is() {
        assert!(check("authorization", "Bearer first"));
        assert!(check("authorization", "bearer second"));
        assert!(check("x-api-key", "second"));
        for wrong in
            ["", "Bearer ", "Bearer firs", "Bearer firstt", "Basic first", "first", "Bearer first second"]
        {
            assert!(!check("authorization", wrong), "{wrong}");
        }
        assert!(ApiKeys::default().check(&HeaderMap::new()).is_ok());
    }
}
