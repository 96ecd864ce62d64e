//! The same sessions in SQLite, as one would store them to read: a row for each session, a row for each event.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rusqlite::{Connection, OpenFlags, params};
use sessionlog::SessionInfo;
use sessionlog::event::SurfaceOp;

use crate::large::{self, Scale};
use crate::trace::TraceEvent;

const SCHEMA: &str = "
    CREATE TABLE sessions(
        key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, created_at INTEGER NOT NULL, cwd TEXT, title TEXT,
        events INTEGER NOT NULL, bytes INTEGER NOT NULL, last_time INTEGER, open_turn INTEGER NOT NULL);
    CREATE TABLE events(
        session INTEGER NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL, time INTEGER NOT NULL,
        data TEXT NOT NULL, sources TEXT, surface_op TEXT, ignorable INTEGER NOT NULL,
        PRIMARY KEY(session, seq)) WITHOUT ROWID;";
const SESSIONS: &str = "
    SELECT id, created_at, cwd, title, events, bytes, last_time, open_turn FROM sessions
    ORDER BY created_at DESC, id";
const EVENT: &str = "
    SELECT type, time, data, sources, surface_op, ignorable FROM events WHERE session = ?1 AND seq = ?2";

/// A database that is open for reading. Its page cache is as large as the store's cache.
pub(crate) struct Database(Connection);

/// A listed session.
#[allow(dead_code, reason = "it is the reading that counts")]
pub(crate) struct SessionRow {
    id: String,
    created_at: i64,
    cwd: Option<String>,
    title: Option<String>,
    events: i64,
    bytes: i64,
    last_time: Option<i64>,
    open_turn: bool,
}

impl SessionRow {
    /// Whether it says the same of the same session. (The sizes and turns of [`fill`] are stand-ins of the same width.)
    pub(crate) fn is(&self, info: &SessionInfo) -> bool {
        let cwd = info.header.cwd.as_ref().and_then(|cwd| cwd.to_str());
        self.id == info.header.id
            && self.created_at == info.header.created_at
            && self.cwd.as_deref() == cwd
            && self.title.as_deref() == info.title.as_deref()
            && u64::try_from(self.events) == Ok(info.events)
            && self.last_time == info.last_time
    }
}

/// An event.
#[allow(dead_code, reason = "it is the reading that counts")]
pub(crate) struct EventRow {
    type_name: String,
    time: i64,
    pub(crate) data: String,
    sources: Option<String>,
    surface_op: Option<String>,
    ignorable: bool,
}

impl Database {
    /// Opens a database.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let cache_kib = i64::try_from(sessionlog::limits::DECODED_CACHE_BYTES >> 10)?;
        connection.pragma_update(None, "cache_size", -cache_kib)?;
        Ok(Self(connection))
    }

    /// All sessions, newest first.
    pub(crate) fn sessions(&self) -> Result<Vec<SessionRow>> {
        let mut statement = self.0.prepare_cached(SESSIONS)?;
        let rows = statement.query_map([], |row| {
            Ok(SessionRow {
                id: row.get(0)?,
                created_at: row.get(1)?,
                cwd: row.get(2)?,
                title: row.get(3)?,
                events: row.get(4)?,
                bytes: row.get(5)?,
                last_time: row.get(6)?,
                open_turn: row.get(7)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// One event of session `n`.
    pub(crate) fn event(&self, session: usize, seq: usize) -> Result<EventRow> {
        let mut statement = self.0.prepare_cached(EVENT)?;
        Ok(statement.query_row(params![i64::try_from(session)?, i64::try_from(seq)?], |row| {
            Ok(EventRow {
                type_name: row.get(0)?,
                time: row.get(1)?,
                data: row.get(2)?,
                sources: row.get(3)?,
                surface_op: row.get(4)?,
                ignorable: row.get(5)?,
            })
        })?)
    }
}

/// The database in `parent` that holds the sessions of [`large::kept`]; it is made if it is not there.
pub(crate) fn kept(parent: &Path, seed: u64, scale: Scale) -> Result<PathBuf> {
    let Scale { sessions, events } = scale;
    let mut filled = Ok(());
    let path = large::make_once(&parent.join(format!("sqlite-{sessions}x{events}-{seed}")), |path| {
        filled = fill(path, seed, scale);
    });
    filled.map(|()| path)
}

fn fill(path: &Path, seed: u64, scale: Scale) -> Result<()> {
    let mut connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    connection.execute_batch(SCHEMA)?;
    let histories = large::histories(seed, scale.events);
    let transaction = connection.transaction()?;
    {
        let mut session =
            transaction.prepare("INSERT INTO sessions VALUES(?1, ?2, ?3, ?4, NULL, ?5, ?6, ?7, 0)")?;
        let mut event = transaction.prepare("INSERT INTO events VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)")?;
        for n in 0..scale.sessions {
            let events = &histories[n % histories.len()];
            let bytes = i64::try_from(events.iter().map(|event| event.data.len()).sum::<usize>())?;
            let last_time = events.last().map(|event| event.time_ms);
            let (key, count) = (i64::try_from(n)?, i64::try_from(events.len())?);
            let (id, cwd) = (Scale::id(n), large::cwd(n));
            session.execute(params![key, id, large::created_at_ms(n), cwd, count, bytes, last_time])?;
            for (seq, e) in (0_i64..).zip(events) {
                let (sources, op) = (sources(e), surface_op(e));
                event.execute(params![key, seq, e.type_name, e.time_ms, e.data, sources, op])?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

fn sources(event: &TraceEvent) -> Option<String> {
    let list: Vec<String> = event.sources.iter().map(|seq| seq.get().to_string()).collect();
    (!list.is_empty()).then(|| format!("[{}]", list.join(",")))
}

fn surface_op(event: &TraceEvent) -> Option<String> {
    let json = |op: SurfaceOp| {
        let mut text = String::new();
        op.write_json(&mut text);
        text
    };
    event.surface_op.map(json)
}
