//! What is in a database: that it is one of the reference's, which sessions it has, and what is wrong with it.
//!
//! Sessions are listed, and their events counted, by the tables themselves, so that a damaged index shows when it leads to
//! other rows. That costs one walk over the table of events, without its data. Invariant: what a walk gives ascends, or it ends.
//! So it is linear in the file, though pages may be damaged, or made, to lead to one page from many.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use super::cells::value;
use super::{Contents, SessionKey};
use crate::event::{Refusal, RefusalKind};
use crate::import::judgement::word;
use crate::limits::{SESSION_ID_BYTES_MAX, SESSION_ROWS_TOLD_MAX};
use crate::sqlite::{APPLICATION_ID, Schema, collapsed, is_uuid};

/// Objects of a foreign schema that are looked at.
const OBJECTS_MAX: usize = 16;
/// Longest text of an object that is looked at, in characters.
const OBJECT_TEXT_CHARS_MAX: usize = 4096;
/// Ids that a message names.
const IDS_NAMED_MAX: usize = 3;

/// The schema of the database, or why it is not one of the reference's.
pub(super) fn schema(connection: &Connection) -> rusqlite::Result<Result<Schema, Refusal>> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let (version, mark) = (number("PRAGMA user_version")?, number("PRAGMA application_id")?);
    if mark != APPLICATION_ID {
        let message = format!("its application_id is {mark}, not the {APPLICATION_ID} of a session database");
        return Ok(Err(foreign("application-id", message)));
    }
    let Some(schema) = Schema::of_user_version(version) else {
        let message = format!("its schema version is {version}; those that are read are 17 and 19");
        return Ok(Err(foreign("user-version", message)));
    };
    let found = objects(connection)?;
    let expected: Vec<_> =
        schema.tables().iter().map(|(name, sql)| object("table", name, name, &collapsed(sql))).collect();
    if found == expected {
        return Ok(Ok(schema));
    }
    let odd = found
        .iter()
        .find(|object| !expected.contains(object))
        .or_else(|| expected.iter().find(|object| !found.contains(object)));
    let odd = odd.map_or(String::new(), |odd| format!(": {}", word(odd)));
    let message = format!("its tables are not those of schema {version}{odd}");
    Ok(Err(foreign("schema-text", message)))
}

/// All sessions, and what is wrong with the database as a whole: one fault where one says it all.
pub(super) fn contents(connection: &Connection, schema: Schema, bytes_missing: Option<u64>) -> Contents {
    let mut found = Found::default();
    let damage = found.look(connection, schema).err();
    let mut faults = found.faults;
    if let Some(bytes) = bytes_missing {
        let message =
            format!("the last {bytes} bytes of the database are missing; what does not need them is read");
        faults.push(Refusal::new(RefusalKind::SqliteTruncated, "database-length", message));
    } else if let Some((what, error)) = &damage {
        let message = format!("read {what}: {error}; what does not need the damaged pages is read");
        faults.push(Refusal::new(RefusalKind::SqliteCorrupt, "database-pages", message));
    }
    let counted = damage.is_none();
    let sessions = found.ids.into_iter().map(|(id, rowid)| {
        let rows = match schema {
            Schema::V17 => found.rows_by_id.get(&id),
            Schema::V19 => found.rows_by_number.get(&rowid),
        };
        let rows = rows.copied().unwrap_or(0);
        SessionKey { id, rows, counted }
    });
    Contents { sessions: sessions.collect(), faults }
}

/// What was seen of a database.
#[derive(Default)]
struct Found {
    /// The sessions and their rowids.
    ids: BTreeMap<Vec<u8>, i64>,
    /// How many events there are of each session, by the key that they name it with.
    rows_by_id: HashMap<Vec<u8>, u64>,
    rows_by_number: HashMap<i64, u64>,
    /// Events that name no session, or one by a text that no id is as long as.
    rows_of_nobody: u64,
    /// Rows of sessions without a usable id. Of these the first few have a fault each.
    rows_refused: HashSet<i64>,
    faults: Vec<Refusal>,
}

impl Found {
    /// Looks through the tables; or tells what cannot be read on the way.
    fn look(
        &mut self,
        connection: &Connection,
        schema: Schema,
    ) -> Result<(), (&'static str, rusqlite::Error)> {
        let state = check_store_id(connection).map_err(|error| ("table persistence_state", error));
        // What one of the two has lost, the other may still have.
        let by_table = self.list(connection, schema, "NOT INDEXED", |rowid, _| (None, rowid));
        let by_index =
            self.list(connection, schema, "INDEXED BY sqlite_autoindex_sessions_1", |rowid, id| match id {
                // NULLs stand first, by their rowids. Whatever else is no text has no place there.
                ValueRef::Text(id) => (Some(id.to_vec()), 0),
                _ => (None, rowid),
            });
        self.tell_of_further_rows();
        by_table.and(by_index).map_err(|error| ("the list of sessions, some of which may be lost", error))?;
        self.count(connection).map_err(|error| ("table events", error))?;
        self.faults.extend(self.orphans(schema));
        self.faults.extend(state?.err());
        Ok(())
    }

    /// Adds the ids of sessions with their rowids, walking `by` what is in the order of `key`.
    fn list(
        &mut self,
        connection: &Connection,
        schema: Schema,
        by: &str,
        key: impl Fn(i64, ValueRef<'_>) -> (Option<Vec<u8>>, i64),
    ) -> rusqlite::Result<()> {
        let id = schema.id_column();
        let mut statement = connection.prepare(&format!("SELECT rowid, {id} FROM sessions {by}"))?;
        let mut rows = statement.query([])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            let rowid = row.get(0)?;
            check_ascends(&mut last, key(rowid, row.get_ref(1)?))?;
            match row.get_ref(1)? {
                ValueRef::Text(id) if (1..=SESSION_ID_BYTES_MAX).contains(&id.len()) => {
                    self.ids.entry(id.to_vec()).or_insert(rowid);
                }
                other => self.refuse_row(rowid, || unusable_id(id, other)),
            }
        }
        Ok(())
    }

