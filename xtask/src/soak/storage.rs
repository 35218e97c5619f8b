//! The model's file system: one that is slow, fails and goes away as it is told to.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use unfazed_testkit::fuse::FaultyMount;

/// Bytes a second of a slow disk.
const SLOW: u64 = 3_000_000;
/// Input/output error.
const EIO: i32 = 5;
/// Longest wait for reads that are to fail: where all experts that are needed are in memory there are none.
const READS: Duration = Duration::from_secs(2);

/// A mounted model.
pub(super) struct Storage(Arc<Mutex<FaultyMount>>);

impl Storage {
    /// Mounts the model in a folder; `None` where no such file system can be mounted.
    pub(super) fn new(folder: &Path, model: &Path) -> Result<Option<Storage>> {
        std::fs::create_dir_all(folder)?;
        let mount = FaultyMount::new(folder, model).with_context(|| model.display().to_string())?;
        Ok(mount.map(|mount| Storage(Arc::new(Mutex::new(mount)))))
    }

    /// Where the model is.
    pub(super) fn file(&self) -> PathBuf {
        lock(&self.0).file()
    }

    /// Reads since it was mounted first.
    pub(super) fn reads(&self) -> usize {
        lock(&self.0).reads()
    }

    pub(super) fn slow(&self, slow: bool) {
        lock(&self.0).behave(|behaviour| behaviour.bytes_per_second = slow.then_some(SLOW));
    }

    pub(super) fn stall(&self, stalled: bool) {
        lock(&self.0).behave(|behaviour| behaviour.stalled = stalled);
    }

    /// So many reads fail; waits until they have.
    pub(super) async fn fail_reads(&self, count: usize) {
        lock(&self.0).behave(|behaviour| behaviour.failing = Some((EIO, count)));
        let all_failed = async {
            loop {
                let mut left = 0;
                lock(&self.0).behave(|behaviour| left = behaviour.failing.map_or(0, |(_, left)| left));
                if left == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(READS, all_failed).await;
        lock(&self.0).behave(|behaviour| behaviour.failing = None);
    }

    pub(super) async fn vanish(&self) -> Result<()> {
        self.blocking(FaultyMount::vanish).await.context("cannot unmount the model")
    }

    pub(super) async fn come_back(&self) -> Result<()> {
        self.blocking(FaultyMount::mount).await.context("cannot mount the model again")
    }

    async fn blocking(&self, act: fn(&mut FaultyMount) -> std::io::Result<()>) -> Result<()> {
        let mount = Arc::clone(&self.0);
        Ok(tokio::task::spawn_blocking(move || act(&mut lock(&mount))).await??)
    }
}

fn lock(mount: &Mutex<FaultyMount>) -> MutexGuard<'_, FaultyMount> {
    mount.lock().unwrap_or_else(PoisonError::into_inner)
}
