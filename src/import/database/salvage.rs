//! What of a damaged database can still be read, for a repair: its sessions, and the rows of each.
//!
//! The table is what counts; its index tells what the table lost, and leads to rows that no walk reaches. Nothing is judged
//! here. Opened and read as every database (see [`source`](super::source)); time is bounded by the length of the file, and
//! memory by the sessions and the largest row: which rows there are is kept in a temporary database.

mod events;
mod index;
mod map;
mod scan;
mod sessions;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Statement, params};

use self::map::{Map, Place, next_place};
use self::scan::Unread;
use super::cells;
use super::rows::{Cells, Composer, RowFault};
use super::source::Point;
use super::{OpenRefusal, Opened, disagree, fault, listing};
use crate::event::{Refusal, RefusalKind, SessionHeader};
use crate::ids::Seq;
use crate::import::RecordOrigin;
use crate::import::judgement::word;
use crate::limits::SESSION_ROWS_TOLD_MAX;
use crate::sqlite::Schema;
use crate::{Cancel, Error, Result};

pub(crate) use self::map::Owner;

/// Ids that a message names.
const IDS_NAMED_MAX: usize = 3;

/// A damaged database, and which rows it has.
#[derive(Debug)]
pub(crate) struct Salvage {
    path: PathBuf,
    point: std::sync::Arc<Point>,
    schema: Schema,
    connection: Connection,
    map: Map,
    sessions: Vec<SalvagedSession>,
    headless: BTreeMap<Owner, String>,
    faults: Vec<DatabaseFault>,
    rows: u64,
}

/// A session that has a row in the table of sessions.
#[derive(Debug, Clone)]
pub(crate) struct SalvagedSession {
    pub(crate) id: String,
    pub(crate) owner: Owner,
    rowid: i64,
}

/// What is wrong with the database as a whole.
#[derive(Debug)]
pub(crate) struct DatabaseFault {
    pub(crate) refusal: Refusal,
    /// No session loses anything by it.
    pub(crate) lossless: bool,
}

/// How a table and its index agree.
#[derive(Debug, Clone, Copy)]
struct Agreement {
    /// Both say the same.
    sound: bool,
    /// All of the index was read, and every row that it tells of.
    complete: bool,
}

/// What is found at a row of a session.
pub(crate) enum Salvaged<'a> {
    /// The JSON text of the record that it stands for, and what of it was of a loose type.
    Record { bytes: &'a [u8], rowid: i64, packed: bool, retyped: Option<&'static str> },
    /// It holds none that can be read.
    Broken { refusal: Refusal, type_name: Option<&'a str> },
    /// The index alone knows of it.
    Lost { rowid: i64, seq: i64 },
}

impl Salvage {
    /// Opens a database and looks through it.
    ///
    /// # Errors
    ///
    /// What the operating system reports; and, inside, why nothing of it can be read.
    pub(crate) fn open(path: &Path) -> io::Result<std::result::Result<Self, Refusal>> {
        let cancel = Cancel::new();
        let opened = Opened::of(path, &cancel).and_then(|mut opened| {
            let connection = opened.connection(path, &cancel)?;
            Ok((opened, connection))
        });
        match opened {
            Ok((opened, connection)) => Self::look(path, opened, connection).map(Ok),
            Err(why) => OpenRefusal::told(why).map(Err),
        }
    }

    fn look(path: &Path, opened: Opened, connection: Connection) -> io::Result<Self> {
        let mut salvage = Self {
            path: path.to_owned(),
            point: opened.point,
            schema: opened.schema,
            connection,
            map: Map::new().map_err(io::Error::other)?,
            sessions: Vec::new(),
            headless: BTreeMap::new(),
            faults: Vec::new(),
            rows: 0,
        };
        if let Some(bytes) = salvage.point.bytes_missing() {
            let message = format!("the last {bytes} bytes of the database are missing");
            salvage.told(RefusalKind::SqliteTruncated, "database-length", message, true);
        }
        salvage.look_for_all()?;
        salvage.rows = salvage.map.len().map_err(io::Error::other)?;
        match listing::check_store_id(&salvage.connection) {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => salvage.faults.push(DatabaseFault { refusal, lossless: true }),
            Err(error) => {
                let refusal = fault(error, "read table persistence_state", salvage.point.is_cut_short())?;
                salvage.faults.push(DatabaseFault { refusal, lossless: true });
            }
        }
        Ok(salvage)
    }

