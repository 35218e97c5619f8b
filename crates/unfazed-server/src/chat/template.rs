//! A compiled chat template.

use serde_json::{Map, Value};
use unfazed_tokenizer::{Segment, Tokenizer};

use super::process::Processes;
use super::rendering::Rendering;
use super::sentinels::{Sentinels, SpecialTexts, UsedCharacters};
use super::{Limits, TemplateError, values};
use crate::supervisor::RendererProgram;

/// For models whose vocabulary is that of ChatML and that bring no template.
const CHATML: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// What a request says beside its messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Tools that the model may call, in the form of OpenAI's requests.
    pub tools: Option<Value>,
    /// More variables for the template (`enable_thinking`, `documents`, ...). They can't replace `messages`
    /// and what else a template is given.
    pub kwargs: Map<String, Value>,
}

/// A chat template, compiled. It is rendered as Hugging Face's `apply_chat_template` does: blocks take the line
/// break behind them and the blanks before them along, `tojson` writes Python's JSON, and `raise_exception`,
/// `strftime_now`, `break`, `continue` and the methods of Python's strings and dicts are there.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    here: Rendering,
    processes: Option<Processes>,
    special: SpecialTexts,
    used: UsedCharacters,
    bos: String,
    eos: String,
    limits: Limits,
}

impl ChatTemplate {
    /// Compiles a template for a model.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, TemplateError> {
        let source = without_generation_blocks(source);
        let special = SpecialTexts::new(tokenizer);
        let mut used = UsedCharacters::default();
        used.add(&source);
        used.add_all(&special);
        let limits = Limits::default();
        let here = Rendering::new(&source, limits)?;
        let (bos, eos) = (tokenizer.bos_text().to_owned(), tokenizer.eos_text().to_owned());
        Ok(ChatTemplate { source, here, processes: None, special, used, bos, eos, limits })
    }

    /// The template that a model brings, else ChatML if its vocabulary has `<|im_start|>` and `<|im_end|>`. No
    /// other guess is made: a wrong template gives bad answers without a sign of why.
    pub fn for_model(source: Option<&str>, tokenizer: &Tokenizer) -> Result<ChatTemplate, TemplateError> {
        let has = |text: &str| tokenizer.special_tokens().iter().any(|(_, special)| special == text);
        match source {
            Some(source) => ChatTemplate::new(source, tokenizer),
            None if has("<|im_start|>") && has("<|im_end|>") => {
                let bos = if tokenizer.wants_bos() { "{{- bos_token -}}" } else { "" };
                ChatTemplate::new(&format!("{bos}{CHATML}"), tokenizer)
            }
            None => Err(TemplateError::NoTemplate),
        }
    }

    /// The template with other limits.
    pub fn with_limits(self, limits: Limits) -> ChatTemplate {
        ChatTemplate { here: self.here.with_limits(limits), limits, ..self }
    }

    /// The template rendered in processes of its own from now on, which are ended when they take more than their time.
    pub fn in_processes(self, program: RendererProgram) -> ChatTemplate {
        ChatTemplate { processes: Some(Processes::new(program, &self.source, self.limits)), ..self }
    }

    /// Renders messages, a list in the form of OpenAI's requests, to segments for
    /// [`Tokenizer::encode_segments`].
    ///
    /// Arguments of tool calls are given to the template as objects where they are strings of JSON objects, as
    /// most templates want them; one that fails on that gets them as they came.
    pub fn render(
        &self,
        messages: &Value,
        options: &RenderOptions,
    ) -> Result<Vec<Segment<'static>>, TemplateError> {
        let Some(parsed) = values::with_parsed_arguments(messages) else {
            return self.render_as_given(messages, options);
        };
        match self.render_as_given(&parsed, options) {
            Err(first @ TemplateError::Failed { .. }) => {
                self.render_as_given(messages, options).map_err(|_| first)
            }
            other => other,
        }
    }

    fn render_as_given(
        &self,
        messages: &Value,
        options: &RenderOptions,
    ) -> Result<Vec<Segment<'static>>, TemplateError> {
        let mut used = self.used.clone();
        values::note(messages, &mut used);
        options.tools.iter().for_each(|tools| values::note(tools, &mut used));
        for (name, value) in &options.kwargs {
            used.add(name);
            values::note(value, &mut used);
        }
        let mut sentinels = Sentinels::new(&self.special, &used)?;
        let mut context = Map::new();
        for (name, value) in &options.kwargs {
            context.insert(name.clone(), values::hidden(value, &mut sentinels)?);
        }
        if let Some(tools) = &options.tools {
            context.insert("tools".to_owned(), values::hidden(tools, &mut sentinels)?);
        }
        context.insert("messages".to_owned(), values::hidden(messages, &mut sentinels)?);
        context.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        context.insert("bos_token".to_owned(), self.bos.as_str().into());
        context.insert("eos_token".to_owned(), self.eos.as_str().into());
        let rendered = match &self.processes {
            Some(processes) => processes.render(&context),
            None => self.here.render(context),
        };
        Ok(sentinels.restore(&rendered?))
    }
}

/// Templates made for training mark what the model is to learn with `{% generation %}`. It prints what is
/// inside of it.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, behind) = tag.split_at(end);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        match inner.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}
