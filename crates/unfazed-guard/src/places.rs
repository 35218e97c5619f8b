//! Where reports and state are.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Where macOS puts reports of the whole machine.
const MACHINE_REPORTS: &str = "/Library/Logs/DiagnosticReports";
/// The same of one user, in the home folder.
const USER_REPORTS: &str = "Library/Logs/DiagnosticReports";
/// Where macOS moves reports that are some days old, below each of them.
const RETIRED: &str = "Retired";
/// The log of breadcrumbs, in the working folder or in the home folder.
const BREADCRUMBS: &str = "logs/metal_breadcrumb.log";

/// Nobody says where the user's files are.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "HOME is not set to a folder, so there is no state to read: set it (launchd: EnvironmentVariables in the plist)"
)]
pub struct NoHome;

/// A folder with reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    /// It was asked for by name, so it must be there. Others may be missing: then there are no reports.
    pub must_exist: bool,
}

/// All places of one user.
#[derive(Clone, Debug)]
pub struct Places {
    home: PathBuf,
    reports: Vec<Folder>,
    breadcrumbs: Vec<PathBuf>,
}

impl Places {
    /// The places of a user with this home folder. `reports` and `breadcrumbs` take the place of the usual ones.
    ///
    /// # Errors
    ///
    /// No home folder, or one that is not absolute.
    pub fn new(
        home: Option<PathBuf>,
        reports: Option<PathBuf>,
        breadcrumbs: Option<PathBuf>,
    ) -> Result<Places, NoHome> {
        let home = home.filter(|home| home.is_absolute()).ok_or(NoHome)?;
        let folder = |path: PathBuf, must_exist| {
            [
                Folder { path: path.clone(), must_exist },
                Folder { path: path.join(RETIRED), must_exist: false },
            ]
        };
        let reports = match reports {
            Some(path) => folder(path, true).to_vec(),
            None => {
                let mut all = folder(PathBuf::from(MACHINE_REPORTS), false).to_vec();
                all.extend(folder(home.join(USER_REPORTS), false));
                all
            }
        };
        let breadcrumbs = match breadcrumbs {
            Some(path) => vec![path],
            None => vec![PathBuf::from(BREADCRUMBS), home.join(BREADCRUMBS)],
        };
        Ok(Places { home, reports, breadcrumbs })
    }

    /// Folders with reports.
    pub fn reports(&self) -> &[Folder] {
        &self.reports
    }

    /// Where breadcrumbs may be; the first that is there counts.
    pub fn breadcrumbs(&self) -> &[PathBuf] {
        &self.breadcrumbs
    }

    /// The user's home folder.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A cool-down that somebody asked for.
    pub fn sentinel(&self) -> PathBuf {
        self.home.join(".cache/metal-guard/panic-sentinel.json")
    }

    /// What is known, written for other programs.
    pub fn status(&self) -> PathBuf {
        self.home.join(".cache/metal-guard/status.json")
    }

    /// Somebody has looked at the panics.
    pub fn ack(&self) -> PathBuf {
        self.home.join(".metal-guard-ack")
    }

    /// The breaker of metal-guard's library.
    pub fn breaker(&self) -> PathBuf {
        self.home.join(".metal-guard/breaker.json")
    }

    /// All panics that metal-guard's library has seen.
    pub fn panics_jsonl(&self) -> PathBuf {
        self.home.join(".metal-guard/panics.jsonl")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_places_are_metal_guards() {
        let places = Places::new(Some("/h".into()), None, None).unwrap();
        let reports: Vec<_> = places.reports().iter().map(|folder| folder.path.to_str().unwrap()).collect();
        assert_eq!(
            reports,
            [
                "/Library/Logs/DiagnosticReports",
                "/Library/Logs/DiagnosticReports/Retired",
                "/h/Library/Logs/DiagnosticReports",
                "/h/Library/Logs/DiagnosticReports/Retired"
            ]
        );
        assert!(places.reports().iter().all(|folder| !folder.must_exist));
        assert_eq!(places.ack(), Path::new("/h/.metal-guard-ack"));
        assert_eq!(places.sentinel(), Path::new("/h/.cache/metal-guard/panic-sentinel.json"));
        assert_eq!(places.breadcrumbs()[0], Path::new("logs/metal_breadcrumb.log"));
    }

    #[test]
    fn a_folder_that_is_named_must_be_there_and_a_home_must_be_absolute() {
        let places = Places::new(Some("/h".into()), Some("/r".into()), Some("/b".into())).unwrap();
        assert_eq!(places.reports()[0], Folder { path: "/r".into(), must_exist: true });
        assert_eq!(places.reports()[1], Folder { path: "/r/Retired".into(), must_exist: false });
        assert_eq!(places.breadcrumbs(), [PathBuf::from("/b")]);
        for home in [None, Some(PathBuf::new()), Some("here".into())] {
            assert_eq!(Places::new(home, None, None).unwrap_err(), NoHome);
        }
    }
}
