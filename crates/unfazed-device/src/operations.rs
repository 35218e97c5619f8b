//! What a device can do. A forward pass (`unfazed-model`) is written once against this trait.
//!
//! A step works on the rows of a [`Batch`]: one row a token. For each row the device holds the activations that
//! the operations name in their documentation: *residual*, *normed*, *query*, *key*, *value*, *context* (the
//! output of attention) and, for rows that ask for them, *logits*. They lie in an arena that is laid out once for the
//! largest step; a smaller step is a prefix of it.

use std::ops::Range;
use std::time::Duration;

use unfazed_fault::{Class, Generation, Unusable};
use unfazed_formats::KvTypes;
use unfazed_formats::config::{ExpertConfig, RopeConfig};
use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, StoreError, VectorSource};

/// A page of keys and values: [`KvShape::page_tokens`] positions of one sequence, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Shape of the KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions in a page, a multiple of 16.
    pub page_tokens: usize,
    /// Number of pages.
    pub pages: usize,
    /// What keys and values are kept as.
    pub types: KvTypes,
}

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRow {
    /// Token id, below the vocabulary.
    pub token: u32,
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// Position in the sequence. Keys and values of all positions before it are in the pages or in this batch.
    pub position: usize,
    /// Whether logits are wanted.
    pub logits: bool,
    /// Whether the token was generated. A device may compute prompts and answers in two ways whose bits differ: which of them
    /// is a matter of the position alone, so that computing it again gives the same.
    pub generated: bool,
}

/// Which part of a model a weight belongs to. A device that computes parts in several places knows by it where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The table of the tokens' embeddings.
    Embedding,
    /// The attention half of a layer.
    Attention(usize),
    /// The other half of a layer: a feed-forward network or a mixture.
    FeedForward(usize),
    /// What logits are computed with.
    Output,
    /// A table of embeddings that logits are computed with too.
    TiedEmbedding,
}

/// The rows of a step. Rows of a sequence stand together, positions ascending by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// One row a token.
    pub rows: Vec<BatchRow>,
    /// For each sequence its pages, in order of position; enough for its last row.
    pub sequences: Vec<Vec<PageId>>,
}

/// Positions of a page: slots `0..page_tokens`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSpan {
    /// The page.
    pub page: PageId,
    /// Which of its positions.
    pub slots: Range<usize>,
}

/// What a device could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The weights could not be read, or memory could not be had.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Threads could not be started.
    #[error("cannot start {threads} compute threads: {source}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// The cause.
        source: std::io::Error,
    },
    /// A model or a setting that the device cannot be laid out for.
    #[error("this device cannot be set up: {0}")]
    Setup(String),
    /// A batch that the device was not laid out for (a fault of the engine).
    #[error("a step was refused: {0}")]
    Batch(String),
    /// The device did not do its work.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Something of a device that was replaced was used.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// Work that a device has lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {evidence}", class.name())]
pub struct Fault {
    /// What happened.
    pub class: Class,
    /// What tells so: the driver's words, or a receipt that is missing.
    pub evidence: String,
}

/// A sequence of a step that could not be computed; the others could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceFailure {
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// Why not: one line that names file and offset where reading failed.
    pub reason: String,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutput<'d> {
    /// `[rows that asked, vocab]`, in the order of the rows.
    pub logits: &'d [f32],
    /// Sequences that could not be computed. Their logits, keys and values are no use.
    pub failures: &'d [SequenceFailure],
    /// How long it waited for weights to be read.
    pub waited: Duration,
}

/// A device. Methods between [`Device::begin`] and [`Device::finish`] act on the rows of the batch, in order.
pub trait Device {
    /// A matrix, or a stack of equal ones, in the device's own form.
    type Matrix;
    /// A vector of f32.
    type Vector;
    /// The experts of a layer, in memory or to be read while steps are computed.
    type Experts;

    /// Reads and packs a matrix (`[rows, columns]`, a stack of `parts.len()`).
    fn load_matrix(&mut self, part: Part, source: &MatrixSource) -> Result<Self::Matrix, DeviceError>;
    /// Reads a vector.
    fn load_vector(&mut self, part: Part, source: &VectorSource) -> Result<Self::Vector, DeviceError>;

    /// Reads and packs the experts of a layer, unless they are to be read while steps are computed.
    fn load_experts(&mut self, layer: usize, experts: &LayerExperts) -> Result<Self::Experts, DeviceError>;

