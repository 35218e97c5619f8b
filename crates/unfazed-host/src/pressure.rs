//! Whether memory is running out, before the kernel kills for it.
//!
//! [`Pressure`] opens what there is to look at once; [`Pressure::look`] reads it again without allocating, as there may be no
//! memory to be had. [`Reading::verdict`] says what should be given up.
//!
//! | source | what |
//! |---|---|
//! | `/proc/meminfo` | memory that can be had without swapping (`MemAvailable`) |
//! | control groups, of this process and all above | the room under each limit, where page cache that can be dropped counts as free; how often a limit was hit |
//! | `/proc/pressure/memory`, `memory.pressure` of a control group of version two | the share of time for which processes waited for memory (PSI; Linux's `Documentation/accounting/psi.rst`) |
//! | macOS's `kern.memorystatus_vm_pressure_level` | 1, 2 or 4: normal, warning, critical |
//!
//! What is missing is `None`: no source is needed.

use std::path::Path;

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

/// Processes that stalled for memory for this share of the last ten seconds say that it is short, whatever the counters say: the
/// kernel takes page cache away that is needed again at once.
const STALLED: f32 = 0.10;
/// What is free must be this many eighths of the reserve before it counts as calm again.
const CALM_EIGHTHS: u64 = 12;

/// What tells of memory pressure, opened.
#[derive(Debug)]
pub struct Pressure {
    #[cfg(target_os = "linux")]
    sources: linux::Sources,
}

/// How memory is now. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// What can be had: the least of what the machine has and of the room under each limit.
    pub free: Option<u64>,
    /// Which limit `free` is the room under, as a number for [`Pressure::bound`]; `None`: the machine's memory.
    pub bound: Option<usize>,
    /// The share of the last ten seconds, from 0 to 1, for which some process waited for memory: the most of all groups that tell.
    pub some_stalled: Option<f32>,
    /// The same for all processes at once: nobody got on.
    pub full_stalled: Option<f32>,
    /// Microseconds for which some process waited for memory so far, all groups that tell added up: it grows while one does.
    pub stalled_total: Option<u64>,
    /// How often a limit was hit or memory could not be had, since this was opened. The kernel made room, or killed.
    pub hits: u64,
    /// Processes that were killed for lack of memory, since this was opened.
    pub kills: u64,
    /// The system itself says that memory is short (macOS).
    pub warned: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is enough: what was given up may be taken again, [`Reading::spare`] bytes of it.
    Calm,
    /// Neither short nor plenty: nothing changes.
    Steady,
    /// It runs out.
    Tight {
        /// Bytes to return to the system; 0 never.
        give_up: u64,
    },
}

impl Pressure {
    /// Opens what there is.
    pub fn open() -> Pressure {
        Pressure::open_at(Path::new("/"))
    }

    /// The same where `root` looks like a machine's root, for tests.
    pub fn open_at(root: &Path) -> Pressure {
        #[cfg(not(target_os = "linux"))]
        let _ = root;
        Pressure {
            #[cfg(target_os = "linux")]
            sources: linux::Sources::open(root),
        }
    }

    /// How memory is now. Allocates nothing (on Linux).
    pub fn look(&mut self) -> Reading {
        #[cfg(target_os = "linux")]
        {
            self.sources.look()
        }
        #[cfg(not(target_os = "linux"))]
        {
            elsewhere::look()
        }
    }

    /// The name of a limit, for people: `the control group /job`.
    pub fn bound(&self, reading: &Reading) -> Option<&str> {
        #[cfg(target_os = "linux")]
        {
            self.sources.name(reading.bound?)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = reading;
            None
        }
    }
}

/// A smaller reserve has no eighths.
const LEAST_RESERVE: u64 = 8;

/// So many eighths of a number, whole ones: ten of them are never less than the number.
fn eighths_of(number: u64, eighths: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(eighths) / 8).unwrap_or(u64::MAX)
}

impl Reading {
    /// What follows from this reading, if `reserve` bytes should stay free. `before` is the reading before it.
    ///
    /// It is *tight* if less than the reserve is free; if processes stalled for memory for more than a tenth of the last ten
    /// seconds and some did since `before`; if a limit was hit or somebody killed since `before`, while less than one and a half
    /// times the reserve is free (a group whose limit is met by page cache hits it all the time and is well); or if the system
    /// says so. Then so much is given up that one and a quarter of the reserve are free, and an eighth of the reserve at least. It is
    /// *calm* once one and a half of the reserve are free and nobody stalls. Between the two nothing changes, so that what is given
    /// up is not taken again at once: whoever takes more than [`Reading::spare`] would be told to give it up again.
    ///
    /// A machine that does not tell how much is free is judged by the rest alone.
    pub fn verdict(&self, before: &Reading, reserve: u64) -> Verdict {
        let reserve = reserve.max(LEAST_RESERVE);
        let part = |eighths| eighths_of(reserve, eighths);
        let free = self.free.unwrap_or(u64::MAX);
        let stalls = self.some_stalled.unwrap_or(0.0) > STALLED;
        // The average lags behind: a stall that is over is none.
        let stalled = stalls && self.stalled_total.is_none_or(|total| Some(total) != before.stalled_total);
        let hit = self.hits > before.hits || self.kills > before.kills;
        let near = free < part(CALM_EIGHTHS);
        if free < reserve || stalled || self.warned || (hit && near) {
            return Verdict::Tight { give_up: part(10).saturating_sub(free).max(part(1)) };
        }
        if near || stalls { Verdict::Steady } else { Verdict::Calm }
    }

