//! The rows of a step on a GPU: generated ones and prompts apart, since they are computed in two ways.
//!
//! In *decode mode* up to eight rows are taken at a time, and a row's bits depend on nothing but the row. In *prompt mode* many
//! rows share what is read of the weights. Which way a position is computed is a matter of what it is, so that whoever computes it
//! again, after a fault or in another step, gets the same.

use crate::{Batch, BatchRow};

/// Rows of one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Side {
    /// Rows of the batch, in its order.
    pub(super) rows: Vec<usize>,
    /// Of these, by their index here, those that want logits.
    pub(super) logits: Vec<u32>,
    /// And which row of the step's logits each is.
    pub(super) places: Vec<usize>,
}

impl Side {
    fn clear(&mut self) {
        self.rows.clear();
        self.logits.clear();
        self.places.clear();
    }

    fn take(&mut self, row: usize, place: Option<usize>) {
        if let Some(place) = place {
            self.logits.push(self.rows.len() as u32);
            self.places.push(place);
        }
        self.rows.push(row);
    }

    /// How many rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Its rows of `width` numbers, out of those of the batch.
    pub(super) fn gather(&self, all: &[f32], width: usize, into: &mut Vec<f32>) {
        into.clear();
        for row in &self.rows {
            into.extend_from_slice(all.get(row * width..(row + 1) * width).unwrap_or_default());
        }
    }

    /// Puts its rows among those of the batch.
    pub(super) fn scatter(&self, own: &[f32], width: usize, all: &mut [f32]) {
        for (row, from) in self.rows.iter().zip(own.chunks_exact(width.max(1))) {
            if let Some(to) = all.get_mut(row * width..(row + 1) * width) {
                to.copy_from_slice(from);
            }
        }
    }
}

/// All rows of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) decode: Side,
    pub(super) prompt: Side,
}

impl Rows {
    pub(super) fn take(&mut self, batch: &Batch) {
        self.decode.clear();
        self.prompt.clear();
        let mut logit_rows = 0;
        for (row, BatchRow { logits, generated, .. }) in batch.rows.iter().enumerate() {
            let place = logits.then_some(logit_rows);
            logit_rows += usize::from(*logits);
            let side = if *generated { &mut self.decode } else { &mut self.prompt };
            side.take(row, place);
        }
    }

    /// Rows of logits.
    pub(super) fn logit_rows(&self) -> usize {
        self.decode.logits.len() + self.prompt.logits.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(generated: bool, logits: bool) -> BatchRow {
        BatchRow { token: 0, sequence: 0, position: 0, logits, generated }
    }

    #[test]
    fn rows_part_by_what_they_are_and_logits_keep_the_order_of_the_batch() {
        let rows = [(true, true), (false, false), (false, true), (true, true), (true, false)];
        let batch = Batch { rows: rows.map(|(g, l)| row(g, l)).to_vec(), sequences: vec![] };
        let mut parted = Rows::default();
        for _ in 0..2 {
            parted.take(&batch);
            let decode = Side { rows: vec![0, 3, 4], logits: vec![0, 1], places: vec![0, 2] };
            let prompt = Side { rows: vec![1, 2], logits: vec![1], places: vec![1] };
            assert_eq!(parted, Rows { decode, prompt });
            assert_eq!(parted.logit_rows(), 3);
        }
        let all: Vec<f32> = (0..10).map(|x| x as f32).collect();
        let (mut own, mut back) = (Vec::new(), vec![0.0; 10]);
        parted.decode.gather(&all, 2, &mut own);
        assert_eq!(own, [0.0, 1.0, 6.0, 7.0, 8.0, 9.0]);
        parted.decode.scatter(&own, 2, &mut back);
        assert_eq!(back, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 6.0, 7.0, 8.0, 9.0]);
    }
}
