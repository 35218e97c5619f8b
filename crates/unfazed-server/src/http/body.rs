//! A request's body: all of it, within its limit and its time.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::error::ApiError;

/// Reads a body to its end. One whose head says that it is over the limit is not waited for.
pub(crate) async fn read(body: Body, limit: usize, time: Duration) -> Result<Bytes, ApiError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(ApiError::too_large(limit));
    }
    let whole = tokio::time::timeout(time, Limited::new(body, limit).collect()).await;
    match whole {
        Err(_) => Err(ApiError::too_slow(format!("the body did not arrive within {} s", time.as_secs_f32()))),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        Ok(Err(error)) => Err(ApiError::malformed(format!("the body cannot be read: {error}"))),
    }
}
