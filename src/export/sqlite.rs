//! Writes sessions into a database that the reference opens (spec section 15): schema 17, one batch a session.
//!
//! The database is made under a temporary name and published when it is whole, as every log is. Each session is one
//! transaction: it is in the database with all of its events or not at all.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, Statement, params};

use super::pack::{Packer, Piece};
use super::publish::Draft;
use super::redact::{Redactor, Sink};
use super::session::each_event;
use crate::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::event::json::JsonString;
use crate::event::{Event, SessionHeader};
use crate::ids::Seq;
use crate::sqlite::data::DataEncoder;
use crate::sqlite::{APPLICATION_ID, Schema, sources};

/// The schema that is written.
const SCHEMA: Schema = Schema::V17;

/// A database that is being written.
#[derive(Debug)]
pub struct SqliteWriter {
    connection: Connection,
    file: File,
    draft: Draft,
    path: PathBuf,
    encoder: DataEncoder,
}

impl SqliteWriter {
    /// Begins the database `path`, which must not exist, in a directory that must. Nothing stands there before
    /// [`finish`](Self::finish). Only its owner can read it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] when something stands there already; [`ErrorKind::Io`].
    pub fn create(path: &Path) -> Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(Error::new(ErrorKind::Conflict, "export: the file exists").with_path(path));
        }
        let (draft, file) = Draft::create(path)?;
        let connection = begin(draft.temporary_path()).map_err(|error| failed(path, error))?;
        Ok(Self { connection, file, draft, path: path.to_owned(), encoder: DataEncoder::new()? })
    }

    /// Adds a session with the events that are stored: an interrupted turn stays open. With `packed`, runs of chunk
    /// events become rows, losing nothing. A `redactor` replaces secrets in the events.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] for a session that is in it already; [`ErrorKind::Unsupported`] for a header that a database
    /// cannot hold; damage in the session; [`ErrorKind::Io`]; those of [`Redactor::event`]. The database is as it was before.
    pub fn session(
        &mut self,
        session: &Session,
        packed: bool,
        redactor: Option<&mut Redactor<'_>>,
    ) -> Result<()> {
        self.events_of(session.header(), packed, |sink| each_event(session, redactor, sink))
    }

    /// Adds a session with the events that `write` hands on, as [`session`](Self::session) does.
    pub(crate) fn events_of(
        &mut self,
        header: &SessionHeader,
        packed: bool,
        write: impl FnOnce(&mut Sink<'_>) -> Result<()>,
    ) -> Result<()> {
        self.batch("BEGIN")?;
        match self.add(header, packed, write) {
            Ok(()) => self.batch("COMMIT"),
            Err(error) => {
                // Many a failure rolls back by itself, and then there is nothing left to roll back. The first error is
                // the one to tell.
                let _rolled_back = self.batch("ROLLBACK");
                Err(error)
            }
        }
    }

    /// Puts the database under its name, whole and durable.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] when the name was taken meanwhile; [`ErrorKind::Io`].
    pub fn finish(self) -> Result<()> {
        let (draft, file) = self.close()?;
        draft.publish(file)
    }

    /// The whole database without its name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub(crate) fn close(self) -> Result<(Draft, File)> {
        let Self { connection, file, draft, path, .. } = self;
        connection.close().map_err(|(_, error)| failed(&path, error))?;
        Ok((draft, file))
    }

    fn add(
        &mut self,
        header: &SessionHeader,
        packed: bool,
        write: impl FnOnce(&mut Sink<'_>) -> Result<()>,
    ) -> Result<()> {
        let Self { connection, path, encoder, .. } = self;
        add_header(connection, header).map_err(|error| error.with_path(&*path))?;
        let statement = connection.prepare("INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
        let mut rows = Rows {
            statement: statement.map_err(|error| failed(path, error))?,
            id: &header.id,
            path,
            encoder,
            sources: Vec::new(),
            inserted: false,
        };
        let mut packer = packed.then(Packer::default);
        write(&mut |event| match &mut packer {
            Some(packer) => packer.push(event, &mut |piece| rows.add(piece)),
            None => rows.add(Piece::Event(event)),
        })?;
        packer.map_or(Ok(()), |mut packer| packer.flush(&mut |piece| rows.add(piece)))?;
        if rows.inserted {
            // As the reference counts: one for each batch.
            let counted = connection.execute("UPDATE sessions SET revision = 1 WHERE id = ?1", [&header.id]);
            counted.map_err(|error| failed(path, error))?;
        }
        Ok(())
    }

    fn batch(&self, sql: &str) -> Result<()> {
        self.connection.execute_batch(sql).map_err(|error| failed(&self.path, error))
    }
}

/// The rows of one session.
struct Rows<'c> {
    statement: Statement<'c>,
    id: &'c str,
    path: &'c Path,
    encoder: &'c mut DataEncoder,
    sources: Vec<u8>,
    inserted: bool,
}

