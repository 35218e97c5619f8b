//! Starts the guarded server, one process after the other, for as long as the guard lives.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::mpsc::UnboundedReceiver;
use unfazed_fault::{Action, Backoff, Class, Decision, Origin, Policy};

use super::child::{self, Reaper};
use super::life::{Condemned, Life};
use super::output::Told;
use super::probe::{Asker, Probed, Talk};
use super::progress::{Watch, until_busy};
use super::standing::STEADY;
use super::state::{Guard, Phase};
use crate::events::Event;
use crate::supervisor::{Cause, Limits, Seen, chance};
use crate::{Exit, Process, ServerError};

/// Ends before it was ever ready after which the guard gives up, if nobody waits.
const FIRST_STARTS: u32 = 3;
/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(5);
/// How often a server that starts is asked whether it is up.
const ASK: Duration = Duration::from_millis(50);
/// How long a server that was told to end may take before it is killed.
const LEAVE: Duration = Duration::from_secs(5);
/// How long the last words of a process that has ended are waited for.
const WORDS: Duration = Duration::from_millis(200);
/// How long a killed process is waited for. One that is stuck in a driver is left behind.
const REAP: Duration = Duration::from_secs(5);
/// Faults of one class in one process that are told one by one; more of them say nothing new.
const TOLD: u32 = 5;

/// How the keeping ended.
#[derive(Debug)]
pub(super) enum Kept {
    /// As it was told to.
    Ended,
    /// The program ended by itself without an error and never was a server, as `--help` does.
    NoServer,
}

/// What is kept from one process to the next.
struct Keeping<'a> {
    guard: &'a Arc<Guard>,
    reaper: Option<Reaper>,
    policy: Policy,
    backoff: Backoff,
    begun: Instant,
    lives: u64,
    /// The last fault, until a process is ready again.
    unmended: Option<(Decision, Instant)>,
}

/// Keeps the server going. To be called on a thread that lives as long as the guard: see [`child::start`].
pub(super) async fn keep(guard: &Arc<Guard>) -> Result<Kept, ServerError> {
    let own = guard.options.own.as_ref();
    let reaper = own.map(Reaper::start).transpose();
    let reaper = reaper.map_err(|source| ServerError::System {
        what: "the process that ends the server cannot be started",
        source,
    })?;
    let mut keeping = Keeping {
        guard,
        reaper,
        policy: Policy::default(),
        backoff: Backoff::default(),
        begun: Instant::now(),
        lives: 0,
        unmended: None,
    };
    let kept = keeping.keep().await;
    guard.set(Phase::Over);
    kept
}

