//! Walks the entries of an index: what it says of the table beside it.

use std::io;

use rusqlite::{Connection, Row, params_from_iter};

use super::damage;
use super::map::Owner;
use super::scan::Budget;

/// How the entries of an index are walked: what is selected of them, and by what they are ordered.
pub(super) struct Index<'w> {
    pub(super) table: &'w str,
    pub(super) name: &'w str,
    pub(super) select: &'w str,
    pub(super) order: &'w [&'w str],
}

impl Index<'_> {
    /// Hands every entry to `take`: from the first on, and, if something stops that, from the last one back. Answers whether
    /// nothing did.
    pub(super) fn walk(
        &self,
        connection: &Connection,
        budget: &mut Budget,
        take: &mut dyn FnMut(&Row<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.one_way(connection, ("", None), budget, take)? {
            return Ok(true);
        }
        self.one_way(connection, (" DESC", None), budget, take)?;
        Ok(false)
    }

    /// The same for the events of one session.
    pub(super) fn walk_of(
        &self,
        connection: &Connection,
        owner: &Owner,
        budget: &mut Budget,
        take: &mut dyn FnMut(&Row<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.one_way(connection, ("", Some(owner)), budget, take)? {
            self.one_way(connection, (" DESC", Some(owner)), budget, take)?;
        }
        Ok(())
    }

    fn one_way(
        &self,
        connection: &Connection,
        (direction, owner): (&str, Option<&Owner>),
        budget: &mut Budget,
        take: &mut dyn FnMut(&Row<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Self { table, name, select, order } = self;
        let order: Vec<_> = order.iter().map(|column| format!("{column}{direction}")).collect();
        let order = order.join(", ");
        let of = if owner.is_some() { "WHERE session_id = ?1 " } else { "" };
        let mut walk = || -> rusqlite::Result<io::Result<bool>> {
            let select = format!("SELECT {select} FROM {table} INDEXED BY {name} {of}ORDER BY {order}");
            let mut statement = connection.prepare(&select)?;
            let mut rows = statement.query(params_from_iter(owner))?;
            while let Some(row) = rows.next()? {
                if !budget.take_row() {
                    return Ok(Ok(false));
                }
                if let Err(error) = take(row) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(true))
        };
        walk().unwrap_or_else(|error| damage(error).map(|()| false))
    }
}
