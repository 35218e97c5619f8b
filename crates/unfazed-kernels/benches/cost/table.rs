//! The table: reading, writing, comparing.
//!
//! ```text
//! # rustc 1.95.0 (59807616e 2026-04-14)
//! matmul Q4_K avx2 1 row<tab>123456
//! ```

use std::error::Error;
use std::fmt;

/// Where it is.
pub(crate) const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/cost/table.tsv");

/// Instructions by kernel.
pub(crate) struct Table {
    /// The compiler that made them.
    pub(crate) compiler: String,
    /// Names and instructions.
    pub(crate) counts: Vec<(String, u64)>,
}

/// A count against the table.
pub(crate) enum Judgement {
    /// As before.
    Same(u64),
    /// More instructions than the room allows.
    Over { old: u64, new: u64 },
    /// Fewer instructions than the room allows.
    Under { old: u64, new: u64 },
    /// Not in the table.
    New(u64),
    /// In the table, but no kernel any more.
    Gone,
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = |old: u64, new: u64| 100.0 * (new as f64 / old as f64 - 1.0);
        match *self {
            Judgement::Same(new) => write!(f, "{new:>12}"),
            Judgement::Over { old, new } => {
                write!(f, "{new:>12} FAILED: {old} in the table, {:+.1} %", change(old, new))
            }
            Judgement::Under { old, new } => {
                write!(f, "{new:>12} better: {old} in the table, {:+.1} %: bless it", change(old, new))
            }
            Judgement::New(new) => write!(f, "{new:>12} FAILED: not in the table"),
            Judgement::Gone => write!(f, "{:>12} only in the table: bless it", "-"),
        }
    }
}

impl Table {
    pub(crate) fn read() -> Result<Table, Box<dyn Error>> {
        let text = std::fs::read_to_string(PATH).map_err(|error| format!("{PATH}: {error}"))?;
        let (compiler, lines) = text.split_once('\n').ok_or("an empty table")?;
        let count = |line: &str| {
            let (name, count) = line.split_once('\t').ok_or_else(|| format!("{PATH}: no tab in {line}"))?;
            Ok((name.to_owned(), count.parse()?))
        };
        let counts = lines.lines().map(count).collect::<Result<_, Box<dyn Error>>>()?;
        Ok(Table { compiler: compiler.trim_start_matches("# ").to_owned(), counts })
    }

    pub(crate) fn write(&self) -> Result<(), Box<dyn Error>> {
        let lines = self.counts.iter().map(|(name, count)| format!("{name}\t{count}\n"));
        Ok(std::fs::write(PATH, format!("# {}\n{}", self.compiler, lines.collect::<String>()))?)
    }

    /// What is to be said of each count, and of the kernels that `filter` leaves and that were not counted.
    pub(crate) fn judge<'a>(
        &'a self,
        counts: &'a [(String, u64)],
        filter: &str,
        room: f64,
    ) -> Vec<(&'a str, Judgement)> {
        let find = |counts: &[(String, u64)], name: &str| {
            counts.iter().find(|(other, _)| other == name).map(|(_, count)| *count)
        };
        let judge = |(name, new): &'a (String, u64)| {
            let new = *new;
            let judgement = match find(&self.counts, name) {
                None => Judgement::New(new),
                Some(old) if new as f64 > old as f64 * (1.0 + room) => Judgement::Over { old, new },
                Some(old) if (new as f64) < old as f64 * (1.0 - room) => Judgement::Under { old, new },
                Some(_) => Judgement::Same(new),
            };
            (name.as_str(), judgement)
        };
        let missing = |(name, _): &&(String, u64)| name.contains(filter) && find(counts, name).is_none();
        let gone = self.counts.iter().filter(missing).map(|(name, _)| (name.as_str(), Judgement::Gone));
        counts.iter().map(judge).chain(gone).collect()
    }
}
