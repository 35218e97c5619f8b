//! Keys and values that outlive this process: each page's record in shared memory, and the pages that an earlier engine
//! left.
//!
//! A page's record stands for the tokens that its keys and values follow from, so it is of use to whoever has the same
//! tokens. What it says is believed only after the page's digest was computed anew.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use unfazed_device::{Device, DeviceError, PageId, PageSpan};
use unfazed_wire::memory::{KvSegment, Mapping, PageRecord, mix};

/// Records of all pages, and what is left of an earlier engine's.
#[derive(Debug)]
pub struct KeptPages {
    mapping: Arc<Mapping>,
    sizes: KvSegment,
    page_tokens: usize,
    /// Free pages that an earlier engine left, by what they hold.
    left: HashMap<Contents, Vec<PageId>>,
    /// The same the other way round.
    contents: HashMap<PageId, Contents>,
}

/// What a page holds: positions after these tokens.
type Contents = (u64, u32);

/// A running account of a sequence's positions: the tokens so far, and the digest of those in its last page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    tokens: u64,
    digest: u64,
}

impl Account {
    fn token(&mut self, token: u32) {
        self.tokens = mix([self.tokens, u64::from(token)]);
    }

    /// A position's digest, which begins a page or goes on with one.
    fn position(&mut self, slot: usize, digest: u64) {
        self.digest = mix([if slot == 0 { 0 } else { self.digest }, digest]);
    }
}

/// Pages of an earlier engine that hold a sequence's first positions.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) pages: Vec<PageId>,
    /// Positions that are in them.
    pub(crate) positions: usize,
    pub(crate) account: Account,
}

/// Positions of a sequence that a step has computed.
pub(crate) struct Written<'s> {
    pub(crate) account: &'s mut Account,
    pub(crate) tokens: &'s [u32],
    pub(crate) pages: &'s [PageId],
    pub(crate) positions: Range<usize>,
}

impl KeptPages {
    /// Reads the records in memory that is laid out as `sizes`, of pages of `page_tokens` positions.
    pub fn new(mapping: Arc<Mapping>, sizes: KvSegment, page_tokens: usize) -> KeptPages {
        let mut left: HashMap<Contents, Vec<PageId>> = HashMap::new();
        let mut contents = HashMap::new();
        for page in 0..u32::try_from(sizes.pages).unwrap_or(u32::MAX) {
            let Some(record) = sizes.read(&mapping, page as usize) else { continue };
            if record.positions as usize <= page_tokens {
                let held = (record.tokens, record.positions);
                left.entry(held).or_default().push(PageId(page));
                contents.insert(PageId(page), held);
            }
        }
        KeptPages { mapping, sizes, page_tokens, left, contents }
    }

    /// Pages that an earlier engine left.
    pub(crate) fn left(&self) -> impl Iterator<Item = PageId> {
        self.contents.keys().copied()
    }

    /// Looks for a sequence's positions, from the first on, and checks what it finds. At most `most` count as found:
    /// the others have to be computed again for their logits.
    pub(crate) fn find<D: Device>(
        &self,
        device: &mut D,
        tokens: &[u32],
        most: usize,
    ) -> Result<Found, DeviceError> {
        self.check(device, tokens, self.candidates(tokens), most)
    }

    /// Checks the first `computed` positions of a running sequence, whose pages are `pages`: how many are still there.
    pub(crate) fn verify<D: Device>(
        &self,
        device: &mut D,
        tokens: &[u32],
        pages: &[PageId],
        computed: usize,
    ) -> Result<Found, DeviceError> {
        let own = pages.iter().take(computed.div_ceil(self.page_tokens.max(1)));
        let record = |page: &PageId| Some((*page, self.sizes.read(&self.mapping, page.0 as usize)?));
        self.check(device, tokens, own.map_while(record).collect(), computed)
    }

