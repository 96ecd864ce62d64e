//! Walks the chain of segments in order, each up to where it counts. Opening, recovery and readers all walk
//! with it.

use std::sync::Arc;

use super::scan::{Damage, DamageCause, Scanner, Survey, Visitor};
use super::sealed::SealedFile;
use super::segments::{Lost, Segments, read_full};
use crate::format::{Features, SEGMENT_HEADER_BYTES, SegmentHeader, StoreId, segment_file_name};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::storage::{Access, StorageFile};
use crate::{Error, ErrorKind, Result};

const HEADER_BYTES: u64 = SEGMENT_HEADER_BYTES as u64;

#[derive(Debug)]
pub(super) struct Cursor {
    segments: Arc<Segments>,
    chain: Chain,
    /// The raw segment that was opened last.
    current: Opened,
    /// The segment to look for next.
    next: SegmentId,
    /// The current segment was visited up to its end.
    finished: bool,
    /// All before this offset of the current segment was visited.
    at: u64,
    /// Known to be durable in the current segment.
    synced: u64,
}

/// What the files met so far have in common.
#[derive(Debug, Default)]
struct Chain {
    store_id: Option<StoreId>,
    epoch_max: Option<WriterEpoch>,
    /// Of the raw segments alone: sealed files are younger than what they hold.
    raw_epoch: Option<WriterEpoch>,
    features: Features,
}

/// A segment whose header was read.
#[derive(Debug)]
struct Opened {
    segment: SegmentId,
    /// `None`: neither copy can be read, and with it nothing in the file.
    header: Option<SegmentHeader>,
    header_is_whole: bool,
    scanner: Scanner,
}

/// What has a segment.
enum Next {
    Raw(Box<Opened>),
    Sealed(Arc<SealedFile>),
    Lost(Lost),
    /// Nothing: it was not begun.
    None,
}

/// How a walk to the newest segment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Walked {
    ToNewest,
    /// A later file says that something visited here does not count, or has it anew together with what was
    /// not visited.
    TooFar,
}

impl Cursor {
    /// A cursor in the first raw segment; the sealed files before it were shown.
    pub(super) fn open(segments: Arc<Segments>, visitor: &mut dyn Visitor) -> Result<Self> {
        let mut next = SegmentId::new(1);
        let mut chain = Chain::default();
        let current = loop {
            match next_file(&segments, next)? {
                Next::Raw(current) => break *current,
                Next::Sealed(file) if file.name().first < next => return Err(rewritten(&segments)),
                Next::Sealed(file) => {
                    chain.join_sealed(&file)?;
                    visitor.sealed(&file)?;
                    next = file.name().last.next();
                }
                Next::Lost(lost) => {
                    report_lost(&segments, &lost, visitor);
                    next = lost.resume;
                }
                Next::None if next == SegmentId::new(1) => return Err(no_store(&segments)),
                // Sealed files always have a raw segment behind them.
                Next::None => return Err(segments.missing(next)),
            }
        };
        let next = next.next();
        let mut cursor = Self { segments, chain, current, next, finished: false, at: 0, synced: 0 };
        cursor.enter(visitor)?;
        Ok(cursor)
    }

    /// The store's id; an error if no segment had a header to take it from.
    pub(super) fn store_id(&self) -> Result<StoreId> {
        self.chain.store_id.ok_or_else(|| self.corrupt("no segment header can be read"))
    }

    pub(super) fn epoch_max(&self) -> WriterEpoch {
        self.chain.epoch_max.unwrap_or(WriterEpoch::new(0))
    }

    /// The union of the features of all files seen.
    pub(super) fn features(&self) -> Features {
        self.chain.features
    }

    pub(super) fn position(&self) -> Position {
        self.place(self.at)
    }

    /// How far what was visited is known to be durable.
    pub(super) fn synced_through(&self) -> Position {
        self.place(if self.finished { self.at } else { self.synced.min(self.at) })
    }

    pub(super) fn place(&self, offset: u64) -> Position {
        Position { segment: self.current.segment, offset }
    }

    /// Whether nothing can have been added since the last visit.
    pub(super) fn is_blank_ahead(&mut self) -> Result<bool> {
        self.current.scanner.is_blank(self.at)
    }

