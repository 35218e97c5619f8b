//! Whether processes do anything at all: what can be seen of it from outside.

use std::time::Duration;

/// What the processes of a group have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Time on processors of those that are there.
    pub cpu: Duration,
    /// Bytes read from storage; 0 where the system does not tell.
    pub read_bytes: u64,
    /// The group's leader was stopped by a signal and computes nothing.
    pub stopped: bool,
}

/// Of the process group with this number. `None` if it has no process, or if nothing can be known.
pub fn of_group(group: u32) -> Option<Activity> {
    #[cfg(target_os = "linux")]
    {
        linux::of_group(std::path::Path::new("/proc"), group)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let columns = ["-A", "-o", "pgid=,pid=,state=,time="];
        let output = std::process::Command::new("ps").args(columns).output().ok()?;
        table::of_group(&String::from_utf8_lossy(&output.stdout), group)
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::Activity;

    /// `proc` is `/proc`, or a folder that looks like it (in tests).
    pub(super) fn of_group(proc: &Path, group: u32) -> Option<Activity> {
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        let (mut ticks, mut all) = (0u64, None::<Activity>);
        for entry in fs::read_dir(proc).ok()?.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A process may end at any moment.
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some(process) = Process::parse(&stat).filter(|process| process.group == group) else {
                continue;
            };
            let all = all.get_or_insert_default();
            ticks = ticks.saturating_add(process.ticks);
            all.stopped |= pid == group && matches!(process.state, 'T' | 't');
            let io = fs::read_to_string(entry.path().join("io")).unwrap_or_default();
            all.read_bytes = all.read_bytes.saturating_add(read_bytes(&io).unwrap_or(0));
        }
        let cpu = Duration::from_secs_f64(ticks as f64 / hertz as f64);
        all.map(|all| Activity { cpu, ..all })
    }

    struct Process {
        state: char,
        group: u32,
        ticks: u64,
    }

    impl Process {
        /// From `/proc/PID/stat` (man 5 proc). A program's name may hold anything, brackets too.
        fn parse(stat: &str) -> Option<Process> {
            let (_, rest) = stat.rsplit_once(')')?;
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
            Some(Process {
                state: fields.first()?.chars().next()?,
                group: fields.get(2)?.parse().ok()?,
                ticks: ticks(11)?.saturating_add(ticks(12)?),
            })
        }
    }

    fn read_bytes(io: &str) -> Option<u64> {
        io.lines().find_map(|line| line.strip_prefix("read_bytes:")?.trim().parse().ok())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_processes_of_a_group_add_up_and_others_do_not_count() {
            let proc = tempfile::tempdir().unwrap();
            let hertz = rustix::param::clock_ticks_per_second();
            let process = |pid: u32, state: &str, group: u32, io: &str| {
                let folder = proc.path().join(pid.to_string());
                fs::create_dir(&folder).unwrap();
                let stat =
                    format!("{pid} (a) b) {state} 1 {group} 1 0 -1 0 0 0 0 0 {hertz} {hertz} 9 9 20 0");
                fs::write(folder.join("stat"), stat).unwrap();
                fs::write(folder.join("io"), io).unwrap();
            };
            process(7, "T", 7, "rchar: 5\nread_bytes: 100\nwrite_bytes: 1\n");
            process(8, "S", 7, "nonsense");
            process(9, "R", 9, "read_bytes: 1000\n");
            let activity = of_group(proc.path(), 7).unwrap();
            let expected = Activity { cpu: Duration::from_secs(4), read_bytes: 100, stopped: true };
            assert_eq!(activity, expected);
            assert!(!of_group(proc.path(), 9).unwrap().stopped);
            assert_eq!(of_group(proc.path(), 10), None);
        }
    }
}

/// What `ps` prints.
#[cfg(any(test, not(target_os = "linux")))]
mod table {
    use std::time::Duration;

    use super::Activity;

    /// Lines of group, process, state and time on processors.
    pub(super) fn of_group(table: &str, group: u32) -> Option<Activity> {
        let mut all = None::<Activity>;
        for line in table.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [of, pid, state, time] = fields[..] else { continue };
            if of.parse() != Ok(group) {
                continue;
            }
            let all = all.get_or_insert_default();
            all.cpu = all.cpu.saturating_add(seconds(time).unwrap_or_default());
            all.stopped |= pid.parse() == Ok(group) && state.starts_with('T');
        }
        all
    }

    /// `[[days-]hours:]minutes:seconds[.hundredths]`.
    fn seconds(time: &str) -> Option<Duration> {
        let (days, time) = time.split_once('-').unwrap_or(("0", time));
        let mut seconds = 0.0;
        for part in time.split(':') {
            seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
        }
        let days = days.parse::<f64>().ok()? * 86_400.0;
        Duration::try_from_secs_f64(days + seconds).ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn times_are_read_as_ps_writes_them() {
            let table =
                "  7   7 Ts   0:01.50\n  7  8 S 1:00:02\n  9 9 R 5:00.00\nnonsense\n  7 10 R 1-00:00:00\n";
            let activity = of_group(table, 7).unwrap();
            assert_eq!(activity.cpu, Duration::from_secs_f64(1.5 + 3602.0 + 86400.0));
            assert!(activity.stopped);
            assert!(!of_group(table, 9).unwrap().stopped);
            assert_eq!(of_group(table, 11), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_and_its_work_counts() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get().unsigned_abs();
        let before = of_group(group).unwrap();
        assert!(!before.stopped);
        let start = std::time::Instant::now();
        let mut worked = 0u64;
        while of_group(group).unwrap().cpu <= before.cpu {
            worked = std::hint::black_box(worked.wrapping_mul(3).wrapping_add(1));
            assert!(start.elapsed() < Duration::from_secs(30), "work does not count");
        }
    }
}
