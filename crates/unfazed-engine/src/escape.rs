//! Attempts to get out of the engine, for tests of what keeps it in. Only in builds with the feature `fault-plan`.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::process::{getppid, test_kill_process};

/// The engine tries everything, with files in this folder, and logs what came of it.
const ESCAPE_TO: &str = "UNFAZED_ESCAPE_TO";

/// Tries everything if the environment says so. A line each: `escape`, with the attempt and the error, or `done`.
pub(crate) fn try_all() {
    let Some(folder) = std::env::var_os(ESCAPE_TO) else { return };
    let folder = Path::new(&folder);
    let log = |attempt: &str, came: io::Result<()>| {
        let came = came.map_or_else(|error| error.to_string(), |()| "done".to_owned());
        tracing::info!(attempt, came, "escape");
    };
    log("socket", UdpSocket::bind(("127.0.0.1", 0)).map(drop));
    log("socket pair", UnixStream::pair().map(drop));
    log("read a file of the system's", File::open("/etc/passwd").map(drop));
    log("list a folder", std::fs::read_dir(folder).map(drop));
    log("make a file", File::create(folder.join("escaped")).map(drop));
    log("write a file", File::options().append(true).open(folder.join("precious")).map(drop));
    log("read a file on another thread", on_a_thread(|| File::open("/etc/passwd").map(drop)));
    log("change a file's rights", chmod(&folder.join("precious")));
    log("another process's state", File::open(format!("/proc/{}/environ", parent())).map(drop));
    log("signal", getppid().map_or(Ok(()), |parent| Ok(test_kill_process(parent)?)));
    log("process", Command::new("/bin/true").status().map(drop));
    // A program that is there would take this one's place.
    let exec = Command::new("/there-is-no-such-program").exec();
    log("program", if exec.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(exec) });
    log("ring", io_uring::IoUring::new(2).map(drop));
    log("thread", on_a_thread(|| Ok(())));
}

fn parent() -> i32 {
    getppid().map_or(0, |parent| parent.as_raw_nonzero().get())
}

fn chmod(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?)
}

fn on_a_thread(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let ended = thread::Builder::new().spawn(work)?.join();
    ended.unwrap_or_else(|_| Err(io::Error::other("it panicked")))
}
