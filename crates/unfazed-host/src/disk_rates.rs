//! How fast a disk was measured to be, kept from run to run: one file a disk in the user's cache folder.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache;
use crate::disk::Disk;

/// Of the file's fields and of what is measured.
const VERSION: u32 = 1;
/// More reads at a time than any disk needs.
const MOST_DEPTH: usize = 256;

/// Reads of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomRate {
    /// Bytes of a read.
    pub bytes: u64,
    /// Bytes a second.
    pub bytes_per_second: f64,
}

/// What was measured of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskRates {
    version: u32,
    /// [`Disk::key`].
    disk: String,
    /// When, in UTC (RFC 3339).
    pub measured: String,
    /// Reads at a time that it takes to be as fast as it can be.
    pub depth: usize,
    /// Bytes a second, one read after the other.
    pub sequential: f64,
    /// Reads all over a file, by size.
    pub random: Vec<RandomRate>,
}

impl DiskRates {
    /// Rates that were measured now. `None` for a disk that has no name.
    pub fn now(disk: &Disk, depth: usize, sequential: f64, random: Vec<RandomRate>) -> Option<DiskRates> {
        let measured = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Some(DiskRates { version: VERSION, disk: disk.key()?, measured, depth, sequential, random })
    }

    /// What was measured of a disk before. A file that is damaged, of another version or another disk is none.
    pub fn of(disk: &Disk) -> Option<DiskRates> {
        DiskRates::load(&file(disk)?, disk)
    }

    fn load(path: &Path, disk: &Disk) -> Option<DiskRates> {
        let found: DiskRates = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let sound = |rate: f64| rate.is_finite() && rate > 0.0;
        let right = found.version == VERSION
            && Some(&found.disk) == disk.key().as_ref()
            && (1..=MOST_DEPTH).contains(&found.depth)
            && sound(found.sequential)
            && found.random.iter().all(|rate| sound(rate.bytes_per_second));
        right.then_some(found)
    }

    /// Keeps it. Returns where.
    ///
    /// # Errors
    ///
    /// The system's, or that there is no folder to keep it in.
    pub fn save(&self, disk: &Disk) -> io::Result<PathBuf> {
        let path = file(disk).ok_or(io::ErrorKind::NotFound)?;
        self.save_to(&path)?;
        Ok(path)
    }

    /// Keeps it in a file.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn save_to(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        cache::write(path, &text)
    }

    /// The rate of random reads of this size: that of the next smaller size that was measured, or of the smallest.
    pub fn random(&self, bytes: u64) -> Option<f64> {
        let smaller = self.random.iter().filter(|rate| rate.bytes <= bytes).max_by_key(|rate| rate.bytes);
        let rate = smaller.or_else(|| self.random.iter().min_by_key(|rate| rate.bytes))?;
        Some(rate.bytes_per_second)
    }
}

fn file(disk: &Disk) -> Option<PathBuf> {
    Some(cache::folder()?.join(file_name(disk)?))
}

/// Name of a disk's file in the cache folder. `None` for a disk that has no name.
pub fn file_name(disk: &Disk) -> Option<String> {
    Some(format!("disk-{}.json", cache::file_part(&disk.key()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_for_their_own_disk() {
        let disk = Disk { device: Some("nvme0n1".to_owned()), ..Disk::default() };
        let random = |bytes, rate| RandomRate { bytes, bytes_per_second: rate };
        let rates = DiskRates::now(&disk, 8, 3e9, vec![random(65_536, 1e9), random(1 << 20, 2e9)]).unwrap();
        assert_eq!((rates.random(1000), rates.random(1 << 19)), (Some(1e9), Some(1e9)));
        assert_eq!(rates.random(1 << 30), Some(2e9));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/disk.json");
        rates.save_to(&path).unwrap();
        assert_eq!(DiskRates::load(&path, &disk), Some(rates.clone()));
        let other = Disk { device: Some("sda".to_owned()), ..Disk::default() };
        assert_eq!(DiskRates::load(&path, &other), None);
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in [text.replace("\"depth\": 8", "\"depth\": 0"), text.replace("3000000000.0", "-1.0")] {
            assert_ne!(damaged, text);
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(DiskRates::load(&path, &disk), None);
        }
        assert!(file(&disk).is_none_or(|path| path.ends_with("unfazed/disk-nvme0n1-nvme0n1.json")));
    }
}
