//! Reads sealed files.
//!
//! Nothing is read before it is asked for: opening costs the header and the footer. Each row and each frame is checked
//! before it is believed, and what is damaged is an error for the events that need it, while reading goes on behind it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::check::damage_only;
use super::envelope::{DataPlace, Envelopes, Splices, Step, Walk};
use super::pieces::{PieceReader, PieceSource, corrupt, decode_error, stored_bytes};
use super::rows::{FOOTER_BYTES, FileMark, Footer, Frame, PIECE_ROW_BYTES, PieceRow, SessionRow, UnitRow};
use super::{ByteSource, FileCache, SealedHeader};
use crate::format::{EventType, FrameKind, Record, SEGMENT_HEADER_BYTES, StoreId, crc32, varint};
use crate::ids::{Position, Seq};
use crate::limits::{FRAME_PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, SEALED_SPAN_BYTES_MIN};
use crate::{Error, ErrorKind, Result};

/// A sealed file. Shared by any number of threads, each with a [`SealedDecoder`] of its own.
#[derive(Debug)]
pub struct Sealed<S> {
    pub(super) source: S,
    pub(super) header: SealedHeader,
    pub(super) footer: Footer,
    footer_crc: u32,
}

/// What reading needs besides the file; reused from read to read and from file to file.
#[derive(Debug)]
pub struct SealedDecoder {
    pub(super) pieces: PieceReader,
    /// The file whose piece is kept.
    file: Option<(StoreId, FileMark, u32)>,
    data: String,
    /// The piece that was found in a cache last.
    pub(super) known: Option<Arc<str>>,
    /// Buffers for reading a range.
    unit: Unit,
}

/// A decoded unit, to be cached or reused by the caller.
#[derive(Debug, Default)]
pub struct Unit {
    pub(super) envelopes: Envelopes,
    pub(super) text: UnitText,
}

/// A unit's text, once it was loaded. Its buffer is used again for the next unit.
#[derive(Debug, Default)]
pub(super) struct UnitText {
    buffer: String,
    is_loaded: bool,
}

impl UnitText {
    pub(super) fn get(&self) -> Option<&str> {
        self.is_loaded.then_some(&*self.buffer)
    }
}

/// What a version of versioned data takes in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredPiece {
    /// Its number in the file: equal versions have the same.
    pub id: u32,
    /// What it takes in the file, however many events refer to it, in bytes.
    pub stored_bytes: u64,
    /// Whether it is stored as the difference to another one.
    pub is_difference: bool,
}

impl StoredPiece {
    pub(super) fn of(id: u32, row: &PieceRow) -> Self {
        let stored_bytes = u64::from(row.stored_bytes) + PIECE_ROW_BYTES as u64;
        Self { id, stored_bytes, is_difference: row.base.is_some() }
    }
}

/// What a create, remove or vocabulary frame said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlRecord<'a> {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Its subject: a session key.
    pub subject: u64,
    /// Its payload.
    pub payload: &'a [u8],
}

/// What reading a range of events comes upon.
#[derive(Debug)]
pub enum SealedItem<'a> {
    /// An event. Its data is empty if it was not wanted.
    Event(Seq, Record<'a>),
    /// Events whose bytes are damaged.
    Unreadable(Range<Seq>, Error),
}

/// Where a part of a range of events stands.
pub(super) enum Part {
    /// In a unit.
    Unit(UnitRow, Range<Seq>),
    /// In none: its row is damaged or missing.
    Lost(Range<Seq>, Error),
}

impl<S: ByteSource> Sealed<S> {
    /// Opens a file: checks its header and its footer.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if either is damaged or the file is cut, [`ErrorKind::Unsupported`] for a file of a newer
    /// release, [`ErrorKind::Io`].
    pub fn open(source: S) -> Result<Self> {
        let head_bytes = narrow(SEGMENT_HEADER_BYTES);
        let header = SealedHeader::decode(&stored_bytes(&source, 0, head_bytes)?)?
            .ok_or_else(|| corrupt("its header is damaged", 0))?;
        let offset = source.len().saturating_sub(FOOTER_BYTES as u64);
        let footer = stored_bytes(&source, offset, narrow(FOOTER_BYTES))?;
        let (footer, footer_crc) = Footer::decode(header.mark(), source.len(), &footer)
            .ok_or_else(|| corrupt("its footer is damaged", offset))?;
        Ok(Self { source, header, footer, footer_crc })
    }

    /// What the file says about itself.
    #[must_use]
    pub fn header(&self) -> &SealedHeader {
        &self.header
    }

