//! Small files of the kernel's, below `/` or below a folder that looks like it (in tests).

use std::fs;
use std::path::Path;

/// What was found out, or why it was not.
pub(super) type Known<T> = Result<T, String>;

/// A file's text, without white space around it. `path` is relative to the root.
pub(super) fn text(root: &Path, path: &str) -> Known<String> {
    match fs::read(root.join(path)) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(error) => Err(format!("/{path}: {error}")),
    }
}

/// The one number in a file.
#[cfg(target_os = "linux")]
pub(super) fn number<T: std::str::FromStr>(root: &Path, path: &str) -> Known<T> {
    let text = text(root, path)?;
    text.parse().map_err(|_| format!("/{path}: {text:?} is no number"))
}

/// The choice in brackets of a file that lists all there are: `always [madvise] never`.
#[cfg(target_os = "linux")]
pub(super) fn choice(root: &Path, path: &str) -> Known<String> {
    let text = text(root, path)?;
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.map(str::to_owned).ok_or_else(|| format!("/{path}: {text:?} names no choice"))
}

/// The names in a folder, sorted; none if it cannot be read.
#[cfg(target_os = "linux")]
pub(super) fn names(root: &Path, path: &str) -> Vec<String> {
    let entries = fs::read_dir(root.join(path)).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_tell_is_named_with_what_is_wrong_with_it() {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [("three", "3\n"), ("word", "many\n"), ("choice", "always [madvise] never\n")] {
            fs::write(root.path().join(name), text).unwrap();
        }
        assert_eq!(number::<u32>(root.path(), "three"), Ok(3));
        assert!(number::<u32>(root.path(), "word").unwrap_err().contains("/word: \"many\" is no number"));
        assert!(number::<u32>(root.path(), "gone").unwrap_err().starts_with("/gone: "));
        assert_eq!(choice(root.path(), "choice").unwrap(), "madvise");
        assert!(choice(root.path(), "word").unwrap_err().contains("names no choice"));
        assert_eq!(names(root.path(), ""), ["choice", "three", "word"]);
        assert!(names(root.path(), "gone").is_empty());
    }
}
