//! Experts that are read while steps are computed: from the front's settings to a store, what is kept of it from run to
//! run, and the trace of which experts each step used.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use unfazed_device::cpu::TraceSink;
use unfazed_formats::{Headers, Identity};
use unfazed_host::cache;
use unfazed_model::Sources;
use unfazed_store::experts::trace::{Step, TraceHeader, TraceWriter};
use unfazed_store::experts::{
    ExpertConfig, ExpertSources, ExpertStore, PolicyKind, Profile, ProfileKeeper, ProfileKey, SlotMemory,
    Units,
};
use unfazed_store::{Reader, SystemClock};
use unfazed_wire::StreamedExperts;
use unfazed_wire::memory::{ExpertSegment, Segment, mix};

use crate::load::{refusal, trouble};
use crate::{EngineError, huge_pages};

/// Threads that read and pack experts, beside as many as the disk has reads under way at a time: while these pack what has
/// come, the others have the disk busy.
const PACKERS: usize = 2;
/// Most threads: the plan has room for so many reads.
const MOST_READERS: usize = 16;

/// A store, and the profile of its experts' use.
pub(crate) struct Experts {
    pub(crate) store: Arc<ExpertStore>,
    keeper: Option<ProfileKeeper>,
}

impl Experts {
    /// A store as the front wants it, over what an earlier engine left in `memory`. `files` stands for the model's files.
    pub(crate) fn new(
        streamed: &StreamedExperts,
        sources: &Sources,
        reader: Arc<dyn Reader>,
        memory: &Segment,
        files: u64,
        now: Duration,
    ) -> Result<Experts, EngineError> {
        let policy = PolicyKind::from_str(&streamed.policy)
            .map_err(|error| refusal(format!("--expert-policy {}: {error}", streamed.policy)))?;
        let sources = ExpertSources::new(sources.experts()).map_err(refusal)?;
        let StreamedExperts { slots, slot_bytes, ring, open, least, .. } = *streamed;
        let memory = SlotMemory::open(memory, ExpertSegment { slots, slot_bytes }).map_err(trouble)?;
        let memory = memory.limited(open, least);
        let key = ProfileKey { units: sources.units(), experts: sources.fingerprint(), files };
        let path = profile_path(&key);
        let profile = path.as_deref().and_then(|path| {
            Profile::load(path, key).unwrap_or_else(|error| {
                tracing::warn!(%error, "the usage profile of experts is left out");
                None
            })
        });
        let threads = reader.depth().saturating_add(PACKERS).min(MOST_READERS);
        let config = ExpertConfig { policy, threads, ring, files, profile };
        let store = ExpertStore::new(sources, reader, memory, config).map_err(trouble)?;
        let keeper = path.map(|path| ProfileKeeper::new(path, now));
        let store = Arc::new(store);
        huge_pages::gather_slots(&store);
        Ok(Experts { store, keeper })
    }

    /// Fills empty slots with what earlier runs used most, in the background.
    pub(crate) fn pre_fill(&self) {
        let store = Arc::clone(&self.store);
        let fill = move || {
            store.pre_fill(&SystemClock::new());
        };
        if let Err(error) = thread::Builder::new().name("pre-fill".to_owned()).spawn(fill) {
            tracing::debug!(%error, "no thread to fill slots with");
        }
    }

    /// Saves the profile if it is time. To be called now and then.
    pub(crate) fn tick(&mut self, now: Duration) {
        if let Some(keeper) = &mut self.keeper {
            report(keeper.tick(&self.store, now).map(drop));
        }
    }

    /// Saves the profile: nothing more will be used.
    pub(crate) fn save(&self) {
        if let Some(keeper) = &self.keeper {
            report(keeper.save(&self.store));
        }
        let counts = self.store.counts();
        let rate = 100.0 * counts.hits as f64 / (counts.uses as f64).max(1.0);
        tracing::info!(
            uses = counts.uses,
            filled = counts.filled,
            looked_ahead = counts.looked_ahead,
            streamed = counts.streamed,
            "{rate:.1} % of the experts that answers used were in slots"
        );
    }
}

fn report(saved: io::Result<()>) {
    if let Err(error) = saved {
        tracing::warn!(%error, "the usage profile of experts cannot be saved");
    }
}

/// Stands for files: their sizes, times of change and inodes.
pub(crate) fn stamp(identities: &[Identity]) -> u64 {
    let words = identities.iter().flat_map(|identity| {
        let Identity { size, modified: (seconds, nanoseconds), inode } = *identity;
        [size, seconds.cast_unsigned(), nanoseconds.cast_unsigned(), inode]
    });
    words.fold(0, |sum, word| mix([sum, word]))
}

/// One profile a model, whatever its files are called.
fn profile_path(key: &ProfileKey) -> Option<PathBuf> {
    Some(cache::folder()?.join(format!("experts-{:016x}.usage", key.experts)))
}

/// Writes which experts each step used to a file that the front opened. An engine goes on behind what an earlier one wrote.
pub(crate) fn trace(file: OwnedFd, headers: &Headers, sources: &Sources) -> Result<TraceSink, EngineError> {
    let failed = |error: io::Error| trouble(format!("the trace of experts cannot be written: {error}"));
    let mut file = File::from(file);
    let written = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let config = &headers.config;
    let Some(experts) = config.experts else {
        return Err(refusal(format!("--expert-trace: {} has no experts", headers.name)));
    };
    let cost = sources.cost();
    let layers = sources.experts().iter().flatten().count().max(1) as u64;
    let header = TraceHeader {
        model: headers.name.clone(),
        units: Units { layers: config.layers as u32, experts: experts.count as u32 },
        used: experts.used as u32,
        expert_bytes: cost.expert.bytes / layers,
        other_bytes: cost.dense.bytes.saturating_add(cost.output.bytes),
    };
    let writer = match written {
        0 => TraceWriter::new(file, &header),
        _ => Ok(TraceWriter::go_on(file, &header)),
    };
    let mut writer = Some(writer.map_err(failed)?);
    Ok(Box::new(move |step: &Step| {
        // Each step by itself: an engine may end after any of them.
        let written =
            writer.as_mut().map_or(Ok(()), |writer| writer.step(step).and_then(|()| writer.flush()));
        if let Err(error) = written {
            tracing::warn!(%error, "the trace of experts ends here");
            writer = None;
        }
    }))
}
