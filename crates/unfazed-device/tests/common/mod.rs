//! A small model with random weights: as a device runs it, and as plain f64.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;

use unfazed_device::{Batch, BatchRow, CpuConfig, CpuDevice, Device, DeviceError, KvShape, PageId, Part};
use unfazed_formats::block::dequantise;
use unfazed_formats::config::{ExpertConfig, Family, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::source::{ByteSource, MemorySource};
use unfazed_formats::{BlockFormat, Extent, FileId, KvTypes};
use unfazed_kernels::Isa;
use unfazed_store::experts::LayerExperts;
use unfazed_store::{Loader, MatrixSource, Reader, StoreError, VectorSource};
use unfazed_testkit::random_blocks::random_blocks;
use unfazed_testkit::rng::Rng;

/// Bytes that stand for the model's file.
pub struct Bytes(pub Vec<u8>);

impl Reader for Bytes {
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        let source = MemorySource::new("memory", &self.0);
        source.read_exact_at(buf, extent.offset).map_err(|source| StoreError::Read {
            file: "memory".to_owned(),
            tensor: tensor.to_owned(),
            offset: extent.offset,
            len: 0,
            source,
        })
    }
}

/// A matrix or a stack, where it is in the file and as numbers.
pub struct Matrix {
    pub source: MatrixSource,
    weights: Vec<Vec<f32>>,
}

pub struct Vector {
    source: VectorSource,
    weights: Vec<f32>,
}

pub struct Layer {
    attention_norm: Vector,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    q_norm: Vector,
    k_norm: Vector,
    o: Matrix,
    norm: Vector,
    router: Matrix,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Layer {
    /// Where its experts are.
    pub fn experts(&self) -> LayerExperts {
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|matrix| matrix.source.clone());
        LayerExperts { gate, up, down }
    }
}

/// The whole model. Without experts each layer's stacks have one part.
pub struct Model {
    pub config: ModelConfig,
    /// What keys and values are kept as.
    pub types: KvTypes,
    file: Arc<Bytes>,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vector,
    output: Matrix,
}

/// Formats: attention, gate and up, down, output.
#[derive(Clone, Copy, Debug)]
pub struct Formats(pub BlockFormat, pub BlockFormat, pub BlockFormat, pub BlockFormat);

pub fn config(
    hidden: usize,
    heads: [usize; 3],
    feed_forward: usize,
    experts: Option<ExpertConfig>,
) -> ModelConfig {
    let [heads, kv_heads, head_dim] = heads;
    ModelConfig {
        family: Family::Qwen3Moe,
        layers: 2,
        hidden,
        heads,
        kv_heads,
        head_dim,
        feed_forward,
        experts,
        vocab: 83,
        context: 4096,
        norm_epsilon: 1e-5,
        rope: RopeConfig {
            base: 10_000.0,
            dimensions: head_dim,
            pairing: RopePairing::Halves,
            scaling: RopeScaling::None,
        },
        tied_embeddings: false,
    }
}

