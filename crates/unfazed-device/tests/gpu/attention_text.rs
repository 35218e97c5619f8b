//! Attention's kernels as Vulkan and Metal get them, on any machine.

use unfazed_device::gpu::kernels::attend_decode::AttendDecode;
use unfazed_device::gpu::kernels::attend_prompt::AttendPrompt;
use unfazed_device::gpu::kernels::heads::Heads;
use unfazed_device::gpu::kernels::kv::KvText;
use unfazed_device::gpu::{Abilities, Kernel};
use unfazed_formats::config::RopePairing;
use unfazed_formats::{KvType, KvTypes};

use crate::translate::translates;

fn abilities(cooperative: &[[u32; 3]]) -> Abilities {
    Abilities {
        subgroup: Some(32),
        half: true,
        packed_dot: false,
        cooperative: cooperative.to_vec(),
        binding_bytes: 1 << 31,
        buffer_bytes: 1 << 32,
        shared_bytes: 48 << 10,
        workgroup_threads: 1024,
        workgroups: 65_535,
    }
}

/// Attention's, of all types of keys and values and some widths of heads.
pub(crate) fn attention(abilities: &Abilities) -> Vec<Kernel> {
    let mut all = Vec::new();
    for (keys, values) in KvType::ALL.into_iter().zip([1, 1, 4, 0, 3].map(|i| KvType::ALL[i])) {
        for head_dim in [64, 128, 256] {
            let kv = KvText::new(2, head_dim, 32, KvTypes { keys, values }).unwrap();
            let decode = AttendDecode { heads: 8, kv };
            let rope = Some((RopePairing::Halves, head_dim));
            let heads = Heads { heads: 8, kv, norm: Some(1e-6), rope };
            all.extend([decode.kernel(), decode.merge(), heads.kernel()]);
            all.push(AttendPrompt { heads: 8, kv }.kernel(abilities));
        }
    }
    all
}

#[test]
fn attention_translates_for_vulkan_with_and_without_matrices_and_for_metal() {
    let mut by_matrices = 0;
    for matrices in [&[][..], &[[8, 8, 8]], &[[16, 16, 16], [16, 8, 16]]] {
        for kernel in attention(&abilities(matrices)) {
            let translated = translates(&kernel);
            if kernel.name.contains("matrices") {
                // Apple's matrices are smaller.
                assert!(matrices.contains(&[16; 3]));
                by_matrices += 1;
                assert!(!translated.vulkan.is_empty());
                continue;
            }
            translated.everywhere();
        }
    }
    assert_eq!(by_matrices, 4, "of what f16 can hold, and heads of 64 and 128");
}
