//! Where command buffers end, on a simulated device whose true costs the budget does not know.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use unfazed_device::gpu::budget::Load;
use unfazed_device::gpu::{Budget, Cost, Limits};
use unfazed_testkit::rng::Rng;

const MS: f64 = 1e6;

/// A kernel as it truly is: nanoseconds of a dispatch are `fixed`, and for each workgroup `group` and `turn` times the length.
#[derive(Clone, Copy, Debug)]
struct Truth {
    fixed: f64,
    group: f64,
    turn: f64,
}

impl Truth {
    fn ns(self, groups: f64, length: f64) -> f64 {
        self.fixed + groups * (self.group + self.turn * length)
    }
}

/// A device, and the buffers that it was given.
struct Device {
    budget: Budget,
    load: Load,
    truth: f64,
    /// Durations of the buffers, in nanoseconds.
    buffers: Vec<f64>,
    rng: Rng,
    /// How much durations differ from the truth.
    jitter: f64,
}

impl Device {
    fn new(budget: Budget, jitter: f64) -> Device {
        let load = Load::default();
        let rng = Rng::new(3, "jitter", 0);
        Device { budget, load, truth: 0.0, buffers: Vec::new(), rng, jitter }
    }

    fn end(&mut self) {
        if self.load.is_empty() {
            return;
        }
        let took = self.truth * (1.0 + self.jitter * f64::from(self.rng.uniform(-1.0, 1.0)));
        assert!(self.load.len() <= 48, "{} dispatches", self.load.len());
        self.budget.measured(&self.load, Duration::from_nanos(took as u64));
        self.buffers.push(took);
        self.load.clear();
        self.truth = 0.0;
    }

    /// Returns how many workgroups in x were dispatched.
    fn run(&mut self, name: &str, truth: Truth, cost: Cost, grid: [u32; 3]) -> u32 {
        let mut first = 0;
        while first < grid[0] {
            let piece = self.budget.next(name, cost, [grid[0] - first, grid[1], grid[2]], &self.load);
            assert!(piece.groups >= 1 && piece.groups <= grid[0] - first);
            if piece.before {
                self.end();
                continue;
            }
            let groups = f64::from(piece.groups) * f64::from(grid[1]) * f64::from(grid[2]);
            self.truth += truth.ns(groups, f64::from(cost.length));
            self.load.add(piece.share);
            first += piece.groups;
            if piece.probe {
                self.end();
            }
        }
        first
    }

    /// A prompt of so many tokens, in chunks, and one more token.
    fn prompt(&mut self, kernels: &Kernels, tokens: u32, chunk: u32) {
        let mut at = 0;
        while at < tokens {
            let rows = chunk.min(tokens - at);
            self.forward(kernels, rows, at + rows);
            at += rows;
        }
        self.forward(kernels, 1, tokens + 1);
    }

    fn forward(&mut self, kernels: &Kernels, rows: u32, context: u32) {
        let split = Cost::WHOLE.split_at(0);
        let mode = if rows > 8 { "prompt" } else { "decode" };
        let tiles = rows.div_ceil(32);
        for _ in 0..kernels.layers {
            self.run(&format!("norm {mode}"), kernels.norm, Cost::WHOLE, [rows, 1, 1]);
            self.run(&format!("qkv {mode}"), kernels.matrix, split, [64, tiles, 1]);
            self.run(&format!("attend {mode}"), kernels.attend, split.of_length(context), [rows, 8, 1]);
            self.run(&format!("out {mode}"), kernels.matrix, split, [32, tiles, 1]);
            self.run(&format!("experts {mode}"), kernels.experts, split, [24, 8 * rows, 1]);
        }
        self.end();
    }
}

#[derive(Clone, Copy, Debug)]
struct Kernels {
    layers: u32,
    norm: Truth,
    matrix: Truth,
    attend: Truth,
    experts: Truth,
}

/// A number between the two whose logarithm is evenly spread.
fn between(rng: &mut Rng, low: f32, high: f32) -> f64 {
    f64::from(rng.uniform(low.ln(), high.ln()).exp())
}

impl Kernels {
    fn any(rng: &mut Rng) -> Kernels {
        let mut truth = |group: [f32; 2], turn: [f32; 2]| Truth {
            fixed: between(rng, 1_000.0, 20_000.0),
            group: between(rng, group[0], group[1]),
            turn: between(rng, turn[0], turn[1]),
        };
        let none = [1e-6, 1e-5];
        Kernels {
            norm: truth([10.0, 300.0], none),
            matrix: truth([500.0, 40_000.0], none),
            attend: truth([10.0, 300.0], [0.02, 0.6]),
            experts: truth([50.0, 1_500.0], none),
            layers: 1 + (rng.word() % 5) as u32,
        }
    }
}