impl Model {
    pub fn new(config: ModelConfig, formats: Formats) -> Model {
        let Formats(attention, gate_up, down, output) = formats;
        let (mut file, mut rng) = (Vec::new(), Rng::new(1, "device tests", 0));
        let mut matrix = |format: BlockFormat, parts: usize, rows: usize, columns: usize| {
            let len = format.row_bytes(columns).unwrap() * rows;
            let (mut extents, mut weights) = (Vec::new(), Vec::new());
            for _ in 0..parts {
                let mut bytes = vec![0; len];
                random_blocks(format, 1.3 / (columns as f32).sqrt(), &mut rng, &mut bytes);
                let mut part = vec![0.0; rows * columns];
                dequantise(format, &bytes, &mut part).unwrap();
                extents.push(Extent { file: FileId(0), offset: file.len() as u64, len: len as u64 });
                file.extend(bytes);
                weights.push(part);
            }
            let source = MatrixSource { name: "a matrix".to_owned(), format, rows, columns, parts: extents };
            Matrix { source, weights }
        };
        let ModelConfig { hidden, heads, kv_heads, head_dim, vocab, .. } = config;
        let (count, inner) = config.experts.map_or((1, config.feed_forward), |e| (e.count, e.feed_forward));
        let parts: Vec<[Matrix; 8]> = (0..config.layers)
            .map(|_| {
                [
                    matrix(attention, 1, heads * head_dim, hidden),
                    matrix(attention, 1, kv_heads * head_dim, hidden),
                    matrix(output, 1, kv_heads * head_dim, hidden),
                    matrix(attention, 1, hidden, heads * head_dim),
                    matrix(BlockFormat::F32, 1, count, hidden),
                    matrix(gate_up, count, inner, hidden),
                    matrix(gate_up, count, inner, hidden),
                    matrix(down, count, hidden, inner),
                ]
            })
            .collect();
        let embedding = matrix(output, 1, vocab, hidden);
        let table = matrix(output, 1, vocab, hidden);
        let mut vector = |len: usize| {
            let weights: Vec<f32> = (0..len).map(|_| rng.uniform(0.5, 1.5)).collect();
            let extent = Extent { file: FileId(0), offset: file.len() as u64, len: len as u64 * 4 };
            file.extend(weights.iter().flat_map(|w| w.to_le_bytes()));
            let source = VectorSource { name: "a vector".to_owned(), format: BlockFormat::F32, len, extent };
            Vector { source, weights }
        };
        let layers = parts
            .into_iter()
            .map(|[q, k, v, o, router, gate, up, down]| Layer {
                attention_norm: vector(hidden),
                q_norm: vector(head_dim),
                k_norm: vector(head_dim),
                norm: vector(hidden),
                q,
                k,
                v,
                o,
                router,
                gate,
                up,
                down,
            })
            .collect();
        let norm = vector(hidden);
        Model {
            config,
            types: KvTypes::default(),
            file: Arc::new(Bytes(file)),
            embedding,
            layers,
            norm,
            output: table,
        }
    }

    pub fn loader(&self) -> Loader {
        Loader::new(self.file.clone(), 2, Box::new(|_| {}))
    }

    pub fn kv(&self, pages: usize) -> KvShape {
        let ModelConfig { layers, kv_heads, head_dim, .. } = self.config;
        KvShape { layers, kv_heads, head_dim, page_tokens: 16, pages, types: self.types }
    }

