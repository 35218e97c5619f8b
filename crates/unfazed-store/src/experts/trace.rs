//! A trace: which experts each step used, written as they were used and read to be replayed.
//!
//! All numbers are little-endian. The file is a header and blocks, each with its XXH3-64:
//!
//! | header | bytes |
//! |---|---|
//! | `UFZTRACE` | 8 |
//! | version, 1 | 4 |
//! | layers, experts of a layer, experts used for a token | 4 each |
//! | bytes of an expert as packed, on average; of all other weights that a token reads | 8 each |
//! | length of the model's name, at most 1024; the name in UTF-8 | 4, and as many |
//! | hash of all this | 8 |
//!
//! | block | bytes |
//! |---|---|
//! | length of the content, at most 1 MiB | 4 |
//! | hash of the content | 8 |
//! | content | as many |
//!
//! A block holds whole steps. A step is a zero and the number of its tokens; then for each layer the layer plus 1, how many
//! experts were used there, the first one, and for each further one how many there are between it and the one before, all
//! as LEB128. A token of 8 experts in each of 48 layers takes about 500 bytes. A program that ends suddenly leaves a file
//! whose last block is cut off; what is before it can be replayed.

use std::io::{self, ErrorKind, Read, Write};

use twox_hash::XxHash3_64;

use super::{Units, varint};
use crate::StoreError;

/// How a trace begins.
pub const MAGIC: [u8; 8] = *b"UFZTRACE";
/// Of the format.
pub const VERSION: u32 = 1;
/// A block is written once it has this many bytes.
const BLOCK_BYTES: usize = 64 << 10;
const MOST_BLOCK_BYTES: u32 = 1 << 20;
const MOST_NAME_BYTES: u32 = 1024;
/// More experts than any model has: what replays a trace has a few words for each.
const MOST_UNITS: u32 = 1 << 22;

/// What a trace is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// The model's name.
    pub model: String,
    /// Its layers and experts.
    pub units: Units,
    /// Experts that a token uses in a layer.
    pub used: u32,
    /// Bytes of an expert, as packed, on average.
    pub expert_bytes: u64,
    /// Bytes of all other weights that a token reads.
    pub other_bytes: u64,
}

/// One step: which experts it used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Tokens computed in it.
    pub tokens: u32,
    /// Layers, in the order of computing, and the experts used in each, ascending.
    pub layers: Vec<(u32, Vec<u32>)>,
}

/// Writes a trace.
pub struct TraceWriter<W: Write> {
    out: W,
    block: Vec<u8>,
    units: Units,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn new(mut out: W, header: &TraceHeader) -> io::Result<TraceWriter<W>> {
        let name = header.model.as_bytes();
        let cut = (0..=name.len().min(MOST_NAME_BYTES as usize)).rev();
        let name =
            cut.clone().find(|end| header.model.is_char_boundary(*end)).and_then(|end| name.get(..end));
        let name = name.unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, header.units.layers, header.units.experts, header.used] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(header.expert_bytes.to_le_bytes());
        bytes.extend(header.other_bytes.to_le_bytes());
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(name);
        bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
        out.write_all(&bytes)?;
        Ok(TraceWriter { out, block: Vec::new(), units: header.units })
    }

    /// Goes on with a trace whose header was written before.
    pub fn go_on(out: W, header: &TraceHeader) -> TraceWriter<W> {
        TraceWriter { out, block: Vec::new(), units: header.units }
    }

    /// Adds a step. Experts may come in any order, and several times; those that there are none of are left out.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn step(&mut self, step: &Step) -> io::Result<()> {
        varint::put(&mut self.block, 0);
        varint::put(&mut self.block, step.tokens);
        for (layer, experts) in step.layers.iter().filter(|(layer, _)| *layer < self.units.layers) {
            let mut experts: Vec<u32> = experts.iter().copied().filter(|e| *e < self.units.experts).collect();
            experts.sort_unstable();
            experts.dedup();
            varint::put(&mut self.block, layer + 1);
            varint::put(&mut self.block, experts.len() as u32);
            let mut next = 0;
            for expert in experts {
                varint::put(&mut self.block, expert - next);
                next = expert + 1;
            }
        }
        if self.block.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes what was held back. To be called in the end.
    ///
    /// # Errors
    ///
    /// The output's.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            // In one piece: a program that ends meanwhile leaves all of it or nothing.
            let length = (self.block.len() as u32).to_le_bytes();
            let hash = XxHash3_64::oneshot(&self.block).to_le_bytes();
            self.out.write_all(&[&length[..], &hash, &self.block].concat())?;
            self.block.clear();
        }
        self.out.flush()
    }
}

