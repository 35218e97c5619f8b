//! What is kept from run to run: a cool-down that somebody asked for (the sentinel), that somebody has looked (the
//! acknowledgement), and the breaker of metal-guard's library.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};
use unfazed_host::cache;

use crate::local_time;
use crate::outside_file;
use crate::places::Places;

/// No file of these is longer.
const MOST_BYTES: usize = 64 << 10;

/// What the files say; an error says which of them is damaged and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Until when somebody asked for a cool-down.
    pub sentinel: Result<Option<Timestamp>, String>,
    /// When somebody said that the panics were looked at.
    pub ack: Result<Option<Timestamp>, String>,
    /// Until when metal-guard's library starts nothing.
    pub breaker: Result<Option<Timestamp>, String>,
}

impl State {
    /// Reads them.
    pub fn read(places: &Places) -> State {
        let ack = places.ack();
        State {
            sentinel: until(&places.sentinel()),
            ack: optional(outside_file::modified(&ack))
                .map_err(|error| format!("{}: {error}", ack.display())),
            breaker: until(&places.breaker()),
        }
    }

    /// What is damaged.
    pub fn damage(&self) -> impl Iterator<Item = &str> {
        let states = [&self.sentinel, &self.ack, &self.breaker];
        states.into_iter().filter_map(|state| state.as_ref().err().map(String::as_str))
    }
}

/// `cooldown_until` of a file: local time, or seconds since 1970.
fn until(path: &Path) -> Result<Option<Timestamp>, String> {
    let shown = path.display();
    let bytes =
        optional(outside_file::read(path, MOST_BYTES)).map_err(|error| format!("{shown}: {error}"))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let damaged = |what: &str| format!("{shown} is damaged ({what}): remove it");
    let state: Value = serde_json::from_slice(&bytes).map_err(|error| damaged(&error.to_string()))?;
    let at = match state.get("cooldown_until") {
        Some(Value::Null) => return Ok(None),
        // A breaker that never tripped has none.
        None if state.is_object() => return Ok(None),
        Some(Value::String(text)) => local_time::parse(text),
        Some(Value::Number(seconds)) => seconds.as_f64().and_then(of_seconds),
        _ => None,
    };
    at.map(Some).ok_or_else(|| damaged("cooldown_until is no time"))
}

fn of_seconds(seconds: f64) -> Option<Timestamp> {
    // Far beyond any clock, and within what a timestamp holds.
    let sound = seconds.is_finite() && (0.0..1e11).contains(&seconds);
    sound.then(|| Timestamp::from_millisecond((seconds * 1000.0) as i64).ok()).flatten()
}

/// A file that is not there says nothing.
fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks for a cool-down. Returns the file.
///
/// # Errors
///
/// The system's.
pub fn cool_down(places: &Places, until: Timestamp, now: Timestamp) -> io::Result<PathBuf> {
    let path = places.sentinel();
    let text = json!({"cooldown_until": local_time::iso(until), "created_at": local_time::iso(now)});
    cache::write(&path, text.to_string().as_bytes())?;
    Ok(path)
}

/// Says that the panics were looked at. Returns the file.
///
/// # Errors
///
/// The system's.
pub fn acknowledge(places: &Places, now: Timestamp) -> io::Result<PathBuf> {
    let path = places.ack();
    cache::write(&path, format!("{}\n", local_time::iso(now)).as_bytes())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Places) {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::new(Some(folder.path().to_owned()), None, None).unwrap();
        (folder, places)
    }

    fn put(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn what_is_written_is_read_again_and_nothing_is_nothing() {
        let (_folder, places) = home();
        assert_eq!(State::read(&places), State { sentinel: Ok(None), ack: Ok(None), breaker: Ok(None) });
        let now: Timestamp = "2026-04-16T12:00:00Z".parse().unwrap();
        let until: Timestamp = "2026-04-16T14:00:00Z".parse().unwrap();
        assert_eq!(cool_down(&places, until, now).unwrap(), places.sentinel());
        acknowledge(&places, now).unwrap();
        let state = State::read(&places);
        assert_eq!(state.sentinel, Ok(Some(until)));
        assert!(state.ack.unwrap().is_some());
    }

    #[test]
    fn a_breaker_tells_seconds_or_nothing() {
        let (_folder, places) = home();
        for (text, at) in [
            (r#"{"cooldown_until": 1776349407.5, "panic_count": 2}"#, Some(1_776_349_407)),
            (r#"{"cooldown_until": null}"#, None),
            ("{}", None),
        ] {
            put(&places.breaker(), text);
            assert_eq!(State::read(&places).breaker.map(|at| at.map(Timestamp::as_second)), Ok(at), "{text}");
        }
    }

    #[test]
    fn a_damaged_file_is_told_by_name() {
        let (_folder, places) = home();
        for text in
            ["", "not JSON {", "[]", r#"{"cooldown_until": "soon"}"#, r#"{"cooldown_until": 1e300}"#, "7"]
        {
            put(&places.sentinel(), text);
            let state = State::read(&places);
            let error = state.sentinel.as_ref().unwrap_err();
            assert!(error.contains("panic-sentinel.json is damaged"), "{text}: {error}");
            assert_eq!(state.damage().count(), 1);
        }
        std::fs::remove_file(places.sentinel()).unwrap();
        std::fs::create_dir(places.sentinel()).unwrap();
        assert!(State::read(&places).sentinel.is_err());
    }
}
