//! After a cut of power, or the end of the process, at any moment: every admission that was acknowledged is there, each
//! stream's entries are the first of those that it was given, and nothing that was synced is lost.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use proptest::prelude::*;

use super::*;

/// What may happen. Streams are picked among those that were admitted.
#[derive(Clone, Debug)]
enum Act {
    Admit(usize),
    Append(usize, usize),
    AppendWritten(usize, usize),
    Forget(usize),
    Flush,
    /// What was given so far is worked on.
    Step(u64),
    /// Power goes in so many operations.
    Cut(u64),
    /// Operations fail.
    Fail(u64, u64),
    PowerCycle,
    Kill,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0_usize..1500).prop_map(Act::Admit),
        12 => (any::<usize>(), 0_usize..400).prop_map(|(stream, len)| Act::Append(stream, len)),
        2 => (any::<usize>(), 0_usize..400).prop_map(|(stream, len)| Act::AppendWritten(stream, len)),
        2 => any::<usize>().prop_map(Act::Forget),
        1 => Just(Act::Flush),
        10 => prop_oneof![4 => Just(20_u64), 2 => Just(1000), 1 => Just(5000), 1 => Just(60_000), 1 => Just(900_000)]
            .prop_map(Act::Step),
        1 => (0_u64..12).prop_map(Act::Cut),
        1 => (0_u64..12, 1_u64..6).prop_map(|(at, many)| Act::Fail(at, many)),
        1 => Just(Act::PowerCycle),
        1 => Just(Act::Kill),
    ];
    proptest::collection::vec(act, 1..150)
}

/// What a stream was given.
#[derive(Debug, Default)]
struct Model {
    admission: Vec<u8>,
    /// Told to be on the disk.
    admitted: bool,
    /// Told not to be.
    refused: bool,
    entries: Vec<Vec<u8>>,
    /// So many were told to be on the disk.
    synced: usize,
    /// So many were told to survive the process.
    written: usize,
    forgotten: bool,
    /// Told to be forgotten on the disk.
    forgotten_synced: bool,
    dropped: bool,
    /// When something was given of it last, and that is known to be on the disk.
    last_ms: u64,
    last_synced_ms: u64,
}

/// Somebody who waits.
enum Waiting {
    /// For this stream's admission.
    Admission(u64, Answer),
    /// For so many entries of this stream.
    Written(u64, usize, Answer),
    Flush(Answer),
}

