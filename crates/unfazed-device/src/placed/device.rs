//! The operations: each goes to where its weights are.

use std::sync::Arc;

use unfazed_fault::Class;
use unfazed_formats::config::{ExpertConfig, RopeConfig};
use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, VectorSource};
use unfazed_wire::{Place, Placement};

use super::settle::Settled;
use super::weights::{PlacedExperts, PlacedMatrix, PlacedVector};
use crate::gpu::GpuDevice;
use crate::{Batch, CpuDevice, Device, DeviceError, Generation, KvShape, PageId, PageSpan, Part, StepOutput};

/// How a device of several places is set up.
pub struct PlacedConfig {
    /// The processor's part.
    pub cpu: CpuDevice,
    /// The GPUs that the placement counts.
    pub gpus: Vec<GpuDevice>,
    /// Where each part of the model is computed.
    pub placement: Placement,
    /// Shape of the KV pages.
    pub kv: KvShape,
}

/// The processor and GPUs as one device.
pub struct PlacedDevice {
    cpu: CpuDevice,
    gpus: Vec<GpuDevice>,
    placement: Placement,
    kv: KvShape,
    /// Where the residual of the step in progress is.
    at: Place,
    /// What went wrong in the step in progress: its other operations do nothing.
    trouble: Option<DeviceError>,
    /// The logits of the step, if a GPU has them.
    logits_on: Option<usize>,
    logits: Vec<f32>,
    settled: Settled,
    /// Page positions that the step in progress writes, and whether any of them is of a prompt.
    written: Vec<(PageSpan, bool)>,
    /// Of these pages, what is to be taken to shared memory.
    snapshot: Vec<PageSpan>,
}

