//! SQLite databases in and out.

mod cells;
mod damage;
mod formats;
mod live;
mod repairs;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::{Connection, params};
use sessionlog::export::SqliteWriter;
use sessionlog::import::{Importer, JudgeOptions, Judgement, SourceReport};
use sessionlog::{Session, Store};

/// A new database without sessions, open for adding any row.
pub(crate) fn database(path: &Path) -> Connection {
    SqliteWriter::create(path).unwrap().finish().unwrap();
    Connection::open(path).unwrap()
}

/// Adds the row of a session.
pub(crate) fn add_session(database: &Connection, id: &str) {
    let insert = "INSERT INTO sessions VALUES (?1, 0, 5, NULL, NULL, NULL, NULL, 0, NULL, ?2, 1)";
    database.execute(insert, params![id, "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"]).unwrap();
}

/// Adds a row with data alone.
pub(crate) fn add_event(database: &Connection, id: &str, seq: u32, type_name: &str, data: &str) {
    let insert = "INSERT INTO events VALUES (?1, ?2, ?3, 10, ?4, NULL, NULL, NULL)";
    database.execute(insert, params![id, seq, type_name, data]).unwrap();
}

/// Adds a turn of two events.
fn add_turn(database: &Connection, id: &str, seq: u32) {
    let turn = seq / 2 + 1;
    add_event(database, id, seq, "turn/start", &format!(r#"{{"turn":{turn}}}"#));
    let end = format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#);
    add_event(database, id, seq + 1, "turn/end", &end);
}

fn importer() -> Importer {
    Importer::new(JudgeOptions::default())
}

pub(crate) fn import_all(store: &Store, path: &Path) -> Vec<SourceReport> {
    let plan = importer().plan(&[path.to_owned()]);
    assert!(plan.unreadable.is_empty(), "{:?}", plan.unreadable);
    plan.sources.iter().map(|source| importer().import(store, source, &|_| ()).unwrap()).collect()
}

pub(crate) fn inspect_all(path: &Path) -> Vec<SourceReport> {
    let plan = importer().plan(&[path.to_owned()]);
    assert!(plan.unreadable.is_empty(), "{:?}", plan.unreadable);
    plan.sources.iter().map(|source| importer().inspect(source, &|_| ()).unwrap()).collect()
}

/// The one session of a database.
fn only(path: &Path) -> Judgement {
    let mut reports = inspect_all(path);
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0).judgement
}

/// What a judgement says in one word and a kind.
fn word(judgement: &Judgement) -> String {
    match (&judgement.refusal, &judgement.repair) {
        (Some(refusal), _) => format!("refuse {}", refusal.kind),
        (None, Some(repair)) => format!("repair {}", repair.kind),
        (None, None) => format!("accept {}", judgement.events().unwrap_or_default()),
    }
}

fn words(path: &Path) -> Vec<String> {
    inspect_all(path).iter().map(|report| word(&report.judgement)).collect()
}

/// Every file of the directory, with all that reading it might change.
fn listing(directory: &Path) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.is_file())
        .map(|path| {
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            (path.clone(), fs::read(&path).unwrap(), modified)
        })
        .collect();
    files.sort();
    files
}

/// Exports every session of a store into a new database.
pub(crate) fn export_all(store: &Store, path: &Path, packed: bool) {
    let mut writer = SqliteWriter::create(path).unwrap();
    for info in store.list().unwrap() {
        writer.session(&store.session(&info.header.id).unwrap(), packed, None).unwrap();
    }
    writer.finish().unwrap();
}

fn export_one(session: &Session, path: &Path) {
    let mut writer = SqliteWriter::create(path).unwrap();
    writer.session(session, true, None).unwrap();
    writer.finish().unwrap();
}