struct Run {
    world: World,
    process: Process,
    models: BTreeMap<u64, Model>,
    items: Vec<Item>,
    /// With how things stood when it was asked: entries of each stream, and the forgotten ones.
    waiting: Vec<(Waiting, BTreeMap<u64, usize>, BTreeSet<u64>)>,
    /// Number of the next stream.
    next: u64,
    /// The life of the process: entries of different ones differ.
    life: u8,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::new(seed);
        let (process, kept, _) = Process::open(&world, small(), start()).unwrap();
        assert_eq!(kept, []);
        let (models, items, waiting) = (BTreeMap::new(), Vec::new(), Vec::new());
        Run { world, process, models, items, waiting, next: 0, life: 0 }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Admit(len) => self.admit(len),
            Act::Append(pick, len) => self.append(pick, len, false),
            Act::AppendWritten(pick, len) => self.append(pick, len, true),
            Act::Forget(pick) => {
                if let Some(number) = self.pick(pick) {
                    self.model(number).forgotten = true;
                    self.items.push(Item::Forget { key: key(number) });
                }
            }
            Act::Flush => {
                let (synced, answer) = oneshot::channel();
                self.wait(Waiting::Flush(answer));
                self.items.push(Item::Flush { synced });
            }
            Act::Step(ms) => self.step(ms),
            Act::Cut(operations) => self.world.cut_in(operations),
            Act::Fail(operations, many) => self.world.fail_in(operations, many),
            Act::PowerCycle => self.restart(true),
            Act::Kill => self.restart(self.world.is_off()),
        }
    }

    fn model(&mut self, number: u64) -> &mut Model {
        self.models.get_mut(&number).unwrap()
    }

    /// A stream that is not forgotten.
    fn pick(&self, pick: usize) -> Option<u64> {
        let open = |model: &Model| !model.forgotten && !model.refused && !model.dropped;
        let open: Vec<u64> =
            self.models.iter().filter(|(_, model)| open(model)).map(|(number, _)| *number).collect();
        open.get(pick % open.len().max(1)).copied()
    }

    fn wait(&mut self, waiting: Waiting) {
        let entries = self.models.iter().map(|(number, model)| (*number, model.entries.len())).collect();
        let forgotten =
            self.models.iter().filter(|(_, model)| model.forgotten).map(|(number, _)| *number).collect();
        self.waiting.push((waiting, entries, forgotten));
    }

    fn admit(&mut self, len: usize) {
        let number = self.next;
        self.next += 1;
        let bytes = vec![number as u8; len];
        let (item, answer) = admission(number, &bytes);
        self.models.insert(number, Model { admission: bytes, ..Model::default() });
        self.wait(Waiting::Admission(number, answer));
        self.items.push(item);
    }

    fn append(&mut self, pick: usize, len: usize, is_waited_for: bool) {
        let Some(number) = self.pick(pick) else { return };
        let life = self.life;
        let model = self.model(number);
        let mut bytes = vec![life; len];
        bytes.extend((model.entries.len() as u32).to_le_bytes());
        model.entries.push(bytes.clone());
        let count = model.entries.len();
        let (written, answer) = oneshot::channel();
        if is_waited_for {
            self.wait(Waiting::Written(number, count, answer));
        }
        let written = is_waited_for.then_some(written);
        self.items.push(Item::Append { key: key(number), bytes, written });
    }

    fn step(&mut self, ms: u64) {
        self.process.later(Duration::from_millis(ms));
        let items = std::mem::take(&mut self.items);
        let now_ms = self.process.now.wall_ms;
        for item in &items {
            if let Item::Admit { key: touched, .. } | Item::Append { key: touched, .. } = item {
                let touched = self.models.iter_mut().find(|(number, _)| key(**number) == *touched);
                touched.unwrap().1.last_ms = now_ms;
            }
        }
        self.process.step(items);
        for (waiting, entries, forgotten) in std::mem::take(&mut self.waiting) {
            self.answered(waiting, &entries, &forgotten);
        }
        for event in self.process.told.take() {
            match event {
                JournalEvent::Dropped { keys, .. } => {
                    for key in keys {
                        let number = u64::from_le_bytes(key.0[..8].try_into().unwrap());
                        self.model(number).dropped = true;
                    }
                }
                JournalEvent::Broken { .. } => {
                    // The system lost what it had been given.
                    self.models.values_mut().for_each(|model| model.written = model.synced);
                }
                JournalEvent::Mended => {}
                JournalEvent::Gap { .. } | JournalEvent::Damaged { .. } => panic!("{event:?}"),
            }
        }
        let (index, limits) = (&self.process.writer.log.index, small());
        if self.process.writer.broken().is_none()
            && self.process.writer.stuck().is_none()
            && index.streams.len() > 1
        {
            let bytes = index.bytes();
            assert!(bytes <= limits.total_bytes + limits.segment(), "{bytes} bytes: {:?}", index.segments);
        }
        if self.world.is_off() {
            self.restart(true);
        }
    }

    fn answered(&mut self, waiting: Waiting, entries: &BTreeMap<u64, usize>, forgotten: &BTreeSet<u64>) {
        let synced = match waiting {
            Waiting::Admission(number, answer) => {
                let admitted = said(answer).is_ok();
                let model = self.model(number);
                (model.admitted, model.refused) = (admitted, !admitted);
                admitted
            }
            Waiting::Written(number, count, answer) => {
                if said(answer).is_ok() {
                    let model = self.model(number);
                    model.written = model.written.max(count);
                }
                false
            }
            Waiting::Flush(answer) => said(answer).is_ok(),
        };
        if synced {
            for (number, count) in entries {
                let model = self.model(*number);
                model.synced = model.synced.max(*count);
                model.last_synced_ms = model.last_ms;
            }
            forgotten.iter().for_each(|number| self.model(*number).forgotten_synced = true);
        }
    }

    fn restart(&mut self, power_cut: bool) {
        if power_cut {
            self.world.power_cycle();
        } else {
            self.world.process_killed();
        }
        let (process, kept, _) = Process::open(&self.world, small(), self.process.now).unwrap();
        self.process = process;
        self.items.clear();
        self.waiting.clear();
        self.life += 1;
        let mut kept: BTreeMap<StreamKey, Kept> = kept.into_iter().map(|kept| (kept.key, kept)).collect();
        let oldest_ms = small().oldest_ms(self.process.now.wall_ms);
        for (number, mut model) in std::mem::take(&mut self.models) {
            model.dropped |= model.last_synced_ms < oldest_ms;
            let found = kept.remove(&key(number));
            check(number, &model, found.as_ref(), power_cut);
            // What was found is promised from now on; what was not must not come back.
            if let Some(Kept { admission, entries, written, .. }) = found {
                let last_ms = written.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
                let given = entries.len();
                let model = Model {
                    admission,
                    admitted: true,
                    entries,
                    synced: given,
                    written: given,
                    last_ms,
                    last_synced_ms: last_ms,
                    ..Model::default()
                };
                self.models.insert(number, model);
            }
        }
        assert!(kept.is_empty(), "{kept:?} is not to be there");
    }
}

