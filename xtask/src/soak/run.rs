//! A run: undisturbed answers, then clients and faults side by side, then the end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;

use super::Arguments;
use super::answer::Answer;
use super::board::{Board, Loss};
use super::census::Census;
use super::device;
use super::ending;
use super::faults;
use super::openai::OpenAi;
use super::program::Program;
use super::progress;
use super::raw::Http;
use super::report::Report;
use super::request::{self, Request};
use super::sampler::{self, Samples};
use super::setup::Setup;
use super::striker::{Blow, Striker};
use super::verdict;
use super::visit::{Manner, Visit};

/// Requests that are answered side by side while nothing disturbs.
const SIDE_BY_SIDE: usize = 16;
/// Memory that the server may have beyond what it has once it is warm.
const HEADROOM: u64 = 256 << 20;
/// Requests that warm it up.
const WARMING: usize = 8;
/// A run with so many losses goes on no longer.
const MOST_LOSSES: usize = 20;
/// Fewer samples of memory say nothing about how it grows.
const LEAST_SAMPLES: usize = 60;

/// What clients share.
struct Shared {
    seed: u64,
    board: Arc<Board>,
    pool: Arc<Vec<Request>>,
    expected: Vec<Answer>,
    http: Http,
    openai: Option<OpenAi>,
    /// So many clients, the first ones, use the OpenAI package.
    openai_clients: u64,
    /// No request is begun any more.
    closing: AtomicBool,
}

/// Runs all of it.
pub(super) async fn run(arguments: &Arguments, setup: &Setup) -> Result<Report> {
    let pool = Arc::new(request::pool(arguments.seed, arguments.requests));
    let expected = undisturbed(setup, &pool).await?;
    let mut program = Program::start(&setup.disturbed, "server.log", setup.group.as_ref()).await?;
    let before = Census::of(program.front());
    warm(&program, &pool).await?;
    let memory = setup.group.as_ref().map(|group| -> Result<_> {
        let limit = group.usage().context("the memory group has no usage")? + HEADROOM;
        group.limit_to(limit).context("the memory group's limit")?;
        Ok((group, limit))
    });
    let memory = memory.transpose()?;

    let board = Arc::new(Board::new());
    let openai_clients = arguments.openai_clients();
    let openai =
        setup.python.as_deref().map(|python| OpenAi::start(python, program.http.port(), openai_clients));
    let shared = Arc::new(Shared {
        seed: arguments.seed,
        board: Arc::clone(&board),
        pool,
        expected,
        http: program.http.clone(),
        openai: openai.transpose()?,
        openai_clients: openai_clients as u64,
        closing: AtomicBool::new(false),
    });
    let samples = Mutex::default();
    let started = Instant::now();
    let length = Duration::from_secs_f64(arguments.minutes * 60.0);
    let striker = Striker { program: &program, board: &board, storage: setup.storage.as_ref(), memory };
    let blows = tokio::select! {
        blows = disturb(arguments, setup, &striker, &shared, started + length) => blows?,
        () = sampler::sample(&program, &board, &samples) => bail!("the sampler ended"),
        shown = progress::show(&board, length) => return Err(shown.err().context("the progress ended")?),
    };
    // With it its connections end.
    drop(shared);
    let samples = samples.into_inner().unwrap_or_else(PoisonError::into_inner);
    let seconds = started.elapsed().as_secs_f64();
    let after = end(&mut program, &before, &board, &samples).await;
    Ok(Report {
        seed: arguments.seed,
        seconds,
        left_out: setup.left_out.clone(),
        blows,
        device: device::told(&program.events),
        events: device::counts(&program.events),
        tally: board.tallied(),
        samples,
        reads: setup.storage.as_ref().map_or(0, |storage| storage.reads()),
        restarts: after.restarts,
        resumed: after.resumed,
        descriptors: [before.descriptors(), after.descriptors],
    })
}

/// What a server answers that nobody disturbs: each request once, half of them in streams.
async fn undisturbed(setup: &Setup, pool: &Arc<Vec<Request>>) -> Result<Vec<Answer>> {
    let mut program = Program::start(&setup.undisturbed, "undisturbed.log", None).await?;
    let mut answers = BTreeMap::new();
    let mut asking = JoinSet::new();
    for number in 0..pool.len() {
        if asking.len() >= SIDE_BY_SIDE
            && let Some(answer) = asking.join_next().await
        {
            let (number, answer) = answer?;
            answers.insert(number, answer?);
        }
        let (http, pool) = (program.http.clone(), Arc::clone(pool));
        asking.spawn(async move {
            let request = &pool[number];
            let answer = match number % 2 {
                0 => http.whole(request.path, &request.body(false)).await,
                _ => http.stream(request.path, &request.body(true), None, || ()).await,
            };
            (number, answer.with_context(|| format!("undisturbed, {}", request.name)))
        });
    }
    while let Some(answer) = asking.join_next().await {
        let (number, answer) = answer?;
        answers.insert(number, answer?);
    }
    program.stop().await.context("the undisturbed server")?;
    for (request, answer) in pool.iter().zip(answers.values()) {
        // It has to be sound, and equal to itself.
        if let Err(how) = verdict::whole(answer, answer) {
            bail!("undisturbed, {}: {how}", request.name);
        }
    }
    Ok(answers.into_values().collect())
}

