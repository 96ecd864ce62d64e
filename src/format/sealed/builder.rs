//! Builds a sealed file in one stream.
//!
//! First what the whole file needs to know: control records, and each event's data once, to find what repeats. Then the
//! sessions, in ascending order of their keys, and their events in order. Memory is that of one unit, of one version of
//! versioned data, of the directories, of a buffer of summaries, and of tables with a fixed number of entries.

use super::envelope::{DataDraft, EnvelopeWriter, Envelopes, Splice};
use super::output::Output;
use super::pieces::{Chain, PieceWriter, too_large};
use super::rows::{FOOTER_BYTES, FileMark, Footer, Frame, SessionRow, Stretch, UnitRow};
use super::spans::{Span, SpanTable, print_of, spans};
use super::{SealedHeader, SealedSink};
use crate::format::compress::FrameEncoder;
use crate::format::{EventType, FrameKind, Record, crc32, varint};
use crate::ids::{Position, Seq, SessionKey};
use crate::limits::{
    EVENTS_PER_SESSION_MAX, RECORD_BYTES_MAX, SEALED_CONTROL_PIECE_BYTES, SEALED_UNIT_ENVELOPE_BYTES,
    SEALED_UNIT_EVENTS_MAX, SEALED_UNIT_TEXT_BYTES, SEALED_WRITE_BUFFER_BYTES,
};
use crate::{Error, ErrorKind, Result};

/// Level of the frames of units: measured in [`docs`](crate::format::docs), section 10.6.
const UNIT_LEVEL: i32 = 5;

/// Builds one sealed file. An error leaves it useless: the sink's content is to be thrown away.
#[derive(Debug)]
pub struct SealedBuilder<W> {
    out: Output<W>,
    mark: FileMark,
    header: SealedHeader,
    versioned_types: Vec<u32>,
    control: Vec<u8>,
    control_count: Option<u32>,
    spans: SpanTable,
    pieces: PieceWriter,
    unit: UnitWriter,
    session: Option<OpenSession>,
    sessions: Vec<SessionRow>,
    /// Summaries of the last sessions, gathered so that opening a store finds them side by side.
    summaries: Vec<u8>,
    /// How many sessions have theirs in the file.
    summaries_written: usize,
    event_count: u64,
}

/// What became of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SealedStats {
    /// Length of the file, in bytes.
    pub file_bytes: u64,
    /// CRC of the footer, which covers the directories and through them every byte that events need.
    pub footer_crc: u32,
    /// Sessions.
    pub session_count: u32,
    /// Units.
    pub unit_count: u32,
    /// Events.
    pub event_count: u64,
    /// Texts that are stored once: versions, repeated payloads, control records.
    pub piece_count: u32,
    /// Stored bytes of all envelopes.
    pub envelope_bytes: u64,
    /// Stored bytes of all data that is in no piece.
    pub text_bytes: u64,
    /// Stored bytes of all pieces.
    pub piece_bytes: u64,
}

#[derive(Debug)]
struct OpenSession {
    key: SessionKey,
    first: Seq,
    next: Seq,
    first_unit: u32,
    versions: Chain,
}

impl<W: SealedSink> SealedBuilder<W> {
    /// Begins a file in an empty sink. Data of events with one of `versioned_types` is taken for a version of the one
    /// before: it is stored as what changed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the sink is not empty, [`ErrorKind::Limit`] when memory is short, [`ErrorKind::Io`].
    pub fn new(sink: W, header: SealedHeader, versioned_types: &[u32]) -> Result<Self> {
        if sink.len() != 0 {
            return Err(misuse("the sink is not empty"));
        }
        let mut out = Output::new(sink);
        out.append(&header.encode())?;
        let mark = header.mark();
        Ok(Self {
            out,
            mark,
            header,
            versioned_types: versioned_types.to_vec(),
            control: Vec::new(),
            control_count: None,
            spans: SpanTable::default(),
            pieces: PieceWriter::new(mark)?,
            unit: UnitWriter::new()?,
            session: None,
            sessions: Vec::new(),
            summaries: Vec::new(),
            summaries_written: 0,
            event_count: 0,
        })
    }