impl Keeping<'_> {
    async fn keep(&mut self) -> Result<Kept, ServerError> {
        loop {
            let oom_kills = unfazed_host::oom_kills();
            let (life, exit) = self.live().await?;
            let out_of_memory =
                matches!((unfazed_host::oom_kills(), oom_kills), (Some(now), Some(before)) if now > before);
            let was_ready = self.guard.standing().ever_ready
                && matches!(self.guard.phase(), Phase::Ready(ready) if ready.number == life.number);
            self.guard.set(Phase::Waiting);
            let cause = cause(&life, exit, out_of_memory);
            life.end(cause);
            if self.guard.is_ending() {
                return Ok(Kept::Ended);
            }
            let ever_ready = self.guard.standing().ever_ready;
            if !ever_ready && cause == Cause::Code(0) {
                return Ok(Kept::NoServer);
            }
            if life.was_useful() || (was_ready && life.born.elapsed() >= STEADY) {
                self.backoff.progressed();
                Class::ALL.into_iter().for_each(|class| self.policy.recovered(class));
            }
            let wait = self.backoff.died(!(was_ready && cause.is_from_outside()), chance());
            let message = self.bury(&life, cause, exit.unwrap_or_default());
            if !ever_ready && self.backoff.deaths() >= FIRST_STARTS && self.guard.active() == 0 {
                let attempts = self.backoff.deaths();
                return Err(ServerError::NeverReady { attempts, cause: message });
            }
            self.rest(wait).await;
            if self.guard.is_ending() {
                return Ok(Kept::Ended);
            }
        }
    }

    /// One process from its start to its end, and how it ended.
    async fn live(&mut self) -> Result<(Arc<Life>, Option<Exit>), ServerError> {
        let system = |what| move |source| ServerError::System { what, source };
        let port = free_port().map_err(system("no port can be had for the server"))?;
        let options = &self.guard.options;
        let started = child::start(options.own.as_ref(), &options.command, port, &options.output);
        let started = started.map_err(system("the server cannot be started"))?;
        self.lives += 1;
        let (pid, number) = (started.pid, self.lives);
        let life = Arc::new(Life::new(number, port, pid, started.process, started.tail));
        if let Some(reaper) = &self.reaper {
            reaper.watch(pid);
        }
        self.guard.standing().pid = Some(pid);
        let program = options.command.name.clone();
        self.guard.tell(Event::GuardStarted { program, pid, private_port: port });
        let exit = {
            let mut exit = std::pin::pin!(exited(&life));
            let led = async {
                let (lead, heed) = (self.lead(&life), heed(self.guard, &life, started.faults));
                futures::future::join(lead, heed).await;
            };
            tokio::select! {
                exit = &mut exit => exit,
                () = led => exit.await,
                () = self.guard.ending() => {
                    terminate(&life);
                    tokio::time::timeout(LEAVE, &mut exit).await.unwrap_or(None)
                }
            }
        };
        let exit = match exit {
            Some(exit) => Some(exit),
            None => {
                life.process.kill();
                tokio::time::timeout(REAP, exited(&life)).await.ok().flatten()
            }
        };
        if let Some(reaper) = &self.reaper {
            reaper.watch(0);
        }
        // Its last words may still be in the pipe; something that it started elsewhere may hold that for ever.
        let read = async {
            while !life.tail.is_whole() {
                tokio::time::sleep(POLL).await;
            }
        };
        let _ = tokio::time::timeout(WORDS, read).await;
        Ok((life, exit))
    }
}

