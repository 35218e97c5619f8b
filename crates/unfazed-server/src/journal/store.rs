//! The journal on disk as the store of tapes.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::disk::{Disk, State, StreamKey};
use super::tape::{Store, StoreState};

fn key(number: u128) -> StreamKey {
    StreamKey(number.to_be_bytes())
}

/// The number of a stream.
pub(crate) fn number(StreamKey(bytes): StreamKey) -> u128 {
    u128::from_be_bytes(bytes)
}

impl Store for Disk {
    fn admit(&self, number: u128, admission: Vec<u8>) -> BoxFuture<'static, Result<(), String>> {
        Disk::admit(self, key(number), admission).map(|kept| kept.map_err(|error| error.to_string())).boxed()
    }

    fn append(&self, number: u128, entry: Vec<u8>) {
        Disk::append(self, key(number), entry);
    }

    fn append_written(&self, number: u128, entry: Vec<u8>) -> BoxFuture<'static, ()> {
        // What is not kept is told as an event, and computed again after a restart.
        Disk::append_written(self, key(number), entry).map(drop).boxed()
    }

    fn forget(&self, number: u128) {
        Disk::forget(self, key(number));
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), String>> {
        Disk::flush(self).map(|flushed| flushed.map_err(|error| error.to_string())).boxed()
    }

    fn state(&self) -> StoreState {
        let State { bytes, live_bytes, streams, unsynced_bytes, gaps, broken, stuck, .. } = Disk::state(self);
        StoreState { bytes, live_bytes, streams, unsynced_bytes, gaps, broken, stuck }
    }
}
