//! One position into a page.

use super::{KvElement, KvLayout};
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::{Isa, LANES};

/// Puts the `key` and the `value` of a head (both `[head_dim]`) into its `block`, at position `slot` of the page
/// (below `page_tokens`), rounded half to even.
pub fn store<E: KvElement>(
    isa: Isa,
    layout: &KvLayout,
    block: &mut [E],
    slot: usize,
    key: &[f32],
    value: &[f32],
) {
    dispatch(isa, Store { layout, block, slot, key, value });
}

struct Store<'a, E> {
    layout: &'a KvLayout,
    block: &'a mut [E],
    slot: usize,
    key: &'a [f32],
    value: &'a [f32],
}

impl<E: KvElement> Kernel for Store<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (panel, lane) = (self.slot / LANES, self.slot % LANES);
        let (panels, _) = self.block[self.layout.keys(panel)].as_chunks_mut::<LANES>();
        for (key, panels) in self.key.chunks(LANES).zip(panels.chunks_mut(LANES)) {
            let converted = convert::<L, E>(l, key);
            for (dimension, key) in panels.iter_mut().zip(converted) {
                dimension[lane] = key;
            }
        }
        let width = self.layout.width();
        let values = &mut self.block[self.layout.values(panel)][lane * width..(lane + 1) * width];
        let (values, _) = values.as_chunks_mut::<LANES>();
        for (value, out) in self.value.chunks(LANES).zip(values) {
            *out = convert::<L, E>(l, value);
        }
    }
}

/// Up to sixteen values; the others are zero.
#[inline(always)]
fn convert<L: Lanes, E: KvElement>(l: L, x: &[f32]) -> [E; LANES] {
    let mut out = [E::default(); LANES];
    let v = match x.as_array::<LANES>() {
        Some(x) => l.load(x),
        None => l.load_part(x, 0.0),
    };
    E::store(l, v, &mut out);
    out
}
