//! Which experts there are: a unit is one expert of one layer, its gate, up and down parts together.

use std::fmt;

/// A unit's number: layer times experts of a layer, plus the expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit(pub u32);

/// An expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertId {
    /// The layer; counts from 0 over all layers, those without experts included.
    pub layer: u32,
    /// The expert within its layer.
    pub expert: u32,
}

impl fmt::Display for ExpertId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expert {} of layer {}", self.expert, self.layer)
    }
}

/// How many layers and experts there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Units {
    /// Layers.
    pub layers: u32,
    /// Experts in each layer.
    pub experts: u32,
}

impl Units {
    /// All units; `None` if their numbers overflow.
    pub fn count(&self) -> Option<u32> {
        self.layers.checked_mul(self.experts)
    }

    /// The number of an expert; `None` if there is no such expert.
    pub fn unit(&self, id: ExpertId) -> Option<Unit> {
        let inside = id.layer < self.layers && id.expert < self.experts;
        inside.then(|| Some(Unit(id.layer.checked_mul(self.experts)?.checked_add(id.expert)?)))?
    }

    /// The expert of a number.
    pub fn id(&self, unit: Unit) -> ExpertId {
        let experts = self.experts.max(1);
        ExpertId { layer: unit.0 / experts, expert: unit.0 % experts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expert_has_a_number_of_its_own_and_no_other_has_one() {
        let units = Units { layers: 3, experts: 5 };
        for number in 0..units.count().unwrap() {
            assert_eq!(units.unit(units.id(Unit(number))), Some(Unit(number)));
        }
        assert_eq!(units.unit(ExpertId { layer: 3, expert: 0 }), None);
        assert_eq!(units.unit(ExpertId { layer: 0, expert: 5 }), None);
        assert_eq!(Units { layers: 1 << 20, experts: 1 << 20 }.count(), None);
        assert_eq!(ExpertId { layer: 2, expert: 7 }.to_string(), "expert 7 of layer 2");
    }
}
