//! What a judge says about a log: the verdict, its reasons, and the state that the accepted events fold to.

use crate::event::{Event, Refusal, RepairKind, SessionHeader, SessionState};
use crate::ids::Seq;
use crate::limits::WARNINGS_LISTED_MAX;
use crate::projection::{Replacement, State, Usage, Warnings};

/// How a log stands (spec section 20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It loads as it is; there may be warnings.
    Accept,
    /// It loads after a stated change, in memory; the source is untouched.
    Repair,
    /// It does not load.
    Refuse,
}

impl Verdict {
    /// The stable word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Repair => "repair",
            Self::Refuse => "refuse",
        }
    }
}

/// The judgement on one log.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// The session header, unless the log was refused for it.
    pub header: Option<SessionHeader>,
    /// What the events fold to, closers included; `None` if the log was refused.
    pub state: Option<State>,
    /// The replacements, in the order of their events.
    pub replacements: Vec<Replacement>,
    /// The request headers logged.
    pub headers: Vec<LoggedHeader>,
    /// The tokens that the log's own requests took.
    pub usage: Usage,
    /// The events that a load adds to close an interrupted turn. The sink did not see them.
    pub closers: Vec<Event<'static>>,
    /// What is legal but worth a look.
    pub warnings: Warnings,
    /// What a load has to change.
    pub repair: Option<Repair>,
    /// Why it does not load.
    pub refusal: Option<Refusal>,
}

impl Judgement {
    /// The verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (&self.refusal, &self.repair) {
            (Some(_), _) => Verdict::Refuse,
            (None, Some(_)) => Verdict::Repair,
            (None, None) => Verdict::Accept,
        }
    }

    /// Number of events, closers included; `None` if the log was refused.
    #[must_use]
    pub fn events(&self) -> Option<u64> {
        self.state.as_ref().map(|state| state.next_seq().get())
    }
}

/// One `request/header` event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedHeader {
    /// The event.
    pub seq: Seq,
    /// Its `reason`, an unknown one cut to a readable length; absent where the event has none.
    pub reason: Option<String>,
}

/// What a load has to change, in memory, to accept a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The kind, stable for scripts.
    pub kind: RepairKind,
    /// Line of the first record that is cut, from 1.
    pub line: Option<u64>,
    /// Byte offset from which on the (decompressed) text is cut; absent where no text is.
    pub offset: Option<u64>,
    /// The first row of an SQLite table that is cut.
    pub rowid: Option<i64>,
    /// Byte offset in the file of the zstd frame that is cut.
    pub frame_offset: Option<u64>,
    /// What happened and what is lost, for people.
    pub message: String,
    /// Bytes of (decompressed) text cut; of a torn frame that yields no text, what the file has of it.
    pub bytes_cut: u64,
    /// The first of the records cut.
    pub cut: Vec<CutRecord>,
    /// How many records were cut.
    pub cut_total: u64,
}

impl Repair {
    /// A repair that cuts nothing.
    pub(super) fn lossless(kind: RepairKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            line: None,
            offset: None,
            rowid: None,
            frame_offset: None,
            message,
            bytes_cut: 0,
            cut: Vec::new(),
            cut_total: 0,
        }
    }

    /// Counts one more record as cut, and lists it while the list is short.
    pub(super) fn cut(&mut self, record: impl FnOnce() -> CutRecord) {
        self.cut_total += 1;
        if self.cut_total <= WARNINGS_LISTED_MAX {
            self.cut.push(record());
        }
    }
}

/// A record that a repair leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutRecord {
    /// Its line, from 1.
    pub line: u64,
    /// Byte offset of its first byte in the (decompressed) text.
    pub offset: u64,
    /// Its row, if it lies in an SQLite table; then line and offset count the rows of the session and their bytes.
    pub rowid: Option<i64>,
    /// Its seq, if it says one.
    pub seq: Option<Seq>,
    /// Its type, if it says one, cut to a readable length.
    pub type_name: Option<String>,
}

/// A word of the source as far as a report repeats it.
pub(super) fn word(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    text.chars().take(CHARS_MAX).collect()
}
