//! A compiled template that is run in this process.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use unfazed_tokenizer::MAX_TEXT_BYTES;

use super::error::Full;
use super::{TemplateError, functions, values};

/// Name of the template inside of its environment.
const NAME: &str = "chat template";

/// Stack for a level of nesting, by the fuel that making one costs: at least 3, and recursion takes some 650 bytes.
/// It is address space; memory is taken only as far as a template goes.
const STACK_BYTES_PER_FUEL: usize = 384;
const STACK_BYTES: usize = 16 << 20;
const STACK_BYTES_MOST: usize = 1 << 30;

/// How much a rendering may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

impl Limits {
    /// Bytes of address space for the stack of the thread that renders.
    pub(super) fn stack(&self) -> usize {
        let per_fuel = usize::try_from(self.fuel).unwrap_or(usize::MAX).saturating_mul(STACK_BYTES_PER_FUEL);
        per_fuel.saturating_add(STACK_BYTES).min(STACK_BYTES_MOST)
    }
}

impl Default for Limits {
    /// Some 100 ms of work at most, 64 MB at most, as much output as the tokenizer takes. A template that is in
    /// use takes some 20 to 100 units a message and copies its text a few times.
    fn default() -> Self {
        Limits { fuel: 1_000_000, output_bytes: MAX_TEXT_BYTES, time: Duration::from_secs(5) }
    }
}

/// A template and its limits.
///
/// A rendering that takes more than its time is left to itself, as a thread can't be ended from outside without
/// leaving locks and memory as they happen to be. Until it ends nothing is rendered any more, so that as many threads
/// are lost at most as rendered at that moment. Where that matters, templates are run in [another
/// process](super::process), which can be ended.
#[derive(Debug)]
pub(super) struct Rendering {
    environment: Arc<Environment<'static>>,
    /// Renderings that were given up and still run.
    overdue: Mutex<Vec<JoinHandle<()>>>,
    limits: Limits,
}

impl Rendering {
    /// Compiles a template.
    pub(super) fn new(source: &str, limits: Limits) -> Result<Rendering, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateError::syntax(&error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(limits.fuel));
        functions::add(&mut environment);
        let source = source.to_owned();
        environment.add_template_owned(NAME, source).map_err(|error| TemplateError::syntax(&error))?;
        Ok(Rendering { environment: Arc::new(environment), overdue: Mutex::default(), limits })
    }

    /// The same with other limits.
    pub(super) fn with_limits(mut self, limits: Limits) -> Rendering {
        Arc::make_mut(&mut self.environment).set_fuel(Some(limits.fuel));
        self.limits = limits;
        self
    }

    /// Runs the template on a thread of its own, for two reasons. It has a stack for values nested as deep as the
    /// fuel allows: minijinja compares, prints and drops nested values by recursion, and a stack that overflows ends
    /// the process. And its caller can leave it behind once its time is over.
    pub(super) fn render(&self, variables: Map<String, Value>) -> Result<String, TemplateError> {
        let endless = TemplateError::Endless { limit: self.limits.time };
        if !self.overdue(|threads| threads.is_empty()) {
            return Err(endless);
        }
        let (environment, limits) = (Arc::clone(&self.environment), self.limits);
        let (sender, result) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(self.limits.stack())
            // Nobody may listen any more.
            .spawn(move || drop(sender.send(run(&environment, limits, variables))))
            .map_err(|error| TemplateError::NoThread(error.to_string()))?;
        match result.recv_timeout(self.limits.time) {
            Ok(rendered) => rendered,
            Err(RecvTimeoutError::Disconnected) => Err(TemplateError::NoThread("it panicked".to_owned())),
            Err(RecvTimeoutError::Timeout) => {
                self.overdue(|threads| threads.push(thread));
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
    variables: Map<String, Value>,
) -> Result<String, TemplateError> {
    let Limits { fuel, output_bytes, .. } = limits;
    let failed = |error: minijinja::Error| TemplateError::render(&error, fuel, output_bytes);
    let template = environment.get_template(NAME).map_err(failed)?;
    let mut output = Bounded { bytes: Vec::new(), most: output_bytes };
    template.render_captured_to(values::for_templates(variables), &mut output).map_err(failed)?;
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn chats_are_rendered_again_once_a_rendering_that_was_given_up_has_ended() {
        let rendering = Rendering::new("x", Limits::default()).unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let held = std::thread::spawn(move || {
            let _ = ended.recv();
        });
        rendering.overdue(|threads| threads.push(held));
        let render = || rendering.render(Map::new());
        assert_eq!(render().unwrap_err(), TemplateError::Endless { limit: Duration::from_secs(5) });
        drop(end);
        let start = Instant::now();
        while render().is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "it never renders again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
