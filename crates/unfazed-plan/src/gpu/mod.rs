//! Which layers are on GPUs: as many of the last ones as fit, or as many as were asked for.
//!
//! The processor's pool is planned as if there were no GPU: it is the ladder's last rung, which every other rung may have to
//! fall back to, and what was admitted before must be served there. A GPU is one more pool, and what is on it is there besides.
//! Where both share their memory, what the GPU takes comes out of the processor's pool, once.
//!
//! | module | what |
//! |---|---|
//! | `settings` | what a user may ask for |
//! | `fit` | a number of layers as a placement, and whether it fits |
//! | `choose` | the number of layers, the pages, the copies, the ladder |
//! | `told` | what is said of it |

mod choose;
mod fit;
mod settings;
mod told;

use serde::{Deserialize, Serialize};
use unfazed_wire::{GpuAdapter, Gpus, Placement};

use crate::Bytes;
use crate::refusal::Part;

pub(crate) use choose::{Request, choose, overhead};
pub use settings::{CpuMoe, GpuLayers, GpuSettings, HostCopy, MOST_GPUS, NoLayers, NoSplit, Split};
pub(crate) use told::{left_to_the_processor, none};

/// A GPU's pool of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPool {
    /// Its number among the machine's adapters.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// A processor that acts as a GPU.
    pub software: bool,
    /// Its memory is the processor's, so that [`crate::Plan::parts`] are drawn from the same.
    pub unified: bool,
    /// All of it, where its driver tells.
    pub total: Option<Bytes>,
    /// What is free of it, where its driver tells.
    pub free: Option<Bytes>,
    /// Layers of which any part is on it.
    pub layers: usize,
    /// What is taken, none of it empty; the reserve is what is kept free.
    pub parts: Vec<Part>,
}

/// A placement of the ladder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// `gpu:16`, by its layers on GPUs, or `cpu`.
    pub name: String,
    /// What is where.
    pub placement: Placement,
}

/// What was decided about GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPlan {
    /// The pools, in the order that a placement counts GPUs in.
    pub pools: Vec<GpuPool>,
    /// Placements, the fullest first, the processor alone last: at least two.
    pub rungs: Vec<Rung>,
    /// Time that one command buffer may take, in milliseconds.
    pub budget_ms: u32,
    /// The processor's memory keeps what is on a GPU too.
    pub host_copy: bool,
}

impl GpuPlan {
    /// The fullest placement.
    pub fn placement(&self) -> Option<&Placement> {
        self.rungs.first().map(|rung| &rung.placement)
    }

    /// The GPUs, for an engine.
    pub fn gpus(&self) -> Gpus {
        let adapters =
            self.pools.iter().map(|pool| GpuAdapter { number: pool.number, name: pool.name.clone() });
        Gpus { adapters: adapters.collect(), budget_ms: self.budget_ms, host_copy: self.host_copy }
    }

    /// One of them is no processor.
    pub fn is_real(&self) -> bool {
        self.pools.iter().any(|pool| !pool.software)
    }
}
