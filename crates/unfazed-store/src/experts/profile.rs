//! The usage profile: how often each expert was used, and hashes of what was read for it. Kept from run to run.
//!
//! The file is little-endian: `UFZUSAGE`, version, layers, experts of a layer (4 bytes each), what stands for the model's
//! experts and for its files (8 each), then for each expert its uses (f32) and the XXH3-64 of its three parts as they are
//! in the file (8 each, 0 if it was never read), then the XXH3-64 of all this.

use std::io;
use std::path::Path;

use twox_hash::XxHash3_64;
use unfazed_host::cache;

use super::source::PARTS;
use super::{Unit, Units};
use crate::StoreError;

const MAGIC: [u8; 8] = *b"UFZUSAGE";
/// Of the format.
pub const VERSION: u32 = 1;
const HEAD: usize = 8 + 3 * 4 + 2 * 8;
const ENTRY: usize = 4 + PARTS * 8;
/// Uses of earlier runs count so much: what a machine is used for changes.
const EARLIER_RUNS: f32 = 0.5;

/// What stands for the model and its files: another profile is no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileKey {
    /// Layers and experts.
    pub units: Units,
    /// [`super::source::ExpertSources::fingerprint`].
    pub experts: u64,
    /// Stands for the files: their sizes and times of change. Hashes of other files' bytes are no use.
    pub files: u64,
}

/// Uses and hashes of all experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    key: ProfileKey,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Entry {
    uses: f32,
    hashes: [u64; PARTS],
}

impl Profile {
    /// Nothing was used yet.
    pub fn new(key: ProfileKey) -> Profile {
        Profile { key, entries: vec![Entry::default(); key.units.count().unwrap_or(0) as usize] }
    }

    /// An expert was used.
    pub(crate) fn count(&mut self, unit: Unit) {
        if let Some(entry) = self.entries.get_mut(unit.0 as usize) {
            entry.uses += 1.0;
        }
    }

    /// How often an expert was used; earlier runs count less.
    pub fn uses(&self, unit: Unit) -> f32 {
        self.entries.get(unit.0 as usize).map_or(0.0, |entry| entry.uses)
    }

    /// Remembers the hash of a part's bytes as they are in the file, or returns another one that it had before.
    pub(crate) fn check(&mut self, unit: Unit, part: usize, hash: u64) -> Result<(), u64> {
        // Zero stands for none.
        let hash = hash.max(1);
        let kept = self.entries.get_mut(unit.0 as usize).and_then(|entry| entry.hashes.get_mut(part));
        let Some(kept) = kept else { return Ok(()) };
        if *kept == 0 {
            *kept = hash;
        }
        if *kept == hash { Ok(()) } else { Err(*kept) }
    }

    /// The experts that were used, most used first; those used alike in the order of their numbers.
    pub fn most_used(&self) -> Vec<Unit> {
        let mut units: Vec<Unit> =
            (0..self.entries.len() as u32).map(Unit).filter(|unit| self.uses(*unit) > 0.0).collect();
        units.sort_by(|a, b| self.uses(*b).total_cmp(&self.uses(*a)).then(a.cmp(b)));
        units
    }

    /// Reads a profile. `None` if there is no file, or it is of another model. If the model's files have changed, their
    /// hashes are forgotten and the uses stay.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn load(path: &Path, key: ProfileKey) -> Result<Option<Profile>, StoreError> {
        let refused = |offset: usize, reason: String| StoreError::Trace {
            file: name(path),
            offset: offset as u64,
            reason,
        };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(0, error.to_string())),
        };
        let damaged = |at| refused(at, "this is no usage profile, or a damaged one: delete it".to_owned());
        let (content, hash) = bytes.split_last_chunk::<8>().ok_or_else(|| damaged(0))?;
        if content.get(..8) != Some(&MAGIC[..]) || content.len() < HEAD {
            return Err(damaged(0));
        }
        if XxHash3_64::oneshot(content) != u64::from_le_bytes(*hash) {
            return Err(damaged(content.len()));
        }
        let [version, layers, experts] = [8, 12, 16].map(|at| word(content, at));
        if version != VERSION {
            return Err(refused(8, format!("version {version}; this program reads version {VERSION}")));
        }
        let found = ProfileKey {
            units: Units { layers, experts },
            experts: long(content, 20),
            files: long(content, 28),
        };
        if (found.units, found.experts) != (key.units, key.experts) {
            return Ok(None);
        }
        let mut profile = Profile::new(key);
        let entries = content.get(HEAD..).unwrap_or_default().chunks(ENTRY);
        if entries.len() != profile.entries.len() {
            return Err(damaged(HEAD));
        }
        for (entry, bytes) in profile.entries.iter_mut().zip(entries) {
            let uses = f32::from_bits(word(bytes, 0)) * EARLIER_RUNS;
            entry.uses = if uses.is_finite() && uses >= 0.0 { uses } else { 0.0 };
            if found.files == key.files {
                entry.hashes = std::array::from_fn(|part| long(bytes, 4 + part * 8));
            }
        }
        Ok(Some(profile))
    }

    /// Writes it: all of it or nothing, for its owner alone.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let ProfileKey { units, experts, files } = self.key;
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, units.layers, units.experts] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([experts, files].iter().flat_map(|number| number.to_le_bytes()));
        for Entry { uses, hashes } in &self.entries {
            bytes.extend(uses.to_le_bytes());
            bytes.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
        }
        bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
        cache::write(path, &bytes)
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ProfileKey {
        ProfileKey { units: Units { layers: 2, experts: 3 }, experts: 7, files: 8 }
    }

    #[test]
    fn what_is_saved_is_loaded_and_counts_half() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/model.usage");
        assert_eq!(Profile::load(&path, key()).unwrap(), None);
        let mut profile = Profile::new(key());
        for unit in [4, 1, 4, 4, 1, 0] {
            profile.count(Unit(unit));
        }
        assert_eq!(profile.check(Unit(4), 2, 99), Ok(()));
        profile.save(&path).unwrap();
        let mut loaded = Profile::load(&path, key()).unwrap().unwrap();
        assert_eq!(loaded.most_used(), [Unit(4), Unit(1), Unit(0)]);
        assert_eq!(loaded.uses(Unit(4)), 1.5);
        assert_eq!(loaded.check(Unit(4), 2, 98), Err(99));
        assert_eq!(loaded.check(Unit(4), 1, 98), Ok(()), "never read");
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    #[test]
    fn hashes_are_of_the_files_and_uses_are_of_the_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.usage");
        let mut profile = Profile::new(key());
        profile.count(Unit(1));
        profile.check(Unit(1), 0, 5).unwrap();
        profile.save(&path).unwrap();
        let touched = ProfileKey { files: 9, ..key() };
        let mut loaded = Profile::load(&path, touched).unwrap().unwrap();
        assert_eq!((loaded.uses(Unit(1)), loaded.check(Unit(1), 0, 6)), (0.5, Ok(())));
        let other = ProfileKey { experts: 0, ..key() };
        assert_eq!(Profile::load(&path, other).unwrap(), None);
    }

    #[test]
    fn a_file_with_a_bit_off_or_cut_short_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.usage");
        Profile::new(key()).save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            std::fs::write(&path, &damaged).unwrap();
            let error = Profile::load(&path, key()).unwrap_err().to_string();
            assert!(error.contains("model.usage"), "{error}");
            std::fs::write(&path, &bytes[..at]).unwrap();
            assert!(Profile::load(&path, key()).is_err(), "cut at {at}");
        }
    }
}
