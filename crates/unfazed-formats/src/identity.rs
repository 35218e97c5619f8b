//! What tells that a file is the one that was opened.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// Size, time of the last change and inode of a file. Of its device nothing is said: a file system that is mounted again
/// may get another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Bytes.
    pub size: u64,
    /// When its content was last changed: seconds since 1970, and nanoseconds.
    pub modified: (i64, i64),
    /// Inode number.
    pub inode: u64,
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Identity {
        Identity {
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode: metadata.ino(),
        }
    }
}

impl Identity {
    /// What about `now` is different, for people; `None` if nothing is.
    pub fn changed(&self, now: &Identity) -> Option<String> {
        if now.size < self.size {
            Some(format!("it had {} bytes and has {} now", self.size, now.size))
        } else if now.size != self.size {
            Some(format!("it grew from {} bytes to {}", self.size, now.size))
        } else if now.inode != self.inode {
            Some("another file has its name".to_owned())
        } else if now.modified != self.modified {
            Some(format!("it was written at {}", Modified(now.modified)))
        } else {
            None
        }
    }
}

/// Seconds since 1970, as they are in a file's metadata.
struct Modified((i64, i64));

impl fmt::Display for Modified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = self.0;
        write!(f, "{seconds}.{nanoseconds:09} s since 1970")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let file = Identity { size: 10, modified: (5, 0), inode: 7 };
        assert_eq!(file.changed(&file), None);
        let says = |now: Identity, what: &str| assert!(file.changed(&now).unwrap().contains(what), "{what}");
        says(Identity { size: 9, ..file }, "10 bytes and has 9");
        says(Identity { size: 11, ..file }, "grew from 10 bytes to 11");
        says(Identity { inode: 8, ..file }, "another file");
        says(Identity { modified: (5, 1), ..file }, "5.000000001 s");
    }
}
