//! Receipts: what counts as proof.

use unfazed_device::gpu::kernels::receipt::{Chain, Link, receipt};
use unfazed_device::gpu::trial::{Trial, once};

use crate::support::gpu;

/// The chain after a receipt ran on a chain and on data of which the first word is `upload`.
fn after(chain: [u32; 4], upload: u32, link: Link) -> Option<Chain> {
    let gpu = gpu()?;
    let chain = chain.map(u32::to_le_bytes);
    let data = [upload, 99].map(u32::to_le_bytes);
    let trial = Trial {
        buffers: &[chain.as_flattened(), data.as_flattened()],
        immediates: &link.bytes(),
        grid: [1, 1, 1],
    };
    Chain::read(&once(gpu, &receipt(), &trial).unwrap()[0])
}

#[test]
fn a_receipt_is_written_after_its_predecessor_and_its_upload() {
    let link = Link { before: 6, number: 7, upload: 31 };
    let Some(chain) = after([6, 6, 0, 0], 31, link) else { return };
    assert_eq!(chain, Chain { last: 7, runs: 7, broken: 0 });
}

#[test]
fn numbers_go_on_from_the_largest_to_zero() {
    let link = Link { before: u32::MAX, number: 0, upload: 0 };
    let Some(chain) = after([u32::MAX, 1, 0, 0], 0, link) else { return };
    assert_eq!(chain, Chain { last: 0, runs: 2, broken: 0 });
}

#[test]
fn a_receipt_is_not_written_if_its_predecessor_is_missing() {
    let link = Link { before: 6, number: 7, upload: 31 };
    for last in [0, 5, 7, 8] {
        let Some(chain) = after([last, 3, 1, 0], 31, link) else { return };
        assert_eq!(chain, Chain { last, runs: 4, broken: 2 });
    }
}

#[test]
fn a_receipt_is_not_written_if_its_upload_did_not_arrive() {
    let link = Link { before: 6, number: 7, upload: 31 };
    for upload in [0, 30, 32] {
        let Some(chain) = after([6, 3, 0, 0], upload, link) else { return };
        assert_eq!(chain, Chain { last: 6, runs: 4, broken: 1 });
    }
}