    /// Bytes that may be taken while it is calm without its becoming tight: what is free beyond one and a half of the reserve.
    /// 0 where the system does not tell how much is free.
    pub fn spare(&self, reserve: u64) -> u64 {
        self.free.map_or(0, |free| free.saturating_sub(eighths_of(reserve.max(LEAST_RESERVE), CALM_EIGHTHS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading() -> impl Strategy<Value = Reading> {
        let share = || prop::option::of(0.0f32..1.0);
        let free = prop::option::of(prop_oneof![0u64..4000, any::<u64>()]);
        (free, share(), share(), prop::option::of(0u64..5), 0u64..3, 0u64..2, prop::bool::weighted(0.1))
            .prop_map(|(free, some_stalled, full_stalled, stalled_total, hits, kills, warned)| Reading {
                free,
                bound: None,
                some_stalled,
                full_stalled,
                stalled_total,
                hits,
                kills,
                warned,
            })
    }

    fn quiet(free: u64) -> Reading {
        Reading { free: Some(free), ..Reading::default() }
    }

    proptest! {
        #[test]
        fn what_is_given_up_ends_the_tightness_and_is_not_taken_again(
            now in reading(),
            before in reading(),
            reserve in 8u64..2000,
        ) {
            match now.verdict(&before, reserve) {
                Verdict::Tight { give_up } => {
                    prop_assert!(give_up >= reserve / 8);
                    // With so much more free and nothing else wrong it is over, but not yet calm if it was about what is free.
                    let free = now.free.unwrap_or(u64::MAX);
                    let after = quiet(free.saturating_add(give_up)).verdict(&now, reserve);
                    prop_assert!(!matches!(after, Verdict::Tight { .. }), "{:?}", after);
                    prop_assert!(free >= reserve || after == Verdict::Steady);
                }
                Verdict::Calm => {
                    prop_assert!(now.free.is_none_or(|free| free >= reserve));
                    // Taking what can be spared changes nothing.
                    let taken = quiet(now.free.unwrap_or(u64::MAX) - now.spare(reserve));
                    prop_assert_eq!(taken.verdict(&now, reserve), Verdict::Calm);
                }
                Verdict::Steady => prop_assert!(now.free.is_some() || now.some_stalled.is_some()),
            }
        }

        #[test]
        fn less_free_memory_never_means_giving_up_less(
            now in reading(),
            before in reading(),
            reserve in 8u64..2000,
            less in 0u64..4000,
        ) {
            let give_up = |free| match (Reading { free: Some(free), ..now }).verdict(&before, reserve) {
                Verdict::Tight { give_up } => give_up,
                _ => 0,
            };
            let free = now.free.unwrap_or(5000);
            prop_assert!(give_up(free.saturating_sub(less)) >= give_up(free));
        }
    }

    #[test]
    fn between_tight_and_calm_nothing_changes() {
        let verdict = |free| quiet(free).verdict(&Reading::default(), 800);
        assert_eq!(verdict(799), Verdict::Tight { give_up: 201 });
        assert_eq!(verdict(0), Verdict::Tight { give_up: 1000 });
        assert_eq!(
            (verdict(800), verdict(1199), verdict(1200)),
            (Verdict::Steady, Verdict::Steady, Verdict::Calm)
        );
        assert_eq!((quiet(1300).spare(800), quiet(1000).spare(800)), (100, 0));
        // Also where eighths are no whole bytes.
        assert_eq!(quiet(0).verdict(&Reading::default(), 11), Verdict::Tight { give_up: 13 });
        assert_eq!(quiet(13).verdict(&Reading::default(), 11), Verdict::Steady);
    }

    #[test]
    fn stalls_and_limits_that_are_hit_count_when_they_are_new() {
        let before = quiet(10_000);
        let stalled = Reading { some_stalled: Some(0.4), stalled_total: Some(9), ..before };
        assert_eq!(stalled.verdict(&before, 800), Verdict::Tight { give_up: 100 });
        assert_eq!(stalled.verdict(&stalled, 800), Verdict::Steady, "it is over, the average is not");
        let hit = Reading { hits: 3, ..before };
        assert_eq!(hit.verdict(&before, 800), Verdict::Calm, "page cache met its limit");
        let hit = Reading { hits: 3, ..quiet(1100) };
        assert_eq!(hit.verdict(&before, 800), Verdict::Tight { give_up: 100 });
        assert_eq!(hit.verdict(&hit, 800), Verdict::Steady);
        let nothing = Reading::default();
        assert_eq!(nothing.verdict(&nothing, 800), Verdict::Calm, "who tells nothing complains of nothing");
        assert_eq!(nothing.spare(800), 0);
        assert_eq!(
            Reading { warned: true, ..nothing }.verdict(&nothing, 800),
            Verdict::Tight { give_up: 100 }
        );
    }
}
