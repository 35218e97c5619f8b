//! What only Macs have. Facts are texts of `sysctl` and `pmset`; judging them needs no Mac.

use super::files::Known;
use super::finding::{Finding, size};
use super::memory::Swap;
use crate::metal::{self, RELAXED_TIMEOUT};

/// Above this share of memory, in per cent, the wired limit is a danger. The number is metal-guard's (`audit_wired_limit`).
const MOST_WIRED: u64 = 85;

/// What a Mac tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mac {
    /// `hw.memsize`, in bytes.
    pub(super) memory: Known<u64>,
    /// `iogpu.wired_limit_mb`; 0 leaves the choice to the system.
    pub(super) wired_mib: Known<u64>,
    /// `AGX_RELAX_CDM_CTXSTORE_TIMEOUT` as it is set here.
    pub(super) timeout: Option<String>,
    /// What `pmset -g` says.
    pub(super) power: Known<String>,
    /// `sysctl.proc_translated`: 1 where this program runs under Rosetta.
    pub(super) translated: Known<u64>,
}

/// The number in what `sysctl -n NAME` says.
pub(super) fn number(name: &str, text: &str) -> Known<u64> {
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("sysctl knows no {name}"));
    }
    text.parse().map_err(|_| format!("sysctl says {text:?} of {name}, which is no number"))
}

/// Of what `sysctl -n vm.swapusage` says: `total = 2048.00M  used = 1023.25M  free = 1024.75M  (encrypted)`.
pub(super) fn swap(text: &str) -> Known<Swap> {
    let field = |name: &str| {
        let (_, rest) = text.split_once(name)?;
        let number: f64 = rest.trim_start_matches([' ', '=']).split('M').next()?.parse().ok()?;
        // Floats saturate as integers.
        Some((number * f64::from(1 << 20)) as u64)
    };
    let (total, used) = field("total")
        .zip(field("used"))
        .ok_or_else(|| format!("sysctl says {:?} of vm.swapusage", text.trim()))?;
    Ok(Swap { total, used, swappiness: None })
}

