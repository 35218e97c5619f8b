//! Rows of rounded activations.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use crate::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

use super::quantise::{Grain, quantise_block};

/// Sums of each 16 of 32 quants: of those that are the first two of a four, and of the others. Every sum that a kernel wants
/// is made of these.
pub(crate) type Halves = [[i16; 2]; 2];

/// A table of rows x columns of int8 activations with their scales, or of f32 ones. The buffers only grow, so a
/// step after the first largest one allocates nothing.
#[derive(Default)]
pub struct QuantisedRows {
    shape: Shape,
    rows: usize,
    quants: Vec<i8>,
    scales: Vec<f32>,
    /// One for each 32 quants.
    halves: Vec<Halves>,
    floats: Vec<f32>,
}

#[derive(Clone, Copy)]
struct Shape {
    grain: Grain,
    columns: usize,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { grain: Grain::Float, columns: 0 }
    }
}

impl Shape {
    /// Lengths of quants, scales, halves and floats of `columns` columns.
    fn lengths(self, columns: usize) -> [usize; 4] {
        match self.grain.block() {
            Some(block) => [columns, columns / block, columns / 32, 0],
            None => [0, 0, 0, columns],
        }
    }

    /// Whether the columns begin and end with a block.
    fn divides(self, columns: usize) -> bool {
        columns.is_multiple_of(self.grain.block().unwrap_or(1))
    }
}

impl QuantisedRows {
    /// An empty table.
    pub fn new() -> QuantisedRows {
        QuantisedRows::default()
    }

    /// Makes this a table of `rows` x `columns`. What it holds then is unspecified: fill each row that is read.
    ///
    /// # Panics
    ///
    /// If the columns are not whole blocks of the grain, or rows x columns overflows.
    pub fn resize(&mut self, grain: Grain, rows: usize, columns: usize) {
        let shape = Shape { grain, columns };
        assert!(shape.divides(columns), "{columns} columns are not whole blocks of {grain:?}");
        let [quants, scales, halves, floats] = shape.lengths(columns).map(|len| len.saturating_mul(rows));
        self.quants.resize(quants.max(self.quants.len()), 0);
        self.scales.resize(scales.max(self.scales.len()), 0.0);
        self.halves.resize(halves.max(self.halves.len()), Halves::default());
        self.floats.resize(floats.max(self.floats.len()), 0.0);
        (self.shape, self.rows) = (shape, rows);
    }

    /// How many activations share a scale.
    pub fn grain(&self) -> Grain {
        self.shape.grain
    }

    /// Rows of the table.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the table.
    pub fn columns(&self) -> usize {
        self.shape.columns
    }

    /// The int8 activations of a row, and their scales. Empty for floats.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn quantised(&self, row: usize) -> (&[i8], &[f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let [quants, scales, ..] = self.shape.lengths(self.shape.columns);
        (&self.quants[row * quants..][..quants], &self.scales[row * scales..][..scales])
    }

    /// Sums of the int8 activations of a row. Empty for floats.
    pub(crate) fn halves(&self, row: usize) -> &[Halves] {
        let [_, _, halves, _] = self.shape.lengths(self.shape.columns);
        &self.halves[row * halves..][..halves]
    }

    /// The f32 activations of a row. Empty for int8.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn floats(&self, row: usize) -> &[f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let [.., floats] = self.shape.lengths(self.shape.columns);
        &self.floats[row * floats..][..floats]
    }

    /// Rounds `x` into a row.
    ///
    /// # Panics
    ///
    /// If there is no such row or `x` has not the table's columns.
    pub fn quantise(&mut self, isa: Isa, row: usize, x: &[f32]) {
        let columns = 0..self.shape.columns;
        // SAFETY: `self` is borrowed exclusively, so there is no other slot.
        unsafe { self.shared().slot(row, columns) }.quantise(isa, x);
    }

    /// A view through which several threads fill rows, or parts of rows, at once.
    pub fn shared(&mut self) -> SharedRows<'_> {
        SharedRows {
            shape: self.shape,
            rows: self.rows,
            quants: self.quants.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            halves: self.halves.as_mut_ptr(),
            floats: self.floats.as_mut_ptr(),
            table: PhantomData,
        }
    }
}

