//! The number of layers on GPUs, the pages, the copies, the ladder.
//!
//! In this order, each within what is free:
//!
//! 1. layers, from the last one, with pages for the context that was asked for, or for 8,192 tokens;
//! 2. the output table;
//! 3. pages up to what the processor's pool has.

use unfazed_formats::ModelConfig;
use unfazed_wire::Placement;

use super::fit::{Fit, STAGING, room};
use super::{CpuMoe, GpuLayers, GpuPlan, HostCopy, Rung, Split, told};
use crate::ask::{Change, Changes};
use crate::fill::largest;
use crate::machine::Gpu;
use crate::refusal::Refusal;
use crate::{Arena, Bytes, GpuSettings, Settings, Weights};

/// What is to be placed, beside a processor's pool that is planned.
pub(crate) struct Request<'a> {
    pub(crate) model: &'a ModelConfig,
    pub(crate) weights: &'a Weights,
    pub(crate) gpus: &'a [Gpu],
    pub(crate) settings: &'a Settings,
    /// One KV page of all layers.
    pub(crate) page: Bytes,
    /// Rows of the largest step.
    pub(crate) chunk: usize,
    /// Experts are streamed.
    pub(crate) streams: bool,
    /// Pages that there must be.
    pub(crate) least_pages: usize,
    /// Pages that the processor's pool has.
    pub(crate) most_pages: usize,
}

/// What each GPU takes beside weights and keys and values.
pub(crate) fn overhead(model: &ModelConfig, chunk: usize) -> Bytes {
    Arena::new(model, chunk).bytes.saturating_add(STAGING)
}

/// Chooses; `None`: nothing is on a GPU. With it the KV pages that there are. `spare` tells what is left of the processor's pool
/// with so many pages.
pub(crate) fn choose(
    request: &Request<'_>,
    spare: &dyn Fn(usize) -> Bytes,
    changes: &mut Changes<'_>,
) -> Result<Option<(GpuPlan, usize)>, Refusal> {
    let wanted = request.settings.gpu;
    let settings = checked(request, changes)?;
    if request.gpus.is_empty() || settings.layers == GpuLayers::Count(0) {
        return Ok(None);
    }
    let streamed = request.settings.stream_experts == crate::StreamExperts::On;
    let fit = Fit {
        model: request.model,
        weights: request.weights,
        gpus: request.gpus,
        settings: &settings,
        layer_page: Bytes(request.page.0.div_ceil((request.model.layers as u64).max(1))),
        scratch: Arena::new(request.model, request.chunk).bytes,
        streams: request.streams,
        experts_stay: streamed || request.streams,
    };
    let most = match settings.layers {
        GpuLayers::Count(layers) => layers.min(fit.most()),
        // Of a GPU that does not tell what it has, nothing is taken unasked.
        GpuLayers::Auto if request.gpus.iter().any(|gpu| room(gpu).is_none()) => 0,
        GpuLayers::Auto | GpuLayers::All => fit.most(),
    };
    let fits = |units, pages, copy| fit.fits(units, pages, copy, spare(pages));
    let copy = true;
    let units = (1..=most).rev().find(|units| fits(*units, request.least_pages, copy)).unwrap_or(0);
    told::lowered(request, &fit, &wanted, units, changes)?;
    if units == 0 {
        return Ok(None);
    }
    let pages = largest(request.least_pages, request.most_pages.max(request.least_pages), |pages| {
        fits(units, pages, copy)
    });
    let half = (1..=units.min(request.model.layers) / 2).rev().find(|units| fits(*units, pages, copy));
    let placement = fit.placement(units);
    let pools = fit.pools(&placement, pages);
    let lower = half.map(|units| fit.placement(units));
    let rungs = rungs([Some(placement), lower, Some(Placement::cpu(request.model.layers))]);
    Ok(Some((GpuPlan { pools, rungs, budget_ms: settings.budget_ms, host_copy: copy }, pages)))
}

fn rungs(placements: [Option<Placement>; 3]) -> Vec<Rung> {
    let name = |placement: &Placement| match placement.gpu_layers() {
        0 => "cpu".to_owned(),
        layers => format!("gpu:{layers}"),
    };
    let rungs = placements.into_iter().flatten();
    rungs.map(|placement| Rung { name: name(&placement), placement }).collect()
}

/// Settings without what makes no sense for the model and the GPUs that there are.
fn checked(request: &Request<'_>, changes: &mut Changes<'_>) -> Result<GpuSettings, Refusal> {
    let Request { model, gpus, settings, .. } = request;
    let mut gpu = settings.gpu;
    let with = |gpu| Settings { gpu, ..**settings };
    if let GpuLayers::Count(layers) = gpu.layers
        && !gpus.is_empty()
        && layers > model.layers.saturating_add(1)
    {
        gpu.layers = GpuLayers::Count(model.layers.saturating_add(1));
        let change = Change {
            setting: "gpu-layers",
            verb: "lowered",
            to: gpu.layers.to_string(),
            settings: with(gpu),
        };
        changes.change(layers, change, &format!("the model has {} layers and its output", model.layers))?;
    }
    if let CpuMoe::First(layers) = gpu.cpu_moe
        && layers > model.layers
    {
        gpu.cpu_moe = CpuMoe::First(model.layers);
        let to = model.layers.to_string();
        let change = Change { setting: "n-cpu-moe", verb: "lowered", to, settings: with(gpu) };
        changes.change(layers, change, "the model has no more layers")?;
    }
    if let Some(split) = gpu.split
        && split.shares().len() > gpus.len()
        && !gpus.is_empty()
    {
        let fewer = Split::new(split.shares().get(..gpus.len()).unwrap_or_default());
        gpu.split = fewer;
        let to = fewer.map_or("1".to_owned(), |split| split.to_string());
        let change = Change { setting: "split", verb: "changed", to, settings: with(gpu) };
        changes.change(split, change, &format!("layers are shared by {} GPUs", gpus.len()))?;
    }
    if gpu.host_copy == HostCopy::Off && !gpus.is_empty() {
        gpu.host_copy = HostCopy::On;
        let to = gpu.host_copy.to_string();
        let change = Change { setting: "gpu-host-copy", verb: "changed", to, settings: with(gpu) };
        changes.change(HostCopy::Off, change, "engines cannot do without the processor's copy yet")?;
    }
    Ok(gpu)
}
