//! Which faults come when: a plan in a file, the same faults for the same seed.
//!
//! ```json
//! {
//!   "seed": 7,
//!   "one_in": {"gpu_timeout": 400, "engine_killed": 3000},
//!   "storage_one_in": {"storage_transient": 50},
//!   "script": [{"engine": 1, "step": 12, "fault": "gpu_hang"}]
//! }
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use unfazed_fault::{Class, Origin};

use crate::device::Bug;

/// Faults to come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultPlan {
    /// Of the draws below.
    pub seed: u64,
    /// Each step meets the fault with the chance of one in so many.
    pub one_in: BTreeMap<FaultName, u64>,
    /// The same for each read of a model's file.
    pub storage_one_in: BTreeMap<FaultName, u64>,
    /// Steps and their faults, beside those that are drawn.
    pub script: Vec<Scripted>,
    /// A step that computes this token aborts its engine.
    pub abort_on_token: Option<u32>,
    /// A bug of the device layer, planted.
    pub bug: Option<Bug>,
}

/// A fault in a certain step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    /// Which engine of its front, from 1.
    pub engine: u64,
    /// Which of its steps, from 1.
    pub step: u64,
    /// What happens there.
    pub fault: FaultName,
}

/// A class by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultName(pub Class);

impl Serialize for FaultName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for FaultName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FaultName, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map(FaultName).map_err(serde::de::Error::custom)
    }
}

/// Why a plan cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is no plan.
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
    /// A fault that cannot happen there.
    #[error("{field}: {} cannot happen {place}: {can}", class.name())]
    Misplaced {
        /// Where in the plan.
        field: &'static str,
        /// What.
        class: Class,
        /// Where it would have to happen.
        place: &'static str,
        /// What can.
        can: String,
    },
    /// A chance of one in nothing.
    #[error("{field}.{}: one in 0 is no chance: 1 is every time", class.name())]
    Never {
        /// Where in the plan.
        field: &'static str,
        /// Of what.
        class: Class,
    },
}

/// Where faults can happen: the atlas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// While a step is computed.
    Step,
    /// While a file is read.
    Read,
}

impl Place {
    /// The classes that can happen there. What follows from each is in `unfazed_fault::POLICY`, and nothing is lost by any
    /// of them but a request that needs bytes which cannot be had.
    pub fn holds(self, class: Class) -> bool {
        match self {
            // What is read for the first time is believed, as there is nothing to compare it with: corrupt bytes are not for
            // here.
            Place::Read => {
                matches!(class, Class::StorageSlow | Class::StorageTransient | Class::StorageGone)
            }
            Place::Step => match class.origin() {
                Origin::Device => !class.is_kernel_panic() && DEVICE.contains(&class),
                _ => matches!(
                    class,
                    Class::NonFinite
                        | Class::Stalled
                        | Class::WireBroken
                        | Class::Bug
                        | Class::Killed
                        | Class::Exited
                ),
            },
        }
    }

    fn names(self) -> String {
        let all = Class::ALL.into_iter().filter(|class| self.holds(*class));
        all.map(Class::name).collect::<Vec<_>>().join(", ")
    }
}

/// What a device can do to a step.
const DEVICE: [Class; 9] = [
    Class::Timeout,
    Class::Hang,
    Class::SubmissionsIgnored,
    Class::InnocentVictim,
    Class::OutOfMemory,
    Class::PageFault,
    Class::Interactivity,
    Class::DeviceLost,
    Class::Discarded,
];

impl FaultPlan {
    /// Reads a plan.
    ///
    /// # Errors
    ///
    /// A text that is no plan, or faults where they cannot happen.
    pub fn parse(text: &str) -> Result<FaultPlan, PlanError> {
        let plan: FaultPlan = serde_json::from_str(text)?;
        let lists =
            [("one_in", Place::Step, &plan.one_in), ("storage_one_in", Place::Read, &plan.storage_one_in)];
        for (field, place, rates) in lists {
            for (&FaultName(class), &rate) in rates {
                placed(field, place, class)?;
                if rate == 0 {
                    return Err(PlanError::Never { field, class });
                }
            }
        }
        for scripted in &plan.script {
            placed("script", Place::Step, scripted.fault.0)?;
        }
        Ok(plan)
    }

