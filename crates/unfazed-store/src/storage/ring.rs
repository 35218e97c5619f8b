//! Reads through io_uring: one ring, restricted to reads, and one thread that takes what has come.
//!
//! The ring owns the memory of a read from its submission until the kernel says that it is over, whoever waits for it or
//! has ceased to. If the kernel never says so, the memory is never used again.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, opcode, register::Restriction, squeue, types};

use super::RING_LOCKED_BYTES;
use super::blocks::{Block, Blocks, together};
use super::files::Handles;

/// Reads that are in the kernel at a time; more wait here.
const ENTRIES: u32 = 64;
/// Bytes of a registered block.
pub(crate) const REGISTERED_BLOCK: usize = 1 << 20;
/// Number of the request that only wakes the thread up.
const WAKE: u64 = u64::MAX;
/// Submissions are tried so often while the kernel is out of something.
const SUBMIT_ATTEMPTS: usize = 100;

/// A ring for reads.
#[derive(Debug)]
pub(crate) struct Ring(Arc<Shared>);

struct Shared {
    ring: IoUring,
    state: Mutex<State>,
    blocks: Arc<Blocks>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// In the kernel, by number.
    flying: HashMap<u64, Flight>,
    waiting: VecDeque<Flight>,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// A direct read.
struct Flight {
    handles: Arc<Handles>,
    offset: u64,
    len: u32,
    block: Block,
    landed: Sender<io::Result<(Block, usize)>>,
}

/// A read that is on its way.
pub(crate) struct Awaited(Receiver<io::Result<(Block, usize)>>);

impl Ring {
    /// Makes a ring, and registers blocks with it that are given to `blocks`.
    ///
    /// # Errors
    ///
    /// The kernel has no io_uring, or does not let this process have one.
    pub(crate) fn new(blocks: &Arc<Blocks>) -> io::Result<Ring> {
        // It begins disabled, so that it never does anything but read.
        let ring = IoUring::builder().dontfork().setup_r_disabled().build(ENTRIES)?;
        let registered = register(&ring);
        let read_only = [opcode::Read::CODE, opcode::ReadFixed::CODE, opcode::Nop::CODE];
        ring.submitter().register_restrictions(&mut read_only.map(Restriction::sqe_op))?;
        ring.submitter().register_enable_rings()?;
        let shared = Shared { ring, state: Mutex::default(), blocks: Arc::clone(blocks) };
        let shared = Arc::new(shared);
        let reaper = Arc::clone(&shared);
        thread::Builder::new().name("unfazed-ring".to_owned()).spawn(move || reaper.reap())?;
        registered.into_iter().for_each(|block| blocks.give(block));
        Ok(Ring(shared))
    }

    /// Begins to read `len` bytes, which the block holds, from `offset` of the file's direct descriptor.
    pub(crate) fn read(&self, handles: Arc<Handles>, offset: u64, len: usize, block: Block) -> Awaited {
        let (landed, receiver) = channel();
        let len = u32::try_from(len.min(block.memory.len())).unwrap_or(u32::MAX);
        self.0.launch(Flight { handles, offset, len, block, landed });
        Awaited(receiver)
    }
}

impl Awaited {
    /// Waits for the block and how many bytes of it were read. After `limit` it is given up.
    ///
    /// # Errors
    ///
    /// The kernel's, or `TimedOut` after `limit`.
    pub(crate) fn wait(self, limit: Duration) -> io::Result<(Block, usize)> {
        self.0.recv_timeout(limit).unwrap_or_else(|_| {
            let text = format!("no answer within {:.1} s", limit.as_secs_f64());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })
    }
}

impl Drop for Ring {
    /// The thread ends when the last read is over. It is not waited for: that may be never.
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        // SAFETY: a request without memory.
        unsafe { self.0.push(&opcode::Nop::new().build().user_data(WAKE)) };
    }
}

