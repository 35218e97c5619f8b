//! The plan for people: tables of at most 80 columns, that are also Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use unfazed_plan::machine::PoolKind;
use unfazed_plan::{Bytes, Experts, GpuPlan, Plan, Prediction};

use super::Planned;

/// Width of the widest line.
const COLUMNS: usize = 80;

/// All of it.
pub(super) fn text(planned: &Planned<'_>, plan: &Plan) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, planned, plan);
    text
}

fn write(out: &mut String, planned: &Planned<'_>, plan: &Plan) -> std::fmt::Result {
    write_head(out, planned, plan)?;
    write_parts(out, plan)?;
    if let Some(experts) = &plan.experts {
        write_experts(out, experts)?;
    }
    if let Some(gpu) = &plan.gpu {
        write_gpus(out, gpu)?;
    }
    write_settings(out, plan)?;
    write_speeds(out, planned, plan)?;
    for (i, note) in plan.notes.iter().enumerate() {
        if i == 0 {
            out.push('\n');
        }
        wrap(out, "Note: ", note)?;
    }
    Ok(())
}

fn write_head(out: &mut String, planned: &Planned<'_>, plan: &Plan) -> std::fmt::Result {
    let checkpoint = planned.checkpoint;
    // Names come from files, and must not steer a terminal.
    let name: String = checkpoint.name.chars().filter(|c| !c.is_control()).take(COLUMNS - 8).collect();
    writeln!(out, "Model:  {name}")?;
    let experts = match checkpoint.config.experts {
        Some(experts) => format!(", {} experts a layer, {} for a token", experts.count, experts.used),
        None => String::new(),
    };
    let (layers, file) = (checkpoint.config.layers, Bytes(checkpoint.tensor_bytes));
    wrap(out, "        ", &format!("{file} of weights, {layers} layers{experts}"))?;
    let bound = match (&plan.memory.bound, plan.budget < plan.memory.free) {
        (_, true) => "as --memory says".to_owned(),
        (Some(bound), false) => format!("free under {bound}"),
        (None, false) => "free now".to_owned(),
    };
    let kind = match plan.memory.kind {
        PoolKind::Memory | PoolKind::Gpu => "",
        PoolKind::Unified => ", shared with the GPU",
    };
    wrap(out, "Memory: ", &format!("{} of {}, {bound}{kind}", plan.budget, plan.memory.total))?;
    out.push('\n');
    Ok(())
}

fn write_parts(out: &mut String, plan: &Plan) -> std::fmt::Result {
    writeln!(out, "| memory           |       size | share |")?;
    writeln!(out, "| ---------------- | ---------: | ----: |")?;
    let share = |bytes: Bytes| 100.0 * bytes.0 as f64 / plan.budget.0.max(1) as f64;
    let mut row = |name: &str, bytes: Bytes| {
        writeln!(out, "| {name:16} | {:>10} | {:3.0} % |", bytes.to_string(), share(bytes))
    };
    let mut rest = plan.budget;
    for part in plan.parts() {
        row(part.part.text(), part.bytes)?;
        rest = rest.saturating_sub(part.bytes);
    }
    row("not used", rest)?;
    out.push('\n');
    Ok(())
}

/// Layers by the size of their slots.
fn write_experts(out: &mut String, experts: &Experts) -> std::fmt::Result {
    let (slots, all) = (experts.slots(), experts.count.saturating_mul(experts.layers.len()));
    if experts.streaming {
        let share = 100.0 * experts.share();
        writeln!(
            out,
            "Experts are read when needed: {slots} of {all} have a slot in memory ({share:.0} %).\n"
        )?;
    } else {
        writeln!(out, "All {all} experts are in memory.\n")?;
    }
    let mut groups: BTreeMap<Bytes, (usize, usize, usize)> = BTreeMap::new();
    for layer in &experts.layers {
        let (layers, least, most) = groups.entry(layer.slot_bytes).or_insert((0, usize::MAX, 0));
        (*layers, *least, *most) = (*layers + 1, (*least).min(layer.slots), (*most).max(layer.slots));
    }
    writeln!(out, "| layers | slots in each | experts in each | one expert |")?;
    writeln!(out, "| -----: | ------------: | --------------: | ---------: |")?;
    for (bytes, (layers, least, most)) in groups {
        let slots = if least == most { most.to_string() } else { format!("{least} to {most}") };
        writeln!(out, "| {layers:6} | {slots:>13} | {:15} | {:>10} |", experts.count, bytes.to_string())?;
    }
    if experts.streaming {
        writeln!(
            out,
            "| ring   | {:13} | {:15} | {:>10} |",
            experts.ring_slots,
            "",
            experts.ring_slot_bytes.to_string()
        )?;
    }
    out.push('\n');
    Ok(())
}

