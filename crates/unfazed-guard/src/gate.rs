//! Whether work on a GPU may begin.
//!
//! One panic in 24 h closes the gate for two hours, more lock it until somebody has looked (`ack`), or for 72 h from the
//! earliest of them. A report that cannot be read may be of any panic: it closes the gate for as long as one panic does, and never
//! locks it. What the gate itself cannot see makes it broken, unless what it does see closes it.

use jiff::{SignedDuration, Timestamp};

use crate::local_time;
use crate::reports::{Panic, Scan};
use crate::settings::GateSettings;
use crate::state::State;

/// The gate looks back so far.
pub const WINDOW: SignedDuration = SignedDuration::from_hours(72);
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// How long an acknowledgement holds.
const ACK: SignedDuration = DAY;
/// So many panics within [`BREAKER`] close the gate for as long, whatever other thresholds are set to.
const BREAKER_PANICS: usize = 2;
const BREAKER: SignedDuration = SignedDuration::from_hours(1);

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Work may begin.
    Proceed,
    /// Not now.
    Wait,
    /// The gate does not know. Callers of metal-guard's gate go on then.
    Broken,
}

impl Decision {
    /// What the process ends with.
    pub const fn exit_code(self) -> u8 {
        match self {
            Decision::Proceed => 0,
            Decision::Wait => 2,
            Decision::Broken => 3,
        }
    }

    /// metal-guard's badge.
    pub const fn badge(self) -> &'static str {
        match self {
            Decision::Proceed => "🟢 PROCEED",
            Decision::Wait => "🟡 COOLDOWN",
            Decision::Broken => "🔴 GATE BROKEN",
        }
    }
}

/// The decision and its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do.
    pub decision: Decision,
    /// Why.
    pub reason: String,
    /// Panics that count, of the last 24 h.
    pub panics_24h: usize,
    /// Panics that count, of the last 72 h.
    pub panics_72h: usize,
    /// Reports of panics that cannot be read, of the last 72 h.
    pub unreadable_72h: usize,
    /// Processes that were ended by their GPU in the last 24 h. They never close the gate.
    pub aborts_24h: usize,
    /// GPU events of the last 24 h. They never close the gate.
    pub gpu_events_24h: usize,
    /// When it opens, if that is known.
    pub until: Option<Timestamp>,
}

impl Verdict {
    /// The gate could not even look.
    pub fn broken(reason: impl Into<String>) -> Verdict {
        Verdict {
            decision: Decision::Broken,
            reason: reason.into(),
            panics_24h: 0,
            panics_72h: 0,
            unreadable_72h: 0,
            aborts_24h: 0,
            gpu_events_24h: 0,
            until: None,
        }
    }
}

/// What speaks for waiting.
struct Hold {
    reason: String,
    until: Option<Timestamp>,
}

/// The verdict on a scan of the last 72 h or more.
pub fn evaluate(
    scan: &Scan,
    state: &State,
    settings: &GateSettings,
    ack_file: &str,
    now: Timestamp,
) -> Verdict {
    let view = View::of(scan, state, settings, now);
    let mut verdict = Verdict {
        decision: Decision::Proceed,
        reason: String::new(),
        panics_24h: view.within(DAY).count(),
        panics_72h: view.panics.len(),
        unreadable_72h: view.unreadable,
        aborts_24h: scan.aborts.iter().filter(|abort| is_within(abort.when.at, DAY, now)).count(),
        gpu_events_24h: scan.gpu_events.iter().filter(|event| is_within(event.when.at, DAY, now)).count(),
        until: None,
    };
    if settings.disabled {
        "kill switch: METALGUARD_PANIC_GATE_DISABLED=1".clone_into(&mut verdict.reason);
        return verdict;
    }
    let held = view.sentinel(state).or_else(|| match view.staircase(ack_file) {
        Ok(open) => {
            verdict.reason = open;
            view.breaker(state)
        }
        Err(hold) => Some(hold),
    });
    if let Some(Hold { reason, until }) = held {
        return Verdict { decision: Decision::Wait, reason, until, ..verdict };
    }
    let unseen: Vec<String> = scan
        .unlisted
        .iter()
        .map(|(folder, error)| format!("{}: {error}", folder.display()))
        .chain(state.damage().map(str::to_owned))
        .collect();
    if !unseen.is_empty() {
        let reason = format!("the gate cannot see everything: {}", unseen.join("; "));
        return Verdict { decision: Decision::Broken, reason, ..verdict };
    }
    verdict
}

