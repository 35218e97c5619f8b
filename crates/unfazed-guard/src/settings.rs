//! What the environment says: metal-guard's variables that matter to these commands. One that makes no sense is told and its
//! usual value is taken, as metal-guard does.

use std::str::FromStr;

use jiff::SignedDuration;

/// Switches off the gate.
const GATE_DISABLED: &str = "METALGUARD_PANIC_GATE_DISABLED";
/// Switches off bundles.
const POSTMORTEM_DISABLED: &str = "METALGUARD_POSTMORTEM_DISABLED";
/// Switches off the search for orphans.
const ORPHANS_DISABLED: &str = "METALGUARD_SUBPROC_ORPHAN_WATCH_DISABLED";
/// Longest time that makes sense, in hours: ten years.
const MOST_HOURS: f64 = 87_600.0;

/// How the gate decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateSettings {
    /// It lets everything pass.
    pub disabled: bool,
    /// How long one panic in 24 h closes it.
    pub cool_down: SignedDuration,
    /// So many panics in 24 h lock it.
    pub lockout_24h: usize,
    /// So many panics in 72 h lock it.
    pub lockout_72h: usize,
    /// So long after the earliest of them it opens by itself.
    pub lockout_most: SignedDuration,
}

impl Default for GateSettings {
    fn default() -> GateSettings {
        GateSettings {
            disabled: false,
            cool_down: SignedDuration::from_hours(2),
            lockout_24h: 2,
            lockout_72h: 3,
            lockout_most: SignedDuration::from_hours(72),
        }
    }
}

/// What kind of guard metal-guard is told to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What is dangerous is refused.
    Defensive,
    /// What is dangerous is told.
    Observer,
}

impl Mode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Defensive => "defensive",
            Mode::Observer => "observer",
        }
    }

    /// What it means, in a sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            Mode::Defensive => {
                "metal-guard's library refuses what is dangerous: one process at a time uses the GPU."
            }
            Mode::Observer => {
                "metal-guard's library only tells what is dangerous; processes may use the GPU side by side."
            }
        }
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How the gate decides.
    pub gate: GateSettings,
    /// No bundle is made.
    pub postmortem_disabled: bool,
    /// How long a bundle with panics in it closes the gate.
    pub postmortem_sentinel: SignedDuration,
    /// Orphans are not searched.
    pub orphans_disabled: bool,
    /// Seconds after which something that did not end is an orphan.
    pub orphan_seconds: f64,
    /// What metal-guard's library is told to be.
    pub mode: Mode,
    /// The variable that says so, as it is.
    pub mode_said: Option<String>,
    /// What made no sense.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads variables.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Settings {
        let mut reader = Reader { variable, warnings: Vec::new() };
        let usual = GateSettings::default();
        let gate = GateSettings {
            disabled: reader.is_on(GATE_DISABLED),
            cool_down: reader.hours("METALGUARD_PANIC_COOLDOWN_STAGE1_H", usual.cool_down),
            lockout_24h: reader.number("METALGUARD_PANIC_LOCKOUT_24H_N", usual.lockout_24h),
            lockout_72h: reader.number("METALGUARD_PANIC_LOCKOUT_72H_N", usual.lockout_72h),
            lockout_most: reader.hours("METALGUARD_PANIC_LOCKOUT_MAX_H", usual.lockout_most),
        };
        let mode_said = (reader.variable)("METALGUARD_MODE");
        Settings {
            gate,
            postmortem_disabled: reader.is_on(POSTMORTEM_DISABLED),
            postmortem_sentinel: reader
                .hours("METALGUARD_POSTMORTEM_SENTINEL_H", SignedDuration::from_hours(2)),
            orphans_disabled: reader.is_on(ORPHANS_DISABLED),
            orphan_seconds: reader.seconds("METALGUARD_SUBPROC_ORPHAN_THRESHOLD_SEC", 90.0),
            mode: reader.mode(mode_said.as_deref()),
            mode_said,
            warnings: reader.warnings,
        }
    }
}

struct Reader<F> {
    variable: F,
    warnings: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn is_on(&self, name: &str) -> bool {
        (self.variable)(name).as_deref() == Some("1")
    }

    /// A variable's value if it makes sense; nothing was said if it is empty.
    fn value<T: FromStr>(&mut self, name: &str, sound: impl Fn(&T) -> bool, wanted: &str) -> Option<T> {
        let said = (self.variable)(name)?;
        let text = said.trim();
        if text.is_empty() {
            return None;
        }
        let value = text.parse().ok().filter(sound);
        if value.is_none() {
            self.warnings.push(format!("{name}={text:?} is not {wanted}: its usual value is taken"));
        }
        value
    }

