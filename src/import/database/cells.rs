//! Cells that must have one shape, and the `sessions` row that is made of them (spec sections 1.1 and 15.2).

use rusqlite::Row;
use rusqlite::types::ValueRef;

use crate::event::json::JsonString;
use crate::event::{Refusal, RefusalKind, SessionHeader, check_format_version};
use crate::limits::SAFE_INTEGER_MAX;
use crate::sqlite::{Schema, is_uuid};

/// Selects the row that [`header`] reads, by its rowid.
pub(super) fn statement(schema: Schema) -> String {
    let id = schema.id_column();
    format!(
        "SELECT rowid, {id}, version, created_at, cwd, parent_session, seed_length, origin, delegation_depth, \
         agent_preset, incarnation, revision FROM sessions WHERE rowid = ?1"
    )
}

/// The session header of a row, all of whose cells must have their shapes.
pub(super) fn header(row: &Row<'_>) -> Result<SessionHeader, Refusal> {
    let header = session_header(row)?;
    store_cells(row)?;
    Ok(header)
}

/// The session header of a row, whatever stands in its cells that are none of the session's.
pub(super) fn session_header(row: &Row<'_>) -> Result<SessionHeader, Refusal> {
    let cell = |index| row.get_ref(index).unwrap_or(ValueRef::Null);
    check_format_version(integer(cell(2), "version")?, 0)?;
    let mut header = SessionHeader::new(text(cell(1), "id")?, integer(cell(3), "created_at")?);
    let string = |index, name| {
        Ok::<_, Refusal>(optional_text(cell(index), name)?.map(JsonString::from).map(JsonString::into_owned))
    };
    header.cwd = string(4, "cwd")?;
    header.parent_session = string(5, "parent_session")?;
    header.seed_length = natural(cell(6), "seed_length", "header-seed-length")?;
    header.subagent = match optional_text(cell(7), "origin")? {
        None => false,
        Some("subagent") => true,
        Some(_) => {
            let message = "origin must be \"subagent\" or NULL";
            return Err(Refusal::new(RefusalKind::Header, "header-origin", message));
        }
    };
    header.delegation_depth = natural(cell(8), "delegation_depth", "header-delegation-depth")?;
    header.agent_preset = string(9, "agent_preset")?;
    header.validate()?;
    Ok(header)
}

/// Looks at the cells that a database has of a session for itself; every new database gives it others.
pub(super) fn store_cells(row: &Row<'_>) -> Result<(), Refusal> {
    let cell = |index| row.get_ref(index).unwrap_or(ValueRef::Null);
    if !is_uuid(text(cell(10), "incarnation")?.as_bytes()) {
        return Err(value("incarnation is no UUID"));
    }
    integer(cell(11), "revision").map(drop)
}

/// An INTEGER that a JSON number can hold.
pub(super) fn integer(cell: ValueRef<'_>, name: &str) -> Result<i64, Refusal> {
    match cell {
        ValueRef::Integer(number) if number.unsigned_abs() <= SAFE_INTEGER_MAX.unsigned_abs() => Ok(number),
        ValueRef::Integer(number) => Err(value(format!("{name} is {number}, more than 2^53 - 1 in size"))),
        other => Err(value(format!("{name} is {}, not INTEGER", other.data_type()))),
    }
}

/// A TEXT.
pub(super) fn text<'c>(cell: ValueRef<'c>, name: &str) -> Result<&'c str, Refusal> {
    optional_text(cell, name)?.ok_or_else(|| value(format!("{name} is NULL, not TEXT")))
}

/// A TEXT or NULL.
pub(super) fn optional_text<'c>(cell: ValueRef<'c>, name: &str) -> Result<Option<&'c str>, Refusal> {
    match cell {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) => std::str::from_utf8(bytes).map(Some).map_err(|error| {
            let message =
                format!("{name} is not UTF-8 from its byte {} on; mend it in a copy", error.valid_up_to());
            Refusal::new(RefusalKind::InvalidUtf8, "utf8", message)
        }),
        other => Err(value(format!("{name} is {}, not TEXT", other.data_type()))),
    }
}

fn natural(cell: ValueRef<'_>, name: &str, rule: &'static str) -> Result<Option<u64>, Refusal> {
    if cell == ValueRef::Null {
        return Ok(None);
    }
    let negative = |_| Refusal::new(RefusalKind::Header, rule, format!("{name} is negative"));
    u64::try_from(integer(cell, name)?).map(Some).map_err(negative)
}

pub(super) fn value(message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::Value, "cell-shape", message)
}
