//! Work on a device: short command buffers, each with a receipt, few of them in flight.
//!
//! ```text
//! queue.write(&step, 0, bytes); queue.dispatch(...); ...; let logits = queue.read(&logits, 0, n);
//! let ticket = queue.submit()?;
//! queue.verdict(ticket, deadline).executed()?; queue.collect(logits, deadline, |bytes| ...)?;
//! ```
//!
//! Recording returns no errors: the first one is kept until [`Queue::submit`]. A fault ends the queue: every later submission and
//! verdict says the same fault, until another queue is made on another device.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_fault::Generation;
use wgpu::{BufferUsages, MapMode, PollType};

use super::budget::{Budget, Cost};
use super::encoder::{Arrival, Arrived, Chain, Open, SLIP, TIMES};
use super::kernel::Pipeline;
use super::memory::{Buffer, Group, Ready, create};
use super::open::Gpu;
use super::readback::Pool;
use super::verdict::{Verdict, guarded};
use crate::DeviceError;

/// Most submissions in flight: one runs, one waits, one is on its way to the host's eyes.
const FLIGHTS: usize = 3;
/// Slips, one more than are in flight: for the command buffer that is written.
const SLOTS: u32 = 4;
/// Most writes by the host for a submission: more of them without a flush have lost data elsewhere.
const WRITES: u32 = 60;
/// How long the host looks again and again, before it sleeps until the driver wakes it, which takes longer.
const SPIN: Duration = Duration::from_micros(60);
/// Longest sleep: losses that the driver tells by a callback are seen this late.
const SLEEP: Duration = Duration::from_millis(100);

/// A submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    pub(super) sequence: u64,
    pub(super) generation: Generation,
}

/// What was submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Submissions that were executed.
    pub executed: u64,
    /// The longest of them, in nanoseconds.
    pub worst_ns: u64,
    /// All of them, in nanoseconds.
    pub busy_ns: u64,
}

/// A submission that is not known to be done.
struct Flight {
    sequence: u64,
    /// What its slip must say.
    number: u32,
    slot: u32,
    index: wgpu::SubmissionIndex,
    submitted: Instant,
    load: super::budget::Load,
}

/// Where a receipt is copied to.
struct Slip {
    buffer: wgpu::Buffer,
    arrival: Arrival,
}

/// The queue of a device.
pub struct Queue {
    pub(super) gpu: Arc<Gpu>,
    pub(super) generation: Generation,
    budget: Budget,
    chain: Chain,
    slips: Vec<Slip>,
    free: Vec<u32>,
    open: Option<Open>,
    flights: VecDeque<Flight>,
    spare: Vec<super::budget::Load>,
    pub(super) pool: Pool,
    /// The last submission, from 1.
    sequence: u64,
    /// The last one that was executed.
    done: u64,
    /// The last number of the chain that was submitted.
    number: u32,
    stamp: u32,
    writes: u32,
    /// Why what is recorded cannot be submitted.
    trouble: Option<DeviceError>,
    /// What ended this queue.
    fault: Option<Verdict>,
    /// When the last submission was seen done.
    seen: Instant,
    patience: Duration,
    figures: Figures,
}