impl Rows<'_> {
    fn add(&mut self, piece: Piece<'_>) -> Result<()> {
        match piece {
            Piece::Event(event) => self.event(event),
            Piece::Row { kind, seq, time, data } => self.insert(
                seq,
                [kind.tag(), data],
                time,
                [ValueRef::Null, ValueRef::Null, ValueRef::Integer(0)],
            ),
        }
    }

    fn event(&mut self, event: &Event<'_>) -> Result<()> {
        let op = event.surface_op.map(|op| {
            let mut text = String::new();
            op.write_json(&mut text);
            text
        });
        let mut cell = std::mem::take(&mut self.sources);
        cell.clear();
        if let Some(list) = &event.sources {
            sources::encode(list, &mut cell);
        }
        let sources = event.sources.as_ref().map_or(ValueRef::Null, |_| ValueRef::Blob(&cell));
        let op = op.as_ref().map_or(ValueRef::Null, |op| ValueRef::Text(op.as_bytes()));
        let mark = if event.ignorable { ValueRef::Integer(1) } else { ValueRef::Null };
        let inserted =
            self.insert(event.seq, [&event.type_name, &event.data], event.time, [sources, op, mark]);
        self.sources = cell;
        inserted
    }

    fn insert(
        &mut self,
        seq: Seq,
        [type_name, data]: [&str; 2],
        time: i64,
        [sources, op, mark]: [ValueRef<'_>; 3],
    ) -> Result<()> {
        let data = match self.encoder.blob(data)? {
            Some(blob) => ValueRef::Blob(blob),
            None => ValueRef::Text(data.as_bytes()),
        };
        let seq_cell = i64::try_from(seq.get()).unwrap_or(i64::MAX);
        let [data, sources, op, mark] = [data, sources, op, mark].map(ToSqlOutput::Borrowed);
        let cells: [&dyn ToSql; 8] = [&self.id, &seq_cell, &type_name, &time, &data, &sources, &op, &mark];
        self.inserted = true;
        self.statement.execute(cells).map(drop).map_err(|error| failed(self.path, error).with_seq(seq))
    }
}

/// A new database without sessions. It has no journal file: until it is published it is nobody's.
fn begin(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection
        .execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA mmap_size = 0;")?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", SCHEMA.user_version())?;
    let mut tables = SCHEMA.tables();
    // In the order in which the reference makes them.
    tables.rotate_left(1);
    let [state, sessions, events] = tables;
    for (_, sql) in [state, sessions, events] {
        connection.execute_batch(sql)?;
    }
    connection.execute("INSERT INTO persistence_state VALUES (1, ?1)", [uuid(&connection)?])?;
    Ok(connection)
}

/// The row of a session without events.
fn add_header(connection: &Connection, header: &SessionHeader) -> Result<()> {
    let string = |value: &Option<JsonString<'static>>, name: &str| match value {
        None => Ok(None),
        Some(value) => value.to_str().map(|text| Some(text.to_owned())).ok_or_else(|| {
            let message = format!(
                "export session {}: a database holds no {name} with half a surrogate pair",
                header.id
            );
            Error::new(ErrorKind::Unsupported, message)
        }),
    };
    let integer = |value: Option<u64>| value.map(|value| i64::try_from(value).unwrap_or(i64::MAX));
    let inserted = connection.execute(
        "INSERT INTO sessions VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0)",
        params![
            header.id,
            header.created_at,
            string(&header.cwd, "cwd")?,
            string(&header.parent_session, "parentSession")?,
            integer(header.seed_length),
            header.subagent.then_some("subagent"),
            integer(header.delegation_depth),
            string(&header.agent_preset, "agentPreset")?,
            uuid(connection).map_err(|error| failed(Path::new(""), error))?,
        ],
    );
    inserted.map(drop).map_err(|error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::ConstraintViolation) => Error::new(
            ErrorKind::Conflict,
            format!("export session {}: it is in the database already", header.id),
        ),
        _ => failed(Path::new(""), error),
    })
}

/// A random UUID (version 4), from SQLite's own randomness.
fn uuid(connection: &Connection) -> rusqlite::Result<String> {
    let mut bytes: [u8; 16] = connection.query_row("SELECT randomblob(16)", [], |row| row.get(0))?;
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(format!("{a}-{b}-{c}-{d}-{e}"))
}

fn failed(path: &Path, error: rusqlite::Error) -> Error {
    let error = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::TooBig) => {
            Error::new(ErrorKind::Limit, "export: a database holds no cell as long").with_source(error)
        }
        _ => Error::io("export", std::io::Error::other(error)),
    };
    error.with_path(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;
    use crate::{AppendOptions, Draft};

    #[test]
    fn a_failure_that_rolled_back_by_itself_is_the_one_that_is_told() {
        let store =
            crate::StoreOptions::new().open_storage(std::sync::Arc::new(MemoryStorage::new())).unwrap();
        let session = store.create_session(SessionHeader::new("s", 1)).unwrap();
        session.append(&[Draft::new("todo/write", "{}")], AppendOptions::default()).unwrap().wait().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SqliteWriter::create(&dir.path().join("out.db")).unwrap();
        let trigger = "CREATE TEMP TRIGGER t BEFORE INSERT ON main.events BEGIN SELECT RAISE(ROLLBACK, 'the cause'); END";
        writer.connection.execute_batch(trigger).unwrap();
        let error = writer.session(&session, true, None).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.is_some_and(|source| source.contains("the cause")), "{error:?}");
        writer.connection.execute_batch("DROP TRIGGER t").unwrap();
        writer.session(&session, true, None).unwrap();
        writer.finish().unwrap();
    }
}
