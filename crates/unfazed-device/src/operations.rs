//! What a device can do. A forward pass (`unfazed-model`) is written once against this trait.
//!
//! A step works on the rows of a [`Batch`]: one row a token. For each row the device holds the activations that
//! the operations name in their documentation: *residual*, *normed*, *query*, *key*, *value*, *context* (the
//! output of attention) and, for rows that ask for them, *logits*. They lie in an arena that is laid out once for the
//! largest step; a smaller step is a prefix of it.

use std::ops::Range;

use unfazed_formats::KvTypes;
use unfazed_formats::config::{ExpertConfig, RopeConfig};
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
}

/// A device. Methods between [`Device::begin`] and [`Device::finish`] act on the rows of the batch, in order.
pub trait Device {
    /// A matrix, or a stack of equal ones, in the device's own form.
    type Matrix;
    /// A vector of f32.
    type Vector;

    /// Reads and packs a matrix (`[rows, columns]`, a stack of `parts.len()`).
    fn load_matrix(&mut self, source: &MatrixSource) -> Result<Self::Matrix, DeviceError>;
    /// Reads a vector.
    fn load_vector(&mut self, source: &VectorSource) -> Result<Self::Vector, DeviceError>;

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
    /// weights, added in ascending order of expert index. `gate`, `up`, `down` are stacks.
    fn mixture(
        &mut self,
        router: &Self::Matrix,
        gate: &Self::Matrix,
        up: &Self::Matrix,
        down: &Self::Matrix,
        experts: &ExpertConfig,
    );
    /// For rows that ask for logits: *logits* = RMS norm of *residual* times `norm`, times `table`
    /// (`[vocab, hidden]`).
    fn output(&mut self, norm: &Self::Vector, epsilon: f32, table: &Self::Matrix);
    /// A digest of the keys and values, in all layers, of each position of the spans, in order. It is a function of them
    /// alone, and differs (but for an accident in about 2^32) when any bit of them does.
    fn digests(&mut self, spans: &[PageSpan]) -> Result<Vec<u64>, DeviceError>;
    /// Ends the step and returns the *logits*, `[rows that asked, vocab]`, in the order of the rows.
    fn finish(&mut self) -> Result<&[f32], DeviceError>;
}