impl PlacedDevice {
    /// Joins the parts.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Setup`]: the placement counts other layers or GPUs than there are.
    pub fn new(config: PlacedConfig) -> Result<PlacedDevice, DeviceError> {
        let PlacedConfig { cpu, gpus, placement, kv } = config;
        let most = placement.places().filter_map(Place::gpu).max();
        if most.is_some_and(|index| index >= gpus.len()) || placement.layers.len() != kv.layers {
            return Err(DeviceError::Setup(format!(
                "a placement of {} layers on GPUs up to number {most:?} for a model of {} layers and {} GPUs",
                placement.layers.len(),
                kv.layers,
                gpus.len()
            )));
        }
        let settled = Settled::new(kv.pages, kv.page_tokens);
        Ok(PlacedDevice {
            cpu,
            gpus,
            placement,
            kv,
            at: Place::Cpu,
            trouble: None,
            logits_on: None,
            logits: Vec::new(),
            settled,
            written: Vec::new(),
            snapshot: Vec::new(),
        })
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[GpuDevice] {
        &self.gpus
    }

    /// All keys and values are gone, as they are with a device that was lost.
    #[cfg(feature = "sim")]
    pub fn lose_pages(&mut self) {
        self.cpu.lose_pages();
    }

    /// The processor's part.
    pub fn cpu(&self) -> &CpuDevice {
        &self.cpu
    }

    fn place_of(&self, part: Part) -> Place {
        let layer = |layer: usize| self.placement.layers.get(layer).copied().unwrap_or_default();
        match part {
            Part::Embedding => Place::Cpu,
            Part::Attention(index) => layer(index).attention,
            Part::FeedForward(index) => layer(index).feed_forward,
            Part::Output | Part::TiedEmbedding => self.placement.output,
        }
    }

    /// Takes the residual to where the next operation is. Whether that can go on.
    fn go(&mut self, to: Place) -> bool {
        if self.trouble.is_none() && self.at != to {
            let moved = self.leave().and_then(|()| self.enter(to));
            if let Err(error) = moved {
                self.trouble = Some(error);
            }
            self.at = to;
        }
        self.trouble.is_none()
    }

    /// The residual comes to the processor.
    fn leave(&mut self) -> Result<(), DeviceError> {
        match self.at.gpu().and_then(|gpu| self.gpus.get_mut(gpu)) {
            Some(gpu) => gpu.read_residual(self.cpu.residual_mut()),
            None => Ok(()),
        }
    }

    fn enter(&mut self, to: Place) -> Result<(), DeviceError> {
        match to.gpu().and_then(|gpu| self.gpus.get_mut(gpu)) {
            Some(gpu) => gpu.write_residual(self.cpu.residual()),
            None => Ok(()),
        }
    }

    /// The GPU that the residual is on.
    fn gpu(&mut self) -> Option<&mut GpuDevice> {
        self.gpus.get_mut(self.at.gpu()?)
    }

    /// Does something on a GPU; what it says goes with the step.
    fn on_gpu(&mut self, work: impl FnOnce(&mut GpuDevice) -> Result<(), DeviceError>) {
        if self.trouble.is_some() {
            return;
        }
        if let Some(Err(error)) = self.gpu().map(work) {
            self.trouble = Some(error);
        }
    }

    /// Takes what has come from the GPUs to the pages in shared memory.
    fn collect(&mut self) -> Result<(), DeviceError> {
        let PlacedDevice { cpu, gpus, settled, .. } = self;
        let mut came: Option<Vec<(PageId, usize)>> = None;
        for gpu in gpus.iter_mut().filter(|gpu| gpu.keeps_pages()) {
            // A page has come when it has come from all GPUs.
            let pages = gpu.collect_pages(&mut |layer, page, bytes| {
                let place = cpu.layer_page_mut(layer, page);
                if place.len() == bytes.len() {
                    place.copy_from_slice(bytes);
                }
            })?;
            came = Some(match came {
                None => pages,
                Some(others) => others.into_iter().filter(|page| pages.contains(page)).collect(),
            });
        }
        for (page, end) in came.unwrap_or_default() {
            settled.came(page, end);
        }
        Ok(())
    }

    /// What the step in progress writes, by page.
    fn note_written(&mut self, batch: &Batch) {
        self.written.clear();
        let size = self.kv.page_tokens.max(1);
        for row in &batch.rows {
            let pages = batch.sequences.get(row.sequence);
            let Some(page) = pages.and_then(|pages| pages.get(row.position / size)) else { continue };
            let slot = row.position % size;
            match self.written.last_mut() {
                Some((last, prompt)) if last.page == *page && last.slots.end == slot => {
                    last.slots.end += 1;
                    *prompt |= !row.generated;
                }
                _ => {
                    let span = PageSpan { page: *page, slots: slot..slot + 1 };
                    self.written.push((span, !row.generated));
                }
            }
        }
    }

    /// Of what the step writes, what is to be taken to shared memory: pages that are full, and ends of pieces of prompts.
    fn to_snapshot(&self) -> Vec<PageSpan> {
        let size = self.kv.page_tokens;
        let wanted = self.written.iter().filter(|(span, prompt)| span.slots.end == size || *prompt);
        wanted.map(|(span, _)| PageSpan { page: span.page, slots: 0..span.slots.end }).collect()
    }

    /// Sends the rest of the step, takes earlier pages in meanwhile, and waits for the end.
    fn end_on_gpus(&mut self) -> Result<(), DeviceError> {
        for gpu in self.gpus.iter_mut() {
            if gpu.keeps_pages() {
                gpu.snapshot(&self.snapshot)?;
            }
            gpu.submit()?;
        }
        self.collect()?;
        for (index, gpu) in self.gpus.iter_mut().enumerate() {
            let logits = (self.logits_on == Some(index)).then_some(&mut self.logits);
            gpu.finish(logits)?;
        }
        Ok(())
    }
}

impl AsRef<PlacedDevice> for PlacedDevice {
    fn as_ref(&self) -> &PlacedDevice {
        self
    }
}

impl Device for PlacedDevice {
    type Matrix = PlacedMatrix;
    type Vector = PlacedVector;
    type Experts = PlacedExperts;

    fn load_matrix(&mut self, part: Part, source: &MatrixSource) -> Result<PlacedMatrix, DeviceError> {
        let stack = self.cpu.load_matrix(part, source)?;
        let Some(index) = self.place_of(part).gpu() else { return Ok(PlacedMatrix::Cpu(stack)) };
        let Some(gpu) = self.gpus.get_mut(index) else { return Ok(PlacedMatrix::Cpu(stack)) };
        let stack = Arc::new(stack);
        let id = gpu.load_matrix(Arc::clone(&stack))?;
        Ok(match part {
            Part::TiedEmbedding => PlacedMatrix::Both(stack, index, id),
            _ => PlacedMatrix::Gpu(index, id),
        })
    }

