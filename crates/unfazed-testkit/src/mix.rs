//! Which block format each tensor gets.

use unfazed_formats::{BlockFormat, ModelConfig};

use crate::tensors::{ModelTensor, Role};

/// A mix of block formats, as quantisers name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    name: &'static str,
    base: BlockFormat,
    output: BlockFormat,
    /// For the values and down projections of some layers.
    more_bits: Option<BlockFormat>,
    /// `general.file_type` of the specification.
    file_type: u32,
}

const fn mix(name: &'static str, base: BlockFormat, output: BlockFormat, file_type: u32) -> Mix {
    Mix { name, base, output, more_bits: None, file_type }
}

impl Mix {
    /// All mixes.
    pub const ALL: [Mix; 28] = {
        use BlockFormat::*;
        [
            mix("f32", F32, F32, 0),
            mix("f16", F16, F16, 1),
            mix("bf16", BF16, BF16, 32),
            mix("q8_0", Q8_0, Q8_0, 7),
            mix("q4_0", Q4_0, Q6_K, 2),
            mix("q4_1", Q4_1, Q6_K, 3),
            mix("q5_0", Q5_0, Q6_K, 8),
            mix("q5_1", Q5_1, Q6_K, 9),
            mix("q4_k", Q4_K, Q6_K, 14),
            Mix { more_bits: Some(Q6_K), ..mix("q4_k_m", Q4_K, Q6_K, 15) },
            mix("q5_k", Q5_K, Q6_K, 16),
            Mix { more_bits: Some(Q6_K), ..mix("q5_k_m", Q5_K, Q6_K, 17) },
            mix("q6_k", Q6_K, Q6_K, 18),
            mix("q2_k", Q2_K, Q6_K, 10),
            mix("q3_k", Q3_K, Q6_K, 11),
            mix("iq1_s", IQ1_S, Q6_K, 24),
            mix("iq1_m", IQ1_M, Q6_K, 31),
            mix("iq2_xxs", IQ2_XXS, Q6_K, 19),
            mix("iq2_xs", IQ2_XS, Q6_K, 20),
            mix("iq2_s", IQ2_S, Q6_K, 28),
            mix("iq3_xxs", IQ3_XXS, Q6_K, 23),
            mix("iq3_s", IQ3_S, Q6_K, 26),
            mix("iq4_nl", IQ4_NL, Q6_K, 25),
            mix("iq4_xs", IQ4_XS, Q6_K, 30),
            mix("tq1_0", TQ1_0, Q6_K, 36),
            mix("tq2_0", TQ2_0, Q6_K, 37),
            mix("mxfp4", MXFP4, Q8_0, 38),
            mix("nvfp4", NVFP4, Q8_0, 39),
        ]
    };

    /// The mix of a name.
    pub fn from_name(name: &str) -> Option<Mix> {
        Mix::ALL.into_iter().find(|mix| mix.name == name)
    }

    /// Every matrix in one format, the output too.
    pub fn uniform(format: BlockFormat) -> Mix {
        let named = Mix::ALL.into_iter().find(|mix| mix.base == format && mix.more_bits.is_none());
        let file_type = named.map_or(0, |mix| mix.file_type);
        mix("uniform", format, format, file_type)
    }

    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `general.file_type` of a GGUF file.
    pub fn file_type(&self) -> u32 {
        self.file_type
    }

    /// The format of a tensor. Norms and routers are floats; a row that is not whole blocks gets a format with
    /// smaller ones.
    pub fn format(&self, config: &ModelConfig, tensor: &ModelTensor) -> BlockFormat {
        let wanted = match tensor.role {
            Role::Norm | Role::Router => BlockFormat::F32,
            Role::Output => self.output,
            Role::Values(layer) | Role::Down(layer) if gets_more_bits(layer, config.layers) => {
                self.more_bits.unwrap_or(self.base)
            }
            _ => self.base,
        };
        let fits = |format: &BlockFormat| format.row_bytes(tensor.columns()).is_some();
        [wanted, BlockFormat::Q8_0].into_iter().find(fits).unwrap_or(BlockFormat::F16)
    }
}

/// The layers that get the larger format: the first and the last eighth, and every third between.
fn gets_more_bits(layer: usize, layers: usize) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}
