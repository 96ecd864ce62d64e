//! The words in which logs and events are judged: refusals, repairs and warnings (spec section 20).
//!
//! The kebab-case spellings are a contract with scripts; they never change.

use std::fmt;

use crate::error::{Error, ErrorKind};
use crate::ids::Seq;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What kind of fault made the gate or a reader refuse.
    RefusalKind {
        /// Nothing there: zero bytes.
        Empty = "empty",
        /// The first record is not a session header.
        NoHeader = "no-header",
        /// A byte order mark before the header.
        Bom = "bom",
        /// A session header with a malformed member.
        Header = "header",
        /// Written by a newer format version.
        NewerFormat = "newer-format",
        /// Written by an older format version.
        OlderFormat = "older-format",
        /// A `request/header-delta` event.
        LegacyHeaderDelta = "legacy-header-delta",
        /// A `request/header` with reason `fallback`.
        LegacyFallbackReason = "legacy-fallback-reason",
        /// A `mode/set` event.
        LegacyModeSet = "legacy-mode-set",
        /// A request header with a reason outside the four, on append or seed.
        HeaderReason = "header-reason",
        /// An event type outside the vocabulary, neither ignorable nor registered.
        UnsupportedEvent = "unsupported-event",
        /// An event envelope with wrong or foreign members.
        Envelope = "envelope",
        /// A record that is JSON but no object.
        NotAnEvent = "not-an-event",
        /// An empty line among records.
        BlankRecord = "blank-record",
        /// A record that is not JSON.
        CorruptRecord = "corrupt-record",
        /// A cut record with a whole one on the same line.
        GluedRecord = "glued-record",
        /// NUL bytes where records should be.
        NulPadding = "nul-padding",
        /// Bytes that are not UTF-8.
        InvalidUtf8 = "invalid-utf8",
        /// A number without a finite double.
        NonFinite = "non-finite",
        /// Negative zero in data that is being appended.
        NegativeZero = "negative-zero",
        /// A seq higher than expected: events are missing.
        SeqGap = "seq-gap",
        /// A seq lower than expected: a second writer.
        SeqFork = "seq-fork",
        /// A malformed message.
        MessageShape = "message-shape",
        /// A malformed `turn/start`, `turn/end` or steering event.
        EventShape = "event-shape",
        /// A malformed tool result.
        ToolResultShape = "tool-result-shape",
        /// A tool call whose id is empty or no string, where an id is needed.
        EmptyCallId = "empty-call-id",
        /// A malformed request header.
        HeaderShape = "header-shape",
        /// A surface marker that is missing, ineligible or does not fit the surface.
        Surface = "surface",
        /// A malformed surface op.
        SurfaceOpShape = "surface-op-shape",
        /// Malformed or impossible `sourceEventSeqs`.
        Provenance = "provenance",
        /// Malformed ranges in `sourceEventSeqs`.
        RangeProvenance = "range-provenance",
        /// A malformed packed chunk row.
        PackedRow = "packed-row",
        /// The first zstd frame does not hold exactly the header line.
        ZstdFirstFrame = "zstd-first-frame",
        /// Bytes that are no zstd frame where one should begin.
        FrameMagic = "frame-magic",
        /// A zstd frame whose structure or content does not decode.
        FrameBlock = "frame-block",
        /// A zstd frame whose content checksum does not match.
        FrameChecksum = "frame-checksum",
        /// One session id in two places.
        DuplicateId = "duplicate-id",
        /// A stored session of this id went another way.
        IdConflict = "id-conflict",
        /// A bound of the engine is exceeded.
        Limit = "limit",
        /// Not an SQLite database.
        NotSqlite = "not-sqlite",
        /// An SQLite database with another schema.
        SqliteSchema = "sqlite-schema",
        /// A damaged SQLite database.
        SqliteCorrupt = "sqlite-corrupt",
        /// An SQLite database that was cut short.
        SqliteTruncated = "sqlite-truncated",
        /// Somebody else is writing.
        Busy = "busy",
        /// Events of a session that has no row.
        OrphanEvents = "orphan-events",
        /// An SQLite cell of the wrong shape.
        Value = "value",
    }
}

words! {
    /// Whose fault a refusal is.
    Family {
        /// Bytes are wrong.
        Damaged = "damaged",
        /// Records break the rules.
        Invalid = "invalid",
        /// A genuine log of another version or vocabulary.
        Unsupported = "unsupported",
    }
}

words! {
    /// What a load had to change, in memory, to accept a log.
    RepairKind {
        /// The last record has no line feed and was dropped.
        TornTail = "torn-tail",
        /// The last zstd frame is cut; what it still yields was kept.
        TornFrame = "torn-frame",
        /// NUL bytes after the last record were dropped.
        NulTail = "nul-tail",
        /// A gap in an open tail: the records after it were dropped.
        SeqGapTail = "seq-gap-tail",
        /// A repeated or lower seq in an open tail: the records from it on were dropped.
        SeqForkTail = "seq-fork-tail",
        /// An unusable record in an open tail: it and all after it were dropped.
        BadTail = "bad-tail",
        /// An open turn was closed.
        InterruptedTurn = "interrupted-turn",
        /// A failed append stored nothing of its batch.
        FailedAppend = "failed-append",
    }
}