/// Blocks that the kernel keeps mapped, so that a read need not pin its pages. None if that much must not be locked.
fn register(ring: &IoUring) -> Vec<Block> {
    let count = RING_LOCKED_BYTES / REGISTERED_BLOCK;
    let Ok(mut memory) = together("registered reads", count, REGISTERED_BLOCK) else { return Vec::new() };
    let vectors: Vec<_> = memory
        .iter_mut()
        .map(|block| libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: block.len() })
        .collect();
    // SAFETY: the vectors describe memory of our own. The kernel holds its pages by itself, and uses them only for reads
    // that name them by number, each of which owns its block until it is over.
    match unsafe { ring.submitter().register_buffers(&vectors) } {
        Ok(()) => (0..).zip(memory).map(|(i, memory)| Block { memory, registered: Some(i) }).collect(),
        Err(_) => Vec::new(),
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch(&self, flight: Flight) {
        let mut state = self.lock();
        state.waiting.push_back(flight);
        self.fly(&mut state);
    }

    /// Submits what waits, as far as there is room.
    fn fly(&self, state: &mut State) {
        while state.flying.len() < ENTRIES as usize {
            let Some(mut flight) = state.waiting.pop_front() else { return };
            let number = state.next;
            state.next = (number + 1) % WAKE;
            let entry = flight.entry().user_data(number);
            state.flying.insert(number, flight);
            // SAFETY: the descriptor and the memory belong to the flight, which stays among those that fly until the
            // kernel says that it is over: moving it there does not move its memory, which is mapped.
            unsafe { self.push(&entry) };
        }
    }

    /// Hands a request to the kernel. The caller holds the lock on the state.
    ///
    /// # Safety
    /// What the request refers to lives until its completion was taken.
    unsafe fn push(&self, entry: &squeue::Entry) {
        {
            // SAFETY: all pushes are under the state's lock, so this is the only submission queue there is.
            let mut queue = unsafe { self.ring.submission_shared() };
            // SAFETY: as promised by the caller. There is room: no more are in flight than there are entries, and each is
            // submitted below before the next one is pushed, or later with it.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
        }
        for _ in 0..SUBMIT_ATTEMPTS {
            match self.ring.submit() {
                Ok(_) => return,
                // What was pushed stays, and goes with the next call at the latest.
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// Takes what has come, until the ring is closed and empty.
    fn reap(&self) {
        loop {
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                // Out of memory, or completions that wait for being taken.
                thread::sleep(Duration::from_millis(1));
            }
            // SAFETY: only this thread looks at completions.
            let come: Vec<_> = unsafe { self.ring.completion_shared() }
                .map(|completion| (completion.user_data(), completion.result()))
                .collect();
            let mut state = self.lock();
            for (number, result) in come {
                if let Some(flight) = state.flying.remove(&number) {
                    self.land(flight, result);
                }
            }
            self.fly(&mut state);
            if state.closed && state.flying.is_empty() {
                return;
            }
        }
    }

    fn land(&self, flight: Flight, result: i32) {
        let Flight { block, landed, .. } = flight;
        let told = match usize::try_from(result) {
            Ok(read) => landed.send(Ok((block, read))),
            Err(_) => {
                self.blocks.give(block);
                landed.send(Err(io::Error::from_raw_os_error(result.saturating_neg())))
            }
        };
        // Nobody waits for it any more: its memory is free for others now that the kernel is done with it.
        if let Err(unread) = told
            && let Ok((block, _)) = unread.0
        {
            self.blocks.give(block);
        }
    }
}

impl Flight {
    fn entry(&mut self) -> squeue::Entry {
        let handles = &self.handles;
        let file = handles.direct.as_ref().unwrap_or(&handles.buffered);
        let file = types::Fd(file.as_raw_fd());
        let start = self.block.memory.as_mut_ptr();
        match self.block.registered {
            Some(number) => opcode::ReadFixed::new(file, start, self.len, number).offset(self.offset).build(),
            None => opcode::Read::new(file, start, self.len).offset(self.offset).build(),
        }
    }
}
