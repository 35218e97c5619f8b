//! A compiled chat template.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as TemplateValue;
use minijinja::{AutoEscape, Environment};
use serde_json::{Map, Value};
use unfazed_tokenizer::{MAX_TEXT_BYTES, Segment, Tokenizer};

use super::error::Full;
use super::sentinels::{Sentinels, SpecialTexts, UsedCharacters};
use super::{TemplateError, functions, values};

/// Name of the template inside of its environment.
const NAME: &str = "chat template";

/// Stack for a level of nesting, by the fuel that making one costs: at least 3, and recursion takes some 650 bytes.
/// It is address space; memory is taken only as far as a template goes.
const STACK_BYTES_PER_FUEL: usize = 384;
const STACK_BYTES: usize = 16 << 20;
const STACK_BYTES_MOST: usize = 1 << 30;

/// For models whose vocabulary is that of ChatML and that bring no template.
const CHATML: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// How much a rendering may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Units of work: one an instruction, one for 64 bytes of memory or output. It bounds the memory that a
    /// template can take to 64 times as many bytes. Address space of 384 times as many bytes is set aside while
    /// it runs, 1 GiB at most.
    pub fuel: u64,
    /// Bytes of the rendered prompt.
    pub output_bytes: usize,
    /// Time by the clock. Some work costs no fuel: of lists that `+` only chains, and of comparisons of nested
    /// values.
    pub time: Duration,
}

impl Default for Limits {
    /// Some 100 ms of work at most, 64 MB at most, as much output as the tokenizer takes. A template that is in
    /// use takes some 20 to 100 units a message and copies its text a few times.
    fn default() -> Self {
        Limits { fuel: 1_000_000, output_bytes: MAX_TEXT_BYTES, time: Duration::from_secs(5) }
    }
}

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
///
/// A rendering that takes more than its time is left to itself, as a thread can't be ended from outside without
/// leaving locks and memory as they happen to be. Until it ends nothing is rendered any more, so that as many threads
/// are lost at most as rendered at that moment.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// Renderings that were given up and still run.
    overdue: Mutex<Vec<JoinHandle<()>>>,
    special: SpecialTexts,
    used: UsedCharacters,
    bos: String,
    eos: String,
    limits: Limits,
}

impl ChatTemplate {
    /// Compiles a template for a model.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::syntax(&error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        functions::add(&mut environment);
        let source = without_generation_blocks(source);
        let special = SpecialTexts::new(tokenizer);
        let mut used = UsedCharacters::default();
        used.add(&source);
        used.add_all(&special);
        environment.add_template_owned(NAME, source).map_err(|error| TemplateError::syntax(&error))?;
        let (bos, eos) = (tokenizer.bos_text().to_owned(), tokenizer.eos_text().to_owned());
        let template = ChatTemplate {
            environment: Arc::new(environment),
            overdue: Mutex::default(),
            special,
            used,
            bos,
            eos,
            limits: Limits::default(),
        };
        Ok(template.with_limits(Limits::default()))
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
    pub fn with_limits(mut self, limits: Limits) -> ChatTemplate {
        Arc::make_mut(&mut self.environment).set_fuel(Some(limits.fuel));
        self.limits = limits;
        self
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
        let mut context: Vec<(String, TemplateValue)> = Vec::new();
        for (name, value) in &options.kwargs {
            context.push((name.clone(), values::hidden(value, &mut sentinels)?));
        }
        if let Some(tools) = &options.tools {
            context.push(("tools".to_owned(), values::hidden(tools, &mut sentinels)?));
        }
        context.push(("messages".to_owned(), values::hidden(messages, &mut sentinels)?));
        context.push(("add_generation_prompt".to_owned(), options.add_generation_prompt.into()));
        context.push(("bos_token".to_owned(), self.bos.as_str().into()));
        context.push(("eos_token".to_owned(), self.eos.as_str().into()));
        Ok(sentinels.restore(&self.rendered(TemplateValue::from_pairs(context))?))
    }

    /// Runs the template on a thread of its own, for two reasons. It has a stack for values nested as deep as the
    /// fuel allows: minijinja compares, prints and drops nested values by recursion, and a stack that overflows ends
    /// the process. And its caller can leave it behind once its time is over.
    fn rendered(&self, context: TemplateValue) -> Result<String, TemplateError> {
        let endless = TemplateError::Endless { limit: self.limits.time };
        if !self.overdue(|threads| threads.is_empty()) {
            return Err(endless);
        }
        let per_fuel =
            usize::try_from(self.limits.fuel).unwrap_or(usize::MAX).saturating_mul(STACK_BYTES_PER_FUEL);
        let stack = per_fuel.saturating_add(STACK_BYTES).min(STACK_BYTES_MOST);
        let (environment, limits) = (Arc::clone(&self.environment), self.limits);
        let (sender, result) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(stack)
            // Nobody may listen any more.
            .spawn(move || drop(sender.send(run(&environment, limits, context))))
            .map_err(|error| TemplateError::NoThread(error.to_string()))?;
        match result.recv_timeout(self.limits.time) {
            Ok(rendered) => rendered,
            Err(RecvTimeoutError::Disconnected) => Err(TemplateError::NoThread("it panicked".to_owned())),
            Err(RecvTimeoutError::Timeout) => {
                if self.overdue(|threads| {
                    threads.push(thread);
                    threads.len() == 1
                }) {
                    tracing::warn!("chats are refused until the rendering ends: {endless}");
                }
                Err(endless)
            }
        }
    }

    /// Looks at the renderings that were given up and have not ended.
    fn overdue<T>(&self, look: impl FnOnce(&mut Vec<JoinHandle<()>>) -> T) -> T {
        let mut threads = self.overdue.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        look(&mut threads)
    }
}

fn run(
    environment: &Environment<'static>,
    limits: Limits,
    context: TemplateValue,
) -> Result<String, TemplateError> {
    let Limits { fuel, output_bytes, .. } = limits;
    let failed = |error: minijinja::Error| TemplateError::render(&error, fuel, output_bytes);
    let template = environment.get_template(NAME).map_err(failed)?;
    let mut output = Bounded { bytes: Vec::new(), most: output_bytes };
    template.render_captured_to(context, &mut output).map_err(failed)?;
    Ok(String::from_utf8_lossy(&output.bytes).into_owned())
}

/// Output that is full at some point.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most.saturating_sub(self.bytes.len()) {
            return Err(io::Error::other(Full));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::tests::chatml;
    use super::*;

    #[test]
    fn chats_are_rendered_again_once_a_rendering_that_was_given_up_has_ended() {
        let template = ChatTemplate::new("x", &chatml()).unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let held = std::thread::spawn(move || {
            let _ = ended.recv();
        });
        template.overdue(|threads| threads.push(held));
        let render = || template.render(&Value::Array(Vec::new()), &RenderOptions::default());
        assert_eq!(render().unwrap_err(), TemplateError::Endless { limit: Duration::from_secs(5) });
        drop(end);
        let start = Instant::now();
        while render().is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "it never renders again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