/// Waits for a process's end; `None` if it was killed and does not end.
async fn exited(life: &Life) -> Option<Exit> {
    let mut killed = None;
    loop {
        if let Some(exit) = life.process.exit() {
            return Some(exit);
        }
        if life.condemned().is_some() && killed.get_or_insert_with(Instant::now).elapsed() > REAP {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Tells the server and all that it started to end.
fn terminate(life: &Life) {
    let group = i32::try_from(life.pid).ok().and_then(Pid::from_raw);
    // Only a process that was not reaped still has its number.
    if life.process.exit().is_none()
        && let Some(group) = group
        && let Err(error) = kill_process_group(group, Signal::TERM)
    {
        tracing::warn!(%error, "the server cannot be told to end");
    }
}

/// A port that nobody has. Until the server takes it another program might, and the next start gets another one.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn cause(life: &Life, exit: Option<Exit>, out_of_memory: bool) -> Cause {
    match (life.condemned(), exit) {
        (Some(Condemned::Device(class, _)), Some(_)) => Cause::Device(*class),
        (condemned, exit) => Cause::of(Seen {
            started: true,
            exit,
            stalled: condemned.is_some(),
            killed: false,
            out_of_memory,
        }),
    }
}

impl Keeping<'_> {
    /// Waits until the server computes, lets requests to it, and watches whether it gets on. Returns once it is condemned.
    async fn lead(&self, life: &Arc<Life>) {
        let begun = Instant::now();
        let result = async {
            let talk = get_ready(self.guard, life).await?;
            self.announce(life, begun.elapsed());
            attend(self.guard, life, &talk).await
        };
        if let Err(why) = result.await {
            tracing::warn!("the server is given up: {why}");
            life.condemn(Condemned::Stalled(why));
        }
    }

    fn announce(&self, life: &Arc<Life>, load: Duration) {
        let guard = self.guard;
        let restarts = {
            let mut standing = guard.standing();
            standing.ready(load);
            standing.restarts
        };
        guard.set(Phase::Ready(Arc::clone(life)));
        let model = guard.talk().and_then(|talk| talk.model.clone());
        guard.tell(Event::GuardReady {
            program: guard.options.command.name.clone(),
            model,
            host: guard.options.address.ip().to_string(),
            port: guard.options.address.port(),
            private_port: life.port,
            load_ms: load.as_secs_f64() * 1e3,
            restarts,
        });
        if let Some((Decision { class, action, attempt, .. }, since)) = self.unmended {
            guard.tell(Event::Recovered {
                class: Some(class.name()),
                action: Some(possible(action).name()),
                attempt: Some(attempt),
                cost_ms: Some(since.elapsed().as_secs_f64() * 1e3),
                ladder: None,
                from: None,
                to: None,
            });
        }
    }

    /// Tells of an end, and decides. Returns what is known about it.
    fn bury(&mut self, life: &Life, cause: Cause, exit: Exit) -> String {
        let guard = self.guard;
        let (told, last_words) = life.tail.last_words();
        let message = match life.condemned() {
            Some(Condemned::Stalled(why)) => why.clone(),
            Some(Condemned::Device(_, line)) => line.clone(),
            // Somebody ended it in the middle of whatever it said.
            None if last_words.is_empty() || cause.is_from_outside() => cause.to_string(),
            None => format!("{cause}; it last said: {last_words}"),
        };
        // What it said before tells more than how it went, unless somebody ended it.
        let class = match (life.condemned(), told) {
            (None, told) if told != Class::Unknown && !cause.is_from_outside() => told,
            _ => cause.class(),
        };
        {
            let mut standing = guard.standing();
            standing.died(cause, exit);
            standing.attempt = self.backoff.counted();
            standing.restarts += 1;
        }
        let Exit { code, signal } = exit;
        guard.tell(Event::EngineExit {
            code,
            signal,
            cause: cause.name(),
            message: message.clone(),
            requests: guard.active(),
            failed_requests: 0,
        });
        let decision = self.policy.decide(class, self.begun.elapsed(), 0.0);
        self.unmended = Some((decision, Instant::now()));
        tell_fault(guard, decision, message.clone());
        message
    }

    async fn rest(&self, wait: Duration) {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.guard.tell(Event::EngineRestart { attempt: self.backoff.deaths(), wait_ms });
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.guard.ending() => {}
        }
    }
}

/// What can be done with another's server: it can be started again, and nothing in it be changed.
fn possible(action: Action) -> Action {
    match action {
        Action::RetryStep | Action::RebuildDevice | Action::NewEngine | Action::StepDown => Action::NewEngine,
        Action::FailRequest | Action::Wait | Action::Nothing => action,
    }
}

fn tell_fault(guard: &Guard, decision: Decision, evidence: String) {
    let decision = Decision { action: possible(decision.action), ..decision };
    guard.tell(Event::Fault {
        class: decision.class.name(),
        evidence: evidence.clone(),
        action: decision.action.name(),
        attempt: decision.attempt,
        cost_ms: None,
        positions: 0,
    });
    guard.standing().fault(decision, evidence);
}

/// Waits until the server is up and has computed a token.
async fn get_ready(guard: &Guard, life: &Arc<Life>) -> Result<Talk, String> {
    let options = &guard.options;
    let asker = Asker(options.command.key.as_deref());
    let Limits { stall, patience } = options.limits();
    // Loading takes as long as it takes while anything is done; a download by the server shows little of that.
    let loading = Limits { stall: patience, patience: Duration::MAX };
    let watch = Watch { life, asker, slots: false, hidden: true, limits: loading };
    watch.over(until_up(asker, life, stall)).await?;
    let talk = match guard.talk() {
        Some(talk) => talk.clone(),
        None => guard.learned(asker.learn(life).await).clone(),
    };
    if options.probe.is_some() {
        let first = Watch { slots: talk.llama, limits: Limits { stall, patience }, ..watch };
        match first.over(asker.probe(life, &talk, patience)).await? {
            Probed::Computes => {}
            Probed::Refused(why) => tracing::info!("the server cannot be asked whether it computes: {why}"),
            Probed::Fails(why) => return Err(format!("it is up and computes nothing: {why}")),
        }
    }
    Ok(talk)
}

