//! Giving memory up when it runs out: what only makes the next step or the next engine quicker goes, before the kernel takes
//! all of an engine.
//!
//! Free KV pages come first: they are touched again only if as many requests come again. Then slots of experts, which are read
//! again when they are missed. No answer changes. Nothing here allocates.

use unfazed_device::{Device, PageId};
use unfazed_store::experts::ExpertStore;
use unfazed_wire::GivenUp;

use crate::Engine;
use crate::kept::KeptPages;

/// Returns memory to the system, this many bytes if there are as many that can be spared. To be called between steps.
pub fn give_up<D: Device>(engine: &mut Engine<D>, experts: Option<&ExpertStore>, bytes: u64) -> GivenUp {
    let page_bytes = engine.give_up_free_pages(bytes);
    let rest = bytes.saturating_sub(page_bytes);
    let slots = experts.filter(|_| rest > 0).map(|experts| experts.give_up(rest)).unwrap_or_default();
    let open_slots = experts.map_or(0, ExpertStore::open_slots);
    GivenUp { page_bytes, slots: slots.slots, slot_bytes: slots.bytes, open_slots }
}

/// Returns the memory of these KV pages (no sequence has them; runs of them in descending order), run by run until it was so
/// many bytes. With `keep` those stay that an earlier engine left.
pub(crate) fn give_up_pages<D: Device>(
    device: &mut D,
    mut kept: Option<&mut KeptPages>,
    free: &[PageId],
    keep: bool,
    bytes: u64,
) -> u64 {
    let mut returned = 0u64;
    let is_kept = |kept: &Option<&mut KeptPages>, page: PageId| {
        keep && kept.as_ref().is_some_and(|kept| kept.has(page))
    };
    let mut rest = free;
    while returned < bytes
        && let Some((highest, _)) = rest.split_first()
    {
        if is_kept(&kept, *highest) {
            rest = rest.get(1..).unwrap_or_default();
            continue;
        }
        let next = |(a, b): (&PageId, &PageId)| a.0 == b.0 + 1 && !is_kept(&kept, *b);
        let len = 1 + rest.iter().zip(rest.iter().skip(1)).take_while(|pair| next(*pair)).count();
        let (run, others) = rest.split_at(len.min(rest.len()));
        rest = others;
        // The records say that nothing is in them before nothing is.
        if let Some(kept) = &mut kept {
            kept.reserved(run, 0);
        }
        let first = run.last().unwrap_or(highest);
        match device.give_back(*first, run.len()) {
            Ok(bytes) => returned = returned.saturating_add(bytes),
            // It need not be asked again.
            Err(_) => break,
        }
    }
    returned
}