    /// Begins a step. Checks the batch against the arena, the pages and the vocabulary.
    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError>;
    /// *residual* = rows of `table` (`[vocab, hidden]`) chosen by the tokens.
    fn embed(&mut self, table: &Self::Matrix);
    /// *normed* = RMS norm of *residual*, times `weight` (`[hidden]`).
    fn norm(&mut self, weight: &Self::Vector, epsilon: f32);
    /// *query*, *key*, *value* = *normed* times `q` (`[heads * head_dim, hidden]`), `k`, `v`
    /// (`[kv_heads * head_dim, hidden]`).
    fn project_qkv(&mut self, q: &Self::Matrix, k: &Self::Matrix, v: &Self::Matrix);
    /// RMS norm of each head of *query* times `q`, and of *key* times `k` (both `[head_dim]`).
    fn norm_heads(&mut self, q: &Self::Vector, k: &Self::Vector, epsilon: f32);
    /// Rotates *query* and *key* by their positions.
    fn rotate(&mut self, rope: &RopeConfig);
    /// Stores *key* and *value* in the pages of `layer`, rounded as [`KvShape::types`] says; *context* = causal attention of
    /// *query* over them, scores divided by the square root of `head_dim`.
    fn attend(&mut self, layer: usize);
    /// *residual* += *context* times `w` (`[hidden, heads * head_dim]`).
    fn project_context(&mut self, w: &Self::Matrix);
    /// *residual* += `down` of (SiLU of `gate` of *normed*, times `up` of *normed*); `gate` and `up` are
    /// `[feed_forward, hidden]`, `down` is `[hidden, feed_forward]`.
    fn feed_forward(&mut self, gate: &Self::Matrix, up: &Self::Matrix, down: &Self::Matrix);
    /// Mixture of experts: softmax of `router` (`[count, hidden]`) of *normed*, the `used` largest (ties: the lower
    /// index), divided by their sum if `normalised`; *residual* += the sum of the chosen experts' outputs times their
    /// weights, added in ascending order of expert index. A sequence one of whose experts cannot be read is among
    /// [`StepOutput::failures`] in the end.
    fn mixture(&mut self, router: &Self::Matrix, experts: &Self::Experts, config: &ExpertConfig);
    /// Says, before a mixture, which one follows it, with the norm before it: its experts may be read early. Changes *normed*,
    /// and no result.
    fn look_ahead(
        &mut self,
        norm: &Self::Vector,
        epsilon: f32,
        router: &Self::Matrix,
        experts: &Self::Experts,
        config: &ExpertConfig,
    );
    /// For rows that ask for logits: *logits* = RMS norm of *residual* times `norm`, times `table`
    /// (`[vocab, hidden]`).
    fn output(&mut self, norm: &Self::Vector, epsilon: f32, table: &Self::Matrix);
    /// A digest of the keys and values, in all layers, of each position of the spans, in order. It is a function of them
    /// alone, and differs (but for an accident in about 2^32) when any bit of them does.
    fn digests(&mut self, spans: &[PageSpan]) -> Result<Vec<u64>, DeviceError>;
    /// Whether its first steps take longer, as kernels are compiled for them.
    fn is_cold(&self) -> bool {
        false
    }
    /// How many of a sequence's first `positions` positions, which are in `pages`, are where [`Device::digests`] finds them. Those
    /// of a device with memory of its own come there later than they are computed.
    fn settled(&mut self, pages: &[PageId], positions: usize) -> usize {
        let _ = pages;
        positions
    }
    /// What [`Device::digests`] finds in these pages counts: it is brought to where it is computed with. Not between
    /// [`Device::begin`] and [`Device::finish`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Fault`]: as for a step.
    fn restore(&mut self, pages: &[PageId]) -> Result<(), DeviceError> {
        let _ = pages;
        Ok(())
    }
    /// Returns the memory of `count` pages from `first` on to the system, as far as it is in whole pages of the system's; what they
    /// hold is lost. Returns its bytes. A device that cannot do it returns none. Not between [`Device::begin`] and
    /// [`Device::finish`].
    ///
    /// # Errors
    ///
    /// The system's.
    fn give_back(&mut self, first: PageId, count: usize) -> std::io::Result<u64> {
        let _ = (first, count);
        Ok(0)
    }
    /// Ends the step. What it returns is verified: the device has proved that it did the work.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Fault`]: nothing of the step is of use, and no further step can be computed before
    /// [`Device::rebuild`].
    fn finish(&mut self) -> Result<StepOutput<'_>, DeviceError>;
    /// Which device this is, of those that were made of it in this process.
    fn generation(&self) -> Generation;
    /// Makes another device in this process after a fault. What was loaded stays of use. Keys and values may be lost:
    /// [`Device::digests`] tells.
    ///
    /// # Errors
    ///
    /// No device can be made here again: another process must.
    fn rebuild(&mut self, after: Class) -> Result<(), DeviceError>;
}
