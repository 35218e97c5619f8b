//! The model's files, as each engine gets them: opened once, and again by name where their mount went away and came back.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use unfazed_formats::source::{ByteSource, FileSource};

/// How long looking at the files may take: on a mount that hangs it takes for ever, and the engine waits better than the front.
const LOOK: Duration = Duration::from_secs(2);

/// All of them, in order.
pub(crate) struct ModelFiles(Mutex<Vec<ModelFile>>);

#[derive(Clone)]
struct ModelFile {
    source: Arc<FileSource>,
    /// Where it was when it was opened, if the system says so.
    path: Option<PathBuf>,
}

impl ModelFiles {
    /// Files as they were opened.
    pub(crate) fn new(files: Vec<FileSource>) -> ModelFiles {
        let file = |source: FileSource| ModelFile { path: path_of(source.file()), source: Arc::new(source) };
        ModelFiles(Mutex::new(files.into_iter().map(file).collect()))
    }

    /// What the next engine gets.
    pub(super) fn to_hand_over(&self) -> Vec<Arc<FileSource>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (looked, at) = channel();
        let as_they_were = files.clone();
        // Left behind where it hangs.
        let look = move || {
            let files: Vec<ModelFile> = as_they_were.into_iter().map(ModelFile::looked_at).collect();
            let _ = looked.send(files);
        };
        if thread::Builder::new().name("files".to_owned()).spawn(look).is_ok()
            && let Ok(fresh) = at.recv_timeout(LOOK)
        {
            *files = fresh;
        }
        files.iter().map(|file| Arc::clone(&file.source)).collect()
    }
}

impl ModelFile {
    /// Itself, or the same file opened anew if this descriptor is of a mount that is gone. A file that changed is the engine's to
    /// refuse.
    fn looked_at(self) -> ModelFile {
        if self.source.file().metadata().is_ok() {
            return self;
        }
        let open = |path: &PathBuf| FileSource::new(self.source.name(), File::open(path).ok()?).ok();
        let again = self.path.as_ref().and_then(open);
        match again.filter(|again| again.identity() == self.source.identity()) {
            Some(again) => {
                tracing::info!(file = again.name(), "a file was opened again: its mount had gone away");
                ModelFile { source: Arc::new(again), ..self }
            }
            None => self,
        }
    }
}

#[cfg(target_os = "linux")]
fn path_of(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(not(target_os = "linux"))]
fn path_of(_: &File) -> Option<PathBuf> {
    None
}