    fn load_vector(&mut self, part: Part, source: &VectorSource) -> Result<PlacedVector, DeviceError> {
        let values = self.cpu.load_vector(part, source)?;
        let gpu = match self.place_of(part).gpu().and_then(|index| Some((index, self.gpus.get_mut(index)?))) {
            None => None,
            Some((index, gpu)) => Some((index, gpu.load_vector(&values)?)),
        };
        Ok(PlacedVector { values, gpu })
    }

    fn load_experts(&mut self, layer: usize, experts: &LayerExperts) -> Result<PlacedExperts, DeviceError> {
        let part = Part::FeedForward(layer);
        if !self.place_of(part).is_gpu() {
            return Ok(PlacedExperts::Cpu(self.cpu.load_experts(layer, experts)?));
        }
        let LayerExperts { gate, up, down } = experts;
        let stacks = [gate, up, down].map(|source| self.load_matrix(part, source));
        let [gate, up, down] = stacks;
        let ids = [gate?, up?, down?].map(|stack| stack.gpu());
        match (self.place_of(part).gpu(), ids) {
            (Some(index), [Some(gate), Some(up), Some(down)]) => {
                Ok(PlacedExperts::Gpu(index, crate::gpu::Experts { gate, up, down }))
            }
            _ => Err(DeviceError::Setup(format!("the experts of layer {layer} have no place"))),
        }
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        (self.at, self.trouble, self.logits_on) = (Place::Cpu, None, None);
        self.cpu.begin(batch)?;
        if self.gpus.is_empty() {
            return Ok(());
        }
        self.note_written(batch);
        self.snapshot = self.to_snapshot();
        for gpu in &mut self.gpus {
            gpu.begin(batch)?;
        }
        if self.gpus.iter().any(GpuDevice::keeps_pages) {
            for (PageSpan { page, slots }, _) in &self.written {
                self.settled.written(*page, slots.clone());
            }
        }
        Ok(())
    }

    fn embed(&mut self, table: &PlacedMatrix) {
        if let Some(table) = table.cpu() {
            self.cpu.embed(table);
        }
    }

    fn norm(&mut self, weight: &PlacedVector, epsilon: f32) {
        if !self.go(weight.place()) {
            return;
        }
        match weight.gpu {
            None => self.cpu.norm(&weight.values, epsilon),
            Some((_, id)) => self.on_gpu(|gpu| gpu.norm(id, epsilon)),
        }
    }

    fn project_qkv(&mut self, q: &PlacedMatrix, k: &PlacedMatrix, v: &PlacedMatrix) {
        match ([q.cpu(), k.cpu(), v.cpu()], [q.gpu(), k.gpu(), v.gpu()]) {
            (_, [Some(q), Some(k), Some(v)]) => self.on_gpu(|gpu| gpu.project_qkv(q, k, v)),
            ([Some(q), Some(k), Some(v)], _) if self.trouble.is_none() => self.cpu.project_qkv(q, k, v),
            _ => {}
        }
    }

    fn norm_heads(&mut self, q: &PlacedVector, k: &PlacedVector, epsilon: f32) {
        match (q.gpu, k.gpu) {
            (Some((_, q)), Some((_, k))) => self.on_gpu(|gpu| gpu.norm_heads(q, k, epsilon)),
            _ if self.trouble.is_none() => self.cpu.norm_heads(&q.values, &k.values, epsilon),
            _ => {}
        }
    }

    fn rotate(&mut self, rope: &RopeConfig) {
        if self.at.is_gpu() {
            self.on_gpu(|gpu| gpu.rotate(rope));
        } else if self.trouble.is_none() {
            self.cpu.rotate(rope);
        }
    }

    fn attend(&mut self, layer: usize) {
        if self.at.is_gpu() {
            self.on_gpu(|gpu| gpu.attend(layer));
        } else if self.trouble.is_none() {
            self.cpu.attend(layer);
        }
    }

    fn project_context(&mut self, w: &PlacedMatrix) {
        match (w.gpu(), w.cpu()) {
            (Some(w), _) => self.on_gpu(|gpu| gpu.project_context(w)),
            (None, Some(w)) if self.trouble.is_none() => self.cpu.project_context(w),
            _ => {}
        }
    }

