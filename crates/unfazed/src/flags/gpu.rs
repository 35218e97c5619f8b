//! What of a model is computed on GPUs.

use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use unfazed_plan::{CpuMoe, GpuLayers, GpuSettings, HostCopy, Split};

use super::words;

/// Which GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum GpuChoice {
    /// The first real one.
    #[default]
    Auto,
    /// None.
    Off,
    /// These, by number or a part of a name.
    Named(Vec<String>),
}

impl FromStr for GpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuChoice, String> {
        match text {
            "auto" => Ok(GpuChoice::Auto),
            "off" | "none" => Ok(GpuChoice::Off),
            _ => {
                let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
                if names.iter().any(String::is_empty) {
                    return Err(
                        "not a GPU's number or a part of its name, several with commas, or off".to_owned()
                    );
                }
                Ok(GpuChoice::Named(names))
            }
        }
    }
}

/// Layers on GPUs.
#[derive(Debug, Args)]
#[command(next_help_heading = "GPU")]
pub(crate) struct GpuFlags {
    /// GPUs to compute on, by number or a part of a name, several as 0,1; off: none; auto: the first one that is no processor
    /// (`unfazed doctor` lists them)
    #[arg(long, value_name = "GPU|off", default_value = "auto", aliases = words::aliases("gpu"))]
    gpu: GpuChoice,

    /// Layers on the GPU (also -ngl), counted from the last one; one more than there are, or all, is the output table too; auto: as
    /// many as fit
    #[arg(long, value_name = "N|all|auto", default_value = "auto", allow_negative_numbers = true,
          value_parser = str::parse::<GpuLayers>, aliases = words::aliases("gpu-layers"))]
    gpu_layers: GpuLayers,

    /// Keep all experts on the processor, and the layers' attention on the GPU (also -cmoe)
    #[arg(long, conflicts_with = "n_cpu_moe")]
    cpu_moe: bool,

    /// Keep the experts of the first N layers on the processor (also -ncmoe)
    #[arg(long, value_name = "N")]
    n_cpu_moe: Option<usize>,

    /// Shares of the layers among several GPUs, as 3,1 (also -ts) [default: by their free memory]
    #[arg(long, value_name = "A,B,..", value_parser = str::parse::<Split>, aliases = words::aliases("split"))]
    split: Option<Split>,

    /// Longest time of one piece of work on the GPU: shorter ones keep a display smooth and a driver's watchdog away
    #[arg(long, value_name = "MS", default_value_t = GpuSettings::default().budget_ms,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    gpu_budget_ms: u32,

    /// Keep in the processor's memory what is on the GPU too: an engine is back sooner, for twice the memory; auto: where that
    /// takes nothing from anybody
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = host_copy())]
    gpu_host_copy: HostCopy,
}

impl GpuFlags {
    /// Which GPUs.
    pub(crate) fn choice(&self) -> &GpuChoice {
        &self.gpu
    }

    /// What the plan needs to know.
    pub(crate) fn settings(&self) -> GpuSettings {
        let cpu_moe = match (self.cpu_moe, self.n_cpu_moe) {
            (true, _) => CpuMoe::All,
            (false, None | Some(0)) => CpuMoe::No,
            (false, Some(layers)) => CpuMoe::First(layers),
        };
        GpuSettings {
            layers: self.gpu_layers,
            cpu_moe,
            split: self.split,
            budget_ms: self.gpu_budget_ms,
            host_copy: self.gpu_host_copy,
        }
    }
}

fn host_copy() -> impl TypedValueParser<Value = HostCopy> {
    PossibleValuesParser::new(HostCopy::ALL.map(HostCopy::name)).try_map(|name| {
        HostCopy::ALL.into_iter().find(|choice| choice.name() == name).ok_or("no such choice")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_as_names_or_no() {
        let read = |text: &str| text.parse::<GpuChoice>();
        assert_eq!(read("off"), Ok(GpuChoice::Off));
        assert_eq!(read("auto"), Ok(GpuChoice::Auto));
        assert_eq!(read("0, H200"), Ok(GpuChoice::Named(vec!["0".to_owned(), "H200".to_owned()])));
        assert!(read("0,").is_err() && read("").is_err());
    }
}