    pub fn device(&self, isa: Isa, threads: usize, max_rows: usize, float: bool) -> Running<'_> {
        let device = CpuDevice::new(self.cpu_config(isa, threads, max_rows, float));
        Running::new(self, device.unwrap())
    }

    pub fn cpu_config(&self, isa: Isa, threads: usize, max_rows: usize, float: bool) -> CpuConfig<'_> {
        CpuConfig {
            isa,
            threads: threads.into(),
            model: &self.config,
            kv: self.kv(PAGES),
            max_rows,
            max_logit_rows: max_rows,
            float_activations: float,
            kv_memory: None,
            experts: None,
            trace: None,
            pulse: Arc::default(),
            loader: self.loader(),
        }
    }

    /// The logits of all positions, in f64.
    pub fn plain(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let ModelConfig { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let mut residual: Vec<Vec<f64>> = tokens
            .iter()
            .map(|token| {
                self.embedding.weights[0][*token as usize * hidden..][..hidden].iter().map(|w| f64::from(*w))
            })
            .map(Iterator::collect)
            .collect();
        for layer in &self.layers {
            let rows: Vec<[Vec<f64>; 3]> = residual
                .iter()
                .enumerate()
                .map(|(position, x)| {
                    let x = normed(x, &layer.attention_norm);
                    let heads = |matrix: &Matrix, norm: &Vector| -> Vec<f64> {
                        let all = matrix.times(0, &x);
                        all.chunks(head_dim).flat_map(|head| rotated(normed(head, norm), position)).collect()
                    };
                    [heads(&layer.q, &layer.q_norm), heads(&layer.k, &layer.k_norm), layer.v.times(0, &x)]
                })
                .collect();
            for (position, x) in residual.iter_mut().enumerate() {
                let mut context = vec![0.0; heads * head_dim];
                for (head, context) in context.chunks_mut(head_dim).enumerate() {
                    let kv = head / (heads / kv_heads) * head_dim;
                    let query = &rows[position][0][head * head_dim..][..head_dim];
                    let scores = rows[..=position].iter().map(|row| dot(query, &row[1][kv..]));
                    let weights = softmax(&scores.map(|s| s / (head_dim as f64).sqrt()).collect::<Vec<_>>());
                    for (weight, row) in weights.iter().zip(&rows) {
                        context.iter_mut().zip(&row[2][kv..]).for_each(|(c, v)| *c += weight * v);
                    }
                }
                add(x, 1.0, &layer.o.times(0, &context));
                let y = normed(x, &layer.norm);
                for (expert, weight) in self.chosen(layer, &y) {
                    let (gate, up) = (layer.gate.times(expert, &y), layer.up.times(expert, &y));
                    let inner: Vec<f64> =
                        gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                    add(x, weight, &layer.down.times(expert, &inner));
                }
            }
        }
        residual.iter().map(|x| self.output.times(0, &normed(x, &self.norm))).collect()
    }

    fn chosen(&self, layer: &Layer, x: &[f64]) -> Vec<(usize, f64)> {
        let Some(experts) = self.config.experts else { return vec![(0, 1.0)] };
        let weights = softmax(&layer.router.times(0, x));
        let mut order: Vec<usize> = (0..experts.count).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        let sum =
            if experts.normalised { order[..experts.used].iter().map(|e| weights[*e]).sum() } else { 1.0 };
        order[..experts.used].iter().map(|e| (*e, weights[*e] / sum)).collect()
    }
}

impl Matrix {
    fn times(&self, part: usize, x: &[f64]) -> Vec<f64> {
        let row = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
        self.weights[part].chunks(x.len()).map(row).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], weight: f64, y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += weight * y);
}

fn normed(x: &[f64], weight: &Vector) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(&weight.weights).map(|(x, w)| x / (mean + 1e-5).sqrt() * f64::from(*w)).collect()
}

fn rotated(mut head: Vec<f64>, position: usize) -> Vec<f64> {
    let half = head.len() / 2;
    for i in 0..half {
        let angle = position as f64 * 10_000f64.powf(-(i as f64) / half as f64);
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * angle.cos() - b * angle.sin();
        head[i + half] = b * angle.cos() + a * angle.sin();
    }
    head
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let largest = x.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = x.iter().map(|x| (x - largest).exp()).sum();
    x.iter().map(|x| (x - largest).exp() / sum).collect()
}

/// Pages of 16 positions.
pub const PAGES: usize = 80;

/// A model on a device.
pub struct Running<'a, D: Device = CpuDevice> {
    model: &'a Model,
    pub device: D,
    matrices: Vec<Vec<D::Matrix>>,
    experts: Vec<Option<D::Experts>>,
    vectors: Vec<Vec<D::Vector>>,
    norm: D::Vector,
    output: D::Matrix,
    embedding: D::Matrix,
}

