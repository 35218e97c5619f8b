//! Results in the forms of llama-bench and llama-batched-bench, each written as soon as it is there.

use std::io::{self, Write};

use clap::ValueEnum;

use super::record::Record;

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Md,
    Json,
    Jsonl,
    Csv,
}

/// Columns of the Markdown table that are there where they tell something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Columns {
    pub(super) n_batch: bool,
    pub(super) n_ubatch: bool,
    pub(super) threads_batch: bool,
    pub(super) cache_types: bool,
    pub(super) limit: bool,
}

/// Writes results.
pub(super) struct Printer<W: Write> {
    out: W,
    format: Format,
    columns: Columns,
    /// What the last table or list was begun for.
    begun: Option<String>,
}

/// One cell: the column's name and width (to the left if negative), and its text.
type Cell = (&'static str, isize, String);

impl<W: Write> Printer<W> {
    pub(super) fn new(out: W, format: Format, columns: Columns) -> Printer<W> {
        Printer { out, format, columns, begun: None }
    }

    /// Writes the result of a test.
    pub(super) fn single(&mut self, record: &Record) -> io::Result<()> {
        match self.format {
            Format::Md => {
                let cells = self.cells(record);
                self.row("tests", "", &cells)
            }
            _ => self.machine(record),
        }
    }

    /// Writes the results of several sequences' prompts and of their answers.
    pub(super) fn batched(&mut self, prompt: &Record, answer: &Record) -> io::Result<()> {
        match self.format {
            Format::Md => {
                let title = format!("{}, {} threads", prompt.model_type, prompt.n_threads_batch);
                let cells = self.batched_cells(prompt, answer);
                let heading = format!("{title}\n\n");
                self.row(&title, &heading, &cells)
            }
            _ => self.machine(prompt).and_then(|()| self.machine(answer)),
        }
    }

    /// Ends what was begun.
    pub(super) fn end(mut self) -> io::Result<()> {
        match (self.format, &self.begun) {
            (Format::Json, None) => writeln!(self.out, "[]")?,
            (Format::Json, Some(_)) => writeln!(self.out, "\n]")?,
            _ => {}
        }
        self.out.flush()
    }

    fn machine(&mut self, record: &Record) -> io::Result<()> {
        let first = self.begun.replace(String::new()).is_none();
        match self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(record)?.replace('\n', "\n  ");
                write!(self.out, "{}  {text}", if first { "[\n" } else { ",\n" })?;
            }
            Format::Csv => {
                let fields = csv_fields(record)?;
                if first {
                    let names: Vec<&str> = fields.iter().map(|(name, _)| &name[..]).collect();
                    writeln!(self.out, "{}", names.join(","))?;
                }
                let values: Vec<&str> = fields.iter().map(|(_, value)| &value[..]).collect();
                writeln!(self.out, "{}", values.join(","))?;
            }
            // At once, so that whoever interrupts the program has whole lines.
            _ => self.out.write_all((serde_json::to_string(record)? + "\n").as_bytes())?,
        }
        self.out.flush()
    }

    /// A row of the table called `name`, with a heading and the columns' names above its first.
    fn row(&mut self, name: &str, heading: &str, cells: &[Cell]) -> io::Result<()> {
        if self.begun.as_deref() != Some(name) {
            let gap = if self.begun.is_some() { "\n" } else { "" };
            write!(self.out, "{gap}{heading}")?;
            let names = cells.iter().map(|(name, width, _)| aligned(name, *width));
            writeln!(self.out, "|{}", names.map(|name| format!(" {name} |")).collect::<String>())?;
            let rules = cells.iter().map(|(_, width, _)| {
                let dashes = "-".repeat(width.unsigned_abs() - 1);
                format!(" {dashes}{} |", if *width > 0 { ':' } else { '-' })
            });
            writeln!(self.out, "|{}", rules.collect::<String>())?;
            self.begun = Some(name.to_owned());
        }
        let cells = cells.iter().map(|(_, width, text)| format!(" {} |", aligned(text, *width)));
        writeln!(self.out, "|{}", cells.collect::<String>())?;
        self.out.flush()
    }

    fn cells(&self, record: &Record) -> Vec<Cell> {
        let mut cells = vec![
            // A name comes from a file and must not break the table.
            ("model", -30, record.model_type.replace('|', "/")),
            ("size", 10, size(record.model_size)),
            ("params", 10, parameters(record.model_n_params)),
            ("backend", -10, record.backends.to_owned()),
            ("threads", 7, record.n_threads.to_string()),
        ];
        if self.columns.threads_batch {
            cells.push(("threads_batch", 13, record.n_threads_batch.to_string()));
        }
        if self.columns.n_batch {
            cells.push(("n_batch", 7, record.n_batch.to_string()));
        }
        if self.columns.n_ubatch {
            cells.push(("n_ubatch", 8, record.n_ubatch.to_string()));
        }
        if self.columns.cache_types {
            cells.push(("type_k", 6, record.type_k.to_owned()));
            cells.push(("type_v", 6, record.type_v.to_owned()));
        }
        cells.push(("test", 15, record.workload.to_string()));
        cells.push(("t/s", 20, format!("{:.2} ± {:.2}", record.avg_ts, record.stddev_ts)));
        if self.columns.limit {
            cells.push(("of limit", 13, of_limit(record)));
        }
        cells
    }

    fn batched_cells(&self, prompt: &Record, answer: &Record) -> Vec<Cell> {
        let (pp, tg, pl) = (prompt.n_prompt, answer.n_gen, prompt.n_parallel);
        let (t_pp, t_tg) = (prompt.seconds(), answer.seconds());
        let speed = |tokens: usize, seconds: f64| format!("{:.2}", tokens as f64 / seconds.max(1e-9));
        let mut cells = vec![
            ("PP", 5, pp.to_string()),
            ("TG", 6, tg.to_string()),
            ("B", 4, pl.to_string()),
            ("N_KV", 6, (pl * (pp + tg)).to_string()),
            ("T_PP s", 8, format!("{t_pp:.3}")),
            ("S_PP t/s", 8, speed(pl * pp, t_pp)),
            ("T_TG s", 8, format!("{t_tg:.3}")),
            ("S_TG t/s", 8, speed(pl * tg, t_tg)),
            ("T s", 8, format!("{:.3}", t_pp + t_tg)),
            ("S t/s", 8, speed(pl * (pp + tg), t_pp + t_tg)),
        ];
        if self.columns.limit {
            cells.push(("PP of limit", 13, of_limit(prompt)));
            cells.push(("TG of limit", 13, of_limit(answer)));
        }
        cells
    }
}