async fn warm(program: &Program, pool: &[Request]) -> Result<()> {
    for request in pool.iter().take(WARMING) {
        program.http.whole(request.path, &request.body(false)).await.context("warming up")?;
    }
    Ok(())
}

/// Clients ask and faults fall until `deadline`; then what runs ends.
async fn disturb(
    arguments: &Arguments,
    setup: &Setup,
    striker: &Striker<'_>,
    shared: &Arc<Shared>,
    deadline: Instant,
) -> Result<Vec<Blow>> {
    let mut clients = JoinSet::new();
    for number in 0..arguments.clients {
        clients.spawn(Arc::clone(shared).client(number as u64));
    }
    let blows = strike(arguments.seed, &setup.wanted.classes, striker, shared, deadline).await;
    shared.closing.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client?;
    }
    Ok(blows)
}

/// One fault after the other, each so many tokens after the recovery from the last one.
async fn strike(
    seed: u64,
    classes: &[faults::Class],
    striker: &Striker<'_>,
    shared: &Shared,
    deadline: Instant,
) -> Vec<Blow> {
    let mut blows = Vec::new();
    if classes.is_empty() {
        tokio::time::sleep_until(deadline.into()).await;
        return blows;
    }
    let board = &shared.board;
    for number in 0.. {
        let fault = faults::fault(seed, number, classes);
        let moment = board.received().tokens + fault.gap;
        let mut received = board.watch();
        let come = received.wait_for(|received| received.tokens >= moment);
        // What it gives locks the board as long as it is held.
        let in_time = tokio::time::timeout_at(deadline.into(), come).await.is_ok();
        if !in_time || shared.closing.load(Ordering::Relaxed) {
            break;
        }
        match striker.strike(&fault).await {
            Ok(blow) => blows.push(blow),
            Err(error) => {
                board.lose(&format!("fault {number}, {fault:?}"), format!("{error:#}"));
                break;
            }
        }
        board.tally(|tally| tally.faults += 1);
    }
    blows
}

/// Numbers of the end.
struct After {
    restarts: u64,
    resumed: u64,
    descriptors: usize,
}

/// Looks whether nothing is left over, and ends the server.
async fn end(program: &mut Program, before: &Census, board: &Board, samples: &Samples) -> After {
    let check = |what: &str, result: Result<()>| {
        if let Err(error) = result {
            board.lose(what, format!("{error:#}"));
        }
    };
    check("sequences at the end", ending::until_idle(program).await);
    check("the pool of KV pages at the end", ending::pool_is_whole(program).await);
    for leak in ending::leaks(program.front(), before).await {
        board.lose("what the front holds at the end", leak);
    }
    if samples.resident.len() >= LEAST_SAMPLES
        && let Some(growth) = samples.resident.growth()
    {
        board.lose("memory of the front", growth);
    }
    let descriptors = Census::of(program.front()).descriptors();
    let restarts = program.metric("unfazed_engine_restarts_total").await.unwrap_or(f64::NAN) as u64;
    let resumed = program.metric("unfazed_requests_resumed_total").await.unwrap_or(f64::NAN) as u64;
    ending::stop(program, board).await;
    After { restarts, resumed, descriptors }
}

impl Shared {
    /// A client: one request after the other.
    async fn client(self: Arc<Self>, number: u64) {
        let openai = self.openai.as_ref().filter(|_| number < self.openai_clients);
        let mut round = 0;
        while !self.closing.load(Ordering::Relaxed) {
            let visit = Visit::draw(self.seed, number, round, self.pool.len(), openai.is_some());
            self.visit(&visit, &format!("client {number}, round {round}"), openai).await;
            round += 1;
        }
    }

    async fn visit(&self, visit: &Visit, who: &str, openai: Option<&OpenAi>) {
        let (Some(request), Some(expected)) =
            (self.pool.get(visit.request), self.expected.get(visit.request))
        else {
            return;
        };
        self.board.open(request.sequences());
        let got = visit.go(request, &self.http, openai, &self.board).await;
        self.board.close(request.sequences());
        let how = match &got {
            Ok(got) => visit.judge(expected, got).err(),
            Err(error) => Some(format!("{error:#}")),
        };
        self.board.tally(|tally| {
            tally.requests += 1;
            tally.openai += u64::from(openai.is_some());
            if let Ok(got) = &got {
                tally.answered += u64::from(got.ends > 0);
                tally.left += u64::from(got.ends == 0 && visit.leaves());
                tally.tokens += got.completion_tokens();
                tally.failed_by_name += u64::from(verdict::failed_by_name(got));
            }
            if let Manner::Cut(cuts) = &visit.manner {
                tally.cuts += cuts.len() as u64;
            }
            if let Some(how) = how {
                let what = format!("{who}, {:?}: {}", visit.manner, request.name);
                tally.losses.push(Loss { what, how, after_faults: tally.faults });
            }
            if tally.losses.len() >= MOST_LOSSES {
                self.closing.store(true, Ordering::Relaxed);
            }
        });
    }
}