    /// Where the last segment that the file covers ends, as the next one's header names it.
    #[must_use]
    pub fn covered_to(&self) -> Position {
        Position { segment: self.header.name.last, offset: self.footer.covered_to }
    }

    /// CRC of the footer; it changes with any byte of the file that an event needs.
    #[must_use]
    pub fn footer_crc(&self) -> u32 {
        self.footer_crc
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.footer.file_bytes
    }

    /// How many sessions have events here.
    #[must_use]
    pub fn session_count(&self) -> u32 {
        self.footer.session_count
    }

    /// How many events there are.
    #[must_use]
    pub fn event_count(&self) -> u64 {
        self.footer.event_count
    }

    /// The summary that was stored with a session.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged, [`ErrorKind::Io`].
    pub fn summary(&self, session: &SessionRow) -> Result<Cow<'_, [u8]>> {
        let place = session.summary;
        if u64::from(place.bytes) > RECORD_BYTES_MAX {
            return Err(corrupt("a summary is longer than its limit", place.offset));
        }
        let summary = stored_bytes(&self.source, place.offset, place.bytes)?;
        if crc32(&summary) != place.crc {
            return Err(corrupt("a summary is damaged", place.offset));
        }
        Ok(summary)
    }

    /// Shows the control records, in the order in which they were added.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are damaged, [`ErrorKind::Io`], and those of the visitor.
    pub fn control(
        &self,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(ControlRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        decoder.enter(self);
        for id in 0..self.footer.control_count {
            let mut rest = decoder.pieces.read(self, id)?;
            while !rest.is_empty() {
                let record = take_control(&mut rest)
                    .ok_or_else(|| corrupt("malformed control records", self.footer.piece_row_offset(id)))?;
                visitor(record)?;
            }
        }
        Ok(())
    }

    /// Decodes a unit's envelopes, and its text if that is wanted.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged, [`ErrorKind::Limit`] when memory is short, [`ErrorKind::Io`].
    pub fn decode_unit(
        &self,
        row: &UnitRow,
        want_text: bool,
        decoder: &mut SealedDecoder,
        unit: &mut Unit,
    ) -> Result<()> {
        unit.text.is_loaded = false;
        self.load_envelopes(row, decoder, &mut unit.envelopes)?;
        let checked = unit.envelopes.check(row.first, row.count, row.text.text_bytes);
        checked.map_err(|why| corrupt(why, row.offset))?;
        if want_text { self.load_text(row, decoder, &mut unit.text) } else { Ok(()) }
    }

    /// The piece that is all of an event's data; `None` for an event whose data is not one version of versioned data.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the piece's row makes no sense, [`ErrorKind::Io`].
    pub fn piece_of(&self, unit: &Unit, seq: Seq) -> Result<Option<StoredPiece>> {
        let step = unit.envelopes.walk_from(seq).and_then(|mut walk| walk.step().ok().flatten());
        let Some((_, _, DataPlace::Piece(id))) = step else {
            return Ok(None);
        };
        Ok(Some(StoredPiece::of(id, &self.row(id)?)))
    }

    /// Shows the session's events in `range`, in order. Data is looked up only for the events that `want` names; a unit's
    /// text is decoded only if one of them has its data there.
    ///
    /// # Errors
    /// Those of the visitor, [`ErrorKind::Io`], and [`ErrorKind::Limit`] when memory is short. Damage is no error: it is
    /// shown to the visitor.
    pub fn events(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        want: &dyn Fn(Seq, EventType<'_>) -> bool,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(SealedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        decoder.enter(self);
        let mut unit = std::mem::take(&mut decoder.unit);
        let read = self.events_through(session, range, want, decoder, &mut unit, visitor);
        decoder.unit = unit;
        read
    }

    fn events_through(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        want: &dyn Fn(Seq, EventType<'_>) -> bool,
        decoder: &mut SealedDecoder,
        unit: &mut Unit,
        visitor: &mut dyn FnMut(SealedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        self.each_part(session, range, &mut |part| match part {
            Part::Unit(row, part) => self.unit_events(&row, part, want, decoder, unit, visitor),
            Part::Lost(lost, error) => visitor(SealedItem::Unreadable(lost, error)),
        })
    }

    /// Shows in which units the session's events in `range` stand, in order, and which stand in none that can be found.
    pub(super) fn each_part(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        visit: &mut dyn FnMut(Part) -> Result<()>,
    ) -> Result<()> {
        let end = range.end.min(session.end());
        let mut next = range.start.max(session.first);
        let mut damage = None;
        for index in self.units_from(session, next)? {
            if next >= end {
                break;
            }
            let row = match self.unit_row(index) {
                Ok(row) if row.end() <= next => continue,
                Ok(row) => row,
                Err(error) => {
                    damage = Some(damage_only(error)?);
                    continue;
                }
            };
            if row.first > next {
                let error = damage.take().unwrap_or_else(|| self.missing());
                visit(Part::Lost(next..row.first.min(end), error))?;
            }
            let part = next.max(row.first)..row.end().min(end);
            next = part.end.max(next);
            if part.start < part.end {
                visit(Part::Unit(row, part))?;
            }
        }
        if next < end {
            let error = damage.unwrap_or_else(|| self.missing());
            visit(Part::Lost(next..end, error))?;
        }
        Ok(())
    }

    fn unit_events(
        &self,
        row: &UnitRow,
        part: Range<Seq>,
        want: &dyn Fn(Seq, EventType<'_>) -> bool,
        decoder: &mut SealedDecoder,
        unit: &mut Unit,
        visitor: &mut dyn FnMut(SealedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        unit.text.is_loaded = false;
        let Unit { envelopes, text } = unit;
        if let Err(error) = self.load_envelopes(row, decoder, envelopes) {
            return visitor(SealedItem::Unreadable(part, damage_only(error)?));
        }
        let mut next = part.start;
        let mut walk = Walk::new(&envelopes.bytes, row.first, row.count);
        while next < part.end {
            let step = walk.as_mut().map_err(|why| *why).and_then(|walk| walk.step());
            let (seq, record, place) = match step {
                Ok(Some(step)) => step,
                Ok(None) => break,
                Err(why) => {
                    let error = corrupt(why, row.offset);
                    return visitor(SealedItem::Unreadable(next..part.end, error));
                }
            };
            if seq < next {
                continue;
            }
            next = seq.next();
            let data =
                if want(seq, record.event_type) { self.data_in(row, text, place, decoder) } else { Ok("") };
            match data {
                Ok(data) => visitor(SealedItem::Event(seq, Record { data, ..record }))?,
                Err(error) => {
                    let error = damage_only(error)?.with_seq(seq);
                    visitor(SealedItem::Unreadable(seq..next, error))?;
                }
            }
        }
        Ok(())
    }

    /// Data at `place` in a unit whose text is loaded when it is first needed.
    pub(super) fn data_in<'a>(
        &self,
        row: &UnitRow,
        text: &'a mut UnitText,
        place: DataPlace<'_>,
        decoder: &'a mut SealedDecoder,
    ) -> Result<&'a str> {
        if text.get().is_none() && !matches!(place, DataPlace::Piece(_)) {
            self.load_text(row, decoder, text)?;
        }
        self.data(text.get(), place, None, decoder)
    }

    /// Data at `place`, given the text of the event's unit.
    pub(super) fn data<'a>(
        &self,
        text: Option<&'a str>,
        place: DataPlace<'_>,
        cache: Option<&FileCache>,
        decoder: &'a mut SealedDecoder,
    ) -> Result<&'a str> {
        let inline = |at: usize, bytes: usize| {
            let text =
                text.ok_or_else(|| Error::new(ErrorKind::Invalid, "read event: its unit has no text"))?;
            text.get(at..at + bytes).ok_or_else(|| corrupt("an event's data is beyond its unit's text", 0))
        };
        match place {
            DataPlace::Inline { at, bytes } => inline(at, bytes),
            DataPlace::Piece(id) => self.piece(id, cache, decoder),
            DataPlace::Spliced { at, bytes, splices } => {
                let mut data = std::mem::take(&mut decoder.data);
                let put = self.splice(inline(at, bytes)?, splices, cache, decoder, &mut data);
                decoder.data = data;
                put.map(|()| &*decoder.data)
            }
        }
    }

    /// Puts the pieces back into `rest`, what is left of an event's data; replaces what `data` holds by the result.
    fn splice(
        &self,
        rest: &str,
        splices: Splices<'_>,
        cache: Option<&FileCache>,
        decoder: &mut SealedDecoder,
        data: &mut String,
    ) -> Result<()> {
        data.clear();
        let mut at = 0;
        for splice in splices.iter() {
            let row = self.row(splice.piece)?;
            let bytes = usize::try_from(row.text_bytes).unwrap_or(usize::MAX);
            let total = (data.as_str().len() as u64).saturating_add(bytes as u64);
            if row.base.is_some() || bytes < SEALED_SPAN_BYTES_MIN || total > RECORD_BYTES_MAX {
                return Err(corrupt("an event is put together from what is no payload", row.offset));
            }
            let gap = rest.get(at..at + splice.gap);
            data.push_str(gap.ok_or_else(|| corrupt("a splice within a character", row.offset))?);
            at += splice.gap;
            data.push_str(self.piece(splice.piece, cache, decoder)?);
        }
        data.push_str(&rest[at..]);
        Ok(())
    }

    fn load_envelopes(
        &self,
        row: &UnitRow,
        decoder: &mut SealedDecoder,
        envelopes: &mut Envelopes,
    ) -> Result<()> {
        self.decode_frame(row.offset, row.envelope, FRAME_PAYLOAD_BYTES_MAX, decoder, &mut envelopes.bytes)
    }

    fn load_text(&self, row: &UnitRow, decoder: &mut SealedDecoder, text: &mut UnitText) -> Result<()> {
        let mut bytes = std::mem::take(&mut text.buffer).into_bytes();
        let offset = row.text_offset();
        self.decode_frame(offset, row.text, RECORD_BYTES_MAX, decoder, &mut bytes)?;
        let decoded = String::from_utf8(bytes).map_err(|_| corrupt("a unit's text is not UTF-8", offset))?;
        *text = UnitText { buffer: decoded, is_loaded: true };
        Ok(())
    }

    fn decode_frame(
        &self,
        offset: u64,
        frame: Frame,
        bytes_max: u64,
        decoder: &mut SealedDecoder,
        text: &mut Vec<u8>,
    ) -> Result<()> {
        text.clear();
        if u64::from(frame.text_bytes) > bytes_max {
            return Err(corrupt("a unit is longer than its limit", offset));
        }
        let stored = self.frame_bytes(offset, frame)?;
        if frame.text_bytes == 0 && stored.is_empty() {
            return Ok(());
        }
        let bytes = usize::try_from(frame.text_bytes).unwrap_or(usize::MAX);
        let decoded = decoder.pieces.decoder.decode(&stored, &[], bytes, text);
        decoded.map_err(|fault| decode_error(fault, offset))
    }

    /// Whether the header's bytes are exactly what the header demands.
    pub(super) fn check_header(&self) -> Result<()> {
        let stored = stored_bytes(&self.source, 0, narrow(SEGMENT_HEADER_BYTES))?;
        if *stored == self.header.encode() {
            return Ok(());
        }
        Err(corrupt("its header is damaged in part", 0))
    }

    /// A unit's frame as it is stored, checked.
    pub(super) fn frame_bytes(&self, offset: u64, frame: Frame) -> Result<Cow<'_, [u8]>> {
        let stored = stored_bytes(&self.source, offset, frame.stored_bytes)?;
        if crc32(&stored) != frame.crc {
            return Err(corrupt("a unit is damaged", offset));
        }
        Ok(stored)
    }
}

