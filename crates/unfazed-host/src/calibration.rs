//! What was measured of this machine, kept from run to run: one file a machine in the user's cache folder.
//!
//! The file is JSON. It belongs to a machine as [`Machine`] describes it; a file that describes another one (a home folder
//! that several share), that is damaged or of another version is no calibration, and is measured again.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache;

/// Of the file's fields and of what is measured: rates of another version mean something else.
pub const VERSION: u32 = 1;

/// Which machine was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// [`crate::processor_name`].
    pub processor: String,
    /// Processors that the process could use.
    pub processors: usize,
    /// Instruction set of the kernels.
    pub isa: String,
}

/// Rates of the machine with a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Threads that measured together.
    pub threads: usize,
    /// Bytes per second that they read from memory.
    pub read_bytes_per_second: f64,
    /// Multiply-adds of int8 numbers per second.
    pub macs_per_second: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`VERSION`].
    pub version: u32,
    /// When, in UTC (RFC 3339).
    pub measured: String,
    /// Of what.
    pub machine: Machine,
    /// By number of threads.
    pub rates: Vec<Rates>,
}

/// A file that holds no calibration of this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The system refused.
    #[error("{file}: {source}")]
    System {
        /// Which file.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// Its content is none.
    #[error("{file} is damaged or of another version: {reason}")]
    Damaged {
        /// Which file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// It describes another machine.
    #[error("{file} was measured on another machine ({processor}, {processors} processors, {isa})")]
    Foreign {
        /// Which file.
        file: String,
        /// Its processor.
        processor: String,
        /// Its number of processors.
        processors: usize,
        /// Its instruction set.
        isa: String,
    },
}

impl Calibration {
    /// Rates that were measured now.
    pub fn now(machine: Machine, rates: Vec<Rates>) -> Calibration {
        let measured = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Calibration { version: VERSION, measured, machine, rates }
    }

    /// The rates with so many threads.
    pub fn with_threads(&self, threads: usize) -> Option<Rates> {
        self.rates.iter().find(|rates| rates.threads == threads).copied()
    }

    /// Reads a machine's file. `None` if there is none.
    ///
    /// # Errors
    ///
    /// A file that is not this machine's calibration; it may be measured again and written over.
    pub fn load(path: &Path, machine: &Machine) -> Result<Option<Calibration>, CalibrationError> {
        let file = || path.display().to_string();
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CalibrationError::System { file: file(), source }),
        };
        let damaged = |reason: String| CalibrationError::Damaged { file: file(), reason };
        let found: Calibration = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if found.version != VERSION {
            return Err(damaged(format!("version {}, not {VERSION}", found.version)));
        }
        let sound = |rate: f64| rate.is_finite() && rate > 0.0;
        let mut rates = found.rates.iter().flat_map(|r| [r.read_bytes_per_second, r.macs_per_second]);
        if !rates.all(sound) {
            return Err(damaged("a rate is not above zero".to_owned()));
        }
        if found.machine != *machine {
            let Machine { processor, processors, isa } = found.machine;
            return Err(CalibrationError::Foreign { file: file(), processor, processors, isa });
        }
        Ok(Some(found))
    }

    /// Writes it: all of it or nothing, for its owner alone.
    pub fn save(&self, path: &Path) -> Result<(), CalibrationError> {
        self.write(path)
            .map_err(|source| CalibrationError::System { file: path.display().to_string(), source })
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        cache::write(path, &text)
    }
}

/// A machine's file: `unfazed/calibration-PROCESSOR-N-ISA.json` in the user's cache folder (`$XDG_CACHE_HOME`, else
/// `~/.cache`). `None` without a home.
pub fn file(machine: &Machine) -> Option<PathBuf> {
    Some(cache::folder()?.join(file_name(machine)))
}

fn file_name(machine: &Machine) -> String {
    let Machine { processor, processors, isa } = machine;
    format!("calibration-{}-{processors}-{isa}.json", cache::file_part(processor))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn machine() -> Machine {
        Machine { processor: "AMD EPYC (TM) 9554".to_owned(), processors: 2, isa: "avx2".to_owned() }
    }

    fn measured() -> Calibration {
        let rates = Rates { threads: 2, read_bytes_per_second: 20e9, macs_per_second: 250e9 };
        Calibration::now(machine(), vec![rates])
    }

    #[test]
    fn what_is_saved_is_loaded_again_and_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/folder").join(file_name(&machine()));
        assert!(path.ends_with("calibration-amd-epyc-tm-9554-2-avx2.json"));
        assert!(Calibration::load(&path, &machine()).unwrap().is_none());
        let calibration = measured();
        for _ in 0..2 {
            calibration.save(&path).unwrap();
            assert_eq!(Calibration::load(&path, &machine()).unwrap().as_ref(), Some(&calibration));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        assert_eq!(calibration.with_threads(2), Some(calibration.rates[0]));
        assert_eq!(calibration.with_threads(1), None);
    }

    #[test]
    fn a_damaged_file_is_told_from_a_foreign_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calibration.json");
        let load = |machine: &Machine| Calibration::load(&path, machine);
        measured().save(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();

        let other = Machine { processors: 64, ..machine() };
        assert!(matches!(load(&other), Err(CalibrationError::Foreign { processors: 2, .. })));
        let zero = text.replace("20000000000.0", "0.0");
        let newer = text.replace("\"version\": 1", "\"version\": 2");
        assert!(zero != text && newer != text);
        for damaged in [&text[..text.len() / 2], "", "[]", &zero, &newer] {
            std::fs::write(&path, damaged).unwrap();
            assert!(matches!(load(&machine()), Err(CalibrationError::Damaged { .. })), "{damaged}");
        }
    }
}
