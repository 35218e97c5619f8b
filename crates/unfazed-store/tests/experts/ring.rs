//! Prompts over the expert store: what they miss passes through the ring.

use super::*;

/// All experts of a layer, twice, as a prompt asks for them.
const ALL: [u32; 12] = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5];

/// A store whose slots are full: with these experts of layer 1, and others of layer 2.
fn full(storage: &Simulated, ring: usize, experts: [u32; 2]) -> ExpertStore {
    let memory = SlotMemory::private(sizes(4)).unwrap();
    let config = ExpertConfig { ring, ..config() };
    let store = ExpertStore::new(sources(), Arc::new(storage.reader()), memory, config).unwrap();
    use_experts(&store, 1, &experts).unwrap();
    use_experts(&store, 2, &[0, 1]).unwrap();
    store
}

#[test]
fn a_prompt_reads_each_missing_expert_once_and_takes_no_slot_from_anybody() {
    for ring in [2, 3, 8] {
        for order in [Order::AsTheyCome, Order::Ascending] {
            let storage = quick();
            let store = full(&storage, ring, [1, 4]);
            for chunk in 0..3 {
                let before = units_read(&storage);
                let mut supply = store.supply(1, &ALL, order).unwrap();
                let mut seen = Vec::new();
                while supply.left() > 0 {
                    for supplied in supply.next(2) {
                        let pin = supplied.expert.unwrap();
                        check(&pin);
                        assert_eq!(pin.generation().is_some(), [1, 4].contains(&pin.id().expert));
                        seen.push(pin.id().expert);
                    }
                }
                assert!(supply.next(1).is_empty());
                assert!(order == Order::AsTheyCome || seen.is_sorted(), "{seen:?}");
                seen.sort_unstable();
                assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
                assert_eq!(units_read(&storage) - before, 4, "chunk {chunk}");
            }
            assert_eq!(use_experts(&store, 1, &[1, 4]).unwrap(), 2, "they kept their slots");
            assert_eq!((store.counts().filled, store.counts().streamed), (4, 12));
        }
    }
}

#[test]
fn a_prompt_fills_slots_that_are_empty() {
    let storage = quick();
    let store = store(&storage, 4);
    for _ in 0..2 {
        use_experts(&store, 1, &ALL).unwrap();
    }
    assert_eq!((store.counts().filled, store.counts().streamed), (4, 4));
    assert_eq!(use_experts(&store, 1, &[0, 3]).unwrap(), 2);
}

#[test]
fn a_ring_reads_ahead_over_the_end_of_a_layer_and_nothing_twice() {
    let storage = quick();
    let store = full(&storage, 8, [1, 4]);
    let before = units_read(&storage);
    let mut first = store.supply(1, &ALL, Order::Ascending).unwrap();
    store.read_ahead(2).unwrap();
    while first.left() > 0 {
        first.next(1).into_iter().for_each(|supplied| check(&supplied.expert.unwrap()));
    }
    // Nobody has asked for the other layer yet.
    while units_read_so_far(&storage) < before + 8 {
        thread::yield_now();
    }
    use_experts(&store, 2, &ALL).unwrap();
    assert_eq!(units_read(&storage), before + 8);
}

/// Reads that were begun count as well.
fn units_read_so_far(storage: &Simulated) -> usize {
    storage.attempts().len() / 3
}

#[test]
fn what_was_read_ahead_in_vain_makes_room_for_what_is_needed() {
    for ring in [2, 3, 5] {
        let storage = quick();
        let store = full(&storage, ring, [1, 4]);
        for round in 0..10 {
            let mut supply = store.supply(1, &[0, 2, 3], Order::Ascending).unwrap();
            store.read_ahead(2).unwrap();
            if round % 2 == 0 {
                check(&take(&mut supply).unwrap());
                // The ring runs full of what nobody asks for.
                store.read_ahead(1).unwrap();
            }
            drop(supply);
            use_experts(&store, 1, &[0, 2, 5]).unwrap();
            use_experts(&store, 1, &ALL).unwrap();
        }
    }
}

#[test]
fn a_prompt_that_stops_half_way_leaves_its_ring_whole() {
    let storage = quick();
    let store = full(&storage, 3, [0, 1]);
    for _ in 0..20 {
        let mut supply = store.supply(2, &ALL, Order::Ascending).unwrap();
        check(&take(&mut supply).unwrap());
    }
    use_experts(&store, 2, &ALL).unwrap();
}

#[test]
fn a_prompt_is_told_of_an_expert_that_cannot_be_read_and_gets_the_others() {
    let bad = offset(1, 0, 2) as u64;
    let storage = Simulated::new(content(), move |asked: Asked| match asked.offset == bad {
        true => Does::Fails(Errno::ACCESS),
        false => Does::Reads,
    });
    let store = full(&storage, 2, [0, 1]);
    for _ in 0..3 {
        let mut supply = store.supply(1, &[0, 1, 2, 3], Order::Ascending).unwrap();
        let (mut good, mut failed) = (Vec::new(), Vec::new());
        while supply.left() > 0 {
            for supplied in supply.next(3) {
                match supplied.expert {
                    Ok(pin) => good.push(pin.id().expert),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("blk.1.ffn_gate_exps.weight, expert 2"), "{text}");
                        failed.push(supplied.id.expert);
                    }
                }
            }
        }
        assert_eq!((good, failed), (vec![0, 1, 3], vec![2]));
    }
}
