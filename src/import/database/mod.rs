//! Databases of the reference as sources of sessions (spec section 15, read as sections 20 and 21 say).
//!
//! Every session is a source of its own with a verdict of its own, and so is what is wrong with the database as a whole:
//! what is damaged never hides what is good. Schema, version and mark are checked before anything else is read. What
//! the source must be kept from is said in [`source`].

mod cells;
mod listing;
mod rows;
pub(crate) mod salvage;
mod source;

use std::ffi::c_int;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use self::rows::{RowOptions, SessionRows};
use self::source::{OpenFault, Point};
use super::part::{Refused, Waiting};
use super::{Item, JudgeOptions, Judgement, RecordSource, judge};
use crate::error::Error;
use crate::event::{Event, Refusal, RefusalKind, SessionHeader};
use crate::sqlite::Schema;
use crate::{Cancel, Result};

/// Steps of SQLite's machine between two looks at whether the work was cancelled.
const STEPS_PER_LOOK: c_int = 1 << 14;

/// A database, from which sessions are read one by one, from any thread.
#[derive(Debug)]
pub(super) struct Database {
    path: PathBuf,
    opened: Mutex<Opened>,
    /// What its sessions were listed from.
    listed: Arc<Point>,
    /// One for all sessions. Who waits holds it.
    patience: Mutex<Patience>,
    /// The session whose reader tells what is to be told once of the database: the first that was read.
    spokesman: OnceLock<Vec<u8>>,
}

/// What a database holds.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) sessions: Vec<SessionKey>,
    /// What is wrong with the database as a whole.
    pub(super) faults: Vec<Refusal>,
}

/// How a session is found again.
#[derive(Debug, Clone)]
pub(super) struct SessionKey {
    /// Its id as it is stored.
    id: Vec<u8>,
    /// Rows of events in the table, where they could be counted to the end.
    rows: u64,
    counted: bool,
}

/// The patience with a database that others write to.
#[derive(Debug, Default)]
pub(super) struct Patience {
    waited: Duration,
    next: Duration,
}

/// A connection, and what it is to.
struct Connected {
    point: Arc<Point>,
    schema: Schema,
    connection: Connection,
}

#[derive(Debug)]
struct Opened {
    point: Arc<Point>,
    schema: Schema,
    idle: Vec<Connection>,
}

impl Database {
    /// Opens a database and lists its sessions. While somebody writes to it, it is waited for, and `waiting` told how long
    /// so far.
    ///
    /// # Errors
    ///
    /// What the operating system reports; any error once the wait was cancelled; and, inside, why nothing of it can be read.
    pub(super) fn open(path: &Path, waiting: &Waiting) -> io::Result<Result<(Arc<Self>, Contents), Refusal>> {
        let cancel = waiting.cancel();
        let mut patience = Patience::default();
        loop {
            let opened = Opened::of(path, cancel).and_then(|mut opened| {
                let connection = opened.connection(path, cancel)?;
                let contents = listing::contents(&connection, opened.schema, opened.point.bytes_missing());
                cancel.check().map_err(|error| OpenFault::Io(io::Error::other(error)))?;
                let steady = opened.point.holds(path);
                opened.idle.push(connection);
                if steady { Ok((opened, contents)) } else { Err(OpenFault::Busy.into()) }
            });
            match opened {
                Ok((opened, contents)) => {
                    let listed = opened.point.clone();
                    let database = Self {
                        path: path.to_owned(),
                        opened: Mutex::new(opened),
                        listed,
                        patience: Mutex::default(),
                        spokesman: OnceLock::new(),
                    };
                    return Ok(Ok((Arc::new(database), contents)));
                }
                Err(OpenRefusal::Fault(OpenFault::Busy)) if patience.wait(path, waiting) => {}
                Err(why) => return why.told().map(Err),
            }
        }
    }