fn check(number: u64, model: &Model, found: Option<&Kept>, power_cut: bool) {
    let needed = model.admitted && !model.forgotten && !model.dropped;
    let Some(found) = found else {
        assert!(!needed, "stream {number} is lost: {model:?}");
        return;
    };
    assert!(!model.forgotten_synced || !model.forgotten, "stream {number} came back: {model:?}");
    assert_eq!(found.admission, model.admission, "stream {number}");
    assert!(model.entries.starts_with(&found.entries), "stream {number} has other entries");
    let least = if power_cut { model.synced } else { model.synced.max(model.written) };
    let given = found.entries.len();
    assert!(!needed || given >= least, "stream {number} has {given} entries, {least} were promised");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_was_promised_is_lost_whatever_fails_and_whenever_power_goes(seed in any::<u64>(), acts in acts()) {
        let mut run = Run::new(seed);
        for act in &acts {
            run.act(act);
        }
        run.step(1000);
        run.restart(true);
        run.restart(true);
    }
}

#[test]
fn a_stream_stays_forgotten_when_what_says_so_can_neither_be_copied_nor_its_copy_be_deleted() {
    for seed in 0..16 {
        let mut run = Run::new(seed);
        for act in [Act::Admit(102), Act::Forget(0), Act::Admit(0), Act::Step(20), Act::PowerCycle] {
            run.act(&act);
        }
        let rest = [
            Act::Admit(0),
            Act::Step(20),
            Act::Fail(8, 3),
            Act::Forget(0),
            Act::Flush,
            Act::Step(20),
            Act::Forget(0),
            Act::Step(900_000),
            Act::Step(60_000),
            Act::Kill,
        ];
        rest.iter().for_each(|act| run.act(act));
    }
}

/// A run in which segments fill, die, are carried over and are deleted; no chance in it but what power takes.
fn busy(run: &mut Run) {
    for round in 0..12_usize {
        for _ in 0..3 {
            run.act(&Act::Admit(300));
            run.act(&Act::Append(round * 7, 200));
        }
        run.act(&Act::Append(0, 500));
        run.act(&Act::Step(20));
        if round % 2 == 1 {
            (0..3).for_each(|pick| run.act(&Act::Forget(pick + 1)));
            run.act(&Act::Flush);
        }
        run.act(&Act::Step(60_000));
    }
}

#[test]
fn power_that_goes_at_any_single_operation_of_carrying_over_and_deleting_loses_nothing() {
    let mut whole = Run::new(0);
    busy(&mut whole);
    assert!(
        whole.world.segments()[0] > 2,
        "the first segments were not deleted: {:?}",
        whole.world.segments()
    );
    let first = key(0);
    assert!(
        whole.process.writer.log.index.streams[&first].uses.keys().all(|segment| *segment > 1),
        "it was not carried over"
    );
    for cut in 0..whole.world.operations() {
        for seed in 0..4 {
            let mut run = Run::new(seed);
            run.act(&Act::Cut(cut));
            busy(&mut run);
            run.restart(true);
        }
    }
}

#[test]
fn an_error_at_any_single_operation_loses_nothing_and_mends() {
    let mut whole = Run::new(0);
    busy(&mut whole);
    for failing in 0..whole.world.operations() {
        for many in [1, 3] {
            let mut run = Run::new(failing);
            run.act(&Act::Fail(failing, many));
            busy(&mut run);
            // Nobody cuts power here, so what was given before an error is written after it.
            for _ in 0..=many {
                run.act(&Act::Flush);
                run.act(&Act::Step(5000));
            }
            assert_eq!(run.process.writer.broken(), None, "operation {failing}");
            run.models.values_mut().for_each(|model| model.synced = model.entries.len());
            run.restart(true);
        }
    }
}
