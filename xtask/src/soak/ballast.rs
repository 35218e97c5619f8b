//! A process that takes memory and keeps it until it is told to end: who squeezes the server.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::memory_group::MemoryGroup;

const MIB: usize = 1 << 20;
/// Most that one process takes: small ones, so that the kernel chooses the engine before any of them.
const PIECE_MIB: u64 = 32;
/// What the kernel adds to a process's size, in thousandths of the limit, when it chooses whom to end: less than to the
/// server's engine (800), more than to its front (0).
const OOM_SCORE_ADJ: u32 = 300;

/// Take memory and keep it until standard input ends. What `soak` squeezes servers with.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How much
    mib: usize,
}

/// The task of the process.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut held = Vec::new();
    for _ in 0..arguments.mib {
        // Written to, so that there is memory behind it.
        held.push(vec![1_u8; MIB]);
    }
    println!("holding");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    // Not freed before.
    drop(std::hint::black_box(held));
    Ok(())
}

/// Such processes, seen by who started them; ended when dropped.
pub(super) struct Ballast(Vec<Child>);

impl Ballast {
    /// Starts as many as take so much memory of the group together.
    pub(super) fn start(group: &MemoryGroup, mib: u64) -> Result<Ballast> {
        let mut ballast = Ballast(Vec::new());
        let mut left = mib;
        while left > 0 {
            let piece = left.min(PIECE_MIB);
            ballast.0.push(start_one(group, piece)?);
            left -= piece;
        }
        Ok(ballast)
    }

    /// Whether somebody has ended one of them.
    pub(super) fn has_ended(&mut self) -> bool {
        self.0.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

fn start_one(group: &MemoryGroup, mib: u64) -> Result<Child> {
    let script =
        "echo $$ > \"$1\" && echo \"$2\" > /proc/$$/oom_score_adj && exec \"$0\" soak-ballast \"$3\"";
    Command::new("/bin/sh")
        .args(["-c", script])
        .arg(std::env::current_exe()?)
        .arg(group.processes_file())
        .args([OOM_SCORE_ADJ.to_string(), mib.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start a process that takes memory")
}

impl Drop for Ballast {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