    /// The sessions, by id.
    pub(crate) fn sessions(&self) -> &[SalvagedSession] {
        &self.sessions
    }

    /// What is wrong with the database as a whole.
    pub(crate) fn faults(&self) -> &[DatabaseFault] {
        &self.faults
    }

    /// How many rows of events can be read, of whomever.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether the source is still what was opened.
    pub(crate) fn holds(&self) -> bool {
        self.point.holds(&self.path)
    }

    /// The ids that the index of sessions has for sessions whose rows are lost.
    pub(crate) fn headless(&self) -> &BTreeMap<Owner, String> {
        &self.headless
    }

    /// The key behind this one under which there are events.
    pub(crate) fn owner_behind(&self, owner: Option<&Owner>) -> Result<Option<Owner>> {
        self.map.owner_behind(owner, self.schema).map_err(|error| self.failed(io::Error::other(error)))
    }

    /// The header of a session, or why it has none that can be used; and what is wrong with its row and costs nothing.
    pub(crate) fn header(
        &self,
        session: &SalvagedSession,
    ) -> Result<std::result::Result<(SessionHeader, Option<Refusal>), Refusal>> {
        let read = || -> rusqlite::Result<_> {
            let mut statement = self.connection.prepare(&cells::statement(self.schema))?;
            let mut rows = statement.query([session.rowid])?;
            Ok(match rows.next()? {
                Some(row) => match cells::session_header(row) {
                    Ok(header) if header.id == session.id => Ok((header, cells::store_cells(row).err())),
                    Ok(_) => Err(disagree("sessions")),
                    Err(refusal) => Err(refusal),
                },
                None => Err(disagree("sessions")),
            })
        };
        let header = match read() {
            Ok(header) => header,
            Err(error) => Err(self.refusal(error, "read the session").map_err(|error| self.failed(error))?),
        };
        Ok(header.map_err(|refusal| refusal.at_row(session.rowid)))
    }

