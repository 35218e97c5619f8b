//! The operations on generated rows: a few at a time, each for itself.

use unfazed_formats::config::ExpertConfig;

use super::GpuDevice;
use super::arena::Arena;
use super::key::{Key, Mode};
use super::live::Live;
use super::weights::{Experts, MatrixId, VectorId};
use crate::DeviceError;
use crate::gpu::budget::Cost;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernels::experts::{Down, GateUp};
use crate::gpu::kernels::matvec::{MOST_ROWS, MatVec};
use crate::gpu::kernels::shard::{Shard, immediates};
use crate::gpu::memory::{Bound, Buffer, Ready};

/// The norm before products: its weight and epsilon.
type Norm = (VectorId, f32);

/// Rows that a kernel is made for: a single one needs fewer registers.
fn width(rows: usize) -> usize {
    if rows == 1 { 1 } else { MOST_ROWS }
}

/// Records a kernel for all rows, as [`Live::run`]: it takes as many at a time as it can.
fn record(
    live: &mut Live,
    key: Key,
    rows: usize,
    make: impl FnOnce(&Live) -> Result<(Kernel, Vec<Shard>), DeviceError>,
    bound: impl Fn(&Live, Shard) -> Result<Vec<Bound<'_>>, DeviceError>,
    grid: impl Fn(Shard) -> [u32; 3],
) -> Result<(), DeviceError> {
    let scalars = |shard| (immediates(rows, shard).to_vec(), grid(shard));
    live.run(key, Cost::WHOLE.of_length(rows as u32), make, bound, scalars)
}

impl GpuDevice {
    pub(super) fn decode_qkv(&mut self, all: [MatrixId; 3], norm: Norm) -> Result<(), DeviceError> {
        let rows = self.rows.decode.len();
        if rows == 0 {
            return Ok(());
        }
        let (weight, epsilon) = norm;
        let width = width(rows);
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let mut matrices = Vec::with_capacity(3);
        for id in all {
            matrices.push(live.matrix(id)?.layout);
        }
        let what = MatVec { matrices, norm: Some(epsilon), add: false, listed: false, rows: width };
        let key = Key::DecodeQkv(all, weight, width);
        record(
            live,
            key,
            rows,
            |live| Ok((what.kernel(&live.gpu.abilities), vec![what.whole()])),
            |live, _| {
                let arena = &live.decode;
                let mut bound = vec![Bound::from(&arena.residual), Bound::from(live.vector(weight)?)];
                for (which, id) in all.into_iter().enumerate() {
                    bound.extend([live.matrix(id)?.all(), arena.place(which)]);
                }
                Ok(bound)
            },
            |shard| what.grid(shard),
        )
    }

    pub(super) fn decode_context(&mut self, w: MatrixId) -> Result<(), DeviceError> {
        match self.rows.decode.len() {
            0 => Ok(()),
            _ => self.decode_add(w, |arena| &arena.context),
        }
    }

    /// The residual += rows of an input times a matrix.
    fn decode_add(&mut self, w: MatrixId, input: fn(&Arena) -> &Ready<Buffer>) -> Result<(), DeviceError> {
        let rows = self.rows.decode.len();
        let width = width(rows);
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let what = MatVec {
            matrices: vec![live.matrix(w)?.layout],
            norm: None,
            add: true,
            listed: false,
            rows: width,
        };
        let key = Key::DecodeAdd(w, width);
        record(
            live,
            key,
            rows,
            |live| Ok((what.kernel(&live.gpu.abilities), live.shards(w)?)),
            |live, shard| {
                let arena = &live.decode;
                let [input, out] = [input(arena), &arena.residual].map(Bound::from);
                Ok(vec![input, live.matrix(w)?.bound(shard), out])
            },
            |shard| what.grid(shard),
        )
    }

    pub(super) fn decode_network(
        &mut self,
        gate: MatrixId,
        up: MatrixId,
        down: MatrixId,
        norm: Norm,
    ) -> Result<(), DeviceError> {
        if self.rows.decode.len() == 0 {
            return Ok(());
        }
        self.decode_inner(gate, up, norm, None)?;
        self.decode_add(down, |arena| &arena.inner)
    }

    pub(super) fn decode_mixture(
        &mut self,
        router: MatrixId,
        experts: &Experts,
        config: &ExpertConfig,
        norm: Norm,
    ) -> Result<(), DeviceError> {
        if self.rows.decode.len() == 0 {
            return Ok(());
        }
        self.decode_router(router, norm)?;
        self.choose(Mode::Decode, config)?;
        self.decode_inner(experts.gate, experts.up, norm, Some(config))?;
        self.decode_outer(experts.down, config)
    }