    /// Adds a control record (a create, remove or vocabulary frame). They come out in the same order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] once a session has begun; [`ErrorKind::Limit`] and [`ErrorKind::Io`].
    // Format: section 10.3.
    pub fn control(&mut self, kind: FrameKind, subject: u64, payload: &[u8]) -> Result<()> {
        self.check_first_pass()?;
        if payload.len() as u64 > RECORD_BYTES_MAX - 32 {
            return Err(too_large());
        }
        if self.control.len() + payload.len() > SEALED_CONTROL_PIECE_BYTES {
            self.flush_control()?;
        }
        self.control.push(kind.get());
        varint::put(&mut self.control, subject);
        varint::put(&mut self.control, payload.len() as u64);
        self.control.extend_from_slice(payload);
        Ok(())
    }

    /// Looks at an event that will be added later, in any order, for payloads that occur more than once. What is not
    /// observed twice is not stored apart.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] once a session has begun.
    pub fn observe(&mut self, event_type: EventType<'_>, data: &str) -> Result<()> {
        self.check_first_pass()?;
        if !self.is_versioned(event_type) {
            self.spans.observe(data);
        }
        Ok(())
    }

    /// Begins a session whose next event has the seq `first`. Keys ascend.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] out of order or within a session; [`ErrorKind::Limit`] and [`ErrorKind::Io`].
    pub fn begin_session(&mut self, key: SessionKey, first: Seq) -> Result<()> {
        let ascending = self.sessions.last().is_none_or(|last| last.key < key);
        if self.session.is_some() || !ascending || first.get() > EVENTS_PER_SESSION_MAX {
            return Err(misuse("a session begins out of order"));
        }
        self.end_first_pass()?;
        let first_unit = self.unit.next_index()?;
        self.session = Some(OpenSession { key, first, next: first, first_unit, versions: Chain::default() });
        Ok(())
    }

    /// Adds the session's next event.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] outside a session, [`ErrorKind::Limit`] and [`ErrorKind::Io`]. An event that could not be
    /// read again (as one that cites more events than there are before it) is [`ErrorKind::Invalid`] here or at the end.
    pub fn event(&mut self, record: &Record<'_, &[Seq]>) -> Result<()> {
        let versioned = self.is_versioned(record.event_type);
        let Some(session) = &mut self.session else {
            return Err(misuse("an event outside a session"));
        };
        let seq = session.next;
        if record.data.len() as u64 > RECORD_BYTES_MAX || seq.get() >= EVENTS_PER_SESSION_MAX {
            return Err(too_large().with_seq(seq));
        }
        if versioned {
            let text = record.data.as_bytes();
            let id = self.pieces.store_version(&mut self.out, &mut session.versions, text)?;
            self.unit.make_room(&mut self.out, seq, 0)?;
            self.unit.envelopes.push(record, DataDraft::Piece(id));
        } else {
            let splices = splice(&mut self.out, &mut self.pieces, &mut self.spans, record.data)?;
            let taken: usize = splices.iter().map(|cut| cut.end - cut.start).sum();
            self.unit.make_room(&mut self.out, seq, record.data.len() - taken)?;
            self.unit.push_text(record, &splices);
        }
        self.unit.count += 1;
        session.next = seq.next();
        self.event_count += 1;
        Ok(())
    }

    /// Ends the session and leaves a summary with it, of which this file knows nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] outside a session, [`ErrorKind::Limit`] and [`ErrorKind::Io`].
    pub fn end_session(&mut self, summary: &[u8]) -> Result<()> {
        let Some(session) = self.session.take() else {
            return Err(misuse("a session ends that did not begin"));
        };
        self.unit.flush(&mut self.out)?;
        let bytes = u32::try_from(summary.len()).ok().filter(|&bytes| u64::from(bytes) <= RECORD_BYTES_MAX);
        let bytes = bytes.ok_or_else(too_large)?;
        if self.summaries.len() + summary.len() > SEALED_WRITE_BUFFER_BYTES {
            self.write_summaries()?;
        }
        let summary_at = Stretch { offset: self.summaries.len() as u64, bytes, crc: crc32(summary) };
        self.summaries.extend_from_slice(summary);
        self.sessions.push(SessionRow {
            key: session.key,
            first: session.first,
            count: u32::try_from(session.next.get() - session.first.get()).map_err(|_| too_large())?,
            first_unit: session.first_unit,
            unit_count: self.unit.next_index()? - session.first_unit,
            summary: summary_at,
        });
        Ok(())
    }

