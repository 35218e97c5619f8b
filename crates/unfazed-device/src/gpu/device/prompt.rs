//! The operations on prompts: tiles of many rows, experts with all rows that chose them.

use unfazed_formats::config::ExpertConfig;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

use super::GpuDevice;
use super::arena::words;
use super::key::{Form, Key, Mode, Operand, Product};
use super::live::Live;
use super::weights::{Experts, MatrixId, VectorId};
use crate::DeviceError;
use crate::gpu::budget::Cost;
use crate::gpu::kernels::grouped::{Combine, down, gate_up};
use crate::gpu::kernels::quantise::{Quantise, QuantiseScalars, quantise};
use crate::gpu::kernels::routing::{GroupScalars, TopK, group_rows, top_k};
use crate::gpu::kernels::shard::Shard;
use crate::gpu::kernels::tile::{self, Tile, TilePath, TileRows, TileScalars};
use crate::gpu::memory::{Bound, Buffer, Ready};

/// A norm before rows are rounded: its weight and epsilon.
type Norm = Option<(VectorId, f32)>;

/// From so many rows on tiles are large.
const LARGE: usize = 160;

/// Rows of a tile for about so many rows.
fn tile_rows(rows: usize) -> u32 {
    if rows >= LARGE { 128 } else { 64 }
}

/// What multiplies a matrix, and what its rows have to be rounded to.
fn path(live: &Live, layout: &PanelLayout) -> (TilePath, Form) {
    let path = TilePath::best(layout, &live.gpu.abilities);
    let grain = Grain::of(layout.format());
    let form = match path {
        TilePath::Floats => Form::Floats,
        TilePath::Integers => Form::Integers(grain),
        TilePath::Cooperative(_) => Form::Halves(grain),
    };
    (path, form)
}

impl GpuDevice {
    /// Rounds the prompt's rows of an operand, `[rows, columns]`.
    fn round(&mut self, operand: Operand, norm: Norm, form: Form) -> Result<(), DeviceError> {
        let columns = self.shape.columns(operand);
        let rows = match operand {
            Operand::Inner => self.rows.prompt.len() * self.shape.used(),
            _ => self.rows.prompt.len(),
        };
        let most = match operand {
            Operand::Inner => self.shape.max_rows * self.shape.used(),
            _ => self.shape.max_rows,
        };
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        live.make_room(operand, form, most, columns)?;
        let key = Key::Round(operand, norm.map(|(weight, _)| weight), form);
        let (floats, integers, halves, grain) = match form {
            Form::Floats => (true, false, false, Grain::Float),
            Form::Integers(grain) => (false, true, false, grain),
            Form::Halves(grain) => (false, false, true, grain),
        };
        let what = Quantise { columns, grain, norm: norm.is_some(), listed: false, floats, integers, halves };
        let epsilon = norm.map_or(0.0, |(_, epsilon)| epsilon);
        let scalars = QuantiseScalars { rows: rows as u32, epsilon };
        live.run(
            key,
            Cost::WHOLE,
            |_| Ok((quantise(&what), vec![Shard::all(1)])),
            |live, _| {
                let source = match operand {
                    Operand::Residual => &live.prompt.residual,
                    Operand::Context => &live.prompt.context,
                    Operand::Inner => &live.prompt.inner,
                };
                let mut bound = vec![Bound::from(source)];
                if let Some((weight, _)) = norm {
                    bound.push(Bound::from(live.vector(weight)?));
                }
                bound.extend(live.rounded(operand, form)?.iter().map(Bound::from));
                Ok(bound)
            },
            |_| (scalars.bytes(), scalars.grid()),
        )
    }

    /// The rounded rows times a matrix, or gate and up of one layout; for experts their own rows times theirs.
    fn product(&mut self, what: Product, matrices: &[MatrixId]) -> Result<(), DeviceError> {
        let rows = self.rows.prompt.len();
        let experts = self.shape.experts.filter(|_| what.of_experts());
        let (used, count) = experts.map_or((1, 1), |experts| (experts.used, experts.count));
        // So many rows an expert has, about.
        let tile_rows = tile_rows(rows * used / count.max(1));
        let stride = self.shape.max_rows as u32;
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let first =
            *matrices.first().ok_or_else(|| DeviceError::Batch("a product without a matrix".to_owned()))?;
        let layout = live.same_layout(matrices)?;
        let (path, form) = path(live, &layout);
        let tile = match what {
            Product::ExpertsGated => gate_up(layout, path, used as u32, tile_rows),
            Product::ExpertsDown => down(layout, path, tile_rows),
            _ => Tile { layout, path, rows: TileRows::All, product: what.made(), tile_rows },
        };
        live.run(
            Key::Product(what, first, tile_rows),
            Cost::WHOLE,
            |live| {
                Ok((tile.kernel(), if experts.is_some() { live.shards(first)? } else { live.whole(first)? }))
            },
            |live, shard| {
                let mut bound = Vec::with_capacity(8);
                for matrix in matrices {
                    bound.push(live.matrix(*matrix)?.bound(shard));
                }
                bound.extend(live.rounded(what.operand(), form)?.iter().map(Bound::from));
                if experts.is_some() {
                    bound.extend([&live.many.lists, &live.many.counts].map(Bound::from));
                }
                bound.push(live.out(what));
                Ok(bound)
            },
            |shard| {
                let of_all = TileScalars { rows: rows as u32, ..TileScalars::default() };
                match experts {
                    None => (of_all.bytes(), tile.grid(rows as u32, 1)),
                    Some(_) => {
                        let scalars = TileScalars { stride, first_expert: shard.first, ..of_all };
                        (scalars.bytes(), tile.grid(rows as u32, shard.count))
                    }
                }
            },
        )
    }

