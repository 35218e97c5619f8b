//! `GET /v1/models` and `GET /v1/models/{model}`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::router::App;
use crate::model::Model;

/// The one model.
pub(crate) async fn list(State(app): State<App>) -> Json<Value> {
    Json(json!({"object": "list", "data": [describe(&app.model)]}))
}

/// The model by its name.
pub(crate) async fn one(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) =
        id.map_err(|error| ApiError::field("model", format!("the path: {}", error.body_text())))?;
    if id == app.model.id {
        return Ok(Json(describe(&app.model)));
    }
    let id: String = id.chars().take(200).collect();
    Err(ApiError::not_found(format!("there is no model {id:?}; this server has {:?}", app.model.id)))
}

fn describe(model: &Model) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "unfazed",
        "meta": {"n_ctx": model.context, "n_vocab": model.vocab},
    })
}
