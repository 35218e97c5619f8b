//! f32 times f32, column by column. In shared memory a column of all rows stands together.

use std::fmt::Write as _;

use super::shell::{Parts, Shape, accumulators, write_accumulators};

pub(super) fn parts(shape: &Shape) -> Parts {
    let mut shared = "var<workgroup> sx: array<vec4<f32>, STEP * 8u * TM>;\n".to_owned();
    let (mut fetch, mut store, mut expand) = (
        "let at = (r * GROUPS + g) * 8u;\n".to_owned(),
        String::new(),
        "let f = MATRIX_weights(RAW, lane, g);\n".to_owned(),
    );
    for name in shape.matrices() {
        let _ = writeln!(shared, "var<workgroup> s_{name}: array<vec4<f32>, STEP * 8u * TN>;");
    }
    for i in 0..8 {
        let _ = writeln!(fetch, "x{i}_# = select(x[at + {i}u], vec4<f32>(), beyond);");
        for (c, part) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let column = 4 * i + c;
            let _ =
                writeln!(store, "sx[(k * 32u + {column}u) * (TM / 4u) + m / 4u][m % 4u] = x{i}_#.{part};");
            let _ = writeln!(
                expand,
                "s_MATRIX[(k * 32u + {column}u) * (TN / 4u) + n / 4u][n % 4u] = f.v{i}.{part};"
            );
        }
    }
    Parts {
        enable: "",
        activations: &[("x", "vec4<f32>")],
        shared,
        arguments: "",
        variables: accumulators(shape),
        held: |i| (0..8).map(|j| format!("var x{j}_{i}: vec4<f32>; ")).collect(),
        fetch,
        store,
        expand,
        compute: compute(shape),
        finish: write_accumulators(shape),
    }
}

fn compute(shape: &Shape) -> String {
    let mut text = "    for (var k = 0u; k < STEP * 32u; k++) {\n".to_owned();
    for b in 0..shape.rows / 64 {
        let _ = writeln!(text, "let x{b} = sx[k * (TM / 4u) + tm + {}u];", b * 16);
    }
    for name in shape.matrices() {
        let _ = writeln!(text, "let k_{name} = s_{name}[k * (TN / 4u) + tn];");
        for m in 0..shape.rows / 16 {
            let x = format!("x{}.{}", m / 4, ["x", "y", "z", "w"][m as usize % 4]);
            let _ = writeln!(text, "c_{name}{m} = fma(vec4<f32>({x}), k_{name}, c_{name}{m});");
        }
    }
    text + "    }\n"
}