    /// Hands the rows of a session to `take`: in the order of their seqs, or `as_written`.
    ///
    /// # Errors
    ///
    /// What the operating system reports, and those of `take`.
    pub(crate) fn each_row(
        &self,
        owner: &Owner,
        as_written: bool,
        take: &mut dyn FnMut(Salvaged<'_>) -> Result<()>,
    ) -> Result<()> {
        let failed = |error| self.failed(io::Error::other(error));
        let mut places = self.map.of(as_written).map_err(failed)?;
        let mut places = places.query([owner]).map_err(failed)?;
        let mut read = self.connection.prepare(&row_statement(self.schema)).map_err(failed)?;
        let mut composer = Composer::salvaging(self.schema).map_err(|error| self.failed(error))?;
        while let Some(place) = next_place(&mut places).map_err(failed)? {
            match place {
                Place { seq, rowid, lost: true } => take(Salvaged::Lost { rowid, seq })?,
                _ => self.read_row(&mut read, &mut composer, (owner, place), take)?,
            }
        }
        Ok(())
    }

    fn read_row(
        &self,
        read: &mut Statement<'_>,
        composer: &mut Composer,
        (owner, Place { seq, rowid, .. }): (&Owner, Place),
        take: &mut dyn FnMut(Salvaged<'_>) -> Result<()>,
    ) -> Result<()> {
        let broken = |refusal: Refusal, type_name| {
            let seq = Seq::new(u64::try_from(seq).unwrap_or(0));
            Salvaged::Broken { refusal: refusal.at_row(rowid).at_seq(seq), type_name }
        };
        let queried = read.query(params![rowid, owner, seq]);
        let mut rows = queried.map_err(|error| self.failed(io::Error::other(error)))?;
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => return take(broken(disagree("events"), None)),
            Err(error) => {
                let refusal = self.refusal(error, "read the row").map_err(|error| self.failed(error))?;
                return take(broken(refusal, None));
            }
        };
        let cells = match Cells::of(row, self.schema, true) {
            Ok(cells) => cells,
            Err(refusal) => return take(broken(refusal, None)),
        };
        match composer.compose(&cells) {
            Ok(()) => {
                let (bytes, retyped) = composer.composed();
                let packed = matches!(cells.origin(), RecordOrigin::PackedRow(_));
                take(Salvaged::Record { bytes, rowid, packed, retyped })
            }
            Err(RowFault::Fatal(refusal) | RowFault::Unusable(refusal)) => {
                take(broken(refusal, Some(cells.type_name())))
            }
        }
    }

    /// Lists the sessions and maps the rows of all of them.
    fn look_for_all(&mut self) -> io::Result<()> {
        let bytes = self.point.file_bytes()?;
        let (sessions, unread, agreement) = sessions::list(&self.connection, self.schema, bytes)?;
        let refused = sessions.refused;
        (self.sessions, self.headless) = (sessions.sessions, sessions.headless);
        let lossy = |refusal| DatabaseFault { refusal, lossless: false };
        self.faults.extend(sessions.faults.into_iter().map(lossy));
        if refused > SESSION_ROWS_TOLD_MAX {
            let more = refused - SESSION_ROWS_TOLD_MAX;
            let message = format!("so it is with {more} more rows of table sessions");
            self.told(RefusalKind::Value, "cell-shape", message, false);
        }
        self.tell_of_headless();
        self.tell_of("sessions", unread, agreement);
        let owners = self.sessions.iter().map(|session| &session.owner);
        let (unread, agreement) = events::map(&self.connection, self.schema, bytes, &self.map, owners)?;
        self.tell_of("events", unread, agreement);
        Ok(())
    }

    /// Tells what of a table, and of its index, could not be read.
    fn tell_of(&mut self, table: &str, unread: Unread, Agreement { sound, complete }: Agreement) {
        let kind = match self.point.is_cut_short() {
            true => RefusalKind::SqliteTruncated,
            false => RefusalKind::SqliteCorrupt,
        };
        if let Some((from, next)) = unread.first {
            let from = if from == i64::MIN { "the first".to_owned() } else { format!("row {from}") };
            let to = next.map_or("on".to_owned(), |next| format!("to before row {next}"));
            let more = match unread.places {
                1 => String::new(),
                places => format!(", and in {} more places", places - 1),
            };
            let message = format!("pages of table {table} cannot be read, from {from} {to}{more}");
            self.told(kind, "database-pages", message, complete);
        }
        if !sound {
            let message = format!("table {table} and its index disagree, or the index cannot be read");
            self.told(kind, "database-index", message, true);
        }
    }

    fn tell_of_headless(&mut self) {
        if self.headless.is_empty() {
            return;
        }
        let mut ids: Vec<_> = self.headless.values().map(|id| word(id)).collect();
        ids.sort_unstable();
        let sessions = ids.len();
        ids.truncate(IDS_NAMED_MAX);
        let more = if sessions > ids.len() { ", ..." } else { "" };
        let message = format!("the rows of {sessions} sessions cannot be read: {}{more}", ids.join(", "));
        self.told(RefusalKind::SqliteCorrupt, "sessions-row", message, false);
    }

    fn told(&mut self, kind: RefusalKind, rule: &'static str, message: String, lossless: bool) {
        self.faults.push(DatabaseFault { refusal: Refusal::new(kind, rule, message), lossless });
    }

    fn refusal(&self, error: rusqlite::Error, attempted: &str) -> io::Result<Refusal> {
        fault(error, attempted, self.point.is_cut_short())
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io("repair: read database", error).with_path(&self.path)
    }
}

/// Selects a row of events as [`Cells`] wants it. The last cell says whether it is the row that was mapped.
fn row_statement(schema: Schema) -> String {
    format!(
        "SELECT rowid, seq, type, time, data, source_event_seqs, surface_op, {}, \
         (?2 = x'' OR session_id IS ?2 AND seq IS ?3) FROM events NOT INDEXED WHERE rowid = ?1",
        schema.packed_column()
    )
}

/// Bytes of cells, as the heads of rows tell them.
fn bytes_of(columns: &[&str]) -> String {
    let sizes: Vec<_> = columns.iter().map(|column| format!("ifnull(octet_length({column}), 0)")).collect();
    sizes.join(" + ")
}

fn cell<'r>(row: &'r Row<'_>, index: usize) -> ValueRef<'r> {
    row.get_ref(index).unwrap_or(ValueRef::Null)
}

/// Whether an error is one of the database's: any other ends the salvage.
fn damage(error: rusqlite::Error) -> io::Result<()> {
    fault(error, "read", false).map(drop)
}
