//! How a run gets on: a bar on a terminal, a line every 10 seconds elsewhere.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::board::Board;

/// Between two looks of the bar.
const REFRESH: Duration = Duration::from_millis(500);
/// Between two lines.
const LINE: Duration = Duration::from_secs(10);

/// Shows it until it is dropped; a bar goes with it.
pub(super) async fn show(board: &Board, length: Duration) -> Result<()> {
    let target = ProgressDrawTarget::stderr();
    let lines = target.is_hidden();
    let bar = ProgressBar::with_draw_target(Some(length.as_secs()), target)
        .with_style(ProgressStyle::with_template("{wide_bar} {msg}, {eta} left")?);
    let _clear = ClearOnDrop(bar.clone());
    let started = Instant::now();
    let mut every = tokio::time::interval(if lines { LINE } else { REFRESH });
    loop {
        every.tick().await;
        let tally = board.tallied();
        let message = format!(
            "{} faults, {} requests, {} open, {} tokens received, {} lost",
            tally.faults,
            tally.requests,
            board.open_sequences(),
            board.received().tokens,
            tally.losses.len()
        );
        if lines {
            eprintln!("{:4} s of {}: {message}", started.elapsed().as_secs(), length.as_secs());
        } else {
            bar.set_position(started.elapsed().as_secs().min(length.as_secs()));
            bar.set_message(message);
        }
    }
}

struct ClearOnDrop(ProgressBar);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