impl<W: Write> Drop for TraceWriter<W> {
    /// What was held back is written; who wants to know whether it could be calls [`TraceWriter::flush`].
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// Reads a trace, step by step.
pub struct TraceReader<R: Read> {
    file: String,
    input: R,
    header: TraceHeader,
    /// Where the block began that steps are taken from, and where the next one begins.
    begin: u64,
    next: u64,
    steps: std::vec::IntoIter<Step>,
    cut: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads a trace's header. `file` is its name, for errors.
    ///
    /// # Errors
    ///
    /// [`StoreError::Trace`] if this is no trace, or one of another version.
    pub fn new(file: &str, mut input: R) -> Result<TraceReader<R>, StoreError> {
        let refused = |reason: String| StoreError::Trace { file: file.to_owned(), offset: 0, reason };
        let header = read_header(&mut input).map_err(refused)?;
        let (header, len) = header;
        let steps = Vec::new().into_iter();
        Ok(TraceReader { file: file.to_owned(), input, header, begin: 0, next: len, steps, cut: false })
    }

    /// What the trace is of.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Whether the last block was cut off, once all steps were read.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Reads the next block, `false` at the end.
    fn block(&mut self) -> Result<bool, String> {
        let mut head = [0; 12];
        self.begin = self.next;
        match read_all(&mut self.input, &mut head)? {
            0 => return Ok(false),
            12 => {}
            _ => {
                self.cut = true;
                return Ok(false);
            }
        }
        let [a, b, c, d, hash @ ..] = head;
        let len = u32::from_le_bytes([a, b, c, d]);
        if len == 0 || len > MOST_BLOCK_BYTES {
            return Err(format!("a block of {len} bytes, not 1 to {MOST_BLOCK_BYTES}"));
        }
        let mut content = vec![0; len as usize];
        if read_all(&mut self.input, &mut content)? < content.len() {
            self.cut = true;
            return Ok(false);
        }
        if XxHash3_64::oneshot(&content) != u64::from_le_bytes(hash) {
            return Err("the block's hash is another one: the file is damaged".to_owned());
        }
        self.next = self.begin + 12 + u64::from(len);
        let steps = steps(&content, self.header.units);
        self.steps = steps.ok_or("the block does not hold whole steps of this model")?.into_iter();
        Ok(true)
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Step, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(step) = self.steps.next() {
                return Some(Ok(step));
            }
            if self.cut {
                return None;
            }
            match self.block() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(reason) => {
                    self.cut = true;
                    let (file, offset) = (self.file.clone(), self.begin);
                    return Some(Err(StoreError::Trace { file, offset, reason }));
                }
            }
        }
    }
}

/// Fills `buf` as far as there are bytes.
fn read_all(input: &mut impl Read, buf: &mut [u8]) -> Result<usize, String> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(done)
}

/// The header, and its length.
fn read_header(input: &mut impl Read) -> Result<(TraceHeader, u64), String> {
    /// Up to the name.
    const FIXED: usize = 44;
    let mut bytes = vec![0; FIXED];
    if read_all(input, &mut bytes)? < FIXED || bytes.get(..8) != Some(&MAGIC[..]) {
        return Err("this is no trace of experts; --expert-trace FILE writes one".to_owned());
    }
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.first_chunk());
        word.map_or(0, |word| u32::from_le_bytes(*word))
    };
    let long = |bytes: &[u8], at| u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32;
    let version = word(&bytes, 8);
    if version != VERSION {
        return Err(format!("version {version}; this program reads version {VERSION}"));
    }
    let name = word(&bytes, 40);
    if name > MOST_NAME_BYTES {
        return Err(format!("a model's name of {name} bytes, not at most {MOST_NAME_BYTES}"));
    }
    let end = FIXED + name as usize;
    bytes.resize(end + 8, 0);
    let rest = bytes.get_mut(FIXED..).unwrap_or_default();
    if read_all(input, rest)? < rest.len() {
        return Err("the header is cut off".to_owned());
    }
    if XxHash3_64::oneshot(bytes.get(..end).unwrap_or_default()) != long(&bytes, end) {
        return Err("the header's hash is another one: the file is damaged".to_owned());
    }
    let units = Units { layers: word(&bytes, 12), experts: word(&bytes, 16) };
    if units.count().is_none_or(|count| count == 0 || count > MOST_UNITS) {
        return Err(format!("{} layers of {} experts are no model", units.layers, units.experts));
    }
    let model = String::from_utf8_lossy(bytes.get(FIXED..end).unwrap_or_default()).into_owned();
    let (used, expert_bytes, other_bytes) = (word(&bytes, 20), long(&bytes, 24), long(&bytes, 32));
    Ok((TraceHeader { model, units, used, expert_bytes, other_bytes }, end as u64 + 8))
}

/// The steps of a block; `None` if it is no block of this model.
fn steps(mut content: &[u8], units: Units) -> Option<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    while !content.is_empty() {
        let Some(layer) = varint::take(&mut content)?.checked_sub(1) else {
            steps.push(Step { tokens: varint::take(&mut content)?, layers: Vec::new() });
            continue;
        };
        let count = varint::take(&mut content)?;
        // Each expert takes a byte at least.
        if layer >= units.layers || count > units.experts || count as usize > content.len() {
            return None;
        }
        let mut experts = Vec::with_capacity(count as usize);
        let mut next = 0u32;
        for _ in 0..count {
            let expert = next.checked_add(varint::take(&mut content)?).filter(|e| *e < units.experts)?;
            experts.push(expert);
            next = expert.checked_add(1)?;
        }
        steps.last_mut()?.layers.push((layer, experts));
    }
    Some(steps)
}