/// What the gate looks at.
struct View<'a> {
    /// Panics that count, the oldest first.
    panics: Vec<&'a Panic>,
    unreadable: usize,
    /// The latest report that cannot be read.
    latest_unreadable: Option<Timestamp>,
    /// When somebody looked, if that still holds.
    ack: Option<Timestamp>,
    settings: &'a GateSettings,
    now: Timestamp,
}

impl<'a> View<'a> {
    fn of(scan: &'a Scan, state: &State, settings: &'a GateSettings, now: Timestamp) -> View<'a> {
        let panics: Vec<&Panic> =
            scan.counted().filter(|panic| is_within(panic.when.at, WINDOW, now)).collect();
        // One without a time is from now.
        let unreadable: Vec<Timestamp> = scan
            .unreadable_panics()
            .map(|unreadable| unreadable.at.unwrap_or(now))
            .filter(|at| is_within(*at, WINDOW, now))
            .collect();
        let ack = state.ack.as_ref().ok().copied().flatten();
        let latest_unreadable = unreadable.iter().max().copied();
        let latest = panics.last().map(|panic| panic.when.at).max(latest_unreadable);
        let ack = ack.filter(|ack| is_within(*ack, ACK, now) && latest.is_none_or(|latest| *ack >= latest));
        View { panics, unreadable: unreadable.len(), latest_unreadable, ack, settings, now }
    }

    fn within(&self, window: SignedDuration) -> impl Iterator<Item = &&Panic> {
        self.panics.iter().filter(move |panic| is_within(panic.when.at, window, self.now))
    }

    /// Somebody asked for a cool-down.
    fn sentinel(&self, state: &State) -> Option<Hold> {
        let until = state.sentinel.as_ref().ok().copied().flatten().filter(|until| *until > self.now)?;
        Some(Hold {
            reason: format!("sentinel cooldown until {}", local_time::iso(until)),
            until: Some(until),
        })
    }

    /// The staircase: why it is open, or what holds.
    fn staircase(&self, ack_file: &str) -> Result<String, Hold> {
        let (day, all) = (self.within(DAY).count(), self.panics.len());
        if day >= self.settings.lockout_24h || all >= self.settings.lockout_72h {
            return self.lockout(day, all, ack_file);
        }
        let panic = self.within(DAY).last().map(|panic| panic.when.at);
        // Somebody who looked knows better what a report says that nobody else can read.
        let unreadable =
            self.latest_unreadable.filter(|at| is_within(*at, DAY, self.now) && self.ack.is_none());
        let Some(latest) = panic.max(unreadable) else {
            return Ok(match self.unreadable {
                0 => "no recent IOGPU panics".to_owned(),
                count => format!("no recent IOGPU panics that can be read ({count} cannot)"),
            });
        };
        let hours = self.settings.cool_down.as_secs_f64() / 3600.0;
        let unknown = if panic.max(unreadable) == panic {
            ""
        } else {
            ", for a report that cannot be read: it may be of any panic"
        };
        match later(latest, self.settings.cool_down).filter(|until| *until > self.now) {
            Some(until) => Err(Hold {
                reason: format!("cooldown {hours:.1}h until {}{unknown}", local_time::iso(until)),
                until: Some(until),
            }),
            None => Ok(format!("cooldown expired (latest panic {})", local_time::iso(latest))),
        }
    }

    fn lockout(&self, day: usize, all: usize, ack_file: &str) -> Result<String, Hold> {
        if self.ack.is_some() {
            return Ok("lockout cleared by ack".to_owned());
        }
        let until = self.panics.first().and_then(|panic| later(panic.when.at, self.settings.lockout_most));
        if until.is_some_and(|until| until <= self.now) {
            return Ok("lockout absolute-max elapsed".to_owned());
        }
        let ends = until.map_or(String::new(), |until| format!(", or wait until {}", local_time::iso(until)));
        let reason =
            format!("lockout: 24h={day} 72h={all}; touch {ack_file} (or: unfazed guard ack) to clear{ends}");
        // metal-guard's JSON tells no time here: somebody should look.
        Err(Hold { reason, until: None })
    }

    /// What metal-guard's library would do with the next process, where the staircase lets it begin.
    fn breaker(&self, state: &State) -> Option<Hold> {
        if self.ack.is_some() {
            return None;
        }
        let told = state.breaker.as_ref().ok().copied().flatten();
        let own = (self.within(BREAKER).count() >= BREAKER_PANICS)
            .then(|| later(self.panics.last()?.when.at, BREAKER))
            .flatten();
        let until = told.max(own).filter(|until| *until > self.now)?;
        Some(Hold {
            reason: format!("breaker cooldown until {}", local_time::iso(until)),
            until: Some(until),
        })
    }
}