    fn number(&mut self, name: &str, usual: usize) -> usize {
        self.value(name, |_| true, "a number of panics").unwrap_or(usual)
    }

    fn seconds(&mut self, name: &str, usual: f64) -> f64 {
        let sound = |seconds: &f64| (0.0..=MOST_HOURS * 3600.0).contains(seconds);
        self.value(name, sound, "a number of seconds").unwrap_or(usual)
    }

    fn hours(&mut self, name: &str, usual: SignedDuration) -> SignedDuration {
        let sound = |hours: &f64| (0.0..=MOST_HOURS).contains(hours);
        let hours = self.value(name, sound, "a number of hours");
        hours.map_or(usual, |hours| SignedDuration::from_secs_f64(hours * 3600.0))
    }

    fn mode(&mut self, said: Option<&str>) -> Mode {
        match said.map(|said| said.trim().to_lowercase()).as_deref() {
            None | Some("" | "defensive") => Mode::Defensive,
            Some("observer") => Mode::Observer,
            Some(other) => {
                let warning = format!(
                    "METALGUARD_MODE={other:?} is neither defensive nor observer: defensive is taken"
                );
                self.warnings.push(warning);
                Mode::Defensive
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Settings {
        Settings::read(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_variables_thresholds_are_metal_guards() {
        let settings = read(&[]);
        assert_eq!(settings.gate, GateSettings::default());
        assert_eq!(settings.orphan_seconds, 90.0);
        assert_eq!(settings.postmortem_sentinel, SignedDuration::from_hours(2));
        assert_eq!((settings.mode, settings.mode_said), (Mode::Defensive, None));
        assert!(settings.warnings.is_empty());
    }

    #[test]
    fn each_variable_is_heard() {
        let settings = read(&[
            ("METALGUARD_PANIC_GATE_DISABLED", "1"),
            ("METALGUARD_PANIC_COOLDOWN_STAGE1_H", " 0.5 "),
            ("METALGUARD_PANIC_LOCKOUT_24H_N", "4"),
            ("METALGUARD_PANIC_LOCKOUT_72H_N", "7"),
            ("METALGUARD_PANIC_LOCKOUT_MAX_H", "12"),
            ("METALGUARD_POSTMORTEM_DISABLED", "1"),
            ("METALGUARD_POSTMORTEM_SENTINEL_H", "3"),
            ("METALGUARD_SUBPROC_ORPHAN_WATCH_DISABLED", "1"),
            ("METALGUARD_SUBPROC_ORPHAN_THRESHOLD_SEC", "30"),
            ("METALGUARD_MODE", "Observer"),
        ]);
        let gate = GateSettings {
            disabled: true,
            cool_down: SignedDuration::from_mins(30),
            lockout_24h: 4,
            lockout_72h: 7,
            lockout_most: SignedDuration::from_hours(12),
        };
        assert_eq!(settings.gate, gate);
        assert!(settings.postmortem_disabled && settings.orphans_disabled);
        assert_eq!(settings.postmortem_sentinel, SignedDuration::from_hours(3));
        assert_eq!((settings.orphan_seconds, settings.mode), (30.0, Mode::Observer));
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
    }

    #[test]
    fn what_makes_no_sense_is_told_and_changes_nothing() {
        for (name, value) in [
            ("METALGUARD_PANIC_COOLDOWN_STAGE1_H", "NaN"),
            ("METALGUARD_PANIC_COOLDOWN_STAGE1_H", "-1"),
            ("METALGUARD_PANIC_LOCKOUT_MAX_H", "1e300"),
            ("METALGUARD_PANIC_LOCKOUT_24H_N", "two"),
            ("METALGUARD_SUBPROC_ORPHAN_THRESHOLD_SEC", "inf"),
            ("METALGUARD_MODE", "loud"),
        ] {
            let settings = read(&[(name, value)]);
            assert_eq!(settings.gate, GateSettings::default(), "{name}={value}");
            assert_eq!(settings.warnings.len(), 1, "{name}={value}");
            assert!(settings.warnings[0].contains(name));
        }
        // Empty is as good as unset; only 1 switches off.
        let quiet = read(&[("METALGUARD_PANIC_LOCKOUT_24H_N", ""), ("METALGUARD_PANIC_GATE_DISABLED", "0")]);
        assert!(!quiet.gate.disabled && quiet.warnings.is_empty());
    }
}