impl Queue {
    /// The queue of a device. `patience` is how long a submission may take where the caller has given no deadline: when
    /// there is no room for another one.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(
        gpu: Arc<Gpu>,
        generation: Generation,
        budget: Budget,
        patience: Duration,
    ) -> Result<Queue, DeviceError> {
        let chain = Chain::new(&gpu, SLOTS)?;
        let slip = |_| {
            let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
            let label = Some("receipt");
            let descriptor = wgpu::BufferDescriptor { label, size: SLIP, usage, mapped_at_creation: false };
            Ok(Slip { buffer: create(&gpu, &descriptor)?, arrival: Arrival::default() })
        };
        let slips = (0..SLOTS).map(slip).collect::<Result<Vec<_>, DeviceError>>()?;
        Ok(Queue {
            generation,
            budget,
            chain,
            slips,
            free: (0..SLOTS).collect(),
            open: None,
            flights: VecDeque::with_capacity(FLIGHTS),
            spare: Vec::new(),
            pool: Pool::default(),
            sequence: 0,
            done: 0,
            number: 0,
            stamp: 0,
            writes: 0,
            trouble: None,
            fault: None,
            seen: Instant::now(),
            patience,
            figures: Figures::default(),
            gpu,
        })
    }

    /// What is known of how long kernels take: to be kept, and given to the next queue.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The same, to be taken over by the next queue.
    pub fn budget_mut(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// What was submitted so far.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// The device that it is of.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What ended this queue, if something did.
    pub fn fault(&self) -> Option<&Verdict> {
        self.fault.as_ref()
    }

    /// Records a dispatch of `grid` workgroups. The command buffer is submitted before it if it is full. `cost` says whether the
    /// dispatch may be split where it would take too long.
    pub fn dispatch(
        &mut self,
        pipeline: &Pipeline,
        group: &Group,
        immediates: &[u8],
        grid: [u32; 3],
        cost: Cost,
    ) {
        if let Err(stale) = group.check(self.generation) {
            self.keep(stale.into());
        }
        let [x, y, z] = grid;
        let mut first = 0;
        while first < x && !self.closed() {
            let empty = Default::default();
            let load = self.open.as_ref().map_or(&empty, |open| &open.load);
            let piece = self.budget.next(&pipeline.name, cost, [x - first, y, z], load);
            if piece.before {
                self.flush();
                // What was measured since may say otherwise of the piece.
                continue;
            }
            self.record(|open, chain| {
                let split = cost.split.map(|at| (at, first));
                let grid = [piece.groups, y, z];
                open.dispatch(chain, pipeline, &group.raw, immediates, split, grid);
                open.load.add(piece.share);
            });
            first = first.saturating_add(piece.groups);
            if piece.probe {
                self.flush();
                self.settle();
            }
        }
    }

    /// Records a copy. Lengths and offsets are multiples of 4.
    pub fn copy(&mut self, from: (&Ready<Buffer>, u64), to: (&Ready<Buffer>, u64), bytes: u64) {
        for (buffer, offset) in [from, to] {
            let fits = buffer.check(self.generation).map_err(DeviceError::from);
            if let Err(error) = fits.and_then(|()| buffer.check_part(offset, bytes)) {
                self.keep(error);
            }
        }
        self.copy_raw((&from.0.raw, from.1), (&to.0.raw, to.1), bytes);
    }

    /// Records a copy that was checked.
    pub(super) fn copy_raw(&mut self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), bytes: u64) {
        if self.closed() || bytes == 0 {
            return;
        }
        let empty = Default::default();
        let load = self.open.as_ref().map_or(&empty, |open| &open.load);
        let (before, share) = self.budget.copy(bytes, load);
        if before {
            self.flush();
        }
        self.record(|open, chain| {
            open.copy(chain, from, to, bytes);
            open.load.add(share);
        });
    }

    /// Writes what a step needs, before all that is recorded afterwards and after what was. A few kilobytes, once a step: a
    /// receipt tells whether it got there. Offset and length are multiples of 4.
    pub fn write(&mut self, to: &Ready<Buffer>, offset: u64, bytes: &[u8]) {
        let fits = to.check(self.generation).map_err(DeviceError::from);
        if let Err(error) = fits.and_then(|()| to.check_part(offset, bytes.len() as u64)) {
            self.keep(error);
        }
        // Writes are done before the whole of a submission.
        if self.writes >= WRITES || self.open.as_ref().is_some_and(|open| !open.untouched()) {
            self.flush();
        }
        if self.closed() || bytes.is_empty() {
            return;
        }
        self.record(|_, _| {});
        match guarded(|| self.gpu.queue.write_buffer(&to.raw, offset, bytes)) {
            Ok(()) => self.writes += 1,
            Err(text) => self.latch(Verdict::of_loss(text)),
        }
    }

    /// Records a copy to the host's side.
    pub(super) fn read_raw(
        &mut self,
        from: (&wgpu::Buffer, u64),
        to: &wgpu::Buffer,
        bytes: u64,
    ) -> (u64, Arrival) {
        let arrival = Arrival::default();
        self.record(|open, chain| open.read(chain, from, to.clone(), bytes, arrival.clone()));
        (self.sequence + 1, arrival)
    }

    /// Submits what is recorded, and returns the ticket of that or, if nothing is, of the last submission. Waits while three are
    /// in flight.
    ///
    /// # Errors
    ///
    /// The fault that ended the queue; or why something could not be recorded, and then none of it is submitted, but for the command
    /// buffers that were full before.
    pub fn submit(&mut self) -> Result<Ticket, DeviceError> {
        if let Some(trouble) = self.trouble.take() {
            self.forget();
            return Err(trouble);
        }
        self.flush();
        if let Some(fault) = &self.fault {
            fault.executed()?;
        }
        Ok(Ticket { sequence: self.sequence, generation: self.generation })
    }

    /// What came of a submission and all before it. Waits until `deadline`: what is not done then is hung, and the device is given
    /// up: it is never dropped, since that would wait for it.
    pub fn verdict(&mut self, ticket: Ticket, deadline: Instant) -> Verdict {
        if ticket.generation != self.generation {
            return Verdict::Lost(format!("this is device {}, not {}", self.generation, ticket.generation));
        }
        self.await_sequence(ticket.sequence, deadline)
    }

    /// Whether a submission was executed, as far as is known without waiting.
    pub fn is_done(&mut self, ticket: Ticket) -> bool {
        self.look();
        ticket.generation == self.generation && ticket.sequence <= self.done
    }

    pub(super) fn await_sequence(&mut self, sequence: u64, deadline: Instant) -> Verdict {
        let begun = Instant::now();
        loop {
            if sequence <= self.done {
                return Verdict::Executed;
            }
            if let Some(fault) = &self.fault {
                return fault.clone();
            }
            self.look();
            if sequence <= self.done || self.fault.is_some() {
                continue;
            }
            let now = Instant::now();
            if now >= deadline {
                let waited = now.duration_since(begun).as_millis();
                self.latch(Verdict::Hung(format!("submission {sequence} is not done after {waited} ms")));
            } else if now.duration_since(begun) < SPIN {
                std::hint::spin_loop();
            } else {
                self.sleep(sequence, deadline.duration_since(now).min(SLEEP));
            }
        }
    }

    /// Sleeps until a submission is done, or as long.
    fn sleep(&mut self, sequence: u64, timeout: Duration) {
        let flight = self.flights.iter().find(|flight| flight.sequence >= sequence);
        let submission_index = flight.map(|flight| flight.index.clone());
        let polled =
            guarded(|| self.gpu.device.poll(PollType::Wait { submission_index, timeout: Some(timeout) }));
        match polled {
            Err(text) => self.latch(Verdict::of_loss(self.gpu.said.lost().unwrap_or(text))),
            Ok(Ok(_) | Err(wgpu::PollError::Timeout)) => {}
            // The submission is not known to the device: said by its callback, at the next look.
            Ok(Err(_)) => std::thread::sleep(Duration::from_millis(1).min(timeout)),
        }
    }

    /// Takes in what is known by now, without waiting.
    pub(super) fn look(&mut self) {
        if self.fault.is_some() {
            return;
        }
        let polled = guarded(|| self.gpu.device.poll(PollType::Poll));
        self.drain();
        if self.fault.is_some() {
            return;
        }
        if let Some(text) = self.gpu.said.lost() {
            self.latch(Verdict::of_loss(text));
        } else if let Err(text) = polled {
            self.latch(Verdict::of_loss(text));
        } else if let Some(text) = self.gpu.said.error() {
            self.latch(Verdict::of_error(text));
        }
    }

    /// Looks at the slips that have arrived, oldest first.
    fn drain(&mut self) {
        while let Some(flight) = self.flights.front() {
            let Some(slip) = self.slips.get(flight.slot as usize) else { return };
            let verdict = match slip.arrival.state() {
                Arrived::NotYet => return,
                Arrived::Failed => Err(self.gpu.said.lost().map_or_else(
                    || Verdict::Lost("the receipt cannot be mapped".to_owned()),
                    Verdict::of_loss,
                )),
                Arrived::Mapped => self.check(slip, flight),
            };
            match verdict {
                Err(verdict) => return self.latch(verdict),
                Ok(took) => self.executed(took),
            }
        }
    }

    /// Compares a receipt with what it must be. Returns how long the submission took.
    fn check(&self, slip: &Slip, flight: &Flight) -> Result<Duration, Verdict> {
        let now = Instant::now();
        let mut bytes = [0_u8; SLIP as usize];
        match slip.buffer.get_mapped_range(..) {
            Ok(view) => bytes.copy_from_slice(&view),
            Err(error) => return Err(Verdict::Lost(error.to_string())),
        }
        slip.buffer.unmap();
        let words: [u32; SLIP as usize / 4] = bytemuck::pod_read_unaligned(&bytes);
        if words[0] != flight.number {
            let evidence = format!(
                "submission {}: the receipt is {} instead of {}",
                flight.sequence, words[0], flight.number
            );
            return Err(Verdict::Discarded { evidence, after: now.duration_since(flight.submitted) });
        }
        let wall = now.duration_since(flight.submitted.max(self.seen));
        if !self.chain.has_clock() {
            return Ok(wall);
        }
        let [begun, ended]: [u64; 2] = bytemuck::pod_read_unaligned(&bytes[TIMES..TIMES + 16]);
        let ticks = ended.saturating_sub(begun) as f64;
        let took = Duration::from_nanos((ticks * f64::from(self.gpu.queue.get_timestamp_period())) as u64);
        Ok(if took.is_zero() { wall } else { took })
    }

    /// The oldest submission ran.
    fn executed(&mut self, took: Duration) {
        let Some(mut flight) = self.flights.pop_front() else { return };
        (self.done, self.seen) = (flight.sequence, Instant::now());
        self.free.push(flight.slot);
        self.budget.measured(&flight.load, took);
        let ns = took.as_nanos() as u64;
        self.figures.executed += 1;
        self.figures.busy_ns += ns;
        self.figures.worst_ns = self.figures.worst_ns.max(ns);
        flight.load.clear();
        self.spare.push(flight.load);
    }

    /// Records something in the command buffer that is open.
    fn record(&mut self, what: impl FnOnce(&mut Open, &Chain)) {
        if self.closed() {
            return;
        }
        if self.open.is_none() {
            let Some(slot) = self.free.pop() else { return };
            let load = self.spare.pop().unwrap_or_default();
            match guarded(|| Open::new(&self.gpu, &self.chain, slot, self.number, load)) {
                Ok(open) => self.open = Some(open),
                Err(text) => return self.latch(Verdict::of_loss(text)),
            }
        }
        let Some(open) = &mut self.open else { return };
        if let Err(text) = guarded(|| what(open, &self.chain)) {
            self.latch(Verdict::of_loss(text));
        }
    }

    /// Submits the command buffer that is open.
    pub(super) fn flush(&mut self) {
        if self.open.is_none() || self.closed() {
            return;
        }
        self.make_room();
        let Some(mut open) = self.open.take() else { return };
        if self.fault.is_some() {
            return;
        }
        if self.writes > 0 {
            self.stamp = self.stamp.wrapping_add(1).max(1);
            open.stamped(self.stamp);
        }
        let slot = open.slot();
        let Some(slip) = self.slips.get(slot as usize) else { return };
        let sent = guarded(|| {
            if self.writes > 0 {
                self.chain.write_stamp(&self.gpu, self.stamp);
            }
            let finished = open.finish(&self.chain, &slip.buffer);
            let index = self.gpu.queue.submit([finished.commands]);
            slip.arrival.ask(&slip.buffer, MapMode::Read);
            for (buffer, arrival) in &finished.reads {
                arrival.ask(buffer, MapMode::Read);
            }
            (index, finished.number, finished.load)
        });
        self.writes = 0;
        match sent {
            Ok((index, number, load)) => {
                (self.sequence, self.number) = (self.sequence + 1, number);
                let (sequence, submitted) = (self.sequence, Instant::now());
                self.flights.push_back(Flight { sequence, number, slot, index, submitted, load });
            }
            Err(text) => self.latch(Verdict::of_loss(self.gpu.said.lost().unwrap_or(text))),
        }
    }

    /// Waits until another submission may be in flight.
    fn make_room(&mut self) {
        self.look();
        while self.flights.len() >= FLIGHTS && self.fault.is_none() {
            let Some(oldest) = self.flights.front().map(|flight| flight.sequence) else { return };
            self.await_sequence(oldest, Instant::now() + self.patience);
        }
    }

    /// Whether a submission is on its way, or was.
    pub(super) fn has_sent(&self, sequence: u64) -> bool {
        sequence <= self.sequence
    }

    /// Waits for the oldest submission in flight.
    pub(super) fn wait_for_one(&mut self, deadline: Instant) {
        self.await_sequence((self.done + 1).min(self.sequence), deadline);
        self.look();
    }

    /// Waits for all that was submitted.
    fn settle(&mut self) {
        self.await_sequence(self.sequence, Instant::now() + self.patience);
    }

    /// Gives up what is recorded and not submitted. What the host wrote is not looked for.
    fn forget(&mut self) {
        if let Some(open) = self.open.take() {
            self.free.push(open.slot());
            open.reads.iter().for_each(|(_, arrival)| arrival.fail());
        }
        self.writes = 0;
    }

    pub(super) fn keep(&mut self, error: DeviceError) {
        self.trouble.get_or_insert(error);
    }

    /// Nothing more is recorded.
    pub(super) fn closed(&self) -> bool {
        self.fault.is_some() || self.trouble.is_some()
    }

    /// The queue ends. The first verdict stays.
    pub(super) fn latch(&mut self, verdict: Verdict) {
        use unfazed_fault::Class;
        if self.fault.is_some() {
            return;
        }
        let class = verdict.executed().err().map(|fault| fault.class);
        if matches!(class, Some(Class::Hang | Class::Timeout | Class::Interactivity)) {
            self.budget.tripped();
        }
        if matches!(verdict, Verdict::Hung(_)) {
            self.gpu.give_up();
        }
        self.fault = Some(verdict);
        self.open = None;
    }
}

impl Drop for Queue {
    /// The device waits for its work when it is dropped. So the work must be done, or the device is given up.
    fn drop(&mut self) {
        if self.fault.is_none() && !self.flights.is_empty() {
            self.settle();
        }
    }
}
