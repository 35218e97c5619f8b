//! Which rows go through which expert.

use std::ops::Range;

use unfazed_kernels::activations::tile_parts;
use unfazed_kernels::vector::Choice;

use super::feed_forward::Expert;

/// Rows sorted by expert. An entry is a row at one of its experts; the entries of an expert stand together, rows
/// ascending, experts ascending. The vectors keep their memory from step to step.
#[derive(Debug, Default)]
pub(super) struct Routing {
    /// For each row its experts, `[rows, used]`.
    pub(super) choices: Vec<Choice>,
    pub(super) experts: Vec<Expert>,
    /// Entries of each tile.
    pub(super) tiles: Vec<Range<usize>>,
    /// Row of each entry.
    pub(super) rows: Vec<usize>,
    /// What its output is multiplied by.
    pub(super) weights: Vec<f32>,
    /// Entry of each choice, `[rows, used]`.
    pub(super) entries: Vec<usize>,
    next: Vec<usize>,
}

impl Routing {
    /// One network for all rows, in order, with the tiles given.
    pub(super) fn everyone(&mut self, rows: usize, tiles: &[Range<usize>]) {
        self.rows.clear();
        self.rows.extend(0..rows);
        self.tiles.clear();
        self.tiles.extend_from_slice(tiles);
        self.experts.clear();
    }

    /// Sorts the choices by expert.
    pub(super) fn sort(&mut self, count: usize, used: usize) {
        self.next.clear();
        self.next.resize(count + 1, 0);
        for choice in &self.choices {
            self.next[choice.expert as usize + 1] += 1;
        }
        for expert in 0..count {
            self.next[expert + 1] += self.next[expert];
        }
        self.experts.clear();
        self.tiles.clear();
        for expert in 0..count {
            let entries = self.next[expert]..self.next[expert + 1];
            if entries.is_empty() {
                continue;
            }
            let first = self.tiles.len();
            self.tiles.extend(tile_parts(entries));
            self.experts.push(Expert { index: expert, tiles: first..self.tiles.len() });
        }
        self.rows.resize(self.choices.len(), 0);
        self.weights.resize(self.choices.len(), 0.0);
        self.entries.resize(self.choices.len(), 0);
        for (i, choice) in self.choices.iter().enumerate() {
            let entry = self.next[choice.expert as usize];
            self.next[choice.expert as usize] += 1;
            self.rows[entry] = i / used.max(1);
            self.weights[entry] = choice.weight;
            self.entries[i] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stand_by_expert_and_rows_ascend_within_one() {
        let mut routing = Routing::default();
        for rows in [1, 3, 200, 2] {
            let choice = |i: usize| Choice { expert: ((i / 2 * 5 + i % 2 * 3) % 7) as u32, weight: i as f32 };
            routing.choices = (0..rows * 2).map(choice).collect();
            routing.sort(7, 2);
            let mut seen = 0;
            for expert in &routing.experts {
                for tile in &routing.tiles[expert.tiles.clone()] {
                    assert!(
                        tile.start == seen
                            && !tile.is_empty()
                            && tile.len() <= unfazed_kernels::activations::TILE_ROWS
                    );
                    seen = tile.end;
                    for entry in tile.clone() {
                        let choice = &routing.choices[routing.weights[entry] as usize];
                        assert_eq!(choice.expert as usize, expert.index);
                        assert_eq!(routing.rows[entry], routing.weights[entry] as usize / 2);
                    }
                    assert!(routing.rows[tile.clone()].is_sorted());
                }
            }
            assert_eq!(seen, rows * 2);
            assert!(routing.entries.iter().enumerate().all(|(i, e)| routing.weights[*e] == i as f32));
        }
    }
}
