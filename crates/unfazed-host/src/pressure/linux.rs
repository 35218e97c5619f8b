//! What Linux tells: files that are opened once and read again and again into the same memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Reading;
use crate::cgroup::{self, Group, KILLS, STAT, Version};
use crate::memory::linux::{AVAILABLE, meminfo};

/// Longest file that is read whole: `memory.stat`, the longest, has two to three thousand bytes.
const LONGEST: usize = 16 << 10;

/// All files.
#[derive(Debug)]
pub(super) struct Sources {
    meminfo: Option<File>,
    /// Kills of the whole machine, for where no control group tells.
    vmstat: Option<File>,
    /// Of the whole machine, and of control groups.
    stalls: Vec<File>,
    /// From this process's own up to the root.
    groups: Vec<OpenGroup>,
    text: Box<[u8]>,
    /// Hits and kills when this was opened.
    before: (u64, u64),
}

/// A control group whose files are open.
#[derive(Debug)]
struct OpenGroup {
    version: Version,
    name: String,
    /// By their names; those that there are.
    files: Vec<(&'static str, File)>,
}

impl Sources {
    pub(super) fn open(root: &Path) -> Sources {
        let open = |path: &str| File::open(root.join(path)).ok();
        let found = cgroup::groups(root);
        let stalls = found.iter().filter_map(|group| File::open(group.dir.join("memory.pressure")).ok());
        let mut sources = Sources {
            meminfo: open("proc/meminfo"),
            vmstat: open("proc/vmstat"),
            stalls: open("proc/pressure/memory").into_iter().chain(stalls).collect(),
            groups: found.iter().map(OpenGroup::new).collect(),
            text: vec![0; LONGEST].into_boxed_slice(),
            before: (0, 0),
        };
        let now = sources.look();
        sources.before = (now.hits, now.kills);
        sources
    }

    pub(super) fn name(&self, bound: usize) -> Option<&str> {
        self.groups.get(bound).map(|group| group.name.as_str())
    }

    pub(super) fn look(&mut self) -> Reading {
        let Sources { meminfo: machine, vmstat, stalls, groups, text, before } = self;
        let available = machine.as_ref().and_then(|file| meminfo(read(file, text)?, AVAILABLE));
        let mut reading = Reading { free: available, ..Reading::default() };
        let mut kills = None;
        for (index, group) in groups.iter().enumerate() {
            let mut read = |file, name| group.read(file, name, text);
            reading.hits = reading.hits.saturating_add(group.version.hits(&mut read));
            kills = kills.or_else(|| read(group.version.files().kills, Some(KILLS)));
            let Some(limit) = group.version.limit(&mut read) else { continue };
            let room = limit.saturating_sub(group.version.held(&mut read));
            if reading.free.is_none_or(|free| room < free) {
                (reading.free, reading.bound) = (Some(room), Some(index));
            }
        }
        let machines = || cgroup::field(read(vmstat.as_ref()?, text)?, KILLS);
        let kills = kills.or_else(machines).unwrap_or(0);
        reading.hits = reading.hits.saturating_sub(before.0);
        reading.kills = kills.saturating_sub(before.1);
        for file in stalls.iter() {
            let Some(told) = read(file, text) else { continue };
            reading.some_stalled = larger(reading.some_stalled, share(told, "some"));
            reading.full_stalled = larger(reading.full_stalled, share(told, "full"));
            let total = part(told, "some", "total=").and_then(|total| total.parse::<u64>().ok());
            reading.stalled_total = total.map_or(reading.stalled_total, |total| {
                Some(reading.stalled_total.unwrap_or(0).saturating_add(total))
            });
        }
        reading
    }
}

impl OpenGroup {
    fn new(group: &Group) -> OpenGroup {
        let files = group.version.files();
        let hits = files.hits.iter().map(|(file, _)| *file);
        let names = files.limits.iter().copied().chain([files.usage, STAT, files.kills]).chain(hits);
        let mut open: Vec<(&'static str, File)> = Vec::new();
        for name in names {
            if !open.iter().any(|(other, _)| *other == name) {
                open.extend(File::open(group.dir.join(name)).ok().map(|file| (name, file)));
            }
        }
        OpenGroup { version: group.version, name: format!("the control group {}", group.name), files: open }
    }

    fn read(&self, file: &str, name: Option<&str>, text: &mut [u8]) -> Option<u64> {
        let (_, file) = self.files.iter().find(|(other, _)| *other == file)?;
        let text = read(file, text)?;
        match name {
            Some(name) => cgroup::field(text, name),
            None => cgroup::number(text),
        }
    }
}

/// A file from its beginning on, as far as there is room for it. Such files give what they would say now, in one or more pieces.
fn read<'t>(file: &File, text: &'t mut [u8]) -> Option<&'t str> {
    let mut len = 0;
    while let Some(rest) = text.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    std::str::from_utf8(text.get(..len)?).ok()
}

/// `avg10` of a line of PSI, as a share.
fn share(text: &str, line: &str) -> Option<f32> {
    let percent: f32 = part(text, line, "avg10=")?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

/// What stands behind `name` in the line of PSI that begins with `line`.
fn part<'t>(text: &'t str, line: &str, name: &str) -> Option<&'t str> {
    let line = text.lines().find(|other| other.split_whitespace().next() == Some(line))?;
    line.split_whitespace().find_map(|part| part.strip_prefix(name))
}

