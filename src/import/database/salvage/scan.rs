//! Walks a table of a damaged database by its rowids, past what cannot be read.
//!
//! Every walk ends in time that the file's length bounds, whatever its pages point at: rows and looks behind damage are
//! counted down from budgets. A row may come twice or out of order where pages lie about what is below them.

use std::io;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, Statement};

use super::damage;

/// Fewest bytes of a file that a row or an entry of an index takes.
const ROW_BYTES_MIN: u64 = 8;
/// Bytes of a file for each look behind damage.
const BYTES_PER_PROBE: u64 = 64;
/// How many times over the rows of a file may claim its length: rows of overwritten pages claim anything.
const PAYLOADS_PER_FILE: u64 = 16;
/// Rows up to this length are always read: at most a few pages each.
const SMALL_ROW_BYTES: i64 = 4096;
/// Rowids that SQLite gives begin here.
const FIRST_ROWID: i64 = 1;

/// What a walk of one table may still cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) rows: u64,
    probes: u64,
}

impl Budget {
    /// For a file of so many bytes.
    pub(super) fn of(file_bytes: u64) -> Self {
        Self { rows: file_bytes / ROW_BYTES_MIN, probes: file_bytes / BYTES_PER_PROBE }
    }

    /// Takes one row; `false` if there are more than the file can hold.
    pub(super) fn take_row(&mut self) -> bool {
        self.rows = self.rows.saturating_sub(1);
        self.rows > 0
    }
}

/// What reading the cells of all rows may cost. Rows of one file share it; where they claim more, they share pages.
#[derive(Debug)]
pub(super) struct Payload {
    bytes_left: u64,
}

impl Payload {
    pub(super) fn of(file_bytes: u64) -> Self {
        Self { bytes_left: file_bytes.saturating_mul(PAYLOADS_PER_FILE) }
    }

    /// Takes the cells of a row by the length that its head tells; `false` for one that is not to be read.
    pub(super) fn take(&mut self, length: ValueRef<'_>) -> bool {
        let ValueRef::Integer(length) = length else { return false };
        let left = u64::try_from(length).ok().and_then(|length| self.bytes_left.checked_sub(length));
        self.bytes_left = left.filter(|_| length > SMALL_ROW_BYTES).unwrap_or(self.bytes_left);
        left.is_some() || (0..=SMALL_ROW_BYTES).contains(&length)
    }
}

/// What a walk could not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// How many places there are.
    pub(crate) places: u64,
    /// The lowest rowid that the first of them may hold, and the first one behind it that was read.
    pub(crate) first: Option<(i64, Option<i64>)>,
}

impl Unread {
    fn add(&mut self, from: i64, next: Option<i64>) {
        self.places += 1;
        self.first.get_or_insert((from, next));
    }
}

/// Hands every row that can be read to `take`, with `columns` behind its rowid.
///
/// # Errors
///
/// What the operating system reports, and those of `take`.
pub(super) fn scan(
    connection: &Connection,
    (table, columns): (&str, &str),
    budget: &mut Budget,
    take: &mut dyn FnMut(&Row<'_>) -> io::Result<()>,
) -> io::Result<Unread> {
    let select = |what: &str, limit: &str| {
        connection.prepare(&format!(
            "SELECT {what} FROM {table} NOT INDEXED WHERE rowid >= ?1 ORDER BY rowid{limit}"
        ))
    };
    let mut unread = Unread::default();
    let statements =
        select(&format!("rowid, {columns}"), "").and_then(|walk| Ok((walk, select("rowid", " LIMIT 1")?)));
    let (mut walk, mut probe) = match statements {
        Ok(statements) => statements,
        Err(error) => {
            damage(error)?;
            unread.add(i64::MIN, None);
            return Ok(unread);
        }
    };
    let mut from = i64::MIN;
    while let Some(next) = walk_from(&mut walk, from, budget, take)? {
        let behind = if next > from { next } else { from.saturating_add(1).max(FIRST_ROWID) };
        let found = first_readable(&mut probe, behind, budget)?;
        unread.add(next.max(from), found);
        match found {
            Some(rowid) => from = rowid,
            None => break,
        }
    }
    Ok(unread)
}

/// Walks from a rowid on; the rowid that comes next where it cannot go on.
fn walk_from(
    statement: &mut Statement<'_>,
    from: i64,
    budget: &mut Budget,
    take: &mut dyn FnMut(&Row<'_>) -> io::Result<()>,
) -> io::Result<Option<i64>> {
    let mut next = from;
    let mut rows = match statement.query([from]) {
        Ok(rows) => rows,
        Err(error) => return damage(error).map(|()| Some(next)),
    };
    loop {
        match rows.next() {
            Ok(None) => return Ok(None),
            Ok(Some(row)) => {
                if !budget.take_row() {
                    budget.probes = 0;
                    return Ok(Some(next));
                }
                take(row)?;
                if let Ok(ValueRef::Integer(rowid)) = row.get_ref(0) {
                    next = rowid.saturating_add(1);
                }
            }
            Err(error) => return damage(error).map(|()| Some(next)),
        }
    }
}

/// The first row at or behind a rowid that can be found: looked for at twice the distance each time, then between the
/// last place where nothing was found and the first where something was.
fn first_readable(probe: &mut Statement<'_>, from: i64, budget: &mut Budget) -> io::Result<Option<i64>> {
    let mut look = |at: i64| -> io::Result<Option<Option<i64>>> {
        let Some(left) = budget.probes.checked_sub(1) else { return Ok(Some(None)) };
        budget.probes = left;
        match probe.query_row([at], |row| row.get::<_, i64>(0)).optional() {
            // A row before the place that was asked for is none of this tree.
            Ok(Some(found)) if found < at => Ok(None),
            Ok(found) => Ok(Some(found)),
            Err(error) => damage(error).map(|()| None),
        }
    };
    let (mut bad, mut distance) = (from, 1_i64);
    let (mut good, mut found) = match look(from)? {
        Some(found) => return Ok(found),
        None => loop {
            let at = from.saturating_add(distance);
            match look(at)? {
                Some(found) => break (at, found),
                None if at == i64::MAX => return Ok(None),
                None => (bad, distance) = (at, distance.saturating_mul(2)),
            }
        },
    };
    while good.saturating_sub(bad) > 1 {
        let middle = bad + good.saturating_sub(bad) / 2;
        match look(middle)? {
            Some(nearer) => (good, found) = (middle, nearer),
            None => bad = middle,
        }
    }
    Ok(found)
}
