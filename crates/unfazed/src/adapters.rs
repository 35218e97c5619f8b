//! The GPUs of this machine, asked of their drivers in a process of its own, which may hang or crash.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use unfazed_device::gpu::{AdapterInfo, Adapters, adapter};
use unfazed_plan::machine::Gpu;
use unfazed_plan::{Bytes, Split};
use unfazed_server::EngineProgram;

use crate::flags::GpuChoice;

/// Drivers that were never asked before may load for a few seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// The flag of the hidden command `engine` that tells.
const FLAG: &str = "--adapters";

/// What the process that asks writes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Real ones first.
    pub(crate) adapters: Vec<AdapterInfo>,
    /// Why there is no Vulkan loader, where there should be one.
    pub(crate) no_loader: Option<String>,
}

impl Answer {
    /// Asks the drivers, in this process.
    pub(crate) fn of_drivers() -> Answer {
        Answer { adapters: Adapters::find().describe(), no_loader: adapter::no_loader() }
    }
}

/// Asks in another process.
///
/// # Errors
///
/// The drivers hang or crash; one line for people.
pub(crate) fn ask() -> anyhow::Result<Answer> {
    let program = EngineProgram::current().context("cannot find this program's own file")?;
    let answer = program.answer(&[FLAG], PATIENCE).context("the GPUs' drivers were asked what there is")?;
    serde_json::from_slice(&answer).context("what the GPUs' drivers told makes no sense")
}

/// The GPUs that may be used.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// In the order in which layers are shared among them.
    pub(crate) gpus: Vec<Gpu>,
    /// Why there is none.
    pub(crate) none: Option<String>,
}

impl Found {
    /// None is to be used.
    pub(crate) fn none(why: &str) -> Found {
        Found { gpus: Vec::new(), none: Some(why.to_owned()) }
    }

    /// Those that were asked for, or the first real one, or as many real ones as there are shares.
    ///
    /// # Errors
    ///
    /// One that was asked for is not there.
    pub(crate) fn find(choice: &GpuChoice, split: Option<Split>) -> anyhow::Result<Found> {
        match choice {
            GpuChoice::Off => return Ok(Found::none("--gpu off")),
            // Without a device there is no real one, and no other is taken unasked.
            GpuChoice::Auto if !unfazed_host::graphics::has_device() => {
                return Ok(Found::none("no GPU was found"));
            }
            GpuChoice::Auto | GpuChoice::Named(_) => {}
        }
        match (ask(), choice) {
            (Ok(answer), _) => choose(&answer.adapters, choice, split),
            (Err(error), GpuChoice::Named(_)) => Err(error),
            (Err(error), _) => {
                tracing::warn!("no GPU is used: {error:#}");
                Ok(Found::none("the GPUs' drivers hang or crash when they are asked what there is"))
            }
        }
    }
}

fn choose(adapters: &[AdapterInfo], choice: &GpuChoice, split: Option<Split>) -> anyhow::Result<Found> {
    let chosen: Vec<usize> = match choice {
        GpuChoice::Off => Vec::new(),
        GpuChoice::Auto => {
            let real = adapters.iter().enumerate().filter(|(_, adapter)| !adapter.software);
            real.map(|(number, _)| number).take(split.map_or(1, |split| split.shares().len())).collect()
        }
        GpuChoice::Named(names) => {
            let mut chosen = Vec::new();
            for name in names {
                let number = meant(adapters, name)?;
                if chosen.contains(&number) {
                    bail!("--gpu names {number} twice");
                }
                chosen.push(number);
            }
            chosen
        }
    };
    let of = |number: &usize| adapters.get(*number).map(|adapter| gpu(*number, adapter));
    let gpus: Vec<Gpu> = chosen.iter().filter_map(of).collect();
    let none = gpus.is_empty().then(|| match adapters {
        [] => "no GPU was found".to_owned(),
        _ => "there is none but what a processor acts as".to_owned(),
    });
    Ok(Found { gpus, none })
}

/// The number of the adapter that a number or a part of a name means.
fn meant(adapters: &[AdapterInfo], name: &str) -> anyhow::Result<usize> {
    let lower = name.to_lowercase();
    let number = match name.parse::<usize>() {
        Ok(number) => (number < adapters.len()).then_some(number),
        Err(_) => adapters.iter().position(|adapter| adapter.name.to_lowercase().contains(&lower)),
    };
    if let Some(number) = number {
        return Ok(number);
    }
    let there = adapters.iter().enumerate().map(|(number, adapter)| format!("{number} ({})", adapter.name));
    match there.collect::<Vec<_>>().join(", ") {
        there if there.is_empty() => bail!("--gpu {name}: no GPU was found; --gpu off leaves it out"),
        there => bail!("--gpu {name}: there is no such GPU; there are: {there}"),
    }
}

fn gpu(number: usize, adapter: &AdapterInfo) -> Gpu {
    Gpu {
        number,
        name: adapter.name.clone(),
        software: adapter.software,
        unified: adapter.unified,
        total: adapter.memory.map(Bytes),
        free: adapter.free.map(Bytes),
        // Nothing measures them yet.
        read_per_second: None,
        macs_per_second: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapters() -> Vec<AdapterInfo> {
        let adapter = |name: &str, software| AdapterInfo {
            name: name.to_owned(),
            software,
            memory: Some(24 << 30),
            ..AdapterInfo::default()
        };
        vec![adapter("NVIDIA A", false), adapter("AMD B", false), adapter("llvmpipe (LLVM)", true)]
    }

    fn numbers(choice: &GpuChoice, split: Option<&str>) -> anyhow::Result<Vec<usize>> {
        let split = split.map(|split| split.parse().unwrap());
        Ok(choose(&adapters(), choice, split)?.gpus.iter().map(|gpu| gpu.number).collect())
    }

    #[test]
    fn without_a_word_the_first_real_one_is_taken_and_no_processor_ever() {
        assert_eq!(numbers(&GpuChoice::Auto, None).unwrap(), [0]);
        assert_eq!(numbers(&GpuChoice::Auto, Some("3,1")).unwrap(), [0, 1]);
        assert_eq!(numbers(&GpuChoice::Auto, Some("1,1,1")).unwrap(), [0, 1]);
        let software = choose(&adapters()[2..], &GpuChoice::Auto, None).unwrap();
        assert!(software.gpus.is_empty() && software.none.unwrap().contains("a processor acts as"));
    }

    #[test]
    fn a_gpu_is_named_by_its_number_or_a_part_of_its_name() {
        let named = |names: &[&str]| {
            numbers(&GpuChoice::Named(names.iter().map(|name| (*name).to_owned()).collect()), None)
        };
        assert_eq!(named(&["1"]).unwrap(), [1]);
        assert_eq!(named(&["LLVMpipe"]).unwrap(), [2]);
        assert_eq!(named(&["amd", "0"]).unwrap(), [1, 0]);
        assert!(named(&["0", "nvidia"]).unwrap_err().to_string().contains("twice"));
        let missing = named(&["3"]).unwrap_err().to_string();
        assert!(missing.contains("there are: 0 (NVIDIA A), 1 (AMD B), 2 (llvmpipe (LLVM))"), "{missing}");
    }
}
