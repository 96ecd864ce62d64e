//! Lists the sessions of a damaged database: by their table, and by the index where that leads to more.

use std::collections::{BTreeMap, HashSet};
use std::io;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};

use super::index::Index;
use super::map::Owner;
use super::scan::{Budget, Payload, Unread, scan};
use super::{Agreement, SalvagedSession, bytes_of, cell, damage};
use crate::event::{Refusal, RefusalKind};
use crate::import::judgement::word;
use crate::limits::{SESSION_ID_BYTES_MAX, SESSION_ROWS_TOLD_MAX};
use crate::sqlite::Schema;

/// The sessions, by id.
pub(super) fn list(
    connection: &Connection,
    schema: Schema,
    file_bytes: u64,
) -> io::Result<(Listed, Unread, Agreement)> {
    let id = schema.id_column();
    let short_id = format!("CASE WHEN octet_length({id}) <= {SESSION_ID_BYTES_MAX} THEN {id} END");
    let cells = bytes_of(&[id, "cwd", "parent_session", "origin", "agent_preset", "incarnation"]);
    let columns = format!("{short_id}, {cells}");
    let mut listed = Listed::new(schema, file_bytes);
    let unread = scan(connection, ("sessions", &columns), &mut Budget::of(file_bytes), &mut |row| {
        listed.add(row);
        Ok(())
    })?;
    let rows = listed.rows;
    let by_rowid = format!("SELECT rowid, {columns} FROM sessions NOT INDEXED WHERE rowid = ?1");
    let select = format!("{short_id}, rowid");
    let index =
        Index { table: "sessions", name: "sqlite_autoindex_sessions_1", select: &select, order: &[id] };
    let mut entries = 0;
    let whole = index.walk(connection, &mut Budget::of(file_bytes), &mut |row| {
        entries += 1;
        let (ValueRef::Text(id), ValueRef::Integer(rowid)) = (cell(row, 0), cell(row, 1)) else {
            return Ok(());
        };
        if listed.ids.contains(id) {
            return Ok(());
        }
        let found = connection.query_row(&by_rowid, [rowid], |row| {
            let same = cell(row, 1) == ValueRef::Text(id);
            if same {
                listed.add(row);
            }
            Ok(same)
        });
        if !found.optional().or_else(|error| damage(error).map(|()| None))?.unwrap_or(false) {
            listed.headless.insert(listed.owner(id, rowid), String::from_utf8_lossy(id).into_owned());
        }
        Ok(())
    })?;
    let complete = whole && listed.headless.is_empty();
    let sound = complete && entries == rows;
    listed.sessions.sort_unstable_by(|a, b| a.id.as_bytes().cmp(b.id.as_bytes()));
    Ok((listed, unread, Agreement { sound, complete }))
}

/// The sessions as they are found.
pub(super) struct Listed {
    schema: Schema,
    pub(super) sessions: Vec<SalvagedSession>,
    ids: HashSet<Vec<u8>>,
    /// Ids that the index has of sessions without a row, by the key of their events.
    pub(super) headless: BTreeMap<Owner, String>,
    rows: u64,
    payload: Payload,
    pub(super) refused: usize,
    pub(super) faults: Vec<Refusal>,
}

impl Listed {
    fn new(schema: Schema, file_bytes: u64) -> Self {
        Self {
            schema,
            sessions: Vec::new(),
            ids: HashSet::new(),
            headless: BTreeMap::new(),
            rows: 0,
            payload: Payload::of(file_bytes),
            refused: 0,
            faults: Vec::new(),
        }
    }

    /// Takes a row: its rowid, its id, and what its cells take.
    fn add(&mut self, row: &Row<'_>) {
        let Ok(rowid) = row.get::<_, i64>(0) else { return };
        self.rows += 1;
        let id = match (cell(row, 1), self.payload.take(cell(row, 2))) {
            (ValueRef::Text(id), true) if !id.is_empty() => std::str::from_utf8(id).ok(),
            _ => None,
        };
        match id {
            None => self.refuse(rowid, RefusalKind::Value, "it has no text with a session's id"),
            Some(id) if self.ids.insert(id.as_bytes().to_vec()) => {
                let owner = self.owner(id.as_bytes(), rowid);
                self.sessions.push(SalvagedSession { id: id.to_owned(), owner, rowid });
            }
            Some(id) => {
                self.refuse(rowid, RefusalKind::DuplicateId, &format!("session {} has another row", word(id)))
            }
        }
    }

    fn refuse(&mut self, rowid: i64, kind: RefusalKind, message: &str) {
        self.refused += 1;
        if self.refused <= SESSION_ROWS_TOLD_MAX {
            let message = format!("a row of table sessions: {message}");
            self.faults.push(Refusal::new(kind, "sessions-row", message).at_row(rowid));
        }
    }

    fn owner(&self, id: &[u8], rowid: i64) -> Owner {
        match self.schema {
            Schema::V17 => Owner::Id(id.to_vec()),
            Schema::V19 => Owner::Number(rowid),
        }
    }
}
