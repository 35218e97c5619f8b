//! What kernels know of a step: its rows, the pages of their sequences, and how the rows are taken together.
//!
//! All of it is one buffer of words that is written by one upload, so that one receipt stands for it:
//!
//! ```text
//! header  number of the upload · rows · where spans begin · spans · where blocks begin · blocks · where logits begin · logits
//! rows    [rows] {position, where its sequence's pages begin, where its tables begin, token}
//! pages   for each sequence of the step its pages
//! spans   [spans] {first row, rows}: rows of a sequence whose positions are in one panel of 16
//! blocks  [blocks] {first row, rows}: rows of a sequence whose queries are taken together in prompt mode
//! logits  [logits] row that wants logits
//! tables  [rows][tables] cosines and sines of the row's position (`RopeFrequencies::table`), as f32
//! ```
//!
//! Where something begins is a word's index in the buffer.

use unfazed_kernels::LANES;
use unfazed_kernels::vector::RopeFrequencies;

use crate::{Batch, DeviceError};

/// Words of the header.
pub const HEADER: usize = 8;
/// Words of a row.
const ROW: usize = 4;

/// Access to the step's data for kernels that bind it as `step: array<u32>`.
pub const STEP: &str = "
struct StepRow { position: u32, pages: u32, tables: u32, token: u32 }
struct RowRange { first: u32, count: u32 }
fn step_row(row: u32) -> StepRow {
    let at = 8u + row * 4u;
    return StepRow(step[at], step[at + 1u], step[at + 2u], step[at + 3u]);
}
fn step_span(i: u32) -> RowRange { let at = step[2] + 2u * i; return RowRange(step[at], step[at + 1u]); }
fn step_block(i: u32) -> RowRange { let at = step[4] + 2u * i; return RowRange(step[at], step[at + 1u]); }
fn step_logits(i: u32) -> u32 { return step[step[6] + i]; }
";

/// What steps are cut up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Positions of a page.
    pub page_tokens: usize,
    /// Pages that there are.
    pub pages: usize,
    /// Most rows of a block ([`super::attend_prompt`]).
    pub block_rows: usize,
}

/// How many there are in a step: what grids are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Rows.
    pub rows: u32,
    /// Spans.
    pub spans: u32,
    /// Blocks.
    pub blocks: u32,
    /// Rows that want logits.
    pub logits: u32,
    /// Positions that the row furthest into its sequence sees.
    pub longest: u32,
}

/// Makes the data of steps.
#[derive(Debug)]
pub struct StepData {
    shape: StepShape,
    words: Vec<u32>,
    table: Vec<f32>,
}

impl StepData {
    /// For steps that are cut up so.
    pub fn new(shape: StepShape) -> StepData {
        StepData { shape, words: Vec::new(), table: Vec::new() }
    }

    /// Most words of a step of so many rows, of sequences of so many pages together, with tables of so many numbers a row.
    pub fn most_words(rows: usize, pages: usize, tables: usize) -> usize {
        // A span, a block and a row of logits for each row are the most.
        HEADER + rows * (ROW + 2 + 2 + 1 + tables) + pages
    }

    /// The data of a step, to be uploaded as the `upload`-th; `ropes` are those of the model's layers, one each.
    ///
    /// # Errors
    ///
    /// A row has no sequence, a sequence no page for a row or a page that there is not: kernels do not check it. That pages
    /// which are written are no one else's is not looked at.
    pub fn pack(
        &mut self,
        upload: u32,
        batch: &Batch,
        ropes: &[RopeFrequencies],
    ) -> Result<StepCounts, DeviceError> {
        let rows = batch.rows.len();
        self.words.clear();
        self.words.resize(HEADER + ROW * rows, 0);
        let runs = self.runs(batch)?;
        let ranges = |size: &dyn Fn(usize) -> usize| {
            let mut all: Vec<[usize; 2]> = Vec::new();
            for [first, count] in &runs {
                let mut row = *first;
                while row < first + count {
                    let position = batch.rows.get(row).map_or(0, |row| row.position);
                    let taken = size(position).min(first + count - row);
                    all.push([row, taken]);
                    row += taken;
                }
            }
            all
        };
        let spans = ranges(&|position| LANES - position % LANES);
        let mut blocks = ranges(&|_| self.shape.block_rows.max(1));
        // Those that see most are begun first.
        let sees = |[first, count]: &[usize; 2]| batch.rows.get(first + count - 1).map(|row| row.position);
        blocks.sort_by_key(|block| std::cmp::Reverse(sees(block)));
        let wanted: Vec<usize> =
            (0..rows).filter(|row| batch.rows.get(*row).is_some_and(|r| r.logits)).collect();

        let at_spans = self.extend(spans.as_flattened());
        let at_blocks = self.extend(blocks.as_flattened());
        let at_logits = self.extend(&wanted);
        self.tables(batch, ropes);
        let header =
            [upload as usize, rows, at_spans, spans.len(), at_blocks, blocks.len(), at_logits, wanted.len()];
        for (word, value) in self.words.iter_mut().zip(header) {
            *word = value as u32;
        }
        let longest = batch.rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        let [rows, spans, blocks, logits, longest] =
            [rows, spans.len(), blocks.len(), wanted.len(), longest].map(|n| n as u32);
        Ok(StepCounts { rows, spans, blocks, logits, longest })
    }

