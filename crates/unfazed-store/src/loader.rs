//! Reading and packing with several threads, with progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use half::{bf16, f16};
use unfazed_formats::{BlockFormat, Extent};
use unfazed_kernels::LANES;
use unfazed_kernels::panel::{PackedMatrix, PanelLayout, pack_panel};
use unfazed_wire::memory::Mapping;

use crate::ahead::ReadAhead;
use crate::memory::populate;
use crate::storage::BLOCK_ALIGNMENT;
use crate::weights::Place;
use crate::{Buffer, MatrixSource, Reader, Source, StoreError, VectorSource, WeightMemory};

/// About so many bytes are read at once, in whole panels: enough for a disk to run at its rate, few enough for a piece
/// to be packed while it is in the cache of a core. With the rest of its first and last block it fits into a registered
/// block.
const PIECE_BYTES: usize = (1 << 20) - 2 * BLOCK_ALIGNMENT;

/// A matrix or a stack of equal matrices, packed for the CPU kernels.
#[derive(Debug)]
pub struct PackedStack {
    layout: PanelLayout,
    parts: usize,
    bytes: Buffer<u8>,
}

impl PackedStack {
    /// Layout of one matrix of the stack.
    pub fn layout(&self) -> &PanelLayout {
        &self.layout
    }

    /// Matrices in the stack.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// All of it, as it is packed: one matrix behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// One matrix of the stack.
    ///
    /// # Panics
    ///
    /// If the stack has no such part.
    pub fn matrix(&self, part: usize) -> PackedMatrix<'_> {
        assert!(part < self.parts, "part {part} of a stack of {}", self.parts);
        let size = self.layout.bytes();
        let packed = PackedMatrix::new(self.layout, &self.bytes[part * size..(part + 1) * size]);
        #[expect(clippy::expect_used, reason = "the buffer was made for this layout")]
        packed.expect("sizes of panels are multiples of a cache line, and buffers start on a page")
    }
}

/// Called with the bytes of tensors that were loaded so far, by all calls together; from several threads, so that a
/// smaller number may follow a larger one.
pub type Progress = Box<dyn Fn(u64) + Send + Sync>;

/// Called by each thread that reads, with its number, before it touches the memory of weights.
pub type ThreadStart = Box<dyn Fn(usize) + Send + Sync>;

/// Loads tensors, each with several threads.
pub struct Loader {
    reader: Arc<dyn Reader>,
    threads: usize,
    progress: Progress,
    done: AtomicU64,
    read: AtomicU64,
    memory: Option<Mutex<WeightMemory>>,
    at_start: Option<ThreadStart>,
    ahead: ReadAhead,
}

/// Some panels of the destination, and where the rows are that go there.
struct Piece<'a> {
    extent: Extent,
    panels: &'a mut [u8],
}

impl Loader {
    /// A loader that reads through `reader` and packs with up to `threads` threads.
    pub fn new(reader: Arc<dyn Reader>, threads: usize, progress: Progress) -> Loader {
        let (done, read, ahead) = (AtomicU64::new(0), AtomicU64::new(0), ReadAhead::default());
        Loader { reader, threads: threads.max(1), progress, done, read, memory: None, at_start: None, ahead }
    }

    /// Puts weights into memory that outlives this process, and takes from there what an earlier process has loaded.
    #[must_use]
    pub fn into_memory(mut self, memory: WeightMemory) -> Loader {
        self.memory = Some(Mutex::new(memory));
        self
    }

    /// Lets each thread that reads call `at_start` first, which may choose where it runs: memory comes from the node of the
    /// processor that touches it first.
    #[must_use]
    pub fn with_thread_start(mut self, at_start: ThreadStart) -> Loader {
        self.at_start = Some(at_start);
        self
    }

