//! What a repair would do: steps, each lossless or lossy, and their sums.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::branches::Branch;
use super::pass::Route;
use crate::event::{Refusal, SessionHeader};
use crate::export::JsonlFormat;
use crate::ids::Seq;
use crate::limits::WARNINGS_LISTED_MAX;

/// What is done at one place of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Lossless: a byte order mark goes.
    StripBom,
    /// Lossless: an empty line goes.
    DropBlank,
    /// Lossless: the carriage returns before line feeds go. One step for all of a log.
    StripCarriageReturns,
    /// Lossless: NUL bytes, or a frame without text, go.
    StripPadding,
    /// Lossless: a whole record without a line feed gets one.
    EndLine,
    /// Lossless: records on one line get lines of their own.
    SplitLine,
    /// Lossless: the text is divided into frames as the format wants it.
    Reframe,
    /// Lossless: a record that repeats an earlier one byte for byte goes.
    DropRepeated,
    /// Lossless: an older v0 shape is brought up to date (spec section 12).
    Normalise,
    /// Lossless: a cell of a database that is of another type than the format wants is stored as that.
    Retype,
    /// Lossless: what a database has beside its sessions, an index or the id of the store, is made anew.
    Rebuild,
    /// Lossy: bytes that are no UTF-8 become U+FFFD; the event stays.
    ReplaceBytes,
    /// Lossy: bytes that hold no record, or no whole one, go.
    Drop,
    /// Lossy: a record goes that cannot follow what is kept.
    Cut,
    /// Lossy: a record goes that belongs to a branch that is not kept.
    DropBranch,
}

impl Action {
    /// The stable word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StripBom => "strip-bom",
            Self::DropBlank => "drop-blank",
            Self::StripCarriageReturns => "strip-carriage-returns",
            Self::StripPadding => "strip-padding",
            Self::EndLine => "end-line",
            Self::SplitLine => "split-line",
            Self::Reframe => "reframe",
            Self::DropRepeated => "drop-repeated",
            Self::Normalise => "normalise",
            Self::Retype => "retype",
            Self::Rebuild => "rebuild",
            Self::ReplaceBytes => "replace-bytes",
            Self::Drop => "drop",
            Self::Cut => "cut",
            Self::DropBranch => "drop-branch",
        }
    }

    /// Whether every event stays as it was.
    #[must_use]
    pub const fn is_lossless(self) -> bool {
        !matches!(self, Self::ReplaceBytes | Self::Drop | Self::Cut | Self::DropBranch)
    }
}

/// One step of a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// What was found: the word of a refusal, repair or warning kind, or `crlf`.
    pub kind: &'static str,
    /// Line in the (decompressed) text, from 1; absent for a fault of a zstd frame.
    pub line: Option<u64>,
    /// Byte offset in the (decompressed) text; of a frame's fault, in the file.
    pub offset: Option<u64>,
    /// Number of the zstd frame, from 1, in which the place ends; absent in plain logs.
    pub frame: Option<u64>,
    /// The row of an SQLite table, which has no line and no offset.
    pub row: Option<i64>,
    /// The (first) event concerned.
    pub seq: Option<Seq>,
    /// Its type, or that of the packed row that holds it.
    pub type_name: Option<String>,
    /// Events that the record holds; 0 for bytes that are no record.
    pub events: u64,
    /// Bytes of text that go or change. 0 where nobody knows how many there were.
    pub bytes: u64,
    /// What is wrong and what is done about it, for people.
    pub message: String,
}

/// The steps of one action and kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// How many there are.
    pub steps: u64,
    /// Events of their records.
    pub events: u64,
    /// Bytes of text.
    pub bytes: u64,
}

/// The steps of a repair in the order of their places. Of each action and kind the first [`WARNINGS_LISTED_MAX`] are kept,
/// all are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps {
    listed: Vec<Step>,
    totals: BTreeMap<(Action, &'static str), Total>,
}

impl Steps {
    /// Those that are kept.
    #[must_use]
    pub fn listed(&self) -> &[Step] {
        &self.listed
    }