words! {
    /// What is legal but worth a look.
    WarningKind {
        /// An object with a key twice; the last one wins.
        DuplicateKey = "duplicate-key",
        /// A tool call id that was used before.
        DuplicateCallId = "duplicate-call-id",
        /// A message id that was used before.
        DuplicateMessageId = "duplicate-message-id",
        /// A tool call without a result in a closed turn.
        DanglingCall = "dangling-call",
        /// A tool result without a call.
        OrphanResult = "orphan-result",
        /// Another message between the results of one assistant message.
        InterleavedResults = "interleaved-results",
        /// A compaction that begins and never ends.
        OpenBracket = "open-bracket",
        /// Time went backwards.
        ClockStep = "clock-step",
        /// An integer that JavaScript cannot hold.
        UnsafeInteger = "unsafe-integer",
        /// Negative zero inside data.
        NegativeZero = "negative-zero",
        /// A seed length beyond the last event.
        SeedBound = "seed-bound",
        /// A seed length without a parent session.
        SeedWithoutParent = "seed-without-parent",
        /// A request header with an unknown reason.
        UnknownHeaderReason = "unknown-header-reason",
        /// A WAL-mode database without its WAL file.
        WalWithoutWalFile = "wal-without-wal-file",
        /// An older v0 shape was brought up to date.
        Normalised = "normalised",
    }
}

impl RefusalKind {
    /// What to do about a log that was refused for it; absent where messages of this kind say so themselves.
    #[must_use]
    pub const fn advice(self) -> Option<&'static str> {
        use RefusalKind as K;
        Some(match self {
            K::Bom | K::InvalidUtf8 | K::DuplicateId | K::IdConflict | K::Busy => return None,
            K::Empty | K::NoHeader | K::FrameMagic | K::FrameBlock | K::FrameChecksum | K::ZstdFirstFrame => {
                "restore the file from a backup"
            }
            K::NewerFormat | K::OlderFormat => "use a release that reads this format",
            K::LegacyHeaderDelta | K::LegacyFallbackReason | K::LegacyModeSet => {
                "convert the log with a release that still reads it"
            }
            K::UnsupportedEvent => "allow the type if it is one of yours, or use a release that knows it",
            K::SeqGap => "restore the missing events from a backup",
            K::SeqFork => "keep one of the two branches in a copy",
            K::NotSqlite => "give a log in a format that is read",
            K::SqliteSchema => "export the sessions with the release that wrote them",
            K::SqliteCorrupt | K::SqliteTruncated => "restore the database from a backup",
            K::OrphanEvents => "restore the sessions table from a backup, or mend it in a copy",
            K::Limit => "it is more than can be kept; shorten it in a copy",
            _ => "mend it in a copy of the log",
        })
    }

    /// The family that the kind belongs to.
    #[must_use]
    pub const fn family(self) -> Family {
        use RefusalKind as K;
        match self {
            K::NewerFormat
            | K::OlderFormat
            | K::LegacyHeaderDelta
            | K::LegacyFallbackReason
            | K::LegacyModeSet
            | K::UnsupportedEvent
            | K::SqliteSchema
            | K::Limit => Family::Unsupported,
            K::Empty
            | K::NoHeader
            | K::Bom
            | K::BlankRecord
            | K::CorruptRecord
            | K::GluedRecord
            | K::NulPadding
            | K::InvalidUtf8
            | K::SeqGap
            | K::SeqFork
            | K::ZstdFirstFrame
            | K::FrameMagic
            | K::FrameBlock
            | K::FrameChecksum
            | K::NotSqlite
            | K::SqliteCorrupt
            | K::SqliteTruncated
            | K::OrphanEvents => Family::Damaged,
            _ => Family::Invalid,
        }
    }
}

/// Why an event, a header or a whole log was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind, stable for scripts.
    pub kind: RefusalKind,
    /// Name of the rule that refused.
    pub rule: &'static str,
    /// Line of the file, from 1.
    pub line: Option<u64>,
    /// Byte offset in the file (or in its decompressed text).
    pub offset: Option<u64>,
    /// The row of an SQLite table, which has no line and no offset.
    pub rowid: Option<i64>,
    /// The event.
    pub seq: Option<Seq>,
    /// What is wrong and what to do next, for people.
    pub message: String,
}

impl Refusal {
    /// A refusal without a place.
    #[must_use]
    pub fn new(kind: RefusalKind, rule: &'static str, message: impl Into<String>) -> Self {
        Self { kind, rule, line: None, offset: None, rowid: None, seq: None, message: message.into() }
    }

    /// The same refusal at an event.
    #[must_use]
    pub fn at_seq(mut self, seq: Seq) -> Self {
        self.seq = Some(seq);
        self
    }

    /// The same refusal at a place of a file. A place that is already known stays.
    #[must_use]
    pub fn at_line(mut self, line: u64, offset: u64) -> Self {
        self.line.get_or_insert(line);
        self.offset.get_or_insert(offset);
        self
    }

    /// The same refusal at a row of an SQLite table. A row that is already known stays.
    #[must_use]
    pub fn at_row(mut self, rowid: i64) -> Self {
        self.rowid.get_or_insert(rowid);
        self
    }

    /// The kind's family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.kind.family()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused as {} ({}): {}", self.kind, self.family(), self.message)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal.kind {
            RefusalKind::Limit => ErrorKind::Limit,
            k if k.family() == Family::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Rejected,
        };
        let mut error =
            Self::new(kind, refusal.to_string()).with_rule(refusal.rule).with_refusal(refusal.kind);
        if let (Some(line), Some(offset)) = (refusal.line, refusal.offset) {
            error = error.with_line(line).with_offset(offset);
        }
        match refusal.seq {
            Some(seq) => error.with_seq(seq),
            None => error,
        }
    }
}

/// Something legal that a person should know about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The kind, stable for scripts.
    pub kind: WarningKind,
    /// Line of the file, from 1.
    pub line: Option<u64>,
    /// The event.
    pub seq: Option<Seq>,
    /// Where and why, for people.
    pub message: String,
}
