//! Maps the rows of events: by their table, and by the index where that leads to more or tells of what is lost.

use std::io;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, Statement};

use super::index::Index;
use super::map::{Filling, Map, Owner, Place};
use super::scan::{Budget, Payload, Unread, scan};
use super::{Agreement, bytes_of, cell, damage};
use crate::limits::SESSION_ID_BYTES_MAX;
use crate::sqlite::Schema;

/// The key of a row's session, unless it is too long for one.
const OWNER: &str = "CASE WHEN octet_length(session_id) <= 1024 THEN session_id END";
const _: () = assert!(SESSION_ID_BYTES_MAX == 1024);

/// Fills the map. `owners` are the sessions that are known.
pub(super) fn map<'o>(
    connection: &Connection,
    schema: Schema,
    file_bytes: u64,
    map: &Map,
    owners: impl Iterator<Item = &'o Owner>,
) -> io::Result<(Unread, Agreement)> {
    let cells = bytes_of(&["session_id", "seq", "type", "time", "data", "source_event_seqs", "surface_op"]);
    let columns = format!("{OWNER}, seq, {cells}");
    let by_rowid = format!("SELECT rowid, {columns} FROM events NOT INDEXED WHERE rowid = ?1");
    let mut events = Events {
        schema,
        payload: Payload::of(file_bytes),
        filling: map.filling().map_err(io::Error::other)?,
        // Where the table cannot be read at all, neither can one of its rows.
        by_rowid: connection.prepare(&by_rowid).ok(),
        entries: 0,
        differ: false,
        lost: false,
    };
    let unread = scan(connection, ("events", &columns), &mut Budget::of(file_bytes), &mut |row| {
        events.add(row).map(drop)
    })?;
    let rows = map.len().map_err(io::Error::other)?;
    let select = format!("{OWNER}, seq, rowid");
    let index = Index {
        table: "events",
        name: "sqlite_autoindex_events_1",
        select: &select,
        order: &["session_id", "seq"],
    };
    let whole = index.walk(connection, &mut Budget::of(file_bytes), &mut |row| events.entry(row))?;
    let sound = whole && !events.differ && events.entries == rows;
    if !whole {
        // What lies between two pages that cannot be read is found from its session.
        let mut budget = Budget::of(file_bytes);
        for owner in owners {
            index.walk_of(connection, owner, &mut budget, &mut |row| events.entry(row))?;
        }
    }
    Ok((unread, Agreement { sound, complete: whole && !events.lost }))
}

struct Events<'c> {
    schema: Schema,
    payload: Payload,
    filling: Filling<'c>,
    by_rowid: Option<Statement<'c>>,
    /// Entries of the index.
    entries: u64,
    /// The index tells of a row that no walk over the table found.
    differ: bool,
    /// One of these cannot be read.
    lost: bool,
}

impl Events<'_> {
    /// Takes a row of the table: its rowid, key and seq, and what its cells take.
    fn add(&mut self, row: &Row<'_>) -> io::Result<Option<(Owner, i64)>> {
        let ValueRef::Integer(rowid) = cell(row, 0) else { return Ok(None) };
        let (owner, seq) = place_of(cell(row, 1), cell(row, 2), self.schema);
        let place = Place { seq, rowid, lost: !self.payload.take(cell(row, 3)) };
        self.filling.add(&owner, place).map_err(io::Error::other)?;
        Ok(Some((owner, seq)))
    }

    /// Takes an entry of the index: key, seq and rowid.
    fn entry(&mut self, row: &Row<'_>) -> io::Result<()> {
        self.entries += 1;
        let (owner, seq) = place_of(cell(row, 0), cell(row, 1), self.schema);
        let ValueRef::Integer(rowid) = cell(row, 2) else { return Ok(()) };
        if self.filling.knows(&owner, seq, rowid).map_err(io::Error::other)? {
            return Ok(());
        }
        self.differ = true;
        if self.read(rowid)? != Some((owner.clone(), seq)) {
            self.lost = true;
            self.filling.add(&owner, Place { seq, rowid, lost: true }).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Looks for a row where the index says that it is.
    fn read(&mut self, rowid: i64) -> io::Result<Option<(Owner, i64)>> {
        let Some(mut by_rowid) = self.by_rowid.take() else { return Ok(None) };
        let mut found = Ok(None);
        let read = by_rowid.query_row([rowid], |row| {
            found = self.add(row);
            Ok(())
        });
        self.by_rowid = Some(by_rowid);
        read.optional().or_else(|error| damage(error).map(|()| None))?;
        found
    }
}

/// Key and seq of a row. One without a seq is nobody's.
fn place_of(owner: ValueRef<'_>, seq: ValueRef<'_>, schema: Schema) -> (Owner, i64) {
    match seq {
        ValueRef::Integer(seq) => (Owner::of(owner, schema), seq),
        _ => (Owner::Nobody, 0),
    }
}
