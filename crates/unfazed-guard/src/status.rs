//! What is known, as JSON with metal-guard's keys. Further keys are ours: a program that reads metal-guard's ignores them.

use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::breadcrumb::Tail;
use crate::gate::{Decision, Verdict};
use crate::local_time::{iso, seconds};
use crate::lock::metal_guard::Holder;
use crate::reports::{Panic, Scan};
use crate::settings::Settings;

/// Of `status.json`.
pub const SCHEMA: &str = "1.0";
/// So many panics make the health critical.
const CRITICAL: usize = 5;

/// How the machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing happened.
    Ok,
    /// A panic, a lock that nobody holds any more, or something that could not be seen.
    Warn,
    /// Five panics or more.
    Critical,
}

impl Health {
    /// metal-guard's word.
    pub const fn name(self) -> &'static str {
        match self {
            Health::Ok => "ok",
            Health::Warn => "warn",
            Health::Critical => "critical",
        }
    }

    /// metal-guard's badge.
    pub const fn badge(self) -> &'static str {
        match self {
            Health::Ok => "🟢 OK",
            Health::Warn => "🟡 WARN",
            Health::Critical => "🔴 CRITICAL",
        }
    }

    /// What the process ends with.
    pub const fn exit_code(self) -> u8 {
        match self {
            Health::Ok => 0,
            Health::Warn => 1,
            Health::Critical => 2,
        }
    }
}

/// All that is known of a window of time.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The window, in hours.
    pub hours: f64,
    /// What reports of the window say.
    pub scan: &'a Scan,
    /// What the gate says.
    pub verdict: &'a Verdict,
    /// Who holds metal-guard's lock.
    pub lock: Option<&'a Holder>,
    /// The end of the breadcrumbs.
    pub tail: &'a Tail,
    /// What the environment says.
    pub settings: &'a Settings,
    /// What could not be had, by metal-guard's names of parts.
    pub errors: Vec<(&'static str, String)>,
    /// Now.
    pub now: Timestamp,
}