    /// Hands the records of the session with `key` to `use_records`: again, from the start, as often as somebody wrote to
    /// the database meanwhile. The answer to the last time counts. `progress` is told the number of each row.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled);
    /// what `use_records` answers.
    pub(super) fn read<T>(
        &self,
        key: &SessionKey,
        lossy_utf8: bool,
        waiting: &Waiting,
        progress: &dyn Fn(u64),
        mut use_records: impl FnMut(&mut dyn RecordSource) -> Result<T>,
    ) -> Result<T> {
        self.spokesman.get_or_init(|| key.id.clone());
        loop {
            let connected = self.connect(waiting.cancel());
            waiting.cancel().check()?;
            match connected {
                Ok(connected) => {
                    let as_listed = Arc::ptr_eq(&connected.point, &self.listed);
                    let rows = (as_listed && key.counted).then_some(key.rows);
                    let options = RowOptions { lossy_utf8, rows, cut_short: connected.point.is_cut_short() };
                    let read = self.read_rows(&connected, key, options, progress, &mut use_records);
                    waiting.cancel().check()?;
                    let read = read?;
                    if self.is_steady(connected) {
                        *self.patience.lock() = Patience::default();
                        return Ok(read);
                    }
                }
                Err(OpenRefusal::Fault(OpenFault::Busy)) => {}
                Err(why) => {
                    let refusal = why.told().map_err(|error| self.unreadable(error))?;
                    return use_records(&mut Refused::new(refusal));
                }
            }
            if !self.patience.lock().wait(&self.path, waiting) {
                waiting.cancel().check()?;
                return use_records(&mut Refused::new(busy()));
            }
        }
    }

    /// Whether the database is of WAL mode and its WAL is not there, and the reader of this session is to tell it.
    pub(super) fn misses_wal(&self, key: &SessionKey) -> bool {
        let tells = self.spokesman.get() == Some(&key.id);
        tells && matches!(&*self.opened.lock().point, Point::AtRest(stamp) if stamp.lacks_wal())
    }

    /// A connection to the database as it is now.
    fn connect(&self, cancel: &Cancel) -> Result<Connected, OpenRefusal> {
        let mut opened = self.opened.lock();
        if !opened.point.holds(&self.path) {
            *opened = Opened::of(&self.path, cancel)?;
        }
        let connection = opened.connection(&self.path, cancel)?;
        Ok(Connected { point: opened.point.clone(), schema: opened.schema, connection })
    }

    /// Whether nobody wrote to the database since it was connected to; then the connection can serve again.
    fn is_steady(&self, connected: Connected) -> bool {
        if !connected.point.holds(&self.path) {
            return false;
        }
        let mut opened = self.opened.lock();
        if Arc::ptr_eq(&opened.point, &connected.point) {
            opened.idle.push(connected.connection);
        }
        true
    }

    fn read_rows<T>(
        &self,
        Connected { schema, connection, .. }: &Connected,
        key: &SessionKey,
        options: RowOptions,
        progress: &dyn Fn(u64),
        use_records: &mut impl FnMut(&mut dyn RecordSource) -> Result<T>,
    ) -> Result<T> {
        let mut statement = None;
        let opened = header_item(connection, *schema, key).and_then(|(header, owner)| {
            let statement = statement.insert(connection.prepare(&rows::statement(*schema))?);
            Ok((header, statement.query([owner])?))
        });
        match opened {
            Ok((header, rows)) => {
                let records = SessionRows::new(header, rows, *schema, options, progress);
                use_records(&mut records.map_err(|error| self.unreadable(error))?)
            }
            Err(error) => {
                let refusal = fault(error, "read the session", options.cut_short);
                use_records(&mut Refused::new(refusal.map_err(|error| self.unreadable(error))?))
            }
        }
    }

    fn unreadable(&self, error: io::Error) -> Error {
        Error::io("read database", error).with_path(&self.path)
    }
}

impl SessionKey {
    /// The session's id, for people and for comparing with others.
    pub(super) fn id(&self) -> String {
        String::from_utf8_lossy(&self.id).into_owned()
    }

    /// Its share of the database, in any unit that is the same for all of its sessions.
    pub(super) fn weight(&self) -> u64 {
        self.rows.saturating_add(1)
    }
}

impl Patience {
    const LONGEST: Duration = Duration::from_secs(5);
    const FIRST: Duration = Duration::from_millis(10);
    const STEP_MAX: Duration = Duration::from_millis(250);

