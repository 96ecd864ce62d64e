//! Reads logs of other formats and judges them: decoders yield records, the judge runs each through the gate.
//!
//! Decoders stream: memory is bounded by the largest record. They never change a source.

mod counted;
#[cfg(feature = "sqlite")]
mod database;
mod decode;
mod discover;
mod importer;
mod judge;
mod judgement;
pub mod layout;
mod lines;
pub mod packed;
mod part;
mod stored;
mod target;
mod zstd_frames;

pub use discover::{Discovery, Found, Source, SourceFormat, discover};
pub use importer::{Importer, Plan, PlannedSource, SourceReport};
pub use judge::{Judge, JudgeOptions, Sink, judge};
pub use judgement::{CutRecord, Judgement, LoggedHeader, Repair, Verdict};
pub use lines::Lines;
pub use stored::judge_session;
pub use zstd_frames::ZstdFrames;

pub(crate) use counted::Counted;
#[cfg(feature = "sqlite")]
pub(crate) use database::{Judged, judge_all, salvage};
pub(crate) use decode::{Decoded, decode, marked};
pub(crate) use judge::Session;
pub(crate) use zstd_frames::PADDING_RULES;

use crate::event::{Refusal, SessionHeader};

/// One record of a log, without its line feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The bytes. A long run of NULs at their start may stand shortened; offsets count it in full.
    pub bytes: &'a [u8],
    /// Line in the (decompressed) text, from 1. Of a database row, its number among those of its session.
    pub line: u64,
    /// Byte offset of its first byte in the (decompressed) text. Of a database row, bytes of its session before it.
    pub offset: u64,
    /// A line feed ended it.
    pub ended: bool,
    /// It lies where a damaged tail may be cut: anywhere in plain JSONL and in a database, only in a torn last frame of
    /// zstd.
    pub lenient: bool,
    /// What it was made from.
    pub origin: RecordOrigin,
}

/// What a [`Record`] was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOrigin {
    /// A line of text. Its `type` alone says whether it is an event or a packed row.
    Line,
    /// The database row with this rowid, which is an event, whatever its `type`.
    EventRow(i64),
    /// The database row with this rowid, which is a packed row.
    PackedRow(i64),
}

/// Where a refusal says that something stands.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// A line and its byte offset.
    Line(u64, u64),
    /// A rowid.
    Row(i64),
}

impl Place {
    /// The refusal, placed here unless it has a place.
    fn mark(self, refusal: Refusal) -> Refusal {
        match self {
            Self::Line(line, offset) => refusal.at_line(line, offset),
            Self::Row(rowid) => refusal.at_row(rowid),
        }
    }
}

impl Record<'_> {
    fn place(&self) -> Place {
        self.rowid().map_or(Place::Line(self.line, self.offset), Place::Row)
    }

    /// The place of one of its bytes, for people. A row's bytes are not those that the database holds.
    fn byte_place(&self, at: u64) -> String {
        self.rowid().map_or_else(|| format!("offset {}", self.offset + at), |rowid| format!("row {rowid}"))
    }

    /// Its rowid, if it was made from a row.
    fn rowid(&self) -> Option<i64> {
        match self.origin {
            RecordOrigin::Line => None,
            RecordOrigin::EventRow(rowid) | RecordOrigin::PackedRow(rowid) => Some(rowid),
        }
    }

    /// Its line, if it was made from one.
    fn line_number(&self) -> Option<u64> {
        (self.origin == RecordOrigin::Line).then_some(self.line)
    }
}

/// What a decoder yields.
#[derive(Debug)]
pub enum Item<'a> {
    /// The next record.
    Record(Record<'a>),
    /// The session header of a log that has a database row for it.
    HeaderRow {
        /// The header.
        header: Box<SessionHeader>,
        /// Its row.
        rowid: i64,
    },
    /// A record that does not decode: it costs an open tail what a record costs that is not JSON. Its bytes mean nothing.
    Unusable(Record<'a>, Refusal),
    /// The container is damaged here. Reading goes on behind it where that is possible.
    Fault(Refusal),
    /// The last zstd frame is cut: records from here on are what it still yields.
    TornFrame {
        /// Byte offset of the frame in the file.
        offset: u64,
        /// What the file has of it, in bytes.
        bytes: u64,
    },
}

/// A stream of records: plain JSONL, zstd JSONL, one session of a database.
pub trait RecordSource {
    /// The next item, `None` at the end.
    ///
    /// # Errors
    ///
    /// Only what the operating system reports; damage is an [`Item::Fault`].
    fn next_item(&mut self) -> std::io::Result<Option<Item<'_>>>;
}