    /// Writes the directories and the footer, and gives the sink back. The file is complete, not yet durable.
    ///
    /// `covered_to` is the end of the last segment, as the next one's header names it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] within a session or for a position in another segment, [`ErrorKind::Limit`] and
    /// [`ErrorKind::Io`].
    pub fn finish(mut self, covered_to: Position) -> Result<(W, SealedStats)> {
        if self.session.is_some() || covered_to.segment != self.header.name.last {
            return Err(misuse("it ends within a session or in another segment"));
        }
        self.end_first_pass()?;
        self.write_summaries()?;
        let mut directories = Vec::new();
        for (number, row) in (0..).zip(&self.sessions) {
            directories.extend(row.encode(self.mark, number));
        }
        for row in &self.unit.rows {
            directories.extend(row.encode(self.mark));
        }
        for row in self.pieces.rows() {
            directories.extend(row.encode());
        }
        let footer = Footer {
            directories: self.out.offset(),
            session_count: u32::try_from(self.sessions.len()).map_err(|_| too_large())?,
            unit_count: self.unit.next_index()?,
            piece_count: u32::try_from(self.pieces.rows().len()).map_err(|_| too_large())?,
            control_count: self.control_count.unwrap_or(0),
            covered_to: covered_to.offset,
            file_bytes: self.out.offset() + (directories.len() + FOOTER_BYTES) as u64,
            event_count: self.event_count,
            directories_crc: crc32(&directories),
        };
        let (encoded, footer_crc) = footer.encode(self.mark);
        self.out.append(&directories)?;
        self.out.append(&encoded)?;
        let stats = self.stats(&footer, footer_crc);
        Ok((self.out.finish()?, stats))
    }

    fn stats(&self, footer: &Footer, footer_crc: u32) -> SealedStats {
        let units = &self.unit.rows;
        SealedStats {
            file_bytes: footer.file_bytes,
            footer_crc,
            session_count: footer.session_count,
            unit_count: footer.unit_count,
            event_count: footer.event_count,
            piece_count: footer.piece_count,
            envelope_bytes: units.iter().map(|row| u64::from(row.envelope.stored_bytes)).sum(),
            text_bytes: units.iter().map(|row| u64::from(row.text.stored_bytes)).sum(),
            piece_bytes: self.pieces.rows().iter().map(|row| u64::from(row.stored_bytes)).sum(),
        }
    }

    fn is_versioned(&self, event_type: EventType<'_>) -> bool {
        matches!(event_type, EventType::Code(code) if self.versioned_types.contains(&code))
    }

    fn check_first_pass(&self) -> Result<()> {
        match self.control_count {
            None => Ok(()),
            Some(_) => Err(misuse("the first session has begun")),
        }
    }

    fn end_first_pass(&mut self) -> Result<()> {
        if self.control_count.is_none() {
            self.flush_control()?;
            self.control_count = Some(u32::try_from(self.pieces.rows().len()).map_err(|_| too_large())?);
        }
        Ok(())
    }

    /// Writes the summaries that were gathered; their rows so far say where they are among them.
    fn write_summaries(&mut self) -> Result<()> {
        for row in self.sessions.iter_mut().skip(self.summaries_written) {
            row.summary.offset += self.out.offset();
        }
        self.summaries_written = self.sessions.len();
        self.out.append(&self.summaries)?;
        self.summaries.clear();
        Ok(())
    }

    fn flush_control(&mut self) -> Result<()> {
        if !self.control.is_empty() {
            self.pieces.store(&mut self.out, &self.control)?;
            self.control.clear();
        }
        Ok(())
    }
}

/// A part of an event's data that a piece stands for.
struct Cut {
    start: usize,
    end: usize,
    piece: u32,
}

/// Finds and stores the parts of `data` that occur more than once in the file.
fn splice<W: SealedSink>(
    out: &mut Output<W>,
    pieces: &mut PieceWriter,
    table: &mut SpanTable,
    data: &str,
) -> Result<Vec<Cut>> {
    let mut cuts = Vec::new();
    if table.is_empty() {
        return Ok(cuts);
    }
    for span in spans(data.as_bytes()) {
        let text = &data.as_bytes()[span.clone()];
        let print = print_of(text);
        let piece = match table.get(print) {
            Some(Span::Stored(piece)) if pieces.holds(out, piece, text)? => piece,
            Some(Span::Repeated) => {
                let piece = pieces.store(out, text)?;
                table.set_stored(print, piece);
                piece
            }
            _ => continue,
        };
        cuts.push(Cut { start: span.start, end: span.end, piece });
    }
    Ok(cuts)
}

