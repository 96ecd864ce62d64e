//! A database of the reference's schema whose cells are the input, read as an import reads it.
#![no_main]

use std::cell::OnceCell;
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql};
use sessionlog::export::SqliteWriter;
use sessionlog::import::{Importer, JudgeOptions};
use sessionlog_fuzz::{Cell, Cells, INPUT_BYTES_MAX, memory_directory};

/// Rows of one input.
const ROWS_MAX: i64 = 32;
const SESSION: &str = "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
const EVENT: &str = "INSERT INTO events VALUES ('s', ?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// A database that is filled again for each input.
struct Filled {
    path: PathBuf,
    connection: Connection,
    _directory: tempfile::TempDir,
}

thread_local! {
    static FILLED: OnceCell<Filled> = const { OnceCell::new() };
}

fuzz_target!(|input: &[u8]| {
    if input.len() <= INPUT_BYTES_MAX {
        FILLED.with(|filled| filled.get_or_init(Filled::new).read(input));
    }
});

impl Filled {
    /// In memory where there is a file system in memory.
    fn new() -> Self {
        let directory = memory_directory();
        let path = directory.path().join("sessions.db");
        SqliteWriter::create(&path).expect("a database").finish().expect("a database");
        let connection = Connection::open(&path).expect("a database");
        connection
            .execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; PRAGMA ignore_check_constraints = ON")
            .expect("pragmas");
        Self { path, connection, _directory: directory }
    }

    fn read(&self, input: &[u8]) {
        self.fill(input).expect("rows are added");
        let options = JudgeOptions { lossy_utf8: input.len() % 2 == 1, ..JudgeOptions::default() };
        let importer = Importer::new(options);
        let plan = importer.plan(std::slice::from_ref(&self.path));
        assert!(plan.unreadable.is_empty(), "{:?}", plan.unreadable);
        for source in &plan.sources {
            let report = importer.inspect(source, &|_| ()).expect("a database can be read");
            let judgement = report.judgement;
            assert!(judgement.state.is_some() != judgement.refusal.is_some());
        }
    }

    /// A session row of the input's own cells if it begins with `S`, and a sound one; then the rows of events. What the
    /// schema refuses is left out.
    fn fill(&self, input: &[u8]) -> rusqlite::Result<()> {
        let transaction = self.connection.unchecked_transaction()?;
        transaction.execute("DELETE FROM events", [])?;
        transaction.execute("DELETE FROM sessions", [])?;
        let sound = "INSERT INTO sessions VALUES ('s', 0, 5, NULL, NULL, NULL, NULL, 0, NULL, ?1, 1)";
        transaction.execute(sound, ["0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"])?;
        let own_session = input.strip_prefix(b"S");
        let mut cells = Cells::new(own_session.unwrap_or(input));
        if own_session.is_some() {
            let row: [Cell; 11] = std::array::from_fn(|_| cells.next_cell());
            let _ = insert(&transaction, SESSION, row.into_iter());
        }
        let mut seq = 0;
        while !cells.is_empty() && seq < ROWS_MAX {
            let row: [Cell; 6] = std::array::from_fn(|_| cells.next_cell());
            let _ = insert(&transaction, EVENT, std::iter::once(Cell::Integer(seq)).chain(row));
            seq += 1;
        }
        transaction.commit()
    }
}

fn insert(database: &Connection, sql: &str, cells: impl Iterator<Item = Cell>) -> rusqlite::Result<usize> {
    let cells: Vec<Bound> = cells.map(Bound).collect();
    database.prepare(sql)?.execute(rusqlite::params_from_iter(&cells))
}

/// A cell as it is bound: SQLite takes any bytes for a text.
struct Bound(Cell);

impl ToSql for Bound {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match &self.0 {
            Cell::Null => ValueRef::Null,
            Cell::Integer(number) => ValueRef::Integer(*number),
            Cell::Real(number) => ValueRef::Real(*number),
            Cell::Text(bytes) => ValueRef::Text(bytes),
            Cell::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
