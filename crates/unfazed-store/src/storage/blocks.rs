//! Memory that reads go to: aligned blocks, kept and used again.
//!
//! A block has one owner at any time: the pool, a read that is under way, or who asked for the bytes. A read whose
//! deadline was missed keeps its block until the system lets go of it, so nobody else sees the late bytes.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Buffer, StoreError};

/// Blocks start and end on such a boundary, which every direct read accepts.
pub const BLOCK_ALIGNMENT: usize = 4096;
/// A free block is used for a read that needs at least this part of it: `1 / FIT`.
const FIT: usize = 4;

/// Blocks of such sizes are made several at a time, in one piece of memory that the system can back with huge pages: a drive
/// is given few long pieces of memory instead of many short ones.
const TOGETHER: usize = 8;
const TOGETHER_FROM: usize = 256 << 10;
const TOGETHER_TO: usize = 2 << 20;

/// Equal pieces of one piece of memory.
pub(crate) fn together(what: &str, count: usize, len: usize) -> Result<Vec<Buffer<u8>>, StoreError> {
    let mut rest = Buffer::zeroed(what, count.saturating_mul(len))?;
    let mut pieces = Vec::with_capacity(count);
    while let Some((piece, others)) = std::mem::take(&mut rest).split(len)
        && !piece.is_empty()
    {
        pieces.push(piece);
        rest = others;
    }
    Ok(pieces)
}

/// A piece of memory for one read.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) memory: Buffer<u8>,
    /// Its number in the ring that it is registered with.
    pub(crate) registered: Option<u16>,
}

/// Blocks that nobody uses.
#[derive(Debug)]
pub(crate) struct Blocks {
    free: Mutex<Vec<Block>>,
    /// Most bytes that are kept free, registered blocks aside.
    keep: usize,
}

impl Blocks {
    /// Keeps up to `keep` bytes for later.
    pub(crate) fn new(keep: usize) -> Blocks {
        Blocks { free: Mutex::default(), keep }
    }

    /// A block of at least `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Result<Block, StoreError> {
        let fits = |block: &Block| {
            block.memory.len() >= len && (block.registered.is_some() || block.memory.len() / FIT <= len)
        };
        let mut free = self.lock();
        // Registered ones first: the system has pinned them already.
        let best = (0..free.len()).filter(|&i| free.get(i).is_some_and(fits));
        let best = best.min_by_key(|&i| free.get(i).map(|b| (b.registered.is_none(), b.memory.len())));
        if let Some(best) = best {
            return Ok(free.remove(best));
        }
        drop(free);
        let refused = || StoreError::Memory { what: "a read".to_owned(), bytes: len as u64 };
        let len = len.max(1).checked_next_multiple_of(BLOCK_ALIGNMENT).ok_or_else(refused)?;
        if !(TOGETHER_FROM..=TOGETHER_TO).contains(&len) {
            return Ok(Block { memory: Buffer::zeroed("a read", len)?, registered: None });
        }
        let mut blocks = together("reads", TOGETHER, len)?.into_iter();
        let first = blocks.next().ok_or_else(refused)?;
        self.lock().extend(blocks.map(|memory| Block { memory, registered: None }));
        Ok(Block { memory: first, registered: None })
    }

    /// Takes a block back.
    pub(crate) fn give(&self, block: Block) {
        let mut free = self.lock();
        free.push(block);
        let mut kept: usize = free.iter().filter(|b| b.registered.is_none()).map(|b| b.memory.len()).sum();
        // The one that was used longest ago goes: reads of another size took the place of those that it was for.
        while kept > self.keep
            && let Some(oldest) = free.iter().position(|b| b.registered.is_none())
        {
            kept -= free.remove(oldest).memory.len();
        }
    }

    /// Gives free memory back to the system, but for blocks that are registered.
    pub(crate) fn let_go(&self) {
        self.lock().retain(|block| block.registered.is_some());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that were read. Its memory is used for other reads when it is dropped.
#[derive(Debug)]
pub struct ReadBuffer {
    block: Option<Block>,
    range: Range<usize>,
    blocks: Option<Arc<Blocks>>,
}

impl ReadBuffer {
    /// `len` zeros in memory of their own.
    ///
    /// # Errors
    ///
    /// [`StoreError::Memory`].
    pub fn zeroed(len: usize) -> Result<ReadBuffer, StoreError> {
        let block = Block { memory: Buffer::zeroed("a read", len)?, registered: None };
        Ok(ReadBuffer { block: Some(block), range: 0..len, blocks: None })
    }

    /// A part of a block, which goes back to `blocks` in the end. The part is cut where the block ends.
    pub(crate) fn part(block: Block, range: Range<usize>, blocks: &Arc<Blocks>) -> ReadBuffer {
        let end = range.end.min(block.memory.len());
        let range = range.start.min(end)..end;
        ReadBuffer { block: Some(block), range, blocks: Some(Arc::clone(blocks)) }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.block.as_ref().and_then(|block| block.memory.get(self.range.clone()));
        bytes.unwrap_or_default()
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.block.as_mut().and_then(|block| block.memory.get_mut(self.range.clone()));
        bytes.unwrap_or_default()
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        if let (Some(block), Some(blocks)) = (self.block.take(), &self.blocks) {
            blocks.give(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_for_reads_of_about_its_size() {
        let blocks = Arc::new(Blocks::new(64 << 10));
        let first = blocks.take(10_000).unwrap();
        assert_eq!((first.memory.len(), first.memory.as_ptr().addr() % BLOCK_ALIGNMENT), (12_288, 0));
        let address = first.memory.as_ptr().addr();
        drop(ReadBuffer::part(first, 5..10_000, &blocks));
        assert_ne!(blocks.take(100).unwrap().memory.as_ptr().addr(), address, "far too large");
        assert_eq!(blocks.take(9_000).unwrap().memory.as_ptr().addr(), address);
    }

    #[test]
    fn no_more_is_kept_than_was_said() {
        let blocks = Arc::new(Blocks::new(8192));
        let all: Vec<_> = (0..5).map(|_| blocks.take(4096).unwrap()).collect();
        all.into_iter().for_each(|block| blocks.give(block));
        assert_eq!(blocks.lock().len(), 2);
        blocks.give(blocks.take(8192).unwrap());
        assert_eq!(
            blocks.lock().iter().map(|b| b.memory.len()).collect::<Vec<_>>(),
            [8192],
            "the latest stay"
        );
        blocks.let_go();
        assert!(blocks.lock().is_empty());
        assert!(blocks.take(usize::MAX).is_err());
    }

    #[test]
    fn a_part_is_cut_where_its_block_ends() {
        let blocks = Arc::new(Blocks::new(0));
        let part = ReadBuffer::part(blocks.take(4096).unwrap(), 4000..9000, &blocks);
        assert_eq!(part.len(), 96);
        let part = ReadBuffer::part(blocks.take(4096).unwrap(), 9000..9001, &blocks);
        assert!(part.is_empty());
    }
}