    /// Rounds an operand for some matrices, in each form once.
    fn round_for(&mut self, operand: Operand, norm: Norm, matrices: &[MatrixId]) -> Result<(), DeviceError> {
        let mut forms: Vec<Form> = Vec::with_capacity(2);
        for matrix in matrices {
            let live = self.live.as_ref().ok_or_else(super::gone)?;
            let (_, form) = path(live, &live.matrix(*matrix)?.layout);
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        forms.into_iter().try_for_each(|form| self.round(operand, norm, form))
    }

    pub(super) fn prompt_qkv(
        &mut self,
        [q, k, v]: [MatrixId; 3],
        norm: (VectorId, f32),
    ) -> Result<(), DeviceError> {
        if self.rows.prompt.len() == 0 {
            return Ok(());
        }
        self.round_for(Operand::Residual, Some(norm), &[q, k, v])?;
        self.product(Product::Query, &[q])?;
        self.product(Product::Key, &[k])?;
        self.product(Product::Value, &[v])
    }

    pub(super) fn prompt_context(&mut self, w: MatrixId) -> Result<(), DeviceError> {
        if self.rows.prompt.len() == 0 {
            return Ok(());
        }
        self.round_for(Operand::Context, None, &[w])?;
        self.product(Product::Context, &[w])
    }

    /// A dense network.
    pub(super) fn prompt_network(
        &mut self,
        gate: MatrixId,
        up: MatrixId,
        down: MatrixId,
        norm: (VectorId, f32),
    ) -> Result<(), DeviceError> {
        if self.rows.prompt.len() == 0 {
            return Ok(());
        }
        self.round_for(Operand::Residual, Some(norm), &[gate, up])?;
        self.product(Product::Gated, &[gate, up])?;
        self.round_for(Operand::Inner, None, &[down])?;
        self.product(Product::Down, &[down])
    }

    /// A mixture: which experts, the rows of each, their networks, and the sum.
    pub(super) fn prompt_mixture(
        &mut self,
        router: MatrixId,
        experts: &Experts,
        config: &ExpertConfig,
        norm: (VectorId, f32),
    ) -> Result<(), DeviceError> {
        if self.rows.prompt.len() == 0 {
            return Ok(());
        }
        let Experts { gate, up, down } = *experts;
        self.round_for(Operand::Residual, Some(norm), &[router, gate, up])?;
        self.product(Product::Router, &[router])?;
        self.choose(Mode::Prompt, config)?;
        self.group(config)?;
        self.product(Product::ExpertsGated, &[gate, up])?;
        self.round_for(Operand::Inner, None, &[down])?;
        self.product(Product::ExpertsDown, &[down])?;
        let rows = self.rows.prompt.len() as u32;
        let combine = Combine { hidden: self.shape.hidden, used: config.used };
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        live.run(
            Key::Combine,
            Cost::WHOLE,
            |_| Ok((combine.kernel(), vec![Shard::all(1)])),
            |live, _| {
                let all = [&live.prompt.residual, &live.many.outputs, &live.prompt.weights];
                Ok(all.map(Bound::from).to_vec())
            },
            |_| (Vec::new(), combine.grid(rows)),
        )
    }

    /// The experts of each row, in ascending order, and their weights.
    pub(super) fn choose(&mut self, mode: Mode, config: &ExpertConfig) -> Result<(), DeviceError> {
        let rows = match mode {
            Mode::Decode => self.rows.decode.len(),
            Mode::Prompt => self.rows.prompt.len(),
        } as u32;
        let what = TopK { experts: config.count, used: config.used, normalised: config.normalised };
        let key = Key::TopK(mode, config.normalised);
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        live.run(
            key,
            Cost::WHOLE,
            |_| Ok((top_k(&what), vec![Shard::all(1)])),
            |live, _| {
                let arena = live.arena(mode);
                Ok([&arena.router, &arena.ids, &arena.weights].map(Bound::from).to_vec())
            },
            |_| (Vec::new(), [rows, 1, 1]),
        )
    }

    fn group(&mut self, config: &ExpertConfig) -> Result<(), DeviceError> {
        let entries = (self.rows.prompt.len() * config.used) as u32;
        let scalars = GroupScalars { entries, stride: self.shape.max_rows as u32 };
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        live.run(
            Key::Group,
            Cost::WHOLE,
            |_| Ok((group_rows(), vec![Shard::all(1)])),
            |live, _| Ok([&live.prompt.ids, &live.many.lists, &live.many.counts].map(Bound::from).to_vec()),
            |_| (scalars.bytes(), [config.count as u32, 1, 1]),
        )
    }
}

impl Product {
    /// What is multiplied.
    fn operand(self) -> Operand {
        match self {
            Product::Context => Operand::Context,
            Product::Down | Product::ExpertsDown => Operand::Inner,
            _ => Operand::Residual,
        }
    }

