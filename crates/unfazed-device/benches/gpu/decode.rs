//! The decode kernels.

use unfazed_device::gpu::Gpu;
use unfazed_device::gpu::kernels::experts::{Down, GateUp};
use unfazed_device::gpu::kernels::matvec::{MOST_ROWS, MatVec};
use unfazed_device::gpu::kernels::shard::{Shard, immediates};
use unfazed_formats::BlockFormat::{self, *};
use unfazed_kernels::panel::PanelLayout;

use crate::case::{Case, Fill};

const FORMATS: [BlockFormat; 9] = [Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4, IQ4_XS, F16, FP8];

/// Prints a table of all whose name has this part. Weights are there so many times that no cache holds them.
pub(crate) fn run(gpu: &Gpu, part: &str) {
    let small = gpu.info.software;
    println!("kernel | us | GB/s");
    for format in if small { &FORMATS[..1] } else { &FORMATS }.iter().copied() {
        let cases = [1, MOST_ROWS].into_iter().flat_map(|rows| matvecs(gpu, format, rows, small));
        for case in cases.chain(mixture(gpu, format, small)).filter(|case| case.name().contains(part)) {
            println!("{}", case.measure(gpu, small));
        }
    }
}

fn layout(format: BlockFormat, rows: usize, columns: usize) -> PanelLayout {
    PanelLayout::new(format, rows, columns).unwrap()
}

/// Of a model of hidden size 2048 or 4096: queries, keys and values after the norm; a dense network; the logits.
fn matvecs(gpu: &Gpu, format: BlockFormat, rows: usize, small: bool) -> Vec<Case> {
    let all: &[(&[usize], usize)] = match small {
        true => &[(&[64, 32, 32], 512)],
        false => &[(&[4096, 512, 512], 2048), (&[4096], 4096), (&[4096], 14336), (&[151_936], 2048)],
    };
    let mut cases = Vec::new();
    for (heights, columns) in all {
        let matrices: Vec<PanelLayout> =
            heights.iter().map(|height| layout(format, *height, *columns)).collect();
        let bytes = matrices.iter().map(|layout| layout.bytes() as u64).sum();
        let norm = (heights.len() > 1).then_some(1e-6);
        // For one row also a kernel that is for no more.
        let most = if rows == 1 && !small { vec![1, MOST_ROWS] } else { vec![MOST_ROWS] };
        for most in most {
            let matrices = matrices.clone();
            let matvec = MatVec { matrices, norm, add: norm.is_none(), listed: false, rows: most };
            let mut buffers = vec![Fill::Ones(rows * columns)];
            if norm.is_some() {
                buffers.push(Fill::Ones(*columns));
            }
            for layout in &matvec.matrices {
                buffers.extend([Fill::Random(layout.bytes()), Fill::Ones(rows * layout.rows())]);
            }
            cases.push(Case {
                kernel: matvec.kernel(&gpu.abilities),
                rows,
                buffers,
                immediates: immediates(rows, matvec.whole()).to_vec(),
                grid: matvec.grid(matvec.whole()),
                bytes,
            });
        }
    }
    cases
}

/// A row's eight experts, and a dense network's gate and up.
fn mixture(gpu: &Gpu, format: BlockFormat, small: bool) -> Vec<Case> {
    let (used, width, hidden) = if small { (2, 256, 256) } else { (8, 768, 2048) };
    let shard = Shard::all(used);
    let ids = || Fill::Words((0..used as u32).collect());
    let gate = layout(format, width, hidden);
    let gate_up = GateUp { gate, up: gate, norm: Some(1e-6), used: Some(used), rows: 1 };
    let stack = gate.bytes() * used;
    let mut cases = vec![Case {
        kernel: gate_up.kernel(&gpu.abilities),
        rows: 1,
        buffers: vec![
            Fill::Ones(hidden),
            Fill::Ones(hidden),
            ids(),
            Fill::Random(stack),
            Fill::Random(stack),
            Fill::Ones(used * width),
        ],
        immediates: immediates(1, shard).to_vec(),
        grid: gate_up.grid(1),
        bytes: 2 * stack as u64,
    }];
    let down = Down { down: layout(format, hidden, width), used };
    let stack = down.down.bytes() * used;
    cases.push(Case {
        kernel: down.kernel(&gpu.abilities),
        rows: 1,
        buffers: vec![
            Fill::Ones(used * width),
            ids(),
            Fill::Ones(used),
            Fill::Random(stack),
            Fill::Ones(hidden),
        ],
        immediates: immediates(1, shard).to_vec(),
        grid: down.grid(1),
        bytes: stack as u64,
    });
    if !small {
        let gate = layout(format, 14336, 4096);
        let dense = GateUp { gate, up: gate, norm: Some(1e-6), used: None, rows: MOST_ROWS };
        cases.push(Case {
            kernel: dense.kernel(&gpu.abilities),
            rows: 1,
            buffers: vec![
                Fill::Ones(4096),
                Fill::Ones(4096),
                Fill::Random(gate.bytes()),
                Fill::Random(gate.bytes()),
                Fill::Ones(14336),
            ],
            immediates: immediates(1, Shard::all(1)).to_vec(),
            grid: dense.grid(1),
            bytes: 2 * gate.bytes() as u64,
        });
    }
    cases
}
