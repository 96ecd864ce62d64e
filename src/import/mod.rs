//! Reads logs of other formats and judges them: decoders yield records, the judge runs each through the gate.
//!
//! Decoders stream: memory is bounded by the largest record. They never change a source.

mod decode;
mod discover;
mod importer;
mod judge;
mod judgement;
pub mod layout;
mod lines;
pub mod packed;
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

pub(crate) use decode::{Decoded, decode, marked};
pub(crate) use judge::Session;
pub(crate) use zstd_frames::PADDING_RULES;

use crate::event::Refusal;

/// One record of a log, without its line feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The bytes. A long run of NULs at their start may stand shortened; offsets count it in full.
    pub bytes: &'a [u8],
    /// Line in the (decompressed) text, from 1.
    pub line: u64,
    /// Byte offset of its first byte in the (decompressed) text.
    pub offset: u64,
    /// A line feed ended it.
    pub ended: bool,
    /// It lies where a damaged tail may be cut: anywhere in plain JSONL, only in a torn last frame of zstd.
    pub lenient: bool,
}

/// What a decoder yields.
#[derive(Debug)]
pub enum Item<'a> {
    /// The next record.
    Record(Record<'a>),
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

/// A stream of records: plain JSONL, zstd JSONL.
pub trait RecordSource {
    /// The next item, `None` at the end.
    ///
    /// # Errors
    ///
    /// Only what the operating system reports; damage is an [`Item::Fault`].
    fn next_item(&mut self) -> std::io::Result<Option<Item<'_>>>;
}
