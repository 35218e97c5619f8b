//! The user's cache folder, where measurements are kept from run to run.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// `unfazed` in the user's cache folder (`$XDG_CACHE_HOME`, else `~/.cache`). `None` without a home.
pub fn folder() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .and_then(|folder| absolute(PathBuf::from(folder)))
        .or_else(|| Some(absolute(std::env::home_dir()?)?.join(".cache")))?;
    Some(cache.join("unfazed"))
}

/// Writes a file, and its folder if there is none: all of it or nothing, for its owner alone.
///
/// # Errors
///
/// The system's.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    std::fs::create_dir_all(folder)?;
    // A new file of this kind has the rights 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// A name for people as a part of a file's name: lower case, words joined by hyphens, no longer than 100 letters.
pub fn file_part(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' }).collect();
    let words: Vec<&str> = name.split_whitespace().collect();
    words.join("-").chars().take(100).collect()
}
