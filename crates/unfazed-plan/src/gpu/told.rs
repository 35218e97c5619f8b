//! What is said of layers on GPUs, and of those that are not.

use unfazed_wire::Placement;

use super::choose::Request;
use super::fit::{Fit, room};
use super::{CpuMoe, GpuLayers, GpuSettings};
use crate::ask::{Change, Changes};
use crate::refusal::Refusal;
use crate::{GpuPlan, Prediction, Settings, StreamExperts};

/// Layers were asked for and there is no GPU.
pub(crate) fn none(why: Option<&str>, settings: &Settings, changes: &mut Changes<'_>) -> Result<(), Refusal> {
    let asked = settings.gpu.layers;
    if matches!(asked, GpuLayers::Auto | GpuLayers::Count(0)) {
        return Ok(());
    }
    let verb = if asked == GpuLayers::All { "changed" } else { "lowered" };
    changes.change(asked, to(0, verb, settings), why.unwrap_or("no GPU was found"))
}

/// Fewer layers than were asked for fit, or none at all.
pub(super) fn lowered(
    request: &Request<'_>,
    fit: &Fit<'_>,
    wanted: &GpuSettings,
    units: usize,
    changes: &mut Changes<'_>,
) -> Result<(), Refusal> {
    let why = || {
        let one = fit.loads(&fit.placement(1), request.least_pages);
        let least = one.iter().map(|load| load.bytes()).max().unwrap_or_default();
        let rooms = request.gpus.iter().map(|gpu| match room(gpu) {
            Some(room) => format!("{room} of {} may be used", gpu.name),
            None => format!("{} does not tell what memory it has", gpu.name),
        });
        let rooms = rooms.collect::<Vec<_>>().join(", ");
        format!("{rooms}, and one layer with its keys and values, activations and staging takes {least}")
    };
    let asked = match wanted.layers {
        GpuLayers::Count(layers) => layers.min(fit.most()),
        GpuLayers::All => fit.most(),
        GpuLayers::Auto => {
            if units == 0 {
                changes.notes.push(format!("no layer is on a GPU: {}", why()));
            }
            return Ok(());
        }
    };
    if units >= asked {
        return Ok(());
    }
    let verb = if wanted.layers == GpuLayers::All { "changed" } else { "lowered" };
    changes.change(wanted.layers, to(units, verb, request.settings), &why())
}

fn to(layers: usize, verb: &'static str, settings: &Settings) -> Change {
    let gpu = GpuSettings { layers: GpuLayers::Count(layers), ..settings.gpu };
    let settings = Settings { gpu, ..*settings };
    Change { setting: "gpu-layers", verb, to: layers.to_string(), settings }
}

/// Layers whose experts the processor computes although nobody asked for it, if some of the model is on a GPU. `rate`: what is
/// predicted, of all or (`most`) of the processor's part alone.
pub(crate) fn left_to_the_processor(
    plan: &GpuPlan,
    experts: &[usize],
    settings: &Settings,
    rate: Option<Prediction>,
    most: Option<Prediction>,
) -> Option<String> {
    if settings.gpu.cpu_moe != CpuMoe::No || settings.stream_experts == StreamExperts::On {
        return None;
    }
    let left = left(plan.placement()?, experts);
    if left == 0 {
        return None;
    }
    let rate = match (rate, most) {
        (Some(Prediction { tokens_per_second, .. }), _) => {
            format!("{tokens_per_second:.1} tokens/s are predicted for one answer")
        }
        (None, Some(Prediction { tokens_per_second, .. })) => {
            format!("{tokens_per_second:.1} tokens/s are predicted for one answer at most")
        }
        (None, None) => {
            "no rate can be predicted before `unfazed calibrate` has measured this machine".to_owned()
        }
    };
    let why = match settings.gpu.layers {
        GpuLayers::Count(layers) => format!("with --gpu-layers {layers}"),
        GpuLayers::Auto | GpuLayers::All => "for want of memory on the GPU".to_owned(),
    };
    Some(format!(
        "the processor computes the experts of {left} of {} layers, {why}: {rate}; --cpu-moe, which \
         puts the attention of all layers on the GPU, or --stream-experts on may be faster",
        experts.len()
    ))
}

/// Of these layers, those whose experts are on the processor.
fn left(placement: &Placement, experts: &[usize]) -> usize {
    let on_cpu = |layer: &&usize| placement.layers.get(**layer).is_some_and(|at| !at.feed_forward.is_gpu());
    experts.iter().filter(on_cpu).count()
}
