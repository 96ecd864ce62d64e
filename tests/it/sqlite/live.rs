//! Databases that somebody else has open: read as they were at one moment, and left as they were.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use sessionlog::{Cancel, ErrorKind};

use super::{add_event, add_session, add_turn, database, import_all, importer, listing, only, word, words};
use crate::support::{lines, memory_store};

/// A database whose session's first turn is in its WAL, and who writes to it.
fn with_wal(path: &Path) -> Connection {
    let writer = database(path);
    writer.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;").unwrap();
    add_session(&writer, "s");
    add_turn(&writer, "s", 0);
    writer
}

#[test]
fn a_database_with_a_wal_is_read_with_it_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let writer = with_wal(&path);
    let before = listing(dir.path());
    assert_eq!(before.len(), 3, "the database, its WAL and its index");
    let store = memory_store();
    assert_eq!(import_all(&store, &path)[0].added, 2);
    assert!(before == listing(dir.path()));

    // The writer goes on, through a checkpoint, and so does the import.
    add_turn(&writer, "s", 2);
    writer.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let judgement = only(&path);
    assert_eq!(word(&judgement), "accept 4");
    assert!(judgement.warnings.listed().is_empty(), "an empty WAL is one");
    add_turn(&writer, "s", 4);
    assert_eq!(import_all(&store, &path)[0].added, 4);

    // What an open transaction wrote is nobody's yet.
    writer.execute_batch("BEGIN").unwrap();
    add_turn(&writer, "s", 6);
    assert_eq!(word(&only(&path)), "accept 6");
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(word(&only(&path)), "accept 8");
}

#[test]
fn a_wal_that_was_left_behind_is_missed_by_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let writer = with_wal(&path);
    writer.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    add_turn(&writer, "s", 2);
    let copy = dir.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    let judgement = only(&copy);
    assert_eq!(word(&judgement), "accept 2");
    assert_eq!(judgement.warnings.listed()[0].kind.as_str(), "wal-without-wal-file");
    assert!(only(&path).warnings.listed().is_empty());

    // It is one database: told once, and however often the session that tells it is read.
    let more = Connection::open(&copy).unwrap();
    more.execute_batch("PRAGMA journal_mode = DELETE").unwrap();
    for id in ["t", "u"] {
        add_session(&more, id);
        add_turn(&more, id, 0);
    }
    more.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    drop(more);
    fs::remove_file(dir.path().join("copy.db-wal")).ok();
    let plan = importer().plan(std::slice::from_ref(&copy));
    for source in [0, 1, 2, 0, 1] {
        let report = importer().inspect(&plan.sources[source], &|_| ()).unwrap();
        assert_eq!(report.judgement.warnings.listed().len(), usize::from(source == 0));
    }
}

#[test]
fn a_crashed_transaction_is_rolled_back_in_the_copy_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let writer = database(&path);
    add_session(&writer, "s");
    add_turn(&writer, "s", 0);
    writer.execute_batch("PRAGMA cache_size = 1; BEGIN").unwrap();
    writer.execute("UPDATE events SET data = 'spoilt'", []).unwrap();
    for seq in 2..400 {
        add_event(&writer, "s", seq, "todo/write", &format!("\"{}\"", "x".repeat(500)));
    }
    // As after a crash: what was written of the transaction, and the journal that undoes it.
    let crashed = tempfile::tempdir().unwrap();
    for end in ["", "-journal"] {
        fs::copy(dir.path().join(format!("s.db{end}")), crashed.path().join(format!("s.db{end}"))).unwrap();
    }
    let before = listing(crashed.path());
    assert_eq!(words(&crashed.path().join("s.db")), ["accept 2"]);
    assert!(before == listing(crashed.path()));
}

/// A lock on a database that is given up when it is waited for.
fn locked(path: &Path) -> Arc<Mutex<Option<Connection>>> {
    let holder = Connection::open(path).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    Arc::new(Mutex::new(Some(holder)))
}

#[test]
fn a_locked_database_is_waited_for_and_then_called_busy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let writer = database(&path);
    add_session(&writer, "s");
    add_turn(&writer, "s", 0);
    drop(writer);

    let holder = locked(&path);
    let waiting = holder.clone();
    let importer = importer().on_wait(move |_, _| drop(waiting.lock().unwrap().take()));
    let plan = importer.plan(std::slice::from_ref(&path));
    assert!(holder.lock().unwrap().is_none(), "it was waited");
    assert_eq!(word(&importer.inspect(&plan.sources[0], &|_| ()).unwrap().judgement), "accept 2");

    let _holder = locked(&path);
    let before = listing(dir.path());
    assert_eq!(words(&path), ["refuse busy"], "never an empty result");
    assert!(before == listing(dir.path()));
}

