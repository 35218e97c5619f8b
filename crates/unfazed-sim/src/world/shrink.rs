//! From a run that loses something to a short one: its faults become a script, of which parts are left out as long as
//! something is still lost (Zeller and Hildebrandt, 2002: Simplifying and isolating failure-inducing input).

use super::{Ground, Outcome, Scenario};
use crate::plan::{FaultPlan, Scripted};

/// Runs that are tried at most.
const MOST_RUNS: usize = 2_000;

/// The shortest run found that loses something, with what it loses; `None` if `scenario` loses nothing.
///
/// # Errors
///
/// As [`Ground::run`].
pub fn shrink(ground: &Ground, scenario: &Scenario) -> Result<Option<(Scenario, Outcome)>, String> {
    let outcome = ground.run(scenario)?;
    if outcome.loss.is_none() {
        return Ok(None);
    }
    let mut shrinker = Shrinker { ground, runs: 0, best: (scenario.clone(), outcome.clone()) };
    let script = outcome.faults;
    let scripted = |script| {
        let plan = FaultPlan { script, ..FaultPlan::default() };
        Scenario { plan, ..scenario.clone() }
    };
    if shrinker.loses(scripted(script.clone()))? {
        let script = shrinker.fewest(script, &scripted)?;
        // Which engine a step belongs to depends on those that ended before: the last fault may do by itself elsewhere.
        let script = shrinker.alone(script, outcome.steps, &scripted)?;
        let few = scripted(script);
        let with = |requests| Scenario { requests, ..few.clone() };
        shrinker.fewest(few.requests.clone(), &with)?;
    }
    Ok(Some(shrinker.best))
}

struct Shrinker<'g> {
    ground: &'g Ground,
    runs: usize,
    /// The shortest that lost something.
    best: (Scenario, Outcome),
}

impl Shrinker<'_> {
    fn loses(&mut self, scenario: Scenario) -> Result<bool, String> {
        self.runs += 1;
        let outcome = self.ground.run(&scenario)?;
        let loses = outcome.loss.is_some();
        if loses {
            self.best = (scenario, outcome);
        }
        Ok(loses)
    }

    /// Tries the last fault of a list at each step of the first engine.
    fn alone(
        &mut self,
        script: Vec<Scripted>,
        steps: u64,
        scenario: &dyn Fn(Vec<Scripted>) -> Scenario,
    ) -> Result<Vec<Scripted>, String> {
        let Some(last) = script.last().filter(|_| script.len() > 1) else { return Ok(script) };
        for step in 1..=steps {
            let alone = vec![Scripted { engine: 1, step, fault: last.fault }];
            if self.runs < MOST_RUNS && self.loses(scenario(alone.clone()))? {
                return Ok(alone);
            }
        }
        Ok(script)
    }

    /// Leaves out parts of a list, half of it at first, as long as something is lost.
    fn fewest<T: Clone>(
        &mut self,
        mut list: Vec<T>,
        scenario: &dyn Fn(Vec<T>) -> Scenario,
    ) -> Result<Vec<T>, String> {
        let mut part = list.len().div_ceil(2);
        while part > 0 && self.runs < MOST_RUNS {
            let mut at = 0;
            let mut shorter = false;
            while at < list.len() && self.runs < MOST_RUNS {
                let end = (at + part).min(list.len());
                let rest: Vec<T> = list.iter().take(at).chain(list.iter().skip(end)).cloned().collect();
                if !rest.is_empty() && self.loses(scenario(rest.clone()))? {
                    list = rest;
                    shorter = true;
                } else {
                    at = end;
                }
            }
            part = match (part, shorter) {
                (1, false) => 0,
                (1, true) => 1,
                _ => part / 2,
            };
        }
        Ok(list)
    }
}