/// Whether it was within a time before now; what seems to come later was now.
fn is_within(at: Timestamp, window: SignedDuration, now: Timestamp) -> bool {
    later(at, window).is_none_or(|end| end >= now)
}

fn later(at: Timestamp, by: SignedDuration) -> Option<Timestamp> {
    at.checked_add(by).ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::reports::{Kind, Signature, TimeFrom, Unreadable, When};

    const NOW: Timestamp = Timestamp::constant(1_776_350_000, 0);

    fn ago(minutes: i64) -> Timestamp {
        NOW.checked_sub(SignedDuration::from_mins(minutes)).unwrap()
    }

    /// Panics so many minutes ago.
    fn panics(minutes: &[i64]) -> Scan {
        let mut minutes = minutes.to_vec();
        minutes.sort_unstable_by(|a, b| b.cmp(a));
        let panic = |minutes: &i64| Panic {
            when: When { at: ago(*minutes), from: TimeFrom::Calendar },
            signature: Signature::RemoveMemoryObject,
            explanation: String::new(),
            pid: None,
            file: PathBuf::from(format!("{minutes}.panic")),
        };
        Scan { panics: minutes.iter().map(panic).collect(), ..Scan::default() }
    }

    fn unreadable(minutes: i64) -> Unreadable {
        Unreadable {
            file: "x.panic".into(),
            kind: Kind::Panic,
            at: Some(ago(minutes)),
            reason: "permission denied".into(),
        }
    }

    fn quiet() -> State {
        State { sentinel: Ok(None), ack: Ok(None), breaker: Ok(None) }
    }

    fn acked(minutes: i64) -> State {
        State { ack: Ok(Some(ago(minutes))), ..quiet() }
    }

    fn judge(scan: &Scan, state: &State) -> Verdict {
        evaluate(scan, state, &GateSettings::default(), "~/.metal-guard-ack", NOW)
    }

    #[track_caller]
    fn assert_verdict(scan: &Scan, state: &State, decision: Decision, word: &str) -> Verdict {
        let verdict = judge(scan, state);
        assert_eq!(verdict.decision, decision, "{}", verdict.reason);
        assert!(verdict.reason.contains(word), "{}", verdict.reason);
        verdict
    }

    #[test]
    fn the_staircase_is_metal_guards() {
        assert_verdict(&panics(&[]), &quiet(), Decision::Proceed, "no recent IOGPU panics");
        let one = assert_verdict(&panics(&[30]), &quiet(), Decision::Wait, "cooldown 2.0h");
        assert_eq!((one.panics_24h, one.panics_72h, one.until), (1, 1, Some(ago(30 - 120))));
        assert_verdict(&panics(&[180]), &quiet(), Decision::Proceed, "expired");
        let two = assert_verdict(&panics(&[60, 240]), &quiet(), Decision::Wait, "lockout");
        assert_eq!((two.panics_24h, two.until), (2, None));
        // None of them in 24 h.
        assert_verdict(&panics(&[28 * 60, 40 * 60, 60 * 60]), &quiet(), Decision::Wait, "lockout");
        assert_verdict(&panics(&[28 * 60, 40 * 60]), &quiet(), Decision::Proceed, "no recent");
        assert_verdict(&panics(&[73 * 60, 74 * 60, 75 * 60]), &quiet(), Decision::Proceed, "no recent");
    }

    #[test]
    fn a_lockout_ends_with_an_acknowledgement_that_is_newer_than_all_panics_or_with_time() {
        let two = panics(&[60, 120]);
        assert_verdict(&two, &acked(30), Decision::Proceed, "ack");
        assert_verdict(&two, &acked(90), Decision::Wait, "lockout");
        assert_verdict(&panics(&[25 * 60, 26 * 60, 27 * 60]), &acked(24 * 60 + 1), Decision::Wait, "lockout");
        // One panic cools down whoever has looked.
        assert_verdict(&panics(&[30]), &acked(1), Decision::Wait, "cooldown");
        let short = GateSettings { lockout_most: SignedDuration::from_hours(2), ..GateSettings::default() };
        let verdict = evaluate(&panics(&[121, 5]), &quiet(), &short, "ack", NOW);
        assert!(
            verdict.reason.contains("elapsed") || verdict.reason.contains("breaker"),
            "{}",
            verdict.reason
        );
    }

    #[test]
    fn a_sentinel_extends_and_an_old_one_does_not() {
        let until = |at| State { sentinel: Ok(Some(at)), ..acked(0) };
        assert_verdict(&panics(&[]), &until(ago(-60)), Decision::Wait, "sentinel");
        assert_verdict(&panics(&[]), &until(ago(5)), Decision::Proceed, "no recent");
    }

    #[test]
    fn the_breaker_holds_where_thresholds_were_raised_until_somebody_looks() {
        let raised = GateSettings {
            lockout_24h: 9,
            lockout_72h: 9,
            cool_down: SignedDuration::ZERO,
            ..GateSettings::default()
        };
        let judge = |scan: &Scan, state: &State| evaluate(scan, state, &raised, "ack", NOW);
        assert_eq!(judge(&panics(&[50, 10]), &quiet()).until, Some(ago(10 - 60)));
        assert_eq!(judge(&panics(&[70, 10]), &quiet()).decision, Decision::Proceed);
        assert_eq!(judge(&panics(&[50, 10]), &acked(1)).decision, Decision::Proceed);
        let told = State { breaker: Ok(Some(ago(-7))), ..quiet() };
        assert_eq!(judge(&panics(&[]), &told).until, Some(ago(-7)));
    }

    #[test]
    fn a_report_that_cannot_be_read_cools_down_and_never_locks() {
        let mut scan = panics(&[]);
        scan.unreadable = vec![unreadable(30), unreadable(40), unreadable(50)];
        let verdict = assert_verdict(&scan, &quiet(), Decision::Wait, "cannot be read");
        assert_eq!((verdict.panics_24h, verdict.unreadable_72h, verdict.until), (0, 3, Some(ago(30 - 120))));
        assert_verdict(
            &scan,
            &acked(10),
            Decision::Proceed,
            "no recent IOGPU panics that can be read (3 cannot)",
        );
        assert_verdict(&scan, &acked(35), Decision::Wait, "cannot be read");
        // Other reports than those of panics do not close it.
        scan.unreadable.iter_mut().for_each(|unreadable| unreadable.kind = Kind::GpuEvent);
        assert_verdict(&scan, &quiet(), Decision::Proceed, "no recent");
        // A later one that nobody can read makes an acknowledgement old.
        let mut locked = panics(&[60, 120]);
        locked.unreadable = vec![unreadable(20)];
        assert_verdict(&locked, &acked(30), Decision::Wait, "lockout");
    }

    #[test]
    fn a_gate_that_cannot_see_is_broken_unless_what_it_sees_closes_it() {
        let blind = |mut scan: Scan| {
            scan.unlisted.push(("/r".into(), "permission denied".into()));
            scan
        };
        assert_verdict(&blind(panics(&[])), &quiet(), Decision::Broken, "/r: permission denied");
        assert_verdict(&blind(panics(&[30])), &quiet(), Decision::Wait, "cooldown");
        let damaged = State { sentinel: Err("the sentinel is damaged".into()), ..quiet() };
        assert_verdict(&panics(&[]), &damaged, Decision::Broken, "the sentinel is damaged");
        assert_verdict(&panics(&[30]), &damaged, Decision::Wait, "cooldown");
        let off = GateSettings { disabled: true, ..GateSettings::default() };
        let verdict = evaluate(&blind(panics(&[1, 2, 3])), &damaged, &off, "ack", NOW);
        assert_eq!(verdict.decision, Decision::Proceed);
        assert!(verdict.reason.contains("kill switch"));
    }

    #[test]
    fn panics_of_other_causes_do_not_count() {
        let mut scan = panics(&[1, 2, 3, 4]);
        scan.panics.iter_mut().for_each(|panic| panic.signature = Signature::Unknown);
        let verdict = assert_verdict(&scan, &quiet(), Decision::Proceed, "no recent");
        assert_eq!(verdict.panics_72h, 0);
    }
}