    /// What is made of the products.
    fn made(self) -> tile::Product {
        match self {
            Product::Gated | Product::ExpertsGated => tile::Product::GatedSilu,
            Product::Context | Product::Down => tile::Product::Add,
            _ => tile::Product::Store,
        }
    }

    /// Whether each expert has rows of its own.
    fn of_experts(self) -> bool {
        matches!(self, Product::ExpertsGated | Product::ExpertsDown)
    }
}

impl Live {
    /// Buffers for rows of an operand in a form, made at the first use.
    fn make_room(
        &mut self,
        operand: Operand,
        form: Form,
        rows: usize,
        columns: usize,
    ) -> Result<(), DeviceError> {
        if self.rounded.contains_key(&(operand, form)) {
            return Ok(());
        }
        let blocks = |grain: Grain| columns.div_ceil(grain.block().unwrap_or(columns));
        let sizes = match form {
            Form::Floats => vec![words(rows, columns)],
            Form::Integers(grain) => {
                vec![words(rows, columns / 4), words(rows, blocks(grain)), words(rows, columns / 16)]
            }
            Form::Halves(_) => vec![words(rows, columns / 2), words(rows, 1)],
        };
        let scratch = |bytes| self.memory.scratch("rounded rows", bytes);
        let buffers = sizes.into_iter().map(scratch).collect::<Result<Vec<_>, _>>()?;
        self.rounded.insert((operand, form), buffers);
        Ok(())
    }

    fn rounded(&self, operand: Operand, form: Form) -> Result<&[Ready<Buffer>], DeviceError> {
        let room = self.rounded.get(&(operand, form));
        room.map(Vec::as_slice)
            .ok_or_else(|| DeviceError::Batch(format!("{operand:?} was not rounded to {form:?}")))
    }

    /// Where a product goes.
    fn out(&self, what: Product) -> Bound<'_> {
        let Live { prompt, many, .. } = self;
        match what {
            Product::Query => prompt.place(0),
            Product::Key => prompt.place(1),
            Product::Value => prompt.place(2),
            Product::Context | Product::Down => Bound::from(&prompt.residual),
            Product::Router => Bound::from(&prompt.router),
            Product::Gated | Product::ExpertsGated => Bound::from(&prompt.inner),
            Product::ExpertsDown => Bound::from(&many.outputs),
        }
    }

    /// A matrix as one binding.
    fn whole(&self, matrix: MatrixId) -> Result<Vec<Shard>, DeviceError> {
        let shards = self.shards(matrix)?;
        match shards.len() {
            1 => Ok(shards),
            _ => Err(DeviceError::Setup(format!(
                "a matrix of {} bytes is larger than this GPU binds ({})",
                self.matrix(matrix)?.layout.bytes(),
                self.gpu.abilities.binding_bytes
            ))),
        }
    }

    /// The layout that the matrices of a product share.
    fn same_layout(&self, matrices: &[MatrixId]) -> Result<PanelLayout, DeviceError> {
        let mut layouts = Vec::with_capacity(2);
        for matrix in matrices {
            layouts.push(self.matrix(*matrix)?.layout);
        }
        match layouts.as_slice() {
            [layout] => Ok(*layout),
            [gate, up] if gate == up => Ok(*gate),
            others => Err(DeviceError::Setup(format!(
                "gate and up of one network as {:?} cannot be computed on a GPU: keep it on the processor",
                others.iter().map(PanelLayout::format).collect::<Vec<_>>()
            ))),
        }
    }
}
