//! Small kernels and a device with its queue and memory, for tests of the runtime.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_device::Generation;
use unfazed_device::gpu::{
    Access, Bound, Budget, Buffer, Cost, Gpu, Group, Kernel, Limits, Memory, Pipeline, Queue, Ready,
};

/// Longest that anything healthy takes here, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Buffers that end by nothing but their number of dispatches.
pub(crate) const UNHURRIED: Limits = Limits { time: Duration::from_secs(3600), dispatches: 48 };

/// A deadline for what is healthy.
pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Multiplies by 3 and adds a number, in each of `array` words: the order of its dispatches shows in the result. A thread a word, a
/// workgroup of 1, so that x may be split.
pub(crate) fn step_kernel() -> Kernel {
    let source = "
        struct Scalars { first: u32, add: u32, rounds: u32 }
        var<immediate> scalars: Scalars;
        @group(0) @binding(0) var<storage, read_write> v: array<u32>;
        @compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) {
            let at = scalars.first + id.x;
            if at >= arrayLength(&v) { return; }
            var x = v[at];
            for (var i = 0u; i < scalars.rounds; i++) { x = x * 3u + scalars.add; }
            v[at] = x;
        }";
    let bindings = vec![Access::Write];
    Kernel { name: "step".into(), source: source.into(), bindings, immediates: 12 }
}

/// What [`step_kernel`] makes of a number.
pub(crate) fn stepped(x: u32, add: u32, rounds: u32) -> u32 {
    (0..rounds).fold(x, |x, _| x.wrapping_mul(3).wrapping_add(add))
}

/// A device with all that work needs.
pub(crate) struct Bench {
    pub(crate) queue: Queue,
    pub(crate) memory: Memory,
    pub(crate) pipeline: Pipeline,
    pub(crate) words: Ready<Buffer>,
    pub(crate) group: Group,
}

impl Bench {
    /// With `words` zeros to work on. A dispatch is never split, however slow this machine is: submissions can be counted.
    pub(crate) fn new(gpu: Arc<Gpu>, words: u64) -> Bench {
        Bench::with(gpu, words, UNHURRIED)
    }

    pub(crate) fn with(gpu: Arc<Gpu>, words: u64, limits: Limits) -> Bench {
        Bench::knowing(gpu, words, Budget::new(limits))
    }

    /// With what is known of kernels.
    pub(crate) fn knowing(gpu: Arc<Gpu>, words: u64, budget: Budget) -> Bench {
        let generation = Generation::default();
        let memory = Memory::new(Arc::clone(&gpu), generation, 1 << 30);
        let pipeline = Pipeline::new(&gpu, &step_kernel()).unwrap();
        let queue = Queue::new(gpu, generation, budget, PATIENCE).unwrap();
        let words = memory.scratch("words", words * 4).unwrap();
        let group = memory.bind(&pipeline, &[Bound::from(&words)]).unwrap();
        Bench { queue, memory, pipeline, words, group }
    }

    /// One dispatch over all words.
    pub(crate) fn step(&mut self, add: u32, rounds: u32) {
        let scalars = [0, add, rounds];
        let grid = [(self.words.bytes() / 4) as u32, 1, 1];
        let cost = Cost::WHOLE.split_at(0);
        self.queue.dispatch(&self.pipeline, &self.group, bytemuck::cast_slice(&scalars), grid, cost);
    }

    /// All words, after what was recorded.
    pub(crate) fn read(&mut self) -> Vec<u32> {
        let read = self.queue.read(&self.words, 0, self.words.bytes());
        self.queue.collect(read, soon(), bytemuck::pod_collect_to_vec).unwrap()
    }
}
