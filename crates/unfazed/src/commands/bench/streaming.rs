//! What a run read of experts that are not in memory.

use std::sync::Arc;

use unfazed_plan::Plan;
use unfazed_store::experts::{ExpertCounts, ExpertStore};

/// The store of an engine whose experts are streamed.
pub(super) struct Streaming {
    store: Arc<ExpertStore>,
    /// Of one expert in the model's files, on average.
    bytes: f64,
}

impl Streaming {
    pub(super) fn new(store: Arc<ExpertStore>, plan: &Plan) -> Streaming {
        let layers = plan.experts.iter().flat_map(|experts| &experts.layers);
        let (count, bytes) =
            layers.fold((0.0, 0.0), |(count, bytes), layer| (count + 1.0, bytes + layer.file_bytes.0 as f64));
        Streaming { store, bytes: bytes / f64::max(count, 1.0) }
    }

    pub(super) fn counts(&self) -> ExpertCounts {
        self.store.counts()
    }

    /// What happened in the last seconds, as the end of a line.
    pub(super) fn since(&self, before: &ExpertCounts, seconds: f64) -> String {
        let now = self.counts();
        let (uses, hits) = (now.uses - before.uses, now.hits - before.hits);
        let read = (now.filled + now.streamed - before.filled - before.streamed) as f64 * self.bytes / 1e9;
        let hits = match uses {
            0 => String::new(),
            uses => format!(", {:.1} % of {uses} experts were in slots", 100.0 * hits as f64 / uses as f64),
        };
        format!("{hits}, read {read:.2} GB at {:.2} GB/s", read / seconds.max(1e-9))
    }
}