#[test]
fn one_patience_serves_all_sessions_of_a_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let writer = database(&path);
    for id in ["a", "b", "c", "d"] {
        add_session(&writer, id);
        add_turn(&writer, id, 0);
    }
    let waits = Arc::new(Mutex::new(Vec::new()));
    let told = waits.clone();
    let importer = importer().on_wait(move |_, waited| told.lock().unwrap().push(waited));
    let plan = importer.plan(std::slice::from_ref(&path));
    // Written to since it was listed, and now locked.
    add_turn(&writer, "a", 2);
    let holder = locked(&path);
    let judged = || -> Vec<_> {
        plan.sources
            .iter()
            .map(|source| word(&importer.inspect(source, &|_| ()).unwrap().judgement))
            .collect()
    };
    assert_eq!(judged(), ["refuse busy"; 4]);
    let first_waits = waits.lock().unwrap().iter().filter(|waited| waited.is_zero()).count();
    assert_eq!(first_waits, 1, "{:?}", waits.lock().unwrap());
    drop(holder);
    assert_eq!(judged(), ["accept 4", "accept 2", "accept 2", "accept 2"]);
}

#[test]
fn who_cancels_waits_for_no_database_and_hears_of_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let writer = database(&path);
    add_session(&writer, "s");
    add_turn(&writer, "s", 0);
    let planned = importer().plan(std::slice::from_ref(&path));
    add_turn(&writer, "s", 2);
    let holder = locked(&path);
    let cancelled = || {
        let cancel = Cancel::new();
        let switch = cancel.clone();
        importer().on_wait(move |_, _| switch.cancel("enough")).cancellable(&cancel)
    };
    let plan = cancelled().plan(std::slice::from_ref(&path));
    assert!(plan.cancelled && plan.sources.is_empty() && plan.unreadable.is_empty(), "{plan:?}");
    let error = cancelled().inspect(&planned.sources[0], &|_| ()).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("enough")), (ErrorKind::Cancelled, true));
    drop(holder);

    let cancel = Cancel::new();
    cancel.cancel("before it began");
    let importer = importer().cancellable(&cancel);
    let plan = importer.plan(std::slice::from_ref(&path));
    assert!(plan.cancelled && plan.sources.is_empty() && plan.unreadable.is_empty(), "{plan:?}");
    assert_eq!(importer.inspect(&planned.sources[0], &|_| ()).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_database_that_changes_while_it_is_read_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let writer = database(&path);
    add_session(&writer, "s");
    add_turn(&writer, "s", 0);
    let store = memory_store();
    let importer = importer();
    let plan = importer.plan(std::slice::from_ref(&path));
    let more = std::cell::Cell::new(true);
    let progress = |_| {
        if more.replace(false) {
            add_turn(&writer, "s", 2);
        }
    };
    let report = importer.import(&store, &plan.sources[0], &progress).unwrap();
    assert_eq!((report.added, word(&report.judgement)), (4, "accept 4".to_owned()));
    assert_eq!(lines(&store.session("s").unwrap()).len(), 4);

    // The session may also go.
    let more = std::cell::Cell::new(true);
    let progress = |_| {
        if more.replace(false) {
            writer.execute_batch("DELETE FROM events; DELETE FROM sessions").unwrap();
        }
    };
    let report = importer.import(&store, &plan.sources[0], &progress).unwrap();
    assert_eq!(word(&report.judgement), "refuse no-header");
    assert_eq!(lines(&store.session("s").unwrap()).len(), 4);
}

/// The name stands in a URI on its way to SQLite.
#[cfg(unix)]
#[test]
fn any_name_of_a_file_is_one() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    for name in [&b"a b?mode=memory#c%20.db"[..], "\u{e9}&'\"\\.db".as_bytes(), b"\xFF\xFE.db"] {
        let path = dir.path().join(std::ffi::OsStr::from_bytes(name));
        let made = dir.path().join("made.db");
        let writer = database(&made);
        add_session(&writer, "s");
        add_turn(&writer, "s", 0);
        drop(writer);
        // Some file systems take no name that is not UTF-8.
        if fs::rename(&made, &path).is_ok() {
            assert_eq!(words(&path), ["accept 2"], "{path:?}");
            let before = listing(dir.path());
            assert!(before.len() < 4, "nothing was made beside it");
            fs::remove_file(&path).unwrap();
        }
    }
}