    fn decode_router(&mut self, router: MatrixId, (weight, epsilon): Norm) -> Result<(), DeviceError> {
        let rows = self.rows.decode.len();
        let width = width(rows);
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let matrices = vec![live.matrix(router)?.layout];
        let what = MatVec { matrices, norm: Some(epsilon), add: false, listed: false, rows: width };
        let key = Key::DecodeRouter(router, weight, width);
        record(
            live,
            key,
            rows,
            |live| Ok((what.kernel(&live.gpu.abilities), live.shards(router)?)),
            |live, shard| {
                let arena = &live.decode;
                let [input, norm] = [&arena.residual, live.vector(weight)?].map(Bound::from);
                Ok(vec![input, norm, live.matrix(router)?.bound(shard), Bound::from(&arena.router)])
            },
            |shard| what.grid(shard),
        )
    }

    /// Gate and up of the chosen experts, or of a dense network.
    fn decode_inner(
        &mut self,
        gate: MatrixId,
        up: MatrixId,
        (weight, epsilon): Norm,
        config: Option<&ExpertConfig>,
    ) -> Result<(), DeviceError> {
        let rows = self.rows.decode.len();
        let width = width(rows);
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let (gate_layout, up_layout) = (live.matrix(gate)?.layout, live.matrix(up)?.layout);
        let used = config.map(|config| config.used);
        let what = GateUp { gate: gate_layout, up: up_layout, norm: Some(epsilon), used, rows: width };
        let key = Key::DecodeInner(gate, up, weight, width);
        record(
            live,
            key,
            rows,
            |live| Ok((what.kernel(&live.gpu.abilities), live.shards(gate)?)),
            |live, shard| {
                let arena = &live.decode;
                let mut bound = vec![Bound::from(&arena.residual), Bound::from(live.vector(weight)?)];
                bound.extend(used.map(|_| Bound::from(&arena.ids)));
                bound.extend([live.matrix(gate)?.bound(shard), live.matrix(up)?.bound(shard)]);
                bound.push(Bound::from(&arena.inner));
                Ok(bound)
            },
            |_| what.grid(rows),
        )
    }

    fn decode_outer(&mut self, down: MatrixId, config: &ExpertConfig) -> Result<(), DeviceError> {
        let rows = self.rows.decode.len();
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let what = Down { down: live.matrix(down)?.layout, used: config.used };
        let key = Key::DecodeOuter(down);
        record(
            live,
            key,
            rows,
            |live| Ok((what.kernel(&live.gpu.abilities), live.shards(down)?)),
            |live, shard| {
                let arena = &live.decode;
                let mut bound = [&arena.inner, &arena.ids, &arena.weights].map(Bound::from).to_vec();
                bound.extend([live.matrix(down)?.bound(shard), Bound::from(&arena.residual)]);
                Ok(bound)
            },
            |_| what.grid(rows),
        )
    }

    /// Logits of the rows of both modes that ask for them, on their way to the host.
    pub(super) fn list_logits(
        &mut self,
        norm: VectorId,
        epsilon: f32,
        table: MatrixId,
    ) -> Result<(), DeviceError> {
        for mode in [Mode::Decode, Mode::Prompt] {
            let side = match mode {
                Mode::Decode => &self.rows.decode,
                Mode::Prompt => &self.rows.prompt,
            };
            let rows = side.logits.len();
            if rows == 0 {
                continue;
            }
            let width = width(rows);
            let live = self.live.as_mut().ok_or_else(super::gone)?;
            let matrices = vec![live.matrix(table)?.layout];
            let what = MatVec { matrices, norm: Some(epsilon), add: false, listed: true, rows: width };
            let key = Key::Logits(mode, table, norm, width);
            record(
                live,
                key,
                rows,
                |live| Ok((what.kernel(&live.gpu.abilities), live.shards(table)?)),
                |live, shard| {
                    let arena = live.arena(mode);
                    let mut bound =
                        [&arena.residual, live.vector(norm)?, &arena.listed].map(Bound::from).to_vec();
                    bound.extend([live.matrix(table)?.bound(shard), Bound::from(&arena.logits)]);
                    Ok(bound)
                },
                |shard| what.grid(shard),
            )?;
            let bytes = super::arena::words(rows, self.shape.vocab);
            let Live { queue, decode, prompt, .. } = live;
            let logits = if mode == Mode::Decode { &decode.logits } else { &prompt.logits };
            self.logits.push(queue.read(logits, 0, bytes));
        }
        Ok(())
    }
}
