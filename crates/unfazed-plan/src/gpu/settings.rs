//! What a user may ask of GPUs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most GPUs that layers are shared among.
pub const MOST_GPUS: usize = 16;

/// What GPUs are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSettings {
    /// Layers on GPUs.
    pub layers: GpuLayers,
    /// Layers whose experts stay on the processor.
    pub cpu_moe: CpuMoe,
    /// Shares of the layers among several GPUs; `None`: by their free memory.
    pub split: Option<Split>,
    /// Time that one command buffer may take, in milliseconds.
    pub budget_ms: u32,
    /// Whether the processor's memory keeps what is on a GPU too.
    pub host_copy: HostCopy,
}

impl Default for GpuSettings {
    fn default() -> GpuSettings {
        GpuSettings {
            layers: GpuLayers::default(),
            cpu_moe: CpuMoe::default(),
            split: None,
            budget_ms: 50,
            host_copy: HostCopy::default(),
        }
    }
}

/// Layers on GPUs, counted from the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuLayers {
    /// As many as fit.
    #[default]
    Auto,
    /// All, and the output table.
    All,
    /// So many; one more than there are is the output table too.
    Count(usize),
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuLayers::Auto => f.write_str("auto"),
            GpuLayers::All => f.write_str("all"),
            GpuLayers::Count(layers) => write!(f, "{layers}"),
        }
    }
}

/// Text that is no number of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a number of layers such as 20, all or auto")]
pub struct NoLayers;

impl FromStr for GpuLayers {
    type Err = NoLayers;

    /// A number, `auto` or `all`; a negative number is `auto`, as in other servers.
    fn from_str(text: &str) -> Result<GpuLayers, NoLayers> {
        match text {
            "auto" => Ok(GpuLayers::Auto),
            "all" => Ok(GpuLayers::All),
            _ if text.strip_prefix('-').is_some_and(|rest| rest.parse::<u32>().is_ok()) => {
                Ok(GpuLayers::Auto)
            }
            _ => text.parse().map(GpuLayers::Count).map_err(|_| NoLayers),
        }
    }
}

/// Layers whose experts stay on the processor while their attention is on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuMoe {
    /// None of those that are on a GPU.
    #[default]
    No,
    /// The first so many of all layers.
    First(usize),
    /// All.
    All,
}

impl CpuMoe {
    /// Whether this layer's do.
    pub fn keeps(self, layer: usize) -> bool {
        match self {
            CpuMoe::No => false,
            CpuMoe::First(layers) => layer < layers,
            CpuMoe::All => true,
        }
    }
}

/// Whether the processor's memory keeps what is on a GPU too: a quick restart for twice the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostCopy {
    /// Where it takes nothing from anybody.
    #[default]
    Auto,
    /// Yes.
    On,
    /// No: it is read again when it is needed.
    Off,
}

impl HostCopy {
    /// All choices.
    pub const ALL: [HostCopy; 3] = [HostCopy::Auto, HostCopy::On, HostCopy::Off];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            HostCopy::Auto => "auto",
            HostCopy::On => "on",
            HostCopy::Off => "off",
        }
    }
}

impl fmt::Display for HostCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Shares of the layers among several GPUs: at least one is more than nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    shares: [u32; MOST_GPUS],
    gpus: usize,
}

impl Split {
    /// `None` for no shares, for more than [`MOST_GPUS`], and for nothing but zeros.
    pub fn new(shares: &[u32]) -> Option<Split> {
        let mut all = [0; MOST_GPUS];
        all.get_mut(..shares.len())?.copy_from_slice(shares);
        shares.iter().any(|share| *share > 0).then_some(Split { shares: all, gpus: shares.len() })
    }

    /// A share for each GPU.
    pub fn shares(&self) -> &[u32] {
        self.shares.get(..self.gpus).unwrap_or_default()
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, share) in self.shares().iter().enumerate() {
            write!(f, "{}{share}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Text that is no shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not shares of layers such as 1,1 or 3,2: whole numbers, one a GPU, at most {MOST_GPUS} of them")]
pub struct NoSplit;

impl FromStr for Split {
    type Err = NoSplit;

    fn from_str(text: &str) -> Result<Split, NoSplit> {
        let shares: Result<Vec<u32>, _> = text.split([',', '/']).map(|share| share.trim().parse()).collect();
        Split::new(&shares.map_err(|_| NoSplit)?).ok_or(NoSplit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_shares_are_read_as_other_servers_take_them() {
        for (text, layers) in [
            ("auto", GpuLayers::Auto),
            ("-1", GpuLayers::Auto),
            ("all", GpuLayers::All),
            ("0", GpuLayers::Count(0)),
            ("99", GpuLayers::Count(99)),
        ] {
            assert_eq!(text.parse(), Ok(layers), "{text}");
        }
        for text in ["", "-", "-x", "few", "1.5"] {
            assert_eq!(text.parse::<GpuLayers>(), Err(NoLayers), "{text}");
        }
        let shares = |text: &str| text.parse::<Split>().map(|split| split.shares().to_vec());
        assert_eq!(shares("3,1"), Ok(vec![3, 1]));
        assert_eq!(shares("1/0/2"), Ok(vec![1, 0, 2]));
        for text in ["", "0", "0,0", "1,", "a", "-1", &"1,".repeat(16).clone(), &vec!["1"; 17].join(",")] {
            assert_eq!(shares(text), Err(NoSplit), "{text}");
        }
        assert_eq!("3,1".parse::<Split>().unwrap().to_string(), "3,1");
    }
}
