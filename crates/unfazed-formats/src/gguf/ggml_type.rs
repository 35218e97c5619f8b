//! Ids of tensor types in GGUF files (`enum ggml_type`).

use crate::BlockFormat;

/// The block format with this id; `None` if it is unknown or not supported.
pub fn block_format(id: u32) -> Option<BlockFormat> {
    BlockFormat::ALL.into_iter().find(|format| ggml_type(*format) == id)
}

/// The id of a block format.
pub fn ggml_type(format: BlockFormat) -> u32 {
    match format {
        BlockFormat::F32 => 0,
        BlockFormat::F16 => 1,
        BlockFormat::Q4_0 => 2,
        BlockFormat::Q4_1 => 3,
        BlockFormat::Q5_0 => 6,
        BlockFormat::Q5_1 => 7,
        BlockFormat::Q8_0 => 8,
        BlockFormat::Q4_K => 12,
        BlockFormat::Q5_K => 13,
        BlockFormat::Q6_K => 14,
        BlockFormat::BF16 => 30,
    }
}

/// The name of a type that exists but is not supported, so that a refusal can say which it is.
pub(super) fn unsupported_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return None,
    })
}

/// "F32, F16, ...": for messages.
pub(super) fn supported_names() -> String {
    BlockFormat::ALL.map(|format| format!("{format:?}")).join(", ")
}
