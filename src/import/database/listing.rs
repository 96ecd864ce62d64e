//! What is in a database: that it is one of the reference's, which sessions it has, and what is wrong with it.
//!
//! Sessions are listed by their index; only if that is damaged, by their table too. Cost is a few look-ups a session.

use std::collections::{BTreeMap, HashSet};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};

use super::cells::value;
use super::{Contents, Owner, SessionKey};
use crate::event::{Refusal, RefusalKind};
use crate::import::judgement::word;
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
    let mut faults = Vec::new();
    let mut ids = BTreeMap::new();
    let damage = find(connection, schema, &mut ids, &mut faults).err();
    if let Some(bytes) = bytes_missing {
        let message =
            format!("the last {bytes} bytes of the database are missing; what does not need them is read");
        faults.push(Refusal::new(RefusalKind::SqliteTruncated, "database-length", message));
    } else if let Some((what, error)) = damage {
        let message = format!("read {what}: {error}; what does not need the damaged pages is read");
        faults.push(Refusal::new(RefusalKind::SqliteCorrupt, "database-pages", message));
    }
    let sessions = ids.into_iter().map(|(id, rowid)| {
        let last_seq = last_seq(connection, schema, &id, rowid).ok().flatten().unwrap_or(0);
        SessionKey { id, last_seq }
    });
    Contents { sessions: sessions.collect(), faults }
}

/// Finds the sessions by their index, and events that are nobody's; or tells what cannot be read on the way.
fn find(
    connection: &Connection,
    schema: Schema,
    ids: &mut BTreeMap<Vec<u8>, i64>,
    faults: &mut Vec<Refusal>,
) -> Result<(), (&'static str, rusqlite::Error)> {
    let state = check_store_id(connection).map_err(|error| ("table persistence_state", error));
    let listed = list(connection, schema, "INDEXED BY sqlite_autoindex_sessions_1", ids, faults);
    if let Err(error) = listed {
        // The table may still have what its index has lost.
        let whole = list(connection, schema, "NOT INDEXED", ids, faults).is_ok();
        let what =
            if whole { "the index of sessions" } else { "the list of sessions, some of which may be lost" };
        return Err((what, error));
    }
    faults.extend(orphans(connection, schema, ids).map_err(|error| ("the index of events", error))?);
    faults.extend(state?.err());
    Ok(())
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
fn check_store_id(connection: &Connection) -> rusqlite::Result<Result<(), Refusal>> {
    let mut statement = connection.prepare("SELECT store_id FROM persistence_state WHERE singleton = 1")?;
    let mut rows = statement.query([])?;
    let sound = match rows.next()? {
        Some(row) => matches!(row.get_ref(0)?, ValueRef::Text(id) if is_uuid(id)),
        None => false,
    };
    Ok(if sound { Ok(()) } else { Err(value("persistence_state has no row with a UUID as store_id")) })
}

/// Adds the ids of sessions with their rowids.
fn list(
    connection: &Connection,
    schema: Schema,
    by: &str,
    ids: &mut BTreeMap<Vec<u8>, i64>,
    faults: &mut Vec<Refusal>,
) -> rusqlite::Result<()> {
    let id = schema.id_column();
    let mut statement = connection.prepare(&format!("SELECT rowid, {id} FROM sessions {by}"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let rowid = row.get(0)?;
        match row.get_ref(1)? {
            ValueRef::Text(id) if !id.is_empty() => drop(ids.insert(id.to_vec(), rowid)),
            other => {
                let message =
                    format!("{id} in table sessions is no text with a session's id ({})", other.data_type());
                faults.push(value(message).at_row(rowid));
            }
        }
    }
    Ok(())
}

/// The refusal of events whose session has no row.
fn orphans(
    connection: &Connection,
    schema: Schema,
    ids: &BTreeMap<Vec<u8>, i64>,
) -> rusqlite::Result<Option<Refusal>> {
    let numbers: HashSet<i64> = match schema {
        Schema::V17 => HashSet::new(),
        Schema::V19 => ids.values().copied().collect(),
    };
    let select = |condition: &str| {
        connection.prepare(&format!(
            "SELECT session_id FROM events INDEXED BY sqlite_autoindex_events_1 {condition} ORDER BY session_id LIMIT 1"
        ))
    };
    let mut following = select("WHERE session_id > ?1")?;
    let mut named = Vec::new();
    let mut orphans = 0_u64;
    let mut next = select("")?.query_row([], |row| Ok(Owner::of(row.get_ref(0)?))).optional()?;
    while let Some(owner) = next {
        let known = match &owner {
            Owner::Id(id) => ids.contains_key(id),
            Owner::Number(number) => numbers.contains(number),
            Owner::Other => false,
        };
        if !known {
            orphans += 1;
            if named.len() < IDS_NAMED_MAX {
                named.push(owner.shown());
            }
        }
        if matches!(owner, Owner::Other) {
            break;
        }
        next = following.query_row([&owner], |row| Ok(Owner::of(row.get_ref(0)?))).optional()?;
    }
    if orphans == 0 {
        return Ok(None);
    }
    let more = if orphans > named.len() as u64 { ", ..." } else { "" };
    let message =
        format!("events of {orphans} sessions have no row in table sessions: {}{more}", named.join(", "));
    Ok(Some(Refusal::new(RefusalKind::OrphanEvents, "sessions-row", message)))
}

fn last_seq(connection: &Connection, schema: Schema, id: &[u8], rowid: i64) -> rusqlite::Result<Option<u64>> {
    let owner = match schema {
        Schema::V17 => Owner::Id(id.to_vec()),
        Schema::V19 => Owner::Number(rowid),
    };
    let mut statement = connection.prepare(
        "SELECT seq FROM events INDEXED BY sqlite_autoindex_events_1 WHERE session_id = ?1 ORDER BY seq DESC LIMIT 1",
    )?;
    let seq = statement.query_row([&owner], |row| row.get::<_, i64>(0)).optional()?;
    Ok(seq.and_then(|seq| u64::try_from(seq).ok()))
}

fn foreign(rule: &'static str, message: String) -> Refusal {
    Refusal::new(RefusalKind::SqliteSchema, rule, message)
}