async fn until_up(asker: Asker<'_>, life: &Life, limit: Duration) {
    while !matches!(asker.is_up(life, limit).await, Ok(true)) {
        tokio::time::sleep(ASK).await;
    }
}

/// Watches a ready server until it is to be given up: why.
async fn attend(guard: &Guard, life: &Arc<Life>, talk: &Talk) -> Result<(), String> {
    let options = &guard.options;
    let asker = Asker(options.command.key.as_deref());
    let limits = options.limits();
    let watch = Watch { life, asker, slots: talk.llama, hidden: false, limits };
    let mut computed = Instant::now();
    loop {
        if life.requests() > 0 {
            watch.over(until_busy(life, false)).await?;
            computed = Instant::now();
            continue;
        }
        tokio::select! {
            () = until_busy(life, true) => continue,
            () = tokio::time::sleep(limits.stall / 2) => {}
        }
        // With nothing to do it answers at once, unless it still works for a client that has left.
        let idle = Watch { hidden: true, ..watch };
        let up = idle.over(asker.is_up(life, limits.patience)).await?;
        if let Err(error) = up {
            // It may be about to end by itself, which its end tells best.
            tokio::time::sleep(REAP).await;
            return Err(format!("it does not answer: {error}"));
        }
        if options.probe.is_some_and(|every| computed.elapsed() >= every) {
            computed = Instant::now();
            if let Probed::Fails(why) = idle.over(asker.probe(life, talk, limits.patience)).await? {
                return Err(format!("it answers and computes nothing: {why}"));
            }
        }
    }
}

/// Acts on faults that the server's output tells of, for as long as it runs.
async fn heed(guard: &Guard, life: &Arc<Life>, mut faults: UnboundedReceiver<Told>) {
    let mut seen: Vec<(Class, u32)> = Vec::new();
    while let Some(Told { class, line }) = faults.recv().await {
        life.tail.looked();
        let at = seen.iter().position(|(other, _)| *other == class).unwrap_or_else(|| {
            seen.push((class, 0));
            seen.len() - 1
        });
        let Some((_, count)) = seen.get_mut(at) else { continue };
        *count += 1;
        let count = *count;
        // Each process begins anew: what it says is its first of that class.
        let decision = Policy::default().decide(class, Duration::ZERO, 0.0);
        if class.origin() == Origin::Device {
            life.tell_faulty();
        }
        if class.outlives_rebuild() {
            life.condemn(Condemned::Device(class, line));
            return;
        }
        if count <= TOLD {
            let action = if class.origin() == Origin::Device { Action::Wait } else { decision.action };
            tell_fault(guard, Decision { action, attempt: count, ..decision }, line.clone());
        }
        if class.origin() == Origin::Device && count == 1 {
            suspect(guard, life, class, line).await;
        }
    }
    // Its outputs are closed: it ends, or talks no more.
    std::future::pending::<()>().await;
}

/// Its device failed, which it may get over by itself: a token tells.
async fn suspect(guard: &Guard, life: &Arc<Life>, class: Class, line: String) {
    if !matches!(guard.phase(), Phase::Ready(ready) if ready.number == life.number) {
        return;
    }
    let Some(talk) = guard.talk() else { return };
    let asker = Asker(guard.options.command.key.as_deref());
    let limits = guard.options.limits();
    let watch = Watch { life, asker, slots: talk.llama, hidden: false, limits };
    let probed = watch.over(asker.probe(life, talk, limits.patience)).await;
    if !matches!(probed, Ok(Probed::Computes | Probed::Refused(_))) {
        life.condemn(Condemned::Device(class, line));
    }
}
