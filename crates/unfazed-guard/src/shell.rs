//! The block in a shell's profile that asks the gate before python begins. It covers interactive shells: what launchd starts reads
//! no profile and has to ask the gate itself.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;
use unfazed_host::cache;

use crate::outside_file;

const BEGIN: &str = "# >>> unfazed guard >>>";
const END: &str = "# <<< unfazed guard <<<";
/// No profile is longer.
const MOST_BYTES: usize = 4 << 20;
/// Programs that use the GPU, as they are typed.
const PROGRAMS: [&str; 5] = ["python", "python3", "mlx_lm.server", "mlx_lm.generate", "mlx_lm.chat"];

/// A shell whose profile takes the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// `.zshrc`.
    Zsh,
    /// `.bashrc`; on macOS `.bash_profile`, as its terminals start login shells.
    Bash,
}

impl Shell {
    /// The shell of a program, as `SHELL` names it.
    pub fn of(program: &str) -> Option<Shell> {
        match program.rsplit('/').next()? {
            "zsh" => Some(Shell::Zsh),
            "bash" => Some(Shell::Bash),
            _ => None,
        }
    }

    /// Its profile. `folder` is where zsh looks for it instead of the home folder.
    pub fn profile(self, home: &Path, folder: Option<&Path>) -> PathBuf {
        match self {
            Shell::Zsh => folder.unwrap_or(home).join(".zshrc"),
            Shell::Bash if cfg!(target_os = "macos") => home.join(".bash_profile"),
            Shell::Bash => home.join(".bashrc"),
        }
    }
}

/// Why a profile stays as it is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Its block has no end, or more than one beginning.
    #[error("{}: the block of unfazed guard is not whole: remove what is left of it by hand", path.display())]
    Torn {
        /// The profile.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    System {
        /// The profile.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The block, which runs this program.
pub fn block(program: &str) -> String {
    let program = format!("'{}'", program.replace('\'', r"'\''"));
    let functions: String = PROGRAMS
        .iter()
        .map(|name| format!("function {name} {{ _unfazed_guard {name} \"$@\"; }}\n"))
        .collect();
    format!(
        r#"{BEGIN}
# After a kernel panic of a GPU driver, these programs wait until `unfazed guard panic-gate` lets them begin.
# Off: export METALGUARD_SHELL_GUARD_DISABLED=1. Once in spite of it: MLX_SAFE_PYTHON_FORCE=1 python ...
# To remove this block: unfazed guard install --uninstall
function _unfazed_guard {{
  if [ "${{METALGUARD_SHELL_GUARD_DISABLED:-0}}" != 1 ] && [ -x {program} ]; then
    case "${{2:-}} ${{3:-}}" in
      "-m pip"|"-m pip."*|"-m pip3"|"-m pip3."*|"-m build"|"-m venv"|"-m virtualenv"|"-m ensurepip"|"-m tomllib") ;;
      "--version "|"-V "|"--help "|"-h ") ;;
      *)
        local said code
        said=$({program} guard panic-gate 2>&1 </dev/null)
        code=$?
        if [ $code -eq 2 ] && [ "${{MLX_SAFE_PYTHON_FORCE:-0}}" != 1 ]; then
          printf '%s\n' "$said" "$1 was not started. In spite of it: MLX_SAFE_PYTHON_FORCE=1 $1 ..." >&2
          return 10
        elif [ $code -ne 0 ]; then
          printf '%s\n' "$said" "$1 starts in spite of it." >&2
        fi ;;
    esac
  fi
  command "$@"
}}
{functions}{END}
"#
    )
}

/// What was done to a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was there already, or was not.
    Nothing,
    /// The block was added or removed.
    Changed,
    /// Another block was replaced.
    Replaced,
}

/// Puts the block into a profile, in place of an earlier one.
///
/// # Errors
///
/// See [`ProfileError`]; then the profile is as it was.
pub fn install(profile: &Path, block: &str) -> Result<Done, ProfileError> {
    let text = read(profile)?;
    let (before, old, after) = split(&text, profile)?;
    if old == block.as_bytes() {
        return Ok(Done::Nothing);
    }
    let mut new = before.to_vec();
    if old.is_empty() && !new.is_empty() {
        // Apart from what others wrote.
        let gap: &[u8] = if new.ends_with(b"\n") { b"\n" } else { b"\n\n" };
        new.extend_from_slice(gap);
    }
    new.extend_from_slice(block.as_bytes());
    new.extend_from_slice(after);
    write(profile, &new)?;
    Ok(if old.is_empty() { Done::Changed } else { Done::Replaced })
}

/// Takes the block out of a profile.
///
/// # Errors
///
/// See [`ProfileError`]; then the profile is as it was.
pub fn uninstall(profile: &Path) -> Result<Done, ProfileError> {
    let text = read(profile)?;
    let (before, old, after) = split(&text, profile)?;
    if old.is_empty() {
        return Ok(Done::Nothing);
    }
    // The gap was ours.
    let before = before.strip_suffix(b"\n").filter(|before| before.ends_with(b"\n")).unwrap_or(before);
    write(profile, &[before, after].concat())?;
    Ok(Done::Changed)
}