/// The number of a setting in what `pmset -g` says: ` displaysleep         10 (display sleep prevented by ...)`.
fn setting(power: &str, name: &str) -> Option<u64> {
    let line = power.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

pub(super) fn judge_wired(mac: &Mac) -> Finding {
    const CHECK: &str = "wired_limit";
    let (memory, wired) = match (&mac.memory, &mac.wired_mib) {
        (Ok(memory), Ok(wired)) => (*memory, *wired),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown(CHECK, why),
    };
    if wired == 0 {
        return Finding::ok(
            CHECK,
            "iogpu.wired_limit_mb is 0",
            "the system chooses how much a GPU may keep in place",
        );
    }
    let bytes = wired.saturating_mul(1 << 20);
    let percent = bytes.saturating_mul(100) / memory.max(1);
    let found = format!("iogpu.wired_limit_mb is {wired}, {percent} % of {}", size(memory));
    if percent > MOST_WIRED {
        let reason = format!(
            "above {MOST_WIRED} % leaves the system too little; wiring is what kernel panics of IOGPUFamily were traced to (ml-explore/mlx 3186)"
        );
        return Finding::warn(CHECK, found, reason).command("sudo sysctl iogpu.wired_limit_mb=0");
    }
    Finding::ok(CHECK, found, format!("no more than {MOST_WIRED} %: the system has the rest"))
}

pub(super) fn judge_timeout(mac: &Mac) -> Finding {
    const CHECK: &str = "metal_timeout";
    let current = mac.timeout.as_deref();
    match (current, metal::relaxed_timeout("macos", current.map(AsRef::as_ref))) {
        (_, Some(value)) => Finding::ok(
            CHECK,
            format!("{RELAXED_TIMEOUT} is not set"),
            format!("the server sets it to {value} for its engine, before Metal is used"),
        ),
        (Some("1"), None) => Finding::ok(
            CHECK,
            format!("{RELAXED_TIMEOUT} is 1"),
            "the GPU's work may take longer while a display is on",
        ),
        (value, None) => Finding::note(
            CHECK,
            format!("{RELAXED_TIMEOUT} is {:?}", value.unwrap_or_default()),
            "it stays as you set it: long work of the GPU is ended while a display is on (Impacting Interactivity)",
        )
        .command(format!("unset {RELAXED_TIMEOUT}")),
    }
}

pub(super) fn judge_power(mac: &Mac) -> Vec<Finding> {
    let power = match &mac.power {
        Ok(power) => power,
        Err(why) => return vec![Finding::unknown("display_sleep", why), Finding::unknown("sleep", why)],
    };
    let display = match setting(power, "displaysleep") {
        None => Finding::unknown("display_sleep", "pmset -g tells nothing of displaysleep"),
        Some(0) => Finding::note(
            "display_sleep",
            "displays never sleep",
            "while one is on, long work of the GPU is ended for its sake (Impacting Interactivity); asleep it is not",
        )
        .command("sudo pmset -a displaysleep 5"),
        Some(minutes) => Finding::ok(
            "display_sleep",
            format!("displays sleep after {minutes} min"),
            "while they do, no work of the GPU is ended for their sake",
        ),
    };
    let sleep = match setting(power, "sleep") {
        None => Finding::unknown("sleep", "pmset -g tells nothing of sleep"),
        Some(0) => Finding::ok("sleep", "the machine stays awake", "answers go on while nobody is there"),
        Some(minutes) => Finding::note(
            "sleep",
            format!("the machine sleeps after {minutes} min"),
            "answers stand still until it wakes up; a server that runs under caffeinate keeps it awake",
        )
        .command("caffeinate -i unfazed serve"),
    };
    let mut findings = vec![display, sleep];
    if setting(power, "lowpowermode") == Some(1) {
        findings.push(
            Finding::note("low_power", "low power mode is on", "the processor is slower than it could be")
                .command("sudo pmset -a lowpowermode 0"),
        );
    }
    findings
}

/// Nothing where the program is the processor's own.
pub(super) fn judge_translation(mac: &Mac) -> Option<Finding> {
    (mac.translated == Ok(1)).then(|| {
        Finding::warn(
            "rosetta",
            "this program is translated from x86",
            "one built for this processor is several times as fast",
        )
        .command(
            "rustup target add aarch64-apple-darwin; cargo build --release --target aarch64-apple-darwin",
        )
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) mod facts {
    use std::process::Command;

    use super::{Mac, number};
    use crate::audit::files::Known;
    use crate::memory::jetsam;
    use crate::metal::RELAXED_TIMEOUT;

    /// Asks the system.
    pub(in crate::audit) fn read() -> Mac {
        let ask = |name| number(name, &jetsam::read(name));
        Mac {
            memory: ask("hw.memsize"),
            wired_mib: ask("iogpu.wired_limit_mb"),
            timeout: std::env::var_os(RELAXED_TIMEOUT).map(|value| value.to_string_lossy().into_owned()),
            power: power(),
            translated: ask("sysctl.proc_translated"),
        }
    }

    fn power() -> Known<String> {
        let output = Command::new("/usr/bin/pmset").arg("-g").output();
        let output = output.map_err(|error| format!("pmset cannot be asked: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    const POWER: &str = "System-wide power settings:\nCurrently in use:\n standby              1\n Sleep On Power Button 1\n \
                         sleep                1 (sleep prevented by coreaudiod)\n displaysleep         10\n lowpowermode         0\n";

    fn mac() -> Mac {
        Mac {
            memory: Ok(64 << 30),
            wired_mib: Ok(0),
            timeout: None,
            power: Ok(POWER.to_owned()),
            translated: Ok(0),
        }
    }

    #[test]
    fn a_wired_limit_above_85_per_cent_of_memory_is_a_warning() {
        let judged = |mib| judge_wired(&Mac { wired_mib: Ok(mib), ..mac() });
        assert_eq!(judged(0).verdict, Verdict::Ok);
        let most = (64 << 10) * 85 / 100;
        assert_eq!(judged(most).verdict, Verdict::Ok);
        let over = judged((64 << 10) * 87 / 100);
        assert_eq!(over.verdict, Verdict::Warn);
        assert!(over.found.contains("86 % of 64.0 GiB"), "{}", over.found);
        assert_eq!(over.command.unwrap(), "sudo sysctl iogpu.wired_limit_mb=0");
        assert_eq!(judged(u64::MAX).verdict, Verdict::Warn);
        let older = Mac { wired_mib: number("iogpu.wired_limit_mb", ""), ..mac() };
        assert_eq!(judge_wired(&older).verdict, Verdict::Unknown);
    }

    #[test]
    fn the_time_out_is_the_servers_to_set_unless_the_user_did() {
        let judged =
            |value: Option<&str>| judge_timeout(&Mac { timeout: value.map(str::to_owned), ..mac() }).verdict;
        assert_eq!(judged(None), Verdict::Ok);
        assert_eq!(judged(Some("1")), Verdict::Ok);
        assert_eq!((judged(Some("0")), judged(Some(""))), (Verdict::Note, Verdict::Note));
    }

    #[test]
    fn sleep_of_displays_and_machine_is_read_from_pmset() {
        let judged = |power: &str| {
            let findings = judge_power(&Mac { power: Ok(power.to_owned()), ..mac() });
            findings.into_iter().map(|finding| (finding.check, finding.verdict)).collect::<Vec<_>>()
        };
        assert_eq!(judged(POWER), [("display_sleep", Verdict::Ok), ("sleep", Verdict::Note)]);
        let never = judged(" displaysleep 0\n sleep 0\n lowpowermode 1\n");
        let expected =
            [("display_sleep", Verdict::Note), ("sleep", Verdict::Ok), ("low_power", Verdict::Note)];
        assert_eq!(never, expected);
        assert_eq!(judged("gibberish"), [("display_sleep", Verdict::Unknown), ("sleep", Verdict::Unknown)]);
        let closed = judge_power(&Mac { power: Err("no pmset".to_owned()), ..mac() });
        assert!(closed.iter().all(|finding| finding.verdict == Verdict::Unknown));
    }

    #[test]
    fn swap_is_read_from_sysctl() {
        let text = "total = 2048.00M  used = 1023.25M  free = 1024.75M  (encrypted)\n";
        let expected = Swap { total: 2 << 30, used: 1_072_955_392, swappiness: None };
        assert_eq!(swap(text), Ok(expected));
        for wrong in ["", "total = many  used = 0", "used = 1.0M"] {
            assert!(swap(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_translated_program_is_a_warning_and_one_that_is_not_is_no_line() {
        assert_eq!(judge_translation(&mac()), None);
        assert_eq!(judge_translation(&Mac { translated: Err("unknown".to_owned()), ..mac() }), None);
        assert_eq!(judge_translation(&Mac { translated: Ok(1), ..mac() }).unwrap().verdict, Verdict::Warn);
    }
}
