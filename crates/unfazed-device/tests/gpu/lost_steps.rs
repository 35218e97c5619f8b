//! Conversations on a GPU that fails below wgpu at any moment: nothing is lost, and all of it has the bits of an undisturbed run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_device::gpu::inject::{Act, Faults, open};
use unfazed_device::{Batch, BatchRow, Class, Device, DeviceError, PageId, PlacedDevice};

use crate::common::{Running, bits, tokens};
use crate::placed::{models, placed_on, whole};
use crate::support::{adapter, fresh, gpu};

const CONVERSATIONS: usize = 8;
/// Positions of a page of these models.
const PAGE: usize = 16;
/// Rows that a prompt gets in a step.
const CHUNK: usize = 10;

/// Bits of the logits of each generated position, by conversation.
type Answers = BTreeMap<(usize, usize), Vec<u32>>;

struct Conversation {
    tokens: Vec<u32>,
    prompt: usize,
    computed: usize,
    pages: Vec<PageId>,
}

fn conversations() -> Vec<Conversation> {
    (0..CONVERSATIONS)
        .map(|i| Conversation {
            tokens: tokens(30 + 3 * i, i as u32),
            prompt: 9 + 4 * i,
            computed: 0,
            pages: (0..6).map(|page| PageId((6 * i + page) as u32)).collect(),
        })
        .collect()
}

/// The next rows of all conversations.
fn batch(all: &[Conversation]) -> (Batch, Vec<(usize, usize)>) {
    let (mut batch, mut wanted) = (Batch::default(), Vec::new());
    for (i, Conversation { tokens, prompt, computed, pages }) in all.iter().enumerate() {
        let end = if computed < prompt { (computed + CHUNK).min(*prompt) } else { computed + 1 };
        if *computed >= tokens.len() {
            continue;
        }
        for (position, token) in tokens.iter().enumerate().take(end).skip(*computed) {
            let logits = position + 1 >= *prompt && position + 1 == end;
            let generated = position >= *prompt;
            let sequence = batch.sequences.len();
            batch.rows.push(BatchRow { token: *token, sequence, position, logits, generated });
            if logits {
                wanted.push((i, position));
            }
        }
        batch.sequences.push(pages.clone());
    }
    (batch, wanted)
}

/// All conversations to their ends. Returns the logits, and how long the first step after a fault came to take, with how many
/// positions had to be computed again.
fn talk(device: &mut Running<'_, PlacedDevice>) -> (Answers, Vec<(String, Duration, usize)>) {
    let (mut all, mut answers, mut told) = (conversations(), Answers::new(), Vec::new());
    loop {
        let (step, wanted) = batch(&all);
        if step.rows.is_empty() {
            return (answers, told);
        }
        match device.try_step(&step) {
            Ok(logits) => {
                let rows = logits.chunks_exact(logits.len() / wanted.len().max(1));
                for (key, row) in wanted.into_iter().zip(rows) {
                    let row = bits(row);
                    let before = answers.insert(key, row.clone());
                    assert!(before.is_none_or(|before| before == row), "{key:?} came out in another way");
                }
                for row in &step.rows {
                    let page = step.sequences[row.sequence][0];
                    let conversation = all.iter_mut().find(|c| c.pages[0] == page).unwrap();
                    conversation.computed = conversation.computed.max(row.position + 1);
                }
            }
            Err(DeviceError::Fault(fault)) => {
                let begun = Instant::now();
                device.device.rebuild(fault.class).unwrap();
                let mut again = 0;
                for conversation in &mut all {
                    let kept = device.device.settled(&conversation.pages, conversation.computed);
                    device.device.restore(&conversation.pages[..kept.div_ceil(PAGE)]).unwrap();
                    again += conversation.computed - kept;
                    conversation.computed = kept;
                }
                told.push((fault.to_string(), begun.elapsed(), again));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Opens a device that fails once, and then ones that do not.
fn failing(model: &crate::common::Model, patience: Duration) -> (Running<'_, PlacedDevice>, Arc<Faults>) {
    let (first, faults) = open(&adapter().unwrap()).unwrap();
    let first = std::sync::Mutex::new(Some(first));
    let opener = move || Ok(first.lock().unwrap().take().unwrap_or_else(|| fresh().unwrap()));
    (placed_on(model, whole(model.config.layers), Box::new(opener), patience), faults)
}

/// Conversations that meet `act` at these submissions, against those that nothing disturbs.
fn compare(act: &[Act], submissions: &[u32], patience: Duration) {
    if gpu().is_none() {
        return;
    }
    let model = &models(false)[1];
    let expected = {
        let opener = || Ok(fresh().unwrap());
        let long = Duration::from_secs(600);
        talk(&mut placed_on(model, whole(model.config.layers), Box::new(opener), long)).0
    };
    assert_eq!(expected.len(), (0..CONVERSATIONS).map(|i| 30 + 3 * i - (9 + 4 * i) + 1).sum::<usize>());
    for (act, nth) in act.iter().flat_map(|act| submissions.iter().map(move |nth| (*act, *nth))) {
        let (mut device, faults) = failing(model, patience);
        faults.arrange(act, nth);
        let (answers, told) = talk(&mut device);
        println!("{act:?} at submission {nth}: {told:?}");
        assert_eq!(told.len(), 1, "{act:?} at {nth} was not noticed once");
        assert!(answers == expected, "{act:?} at {nth}");
    }
}

#[test]
fn nothing_is_lost_by_a_fault_at_any_step_and_all_bits_are_those_of_an_undisturbed_run() {
    let acts = [Act::Discard, Act::LoseAtSubmit, Act::LoseAtWait, Act::OutOfMemory];
    compare(&acts, &[1, 2, 5, 11, 24], Duration::from_secs(600));
}

#[test]
fn a_device_that_hangs_is_left_alone_and_another_process_is_asked_for() {
    if gpu().is_none() {
        return;
    }
    let model = &models(false)[1];
    // Kernels may have to be compiled meanwhile; what is patience here would be seconds on a GPU.
    let (mut device, faults) = failing(model, Duration::from_secs(25));
    faults.arrange(Act::Hang, 3);
    let (step, _) = batch(&conversations());
    let fault = loop {
        match device.try_step(&step) {
            Ok(_) => {}
            Err(DeviceError::Fault(fault)) => break fault,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(fault.class, Class::Hang, "{fault}");
    let refused = device.device.rebuild(fault.class).unwrap_err();
    assert!(matches!(refused, DeviceError::Unusable(_)), "{refused}");
    let begun = Instant::now();
    drop(device);
    assert!(begun.elapsed() < Duration::from_secs(20), "its end was waited for: {:?}", begun.elapsed());
}