impl SealedDecoder {
    /// A new decoder.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when there is no memory for it.
    pub fn new() -> Result<Self> {
        let (file, data, known, unit) = Default::default();
        Ok(Self { pieces: PieceReader::new()?, file, data, known, unit })
    }

    pub(super) fn enter<S: ByteSource>(&mut self, file: &Sealed<S>) {
        let file = Some((file.header.store_id, file.header.mark(), file.footer_crc));
        if self.file != file {
            self.pieces.forget();
            self.file = file;
        }
    }
}

impl Unit {
    /// Where the data of each event is.
    pub(super) fn places(&self) -> impl Iterator<Item = (Seq, DataPlace<'_>)> {
        self.steps().map(|(seq, _, place)| (seq, place))
    }

    /// The events without their data, and where that is.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        let mut walk = self.envelopes.walk();
        std::iter::from_fn(move || walk.as_mut()?.step().ok()?)
    }

    /// Memory held, in bytes, to account for in a cache.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.envelopes.memory_bytes() + self.text.buffer.capacity()
    }
}

fn take_control<'a>(rest: &mut &'a [u8]) -> Option<ControlRecord<'a>> {
    let (&kind, after) = rest.split_first()?;
    let mut after = after;
    let kind = FrameKind::from_byte(kind)?;
    let subject = varint::take(&mut after)?;
    let bytes = usize::try_from(varint::take(&mut after)?).ok()?;
    let (payload, after) = after.split_at_checked(bytes)?;
    *rest = after;
    Some(ControlRecord { kind, subject, payload })
}

/// A constant of the layout; all of them are small.
pub(super) const fn narrow(bytes: usize) -> u32 {
    assert!(bytes <= 4096);
    #[expect(clippy::cast_possible_truncation, reason = "checked above")]
    {
        bytes as u32
    }
}
