//! The fault atlas: which faults there are, and when each comes. docs/reliability.md tells what has to follow.

use anyhow::{Result, bail};

use super::draw::Draw;

/// Tokens that clients receive between one fault's end and the next one.
const GAP: std::ops::RangeInclusive<u64> = 30..=300;
/// How long a fault holds that has a duration, in milliseconds. Longer than `--stall-ms`, at times.
const HOLD: std::ops::RangeInclusive<u64> = 500..=3000;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// The engine gets SIGKILL.
    Kill,
    /// The engine gets SIGSEGV.
    Segv,
    /// The engine gets SIGABRT.
    Abort,
    /// The engine gets SIGBUS.
    Bus,
    /// The engine gets SIGSTOP: it hangs.
    Stop,
    /// The engine ends with an exit code, at any instruction.
    Exit,
    /// Somebody else takes nearly all of the memory that the server may have.
    Squeeze,
    /// Somebody else takes all of it, and the kernel ends a process.
    OutOfMemory,
    /// The model's file system is slow.
    Slow,
    /// Reads of the model hang.
    Stall,
    /// Reads of the model fail, and then no more.
    ReadErrors,
    /// The model's file system goes away and returns.
    Unmount,
}

/// A fault of the device, which the program brings about by itself (`--fault-plan`).
pub(super) const DEVICE: &str = "device";

impl Class {
    pub(super) const ALL: [Class; 12] = [
        Class::Kill,
        Class::Segv,
        Class::Abort,
        Class::Bus,
        Class::Stop,
        Class::Exit,
        Class::Squeeze,
        Class::OutOfMemory,
        Class::Slow,
        Class::Stall,
        Class::ReadErrors,
        Class::Unmount,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Kill => "kill",
            Class::Segv => "segv",
            Class::Abort => "abort",
            Class::Bus => "bus",
            Class::Stop => "stop",
            Class::Exit => "exit",
            Class::Squeeze => "squeeze",
            Class::OutOfMemory => "out-of-memory",
            Class::Slow => "slow",
            Class::Stall => "stall",
            Class::ReadErrors => "read-errors",
            Class::Unmount => "unmount",
        }
    }

    pub(super) fn group(self) -> &'static str {
        match self {
            Class::Kill | Class::Segv | Class::Abort | Class::Bus | Class::Stop | Class::Exit => "engine",
            Class::Squeeze | Class::OutOfMemory => "memory",
            Class::Slow | Class::Stall | Class::ReadErrors | Class::Unmount => "storage",
        }
    }

    /// How often it comes beside the others.
    fn weight(self) -> u64 {
        match self {
            Class::Kill => 6,
            Class::Segv | Class::Abort | Class::Bus | Class::Exit | Class::Stop => 4,
            Class::OutOfMemory | Class::Stall | Class::Unmount | Class::ReadErrors => 3,
            Class::Squeeze | Class::Slow => 2,
        }
    }
}

/// Faults that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) classes: Vec<Class>,
    pub(super) device: bool,
}

impl Wanted {
    /// Reads a list of classes and groups of classes; `all` is everything.
    pub(super) fn parse(list: &str) -> Result<Wanted> {
        let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        for name in &names {
            let known = Class::ALL.iter().any(|class| [class.name(), class.group()].contains(name));
            if !known && ![DEVICE, "all"].contains(name) {
                bail!(
                    "--faults {list}: {name} is none of {}",
                    Class::ALL.map(Class::name).join(", ") + ", engine, memory, storage, device, all"
                );
            }
        }
        let wants = |name: &str| names.contains(&name) || names.contains(&"all");
        let classes = Class::ALL.into_iter().filter(|class| wants(class.name()) || wants(class.group()));
        Ok(Wanted { classes: classes.collect(), device: wants(DEVICE) })
    }

    pub(super) fn has(&self, group: &str) -> bool {
        self.classes.iter().any(|class| class.group() == group)
    }

    /// Leaves out what cannot be had here.
    pub(super) fn without(&mut self, out: impl Fn(Class) -> bool) {
        self.classes.retain(|class| !out(*class));
    }
}

/// What else happens with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Also {
    Nothing,
    /// The next engine is killed as soon as its process is there.
    KillLoading,
    /// The next engine is killed as soon as it is ready.
    KillReady,
    /// The engine is killed while the fault holds.
    KillMeanwhile,
}

/// A fault and when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) class: Class,
    /// Tokens that clients receive before it, from the recovery from the last one on.
    pub(super) gap: u64,
    /// How long it holds, where it has a duration.
    pub(super) hold_ms: u64,
    /// How many reads fail; MiB that a squeeze leaves, or takes too much.
    pub(super) amount: u64,
    pub(super) also: Also,
}

/// The fault of a number. `classes` must not be empty.
pub(super) fn fault(seed: u64, number: u64, classes: &[Class]) -> Fault {
    let draw = &mut Draw::new(seed, "fault", number);
    let weighed: Vec<Class> =
        classes.iter().flat_map(|class| std::iter::repeat_n(*class, class.weight() as usize)).collect();
    let class = *draw.pick(&weighed);
    let (gap, hold_ms, amount) = (draw.within(GAP), draw.within(HOLD), draw.within(1..=16));
    // SIGKILL from outside speaks against no request, so that a second one at once may not cost any.
    let also = match class.group() {
        "engine" if draw.percent(15) => *draw.pick(&[Also::KillLoading, Also::KillReady]),
        "storage" if draw.percent(25) => Also::KillMeanwhile,
        _ => Also::Nothing,
    };
    Fault { class, gap, hold_ms, amount, also }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_and_all_classes_come() {
        let faults = |seed| (0..300).map(|number| fault(seed, number, &Class::ALL)).collect::<Vec<_>>();
        assert_eq!(faults(1), faults(1));
        assert_ne!(faults(1), faults(2));
        for class in Class::ALL {
            assert!(faults(1).iter().any(|fault| fault.class == class), "{class:?}");
        }
        for also in [Also::Nothing, Also::KillLoading, Also::KillReady, Also::KillMeanwhile] {
            assert!(faults(1).iter().any(|fault| fault.also == also), "{also:?}");
        }
    }

    #[test]
    fn faults_are_chosen_by_class_and_by_group() {
        let classes = |list: &str| Wanted::parse(list).unwrap().classes;
        assert_eq!(classes("kill, memory"), [Class::Kill, Class::Squeeze, Class::OutOfMemory]);
        assert_eq!(classes("all"), Class::ALL);
        assert_eq!(Wanted::parse("device").unwrap(), Wanted { classes: Vec::new(), device: true });
        let error = Wanted::parse("kill,flood").unwrap_err().to_string();
        assert!(error.contains("flood is none of kill, "), "{error}");
    }
}