    /// Visits all of every segment that has a successor, and the sealed files between.
    pub(super) fn walk_to_newest(&mut self, visitor: &mut dyn Visitor) -> Result<Walked> {
        loop {
            match next_file(&self.segments, self.next)? {
                Next::Raw(next) => {
                    let end = next.header.as_ref().and_then(|header| header.previous_end);
                    if self.finish_current(end, visitor)? == Walked::TooFar {
                        return Ok(Walked::TooFar);
                    }
                    self.current = *next;
                    self.next = self.next.next();
                    self.finished = false;
                    self.enter(visitor)?;
                }
                Next::Sealed(file) => {
                    // What it no longer has, the visitor was shown, and cannot be told.
                    if file.name().first < self.next
                        || self.finish_current(file.previous_end(), visitor)? == Walked::TooFar
                    {
                        return Ok(Walked::TooFar);
                    }
                    self.finished = true;
                    self.chain.join_sealed(&file)?;
                    visitor.sealed(&file)?;
                    self.next = file.name().last.next();
                }
                Next::Lost(lost) => {
                    if self.finish_current(None, visitor)? == Walked::TooFar {
                        return Ok(Walked::TooFar);
                    }
                    self.finished = true;
                    report_lost(&self.segments, &lost, visitor);
                    self.next = lost.resume;
                }
                Next::None => return Ok(Walked::ToNewest),
            }
        }
    }

    /// Visits the rest of the current segment, whose end its successor names.
    fn finish_current(&mut self, end: Option<Position>, visitor: &mut dyn Visitor) -> Result<Walked> {
        if self.finished {
            return Ok(Walked::ToNewest);
        }
        let end = match end {
            Some(end) => end.offset,
            None => self.survey()?.valid_end,
        };
        if end < self.at && self.at > HEADER_BYTES {
            return Ok(Walked::TooFar);
        }
        self.visit_to(end.max(self.at), visitor)?;
        self.segments.set_end(self.current.segment, end);
        Ok(Walked::ToNewest)
    }

    /// Takes stock of the segment, as it is now.
    pub(super) fn survey(&mut self) -> Result<Survey> {
        self.current.scanner.forget()?;
        if self.current.header.is_none() {
            let end = self.at.max(self.current.scanner.file_bytes());
            return Ok(Survey { synced: end, valid_end: end, cleanly_ended: false });
        }
        let survey = self.current.scanner.survey(self.at, self.synced)?;
        self.synced = survey.synced;
        Ok(survey)
    }

    /// Visits the batches up to `end`, all of which counts.
    pub(super) fn visit_to(&mut self, end: u64, visitor: &mut dyn Visitor) -> Result<()> {
        if self.current.header.is_some() {
            self.current.scanner.scan(self.at, end, visitor)?;
        }
        self.at = end;
        Ok(())
    }

    /// Reads the batches between two offsets again, past the cursor.
    pub(super) fn copy(&mut self, from: u64, to: u64, visitor: &mut dyn Visitor) -> Result<()> {
        self.current.scanner.scan(from, to, visitor)
    }

    /// Begins with the segment that was opened last: checks that it belongs here, and makes it readable.
    fn enter(&mut self, visitor: &mut dyn Visitor) -> Result<()> {
        self.at = 0;
        self.synced = 0;
        let Some(header) = self.current.header else {
            self.report_header(self.current.scanner.file_bytes(), visitor);
            return Ok(());
        };
        let joined = self.chain.join_raw(&header);
        joined.map_err(|what| self.corrupt(what))?;
        if !self.current.header_is_whole {
            self.report_header(HEADER_BYTES, visitor);
        }
        self.at = HEADER_BYTES;
        self.synced = header.published;
        self.segments.add(self.current.segment, header.epoch, u64::MAX, self.current.scanner.file());
        Ok(())
    }

    fn report_header(&self, bytes: u64, visitor: &mut dyn Visitor) {
        let damage = Damage { at: self.place(0), bytes, cause: DamageCause::SegmentHeader, frame: None };
        visitor.damage(&damage);
    }

    fn corrupt(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("open store: {what}"))
            .with_path(self.segments.path(&segment_file_name(self.current.segment)))
    }
}

