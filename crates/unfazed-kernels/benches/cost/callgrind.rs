//! This program once more, under callgrind, and its counts.
//!
//! Callgrind counts inside of [`counted`] alone, and writes a file each time that it ends: the n-th file belongs to
//! the n-th kernel, whose name is the n-th line of the output.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::kernels;

/// The argument that stands before the filter when this program runs under callgrind.
pub(crate) const MEASURE: &str = "--measure";

/// The path of [`counted`].
const COUNTED: &str = "cost::callgrind::counted";

/// Runs the kernels whose names contain `filter`, under callgrind; returns names and instructions.
pub(crate) fn count(filter: &str) -> Result<Vec<(String, u64)>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let counts = count_in(&folder, filter);
    std::fs::remove_dir_all(&folder)?;
    counts
}

fn count_in(folder: &Path, filter: &str) -> Result<Vec<(String, u64)>, Box<dyn Error>> {
    let files = folder.join("counts");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--dump-line=no"])
        .args(["--toggle-collect", "--dump-after"].map(|option| format!("{option}={COUNTED}")))
        .arg(format!("--callgrind-out-file={}", files.display()))
        .arg(std::env::current_exe()?)
        .args([MEASURE, filter])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("valgrind cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("under valgrind the kernels ended with {}", output.status).into());
    }
    let names = String::from_utf8(output.stdout)?;
    let count = |(i, name): (usize, &str)| {
        let dump = std::fs::read_to_string(files.with_extension((i + 1).to_string()))
            .map_err(|error| format!("callgrind wrote no counts for {name}: {error}"))?;
        let total = dump.lines().find_map(|line| line.strip_prefix("totals: "));
        let total = total.ok_or_else(|| format!("callgrind gives no total for {name}"))?;
        Ok((name.to_owned(), total.trim().parse()?))
    };
    names.lines().enumerate().map(count).collect()
}

/// Runs the kernels, and prints the name of each.
pub(crate) fn measure(filter: &str) {
    kernels::each(&mut |name, kernel| {
        if name.contains(filter) {
            println!("{name}");
            counted(kernel);
        }
    });
}

/// A function of its own, so that callgrind finds it.
#[inline(never)]
fn counted(kernel: &mut dyn FnMut()) {
    kernel();
    black_box(());
}
