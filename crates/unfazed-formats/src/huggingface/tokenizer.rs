//! Tokenizer, special tokens and chat template.

use serde_json::Value;

use super::fields::{Fields, read_all};
use crate::source::FileSource;
use crate::{FormatError, TokenizerSource};

/// Largest `tokenizer.json` that is read; the largest known have some 35 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Largest chat template that is read.
const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// The files beside `config.json` that this module reads, where they exist.
pub(crate) struct TokenizerFiles<'a> {
    pub(crate) tokenizer: Option<&'a FileSource>,
    pub(crate) tokenizer_config: Option<Fields>,
    pub(crate) generation_config: Option<Fields>,
    pub(crate) template: Option<&'a FileSource>,
}

pub(crate) fn tokenizer(files: &TokenizerFiles<'_>, config: &Fields) -> Result<TokenizerSource, FormatError> {
    let Some(source) = files.tokenizer else {
        let reason = "a Hugging Face directory needs it beside config.json";
        return Err(FormatError::missing(config.file(), "file tokenizer.json", reason));
    };
    // generation_config.json is what the model was published to be used with; config.json is older habit.
    let ids = |name: &str| -> Result<Vec<u32>, FormatError> {
        let ids = files.generation_config.as_ref().map(|fields| fields.token_ids(name)).transpose()?;
        match ids {
            Some(ids) if !ids.is_empty() => Ok(ids),
            _ => config.token_ids(name),
        }
    };
    Ok(TokenizerSource::HuggingFace {
        json: read_all(source, TOKENIZER_BYTES_MAX)?,
        config: files.tokenizer_config.clone().map_or(Value::Null, Fields::into_value),
        eos: ids("eos_token_id")?,
        bos: ids("bos_token_id")?.first().copied(),
    })
}

/// `chat_template.jinja` if it exists, else `chat_template` of `tokenizer_config.json`: a template, or a list of
/// named ones of which `default` is taken.
pub(crate) fn chat_template(files: &TokenizerFiles<'_>) -> Result<Option<String>, FormatError> {
    if let Some(source) = files.template {
        let bytes = read_all(source, TEMPLATE_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let value = format_args!("{} bytes", error.as_bytes().len());
            FormatError::invalid(
                crate::ByteSource::name(source),
                "content",
                value,
                format!("not UTF-8 at byte {at}"),
            )
        })?;
        return Ok(Some(text));
    }
    const NAME: &str = "chat_template";
    let Some(fields) = &files.tokenizer_config else { return Ok(None) };
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    match fields.get(NAME) {
        None => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(Value::Array(templates)) => {
            let default =
                templates.iter().find(|template| text(template, "name").as_deref() == Some("default"));
            let template = default.and_then(|template| text(template, "template"));
            let reason = "a list of templates must have one named \"default\" with a text \"template\"";
            template.map(Some).ok_or_else(|| fields.invalid(NAME, reason))
        }
        Some(_) => Err(fields.invalid(NAME, "it must be a string or a list of named templates")),
    }
}