/// What stands before the block, the block with its last line break, and what stands behind.
type Split<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// Looks for the block.
fn split<'a>(text: &'a [u8], profile: &Path) -> Result<Split<'a>, ProfileError> {
    let mut at = 0;
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match line.trim_ascii() {
            line if line == BEGIN.as_bytes() => begins.push(at),
            mark if mark == END.as_bytes() => ends.push(at + line.len()),
            _ => {}
        }
        at += line.len();
    }
    match (begins.as_slice(), ends.as_slice()) {
        ([], []) => Ok((text, &[], &[])),
        ([begin], [end]) if begin < end => {
            let (head, after) = text.split_at(*end);
            let (before, block) = head.split_at(*begin);
            Ok((before, block, after))
        }
        _ => Err(ProfileError::Torn { path: profile.to_owned() }),
    }
}

fn read(profile: &Path) -> Result<Vec<u8>, ProfileError> {
    let failed = |source| ProfileError::System { path: profile.to_owned(), source };
    match outside_file::read(profile, MOST_BYTES + 1) {
        Ok(text) if text.len() > MOST_BYTES => Err(failed(io::Error::other("it is too long for a profile"))),
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}

/// Writes all of it or nothing, with the rights that it had, and where a link leads.
fn write(profile: &Path, text: &[u8]) -> Result<(), ProfileError> {
    let write = || {
        let (path, rights) = match fs::canonicalize(profile) {
            Ok(path) => (path.clone(), Some(fs::metadata(path)?.permissions())),
            Err(error) if error.kind() == ErrorKind::NotFound => (profile.to_owned(), None),
            Err(error) => return Err(error),
        };
        cache::write(&path, text)?;
        fs::set_permissions(&path, rights.unwrap_or_else(usual_rights))
    };
    write().map_err(|source| ProfileError::System { path: profile.to_owned(), source })
}

fn usual_rights() -> Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_profile_that_had_it_and_lost_it_is_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let profile = folder.path().join(".zshrc");
        for text in ["", "alias ll='ls -l'\n", "no line break", "a\n\n", "\n"] {
            std::fs::write(&profile, text).unwrap();
            assert_eq!(install(&profile, &block("/bin/unfazed")).unwrap(), Done::Changed);
            let once = std::fs::read_to_string(&profile).unwrap();
            assert!(once.starts_with(text) && once.ends_with(&block("/bin/unfazed")), "{once}");
            assert_eq!(install(&profile, &block("/bin/unfazed")).unwrap(), Done::Nothing);
            assert_eq!(std::fs::read_to_string(&profile).unwrap(), once);
            assert_eq!(install(&profile, &block("/opt/unfazed")).unwrap(), Done::Replaced);
            assert_eq!(std::fs::read_to_string(&profile).unwrap().matches(BEGIN).count(), 1);
            assert_eq!(uninstall(&profile).unwrap(), Done::Changed);
            let after = std::fs::read_to_string(&profile).unwrap();
            assert_eq!(after.trim_end_matches('\n'), text.trim_end_matches('\n'));
            assert_eq!(uninstall(&profile).unwrap(), Done::Nothing);
        }
    }

    #[test]
    fn what_stands_around_the_block_stays() {
        let folder = tempfile::tempdir().unwrap();
        let profile = folder.path().join(".bashrc");
        std::fs::write(&profile, "before\n").unwrap();
        install(&profile, &block("/bin/unfazed")).unwrap();
        let mut text = std::fs::read(&profile).unwrap();
        text.extend_from_slice(b"after \xff\n");
        std::fs::write(&profile, &text).unwrap();
        install(&profile, &block("/opt/unfazed")).unwrap();
        assert!(std::fs::read(&profile).unwrap().ends_with(b"after \xff\n"));
        uninstall(&profile).unwrap();
        assert_eq!(std::fs::read(&profile).unwrap(), b"before\nafter \xff\n");
    }

    #[test]
    fn a_torn_block_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let profile = folder.path().join(".bashrc");
        for text in [
            format!("{BEGIN}\nx\n"),
            format!("{END}\n"),
            format!("{END}\n{BEGIN}\n"),
            block("a") + &block("b"),
        ] {
            std::fs::write(&profile, &text).unwrap();
            assert!(matches!(install(&profile, &block("c")), Err(ProfileError::Torn { .. })), "{text}");
            assert!(matches!(uninstall(&profile), Err(ProfileError::Torn { .. })));
            assert_eq!(std::fs::read_to_string(&profile).unwrap(), text);
        }
    }

    #[test]
    fn a_link_stays_one_and_rights_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join(".zshrc"), folder.path().join("dotfiles"));
        std::fs::write(&file, "x\n").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        install(&link, &block("/bin/unfazed")).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(std::fs::read_to_string(&file).unwrap().contains(BEGIN));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_programs_name_cannot_leave_its_quotes() {
        let block = block("/a b/it's $(x)");
        assert!(block.contains(r"'/a b/it'\''s $(x)' guard panic-gate"), "{block}");
    }

    #[test]
    fn shells_are_told_by_their_name() {
        assert_eq!(Shell::of("/bin/zsh"), Some(Shell::Zsh));
        assert_eq!(Shell::of("/usr/local/bin/bash"), Some(Shell::Bash));
        assert_eq!((Shell::of("/usr/bin/fish"), Shell::of("")), (None, None));
        let home = Path::new("/h");
        assert_eq!(Shell::Zsh.profile(home, Some(Path::new("/z"))), Path::new("/z/.zshrc"));
        assert_eq!(Shell::Zsh.profile(home, None), Path::new("/h/.zshrc"));
    }
}
