//! Reads in the order of a load, begun before their tensor's turn: between two tensors the disk goes on.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use unfazed_formats::Extent;

use crate::{PendingRead, Reader};

/// Reads that are begun beyond as many as the reader wants under way: they have come, perhaps, and wait for threads that pack.
/// Otherwise the disk would stand still while all threads pack.
const COME: usize = 12;

/// Reads that will be wanted, in order, and those that are under way.
#[derive(Default)]
pub(crate) struct ReadAhead(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// What to read: the tensor's name and the extent.
    coming: VecDeque<(String, Extent)>,
    begun: VecDeque<(Extent, PendingRead)>,
}

impl ReadAhead {
    /// These reads will be wanted, after those that are expected already.
    pub(crate) fn expect(&self, reads: impl IntoIterator<Item = (String, Extent)>) {
        self.lock().coming.extend(reads);
    }

    /// These are wanted next. What was expected before them is not wanted any more.
    pub(crate) fn turn_to(&self, tensor: &str, extents: &[Extent]) {
        let Some(first) = extents.first() else { return };
        let mut queue = self.lock();
        if let Some(at) = queue.begun.iter().position(|(extent, _)| extent == first) {
            queue.begun.drain(..at);
            return;
        }
        // What is under way is of no use; it may be wanted later, and is read then.
        queue.begun.clear();
        match queue.coming.iter().position(|(_, extent)| extent == first) {
            Some(at) => drop(queue.coming.drain(..at)),
            None => extents.iter().rev().for_each(|e| queue.coming.push_front((tensor.to_owned(), *e))),
        }
    }

    /// The read of an extent, begun before or now; others are begun until there are as many as the reader wants, and some.
    pub(crate) fn take(&self, reader: &dyn Reader, tensor: &str, extent: Extent) -> PendingRead {
        let depth = reader.depth();
        if depth <= 1 {
            // A reader that cannot read ahead reads when it begins: not under the lock.
            return reader.begin(tensor, extent);
        }
        let mut queue = self.lock();
        let begun = queue.begun.iter().position(|(begun, _)| *begun == extent);
        let read = match begun.and_then(|at| queue.begun.remove(at)) {
            Some((_, read)) => read,
            None => {
                if let Some(at) = queue.coming.iter().position(|(_, coming)| *coming == extent) {
                    queue.coming.remove(at);
                }
                reader.begin(tensor, extent)
            }
        };
        while queue.begun.len() < depth.saturating_add(COME)
            && let Some((tensor, extent)) = queue.coming.pop_front()
        {
            let read = reader.begin(&tensor, extent);
            queue.begun.push_back((extent, read));
        }
        read
    }

    /// Nothing is wanted any more.
    pub(crate) fn clear(&self) {
        *self.lock() = Queue::default();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
