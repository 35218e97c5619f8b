//! Giving memory up, and finding out that it must be, allocate nothing: there may be no memory to be had.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use unfazed_formats::{BlockFormat, Extent, FileId};
use unfazed_host::Pressure;
use unfazed_store::experts::{
    ExpertConfig, ExpertSources, ExpertStore, LayerExperts, Order, PolicyKind, SlotMemory,
};
use unfazed_store::{MatrixSource, Reader, StoreError};
use unfazed_wire::memory::ExpertSegment;

/// The system's allocator, counting what the current thread asks for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` allocated.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// Of a file of zeros.
struct Zeros;

impl Reader for Zeros {
    fn read(&self, _tensor: &str, _extent: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        buf.fill(0);
        Ok(())
    }
}

fn store(policy: PolicyKind, experts: u32) -> ExpertStore {
    let stack = |rows, columns| MatrixSource {
        name: "stack".to_owned(),
        format: BlockFormat::F32,
        rows,
        columns,
        parts: vec![Extent { file: FileId(0), offset: 0, len: 2048 }; experts as usize],
    };
    let layer = LayerExperts { gate: stack(16, 32), up: stack(16, 32), down: stack(32, 16) };
    let sources = ExpertSources::new(vec![Some(layer)]).unwrap();
    let sizes = ExpertSegment { slots: experts as usize, slot_bytes: sources.slot_bytes() };
    let memory = SlotMemory::private(sizes).unwrap();
    let config = ExpertConfig { policy, threads: 1, ring: 2, files: 1, profile: None };
    ExpertStore::new(sources, Arc::new(Zeros), memory, config).unwrap()
}

fn use_experts(store: &ExpertStore, experts: impl Iterator<Item = u32>) {
    for expert in experts {
        let mut supply = store.supply(0, &[expert], Order::AsTheyCome).unwrap();
        assert!(supply.next(1).iter().all(|supplied| supplied.expert.is_ok()));
    }
}

#[test]
fn giving_slots_up_and_opening_them_up_allocates_nothing() {
    const EXPERTS: u32 = 300;
    for policy in PolicyKind::ALL {
        let store = store(policy, EXPERTS);
        // Some move from queue to queue when others leave.
        use_experts(&store, (0..EXPERTS).chain((0..EXPERTS).step_by(3)).chain((0..EXPERTS).step_by(3)));
        for _ in 0..3 {
            let mut given = 0;
            let count = allocations(|| {
                for bytes in [1, 100_000, 500_000, u64::MAX] {
                    given += store.give_up(bytes).slots;
                }
            });
            assert_eq!((count, given), (0, EXPERTS as usize - 1), "{policy}");
            let mut opened = 0;
            let count = allocations(|| opened = store.open_up(usize::MAX));
            assert_eq!((count, opened), (0, given), "{policy}");
            use_experts(&store, 0..EXPERTS);
        }
    }
}

#[test]
fn looking_whether_memory_is_short_allocates_nothing() {
    let mut pressure = Pressure::open();
    let mut before = pressure.look();
    for _ in 0..10 {
        let count = allocations(|| {
            let now = pressure.look();
            let _ = (now.verdict(&before, 1 << 28), pressure.bound(&now));
            before = now;
        });
        assert_eq!(count, 0);
    }
}