impl Chain {
    fn join_raw(&mut self, header: &SegmentHeader) -> Result<(), &'static str> {
        if self.store_id.is_some_and(|known| known != header.store_id) {
            return Err("the segment belongs to another store");
        }
        if self.raw_epoch.is_some_and(|known| known > header.epoch) {
            return Err("the segment is older than the one before it");
        }
        self.raw_epoch = Some(header.epoch);
        self.join(header.store_id, header.epoch, header.features);
        Ok(())
    }

    fn join_sealed(&mut self, file: &SealedFile) -> Result<()> {
        if self.store_id.is_some_and(|known| known != file.store_id()) {
            let message = "open store: the sealed file belongs to another store";
            return Err(Error::new(ErrorKind::Corrupt, message).with_path(file.path()));
        }
        self.join(file.store_id(), file.epoch(), file.features());
        Ok(())
    }

    fn join(&mut self, store_id: StoreId, epoch: WriterEpoch, features: Features) {
        self.store_id = Some(store_id);
        self.epoch_max = self.epoch_max.max(Some(epoch));
        self.features.compatible |= features.compatible;
        self.features.read_compatible |= features.read_compatible;
    }
}

/// A sealed file counts before the raw segments that it stands for, as long as it can be read.
fn next_file(segments: &Segments, next: SegmentId) -> Result<Next> {
    if let Some(file) = segments.known_over(next) {
        return Ok(Next::Sealed(file));
    }
    if let Some(opened) = open_segment(segments, next)? {
        return Ok(Next::Raw(Box::new(opened)));
    }
    if let Some(file) = segments.sealed_over(next)? {
        return Ok(Next::Sealed(file));
    }
    Ok(match segments.lost_at(next)? {
        Some(lost) => Next::Lost(lost),
        None => Next::None,
    })
}

fn report_lost(segments: &Segments, lost: &Lost, visitor: &mut dyn Visitor) {
    let file = segments.storage().open(&lost.name.file_name(), Access::Read);
    visitor.damage(&Damage {
        at: Position { segment: lost.first, offset: 0 },
        bytes: file.and_then(|file| file.len()).unwrap_or(0),
        cause: DamageCause::SealedFile(lost.name),
        frame: None,
    });
}

/// A raw segment's file, and what its end looks like now.
pub(super) struct Tail {
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) epoch: WriterEpoch,
    /// `None`: nothing in the file can be read.
    pub(super) survey: Option<Survey>,
}

/// Takes stock of a raw segment; `None` if it is gone.
pub(super) fn tail_of(segments: &Segments, segment: SegmentId) -> Result<Option<Tail>> {
    let Some(mut opened) = open_segment(segments, segment)? else { return Ok(None) };
    let epoch = opened.header.map_or(WriterEpoch::new(0), |header| header.epoch);
    let survey = opened.header.map(|header| opened.scanner.survey(HEADER_BYTES, header.published));
    Ok(Some(Tail { file: opened.scanner.file(), epoch, survey: survey.transpose()? }))
}

/// There is nothing to open.
pub(super) fn no_store(segments: &Segments) -> Error {
    Error::new(ErrorKind::NotFound, "open store: there is none here").with_path(segments.path(""))
}

/// What was shown cannot be taken back.
pub(super) fn rewritten(segments: &Segments) -> Error {
    let message = "open store: its files were rewritten meanwhile; open it again";
    Error::new(ErrorKind::Conflict, message).with_path(segments.path(""))
}

// Format: section 4.
fn open_segment(segments: &Segments, segment: SegmentId) -> Result<Option<Opened>> {
    let name = segment_file_name(segment);
    let path = segments.path(&name);
    let file = match segments.storage().open(&name, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(segments.io_error("open segment", &name, error)),
    };
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let filled = read_full(&*file, &mut bytes, 0)
        .map_err(|source| segments.io_error("read segment header", &name, source))?;
    let header = SegmentHeader::decode(&bytes[..filled]).map_err(|error| error.with_path(&path))?;
    if header.is_some_and(|header| header.segment != segment) {
        return Err(
            Error::new(ErrorKind::Corrupt, "open store: the segment has the name of another").with_path(path)
        );
    }
    let header_is_whole = header.is_some_and(|header| header.encode() == bytes[..filled]);
    let epoch = header.map_or(WriterEpoch::new(0), |header| header.epoch);
    let scanner = Scanner::new(segment, epoch, path, file)?;
    Ok(Some(Opened { segment, header, header_is_whole, scanner }))
}