    /// Tensors will be loaded in this order: those that come next are read while one is packed. What is loaded may differ;
    /// then it is read when it is asked for.
    pub fn expect<'s>(&self, order: impl IntoIterator<Item = Source<'s>>) {
        for source in order {
            match source {
                Source::Vector(VectorSource { name, format, len, extent }) => {
                    let len = len.saturating_mul(format.block_bytes()) as u64;
                    self.ahead.expect([(name.clone(), Extent { len, ..*extent })]);
                }
                Source::Matrix(MatrixSource { name, format, rows, columns, parts }) => {
                    let Some(layout) = PanelLayout::new(*format, *rows, *columns) else { continue };
                    let needed = (layout.row_bytes() as u64).saturating_mul(layout.rows() as u64);
                    let whole = parts.iter().filter(|part| part.len >= needed);
                    let pieces = whole.flat_map(|part| cut(&layout, part));
                    self.ahead.expect(pieces.map(|extent| (name.clone(), extent)));
                }
            }
        }
    }

    /// All is loaded: nothing is written to the weights' memory any more, by anybody.
    pub fn seal(&self) -> Result<(), StoreError> {
        self.ahead.clear();
        self.reader.rest();
        self.memory.as_ref().map_or(Ok(()), |memory| lock(memory).seal())
    }

    /// Bytes that were read from the files.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes of packed weights that were there already.
    pub fn bytes_kept(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| lock(memory).bytes_kept())
    }

    /// The memory of packed weights that outlives this process, mapped, and how much of it is used.
    pub fn mapping(&self) -> Option<(Arc<Mapping>, usize)> {
        self.memory.as_ref().map(|memory| lock(memory).mapping())
    }

    /// Memory for a tensor.
    fn place(&self, tensor: &str, shape: &str, format: BlockFormat, len: usize) -> Result<Place, StoreError> {
        match &self.memory {
            Some(memory) => lock(memory).place(tensor, shape, format, len),
            None => Ok(Place::private(Buffer::zeroed(tensor, len)?)),
        }
    }

    /// All of a tensor is in its place.
    fn settle(&self, place: Place) -> Buffer<u8> {
        match &self.memory {
            Some(memory) => lock(memory).settle(place),
            None => place.bytes,
        }
    }

    /// Reads a matrix, or a stack of them, and packs it. The first error ends it; it names the tensor, and the file
    /// if reading failed.
    pub fn load_matrix(&self, source: &MatrixSource) -> Result<PackedStack, StoreError> {
        let shape = format!("{} x {} x {}", source.parts.len(), source.rows, source.columns);
        let refused = |reason| StoreError::Shape {
            tensor: source.name.clone(),
            shape: shape.clone(),
            format: source.format,
            reason,
        };
        let layout = PanelLayout::new(source.format, source.rows, source.columns)
            .ok_or_else(|| refused("columns must fill whole blocks, and nothing may be empty"))?;
        if source.parts.is_empty() {
            return Err(refused("the stack is empty"));
        }
        let total = layout.bytes().checked_mul(source.parts.len());
        let total = total.ok_or_else(|| refused("the size overflows"))?;
        let needed = (layout.row_bytes() as u64).saturating_mul(layout.rows() as u64);
        for extent in &source.parts {
            check(&source.name, extent, needed)?;
        }
        let parts = source.parts.len();
        let mut place = self.place(&source.name, &shape, source.format, total)?;
        if place.whole {
            self.report((layout.row_bytes() * layout.rows()).saturating_mul(parts));
            return Ok(PackedStack { layout, parts, bytes: place.bytes });
        }

        let mut pieces = Vec::new();
        for (extent, matrix) in source.parts.iter().zip(place.bytes.chunks_mut(layout.bytes())) {
            let panels = matrix.chunks_mut(panels_at_once(&layout) * layout.panel_bytes());
            pieces.extend(cut(&layout, extent).zip(panels).map(|(extent, panels)| Piece { extent, panels }));
        }
        self.pack_all(&source.name, &layout, pieces)?;
        Ok(PackedStack { layout, parts, bytes: self.settle(place) })
    }

    /// Reads a vector and converts it to f32.
    pub fn load_vector(&self, source: &VectorSource) -> Result<Vec<f32>, StoreError> {
        let VectorSource { name, format, len, extent } = source;
        if format.block_weights() != 1 {
            return Err(StoreError::Shape {
                tensor: name.clone(),
                shape: len.to_string(),
                format: *format,
                reason: "a vector is F32, F16 or BF16",
            });
        }
        let size = len.saturating_mul(format.block_bytes());
        check(name, extent, size as u64)?;
        let refused = |bytes: usize| StoreError::Memory { what: name.clone(), bytes: bytes as u64 };
        let total = len.checked_mul(size_of::<f32>()).ok_or_else(|| refused(usize::MAX))?;
        let mut values = Vec::new();
        values.try_reserve_exact(*len).map_err(|_| refused(total))?;
        let mut place = self.place(name, &len.to_string(), *format, total)?;
        if place.whole {
            values.extend(place.bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)));
        } else {
            self.read_values(source, size, &mut values)?;
            for (bytes, value) in place.bytes.as_chunks_mut().0.iter_mut().zip(&values) {
                *bytes = value.to_ne_bytes();
            }
            self.settle(place);
        }
        self.report(size);
        Ok(values)
    }

    fn read_values(
        &self,
        source: &VectorSource,
        size: usize,
        values: &mut Vec<f32>,
    ) -> Result<(), StoreError> {
        let VectorSource { name, format, extent, .. } = source;
        let extent = Extent { len: size as u64, ..*extent };
        self.ahead.turn_to(name, &[extent]);
        let bytes = self.ahead.take(&*self.reader, name, extent).wait()?;
        self.read.fetch_add(size as u64, Ordering::Relaxed);
        match format {
            BlockFormat::F16 => {
                values.extend(bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()));
            }
            BlockFormat::BF16 => {
                values.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()));
            }
            _ => values.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
        }
        Ok(())
    }

    /// Reads and packs all pieces, this thread and others beside it.
    fn pack_all(&self, tensor: &str, layout: &PanelLayout, pieces: Vec<Piece<'_>>) -> Result<(), StoreError> {
        let helpers = self.threads.min(pieces.len()).saturating_sub(1);
        self.ahead.turn_to(tensor, &pieces.iter().map(|piece| piece.extent).collect::<Vec<_>>());
        let queue = Mutex::new(pieces.into_iter());
        let failure = Mutex::new(None);
        let work = &|| {
            // The queue's lock is held for the take alone.
            while let Some(mut piece) = { queue.lock().unwrap_or_else(PoisonError::into_inner).next() } {
                if let Err(error) = self.pack(tensor, layout, &mut piece) {
                    // The others find the queue empty.
                    queue.lock().unwrap_or_else(PoisonError::into_inner).by_ref().for_each(drop);
                    self.ahead.clear();
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        thread::scope(|scope| {
            for helper in 1..=helpers {
                let placed = move || {
                    self.at_start.iter().for_each(|at_start| at_start(helper));
                    work();
                };
                // Without another thread this one does the work.
                let _ = thread::Builder::new().name("unfazed-load".to_owned()).spawn_scoped(scope, placed);
            }
            work();
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Reads a piece and packs it.
    fn pack(&self, tensor: &str, layout: &PanelLayout, piece: &mut Piece<'_>) -> Result<(), StoreError> {
        let read = self.ahead.take(&*self.reader, tensor, piece.extent);
        // While the bytes are on their way.
        populate(piece.panels);
        let rows = read.wait()?;
        self.read.fetch_add(rows.len() as u64, Ordering::Relaxed);
        let panels = piece.panels.chunks_mut(layout.panel_bytes());
        for (rows, panel) in rows.chunks(LANES * layout.row_bytes()).zip(panels) {
            pack_panel(layout, rows, panel);
        }
        self.report(rows.len());
        Ok(())
    }

    fn report(&self, bytes: usize) {
        let before = self.done.fetch_add(bytes as u64, Ordering::Relaxed);
        (self.progress)(before + bytes as u64);
    }
}

/// Panels that are read together: a matrix is cut into equal pieces of about [`PIECE_BYTES`].
fn panels_at_once(layout: &PanelLayout) -> usize {
    let panel = layout.row_bytes() * LANES;
    let panels = layout.rows().div_ceil(LANES);
    let pieces = panels.div_ceil((PIECE_BYTES / panel).max(1));
    panels.div_ceil(pieces.max(1)).max(1)
}

/// The pieces of a matrix in its file, which holds all of its rows.
fn cut(layout: &PanelLayout, extent: &Extent) -> impl Iterator<Item = Extent> {
    let rows = panels_at_once(layout) * LANES;
    let (all, row, Extent { file, offset, .. }) = (layout.rows(), layout.row_bytes(), *extent);
    (0..all).step_by(rows).map(move |first| {
        let len = (rows.min(all - first) * row) as u64;
        Extent { file, offset: offset + (first * row) as u64, len }
    })
}

fn lock(memory: &Mutex<WeightMemory>) -> MutexGuard<'_, WeightMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An extent that its header has checked against the file must also hold what the shape needs.
fn check(tensor: &str, extent: &Extent, needed: u64) -> Result<(), StoreError> {
    if extent.len >= needed {
        return Ok(());
    }
    Err(StoreError::Extent { tensor: tensor.to_owned(), offset: extent.offset, len: extent.len, needed })
}