    /// Waits a little longer than the last time; `false`, at once, when it has waited long enough or is to wait no more.
    #[expect(clippy::disallowed_methods, reason = "nobody is told when another process lets go of a file")]
    fn wait(&mut self, path: &Path, waiting: &Waiting) -> bool {
        if self.waited >= Self::LONGEST || waiting.cancel().is_thrown() {
            return false;
        }
        self.next = (self.next * 2).clamp(Self::FIRST, Self::STEP_MAX);
        waiting.tell(path, self.waited);
        thread::sleep(self.next);
        self.waited += self.next;
        true
    }
}

impl Opened {
    fn of(path: &Path, cancel: &Cancel) -> Result<Self, OpenRefusal> {
        let point = Arc::new(Point::of(path, cancel)?);
        let connection = point.connect(path)?;
        let checked = listing::schema(&connection);
        let schema = match checked {
            Ok(schema) => schema?,
            Err(error) => return Err(sqlite_fault(error, "read the schema", point.is_cut_short())),
        };
        Ok(Self { point, schema, idle: vec![connection] })
    }

    /// A connection whose statements end, interrupted, once `cancel` is thrown.
    fn connection(&mut self, path: &Path, cancel: &Cancel) -> Result<Connection, OpenRefusal> {
        let mut connection = match self.idle.pop() {
            Some(connection) => connection,
            None => self.point.connect(path)?,
        };
        let cancel = cancel.clone();
        let told = connection.progress_handler(STEPS_PER_LOOK, Some(move || cancel.is_thrown()));
        told.map_err(OpenFault::from)?;
        Ok(connection)
    }
}

