//! Errors as clients see them, in OpenAI's shape: `{"error":{"message","type","param","code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use unfazed_wire::{Failure, FailureKind};

use crate::supervisor::{Interruption, Refused};

/// Seconds after which a client that was turned away for lack of room may try again.
const RETRY_AFTER_SECONDS: u32 = 2;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// OpenAI's and llama-server's names for whose fault it is.
    kind: &'static str,
    code: Option<&'static str>,
    /// The request's field, as a path.
    param: Option<String>,
    message: String,
    /// Seconds after which to try again.
    retry_after: Option<u32>,
    /// Prompt tokens (if they were counted) and context, where a prompt is too long.
    sizes: Option<(Option<usize>, usize)>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        let message = message.into();
        ApiError { status, kind, code: None, param: None, message, retry_after: None, sizes: None }
    }

    /// With another name.
    pub(crate) fn with_code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// 400: a field of the request holds what it must not.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        ApiError { param: Some(param.into()), ..error }.with_code("invalid_value")
    }

    /// 400: a field asks for what this server does not do.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::field(param, message).with_code("unsupported_parameter")
    }

    /// 400: the body is not JSON, or not an object.
    pub(crate) fn malformed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message).with_code("invalid_json")
    }

    /// 400: the chat template refused the messages, fails on them, or is none that can be used.
    pub(crate) fn template(message: impl Into<String>) -> ApiError {
        ApiError::field("messages", message).with_code("template_error")
    }

    /// 400: prompt and context, in tokens.
    pub(crate) fn too_long(param: &str, tokens: usize, context: usize) -> ApiError {
        let message = format!(
            "{param}: the prompt has {tokens} tokens and the context is {context} tokens (prompt and answer together)"
        );
        let error = ApiError::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
        let param = Some(param.to_owned());
        ApiError { param, sizes: Some((Some(tokens), context)), ..error }.with_code("context_length_exceeded")
    }

    /// 400: a prompt that is too long whatever its tokens are, found before the work of finding them.
    pub(crate) fn too_long_text(param: &str, bytes: usize, limit: usize, context: usize) -> ApiError {
        let message = format!(
            "{param}: the prompt has {bytes} bytes; at most {limit} can fit into the context of {context} tokens"
        );
        let error = ApiError::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
        let param = Some(param.to_owned());
        ApiError { param, sizes: Some((None, context)), ..error }.with_code("context_length_exceeded")
    }

    /// 401.
    pub(crate) fn unauthorized(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", message).with_code("invalid_api_key")
    }

    /// 403.
    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message).with_code(code)
    }

    /// 404.
    pub(crate) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message).with_code("not_found")
    }

    /// 405.
    pub(crate) fn method(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
            .with_code("method_not_allowed")
    }

    /// 408.
    pub(crate) fn too_slow(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
            .with_code("request_timeout")
    }

    /// 410: what it was is not kept any more.
    pub(crate) fn gone(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::GONE, "not_found_error", message).with_code("stream_lost")
    }

    /// In a stream: so many bytes of it wait for a client that does not read, and their memory is needed.
    pub(crate) fn unread(bytes: usize) -> ApiError {
        let message = format!("{bytes} bytes of this stream were not read, and their memory is needed");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
            .with_code("client_too_slow")
    }

    /// 413.
    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the request's body is over the limit of {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
            .with_code("request_too_large")
    }

    /// 429: there is no room now.
    pub(crate) fn no_room(code: &'static str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { retry_after: Some(RETRY_AFTER_SECONDS), ..error }.with_code(code)
    }

    /// 500: our own fault, or the engine's.
    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message).with_code("internal_error")
    }

    /// 502: a server behind this one failed.
    pub(crate) fn bad_gateway(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_GATEWAY, "server_error", message).with_code(code)
    }

    /// 503: not now, but in so many seconds.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>, seconds: u32) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        ApiError { retry_after: Some(seconds), ..error }.with_code(code)
    }

    /// 503: the server ends.
    pub(crate) fn shutting_down() -> ApiError {
        let message = "the server is shutting down";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        ApiError { retry_after: Some(RETRY_AFTER_SECONDS), ..error }.with_code("shutting_down")
    }

    /// The `error` object with its wrapping.
    pub(crate) fn body(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        });
        if let (Some((tokens, context)), Some(error)) = (self.sizes, error.as_object_mut()) {
            if let Some(tokens) = tokens {
                error.insert("n_prompt_tokens".to_owned(), tokens.into());
            }
            error.insert("n_ctx".to_owned(), context.into());
        }
        json!({ "error": error })
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        match refused {
            Refused::ShuttingDown => ApiError::shutting_down(),
            Refused::QueueFull => {
                ApiError::no_room("queue_full", "too many requests are waiting; try again later")
            }
        }
    }
}

impl From<Failure> for ApiError {
    /// Never a 4xx, whatever the engine says: what it refuses, the front should have refused.
    fn from(failure: Failure) -> ApiError {
        let code = match failure.kind {
            FailureKind::NonfiniteLogits => FailureKind::NonfiniteLogits.code(),
            FailureKind::Storage => FailureKind::Storage.code(),
            FailureKind::InvalidRequest | FailureKind::Engine => FailureKind::Engine.code(),
        };
        ApiError::internal(failure.message).with_code(code)
    }
}

impl From<Interruption> for ApiError {
    fn from(interruption: Interruption) -> ApiError {
        match interruption {
            Interruption::Quarantined(message) => {
                ApiError::internal(message).with_code("request_kills_engine")
            }
            Interruption::Shutdown => ApiError::shutting_down(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
