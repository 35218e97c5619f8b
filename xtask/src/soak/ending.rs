//! The end of a run: nothing runs, nothing is left over, and the server still has all of its memory to give.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;

use super::board::{Board, GONE_WITHIN};
use super::census::{Belongings, Census};
use super::program::Program;
use super::request::CONTEXT;

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Waits until the server knows of no sequence.
pub(super) async fn until_idle(program: &Program) -> Result<()> {
    until_sequences(program, 0).await.context("after all clients have gone")
}

/// As many of the longest sequences as the plan has pages for run side by side: no page, and no place, is lost.
pub(super) async fn pool_is_whole(program: &Program) -> Result<()> {
    let setting =
        |name: &str| program.ready["settings"][name].as_u64().with_context(|| format!("ready has no {name}"));
    let pages_each = CONTEXT.div_ceil(setting("page_tokens")?);
    let pages = program.metric("unfazed_kv_pages").await? as u64;
    let places = setting("parallel")?.min(pages / pages_each.max(1));
    // A server that ran out of memory has fewer until it was quiet for long enough.
    let whole = pages == setting("kv_pages")? || program.metric("unfazed_ladder_rung").await? > 0.0;
    ensure!(whole && places > 0, "{pages} KV pages, {} at the start", setting("kv_pages")?);
    let mut streams = JoinSet::new();
    for _ in 0..places {
        let http = program.http.clone();
        let body = json!({"prompt": "a", "max_tokens": CONTEXT, "ignore_eos": true, "stream": true});
        streams.spawn(async move { http.stream("/v1/completions", &body, None, || ()).await });
    }
    let all_run = until_running(program, places).await;
    streams.shutdown().await;
    all_run.context("sequences that need all KV pages together")?;
    until_sequences(program, 0).await.context("after the last clients have left")
}

/// Compares what the front holds with what it held at the start. Connections may take a moment to be closed.
pub(super) async fn leaks(front: u32, before: &Census) -> Vec<String> {
    let started = Instant::now();
    loop {
        let leaks = Census::of(front).leaks(before);
        if leaks.is_empty() || started.elapsed() > GONE_WITHIN {
            return leaks;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Ends the server and looks for what it leaves.
pub(super) async fn stop(program: &mut Program, board: &Board) {
    let belongings = Belongings::of(program.front());
    if let Err(error) = program.stop().await {
        board.lose("the end of the server", format!("{error:#}"));
    }
    let last = program.events.from(0).into_iter().rev().find(|(_, event)| event["event"] == "shutdown");
    match last {
        None => board.lose("the end of the server", "no event shutdown".to_owned()),
        Some((_, event)) if event["unfinished_requests"] != 0 => {
            board.lose("the end of the server", format!("sequences were ended unfinished: {event}"));
        }
        Some(_) => {}
    }
    let started = Instant::now();
    loop {
        let remains = belongings.remains();
        if remains.is_empty() {
            return;
        }
        if started.elapsed() > GONE_WITHIN {
            remains.into_iter().for_each(|how| board.lose("the end of the server", how));
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn until_sequences(program: &Program, wanted: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        let known = program.sequences().await?;
        if known == wanted {
            return Ok(());
        }
        ensure!(started.elapsed() < GONE_WITHIN, "the server knows {known} sequences after {GONE_WITHIN:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn until_running(program: &Program, wanted: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        let running = program.metric("unfazed_requests_running").await? as u64;
        if running == wanted {
            return Ok(());
        }
        ensure!(started.elapsed() < GONE_WITHIN, "{running} of {wanted} run after {GONE_WITHIN:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