/// Collects the events of one unit, and the rows of those written.
#[derive(Debug)]
struct UnitWriter {
    first: Seq,
    count: u32,
    envelopes: EnvelopeWriter,
    text: Vec<u8>,
    rows: Vec<UnitRow>,
    encoder: FrameEncoder,
    /// The unit's envelopes as they are written, to check that they can be read.
    finished: Envelopes,
    frame: Vec<u8>,
}

impl UnitWriter {
    fn new() -> Result<Self> {
        Ok(Self {
            first: Seq::new(0),
            count: 0,
            envelopes: EnvelopeWriter::default(),
            text: Vec::new(),
            rows: Vec::new(),
            encoder: FrameEncoder::new(UNIT_LEVEL, false)?,
            finished: Envelopes::default(),
            frame: Vec::new(),
        })
    }

    fn next_index(&self) -> Result<u32> {
        u32::try_from(self.rows.len()).map_err(|_| too_large())
    }

    /// Ends the unit if the event `seq`, which brings `text_bytes`, belongs in another one.
    fn make_room<W: SealedSink>(&mut self, out: &mut Output<W>, seq: Seq, text_bytes: usize) -> Result<()> {
        let text_full = text_bytes > 0 && self.text.len() + text_bytes > SEALED_UNIT_TEXT_BYTES;
        let full =
            self.count >= SEALED_UNIT_EVENTS_MAX || self.envelopes.bytes() >= SEALED_UNIT_ENVELOPE_BYTES;
        if self.count > 0 && (text_full || full) {
            self.flush(out)?;
        }
        if self.count == 0 {
            self.first = seq;
        }
        Ok(())
    }

    fn push_text(&mut self, record: &Record<'_, &[Seq]>, cuts: &[Cut]) {
        let data = record.data.as_bytes();
        let mut splices = Vec::with_capacity(cuts.len());
        let (before, mut from) = (self.text.len(), 0);
        for cut in cuts {
            self.text.extend_from_slice(&data[from..cut.start]);
            splices.push(Splice { gap: cut.start - from, piece: cut.piece });
            from = cut.end;
        }
        self.text.extend_from_slice(&data[from..]);
        let bytes = self.text.len() - before;
        let place =
            if splices.is_empty() { DataDraft::Inline(bytes) } else { DataDraft::Spliced(bytes, &splices) };
        self.envelopes.push(record, place);
    }

    /// Writes the unit, if it has events.
    fn flush<W: SealedSink>(&mut self, out: &mut Output<W>) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let (index, offset) = (self.next_index()?, out.offset());
        let raw = &mut self.finished.bytes;
        self.envelopes.finish(raw);
        let envelope = write_frame(out, &mut self.encoder, raw, &mut self.frame)?;
        let text = write_frame(out, &mut self.encoder, &self.text, &mut self.frame)?;
        let readable = self.finished.check(self.first, self.count, text.text_bytes);
        readable
            .map_err(|why| misuse(&format!("an event that cannot be read: {why}")).with_seq(self.first))?;
        self.rows.push(UnitRow { index, first: self.first, count: self.count, offset, envelope, text });
        self.count = 0;
        self.text.clear();
        Ok(())
    }
}

/// Writes a text as one frame; an empty one as nothing.
fn write_frame<W: SealedSink>(
    out: &mut Output<W>,
    encoder: &mut FrameEncoder,
    text: &[u8],
    frame: &mut Vec<u8>,
) -> Result<Frame> {
    frame.clear();
    if !text.is_empty() {
        encoder.encode(text, frame)?;
    }
    out.append(frame)?;
    Ok(Frame {
        stored_bytes: u32::try_from(frame.len()).map_err(|_| too_large())?,
        text_bytes: u32::try_from(text.len()).map_err(|_| too_large())?,
        crc: crc32(frame),
    })
}

fn misuse(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("build sealed file: {why}"))
}
