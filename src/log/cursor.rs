//! Walks the chain of segments in order, each up to where it counts. Opening, recovery and readers all walk
//! with it.

use std::sync::Arc;

use super::scan::{Damage, DamageCause, Scanner, Survey, Visitor};
use super::segments::{Segments, read_full};
use crate::format::{Features, SEGMENT_HEADER_BYTES, SegmentHeader, StoreId, segment_file_name};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::storage::Access;
use crate::{Error, ErrorKind, Result};

const HEADER_BYTES: u64 = SEGMENT_HEADER_BYTES as u64;

#[derive(Debug)]
pub(super) struct Cursor {
    segments: Arc<Segments>,
    store_id: StoreId,
    epoch_max: WriterEpoch,
    /// Of the raw segments alone: sealed files are younger than what they hold.
    raw_epoch: WriterEpoch,
    features: Features,
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

/// A segment whose header was read.
#[derive(Debug)]
struct Opened {
    segment: SegmentId,
    /// `None`: neither copy can be read, and with it nothing in the file.
    header: Option<SegmentHeader>,
    header_is_whole: bool,
    scanner: Scanner,
}

/// How a walk to the newest segment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walked {
    ToNewest,
    /// A later segment says that something visited here does not count.
    TooFar,
}

impl Cursor {
    /// A cursor in the first raw segment; the sealed files before it were shown.
    pub(super) fn open(segments: Arc<Segments>, visitor: &mut dyn Visitor) -> Result<Self> {
        let mut next = SegmentId::new(1);
        let (mut store_id, mut epoch_max) = (StoreId::default(), WriterEpoch::new(0));
        let current = loop {
            if let Some(current) = open_segment(&segments, next)? {
                break current;
            }
            let Some(file) = segments.sealed_over(next)? else {
                return Err(Error::new(ErrorKind::NotFound, "open store: there is none here")
                    .with_path(segments.path(&segment_file_name(next))));
            };
            (store_id, epoch_max) = (file.store_id(), epoch_max.max(file.epoch()));
            visitor.sealed(&file)?;
            next = file.name().last.next();
        };
        let mut cursor = Self {
            segments,
            store_id,
            epoch_max,
            raw_epoch: WriterEpoch::new(0),
            features: Features::default(),
            current,
            next: next.next(),
            finished: false,
            at: 0,
            synced: 0,
        };
        cursor.enter(visitor)?;
        Ok(cursor)
    }

    /// The store's id; an error if no segment had a header to take it from.
    pub(super) fn store_id(&self) -> Result<StoreId> {
        if self.epoch_max == WriterEpoch::new(0) {
            return Err(self.corrupt("no segment header can be read"));
        }
        Ok(self.store_id)
    }

    pub(super) fn epoch_max(&self) -> WriterEpoch {
        self.epoch_max
    }

    /// The union of the features of all segments seen.
    pub(super) fn features(&self) -> Features {
        self.features
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
            if let Some(next) = open_segment(&self.segments, self.next)? {
                let end = next.header.as_ref().and_then(|header| header.previous_end);
                if self.finish_current(end, visitor)? == Walked::TooFar {
                    return Ok(Walked::TooFar);
                }
                self.current = next;
                self.next = self.next.next();
                self.finished = false;
                self.enter(visitor)?;
            } else if let Some(file) = self.segments.sealed_over(self.next)? {
                // It may begin before the current segment, whose end it then covers.
                let end = file.previous_end().filter(|end| end.segment == self.current.segment);
                if end.is_some() && self.finish_current(end, visitor)? == Walked::TooFar {
                    return Ok(Walked::TooFar);
                }
                self.finished = true;
                if file.store_id() != self.store_id {
                    return Err(self.corrupt("a sealed file belongs to another store"));
                }
                self.epoch_max = self.epoch_max.max(file.epoch());
                visitor.sealed(&file)?;
                self.next = file.name().last.next();
            } else {
                return Ok(Walked::ToNewest);
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
        if self.epoch_max == WriterEpoch::new(0) {
            self.store_id = header.store_id;
        }
        if header.store_id != self.store_id {
            return Err(self.corrupt("the segment belongs to another store"));
        }
        if header.epoch < self.raw_epoch {
            return Err(self.corrupt("the segment is older than the one before it"));
        }
        self.raw_epoch = header.epoch;
        self.epoch_max = self.epoch_max.max(header.epoch);
        self.features.compatible |= header.features.compatible;
        self.features.read_compatible |= header.features.read_compatible;
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