impl<'a, D: Device> Running<'a, D> {
    pub fn new(model: &'a Model, mut device: D) -> Running<'a, D> {
        let (mut matrices, mut vectors, mut experts) = (Vec::new(), Vec::new(), Vec::new());
        for (index, l) in model.layers.iter().enumerate() {
            let mut all = vec![&l.q, &l.k, &l.v, &l.o, &l.router];
            if model.config.experts.is_none() {
                all.extend([&l.gate, &l.up, &l.down]);
            }
            let part = |i: usize| if i < 4 { Part::Attention(index) } else { Part::FeedForward(index) };
            let load = |(i, m): (usize, &&Matrix)| device.load_matrix(part(i), &m.source).unwrap();
            matrices.push(all.iter().enumerate().map(load).collect());
            let layer = model.config.experts.map(|_| device.load_experts(index, &l.experts()).unwrap());
            experts.push(layer);
            let all = [&l.attention_norm, &l.q_norm, &l.k_norm, &l.norm];
            let part = |i: usize| if i < 3 { Part::Attention(index) } else { Part::FeedForward(index) };
            let load = |(i, v): (usize, &&Vector)| device.load_vector(part(i), &v.source).unwrap();
            vectors.push(all.iter().enumerate().map(load).collect());
        }
        let output = device.load_matrix(Part::Output, &model.output.source).unwrap();
        let norm = device.load_vector(Part::Output, &model.norm.source).unwrap();
        let embedding = device.load_matrix(Part::Embedding, &model.embedding.source).unwrap();
        Running { model, device, matrices, experts, vectors, norm, output, embedding }
    }

    /// One step; the logits of the rows that ask.
    pub fn step(&mut self, batch: &Batch) -> Vec<f32> {
        self.try_step(batch).unwrap()
    }

    /// The same, or what the device could not do.
    pub fn try_step(&mut self, batch: &Batch) -> Result<Vec<f32>, DeviceError> {
        self.run(batch, None)
    }

    fn run(&mut self, batch: &Batch, embedding: Option<&D::Matrix>) -> Result<Vec<f32>, DeviceError> {
        let (d, config) = (&mut self.device, &self.model.config);
        d.begin(batch)?;
        d.embed(embedding.unwrap_or(&self.embedding));
        for (layer, (m, v)) in self.matrices.iter().zip(&self.vectors).enumerate() {
            d.norm(&v[0], config.norm_epsilon);
            d.project_qkv(&m[0], &m[1], &m[2]);
            d.norm_heads(&v[1], &v[2], config.norm_epsilon);
            d.rotate(&config.rope);
            d.attend(layer);
            d.project_context(&m[3]);
            d.norm(&v[3], config.norm_epsilon);
            match &config.experts {
                Some(config) => d.mixture(&m[4], self.experts[layer].as_ref().unwrap(), config),
                None => d.feed_forward(&m[5], &m[6], &m[7]),
            }
        }
        d.output(&self.norm, config.norm_epsilon, &self.output);
        Ok(d.finish()?.logits.to_vec())
    }

    /// The logits of all positions of a sequence that is computed in chunks of some size.
    pub fn sequence(&mut self, tokens: &[u32], chunk: usize, pages: &[PageId]) -> Vec<f32> {
        let mut logits = Vec::new();
        for (i, chunk_tokens) in tokens.chunks(chunk).enumerate() {
            let rows = rows(0, i * chunk, chunk_tokens, true);
            logits.extend(self.step(&Batch { rows, sequences: vec![pages.to_vec()] }));
        }
        logits
    }
}

impl Running<'_> {
    /// The same as [`Running::step`] with a NaN in the embedding of one row's token.
    pub fn step_poisoned(&mut self, batch: &Batch, row: usize) -> Vec<f32> {
        let source = &self.model.embedding.source;
        let mut bytes = self.model.file.0.clone();
        let row_bytes = source.format.row_bytes(source.columns).unwrap();
        let start = source.parts[0].offset as usize + batch.rows[row].token as usize * row_bytes;
        bytes[start..start + 2].copy_from_slice(&[0xff, 0xff]);
        let loader = Loader::new(Arc::new(Bytes(bytes)), 1, Box::new(|_| {}));
        let table = loader.load_matrix(source).unwrap();
        self.run(batch, Some(&table)).unwrap()
    }
}

/// Rows of one sequence from a position on.
pub fn rows(sequence: usize, position: usize, tokens: &[u32], logits: bool) -> Vec<BatchRow> {
    let row = |(i, token): (usize, &u32)| BatchRow {
        token: *token,
        sequence,
        position: position + i,
        logits,
        generated: false,
    };
    tokens.iter().enumerate().map(row).collect()
}

pub fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 7 + i * 13 + seed * 31) % 83).collect()
}

/// All pages, in no order.
pub fn scattered() -> Vec<PageId> {
    (0..PAGES as u32).map(|i| PageId(i * 37 % PAGES as u32)).collect()
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
