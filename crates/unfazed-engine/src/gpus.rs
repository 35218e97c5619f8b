//! The GPUs that an engine computes on: opened as the front has chosen them.

use std::sync::Arc;
use std::time::Duration;

use unfazed_device::gpu::budget::{Budget, Limits};
use unfazed_device::gpu::{Adapters, Gpu, GpuConfig, GpuDevice};
use unfazed_device::{CpuDevice, DeviceError, KvShape, PlacedConfig, PlacedDevice};
use unfazed_formats::ModelConfig;
use unfazed_wire::{GpuAdapter, GpuInUse, Place, Start};

/// A step of which nothing is seen for so long hangs. The front has a little more patience with an engine that makes no progress, so
/// that it is the engine that says what happened.
const PATIENCE: Duration = Duration::from_secs(4);
/// The same for a processor that acts as a GPU, which takes seconds to compile a kernel when it first runs.
const PATIENCE_WITH_SOFTWARE: Duration = Duration::from_secs(120);

/// What a device is laid out for.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The model's shape.
    pub model: &'a ModelConfig,
    /// The KV pages.
    pub kv: KvShape,
    /// Most rows in a step.
    pub max_rows: usize,
    /// Most rows of a step that may want logits.
    pub max_logit_rows: usize,
}

/// The processor, and the GPUs that the front's placement names.
///
/// # Errors
///
/// A GPU that is not what it was when the front chose it, that cannot be opened, or whose memory does not suffice.
pub fn placed(start: &Start, cpu: CpuDevice, layout: &Layout<'_>) -> Result<PlacedDevice, DeviceError> {
    let open = |(index, adapter)| gpu(start, index, adapter, layout);
    let gpus = start.gpus.adapters.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
    PlacedDevice::new(PlacedConfig { cpu, gpus, placement: start.placement.clone(), kv: layout.kv })
}

fn gpu(
    start: &Start,
    index: usize,
    wanted: &GpuAdapter,
    layout: &Layout<'_>,
) -> Result<GpuDevice, DeviceError> {
    let Layout { model, kv, max_rows, max_logit_rows } = *layout;
    let layers = start.placement.layers.iter().enumerate();
    let layers = layers.filter(|(_, place)| place.attention == Place::Gpu(index)).map(|(layer, _)| layer);
    let time = Duration::from_millis(u64::from(start.gpus.budget_ms.max(1)));
    let wanted = wanted.clone();
    GpuDevice::new(GpuConfig {
        open: Box::new(move || open(&wanted)),
        model,
        kv,
        layers: layers.collect(),
        max_rows,
        max_logit_rows,
        limit: u64::MAX,
        threads: start.threads.most(),
        budget: Budget::new(Limits { time, ..Limits::default() }),
        patience: Box::new(|info| if info.software { PATIENCE_WITH_SOFTWARE } else { PATIENCE }),
    })
}

/// Opens an adapter, if it is still what it was when it was chosen.
fn open(GpuAdapter { number, name }: &GpuAdapter) -> Result<Arc<Gpu>, DeviceError> {
    let adapter = Adapters::find().choose(Some(&number.to_string()))?;
    let gpu = Gpu::open(&adapter)?;
    match gpu.info.name == *name {
        true => Ok(Arc::new(gpu)),
        false => Err(DeviceError::Setup(format!("GPU {number} is not {name} any more"))),
    }
}

/// What is computed on besides the processor.
pub(crate) fn in_use(device: &PlacedDevice) -> Vec<GpuInUse> {
    let used = device.gpus().iter().filter_map(GpuDevice::gpu);
    used.map(|gpu| GpuInUse {
        name: gpu.info.name.clone(),
        driver: gpu.info.driver.clone(),
        software: gpu.info.software,
    })
    .collect()
}