/// A view of [`QuantisedRows`] that threads share to fill it.
#[derive(Clone, Copy)]
pub struct SharedRows<'a> {
    shape: Shape,
    rows: usize,
    quants: *mut i8,
    scales: *mut f32,
    halves: *mut Halves,
    floats: *mut f32,
    table: PhantomData<&'a mut QuantisedRows>,
}

// SAFETY: the view is a unique borrow of plain numbers; all access goes through `slot`, whose caller promises that
// no two slots overlap.
unsafe impl Send for SharedRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// Rows of the table.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the table.
    pub fn columns(&self) -> usize {
        self.shape.columns
    }

    /// The place of some columns of a row. They must begin and end with a block of the grain.
    ///
    /// # Safety
    ///
    /// While the slot lives, no other slot may exist, on any thread, that shares a column of the same row.
    ///
    /// # Panics
    ///
    /// If the table has no such place, or a block is cut.
    pub unsafe fn slot(&self, row: usize, columns: Range<usize>) -> RowSlot<'a> {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.shape.columns);
        assert!(self.shape.divides(columns.start) && self.shape.divides(columns.end), "a block is cut");
        let per_row = self.shape.lengths(self.shape.columns);
        let start = self.shape.lengths(columns.start);
        let len = self.shape.lengths(columns.len());
        let at = |i: usize| row * per_row[i] + start[i];
        // SAFETY: row and columns were checked against the shape that `resize` sized the buffers for, and the
        // view borrows the buffers for 'a. The caller promises that the parts are no one else's.
        unsafe {
            RowSlot {
                block: self.shape.grain.block(),
                quants: std::slice::from_raw_parts_mut(self.quants.add(at(0)), len[0]),
                scales: std::slice::from_raw_parts_mut(self.scales.add(at(1)), len[1]),
                halves: std::slice::from_raw_parts_mut(self.halves.add(at(2)), len[2]),
                floats: std::slice::from_raw_parts_mut(self.floats.add(at(3)), len[3]),
            }
        }
    }
}

/// The place of some columns of a row.
pub struct RowSlot<'a> {
    block: Option<usize>,
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    halves: &'a mut [Halves],
    floats: &'a mut [f32],
}

impl RowSlot<'_> {
    /// Rounds `x` into the slot (or copies it, for floats).
    ///
    /// # Panics
    ///
    /// If `x` has not the slot's columns.
    pub fn quantise(&mut self, isa: Isa, x: &[f32]) {
        match self.block {
            Some(block) => {
                assert_eq!(x.len(), self.quants.len(), "columns of the slot");
                let RowSlot { quants, scales, halves, .. } = self;
                dispatch(isa, Quantise { block, x, quants, scales, halves });
            }
            None => self.floats.copy_from_slice(x),
        }
    }
}

struct Quantise<'a> {
    block: usize,
    x: &'a [f32],
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    halves: &'a mut [Halves],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let blocks = self.x.chunks_exact(self.block).zip(self.quants.chunks_exact_mut(self.block));
        for ((x, quants), scale) in blocks.zip(self.scales) {
            *scale = quantise_block(l, x, quants);
        }
        for (quants, halves) in self.quants.as_chunks::<32>().0.iter().zip(self.halves) {
            *halves = sums_of_halves(quants);
        }
    }
}

#[inline(always)]
fn sums_of_halves(quants: &[i8; 32]) -> Halves {
    let mut sums = Halves::default();
    for (i, &quant) in quants.iter().enumerate() {
        sums[i / 16][i % 4 / 2] += i16::from(quant);
    }
    sums
}