fn of_limit(record: &Record) -> String {
    match (record.limit_share, record.limit) {
        (Some(share), Some(limit)) => format!("{:.0} % {limit}", 100.0 * share),
        _ => String::new(),
    }
}

/// Filled up with spaces, by characters.
fn aligned(text: &str, width: isize) -> String {
    let fill = " ".repeat(width.unsigned_abs().saturating_sub(text.chars().count()));
    if width < 0 { format!("{text}{fill}") } else { format!("{fill}{text}") }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

fn parameters(count: u64) -> String {
    match count {
        0..1_000_000_000 => format!("{:.2} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

/// The fields with one value, each in quotes; those without a value are empty.
fn csv_fields(record: &Record) -> io::Result<Vec<(String, String)>> {
    let serde_json::Value::Object(fields) = serde_json::to_value(record)? else { return Ok(Vec::new()) };
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let fields = fields.into_iter().filter_map(|(name, value)| match value {
        serde_json::Value::Array(_) | serde_json::Value::Object(_) => None,
        serde_json::Value::Null => Some((name, String::new())),
        serde_json::Value::String(text) => Some((name, quoted(&text))),
        other => Some((name, quoted(&other.to_string()))),
    });
    Ok(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::super::workload::Workload;
    use super::*;

    const PROMPT: Workload = Workload { prompt: 512, generate: 0, depth: 0, parallel: 1 };
    const DECODE: Workload = Workload { prompt: 0, generate: 128, depth: 0, parallel: 1 };

    fn printed(format: Format, columns: Columns, print: impl Fn(&mut Printer<&mut Vec<u8>>)) -> String {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, format, columns);
        print(&mut printer);
        printer.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    fn both(format: Format) -> String {
        printed(format, Columns::default(), |printer| {
            printer.single(&record(PROMPT)).unwrap();
            printer.single(&record(DECODE)).unwrap();
        })
    }

    #[test]
    fn markdown_is_llama_benchs_table() {
        assert_eq!(
            both(Format::Md),
            "\
| model                          |       size |     params | backend    | threads |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: | -------------------: |
| stories Q4_0                   |  17.00 MiB |    29.00 M | CPU        |       2 |           pp512 |     1066.67 ± 301.70 |
| stories Q4_0                   |  17.00 MiB |    29.00 M | CPU        |       2 |           tg128 |       266.67 ± 75.42 |
"
        );
    }

    #[test]
    fn columns_that_tell_something_are_added() {
        let columns =
            Columns { n_batch: true, n_ubatch: true, threads_batch: true, cache_types: true, limit: true };
        let table = printed(Format::Md, columns, |printer| {
            let mut record = record(PROMPT);
            (record.limit, record.limit_share) = (Some("compute"), Some(0.456));
            printer.single(&record).unwrap();
        });
        for part in ["n_batch", "n_ubatch", "threads_batch", "type_k", "type_v", "46 % compute"] {
            assert!(table.contains(part), "{part} is missing in\n{table}");
        }
        let lengths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    }

    #[test]
    fn several_sequences_have_the_table_of_llama_batched_bench() {
        let prompt = Workload { parallel: 4, ..PROMPT };
        let answer = Workload { parallel: 4, depth: 512, ..DECODE };
        let table = printed(Format::Md, Columns::default(), |printer| {
            printer.batched(&record(prompt), &record(answer)).unwrap();
            printer.batched(&record(prompt), &record(answer)).unwrap();
        });
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 6, "{table}");
        assert!(lines[2].starts_with("|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |"), "{table}");
        assert!(
            lines[4].starts_with("|   512 |    128 |    4 |   2560 |    0.500 |  4096.00 |    0.500 |"),
            "{table}"
        );
    }

    #[test]
    fn json_is_a_list_and_jsonl_has_a_line_a_result() {
        let list: Vec<serde_json::Value> = serde_json::from_str(&both(Format::Json)).unwrap();
        let lines = both(Format::Jsonl);
        let lines: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(list, lines);
        assert_eq!((&list[0]["n_prompt"], &list[1]["n_gen"]), (&512.into(), &128.into()));
        assert_eq!(list[0]["samples_ns"].as_array().unwrap().len(), 2);
        assert_eq!(printed(Format::Json, Columns::default(), |_| ()), "[]\n");
    }

    #[test]
    fn csv_has_a_line_of_names_and_quotes_what_has_quotes() {
        let csv = both(Format::Csv);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 3, "{csv}");
        assert!(lines[0].starts_with("build_commit,cpu_info,backends,"), "{csv}");
        assert!(lines[1].starts_with("\"build\",\"a \"\"fast\"\" one\",\"CPU\","), "{csv}");
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count(), "{csv}");
    }
}
