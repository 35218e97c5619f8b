//! The front that takes over.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use unfazed_formats::Checkpoint;
use unfazed_plan::Plan;
use unfazed_wire::link;
use unfazed_wire::memory::Segment;

use super::message::{
    self, Answer, Answered, FromNew, FromOld, Incoming, Key, Offer, Outgoing, PROTOCOL, Take,
};
use super::process::is_successor;
use super::roster::Roster;
use crate::ServerError;
use crate::http::Reader;
use crate::model;
use crate::supervisor::Parts;

/// How often it is looked whether anybody waits.
const IDLE_POLL: Duration = Duration::from_millis(200);
/// How long the last events may take to the old front when this one ends.
const FINISH: Duration = Duration::from_secs(2);

/// A front that this process takes over from, before it is asked to give anything.
pub struct TakenOver {
    offer: Offer,
    outgoing: Outgoing<FromNew>,
    incoming: Incoming,
}

/// What it gave.
pub(crate) struct Taken {
    pub(crate) listener: TcpListener,
    pub(crate) memory: Parts,
    /// The lock of the journal on disk.
    pub(crate) journal: Option<OwnedFd>,
    pub(crate) roster: Option<Roster>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) predecessor: Predecessor,
    incoming: Incoming,
}

impl TakenOver {
    /// The front that this process was started to take over from; `None` if it was started by anybody else.
    ///
    /// # Errors
    ///
    /// Where standard input is no link to a front, or it says nothing that this program understands.
    pub fn find() -> io::Result<Option<TakenOver>> {
        if !is_successor() {
            return Ok(None);
        }
        let socket = link::from_stdin().map_err(io::Error::other)?;
        let (outgoing, mut incoming) = message::connect(socket)?;
        match incoming.next().map_err(io::Error::other)? {
            Some((FromOld::Offer(offer), _)) => Ok(Some(TakenOver { offer: *offer, outgoing, incoming })),
            _ => Err(io::Error::other("the old front did not say what there is to take over")),
        }
    }

    /// Bytes that the old front's engine takes now and will not.
    pub fn held_bytes(&self) -> u64 {
        self.offer.held_bytes
    }

    /// The old front's plan, if what lies in its memory can be used for this model by code of this layout.
    pub fn plan(&self, layout: &str, checkpoint: &Checkpoint) -> Option<Plan> {
        self.offer.plan_for(layout, model::headers_digest(checkpoint))
    }

    /// Whether its memory is laid out by this plan.
    pub(crate) fn has_memory(&self, layout: &str, headers: u64, plan: &serde_json::Value) -> bool {
        self.offer.layout == layout && self.offer.headers == headers && self.offer.plan == *plan
    }

    /// Takes over; `memory`: its memory, too. Blocks until all of it is here.
    pub(crate) fn take(mut self, memory: bool) -> Result<Taken, ServerError> {
        self.outgoing.send(FromNew::Ready { protocol: PROTOCOL, memory });
        let broken = |source: io::Error| ServerError::TakeOver(source.to_string());
        let (take, descriptors) = match self.incoming.next().map_err(io::Error::other).map_err(broken)? {
            Some((FromOld::Take(take), descriptors)) => (take, descriptors),
            _ => return Err(ServerError::TakeOver("it keeps what it has".to_owned())),
        };
        let (listener, memory, [journal, roster]) = received(&take, descriptors).map_err(broken)?;
        let mut answers = Vec::new();
        while answers.len() < take.answers {
            match self.incoming.next().map_err(io::Error::other).map_err(broken)? {
                Some((FromOld::Answer(answer), _)) => answers.push(*answer),
                Some((FromOld::Left(_), _)) => {}
                _ => return Err(ServerError::TakeOver("it did not hand over all answers".to_owned())),
            }
        }
        let predecessor = Predecessor { outgoing: self.outgoing, relays: Arc::default() };
        let roster = roster.map(Roster::passed_on);
        Ok(Taken { listener, memory, journal, roster, answers, predecessor, incoming: self.incoming })
    }
}