/// Each GPU's pool, and where layers are.
fn write_gpus(out: &mut String, gpu: &GpuPlan) -> std::fmt::Result {
    for pool in &gpu.pools {
        // Names come from drivers.
        let name: String = pool.name.chars().filter(|c| !c.is_control()).take(COLUMNS / 2).collect();
        let memory =
            pool.free.or(pool.total).map_or("memory unknown".to_owned(), |free| format!("{free} free"));
        let shared = if pool.unified { ", shared with the processor" } else { "" };
        let kind = if pool.software { ", a processor that acts as a GPU" } else { "" };
        let text = format!("{} {name}{kind}, {memory}{shared}: {} layers", pool.number, pool.layers);
        wrap(out, "GPU:    ", &text)?;
        out.push('\n');
        writeln!(out, "| on the GPU       |       size |")?;
        writeln!(out, "| ---------------- | ---------: |")?;
        for part in &pool.parts {
            writeln!(out, "| {:16} | {:>10} |", part.part.text(), part.bytes.to_string())?;
        }
        out.push('\n');
    }
    let Some(placement) = gpu.placement() else { return Ok(()) };
    let experts = match placement.split_layers() {
        0 => String::new(),
        layers => format!(", of {layers} of them the attention alone"),
    };
    let output = if placement.output.is_gpu() { " and the output" } else { "" };
    let ladder: Vec<&str> = gpu.rungs.iter().skip(1).map(|rung| rung.name.as_str()).collect();
    let text = format!(
        "{} of {} layers{output} are on the GPU{experts}. After faults: {}.",
        placement.gpu_layers(),
        placement.layers.len(),
        ladder.join(", then ")
    );
    wrap(out, "", &text)?;
    out.push('\n');
    Ok(())
}

fn write_settings(out: &mut String, plan: &Plan) -> std::fmt::Result {
    let types = (plan.cache.keys.name(), plan.cache.values.name());
    let rows = [
        ("--context", plan.context.to_string(), "tokens of a request"),
        ("--parallel", plan.parallel.to_string(), "requests side by side"),
        ("--prefill-chunk", plan.chunk.to_string(), "prompt tokens in a step"),
        ("--kv-type", format!("{},{}", types.0, types.1), "keys, values"),
        ("--threads", format!("{} / {}", plan.threads, plan.batch_threads), "for one answer / for prompts"),
    ];
    writeln!(out, "| setting         |     value | what                         |")?;
    writeln!(out, "| --------------- | --------: | ---------------------------- |")?;
    for (name, value, what) in rows {
        writeln!(out, "| {name:15} | {value:>9} | {what:28} |")?;
    }
    out.push('\n');
    Ok(())
}

fn write_speeds(out: &mut String, planned: &Planned<'_>, plan: &Plan) -> std::fmt::Result {
    if let (Some(prefill), Some(decode)) = (plan.prefill, plan.decode) {
        writeln!(out, "| predicted | tokens/s | bound by |  compute |   memory |     disk |")?;
        writeln!(out, "| --------- | -------: | -------- | -------: | -------: | -------: |")?;
        write_speed(out, "prefill", &prefill)?;
        write_speed(out, "decode", &decode)?;
        out.push('\n');
        if decode.gpu_seconds > 0.0 {
            let (prompt, one) = (duration(prefill.gpu_seconds), duration(decode.gpu_seconds));
            wrap(out, "", &format!("The GPU takes {prompt} and {one} of that, one device after the other."))?;
        }
        let floor = if plan.streams() {
            " Prompts with favourite experts are faster: here each is taken as likely as any other."
        } else {
            ""
        };
        return wrap(out, "", &format!("Times are for a step of {} rows, and of one.{floor}", prefill.rows));
    }
    let why = if plan.gpu.is_some() && !planned.machine.rates.is_empty() {
        "how fast the GPU is is not known."
    } else if planned.machine.rates.is_empty() {
        "this machine has not been measured: `unfazed calibrate` does that."
    } else {
        "the model's disk has not been measured: `unfazed doctor --storage MODEL` does that."
    };
    wrap(out, "", &format!("No speed is predicted: {why}"))
}

fn write_speed(out: &mut String, name: &str, prediction: &Prediction) -> std::fmt::Result {
    let Prediction { tokens_per_second, bound, compute_seconds, memory_seconds, disk_seconds, .. } =
        prediction;
    writeln!(
        out,
        "| {name:9} | {tokens_per_second:8.1} | {:8} | {:>8} | {:>8} | {:>8} |",
        bound.name(),
        duration(*compute_seconds),
        duration(*memory_seconds),
        duration(*disk_seconds)
    )
}

fn duration(seconds: f64) -> String {
    if seconds >= 1.0 { format!("{seconds:.1} s") } else { format!("{:.1} ms", seconds * 1e3) }
}

/// Writes words in lines of [`COLUMNS`] at most, the ones after the first as far in as the text behind `label`.
fn wrap(out: &mut String, label: &str, text: &str) -> std::fmt::Result {
    let (mut line, mut empty) = (label.to_owned(), true);
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            writeln!(out, "{line}")?;
            (line, empty) = (" ".repeat(label.len()), true);
        }
        write!(line, "{}{word}", if empty { "" } else { " " })?;
        empty = false;
    }
    writeln!(out, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_behind_their_label() {
        let mut out = String::new();
        wrap(&mut out, "Note: ", &"word ".repeat(40)).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= COLUMNS), "{out}");
        assert!(lines[0].starts_with("Note: word") && lines[1].starts_with("      word"), "{out}");
        assert_eq!(out.matches("word").count(), 40);
    }

    #[test]
    fn a_duration_reads_well() {
        assert_eq!([0.0123, 2.345].map(duration), ["12.3 ms", "2.3 s"]);
    }
}