    /// What is to be uploaded.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// Puts down rows and pages; returns first row and rows of each sequence of the step.
    fn runs(&mut self, batch: &Batch) -> Result<Vec<[usize; 2]>, DeviceError> {
        let refused = |text: String| Err(DeviceError::Batch(text));
        let mut runs: Vec<[usize; 2]> = Vec::new();
        for part in batch.rows.chunk_by(|a, b| a.sequence == b.sequence && a.position + 1 == b.position) {
            let first = runs.last().map_or(0, |[first, count]| first + count);
            runs.push([first, part.len()]);
            let (Some(start), Some(end)) = (part.first(), part.last()) else { continue };
            let needed = end.position / self.shape.page_tokens + 1;
            let pages = batch.sequences.get(start.sequence).and_then(|pages| pages.get(..needed));
            let Some(pages) = pages else {
                return refused(format!("sequence {} has no {needed} pages", start.sequence));
            };
            if let Some(page) = pages.iter().find(|page| page.0 as usize >= self.shape.pages) {
                return refused(format!("page {} of {}", page.0, self.shape.pages));
            }
            let at = self.words.len();
            self.words.extend(pages.iter().map(|page| page.0));
            let places = self.words.iter_mut().skip(HEADER + ROW * first);
            let values = part.iter().flat_map(|row| [row.position as u32, at as u32, 0, row.token]);
            places.zip(values).for_each(|(place, value)| *place = value);
        }
        Ok(runs)
    }

    /// Puts down the tables of each row, one after the other.
    fn tables(&mut self, batch: &Batch, ropes: &[RopeFrequencies]) {
        for (i, row) in batch.rows.iter().enumerate() {
            let at = self.words.len() as u32;
            if let Some(place) = self.words.get_mut(HEADER + ROW * i + 2) {
                *place = at;
            }
            for rope in ropes {
                self.table.resize(2 * rope.pairs(), 0.0);
                rope.table(row.position, &mut self.table);
                self.words.extend(self.table.iter().map(|x| x.to_bits()));
            }
        }
    }

    fn extend(&mut self, values: &[usize]) -> usize {
        let at = self.words.len();
        self.words.extend(values.iter().map(|value| *value as u32));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchRow, PageId};

    fn data() -> StepData {
        StepData::new(StepShape { page_tokens: 32, pages: 9, block_rows: 8 })
    }

    fn batch(rows: &[(usize, usize)], pages: &[&[u32]]) -> Batch {
        let row = |(i, (sequence, position)): (usize, &(usize, usize))| BatchRow {
            token: 100 + i as u32,
            sequence: *sequence,
            position: *position,
            logits: i % 2 == 1,
            generated: false,
        };
        Batch {
            rows: rows.iter().enumerate().map(row).collect(),
            sequences: pages.iter().map(|pages| pages.iter().map(|page| PageId(*page)).collect()).collect(),
        }
    }

    #[test]
    fn rows_are_taken_together_by_panels_and_by_blocks_and_find_their_pages() {
        let rows: Vec<(usize, usize)> = (0..20).map(|i| (0, 27 + i)).chain([(1, 3)]).collect();
        let mut data = data();
        let counts = data.pack(77, &batch(&rows, &[&[4, 8], &[2]]), &[]).unwrap();
        assert_eq!(counts, StepCounts { rows: 21, spans: 3, blocks: 4, logits: 10, longest: 47 });
        let words = &data.words;
        assert_eq!(words[..2], [77, 21]);
        let part = |header: usize, each: usize| {
            let (at, n) = (words[header] as usize, words[header + 1] as usize);
            words[at..at + n * each].to_vec()
        };
        assert_eq!(part(2, 2), [0, 5, 5, 15, 20, 1]);
        assert_eq!(part(4, 2), [16, 4, 8, 8, 0, 8, 20, 1], "those that see most come first");
        assert_eq!(part(6, 1), (1..21).step_by(2).collect::<Vec<u32>>());
        let row = |i: usize| &words[HEADER + ROW * i..][..ROW];
        assert_eq!((row(6)[0], row(6)[3], row(20)[0], row(20)[3]), (33, 106, 3, 120));
        assert_eq!(words[row(6)[1] as usize..][..2], [4, 8]);
        assert_eq!(words[row(20)[1] as usize], 2);
    }

    #[test]
    fn each_row_finds_the_tables_of_its_position() {
        use unfazed_formats::config::{RopeConfig, RopePairing, RopeScaling};
        let rope = |dimensions| {
            let pairing = RopePairing::Halves;
            RopeFrequencies::new(&RopeConfig { base: 1e4, dimensions, pairing, scaling: RopeScaling::None })
        };
        let ropes = [rope(4), rope(6)];
        let mut data = data();
        let batch = batch(&[(0, 7), (0, 8)], &[&[1]]);
        data.pack(1, &batch, &ropes).unwrap();
        assert!(data.words.len() <= StepData::most_words(2, 1, 10));
        let mut expected = [0.0; 6];
        ropes[1].table(8, &mut expected);
        let at = data.words[HEADER + ROW + 2] as usize + 4;
        assert_eq!(data.words[at..at + 6], expected.map(f32::to_bits));
    }

    #[test]
    fn rows_without_pages_are_refused() {
        for (rows, pages) in
            [(&[(0, 64)][..], &[&[1, 2][..]][..]), (&[(1, 0)], &[&[1]]), (&[(0, 40)], &[&[1, 9]])]
        {
            assert!(matches!(data().pack(0, &batch(rows, pages), &[]), Err(DeviceError::Batch(_))));
        }
    }
}