/// What the descriptors are.
fn received(
    take: &Take,
    descriptors: Vec<OwnedFd>,
) -> io::Result<(TcpListener, Parts, [Option<OwnedFd>; 2])> {
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let listener = TcpListener::from(next()?);
    let mut segment = |what, bytes| {
        let segment = Segment::received(what, next()?, bytes).map_err(io::Error::other)?;
        Ok::<_, io::Error>(Arc::new(segment))
    };
    let weights = take.weights.map(|bytes| segment("weights", bytes)).transpose()?;
    let kv = take.kv.map(|(bytes, pages)| Ok::<_, io::Error>((segment("KV pages", bytes)?, pages)));
    let kv = kv.transpose()?;
    let experts = take.experts.map(|bytes| segment("expert slots", bytes)).transpose()?;
    let journal = if take.journal { Some(next()?) } else { None };
    let roster = if take.roster { Some(next()?) } else { None };
    Ok((listener, Parts { weights, kv, experts }, [journal, roster]))
}

impl Taken {
    /// Says that everything is here, and from now on listens to the old front: `adopt` gets requests that came to it since.
    pub(crate) fn confirm(self, adopt: impl Fn(Answer) + Send + 'static) -> Result<(), ServerError> {
        let Taken { predecessor, mut incoming, .. } = self;
        predecessor.outgoing.send(FromNew::Taken);
        let relays = Arc::clone(&predecessor.relays);
        let runtime = tokio::runtime::Handle::current();
        let listen = move || {
            let _in_runtime = runtime.enter();
            while let Ok(Some((message, _))) = incoming.next() {
                match message {
                    FromOld::Answer(answer) => adopt(*answer),
                    FromOld::Left(key) => drop(lock(&relays).remove(&key).map(|relay| relay.abort())),
                    FromOld::Offer(_) | FromOld::Take(_) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("predecessor".to_owned()).spawn(listen);
        thread.map_err(|source| ServerError::System { what: "a thread cannot be started", source })?;
        Ok(())
    }
}

/// The old front, for which this one makes answers.
#[derive(Clone)]
pub(crate) struct Predecessor {
    outgoing: Outgoing<FromNew>,
    relays: Arc<Mutex<BTreeMap<Key, JoinHandle<()>>>>,
}

impl Predecessor {
    /// Passes on a stream's events to those who read them there.
    pub(crate) fn relay(&self, key: Key, mut reader: Reader) {
        let outgoing = self.outgoing.clone();
        self.keep(key, async move {
            loop {
                match reader.text().await {
                    Ok(Some(text)) => outgoing.send(FromNew::Text(key, text.to_string())),
                    Ok(None) => return outgoing.send(FromNew::End(key)),
                    // The old front sees this one end.
                    Err(_) => return,
                }
            }
        });
    }

    /// Passes on a whole answer.
    pub(crate) fn relay_whole(
        &self,
        key: Key,
        answer: impl Future<Output = Option<Answered>> + Send + 'static,
    ) {
        let outgoing = self.outgoing.clone();
        self.keep(key, async move {
            if let Some(answered) = answer.await {
                outgoing.send(FromNew::Whole(key, answered));
            }
        });
    }

    fn keep(&self, key: Key, relay: impl Future<Output = ()> + Send + 'static) {
        let mut relays = lock(&self.relays);
        relays.retain(|_, relay| !relay.is_finished());
        relays.insert(key, tokio::spawn(relay));
    }

    /// Resolves once nobody waits for an answer at the old front.
    pub(crate) async fn idle(&self) {
        loop {
            {
                let mut relays = lock(&self.relays);
                relays.retain(|_, relay| !relay.is_finished());
                if relays.is_empty() {
                    return;
                }
            }
            tokio::time::sleep(IDLE_POLL).await;
        }
    }

    /// Lets the last events out.
    pub(crate) async fn finish(self) {
        let relays = std::mem::take(&mut *lock(&self.relays));
        let all = futures::future::join_all(relays.into_values());
        if tokio::time::timeout(FINISH, all).await.is_err() {
            tracing::debug!("answers for the old front's clients are cut");
        }
        drop(tokio::task::spawn_blocking(move || self.outgoing.flush()).await);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing under this lock panics half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
