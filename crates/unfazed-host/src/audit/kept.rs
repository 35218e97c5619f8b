//! What was measured of this machine before, and whether it can be kept.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::files::Known;
use super::finding::Finding;
use crate::Calibration;
use crate::disk::Disk;
use crate::disk_rates::DiskRates;

/// Measurements, and where they are kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kept {
    /// Of memory and arithmetic; `None`: not measured, or the reason why what is kept is of no use.
    pub(super) calibration: Known<Option<Calibration>>,
    /// What the folder is stored on, and what was measured of it.
    pub(super) disk: Known<(Disk, Option<DiskRates>)>,
    /// What is asked about: a model, or the current folder.
    pub(super) place: String,
    /// The folder for all of it, if there is one and this user may write there.
    pub(super) folder: Known<PathBuf>,
}

/// The user's cache folder, if files can be made there.
pub(super) fn folder() -> Known<PathBuf> {
    let folder = crate::cache::folder().ok_or("there is no home folder and no XDG_CACHE_HOME")?;
    writable(&folder).map(|()| folder.clone()).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Whether a folder can be written to, or made.
fn writable(folder: &Path) -> std::io::Result<()> {
    let there = folder.ancestors().find(|folder| folder.exists());
    Ok(access(there.unwrap_or(Path::new("/")), Access::WRITE_OK | Access::EXEC_OK)?)
}

pub(super) fn judge_folder(kept: &Kept) -> Finding {
    const CHECK: &str = "cache_folder";
    match &kept.folder {
        Ok(folder) => Finding::ok(
            CHECK,
            folder.display().to_string(),
            "measured rates and which experts are used are kept there",
        ),
        Err(why) => {
            Finding::note(CHECK, why, "measured rates and which experts are used are forgotten at each end")
                .command("export XDG_CACHE_HOME=FOLDER")
        }
    }
}

pub(super) fn judge_calibration(kept: &Kept) -> Finding {
    const CHECK: &str = "calibration";
    const MEASURE: &str = "unfazed calibrate";
    match &kept.calibration {
        Ok(Some(calibration)) => {
            let best =
                calibration.rates.iter().max_by(|a, b| a.macs_per_second.total_cmp(&b.macs_per_second));
            let rates = best.map_or(String::new(), |best| {
                format!(
                    ": {:.1} GB/s of memory, {:.0} GMAC/s with {} threads",
                    best.read_bytes_per_second / 1e9,
                    best.macs_per_second / 1e9,
                    best.threads
                )
            });
            let day = calibration.measured.split('T').next().unwrap_or_default();
            Finding::ok(CHECK, format!("measured {day}{rates}"), "speeds are predicted from that")
        }
        Ok(None) => {
            Finding::note(CHECK, "not measured yet", "no speed is predicted, by plans and at the start")
                .command(MEASURE)
        }
        Err(why) => Finding::note(CHECK, why, "no speed is predicted").command(MEASURE),
    }
}

pub(super) fn judge_disk(kept: &Kept) -> Finding {
    const CHECK: &str = "disk";
    let place = &kept.place;
    let (disk, rates) = match &kept.disk {
        Ok((disk, rates)) => (disk, rates),
        Err(why) => return Finding::unknown(CHECK, why),
    };
    let Some(rates) = rates else {
        let reason = match disk.caution() {
            Some(caution) => caution,
            None => "how long models load, and how fast experts can be streamed, is not known".to_owned(),
        };
        let found = format!("{place} is on {disk}, not measured yet");
        return Finding::note(CHECK, found, reason).command("unfazed doctor -m MODEL");
    };
    let day = rates.measured.split('T').next().unwrap_or_default();
    let random =
        rates.random(1 << 20).map_or(String::new(), |rate| format!(", {:.0} MB/s at random", rate / 1e6));
    let found =
        format!("{place} is on {disk}: {:.0} MB/s in a row{random}, measured {day}", rates.sequential / 1e6);
    match disk.caution() {
        Some(caution) => Finding::note(CHECK, found, caution),
        None => Finding::ok(CHECK, found, "plans predict from that how fast experts are streamed"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::calibration::{Machine, Rates};
    use crate::disk_rates::RandomRate;

    fn nothing() -> Kept {
        Kept {
            calibration: Ok(None),
            disk: Ok((Disk { file_system: Some("ext4".to_owned()), ..Disk::default() }, None)),
            place: "this folder".to_owned(),
            folder: Ok(PathBuf::from("/home/me/.cache/unfazed")),
        }
    }

    #[test]
    fn what_was_not_measured_is_a_note_with_the_command_that_measures() {
        let calibration = judge_calibration(&nothing());
        assert_eq!(
            (calibration.verdict, calibration.command.as_deref()),
            (Verdict::Note, Some("unfazed calibrate"))
        );
        let disk = judge_disk(&nothing());
        assert_eq!(disk.found, "this folder is on ext4, not measured yet");
        assert_eq!((disk.verdict, disk.command.as_deref()), (Verdict::Note, Some("unfazed doctor -m MODEL")));
        let foreign = Kept { calibration: Err("of another machine".to_owned()), ..nothing() };
        assert_eq!(judge_calibration(&foreign).found, "of another machine");
    }

    #[test]
    fn what_was_measured_is_told() {
        let machine = Machine { processor: "A Chip".to_owned(), processors: 2, isa: "avx2".to_owned() };
        let rates = |threads, macs| Rates { threads, read_bytes_per_second: 20e9, macs_per_second: macs };
        let calibration = Calibration::now(machine, vec![rates(1, 50e9), rates(2, 90e9)]);
        let day = calibration.measured[..10].to_owned();
        let told = judge_calibration(&Kept { calibration: Ok(Some(calibration)), ..nothing() });
        assert_eq!(told.verdict, Verdict::Ok);
        assert_eq!(told.found, format!("measured {day}: 20.0 GB/s of memory, 90 GMAC/s with 2 threads"));

        let disk = nothing().disk.unwrap().0;
        let random = vec![RandomRate { bytes: 1 << 20, bytes_per_second: 8e8 }];
        let rates = DiskRates::now(&disk, 4, 1.5e9, random);
        let told = judge_disk(&Kept { disk: Ok((disk.clone(), rates.clone())), ..nothing() });
        assert_eq!(told.verdict, Verdict::Ok);
        assert!(told.found.contains("1500 MB/s in a row, 800 MB/s at random"), "{}", told.found);
        let usb = Disk { usb: true, ..disk };
        assert_eq!(judge_disk(&Kept { disk: Ok((usb, rates)), ..nothing() }).verdict, Verdict::Note);
        let unknown = Kept { disk: Err("gone".to_owned()), ..nothing() };
        assert_eq!(judge_disk(&unknown).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_note() {
        assert_eq!(judge_folder(&nothing()).verdict, Verdict::Ok);
        assert_eq!(
            judge_folder(&Kept { folder: Err("closed".to_owned()), ..nothing() }).verdict,
            Verdict::Note
        );
        let there = tempfile::tempdir().unwrap();
        assert!(writable(&there.path().join("not/yet")).is_ok());
        let file = there.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(writable(&file.join("below")).is_err());
    }
}