#[test]
fn no_buffer_is_longer_than_twice_its_budget_once_kernels_are_known() {
    for case in 0..48 {
        let mut rng = Rng::new(1, "budget", case);
        let kernels = Kernels::any(&mut rng);
        let chunk = [512, 2048, 8192][(case % 3) as usize];
        let mut device = Device::new(Budget::new(Limits::default()), 0.15);
        // Kernels become known in short prompts and in one of the longest.
        for tokens in [64, 500, 8192] {
            device.prompt(&kernels, tokens, chunk);
        }
        let warm = device.buffers.len();
        for _ in 0..6 {
            let tokens = between(&mut rng, 1.0, 8192.0).round() as u32;
            device.prompt(&kernels, tokens, chunk);
        }
        let worst = device.buffers[warm..].iter().copied().fold(0.0, f64::max);
        assert!(worst <= 2.0 * 50.0 * MS, "case {case}: {:.1} ms with {kernels:?}", worst / MS);
    }
}

#[test]
fn nothing_of_a_dispatch_is_lost_or_done_twice() {
    for case in 0..100 {
        let mut rng = Rng::new(2, "pieces", case);
        let kernel = Truth { fixed: 100.0, group: between(&mut rng, 50.0, 1e6), turn: 0.0 };
        let mut device = Device::new(Budget::new(Limits::default()), 0.1);
        for _ in 0..10 {
            let grid = [1 + (rng.word() % 20_000) as u32, 1 + (rng.word() % 40) as u32, 1];
            assert_eq!(device.run("kernel", kernel, Cost::WHOLE.split_at(0), grid), grid[0]);
        }
    }
}

/// A kernel of 10 us a workgroup.
const PLAIN: Truth = Truth { fixed: 0.0, group: 10_000.0, turn: 0.0 };

fn warm() -> Device {
    let mut device = Device::new(Budget::new(Limits::default()), 0.0);
    for _ in 0..20 {
        device.run("plain", PLAIN, Cost::WHOLE.split_at(0), [20_000, 1, 1]);
        device.end();
    }
    device
}

#[test]
fn buffers_are_filled_to_their_budget_and_not_far_below_it() {
    let mut device = warm();
    let before = device.buffers.len();
    device.run("plain", PLAIN, Cost::WHOLE.split_at(0), [100_000, 1, 1]);
    device.end();
    // A second of work, 50 ms at a time.
    let buffers = device.buffers.len() - before;
    assert!((20..=24).contains(&buffers), "{buffers} buffers");
}

#[test]
fn a_time_out_halves_buffers_and_quiet_brings_them_back() {
    let mut device = warm();
    device.budget.tripped();
    assert_eq!(device.budget.limit(), Duration::from_millis(25));
    let before = device.buffers.len();
    device.run("plain", PLAIN, Cost::WHOLE.split_at(0), [20_000, 1, 1]);
    device.end();
    assert!(device.buffers[before..].iter().all(|ns| *ns <= 30.0 * MS), "{:?}", &device.buffers[before..]);
    for _ in 0..100 {
        device.budget.tripped();
    }
    assert_eq!(device.budget.limit(), Duration::from_millis(1));
    for _ in 0..8_000 {
        device.run("plain", PLAIN, Cost::WHOLE.split_at(0), [10, 1, 1]);
        device.end();
    }
    assert_eq!(device.budget.limit(), Duration::from_millis(50));
}

#[test]
fn what_was_learned_is_kept_in_a_text_and_a_shorter_budget_with_it() {
    let mut device = warm();
    device.budget.tripped();
    let text = device.budget.to_text();
    let budget = Budget::from_text(Limits::default(), &text).unwrap();
    assert_eq!(budget.limit(), Duration::from_millis(25));
    let mut later = Device::new(budget, 0.0);
    later.run("plain", PLAIN, Cost::WHOLE.split_at(0), [20_000, 1, 1]);
    later.end();
    assert!(later.buffers.iter().all(|ns| *ns > 15.0 * MS && *ns < 30.0 * MS), "{:?}", later.buffers);
    for wrong in ["", "[]", r#"{"version":2,"budget_ns":1,"kernels":{}}"#] {
        assert!(Budget::from_text(Limits::default(), wrong).is_err(), "{wrong}");
    }
    for value in ["-1", "0", "1e300"] {
        let text = format!(r#"{{"version":1,"budget_ns":5e7,"kernels":{{"a":[[1,1,{value}]]}}}}"#);
        assert!(Budget::from_text(Limits::default(), &text).is_err(), "{value}");
    }
}

#[test]
fn an_unknown_kernel_first_runs_in_a_small_piece_by_itself() {
    let mut device = warm();
    device.run("plain", PLAIN, Cost::WHOLE, [10, 1, 1]);
    let before = device.buffers.len();
    // Ten seconds, were it not split.
    let slow = Truth { fixed: 0.0, group: 100_000.0, turn: 0.0 };
    device.run("slow", slow, Cost::WHOLE.split_at(0), [100_000, 1, 1]);
    device.end();
    // What was recorded before it, then the first piece.
    assert!(device.buffers[before] < 1.0 * MS && device.buffers[before + 1] < 26.0 * MS);
    assert!(device.buffers[before..].iter().all(|ns| *ns <= 100.0 * MS));
}
