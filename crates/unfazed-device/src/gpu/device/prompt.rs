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
        live.prepare(
            key,
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
        )?;
        let scalars =
            QuantiseScalars { rows: rows as u32, epsilon: norm.map_or(0.0, |(_, epsilon)| epsilon) };
        live.dispatch(key, Cost::WHOLE, |_| (scalars.bytes(), scalars.grid()));
        Ok(())
    }

    /// `out` = (or += ) the rounded rows of an operand times a matrix.
    fn product(
        &mut self,
        what: Product,
        operand: Operand,
        matrix: MatrixId,
        add: bool,
        out: fn(&Live) -> Bound<'_>,
    ) -> Result<(), DeviceError> {
        let rows = self.rows.prompt.len();
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let layout = live.matrix(matrix)?.layout;
        let (path, form) = path(live, &layout);
        let product = if add { tile::Product::Add } else { tile::Product::Store };
        let tile = Tile { layout, path, rows: TileRows::All, product, tile_rows: tile_rows(rows) };
        let key = Key::Product(what, matrix, tile.tile_rows);
        live.prepare(
            key,
            |live| Ok((tile.kernel(), live.whole(matrix)?)),
            |live, shard| {
                let mut bound = vec![live.matrix(matrix)?.bound(shard)];
                bound.extend(live.rounded(operand, form)?.iter().map(Bound::from));
                bound.push(out(live));
                Ok(bound)
            },
        )?;
        let scalars = TileScalars { rows: rows as u32, ..TileScalars::default() };
        live.dispatch(key, Cost::WHOLE, |_| (scalars.bytes(), tile.grid(rows as u32, 1)));
        Ok(())
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
        self.product(Product::Query, Operand::Residual, q, false, |live| live.prompt.place(0))?;
        self.product(Product::Key, Operand::Residual, k, false, |live| live.prompt.place(1))?;
        self.product(Product::Value, Operand::Residual, v, false, |live| live.prompt.place(2))
    }

    pub(super) fn prompt_context(&mut self, w: MatrixId) -> Result<(), DeviceError> {
        if self.rows.prompt.len() == 0 {
            return Ok(());
        }
        self.round_for(Operand::Context, None, &[w])?;
        self.product(Product::Context, Operand::Context, w, true, |live| Bound::from(&live.prompt.residual))
    }

    /// A dense network.
    pub(super) fn prompt_network(
        &mut self,
        gate: MatrixId,
        up: MatrixId,
        down: MatrixId,
        norm: (VectorId, f32),
    ) -> Result<(), DeviceError> {
        let rows = self.rows.prompt.len();
        if rows == 0 {
            return Ok(());
        }
        self.round_for(Operand::Residual, Some(norm), &[gate, up])?;
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let layout = live.same_layout(gate, up)?;
        let (path, form) = path(live, &layout);
        let product = tile::Product::GatedSilu;
        let tile = Tile { layout, path, rows: TileRows::All, product, tile_rows: tile_rows(rows) };
        let key = Key::Inner(gate, up, tile.tile_rows);
        live.prepare(
            key,
            |live| Ok((tile.kernel(), live.whole(gate)?)),
            |live, shard| {
                let mut bound = vec![live.matrix(gate)?.bound(shard), live.matrix(up)?.bound(shard)];
                bound.extend(live.rounded(Operand::Residual, form)?.iter().map(Bound::from));
                bound.push(Bound::from(&live.prompt.inner));
                Ok(bound)
            },
        )?;
        let scalars = TileScalars { rows: rows as u32, ..TileScalars::default() };
        live.dispatch(key, Cost::WHOLE, |_| (scalars.bytes(), tile.grid(rows as u32, 1)));
        self.round_for(Operand::Inner, None, &[down])?;
        self.product(Product::Down, Operand::Inner, down, true, |live| Bound::from(&live.prompt.residual))
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
        self.product(Product::Router, Operand::Residual, router, false, |live| {
            Bound::from(&live.prompt.router)
        })?;
        self.choose(Mode::Prompt, config)?;
        self.group(config)?;
        self.experts_inner(gate, up, config)?;
        self.round_for(Operand::Inner, None, &[down])?;
        self.experts_outer(down, config)?;
        let rows = self.rows.prompt.len() as u32;
        let combine = Combine { hidden: self.shape.hidden, used: config.used };
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        live.prepare(
            Key::Combine,
            |_| Ok((combine.kernel(), vec![Shard::all(1)])),
            |live, _| {
                let all = [&live.prompt.residual, &live.many.outputs, &live.prompt.weights];
                Ok(all.map(Bound::from).to_vec())
            },
        )?;
        live.dispatch(Key::Combine, Cost::WHOLE, |_| (Vec::new(), combine.grid(rows)));
        Ok(())
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
        live.prepare(
            key,
            |_| Ok((top_k(&what), vec![Shard::all(1)])),
            |live, _| {
                let arena = live.arena(mode);
                Ok([&arena.router, &arena.ids, &arena.weights].map(Bound::from).to_vec())
            },
        )?;
        live.dispatch(key, Cost::WHOLE, |_| (Vec::new(), [rows, 1, 1]));
        Ok(())
    }

    fn group(&mut self, config: &ExpertConfig) -> Result<(), DeviceError> {
        let entries = (self.rows.prompt.len() * config.used) as u32;
        let scalars = GroupScalars { entries, stride: self.shape.max_rows as u32 };
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        live.prepare(
            Key::Group,
            |_| Ok((group_rows(), vec![Shard::all(1)])),
            |live, _| Ok([&live.prompt.ids, &live.many.lists, &live.many.counts].map(Bound::from).to_vec()),
        )?;
        live.dispatch(Key::Group, Cost::WHOLE, |_| (scalars.bytes(), [config.count as u32, 1, 1]));
        Ok(())
    }

    /// Rows that an expert has, about.
    fn rows_of_an_expert(&self, config: &ExpertConfig) -> usize {
        self.rows.prompt.len() * config.used / config.count.max(1)
    }

    fn experts_inner(
        &mut self,
        gate: MatrixId,
        up: MatrixId,
        config: &ExpertConfig,
    ) -> Result<(), DeviceError> {
        let (rows, stride) = (self.rows.prompt.len() as u32, self.shape.max_rows as u32);
        let tile_rows = tile_rows(self.rows_of_an_expert(config));
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let layout = live.same_layout(gate, up)?;
        let (path, form) = path(live, &layout);
        let tile = gate_up(layout, path, config.used as u32, tile_rows);
        let key = Key::Inner(gate, up, tile_rows);
        live.prepare(
            key,
            |live| Ok((tile.kernel(), live.matrix(gate)?.shards(&live.gpu))),
            |live, shard| {
                let mut bound = vec![live.matrix(gate)?.bound(shard), live.matrix(up)?.bound(shard)];
                bound.extend(live.rounded(Operand::Residual, form)?.iter().map(Bound::from));
                bound.extend([&live.many.lists, &live.many.counts, &live.prompt.inner].map(Bound::from));
                Ok(bound)
            },
        )?;
        live.dispatch(key, Cost::WHOLE, |shard| {
            let scalars = TileScalars { rows, stride, first_expert: shard.first };
            (scalars.bytes(), tile.grid(rows, shard.count))
        });
        Ok(())
    }

    fn experts_outer(&mut self, matrix: MatrixId, config: &ExpertConfig) -> Result<(), DeviceError> {
        let (rows, stride) = (self.rows.prompt.len() as u32, self.shape.max_rows as u32);
        let tile_rows = tile_rows(self.rows_of_an_expert(config));
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let layout = live.matrix(matrix)?.layout;
        let (path, form) = path(live, &layout);
        let tile = down(layout, path, tile_rows);
        let key = Key::Outer(matrix, tile_rows);
        live.prepare(
            key,
            |live| Ok((tile.kernel(), live.matrix(matrix)?.shards(&live.gpu))),
            |live, shard| {
                let mut bound = vec![live.matrix(matrix)?.bound(shard)];
                bound.extend(live.rounded(Operand::Inner, form)?.iter().map(Bound::from));
                bound.extend([&live.many.lists, &live.many.counts, &live.many.outputs].map(Bound::from));
                Ok(bound)
            },
        )?;
        live.dispatch(key, Cost::WHOLE, |shard| {
            let scalars = TileScalars { rows, stride, first_expert: shard.first };
            (scalars.bytes(), tile.grid(rows, shard.count))
        });
        Ok(())
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

    /// A matrix as one binding.
    fn whole(&self, matrix: MatrixId) -> Result<Vec<Shard>, DeviceError> {
        let matrix = self.matrix(matrix)?;
        let shards = matrix.shards(&self.gpu);
        match shards.len() {
            1 => Ok(shards),
            _ => Err(DeviceError::Setup(format!(
                "a matrix of {} bytes is larger than this GPU binds ({})",
                matrix.layout.bytes(),
                self.gpu.abilities.binding_bytes
            ))),
        }
    }

    fn same_layout(&self, gate: MatrixId, up: MatrixId) -> Result<PanelLayout, DeviceError> {
        let (gate, up) = (self.matrix(gate)?.layout, self.matrix(up)?.layout);
        match gate == up {
            true => Ok(gate),
            false => Err(DeviceError::Setup(format!(
                "gate and up of one network as {:?} and {:?} cannot be computed on a GPU: keep it on the processor",
                gate.format(),
                up.format()
            ))),
        }
    }
}
