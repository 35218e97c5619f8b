//! API keys.

use axum::http::{HeaderMap, header};
use serde::{Deserialize, Serialize};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use twox_hash::XxHash3_64;

use super::error::ApiError;

/// Who sent a request: a digest of the API key, which tells keys apart, in another process and order as well. 0 where none
/// is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Caller(u64);

/// The keys that are let in.
#[derive(Clone, Default)]
pub(crate) struct ApiKeys(Vec<(String, Caller)>);

impl ApiKeys {
    /// No keys let everybody in.
    pub(crate) fn new(keys: Vec<String>) -> ApiKeys {
        let caller = |key: &String| Caller(XxHash3_64::oneshot(key.as_bytes()).max(1));
        ApiKeys(keys.into_iter().map(|key| (caller(&key), key)).map(|(caller, key)| (key, caller)).collect())
    }

    /// Looks for a key in `Authorization: Bearer` or `x-api-key`, and says whose it is.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.0.is_empty() {
            return Ok(Caller::default());
        }
        match sent_key(headers) {
            None => Err(ApiError::unauthorized(
                "an API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            )),
            Some(key) => self.find(key).ok_or_else(|| ApiError::unauthorized("the API key is not known")),
        }
    }

    /// Compares with every key, without an early end, so that the time taken tells nothing but lengths.
    fn find(&self, sent: &[u8]) -> Option<Caller> {
        let mut found = Caller::default().0;
        for (known, caller) in &self.0 {
            found.conditional_assign(&caller.0, known.as_bytes().ct_eq(sent));
        }
        (found != Caller::default().0).then_some(Caller(found))
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