impl Snapshot<'_> {
    /// How the machine is. All panics count here, whatever their cause.
    pub fn health(&self) -> Health {
        let stale = self.lock.is_some_and(|holder| holder.stale);
        let blind = !self.scan.unlisted.is_empty() || self.scan.unreadable_panics().next().is_some();
        match self.scan.panics.len() {
            CRITICAL.. => Health::Critical,
            1.. => Health::Warn,
            0 if stale || blind => Health::Warn,
            0 => Health::Ok,
        }
    }

    /// What `status`, `panics`, `breadcrumb` and `mode` print with `--json`.
    pub fn report(&self, version: &str) -> Value {
        let health = self.health();
        json!({
            "version": version,
            "health": health.name(),
            "exit_code": health.exit_code(),
            "panics_window_hours": self.hours,
            "panics_count": self.scan.panics.len(),
            "panics": self.panics(),
            "mlx_lock": self.lock.map(Holder::json),
            "mode": mode(self.settings),
            "memory": null,
            "breadcrumb": {"path": self.tail.path, "lines": self.tail.lines},
            "panic_cooldown": verdict(self.verdict),
            "unreadable": self.unreadable(),
            "unlisted": self.unlisted(),
            "gpu_events": self.gpu_events(),
            "aborts": self.aborts(),
        })
    }

    /// What `status-write` writes.
    pub fn file(&self) -> Value {
        let mode = json!({
            "current": self.settings.mode.name(),
            "env_var": "METALGUARD_MODE",
            "description": self.settings.mode.meaning(),
            "details": mode(self.settings),
        });
        let mut file = json!({
            "schema_version": SCHEMA,
            "captured_at": Offset::UTC.to_datetime(self.now).strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string(),
            "memory": {"available": false, "reason": "mlx not loaded"},
            "kv_monitor": {"running": false, "active_requests": []},
            "recent_panics": self.panics(),
            "breadcrumb_path": self.tail.path,
            "breadcrumb_tail": self.tail.lines,
            "lock": self.lock.filter(|holder| !holder.stale).map_or(json!({"held": false}), |holder| held(holder, self.now)),
            "mode": mode,
            "panic_cooldown": verdict(self.verdict),
            "unreadable": self.unreadable(),
            "gpu_events": self.gpu_events(),
        });
        if !self.errors.is_empty() {
            let errors: Map<String, Value> =
                self.errors.iter().map(|(part, error)| ((*part).to_owned(), json!(error))).collect();
            file["errors"] = errors.into();
        }
        file
    }

    fn panics(&self) -> Vec<Value> {
        self.scan.panics.iter().map(panic).collect()
    }

    fn unreadable(&self) -> Vec<Value> {
        let unreadable = self.scan.unreadable.iter().map(|unreadable| {
            json!({
                "source_file": unreadable.file,
                "kind": unreadable.kind.name(),
                "ts": unreadable.at.map(seconds),
                "reason": unreadable.reason,
            })
        });
        unreadable.collect()
    }

    fn unlisted(&self) -> Vec<Value> {
        let folders = self.scan.unlisted.iter();
        folders.map(|(folder, reason)| json!({"folder": folder, "reason": reason})).collect()
    }

    fn aborts(&self) -> Vec<Value> {
        let aborts = self.scan.aborts.iter().map(|abort| {
            json!({
                "ts": seconds(abort.when.at),
                "time_from": abort.when.from.name(),
                "process": abort.process,
                "class": abort.class.name(),
                "source_file": abort.file,
            })
        });
        aborts.collect()
    }

    fn gpu_events(&self) -> Value {
        let events = self.scan.gpu_events.iter();
        let listed: Vec<Value> = events
            .clone()
            .map(|event| {
                json!({
                    "ts": seconds(event.when.at),
                    "time_from": event.when.from.name(),
                    "restart_reason": event.event.restart_reason,
                    "restart_reason_desc": event.event.description,
                    "signature": event.event.signature,
                    "process": event.event.process,
                    "class": event.event.class.name(),
                    "source_file": event.file,
                })
            })
            .collect();
        let mut groups: Vec<(_, usize)> = Vec::new();
        for event in events {
            let key = (event.event.restart_reason, event.event.signature);
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, count)) => *count += 1,
                None => groups.push((key, 1)),
            }
        }
        let groups: Vec<Value> = groups
            .into_iter()
            .map(|((reason, signature), count)| {
                json!({"restart_reason": reason, "signature": signature, "count": count})
            })
            .collect();
        json!({"count": listed.len(), "groups": groups, "events": listed})
    }
}

fn panic(panic: &Panic) -> Value {
    let class = panic.signature.class();
    json!({
        "ts": seconds(panic.when.at),
        "signature": panic.signature.name(),
        "explanation": panic.explanation,
        "pid": panic.pid,
        "source_file": panic.file,
        "time_from": panic.when.from.name(),
        "counts": panic.signature.counts(),
        "class": class.name(),
        "severity": class.severity().name(),
        "hint": class.hint().name(),
    })
}

/// What `panic-gate --json` prints.
pub fn verdict(verdict: &Verdict) -> Value {
    json!({
        "exit_code": verdict.decision.exit_code(),
        "reason": verdict.reason,
        "recent_panics_24h": verdict.panics_24h,
        "recent_panics_72h": verdict.panics_72h,
        "cooldown_until": verdict.until.map(iso),
        "abort_count_24h": verdict.aborts_24h,
        "unreadable_72h": verdict.unreadable_72h,
        "gpu_events_24h": verdict.gpu_events_24h,
        "broken": verdict.decision == Decision::Broken,
    })
}

/// metal-guard's mode.
fn mode(settings: &Settings) -> Value {
    let said = settings.mode_said.as_deref();
    json!({
        "mode": settings.mode.name(),
        "description": settings.mode.meaning(),
        "env": "METALGUARD_MODE",
        "env_var": said.map_or("METALGUARD_MODE=<unset> (default: defensive)".to_owned(), |said| format!("METALGUARD_MODE={said}")),
    })
}

fn held(holder: &Holder, now: Timestamp) -> Value {
    let elapsed =
        holder.started.map(|started| now.duration_since(started).max(SignedDuration::ZERO).as_secs_f64());
    json!({
        "held": true,
        "pid": holder.pid,
        "label": holder.label,
        "started_at": holder.started_at,
        "elapsed_s": elapsed.map(|elapsed| (elapsed * 10.0).round() / 10.0),
        "cmdline": holder.cmdline,
        "host": null,
    })
}
