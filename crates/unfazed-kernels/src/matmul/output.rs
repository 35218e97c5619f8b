//! Where results go.

use std::ops::Range;

use crate::LANES;
use crate::panel::PanelLayout;

/// The results of some panels, row after row of the tile.
pub(crate) struct Output<'a> {
    out: &'a mut [f32],
    stride: usize,
    first_panel: usize,
    rows: usize,
}

impl<'a> Output<'a> {
    /// # Panics
    ///
    /// If `out` does not hold the results of `tile_rows` rows.
    pub(crate) fn new(
        layout: &PanelLayout,
        panels: &Range<usize>,
        tile_rows: usize,
        out: &'a mut [f32],
        stride: usize,
    ) -> Output<'a> {
        let rows = layout.rows().min(panels.end * LANES).saturating_sub(panels.start * LANES);
        let needed = tile_rows.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(rows));
        assert!(tile_rows < 2 || stride >= rows, "a stride of {stride} for {rows} rows");
        assert!(
            tile_rows == 0 || needed.is_some_and(|needed| needed <= out.len()),
            "{tile_rows} x {rows} results in {} places, stride {stride}",
            out.len()
        );
        Output { out, stride, first_panel: panels.start, rows }
    }

    /// Stores the lanes of a panel for row `t` of the tile.
    #[inline(always)]
    pub(crate) fn store(&mut self, t: usize, panel: usize, lanes: &[f32; LANES]) {
        let first = (panel - self.first_panel) * LANES;
        let count = LANES.min(self.rows - first);
        let out = &mut self.out[t * self.stride + first..][..count];
        match <&mut [f32; LANES]>::try_from(&mut *out) {
            // Of a length that the compiler knows: no call.
            Ok(out) => *out = *lanes,
            Err(_) => out.copy_from_slice(&lanes[..count]),
        }
    }
}
