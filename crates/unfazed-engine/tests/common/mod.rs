//! A fake device whose logits are a function of a sequence's tokens as its own KV pages hold them, so that a page with
//! two owners, a row at a wrong place or a token left out changes what comes out.

#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

pub mod any;
pub mod transcript;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use unfazed_device::{
    Batch, Class, Device, DeviceError, Generation, PageId, PageSpan, Part, SequenceFailure, StepOutput,
};
use unfazed_engine::{Engine, Limits};
use unfazed_formats::checkpoint::{GgufTokenizer, Layout};
use unfazed_formats::config::{ExpertConfig, Family, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{BlockFormat, Checkpoint, Extent, FileId, ModelConfig, TensorInfo, TokenizerSource};
use unfazed_kernels::Isa;
use unfazed_model::Model;
use unfazed_store::experts::LayerExperts;
use unfazed_store::{Clock, MatrixSource, VectorSource};
use unfazed_wire::{RequestId, Sampling, Submit, ToEngine, ToFront};

pub const VOCAB: usize = 40;
/// A prompt that holds it has logits that are not finite.
pub const POISON: u32 = VOCAB as u32 - 1;
/// A step that holds it fails as a whole.
pub const BREAKS: u32 = VOCAB as u32 - 2;
/// A step that holds it fails for its sequence alone.
pub const LOST: u32 = VOCAB as u32 - 3;

/// Bytes that a page of the device is said to have.
pub const PAGE_BYTES: usize = 4096;

/// What the steps of a device were.
pub type Log = Rc<RefCell<Vec<Batch>>>;

/// Tokens in place of keys and values, for all who have them.
pub type Pages = Rc<RefCell<Vec<Vec<u32>>>>;

pub struct FakeDevice {
    limits: Limits,
    pages: Pages,
    logits: Vec<f32>,
    failures: Vec<SequenceFailure>,
    log: Log,
}

impl FakeDevice {
    pub fn new(limits: Limits, log: Log) -> FakeDevice {
        FakeDevice::over(limits, log, FakeDevice::pages(limits))
    }

    /// A device on pages as another one left them.
    pub fn over(limits: Limits, log: Log, pages: Pages) -> FakeDevice {
        FakeDevice { limits, pages, logits: Vec::new(), failures: Vec::new(), log }
    }

    pub fn pages(limits: Limits) -> Pages {
        Rc::new(RefCell::new(vec![vec![u32::MAX; limits.page_tokens]; limits.pages]))
    }

    fn check(&self, batch: &Batch) {
        assert!(!batch.rows.is_empty(), "an empty step");
        assert!(batch.rows.len() <= self.limits.chunk, "more rows than the chunk");
        let logits = batch.rows.iter().filter(|row| row.logits).count();
        assert!(logits <= self.limits.logit_rows, "more logits than the device has room for");
        let mut pages: Vec<_> = batch.sequences.concat();
        pages.sort();
        assert!(pages.windows(2).all(|pair| pair[0] != pair[1]), "a page has two owners");
        for pair in batch.rows.windows(2) {
            let next = pair[0].sequence == pair[1].sequence && pair[0].position + 1 == pair[1].position;
            assert!(next || pair[0].sequence + 1 == pair[1].sequence, "rows out of order");
        }
    }
}

/// Logits after these tokens.
pub fn logits_after(tokens: &[u32]) -> Vec<f32> {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let state = tokens.iter().fold(0x9e37_79b9u64, |state, &token| mix(state ^ u64::from(token) << 7));
    let poisoned = tokens.contains(&POISON);
    let logit = |id: usize| match (poisoned, id < LOST as usize) {
        (true, _) if id == 7 => f32::NAN,
        (_, true) => (mix(state ^ id as u64) % 1000) as f32 / 125.0 - 4.0,
        // Never chosen by itself.
        (_, false) => -1e9,
    };
    (0..VOCAB).map(logit).collect()
}

impl Device for FakeDevice {
    type Matrix = ();
    type Vector = ();
    type Experts = ();

    fn load_matrix(&mut self, _: Part, _: &MatrixSource) -> Result<(), DeviceError> {
        Ok(())
    }
    fn load_vector(&mut self, _: Part, _: &VectorSource) -> Result<(), DeviceError> {
        Ok(())
    }

    fn load_experts(&mut self, _: usize, _: &LayerExperts) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        self.check(batch);
        self.failures.clear();
        self.log.borrow_mut().push(batch.clone());
        self.logits.clear();
        let page_tokens = self.limits.page_tokens;
        let mut held = self.pages.borrow_mut();
        for row in &batch.rows {
            if row.token == BREAKS {
                return Err(DeviceError::Batch("broken by the test".into()));
            }
            if row.token == LOST && self.failures.iter().all(|failure| failure.sequence != row.sequence) {
                let reason = "model.gguf: lost by the test".to_owned();
                self.failures.push(SequenceFailure { sequence: row.sequence, reason });
            }
            let pages = &batch.sequences[row.sequence];
            held[pages[row.position / page_tokens].0 as usize][row.position % page_tokens] = row.token;
            if row.logits {
                let token = |at: usize| held[pages[at / page_tokens].0 as usize][at % page_tokens];
                let tokens: Vec<u32> = (0..=row.position).map(token).collect();
                self.logits.extend(logits_after(&tokens));
            }
        }
        Ok(())
    }

    fn embed(&mut self, _: &()) {}
    fn norm(&mut self, _: &(), _: f32) {}
    fn project_qkv(&mut self, _: &(), _: &(), _: &()) {}
    fn norm_heads(&mut self, _: &(), _: &(), _: f32) {}
    fn rotate(&mut self, _: &RopeConfig) {}
    fn attend(&mut self, _: usize) {}
    fn project_context(&mut self, _: &()) {}
    fn feed_forward(&mut self, _: &(), _: &(), _: &()) {}
    fn mixture(&mut self, _: &(), _: &(), _: &ExpertConfig) {}
    fn look_ahead(&mut self, _: &(), _: f32, _: &(), _: &(), _: &ExpertConfig) {}
    fn output(&mut self, _: &(), _: f32, _: &()) {}
    fn digests(&mut self, spans: &[PageSpan]) -> Result<Vec<u64>, DeviceError> {
        let held = self.pages.borrow();
        let digest = |span: &PageSpan| {
            let page = &held[span.page.0 as usize];
            page[span.slots.clone()].iter().map(|&token| u64::from(token) << 8 | 1).collect::<Vec<_>>()
        };
        Ok(spans.iter().flat_map(digest).collect())
    }
    fn give_back(&mut self, first: PageId, count: usize) -> std::io::Result<u64> {
        let mut held = self.pages.borrow_mut();
        let pages = &mut held[first.0 as usize..][..count];
        let resident = |page: &&mut Vec<u32>| page.iter().any(|token| *token != u32::MAX);
        let given = pages.iter_mut().filter(resident).map(|page| page.fill(u32::MAX));
        Ok((given.count() * PAGE_BYTES) as u64)
    }
    fn finish(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        Ok(StepOutput { logits: &self.logits, failures: &self.failures, ..StepOutput::default() })
    }
    fn generation(&self) -> Generation {
        Generation::default()
    }
    fn rebuild(&mut self, _: Class) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A clock that goes on by a millisecond each time it is asked.
#[derive(Default)]
pub struct TickClock(AtomicU64);

impl Clock for TickClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

/// The headers of a model of one layer; there are no bytes behind them.
pub fn checkpoint() -> Checkpoint {
    const WIDTH: usize = 32;
    let rope = RopeConfig {
        base: 10_000.0,
        dimensions: WIDTH,
        pairing: RopePairing::Halves,
        scaling: RopeScaling::None,
    };
    let config = ModelConfig {
        family: Family::Llama,
        layers: 1,
        hidden: WIDTH,
        heads: 1,
        kv_heads: 1,
        head_dim: WIDTH,
        feed_forward: WIDTH,
        experts: None,
        vocab: VOCAB,
        context: 4096,
        norm_epsilon: 1e-6,
        rope,
        tied_embeddings: true,
    };
    let mut tensors = BTreeMap::new();
    let mut add = |name: &str, shape: &[usize]| {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let len = shape.iter().product::<u64>() * 4;
        let extent = Extent { file: FileId(0), offset: 0, len };
        let info = TensorInfo { name: name.to_owned(), shape, format: BlockFormat::F32, extent };
        tensors.insert(name.to_owned(), info);
    };
    add("token_embd.weight", &[VOCAB, WIDTH]);
    add("output_norm.weight", &[WIDTH]);
    for name in ["attn_norm", "ffn_norm"] {
        add(&format!("blk.0.{name}.weight"), &[WIDTH]);
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        add(&format!("blk.0.{name}.weight"), &[WIDTH, WIDTH]);
    }
    Checkpoint {
        layout: Layout::Gguf,
        files: Vec::new(),
        tensors,
        config,
        tokenizer: TokenizerSource::Gguf(GgufTokenizer::default()),
        chat_template: None,
        name: "fake".to_owned(),
        tensor_bytes: 0,
    }
}

pub fn engine(limits: Limits) -> (Engine<FakeDevice>, Log) {
    let log = Log::default();
    (engine_on(limits, FakeDevice::new(limits, log.clone())), log)
}

pub fn engine_on(limits: Limits, mut device: FakeDevice) -> Engine<FakeDevice> {
    let model = Model::load(&checkpoint(), &mut device).unwrap();
    Engine::new(model, device, limits, Isa::best(), Box::<TickClock>::default())
}

pub fn limits() -> Limits {
    Limits { context: 64, parallel: 4, chunk: 16, logit_rows: 8, pages: 40, page_tokens: 4, vocab: VOCAB }
}

pub fn submit(id: u64, prompt: &[u32], max_tokens: usize) -> Submit {
    Submit {
        request: RequestId(id),
        prompt: prompt.to_vec(),
        max_tokens,
        sampling: Sampling { seed: id, ..Sampling::default() },
        stop_tokens: Vec::new(),
        repeat_stop_tokens: 0,
        logprobs: None,
        prompt_logprobs: None,
        resumed: None,
    }
}

pub fn send(engine: &mut Engine<FakeDevice>, submit: Submit) {
    engine.handle(ToEngine::Submit(Box::new(submit)));
}

/// All messages until nothing is left to do.
pub fn drain(engine: &mut Engine<FakeDevice>) -> Vec<ToFront> {
    let mut out = Vec::new();
    for _ in 0..100_000 {
        if engine.idle() {
            return out;
        }
        out.extend(engine.step());
    }
    panic!("the engine does not come to an end");
}
