//! Which device computes which part of a model: a plain value that is passed, never a global.

use serde::{Deserialize, Serialize};

/// A device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU, by its index in [`Gpus::adapters`].
    Gpu(usize),
}

impl Place {
    /// The GPU's index; `None` for the processor.
    pub fn gpu(self) -> Option<usize> {
        match self {
            Place::Cpu => None,
            Place::Gpu(index) => Some(index),
        }
    }

    /// Whether it is a GPU.
    pub fn is_gpu(self) -> bool {
        self.gpu().is_some()
    }
}

/// Where a layer's two halves are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerPlace {
    /// Its norm, projections, keys and values, attention.
    pub attention: Place,
    /// Its norm, and the dense network or the router with its experts.
    pub feed_forward: Place,
}

impl LayerPlace {
    /// Both halves in one place.
    pub fn whole(place: Place) -> LayerPlace {
        LayerPlace { attention: place, feed_forward: place }
    }

    /// Any of it is on a GPU: as llama.cpp counts layers that are offloaded.
    pub fn uses_gpu(&self) -> bool {
        self.attention.is_gpu() || self.feed_forward.is_gpu()
    }

    /// All of it is on GPUs.
    pub fn is_on_gpu(&self) -> bool {
        self.attention.is_gpu() && self.feed_forward.is_gpu()
    }
}

/// Which device computes which part of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Where rows of the embedding are looked up.
    pub embedding: Place,
    /// By layer, from the first.
    pub layers: Vec<LayerPlace>,
    /// The last norm and the output table.
    pub output: Place,
}

impl Placement {
    /// The processor alone.
    pub fn cpu(layers: usize) -> Placement {
        Placement { layers: vec![LayerPlace::default(); layers], ..Placement::default() }
    }

    /// All places, from the embedding to the output.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let layers = self.layers.iter().flat_map(|layer| [layer.attention, layer.feed_forward]);
        [self.embedding].into_iter().chain(layers).chain([self.output])
    }

    /// The processor computes everything.
    pub fn is_cpu_alone(&self) -> bool {
        !self.places().any(Place::is_gpu)
    }

    /// Layers of which any half is on a GPU.
    pub fn gpu_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.uses_gpu()).count()
    }

    /// Layers on the processor alone.
    pub fn cpu_layers(&self) -> usize {
        self.layers.len() - self.gpu_layers()
    }

    /// Layers whose attention is on a GPU, and whose network or experts are on the processor.
    pub fn split_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.attention.is_gpu() && !layer.feed_forward.is_gpu()).count()
    }

    /// What computes, in a word: `cpu`, `gpu`, or `gpu+cpu` where both compute layers or the output. (Looking up a row of the
    /// embedding is no computing.)
    pub fn engine(&self) -> &'static str {
        let whole = self.output.is_gpu() && self.layers.iter().all(LayerPlace::is_on_gpu);
        match (self.is_cpu_alone(), whole) {
            (true, _) => "cpu",
            (false, true) => "gpu",
            (false, false) => "gpu+cpu",
        }
    }
}

/// The GPUs that a placement names, and how they are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// Those that [`Place::Gpu`] counts; empty: none is opened.
    pub adapters: Vec<GpuAdapter>,
    /// Time that one command buffer may take, in milliseconds.
    pub budget_ms: u32,
    /// The processor's memory keeps what is on a GPU too, for a quick restart. Otherwise it is given back to the system once it is
    /// there, and read again by whoever needs it.
    pub host_copy: bool,
}

/// A GPU to be opened: both must be as they were when it was chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAdapter {
    /// Its number among this machine's adapters, in the engine's order.
    pub number: usize,
    /// Its name.
    pub name: String,
}

/// What an engine computes on besides the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInUse {
    /// Its name.
    pub name: String,
    /// Its driver and that one's version.
    pub driver: String,
    /// A processor that acts as a GPU.
    pub software: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_is_named_by_what_computes() {
        let cpu = Placement::cpu(3);
        assert_eq!((cpu.engine(), cpu.gpu_layers(), cpu.cpu_layers()), ("cpu", 0, 3));
        assert!(cpu.is_cpu_alone());
        let mut mixed = cpu.clone();
        mixed.layers[2] = LayerPlace::whole(Place::Gpu(0));
        mixed.layers[1].attention = Place::Gpu(0);
        assert_eq!((mixed.engine(), mixed.gpu_layers(), mixed.split_layers()), ("gpu+cpu", 2, 1));
        let layers = vec![LayerPlace::whole(Place::Gpu(1)); 3];
        let whole = Placement { embedding: Place::Cpu, layers, output: Place::Gpu(1) };
        assert_eq!((whole.engine(), whole.cpu_layers()), ("gpu", 0));
        assert_eq!(Placement { output: Place::Cpu, ..whole }.engine(), "gpu+cpu");
        assert!(!Placement { output: Place::Gpu(0), ..cpu }.is_cpu_alone());
    }
}