    /// Compares pages of a sequence with their records, from its first position on.
    fn check<D: Device>(
        &self,
        device: &mut D,
        tokens: &[u32],
        candidates: Vec<(PageId, PageRecord)>,
        most: usize,
    ) -> Result<Found, DeviceError> {
        let spans: Vec<PageSpan> = candidates
            .iter()
            .map(|&(page, record)| PageSpan { page, slots: 0..self.slots(record) })
            .collect();
        let digests = device.digests(&spans)?;
        let mut digests = digests.into_iter();
        let mut found = Found::default();
        for (page, record) in candidates {
            let mut account = found.account;
            let start = found.positions;
            let end = start + self.slots(record);
            if start >= most {
                break;
            }
            let mut counted = account;
            for (slot, token) in tokens.get(start..end).unwrap_or_default().iter().enumerate() {
                let Some(digest) = digests.next() else { return Ok(found) };
                account.token(*token);
                account.position(slot, digest);
                if start + slot < most {
                    counted = account;
                }
            }
            if (account.tokens, account.digest) != (record.tokens, record.digest) {
                tracing::warn!(page = page.0, "a KV page is not what was stored in it: it is computed again");
                break;
            }
            found.pages.push(page);
            (found.positions, found.account) = (end.min(most), counted);
        }
        device.restore(&found.pages)?;
        Ok(found)
    }

    /// How many positions a record speaks of: what is in shared memory is not trusted.
    fn slots(&self, record: PageRecord) -> usize {
        (record.positions as usize).min(self.page_tokens)
    }

    /// Pages whose records fit a sequence's tokens, from its first position on without a gap.
    fn candidates(&self, tokens: &[u32]) -> Vec<(PageId, PageRecord)> {
        let mut candidates = Vec::new();
        let mut account = Account::default();
        for page_tokens in tokens.chunks(self.page_tokens.max(1)) {
            let mut best = None;
            for (slot, token) in (1u32..).zip(page_tokens) {
                account.token(*token);
                let page = self.left.get(&(account.tokens, slot)).and_then(|pages| pages.first());
                best = page.map(|page| (*page, slot)).or(best);
            }
            let Some((page, slots)) = best else { break };
            let Some(record) = self.sizes.read(&self.mapping, page.0 as usize) else { break };
            candidates.push((page, record));
            if (slots as usize) < self.page_tokens {
                break;
            }
        }
        candidates
    }

    /// These pages have a new owner, who writes them: what they held is forgotten, but for those with its first `computed`
    /// positions.
    pub(crate) fn reserved(&mut self, pages: &[PageId], computed: usize) {
        for page in pages {
            let Some(held) = self.contents.remove(page) else { continue };
            if let Some(same) = self.left.get_mut(&held) {
                same.retain(|other| other != page);
            }
        }
        for page in pages.iter().skip(computed.div_ceil(self.page_tokens.max(1))) {
            self.sizes.write(&self.mapping, page.0 as usize, PageRecord::default());
        }
    }

    /// Whether an earlier engine left a page and nobody had it since.
    pub(crate) fn has(&self, page: PageId) -> bool {
        self.contents.contains_key(&page)
    }

    /// Writes the records of all pages that a step has written.
    pub(crate) fn commit<D: Device>(
        &self,
        device: &mut D,
        written: Vec<Written<'_>>,
    ) -> Result<(), DeviceError> {
        let page_tokens = self.page_tokens.max(1);
        let mut spans = Vec::new();
        for sequence in &written {
            spans
                .extend(pieces(&sequence.positions, page_tokens).filter_map(|(index, slots)| {
                    Some(PageSpan { page: *sequence.pages.get(index)?, slots })
                }));
        }
        let digests = device.digests(&spans)?;
        let (mut digests, mut spans) = (digests.into_iter(), spans.into_iter());
        for Written { account, tokens, positions, .. } in written {
            let mut tokens = tokens.get(positions.clone()).unwrap_or_default().iter();
            for (_, slots) in pieces(&positions, page_tokens) {
                let Some(span) = spans.next() else { return Ok(()) };
                for ((slot, token), digest) in slots.clone().zip(&mut tokens).zip(&mut digests) {
                    account.token(*token);
                    account.position(slot, digest);
                }
                let positions = u32::try_from(slots.end).unwrap_or(0);
                let record = PageRecord { positions, tokens: account.tokens, digest: account.digest };
                self.sizes.write(&self.mapping, span.page.0 as usize, record);
            }
        }
        Ok(())
    }
}

/// Positions cut up by pages: each page's index in its sequence, and its slots.
fn pieces(
    positions: &Range<usize>,
    page_tokens: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
    let Range { start, end } = *positions;
    (start / page_tokens..end.div_ceil(page_tokens)).map(move |index| {
        let first = index * page_tokens;
        (index, start.max(first) - first..end.min(first + page_tokens) - first)
    })
}
