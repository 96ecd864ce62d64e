//! Reads single events and short ranges through a cache: what was decoded for one read serves the next ones.
//!
//! Only what was checked is kept, so a read that finds its unit in the cache needs nothing of the file but the numbers by
//! which it finds the unit. What cannot be had whole is left to [`Sealed::events`], which tells damage event by event.

use std::ops::Range;
use std::sync::Arc;

use super::check::damage_only;
use super::pieces::{PieceSource, corrupt};
use super::{ByteSource, FileCache, Sealed, SealedDecoder, SealedItem, SessionRow, Unit};
use crate::Result;
use crate::format::{EventType, Record};
use crate::ids::Seq;
use crate::limits::SEALED_CHAIN_MAX;

impl<S: ByteSource> Sealed<S> {
    /// As [`events`](Self::events), but units and pieces are looked for in `cache`, the part of this file, and kept there.
    /// A unit's text is always decoded. Not for scans: they would drive out what is in use.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    pub fn events_cached(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        want: &dyn Fn(Seq, EventType<'_>) -> bool,
        cache: &FileCache,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(SealedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        decoder.enter(self);
        let end = range.end.min(session.end());
        let mut next = range.start.max(session.first);
        while next < end {
            let Some(unit) = self.cached_unit(session, next, cache, decoder)? else {
                return self.events(session, next..range.end, want, decoder, visitor);
            };
            let (start, mut walk) = (next, unit.envelopes.walk_from(next).ok_or_else(|| self.missing())?);
            while let Some((seq, record, place)) = walk.step().map_err(|why| corrupt(why, 0))? {
                if seq >= end {
                    break;
                }
                next = seq.next();
                let data = match want(seq, record.event_type) {
                    true => self.data(unit.text.get(), place, Some(cache), decoder),
                    false => Ok(""),
                };
                visitor(match data {
                    Ok(data) => SealedItem::Event(seq, Record { data, ..record }),
                    Err(error) => SealedItem::Unreadable(seq..next, damage_only(error)?.with_seq(seq)),
                })?;
            }
            if next == start {
                return Err(self.missing());
            }
        }
        decoder.known = None;
        Ok(())
    }

    /// The unit that holds `seq`, decoded; `None` if something of it is damaged.
    fn cached_unit(
        &self,
        session: &SessionRow,
        seq: Seq,
        cache: &FileCache,
        decoder: &mut SealedDecoder,
    ) -> Result<Option<Arc<Unit>>> {
        let known = self.unit_about(session, seq).and_then(|index| cache.unit(index));
        if let Some(unit) = known.filter(|unit| unit.envelopes.holds(seq)) {
            return Ok(Some(unit));
        }
        let decoded = self.unit_of(session, seq).and_then(|row| {
            let row = row.ok_or_else(|| self.missing())?;
            let mut unit = cache.spare_unit();
            self.decode_unit(&row, true, decoder, &mut unit)?;
            let unit = Arc::new(unit);
            cache.keep_unit(row.index, &unit);
            Ok(unit)
        });
        match decoded {
            Ok(unit) => Ok(Some(unit)),
            Err(error) => damage_only(error).map(|_told_by_the_scan| None),
        }
    }

    /// The text of a piece.
    pub(super) fn piece<'d>(
        &self,
        id: u32,
        cache: Option<&FileCache>,
        decoder: &'d mut SealedDecoder,
    ) -> Result<&'d str> {
        if let Some(cache) = cache {
            if let Some(known) = cache.piece(id) {
                return Ok(decoder.known.insert(known));
            }
            self.start_near(id, cache, decoder);
        }
        let text = decoder.pieces.read(self, id)?;
        let text = std::str::from_utf8(text).map_err(|_| corrupt("a piece is not UTF-8", 0))?;
        if let Some(cache) = cache {
            cache.keep_piece(id, text);
        }
        Ok(text)
    }

    /// Hands the decoder the nearest piece on the way to `id` that is in the cache: the rest of the way is checked.
    fn start_near(&self, id: u32, cache: &FileCache, decoder: &mut SealedDecoder) {
        let base_of = |id| self.row(id).ok().and_then(|row| row.base);
        let way = std::iter::successors(base_of(id), |&base| base_of(base));
        for base in way.take(usize::from(SEALED_CHAIN_MAX)) {
            if decoder.pieces.holds(base) {
                return;
            }
            if let Some(text) = cache.piece(base) {
                return decoder.pieces.hold(base, &text);
            }
        }
    }
}
