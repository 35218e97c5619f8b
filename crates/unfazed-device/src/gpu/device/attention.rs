//! Attention on rows of both modes: what is done to heads, and to the keys and values that they see.

use super::key::{Key, Mode};
use super::live::Live;
use super::weights::VectorId;
use super::{GpuDevice, Shape};
use crate::DeviceError;
use crate::gpu::budget::Cost;
use crate::gpu::kernels::attend_decode::{AttendDecode, DecodePlace};
use crate::gpu::kernels::attend_prompt::{AttendPrompt, PromptPlace};
use crate::gpu::kernels::heads::{Heads, HeadsPlace};
use crate::gpu::kernels::kv::KvText;
use crate::gpu::kernels::shard::Shard;
use crate::gpu::memory::{Bound, Buffer, Ready};

/// Room for parts of attentions, in numbers: a dispatch has as many rows as fit.
const PARTS: usize = 4 << 20;

impl Shape {
    fn kv_text(&self) -> Result<KvText, DeviceError> {
        let layout = &self.layout;
        KvText::new(layout.kv_heads(), layout.head_dim(), layout.page_tokens(), layout.types()).ok_or_else(
            || DeviceError::Setup(format!("keys and values as {layout:?} cannot be computed on a GPU")),
        )
    }

    fn attend_decode(&self) -> Result<AttendDecode, DeviceError> {
        Ok(AttendDecode { heads: self.heads, kv: self.kv_text()? })
    }

    /// Numbers of the parts of a step: for as many rows as fit, and one row of the longest context.
    pub(super) fn parts(&self) -> Result<usize, DeviceError> {
        let attend = self.attend_decode()?;
        let longest = attend.segments((self.pages * self.layout.page_tokens()) as u32) as usize;
        Ok(attend.part_len(1, longest.max(2)).max(PARTS))
    }
}

impl GpuDevice {
    /// Norms and rotates the heads of all rows, and stores keys and values of a layer (by its number here).
    pub(super) fn store_heads(
        &mut self,
        layer: usize,
        norms: Option<(VectorId, VectorId, f32)>,
    ) -> Result<(), DeviceError> {
        let ids = norms.map(|(q, k, _)| (q, k));
        if let Some(ids) = ids {
            self.join_norms(ids)?;
        }
        let rope = &self.shape.rope;
        let what = Heads {
            heads: self.shape.heads,
            kv: self.shape.kv_text()?,
            norm: norms.map(|(.., epsilon)| epsilon),
            rope: Some((rope.pairing, rope.dimensions)).filter(|(_, dimensions)| *dimensions > 0),
        };
        let (query, kv) = (self.shape.query() as u32, self.shape.kv() as u32);
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        for mode in [Mode::Prompt, Mode::Decode] {
            let spans = live.arena(mode).counts.spans;
            if spans == 0 {
                continue;
            }
            let [q, k, v] = live.arena(mode).starts.map(|start| start as u32);
            let place =
                HeadsPlace { query: q, key: k, value: v, query_stride: query, key_stride: kv, table: 0 };
            live.run(
                Key::Heads(mode, layer, ids),
                Cost::WHOLE,
                |_| Ok((what.kernel(), vec![Shard::all(1)])),
                |live, _| {
                    let arena = live.arena(mode);
                    let weights = match ids {
                        // It is not read.
                        None => &arena.context,
                        Some(ids) => live.head_norms.get(&ids).ok_or_else(super::gone)?,
                    };
                    Ok([&arena.step, &arena.heads, live.pages(layer)?, weights].map(Bound::from).to_vec())
                },
                |_| (place.bytes().to_vec(), what.grid(spans)),
            )?;
        }
        Ok(())
    }

    /// The norm weights of queries and keys in one buffer.
    fn join_norms(&mut self, ids: (VectorId, VectorId)) -> Result<(), DeviceError> {
        let deadline = self.deadline();
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        if live.head_norms.contains_key(&ids) {
            return Ok(());
        }
        let of = |id: VectorId| self.copies.vectors.get(id.0 as usize).map(Vec::as_slice).unwrap_or_default();
        let joined = [of(ids.0), of(ids.1)].concat();
        let buffer = live.upload("norms of heads", bytemuck::cast_slice(&joined), deadline)?;
        live.head_norms.insert(ids, buffer);
        Ok(())
    }

    /// Attention of a prompt's rows, many together.
    pub(super) fn prompt_attention(&mut self, layer: usize) -> Result<(), DeviceError> {
        let what = AttendPrompt { heads: self.shape.heads, kv: self.shape.kv_text()? };
        let stride = self.shape.query() as u32;
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let counts = live.prompt.counts;
        if counts.blocks == 0 {
            return Ok(());
        }
        let place = PromptPlace { query: 0, query_stride: stride, context: 0, context_stride: stride };
        live.run(
            Key::Attention(Mode::Prompt, layer),
            Cost::WHOLE.of_length(counts.longest),
            |live| Ok((what.kernel(&live.gpu.abilities), vec![Shard::all(1)])),
            |live, _| {
                let (arena, pages) = (&live.prompt, live.pages(layer)?);
                Ok([&arena.step, &arena.heads, pages, pages, &arena.context].map(Bound::from).to_vec())
            },
            |_| (place.bytes().to_vec(), what.grid(counts.blocks)),
        )
    }

    /// Attention of generated rows, each for itself.
    pub(super) fn decode_attention(&mut self, layer: usize) -> Result<(), DeviceError> {
        let what = self.shape.attend_decode()?;
        let room = self.shape.parts()?;
        let stride = self.shape.query() as u32;
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let counts = live.decode.counts;
        if counts.rows == 0 {
            return Ok(());
        }
        let segments = what.segments(counts.longest);
        let each = what.part_len(1, segments as usize).max(1);
        let at_once = (room / each).clamp(1, counts.rows as usize) as u32;
        for first in (0..counts.rows).step_by(at_once as usize) {
            let rows = at_once.min(counts.rows - first);
            let place = DecodePlace {
                query: 0,
                query_stride: stride,
                context: 0,
                context_stride: stride,
                segments,
                first,
            };
            live.run(
                Key::Attention(Mode::Decode, layer),
                Cost::WHOLE,
                |_| Ok((what.kernel(), vec![Shard::all(1)])),
                |live, _| {
                    let (arena, pages) = (&live.decode, live.pages(layer)?);
                    let all = [&arena.step, &arena.heads, pages, pages, &arena.context, &live.parts];
                    Ok(all.map(Bound::from).to_vec())
                },
                |_| (place.bytes().to_vec(), what.grid(rows, segments)),
            )?;
            if segments > 1 {
                live.run(
                    Key::Merge,
                    Cost::WHOLE,
                    |_| Ok((what.merge(), vec![Shard::all(1)])),
                    |live, _| {
                        let arena = &live.decode;
                        Ok([&arena.step, &live.parts, &arena.context].map(Bound::from).to_vec())
                    },
                    |_| (place.bytes().to_vec(), [what.heads as u32, rows, 1]),
                )?;
            }
        }
        Ok(())
    }
}

impl Live {
    fn pages(&self, layer: usize) -> Result<&Ready<Buffer>, DeviceError> {
        self.kv.get(layer).ok_or_else(|| DeviceError::Batch(format!("layer {layer} has no pages here")))
    }
}
