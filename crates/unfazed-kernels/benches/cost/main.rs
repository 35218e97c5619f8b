//! The cost of every kernel in instructions, against a committed table: unlike times, counts are the same on a busy
//! machine and a quiet one.
//!
//! ```sh
//! cargo bench -p unfazed-kernels --bench cost               # compare
//! cargo bench -p unfazed-kernels --bench cost -- Q4_K       # only the kernels with Q4_K in their name
//! cargo bench -p unfazed-kernels --bench cost -- --bless    # write the table anew
//! ```
//!
//! Needs valgrind on x86-64, whose callgrind counts (it knows AVX2, but neither AVX-VNNI nor AVX-512). A kernel that
//! costs more than the table says, beyond [`ROOM`], is a failure. Another compiler makes other instructions, so the
//! table names its own, and with another one nothing is compared.
//!
//! | file | what |
//! |---|---|
//! | `kernels.rs` | the kernels, each at work of a fixed size |
//! | `callgrind.rs` | this program once more, under callgrind, and its counts |
//! | `table.rs` | the table: reading, writing, comparing |

mod callgrind;
mod kernels;
mod table;

use std::error::Error;
use std::process::ExitCode;

use table::{Judgement, Table};

/// How far a count may be off the table: libraries that are linked differ a little between systems.
const ROOM: f64 = 0.03;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // Cargo itself passes `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [callgrind::MEASURE, filter] => {
            callgrind::measure(filter);
            Ok(ExitCode::SUCCESS)
        }
        ["--bless"] => {
            let table = Table { compiler: compiler()?, counts: callgrind::count("")? };
            table.write()?;
            println!("{} kernels written to {}", table.counts.len(), table::PATH);
            Ok(ExitCode::SUCCESS)
        }
        [] => compare(""),
        [filter] => compare(filter),
        _ => Err("usage: cost [PART_OF_NAME | --bless]".into()),
    }
}

fn compare(filter: &str) -> Result<ExitCode, Box<dyn Error>> {
    let (table, compiler) = (Table::read()?, compiler()?);
    if table.compiler != compiler {
        println!("kernel cost NOT compared: the table is of {}, this is {compiler}", table.compiler);
        return Ok(ExitCode::SUCCESS);
    }
    let counts = callgrind::count(filter)?;
    let mut failures = 0;
    for (name, judgement) in table.judge(&counts, filter, ROOM) {
        println!("{name:44} {judgement}");
        failures += usize::from(matches!(judgement, Judgement::Over { .. } | Judgement::New(_)));
    }
    println!("{} kernels counted, {failures} failures", counts.len());
    if failures > 0 {
        println!("where the cost is meant: cargo bench -p unfazed-kernels --bench cost -- --bless");
    }
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As in `rustc 1.95.0 (59807616e 2026-04-14)`.
fn compiler() -> Result<String, Box<dyn Error>> {
    let output = std::process::Command::new("rustc").arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
