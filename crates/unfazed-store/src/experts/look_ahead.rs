//! How far the next layer's router is to be trusted when it is asked a layer early.

use std::collections::BTreeSet;

use super::Unit;

/// Predictions count half as much after so many later ones.
const HALF_LIFE: f64 = 200.0;
/// Predictions are followed from this share of right ones on. A wrong one takes a slot and holds up the disk for those that
/// are needed, so half of them must be right at least; one layer ahead routers are right in 53 to 72 % of cases.
const PAYS_FROM: f64 = 0.5;
/// What is expected before anything was seen.
const AT_FIRST: f64 = 0.6;

/// Predictions, and what became of them.
#[derive(Debug)]
pub(crate) struct LookAhead {
    accuracy: f64,
    layer: u32,
    predicted: BTreeSet<Unit>,
}

impl LookAhead {
    pub(crate) fn new() -> LookAhead {
        LookAhead { accuracy: AT_FIRST, layer: 0, predicted: BTreeSet::new() }
    }

    /// A layer's experts were predicted; these were in no slot. Whether they should be fetched.
    pub(crate) fn predict(&mut self, layer: u32, missing: impl IntoIterator<Item = Unit>) -> bool {
        self.layer = layer;
        self.predicted = missing.into_iter().collect();
        self.pays()
    }

    /// A layer uses these experts.
    pub(crate) fn compare(&mut self, layer: u32, used: &[Unit]) {
        if layer != self.layer {
            return;
        }
        let keep = (-1.0 / HALF_LIFE).exp2();
        for unit in std::mem::take(&mut self.predicted) {
            let right = if used.contains(&unit) { 1.0 } else { 0.0 };
            self.accuracy = keep * self.accuracy + (1.0 - keep) * right;
        }
    }

    /// The share of predictions that were right of late.
    pub(crate) fn accuracy(&self) -> f64 {
        self.accuracy
    }

    /// Whether predictions are followed. Those that are not are judged all the same, so that they may be again.
    pub(crate) fn pays(&self) -> bool {
        self.accuracy >= PAYS_FROM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_dropped_while_they_are_wrong_and_followed_again_when_they_are_right() {
        let mut look_ahead = LookAhead::new();
        let mut round = |used: u32| {
            let followed = look_ahead.predict(3, (0..4).map(Unit));
            look_ahead.compare(3, &(0..used).map(Unit).collect::<Vec<_>>());
            followed
        };
        assert!(round(4), "trusted at first");
        for _ in 0..200 {
            round(1);
        }
        assert!(!round(1), "a quarter is right");
        for _ in 0..200 {
            round(3);
        }
        assert!(round(3), "three quarters are right");
    }

    #[test]
    fn only_the_layer_that_was_predicted_is_judged() {
        let mut look_ahead = LookAhead::new();
        look_ahead.predict(3, [Unit(1)]);
        look_ahead.compare(2, &[]);
        assert_eq!(look_ahead.accuracy(), AT_FIRST);
        look_ahead.compare(3, &[]);
        assert!(look_ahead.accuracy() < AT_FIRST);
        let after = look_ahead.accuracy();
        look_ahead.compare(3, &[]);
        assert_eq!(look_ahead.accuracy(), after, "once");
    }
}