    fn feed_forward(&mut self, gate: &PlacedMatrix, up: &PlacedMatrix, down: &PlacedMatrix) {
        match ([gate.cpu(), up.cpu(), down.cpu()], [gate.gpu(), up.gpu(), down.gpu()]) {
            (_, [Some(gate), Some(up), Some(down)]) => self.on_gpu(|gpu| gpu.feed_forward(gate, up, down)),
            ([Some(gate), Some(up), Some(down)], _) if self.trouble.is_none() => {
                self.cpu.feed_forward(gate, up, down);
            }
            _ => {}
        }
    }

    fn mixture(&mut self, router: &PlacedMatrix, experts: &PlacedExperts, config: &ExpertConfig) {
        match (experts, router.gpu(), router.cpu()) {
            (PlacedExperts::Gpu(_, experts), Some(router), _) => {
                self.on_gpu(|gpu| gpu.mixture(router, experts, config));
            }
            (PlacedExperts::Cpu(experts), _, Some(router)) if self.trouble.is_none() => {
                self.cpu.mixture(router, experts, config);
            }
            _ => {}
        }
    }

    fn look_ahead(
        &mut self,
        norm: &PlacedVector,
        epsilon: f32,
        router: &PlacedMatrix,
        experts: &PlacedExperts,
        config: &ExpertConfig,
    ) {
        // The residual is where this layer's second half is: only there can the next one's router look at it.
        if self.at.is_gpu() || self.trouble.is_some() {
            return;
        }
        if let (PlacedExperts::Cpu(experts), Some(router)) = (experts, router.cpu()) {
            self.cpu.look_ahead(&norm.values, epsilon, router, experts, config);
        }
    }

    fn output(&mut self, norm: &PlacedVector, epsilon: f32, table: &PlacedMatrix) {
        if !self.go(table.place()) {
            return;
        }
        match (norm.gpu, table.gpu(), table.cpu()) {
            (Some((index, norm)), Some(table), _) => {
                self.logits_on = Some(index);
                self.on_gpu(|gpu| gpu.output(norm, epsilon, table));
            }
            (None, _, Some(table)) => self.cpu.output(&norm.values, epsilon, table),
            _ => {}
        }
    }

    fn digests(&mut self, spans: &[PageSpan]) -> Result<Vec<u64>, DeviceError> {
        self.cpu.digests(spans)
    }

    fn is_cold(&self) -> bool {
        self.gpus.iter().any(GpuDevice::is_cold)
    }

    fn settled(&mut self, pages: &[PageId], positions: usize) -> usize {
        match self.gpus.iter().any(GpuDevice::keeps_pages) {
            true => self.settled.of(pages, positions),
            false => positions,
        }
    }

    fn restore(&mut self, pages: &[PageId]) -> Result<(), DeviceError> {
        let PlacedDevice { cpu, gpus, settled, kv, .. } = self;
        for gpu in gpus.iter_mut().filter(|gpu| gpu.keeps_pages()) {
            gpu.restore_pages(pages, &|layer, page| cpu.layer_page(layer, page))?;
        }
        for page in pages {
            settled.came(*page, kv.page_tokens);
        }
        Ok(())
    }

    fn give_back(&mut self, first: PageId, count: usize) -> std::io::Result<u64> {
        self.cpu.give_back(first, count)
    }

    fn finish(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        if self.gpus.is_empty() {
            return self.cpu.finish();
        }
        if self.trouble.is_none() {
            self.trouble = self.end_on_gpus().err();
        }
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        let on_gpu = self.logits_on.is_some();
        let output = self.cpu.finish()?;
        Ok(if on_gpu { StepOutput { logits: &self.logits, ..output } } else { output })
    }

    fn generation(&self) -> Generation {
        self.gpus.first().map_or_else(Generation::default, GpuDevice::generation)
    }

    fn rebuild(&mut self, after: Class) -> Result<(), DeviceError> {
        (self.at, self.trouble) = (Place::Cpu, None);
        self.gpus.iter_mut().try_for_each(|gpu| gpu.rebuild(after))
    }
}
