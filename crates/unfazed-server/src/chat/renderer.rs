//! A process that renders templates, from its socket to its end.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;

use serde_json::{Map, Value};

use super::TemplateError;
use super::frames::{self, Setup};
use super::rendering::Rendering;

/// Longest message of the front's: a template, or what a request's body may have, written as JSON again.
const MESSAGE_BYTES: usize = 1 << 30;
/// Address space beside the stack of the thread that renders: the program, its C library's pools, what a template makes.
#[cfg(target_os = "linux")]
const ADDRESS_SPACE: u64 = 1 << 30;

/// Renders what comes through the socket until it ends, or until a rendering takes more than its time: the caller must end
/// the process then, as that rendering may still run.
///
/// # Errors
///
/// A socket that fails or carries something else than the front's messages.
pub fn render_templates(socket: &UnixStream) -> io::Result<()> {
    let Some(setup) = frames::read(socket, MESSAGE_BYTES, None)? else { return Ok(()) };
    let Setup { source, limits } = serde_json::from_slice(&setup)?;
    limit_address_space(limits.stack() as u64);
    let rendering =
        Rendering::new(&source, limits).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    while let Some(variables) = frames::read(socket, MESSAGE_BYTES, None)? {
        let variables: Map<String, Value> = serde_json::from_slice(&variables)?;
        let result = rendering.render(variables);
        match frames::write(socket, &serde_json::to_vec(&result)?) {
            // The front may have ended, or given up waiting.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            written => written?,
        }
        if matches!(result, Err(TemplateError::Endless { .. })) {
            return Ok(());
        }
    }
    Ok(())
}

/// What a template takes is counted; this holds where the count is wrong.
#[cfg(target_os = "linux")]
fn limit_address_space(stack: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = stack.saturating_add(ADDRESS_SPACE);
    let allowed = getrlimit(Resource::As).maximum.map_or(limit, |most| most.min(limit));
    if let Err(error) = setrlimit(Resource::As, Rlimit { current: Some(allowed), maximum: Some(allowed) }) {
        tracing::warn!(%error, "the address space of the process that renders cannot be limited");
    }
}

#[cfg(not(target_os = "linux"))]
fn limit_address_space(_stack: u64) {}
