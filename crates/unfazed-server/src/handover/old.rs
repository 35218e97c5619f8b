//! The front that was there first: starts its successor, hands over, and passes on what its own clients wait for.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::message::{self, Answer, FromNew, FromOld, Incoming, Key, Offer, Outgoing, PROTOCOL, Take};
use super::passage::{Passage, Successor};
use super::process::{SuccessorProcess, SuccessorProgram};
use super::roster::{self, Latest, Roster, Seen};
use crate::events::{Event, EventSink};
use crate::http::{RandomId, Streams};
use crate::journal::disk::Disk;
use crate::journal::{Recorded, Tapes};
use crate::supervisor::{Engine, Exit, Parts};

/// How long a new front may take until it could serve. Nothing waits for it meanwhile.
const PREPARE: Duration = Duration::from_secs(15 * 60);
/// How long answers may take to come between two steps, and the new front to take everything.
const TAKE: Duration = Duration::from_secs(60);
/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(50);

/// What a front has to hand over.
pub(crate) struct Estate {
    pub(crate) passage: Arc<Passage>,
    pub(crate) engine: Engine,
    pub(crate) tapes: Arc<Tapes>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) socket: OwnedFd,
    /// The journal on disk.
    pub(crate) journal: Option<Disk>,
    /// From the front before, if there was one.
    pub(crate) roster: Option<Roster>,
    pub(crate) offer: Offer,
    pub(crate) program: SuccessorProgram,
    pub(crate) events: EventSink,
}

/// A successor that could serve. Dropping it ends it.
pub(crate) struct Started {
    process: SuccessorProcess,
    outgoing: Outgoing<FromOld>,
    messages: UnboundedReceiver<FromNew>,
    /// It can use the memory.
    memory: bool,
    /// It serves.
    serves: bool,
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.serves {
            self.process.end();
        }
    }
}

/// The front that took over.
pub(crate) struct HandedOver {
    process: SuccessorProcess,
    /// Who serves, where this is the first of several fronts.
    latest: Option<Latest>,
}

impl Estate {
    /// Tells the first of several fronts that this one serves.
    pub(crate) fn announce(&self) {
        if let Some(Err(error)) = self.roster.as_ref().map(Roster::announce) {
            tracing::warn!(%error, "the first front does not hear that this one serves");
        }
    }

    /// Starts a successor and waits until it could serve. Requests go on here meanwhile; dropping this ends it.
    pub(crate) async fn start(&self) -> Result<Started, String> {
        let started = self.try_to_start().await;
        started.inspect_err(|_| self.passage.has_failed())
    }

    async fn try_to_start(&self) -> Result<Started, String> {
        let path = self.program.path().display();
        let (socket, process) =
            self.program.start().map_err(|error| format!("{path} cannot be started: {error}"))?;
        (self.events)(Event::Restarting { pid: process.id() });
        let broken = |error| format!("the link to the new front failed: {error}");
        let (outgoing, incoming) = message::connect::<FromOld>(socket).map_err(broken)?;
        let messages = receive(incoming).map_err(broken)?;
        let mut started = Started { process, outgoing, messages, memory: false, serves: false };
        started.outgoing.send(FromOld::Offer(Box::new(self.offer.clone())));
        match tokio::time::timeout(PREPARE, started.messages.recv()).await {
            Ok(Some(FromNew::Ready { protocol: PROTOCOL, memory })) => {
                started.memory = memory;
                Ok(started)
            }
            Ok(Some(FromNew::Ready { protocol, .. })) => Err(format!(
                "{path} speaks version {protocol} of the hand-over and this program {PROTOCOL}: stop the server and start it"
            )),
            Ok(Some(_)) => Err(format!("{path} did not say that it could serve")),
            Ok(None) => Err(format!("{path} ended before it could serve; its message is above")),
            Err(_) => Err(format!("{path} could not serve within {} minutes", PREPARE.as_secs() / 60)),
        }
    }

    /// Hands over, to the end of it: nothing is given up before the successor has all of it. An error leaves everything as
    /// it was.
    pub(crate) async fn give(&self, mut started: Started) -> Result<HandedOver, String> {
        let given = self.try_to_give(&mut started).await;
        let roster = given.inspect_err(|_| self.passage.has_failed())?;
        started.serves = true;
        Ok(HandedOver { process: started.process.clone(), latest: roster })
    }

    async fn try_to_give(&self, started: &mut Started) -> Result<Option<Latest>, String> {
        let closed = tokio::time::timeout(TAKE, self.passage.close()).await;
        let closed = closed.map_err(|_| "answers did not come to a stop".to_owned())?;
        let begun = Instant::now();
        let parts = self.engine.pause().await.filter(|_| started.memory);
        let answers = self.answers();
        let keys: Vec<Key> = answers.iter().map(|answer| answer.key).collect();
        let given = match &self.roster {
            Some(roster) => self.give_with_journal(started, parts, answers, roster).await.map(|()| None),
            None => match Roster::first() {
                Ok(first) => {
                    let given = self.give_with_journal(started, parts, answers, &first).await;
                    given.map(|()| first.latest())
                }
                Err(error) => Err(error.to_string()),
            },
        };
        let latest = match given {
            Ok(latest) => latest,
            Err(message) => {
                self.engine.go_on();
                return Err(message);
            }
        };
        let successor = Arc::new(Successor::new(started.outgoing.clone(), keys.iter().copied()));
        pass_on(Arc::clone(&successor), std::mem::replace(&mut started.messages, unbounded_channel().1));
        closed.open_to(successor);
        // Its memory is the successor's now, and its requests are.
        self.engine.stop();
        let (pid, answers) = (started.process.id(), keys.len());
        let pause_ms = begun.elapsed().as_secs_f64() * 1e3;
        (self.events)(Event::HandedOver { pid, answers, pause_ms });
        Ok(latest)
    }

