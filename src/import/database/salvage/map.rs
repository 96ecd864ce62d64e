//! Which rows there are of which session: a table in a temporary database of SQLite's own, so that memory stays bounded
//! whatever there are.

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Rows, Statement, params};

use crate::limits::SESSION_ID_BYTES_MAX;
use crate::sqlite::Schema;

/// The key under which the events of a session are stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Owner {
    /// Its id, as it is stored.
    Id(Vec<u8>),
    /// Its number.
    Number(i64),
    /// The cell is none of a session's.
    Nobody,
}

impl Owner {
    pub(super) fn of(cell: ValueRef<'_>, schema: Schema) -> Self {
        match (schema, cell) {
            (Schema::V17, ValueRef::Text(id)) if (1..=SESSION_ID_BYTES_MAX).contains(&id.len()) => {
                Self::Id(id.to_vec())
            }
            (Schema::V19, ValueRef::Integer(number)) => Self::Number(number),
            _ => Self::Nobody,
        }
    }
}

impl ToSql for Owner {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Id(id) => ValueRef::Text(id),
            Self::Number(number) => ValueRef::Integer(*number),
            Self::Nobody => ValueRef::Blob(&[]),
        }))
    }
}

/// A row of the table of events, as far as its place counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) seq: i64,
    pub(super) rowid: i64,
    /// Only the index knows it, or no file could hold what it says.
    pub(super) lost: bool,
}

/// The rows of all sessions.
#[derive(Debug)]
pub(super) struct Map {
    database: Connection,
}

/// The statements that fill a map.
pub(super) struct Filling<'m> {
    insert: Statement<'m>,
    known: Statement<'m>,
}

impl Map {
    pub(super) fn new() -> rusqlite::Result<Self> {
        let database = Connection::open("")?;
        database.execute_batch(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA mmap_size = 0; \
             CREATE TABLE map (owner, seq, place, lost, PRIMARY KEY (owner, seq, place)) WITHOUT ROWID; BEGIN",
        )?;
        Ok(Self { database })
    }

    pub(super) fn filling(&self) -> rusqlite::Result<Filling<'_>> {
        Ok(Filling {
            insert: self.database.prepare("INSERT OR IGNORE INTO map VALUES (?1, ?2, ?3, ?4)")?,
            known: self
                .database
                .prepare("SELECT NOT lost FROM map WHERE owner = ?1 AND seq = ?2 AND place = ?3")?,
        })
    }

    /// How many rows there are that were not lost.
    pub(super) fn len(&self) -> rusqlite::Result<u64> {
        let count = self.database.query_row("SELECT count(*) FROM map WHERE NOT lost", [], |row| row.get(0));
        count.map(|count: i64| u64::try_from(count).unwrap_or(0))
    }

    /// Selects the rows of a session in the order of their seqs, or of their writing; see [`places`].
    pub(super) fn of(&self, as_written: bool) -> rusqlite::Result<Statement<'_>> {
        let order = if as_written { "place" } else { "seq, lost, place" };
        self.database.prepare(&format!("SELECT seq, place, lost FROM map WHERE owner = ?1 ORDER BY {order}"))
    }

    /// The keys with rows that were not lost. The next one behind a key is looked for, so that nothing is held.
    pub(super) fn owner_behind(
        &self,
        owner: Option<&Owner>,
        schema: Schema,
    ) -> rusqlite::Result<Option<Owner>> {
        let behind = if owner.is_some() { "AND owner > ?1" } else { "AND ?1 IS NULL" };
        let select = format!("SELECT owner FROM map WHERE NOT lost {behind} ORDER BY owner LIMIT 1");
        let mut statement = self.database.prepare(&select)?;
        statement.query_row(params![owner], |row| Ok(Owner::of(row.get_ref(0)?, schema))).optional()
    }
}

impl Filling<'_> {
    /// Adds a row, unless it is there.
    pub(super) fn add(&mut self, owner: &Owner, Place { seq, rowid, lost }: Place) -> rusqlite::Result<()> {
        self.insert.execute(params![owner, seq, rowid, lost]).map(drop)
    }

    /// Whether a row is there and not lost.
    pub(super) fn knows(&mut self, owner: &Owner, seq: i64, rowid: i64) -> rusqlite::Result<bool> {
        let known = self.known.query_row(params![owner, seq, rowid], |row| row.get(0)).optional()?;
        Ok(known.unwrap_or(false))
    }
}

/// The next row of a session.
pub(super) fn next_place(rows: &mut Rows<'_>) -> rusqlite::Result<Option<Place>> {
    let place =
        |row: &rusqlite::Row<'_>| Ok(Place { seq: row.get(0)?, rowid: row.get(1)?, lost: row.get(2)? });
    rows.next()?.map(place).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_by_session_in_either_order_and_lost_ones_behind_those_of_their_seq() {
        let map = Map::new().unwrap();
        let owners = [Owner::Id(b"a".to_vec()), Owner::Id(b"b".to_vec()), Owner::Nobody];
        {
            let mut filling = map.filling().unwrap();
            let rows =
                [(0, 1, 7, false), (0, 0, 9, false), (0, 0, 3, true), (1, 0, 5, false), (1, 0, 5, true)];
            for (owner, seq, rowid, lost) in rows {
                filling.add(&owners[owner], Place { seq, rowid, lost }).unwrap();
            }
            filling.add(&owners[2], Place { seq: 0, rowid: 8, lost: false }).unwrap();
            assert!(filling.knows(&owners[0], 1, 7).unwrap() && !filling.knows(&owners[0], 0, 3).unwrap());
        }
        assert_eq!(map.len().unwrap(), 4);
        let of = |as_written| {
            let mut statement = map.of(as_written).unwrap();
            let mut rows = statement.query([&owners[0]]).unwrap();
            let mut found = Vec::new();
            while let Some(place) = next_place(&mut rows).unwrap() {
                found.push((place.seq, place.rowid, place.lost));
            }
            found
        };
        assert_eq!(of(false), [(0, 9, false), (0, 3, true), (1, 7, false)]);
        assert_eq!(of(true), [(0, 3, true), (1, 7, false), (0, 9, false)]);
        let behind = |owner| map.owner_behind(owner, Schema::V17).unwrap();
        assert_eq!(
            [behind(None), behind(Some(&owners[0]))],
            [Some(owners[0].clone()), Some(owners[1].clone())]
        );
        assert_eq!([behind(Some(&owners[1])), behind(Some(&owners[2]))], [Some(Owner::Nobody), None]);
    }
}