fn larger(a: Option<f32>, b: Option<f32>) -> Option<f32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Pressure;
    use super::*;
    use crate::cgroup::machine;

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal: 24000000 kB\nMemFree: 1 kB\nMemAvailable:   8000000 kB\n");

    fn put(root: &tempfile::TempDir, path: &str, text: &str) {
        fs::write(root.path().join(path), text).unwrap();
    }

    #[test]
    fn a_machine_that_tells_nothing_is_none_and_no_error() {
        let root = machine(&[("proc/self/cgroup", "0::/job\n")]);
        let mut pressure = Pressure::open_at(root.path());
        assert_eq!(pressure.look(), Reading::default());
        assert_eq!(pressure.bound(&Reading { bound: Some(7), ..Reading::default() }), None);
    }

    #[test]
    fn version_two_is_read_anew_with_every_limit_on_the_way_up() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/lab/job\n"),
            (
                "proc/pressure/memory",
                "some avg10=1.50 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.50 total=7\n",
            ),
            ("sys/fs/cgroup/lab/memory.max", "6000000000\n"),
            ("sys/fs/cgroup/lab/memory.current", "2000000000\n"),
            ("sys/fs/cgroup/lab/memory.stat", "anon 5\nactive_file 100000000\ninactive_file 1400000000\n"),
            ("sys/fs/cgroup/lab/memory.events.local", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 0\n"),
            ("sys/fs/cgroup/lab/memory.events", "low 0\nhigh 70\nmax 80\noom 1\noom_kill 9\n"),
            ("sys/fs/cgroup/lab/job/memory.max", "max\n"),
            ("sys/fs/cgroup/lab/job/memory.high", "max\n"),
            ("sys/fs/cgroup/lab/job/memory.current", "1000000000\n"),
            ("sys/fs/cgroup/lab/job/memory.events", "low 0\nhigh 2\nmax 3\noom 1\noom_kill 1\n"),
            (
                "sys/fs/cgroup/lab/job/memory.pressure",
                "some avg10=12.00 avg60=1.00 avg300=0.00 total=900\nfull avg10=0.00 total=0\n",
            ),
        ]);
        let mut pressure = Pressure::open_at(root.path());
        let first = pressure.look();
        assert_eq!(
            (first.free, pressure.bound(&first)),
            (Some(5_500_000_000), Some("the control group /lab"))
        );
        assert_eq!((first.some_stalled, first.full_stalled), (Some(0.12), Some(0.005)));
        assert_eq!((first.stalled_total, first.hits, first.kills), (Some(1000), 0, 0));
        put(&root, "sys/fs/cgroup/lab/job/memory.high", "1200000000\n");
        put(&root, "sys/fs/cgroup/lab/job/memory.events", "low 0\nhigh 5\nmax 3\noom 1\noom_kill 3\n");
        put(&root, "sys/fs/cgroup/lab/memory.events.local", "low 0\nhigh 0\nmax 5\noom 1\noom_kill 0\n");
        let second = pressure.look();
        assert_eq!(
            (second.free, pressure.bound(&second)),
            (Some(200_000_000), Some("the control group /lab/job"))
        );
        assert_eq!((second.hits, second.kills), (4, 2), "not what groups beside it hit");
        put(&root, "proc/meminfo", "MemAvailable: 1000 kB\n");
        let third = pressure.look();
        assert_eq!((third.free, pressure.bound(&third)), (Some(1_024_000), None));
    }

    #[test]
    fn version_one_is_read_with_the_limits_that_a_container_does_not_see() {
        let stat = |shmem: u64| {
            format!(
                "cache 5\nhierarchical_memory_limit 6442450944\ntotal_inactive_file 300000000\ntotal_active_file 100000000\ntotal_shmem {shmem}\n"
            )
        };
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/job\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.failcnt", "0\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1000000000\n"),
            ("sys/fs/cgroup/memory/job/memory.failcnt", "11\n"),
            ("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
            ("sys/fs/cgroup/memory/job/memory.stat", &stat(7)),
        ]);
        let mut pressure = Pressure::open_at(root.path());
        let first = pressure.look();
        assert_eq!(
            (first.free, pressure.bound(&first)),
            (Some(5_842_450_944), Some("the control group /job"))
        );
        assert_eq!((first.hits, first.kills, first.some_stalled), (0, 0, None));
        put(&root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "700000000\n");
        put(&root, "sys/fs/cgroup/memory/job/memory.failcnt", "14\n");
        put(
            &root,
            "sys/fs/cgroup/memory/job/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
        );
        let second = pressure.look();
        assert_eq!((second.free, second.hits, second.kills), (Some(100_000_000), 3, 1));
    }

    #[test]
    fn files_that_go_away_or_hold_nonsense_are_left_out() {
        let root = machine(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/job\n"),
            ("proc/pressure/memory", "some avg10=nan total=-1\nfull\n"),
            ("sys/fs/cgroup/job/memory.max", "6000000000\n"),
            ("sys/fs/cgroup/job/memory.current", "many\n"),
            ("sys/fs/cgroup/job/memory.events", "max\nhigh 99999999999999999999\n"),
        ]);
        let mut pressure = Pressure::open_at(root.path());
        let reading = pressure.look();
        assert_eq!((reading.free, reading.some_stalled, reading.hits), (Some(6_000_000_000), None, 0));
        put(&root, "sys/fs/cgroup/job/memory.max", "");
        put(&root, "proc/meminfo", "\u{fffd}");
        assert_eq!(pressure.look().free, None);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let mut pressure = Pressure::open();
        let reading = pressure.look();
        assert!(reading.free.is_some_and(|free| free > 0), "{reading:?}");
    }
}
