//! An error belongs to one generation of a device: the first one stays, and a rebuild is what clears it.

use std::fmt;

use thiserror::Error;

use crate::Class;

/// Which device of a process, from 0. Every buffer, slot and page on a device carries the generation that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why a device, or something on it, can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// The device faulted and was not rebuilt.
    #[error("device {generation} has faulted: {class}")]
    Faulted {
        /// The device.
        generation: Generation,
        /// How.
        class: Class,
    },
    /// It is of a device that is no more.
    #[error("this is of device {of}, which was replaced by device {now}")]
    Stale {
        /// The device that it is of.
        of: Generation,
        /// The device that there is.
        now: Generation,
    },
    /// No device of this process can be used again.
    #[error("no device can be used in this process: {class}")]
    Process {
        /// Why.
        class: Class,
    },
}

/// The present generation, and the fault that it had. Drivers report an error once and call later work done, so a fault
/// holds until the device is rebuilt, and then no longer.
#[derive(Debug, Default)]
pub struct Latch {
    now: Generation,
    fault: Option<Class>,
}

impl Latch {
    /// The present generation.
    pub fn generation(&self) -> Generation {
        self.now
    }

    /// The fault of the present generation.
    pub fn fault(&self) -> Option<Class> {
        self.fault
    }

    /// A fault of the device `of`. Whether it counts: one of a device that was replaced does not. The first one stays,
    /// unless a later one ends the use of devices in this process.
    pub fn report(&mut self, of: Generation, class: Class) -> bool {
        if of != self.now {
            return false;
        }
        let first = self.fault.is_none_or(|fault| class.outlives_rebuild() && !fault.outlives_rebuild());
        if first {
            self.fault = Some(class);
        }
        true
    }

    /// Whether what is of the device `of` can be used.
    pub fn check(&self, of: Generation) -> Result<(), Unusable> {
        if of != self.now {
            return Err(Unusable::Stale { of, now: self.now });
        }
        match self.fault {
            Some(class) => Err(Unusable::Faulted { generation: of, class }),
            None => Ok(()),
        }
    }

    /// The device was rebuilt: the next generation, without a fault. Refused if a rebuild does not help.
    pub fn rebuilt(&mut self) -> Result<Generation, Unusable> {
        if let Some(class) = self.fault.filter(|class| class.outlives_rebuild()) {
            return Err(Unusable::Process { class });
        }
        self.now = Generation(self.now.0.wrapping_add(1));
        self.fault = None;
        Ok(self.now)
    }
}