    /// Lets go of the journal on disk, and takes it back if the successor does not take over.
    async fn give_with_journal(
        &self,
        started: &mut Started,
        parts: Option<Parts>,
        answers: Vec<Answer>,
        roster: &Roster,
    ) -> Result<(), String> {
        let Some(journal) = &self.journal else {
            return self.send(started, parts, None, answers, roster).await;
        };
        let lock = journal.hand_over().await.map_err(|error| error.to_string())?;
        let copy = lock.try_clone().map_err(|error| format!("the journal cannot be handed over: {error}"));
        let given = match copy {
            Ok(copy) => self.send(started, parts, Some(copy), answers, roster).await,
            Err(message) => Err(message),
        };
        if given.is_err() {
            started.process.end();
            // Answers of this front are in it, and none of the other one's.
            if let Err(error) = journal.take_back(lock).await {
                tracing::error!("the journal is not written any more: {error}");
            }
        }
        given
    }

    async fn send(
        &self,
        started: &mut Started,
        parts: Option<Parts>,
        journal: Option<OwnedFd>,
        answers: Vec<Answer>,
        roster: &Roster,
    ) -> Result<(), String> {
        let copy = |descriptor: &dyn std::os::fd::AsFd| {
            let copied = descriptor.as_fd().try_clone_to_owned();
            copied.map_err(|error| format!("a descriptor cannot be handed over: {error}"))
        };
        let parts = parts.unwrap_or_default();
        let mut descriptors = vec![copy(&self.socket)?];
        let kv = parts.kv.as_ref().map(|(kv, _)| kv);
        for segment in [parts.weights.as_ref(), kv, parts.experts.as_ref()].into_iter().flatten() {
            descriptors.push(copy(&**segment)?);
        }
        let take = Take {
            answers: answers.len(),
            weights: parts.weights.map(|weights| weights.len()),
            kv: parts.kv.map(|(kv, pages)| (kv.len(), pages)),
            experts: parts.experts.map(|experts| experts.len()),
            journal: journal.is_some(),
            roster: true,
        };
        descriptors.extend(journal);
        descriptors.push(roster.pass_on().map_err(|error| error.to_string())?);
        started.outgoing.send_with(FromOld::Take(take), descriptors);
        for answer in answers {
            started.outgoing.send(FromOld::Answer(Box::new(answer)));
        }
        match tokio::time::timeout(TAKE, started.messages.recv()).await {
            Ok(Some(FromNew::Taken)) => Ok(()),
            Ok(_) => Err("the new front ended while it took over; its message is above".to_owned()),
            Err(_) => Err(format!("the new front did not take over within {} s", TAKE.as_secs())),
        }
    }

    /// All answers that are being made or kept.
    fn answers(&self) -> Vec<Answer> {
        let answer = |(key, recorded): (u128, Recorded)| {
            let (events, read) = self.streams.told(RandomId::of(key)).unwrap_or((0, true));
            let text = |bytes| String::from_utf8(bytes).unwrap_or_default();
            let Recorded { admission, told, stored } = recorded;
            let (key, admission, told) = (Key(key), text(admission), text(told));
            Answer { key, admission, told, events, read, stored, same: false }
        };
        self.tapes.all().into_iter().map(answer).collect()
    }
}

/// Messages of a link, from a thread that reads them.
fn receive(mut incoming: Incoming) -> std::io::Result<UnboundedReceiver<FromNew>> {
    let (sender, receiver) = unbounded_channel();
    std::thread::Builder::new().name("successor".to_owned()).spawn(move || {
        loop {
            let message = match incoming.next() {
                Ok(Some((message, _))) => message,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the link to the new front broke");
                    return;
                }
            };
            if sender.send(message).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Gives what comes to those who wait for it.
fn pass_on(successor: Arc<Successor>, mut messages: UnboundedReceiver<FromNew>) {
    tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            successor.take(message);
        }
        successor.gone();
    });
}

impl HandedOver {
    /// Passes a signal on to whoever serves now.
    pub(crate) fn signal(&self, signal: Signal) {
        match self.latest() {
            Some(pid) => roster::signal(pid, signal),
            None => self.process.signal(signal),
        }
    }

    /// Resolves when whoever serves ends.
    pub(crate) async fn ended(&self) -> Exit {
        loop {
            if let Some(exit) = self.exit() {
                return exit;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn exit(&self) -> Option<Exit> {
        let exit = self.process.exit();
        match self.latest().map(roster::look) {
            None | Some(Seen::Gone) => exit,
            Some(Seen::Runs) => None,
            Some(Seen::Ended(exit)) => Some(exit),
        }
    }

    /// Whoever serves, if that is not the process that this one started.
    fn latest(&self) -> Option<Pid> {
        let latest = self.latest.as_ref().and_then(Latest::pid)?;
        (latest.as_raw_nonzero().get().unsigned_abs() != self.process.id()).then_some(latest)
    }
}