    /// Adds the fault of a row of `sessions`, if it is new and among the first few.
    fn refuse_row(&mut self, rowid: i64, fault: impl FnOnce() -> Refusal) {
        if self.rows_refused.insert(rowid) && self.rows_refused.len() <= SESSION_ROWS_TOLD_MAX {
            self.faults.push(fault().at_row(rowid));
        }
    }

    /// Has the last fault of a row count those that have none of their own.
    fn tell_of_further_rows(&mut self) {
        let further = self.rows_refused.len().saturating_sub(SESSION_ROWS_TOLD_MAX);
        if let Some(last) = self.faults.last_mut().filter(|_| further > 0) {
            last.message += &format!("; so it is with {further} more rows");
        }
    }

    /// Counts the events by the table alone: what its index says is compared with that.
    fn count(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare("SELECT rowid, session_id FROM events NOT INDEXED")?;
        let mut rows = statement.query([])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            check_ascends(&mut last, row.get::<_, i64>(0)?)?;
            match row.get_ref(1)? {
                ValueRef::Text(id) if id.len() <= SESSION_ID_BYTES_MAX => match self.rows_by_id.get_mut(id) {
                    Some(rows) => *rows += 1,
                    None => drop(self.rows_by_id.insert(id.to_vec(), 1)),
                },
                ValueRef::Integer(number) => *self.rows_by_number.entry(number).or_default() += 1,
                _ => self.rows_of_nobody += 1,
            }
        }
        Ok(())
    }

    /// The refusal of events whose session has no row.
    fn orphans(&self, schema: Schema) -> Option<Refusal> {
        let mut names: Vec<String> = match schema {
            Schema::V17 => {
                let orphans = self.rows_by_id.keys().filter(|id| !self.ids.contains_key(*id));
                orphans.map(|id| word(&String::from_utf8_lossy(id))).collect()
            }
            Schema::V19 => {
                let known: HashSet<i64> = self.ids.values().copied().collect();
                let orphans = self.rows_by_number.keys().filter(|number| !known.contains(number));
                orphans.map(i64::to_string).collect()
            }
        };
        if self.rows_of_nobody > 0 {
            names.push("nobody".to_owned());
        }
        if names.is_empty() {
            return None;
        }
        names.sort_unstable();
        let orphans = names.len();
        names.truncate(IDS_NAMED_MAX);
        let more = if orphans > names.len() { ", ..." } else { "" };
        let names = names.join(", ");
        let message = format!("events of {orphans} sessions have no row in table sessions: {names}{more}");
        Some(Refusal::new(RefusalKind::OrphanEvents, "sessions-row", message))
    }
}

/// SQLite takes the order of a tree for granted.
fn check_ascends<K: Ord>(last: &mut Option<K>, key: K) -> rusqlite::Result<()> {
    if last.as_ref().is_some_and(|last| *last >= key) {
        let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        return Err(rusqlite::Error::SqliteFailure(corrupt, Some("its rows are not in order".to_owned())));
    }
    *last = Some(key);
    Ok(())
}

/// The refusal of a row of `sessions` for what it has as an id.
fn unusable_id(column: &str, cell: ValueRef<'_>) -> Refusal {
    match cell {
        ValueRef::Text(id) if id.len() > SESSION_ID_BYTES_MAX => {
            let message = format!(
                "{column} in table sessions has {} bytes; a session's id has at most {SESSION_ID_BYTES_MAX}",
                id.len()
            );
            Refusal::new(RefusalKind::Limit, "session-id-bytes", message)
        }
        other => {
            let kind = other.data_type();
            value(format!("{column} in table sessions is no text with a session's id ({kind})"))
        }
    }
}

/// The objects of the schema in the order in which the reference compares them.
fn objects(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!(
        "SELECT type, name, tbl_name, substr(sql, 1, {OBJECT_TEXT_CHARS_MAX}) FROM sqlite_schema \
         WHERE name NOT GLOB 'sqlite_*' ORDER BY type, name LIMIT {OBJECTS_MAX}"
    ))?;
    let mut rows = statement.query([])?;
    let mut objects = Vec::new();
    while let Some(row) = rows.next()? {
        let [kind, name, table, sql] = [0, 1, 2, 3].map(|index| shown(row, index));
        objects.push(object(&kind, &name, &table, &collapsed(&sql)));
    }
    Ok(objects)
}

fn object(kind: &str, name: &str, table: &str, sql: &str) -> String {
    format!("{kind} {name} of {table}: {sql}")
}

fn shown(row: &Row<'_>, index: usize) -> String {
    match row.get_ref(index) {
        Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    }
}

/// The one row of `persistence_state` has the store's id.
pub(super) fn check_store_id(connection: &Connection) -> rusqlite::Result<Result<(), Refusal>> {
    let mut statement = connection.prepare("SELECT store_id FROM persistence_state WHERE singleton = 1")?;
    let mut rows = statement.query([])?;
    let sound = match rows.next()? {
        Some(row) => matches!(row.get_ref(0)?, ValueRef::Text(id) if is_uuid(id)),
        None => false,
    };
    Ok(if sound { Ok(()) } else { Err(value("persistence_state has no row with a UUID as store_id")) })
}

fn foreign(rule: &'static str, message: String) -> Refusal {
    Refusal::new(RefusalKind::SqliteSchema, rule, message)
}