    /// What happens in a step of an engine, both counted from 1.
    pub fn at_step(&self, engine: u64, step: u64) -> Option<Class> {
        let scripted = self.script.iter().find(|at| (at.engine, at.step) == (engine, step));
        let drawn = || draw(&self.one_in, [self.seed, 1, engine, step]);
        scripted.map(|at| at.fault.0).or_else(drawn)
    }

    /// What happens to a read, counted from 1 in each engine.
    pub fn at_read(&self, engine: u64, read: u64) -> Option<Class> {
        draw(&self.storage_one_in, [self.seed, 2, engine, read])
    }

    /// Whether reads can fail.
    pub fn disturbs_reads(&self) -> bool {
        !self.storage_one_in.is_empty()
    }
}

fn placed(field: &'static str, place: Place, class: Class) -> Result<(), PlanError> {
    if place.holds(class) {
        return Ok(());
    }
    let at = match place {
        Place::Step => "in a step",
        Place::Read => "to a read",
    };
    Err(PlanError::Misplaced { field, class, place: at, can: place.names() })
}

/// The first of the faults, in the order of their classes, that a draw of its own hits.
fn draw(rates: &BTreeMap<FaultName, u64>, at: [u64; 4]) -> Option<Class> {
    let hit = |(&FaultName(class), &rate): (&FaultName, &u64)| {
        let number = at.into_iter().chain([class as u64]).fold(0, |state, word| mix(state ^ word));
        (rate > 0 && number % rate == 0).then_some(class)
    };
    rates.iter().find_map(hit)
}

/// SplitMix64's step (Steele, Lea and Flood, 2014).
pub(crate) fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_it_does_not_know_and_what_it_does() {
        let refused = |text: &str| FaultPlan::parse(text).unwrap_err().to_string();
        assert!(refused(r#"{"one_in": {"gpu_tired": 5}}"#).contains("gpu_tired"));
        let storage = refused(r#"{"one_in": {"storage_slow": 5}}"#);
        assert!(storage.contains("one_in: storage_slow") && storage.contains("gpu_hang"), "{storage}");
        assert!(refused(r#"{"storage_one_in": {"gpu_hang": 5}}"#).contains("storage_gone"));
        assert!(refused(r#"{"one_in": {"gpu_hang": 0}}"#).contains("one in 0"));
        assert!(refused(r#"{"seeed": 1}"#).contains("seeed"));
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_about_as_often_as_asked_for() {
        let text = r#"{"seed": 3, "one_in": {"gpu_timeout": 50, "gpu_hang": 100}}"#;
        let plan = FaultPlan::parse(text).unwrap();
        let faults = |seed| {
            let plan = FaultPlan { seed, ..plan.clone() };
            (1..=20_000).filter_map(move |step| plan.at_step(2, step)).collect::<Vec<_>>()
        };
        assert_eq!(faults(3), faults(3));
        assert_ne!(faults(3), faults(4));
        let timeouts = faults(3).iter().filter(|class| **class == Class::Timeout).count();
        assert!((300..500).contains(&timeouts), "{timeouts}");
        assert!((500..700).contains(&faults(3).len()));
    }

    #[test]
    fn a_script_puts_faults_into_certain_steps() {
        let text = r#"{"script": [{"engine": 2, "step": 3, "fault": "gpu_device_lost"}]}"#;
        let plan = FaultPlan::parse(text).unwrap();
        assert_eq!(plan.at_step(2, 3), Some(Class::DeviceLost));
        assert_eq!((plan.at_step(1, 3), plan.at_step(2, 4)), (None, None));
        let written = serde_json::to_string(&plan).unwrap();
        assert_eq!(FaultPlan::parse(&written).unwrap(), plan);
    }
}