    /// How many there are of each action and kind.
    pub fn totals(&self) -> impl Iterator<Item = (Action, &'static str, Total)> + '_ {
        self.totals.iter().map(|(&(action, kind), &total)| (action, kind, total))
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.totals.is_empty()
    }

    /// Counts a step, and keeps it while there is room.
    pub(super) fn add(
        &mut self,
        action: Action,
        kind: &'static str,
        (events, bytes): (u64, u64),
        step: impl FnOnce() -> Step,
    ) {
        let total = self.totals.entry((action, kind)).or_default();
        total.steps += 1;
        total.events += events;
        total.bytes += bytes;
        if total.steps <= WARNINGS_LISTED_MAX {
            self.listed.push(step());
        }
    }

    /// Keeps no step any more, only the sums.
    #[cfg(feature = "sqlite")]
    pub(super) fn unlist(&mut self) {
        self.listed = Vec::new();
    }

    /// Corrects the bytes of the last step of its kind, which were not known when it was added.
    pub(super) fn add_bytes(&mut self, index: usize, more: u64) {
        if let Some(step) = self.listed.get_mut(index) {
            step.bytes += more;
            let total = self.totals.entry((step.action, step.kind)).or_default();
            total.bytes += more;
        }
    }
}

/// What a repair keeps and loses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events of the repaired log.
    pub events_kept: u64,
    /// Events that the source holds, wholly or in part, and the repaired log does not.
    pub events_lost: u64,
    /// The first seq that is lost, or was missing already.
    pub first_lost: Option<Seq>,
    /// Whole records among what is lost: a repair saves them beside the repaired log.
    pub records_saved: u64,
    /// Bytes of text that lossy steps take away or change.
    pub bytes_lost: u64,
    /// The repaired log ends inside a turn: every load closes it, as after a crash (spec section 9).
    pub open_turn: bool,
}

/// What a repair of one source would do. [`Repairer::apply`](super::Repairer::apply) carries it out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The source.
    pub path: PathBuf,
    /// How the source stores its text.
    pub format: JsonlFormat,
    /// Its session header, if it has one.
    pub header: Option<SessionHeader>,
    /// The steps.
    pub steps: Steps,
    /// Their sums.
    pub summary: Summary,
    /// The branches, if one seq was claimed twice; else none.
    pub branches: Vec<Branch>,
    /// The branch that is kept. While there are branches and none is chosen, steps and sums are those of the first.
    pub branch: Option<usize>,
    /// Why no repair helps.
    pub refusal: Option<Refusal>,
    /// The source packs runs of chunk events into rows, and so does the repaired log.
    pub(super) packed: bool,
    pub(super) route: Route,
    pub(super) seen: Seen,
}

impl Plan {
    /// The plan of a source of which nothing is to be read.
    pub(super) fn refused(path: &Path, format: JsonlFormat, file: Stamp, refusal: Refusal) -> Self {
        Self {
            path: path.to_owned(),
            format,
            header: None,
            steps: Steps::default(),
            summary: Summary::default(),
            branches: Vec::new(),
            branch: None,
            refusal: Some(refusal),
            packed: false,
            route: Route::default(),
            seen: Seen { file, digest: 0 },
        }
    }

    /// Whether there is nothing to do: the source loads as it is, except that an open turn is closed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.refusal.is_none() && self.steps.is_empty()
    }

    /// Whether every event of the source is kept as it is. A fork of which no branch was chosen is not lossless.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.refusal.is_none() && self.steps.totals().all(|(action, _, _)| action.is_lossless())
    }

    /// Whether a branch must be chosen before this can be applied.
    #[must_use]
    pub fn needs_branch(&self) -> bool {
        !self.branches.is_empty() && self.branch.is_none()
    }
}

/// What a pass read: another pass must read the same, or somebody is writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) file: Stamp,
    /// Of every record and fault.
    pub(super) digest: u128,
}

/// The state of a file as its file system tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    /// Since the Unix epoch.
    pub(super) modified: Option<Duration>,
}
