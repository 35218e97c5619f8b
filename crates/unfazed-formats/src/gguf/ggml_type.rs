//! Ids of tensor types in GGUF files (`enum ggml_type`).

use crate::BlockFormat;

/// The block format with this id; `None` if it is unknown or not supported.
pub fn block_format(id: u32) -> Option<BlockFormat> {
    BlockFormat::GGUF.into_iter().find(|format| ggml_type(*format) == Some(id))
}

/// The id of a block format; `None` for formats that GGUF files do not have.
pub fn ggml_type(format: BlockFormat) -> Option<u32> {
    Some(match format {
        BlockFormat::F32 => 0,
        BlockFormat::F16 => 1,
        BlockFormat::Q4_0 => 2,
        BlockFormat::Q4_1 => 3,
        BlockFormat::Q5_0 => 6,
        BlockFormat::Q5_1 => 7,
        BlockFormat::Q8_0 => 8,
        BlockFormat::Q2_K => 10,
        BlockFormat::Q3_K => 11,
        BlockFormat::Q4_K => 12,
        BlockFormat::Q5_K => 13,
        BlockFormat::Q6_K => 14,
        BlockFormat::IQ2_XXS => 16,
        BlockFormat::IQ2_XS => 17,
        BlockFormat::IQ3_XXS => 18,
        BlockFormat::IQ1_S => 19,
        BlockFormat::IQ4_NL => 20,
        BlockFormat::IQ3_S => 21,
        BlockFormat::IQ2_S => 22,
        BlockFormat::IQ4_XS => 23,
        BlockFormat::IQ1_M => 29,
        BlockFormat::BF16 => 30,
        BlockFormat::TQ1_0 => 34,
        BlockFormat::TQ2_0 => 35,
        BlockFormat::MXFP4 => 39,
        BlockFormat::NVFP4 => 40,
        BlockFormat::FP8 | BlockFormat::MXFP8 | BlockFormat::Affine(_) => return None,
    })
}

/// The name of a type that exists but is not supported, so that a refusal can say which it is.
pub(super) fn unsupported_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}

/// "F32, F16, ...": for messages.
pub(super) fn supported_names() -> String {
    BlockFormat::GGUF.map(|format| format!("{format:?}")).join(", ")
}
