//! The dialect of the reference's SQLite databases, for those who read and for those who write one (spec section 15).
//!
//! Owns the texts of the schemas and the marks of the file; the encodings of cells are in [`sources`] and [`data`]. Opens no database and knows no event: importing and exporting do that.

pub(crate) mod data;
pub(crate) mod sources;

/// `PRAGMA application_id` of every database of the reference: "DSHP".
pub(crate) const APPLICATION_ID: i64 = 0x4453_4850;

/// The schemas that are read. The first is the one that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schema {
    /// Sessions are keyed by their id; `ignorable` says what is packed.
    V17,
    /// Sessions have an integer key beside their id; `is_packed` says what is packed, and nothing is ignorable.
    V19,
}

impl Schema {
    /// The schema of a database with this `PRAGMA user_version`.
    pub(crate) fn of_user_version(version: i64) -> Option<Self> {
        [Self::V17, Self::V19].into_iter().find(|schema| schema.user_version() == version)
    }

    /// Its `PRAGMA user_version`.
    pub(crate) const fn user_version(self) -> i64 {
        match self {
            Self::V17 => 17,
            Self::V19 => 19,
        }
    }

    /// Its tables in the order of their names: the name, and the text that makes it.
    pub(crate) const fn tables(self) -> [(&'static str, &'static str); 3] {
        let (events, sessions) = match self {
            Self::V17 => (EVENTS_17, SESSIONS_17),
            Self::V19 => (EVENTS_19, SESSIONS_19),
        };
        [("events", events), ("persistence_state", PERSISTENCE_STATE), ("sessions", sessions)]
    }

    /// The column with the session's id in `sessions`.
    pub(crate) const fn id_column(self) -> &'static str {
        match self {
            Self::V17 => "id",
            Self::V19 => "session_key",
        }
    }

    /// The column of `events` that says whether a row is packed.
    pub(crate) const fn packed_column(self) -> &'static str {
        match self {
            Self::V17 => "ignorable",
            Self::V19 => "is_packed",
        }
    }
}

/// A text with every run of white space made one space: how the reference compares schemas.
pub(crate) fn collapsed(sql: &str) -> String {
    sql.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether this is a UUID of version 1 to 8 in its usual spelling.
pub(crate) fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(at, &byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            14 => (b'1'..=b'8').contains(&byte),
            19 => matches!(byte, b'8' | b'9' | b'a' | b'b' | b'A' | b'B'),
            _ => byte.is_ascii_hexdigit(),
        })
}

// The reference opens a database only if the text of each table is this one, white space aside.

const PERSISTENCE_STATE: &str = "\
CREATE TABLE persistence_state (
  singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
  store_id  TEXT NOT NULL
) STRICT";

const SESSIONS_17: &str = "\
CREATE TABLE sessions (
  id               TEXT PRIMARY KEY,
  version          INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  cwd              TEXT,
  parent_session   TEXT,
  seed_length      INTEGER,
  origin           TEXT,
  delegation_depth INTEGER,
  agent_preset     TEXT,
  incarnation      TEXT NOT NULL,
  revision         INTEGER NOT NULL
) STRICT";

const EVENTS_17: &str = "\
CREATE TABLE events (
  session_id        TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  seq               INTEGER NOT NULL,
  type              TEXT NOT NULL,
  time              INTEGER NOT NULL,
  data              ANY NOT NULL,
  source_event_seqs ANY,
  surface_op        TEXT,
  ignorable         INTEGER CHECK (ignorable IS NULL OR ignorable IN (0, 1)),
  PRIMARY KEY (session_id, seq)
) STRICT";

const SESSIONS_19: &str = "\
CREATE TABLE sessions (
  id               INTEGER PRIMARY KEY,
  session_key      TEXT NOT NULL UNIQUE,
  version          INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  cwd              TEXT,
  parent_session   TEXT,
  seed_length      INTEGER,
  origin           TEXT,
  delegation_depth INTEGER,
  agent_preset     TEXT,
  incarnation      TEXT NOT NULL,
  revision         INTEGER NOT NULL
) STRICT";

const EVENTS_19: &str = "\
CREATE TABLE events (
  session_id        INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  seq               INTEGER NOT NULL,
  type              TEXT NOT NULL,
  time              INTEGER NOT NULL,
  data              ANY NOT NULL,
  source_event_seqs ANY,
  surface_op        TEXT,
  is_packed         INTEGER NOT NULL CHECK (is_packed IN (0, 1)),
  PRIMARY KEY (session_id, seq)
) STRICT";

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths that spec section 15.2 states beside the hashes.
    #[test]
    fn the_texts_have_the_lengths_of_the_format() {
        let lengths = Schema::V17.tables().map(|(name, sql)| (name, collapsed(sql).len()));
        assert_eq!(lengths, [("events", 320), ("persistence_state", 117), ("sessions", 271)]);
    }

    #[test]
    fn uuids_are_told_by_their_version() {
        let uuid = "f2bf2450-5535-456e-a62c-46f4481c0255";
        assert!(is_uuid(uuid.as_bytes()) && is_uuid(uuid.to_uppercase().as_bytes()));
        for (from, to) in
            [("-456e", "-056e"), ("-456e", "-956e"), ("-a62c", "-762c"), ("f2bf", "g2bf"), ("-5", "5-")]
        {
            assert!(!is_uuid(uuid.replacen(from, to, 1).as_bytes()), "{to}");
        }
        assert!(!is_uuid(b"") && !is_uuid(&uuid.as_bytes()[1..]));
    }
}