/// What [`judge_all`] comes by.
pub(crate) enum Judged<'a> {
    /// The next event of a session.
    Event(&'a Event<'a>),
    /// The end of a session.
    Session(&'a Judgement),
    /// Something wrong with the database as a whole, or why it is not read.
    Fault(&'a Refusal),
}

/// Judges every session of a database, in the order of their ids, as an import does.
///
/// # Errors
///
/// [`ErrorKind::Io`](crate::ErrorKind::Io), and those of `take`.
pub(crate) fn judge_all(
    path: &Path,
    options: &JudgeOptions,
    take: &mut dyn FnMut(Judged<'_>) -> Result<()>,
) -> Result<()> {
    let waiting = Waiting::default();
    let opened = Database::open(path, &waiting);
    let (database, contents) = match opened.map_err(|e| Error::io("read database", e).with_path(path))? {
        Ok(opened) => opened,
        Err(refusal) => return take(Judged::Fault(&refusal)),
    };
    contents.faults.iter().try_for_each(|fault| take(Judged::Fault(fault)))?;
    for key in &contents.sessions {
        let judgement = database.read(key, options.lossy_utf8, &waiting, &|_| (), |records| {
            judge(records, options, &mut |admitted| take(Judged::Event(admitted.event())))
        })?;
        take(Judged::Session(&judgement))?;
    }
    Ok(())
}

/// Why a database is not read.
enum OpenRefusal {
    Fault(OpenFault),
    Refused(Refusal),
}

impl OpenRefusal {
    fn told(self) -> io::Result<Refusal> {
        let kind_and_message = match self {
            Self::Refused(refusal) => return Ok(refusal),
            Self::Fault(OpenFault::Io(error)) => return Err(error),
            Self::Fault(OpenFault::Sqlite(error)) => return fault(error, "open the database", false),
            Self::Fault(OpenFault::Busy) => return Ok(busy()),
            Self::Fault(OpenFault::NotSqlite) => (RefusalKind::NotSqlite, "it is no SQLite database"),
            Self::Fault(OpenFault::Cut) => {
                (RefusalKind::SqliteTruncated, "it ends inside the header of a database: its end is lost")
            }
        };
        let (kind, message) = kind_and_message;
        Ok(Refusal::new(kind, "database-file", message))
    }
}

impl From<OpenFault> for OpenRefusal {
    fn from(fault: OpenFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Refusal> for OpenRefusal {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The refusal of a database that never came to rest.
pub(super) fn busy() -> Refusal {
    let message = format!(
        "somebody has been writing to the database for {} s; import it again when it is idle",
        Patience::LONGEST.as_secs()
    );
    Refusal::new(RefusalKind::Busy, "database-at-rest", message)
}

/// The key under which the events of a session are stored.
enum Owner {
    Id(Vec<u8>),
    Number(i64),
}

impl ToSql for Owner {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Id(id) => ValueRef::Text(id),
            Self::Number(number) => ValueRef::Integer(*number),
        }))
    }
}

/// The header of a session or why it has none, and the key of its events. The row is found by the index and read from the
/// table, which must agree on it.
fn header_item(
    connection: &Connection,
    schema: Schema,
    key: &SessionKey,
) -> rusqlite::Result<(Item<'static>, Owner)> {
    let id = Owner::Id(key.id.clone());
    let find = format!("SELECT rowid FROM sessions WHERE {} = ?1", schema.id_column());
    let rowid = connection.query_row(&find, [&id], |row| row.get::<_, i64>(0)).optional()?;
    let mut statement = connection.prepare(&cells::statement(schema))?;
    let mut rows = statement.query([rowid])?;
    let item = match (rows.next()?, rowid) {
        (Some(row), Some(rowid)) if row.get_ref(1)? == ValueRef::Text(&key.id) => match cells::header(row) {
            Ok(header) => Item::HeaderRow { header: Box::<SessionHeader>::new(header), rowid },
            Err(mut refusal) => {
                refusal.message = format!("session {} in table sessions: {}", key.id(), refusal.message);
                Item::Fault(refusal.at_row(rowid))
            }
        },
        (_, Some(rowid)) => Item::Fault(disagree("sessions").at_row(rowid)),
        (_, None) => {
            let message =
                "the session is not found by its id: it was removed, or the index of sessions is damaged";
            Item::Fault(Refusal::new(RefusalKind::NoHeader, "sessions-row", message))
        }
    };
    let owner = match schema {
        Schema::V17 => id,
        Schema::V19 => Owner::Number(rowid.unwrap_or_default()),
    };
    Ok((item, owner))
}

/// The refusal of a table whose index says something else.
fn disagree(table: &str) -> Refusal {
    let message = format!("table {table} and its index disagree: pages of one of them were overwritten");
    Refusal::new(RefusalKind::SqliteCorrupt, "database-index", message)
}

/// What SQLite reports about a database, as a refusal, or as the fault of the operating system that it is.
fn fault(error: rusqlite::Error, attempted: &str, cut_short: bool) -> io::Result<Refusal> {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            return Err(io::Error::other(error));
        }
        // Whoever has the switch that was thrown looks at it before this.
        Some(ErrorCode::OperationInterrupted) => {
            return Err(io::Error::new(io::ErrorKind::Interrupted, error));
        }
        Some(ErrorCode::OutOfMemory) => return Err(io::Error::new(io::ErrorKind::OutOfMemory, error)),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => return Ok(busy()),
        Some(ErrorCode::NotADatabase) => RefusalKind::NotSqlite,
        Some(ErrorCode::TooBig) => RefusalKind::Limit,
        _ if cut_short => RefusalKind::SqliteTruncated,
        _ => RefusalKind::SqliteCorrupt,
    };
    Ok(Refusal::new(kind, "database-pages", format!("{attempted}: {error}")))
}

fn sqlite_fault(error: rusqlite::Error, attempted: &str, cut_short: bool) -> OpenRefusal {
    match fault(error, attempted, cut_short) {
        Ok(refusal) if refusal.kind == RefusalKind::Busy => OpenFault::Busy.into(),
        Ok(refusal) => refusal.into(),
        Err(error) => OpenFault::Io(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_ends_when_its_work_is_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        crate::export::SqliteWriter::create(&path).unwrap().finish().unwrap();
        let cancel = Cancel::new();
        let Ok(mut opened) = Opened::of(&path, &cancel) else { panic!("it does not open") };
        let Ok(connection) = opened.connection(&path, &cancel) else { panic!("no connection") };
        let endless =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
        cancel.cancel("enough");
        let error = connection.query_row(endless, [], |row| row.get::<_, i64>(0)).unwrap_err();
        assert_eq!(fault(error, "count", false).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
