//! Databases that are foreign, cut or overwritten: one verdict for the database and one for each session.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use sessionlog::event::SessionState;

use super::{add_event, add_session, add_turn, database, import_all, inspect_all, listing, word, words};
use crate::containers::written;
use crate::support::memory_store;

/// Forty sessions of four kilobytes each.
fn forty_sessions(path: &Path) {
    let database = database(path);
    database.execute_batch("BEGIN").unwrap();
    for number in 0..40 {
        let id = format!("s-{number:02}");
        add_session(&database, &id);
        add_turn(&database, &id, 0);
        add_event(&database, &id, 2, "todo/write", &format!("\"{}\"", "x".repeat(4_000)));
        add_turn(&database, &id, 3);
    }
    database.execute_batch("COMMIT").unwrap();
}

#[test]
fn a_foreign_schema_is_named() {
    let cases = [
        ("PRAGMA user_version = 18", "schema version is 18"),
        ("PRAGMA application_id = 1", "application_id is 1"),
        ("CREATE TABLE extra (x)", "table extra"),
        ("CREATE INDEX by_type ON events (type)", "index by_type"),
        ("CREATE VIEW v AS SELECT 1", "view v"),
        ("ALTER TABLE sessions ADD COLUMN title TEXT", "table sessions"),
        ("DROP TABLE events", "table events"),
    ];
    for (change, said) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        database(&path).execute_batch(change).unwrap();
        let reports = inspect_all(&path);
        let refusal = reports[0].judgement.refusal.as_ref().unwrap();
        assert_eq!((reports.len(), refusal.kind.as_str()), (1, "sqlite-schema"), "{change}");
        assert!(refusal.message.contains(said), "{change}: {refusal}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let statistics = database(&path);
    add_session(&statistics, "s");
    add_turn(&statistics, "s", 0);
    statistics.execute_batch("ANALYZE; UPDATE sqlite_stat1 SET stat = '1000000 1000000 1'").unwrap();
    assert_eq!(words(&path), ["accept 2"], "statistics are no part of a schema");
}

#[test]
fn schema_19_is_read_by_its_own_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = Connection::open(&path).unwrap();
    database.execute_batch(SCHEMA_19).unwrap();
    let uuid = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
    for (key, id) in [(7, "b"), (3, "a")] {
        database
            .execute(
                "INSERT INTO sessions VALUES (?1, ?2, 0, 5, '/srv', NULL, NULL, NULL, 0, NULL, ?3, 1)",
                (key, id, uuid),
            )
            .unwrap();
    }
    let row = |key: i64, seq: i64, kind: &str, data: &str, packed: i64| {
        let insert = "INSERT INTO events VALUES (?1, ?2, ?3, 10, ?4, NULL, NULL, ?5)";
        database.execute(insert, (key, seq, kind, data, packed)).unwrap();
    };
    row(3, 0, "turn/start", "{\"turn\":1}", 0);
    row(3, 1, "text-chunks", r#"{"turn":1,"step":1,"index":0,"dt":[1,1],"texts":["a","b","c"]}"#, 1);
    row(7, 0, "acme/unknown", "{}", 0);
    let told: Vec<_> =
        inspect_all(&path).iter().map(|r| (r.session().map(str::to_owned), word(&r.judgement))).collect();
    let told: Vec<_> = told.iter().map(|(id, word)| (id.as_deref(), word.as_str())).collect();
    assert_eq!(told, [(Some("a"), "repair interrupted-turn"), (Some("b"), "refuse unsupported-event")]);
    row(99, 0, "turn/start", "{\"turn\":1}", 0);
    assert!(words(&path).contains(&"refuse orphan-events".to_owned()));
}

pub(super) const SCHEMA_19: &str = "
PRAGMA foreign_keys = OFF;
PRAGMA application_id = 1146308688;
PRAGMA user_version = 19;
CREATE TABLE persistence_state (
  singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
  store_id  TEXT NOT NULL
) STRICT;
INSERT INTO persistence_state VALUES (1, '6f1d2c3b-4a59-4e68-8b77-0c9d8e7f6a5b');
CREATE TABLE sessions (
  id               INTEGER PRIMARY KEY,
  session_key      TEXT NOT NULL UNIQUE,
  version          INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  cwd              TEXT,
  parent_session   TEXT,
  seed_length      INTEGER,
  origin           TEXT,
  delegation_depth INTEGER,
  agent_preset     TEXT,
  incarnation      TEXT NOT NULL,
  revision         INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
  session_id        INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  seq               INTEGER NOT NULL,
  type              TEXT NOT NULL,
  time              INTEGER NOT NULL,
  data              ANY NOT NULL,
  source_event_seqs ANY,
  surface_op        TEXT,
  is_packed         INTEGER NOT NULL CHECK (is_packed IN (0, 1)),
  PRIMARY KEY (session_id, seq)
) STRICT;
";

#[test]
fn a_database_that_lost_its_end_or_a_page_gives_what_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("whole.db");
    forty_sessions(&path);
    let whole = fs::read(&path).unwrap();
    assert_eq!(words(&path), vec!["accept 5"; 40]);

    let cut = dir.path().join("cut.db");
    fs::write(&cut, &whole[..whole.len() - 3 * 4096 - 100]).unwrap();
    let told = words(&cut);
    assert_eq!(
        told.iter().filter(|word| *word == "refuse sqlite-truncated").count() + good(&told),
        told.len()
    );
    assert!(told.len() == 41 && good(&told) > 20, "{told:?}");

    let store = memory_store();
    let reports = import_all(&store, &cut);
    assert_eq!(store.list().unwrap().len(), good(&told));
    assert!(reports.iter().all(|report| report.added == 0 || report.judgement.refusal.is_none()));
    fs::write(&cut, &whole[..60]).unwrap();
    assert_eq!(words(&cut), ["refuse sqlite-truncated"]);
}

fn good(words: &[String]) -> usize {
    words.iter().filter(|word| *word == "accept 5").count()
}

#[test]
fn whatever_page_is_overwritten_nothing_good_is_lost_and_nothing_bad_comes_in() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("whole.db");
    forty_sessions(&path);
    let whole = fs::read(&path).unwrap();
    let damaged = dir.path().join("damaged.db");
    let mut state = 7_u64;
    for page in 1..whole.len() / 4096 {
        for fill in 0..3 {
            let mut bytes = whole.clone();
            for byte in &mut bytes[page * 4096..(page + 1) * 4096] {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match fill {
                    0 => *byte = 0,
                    1 => *byte = (state >> 56) as u8,
                    _ if state >> 58 == 0 => *byte ^= 1 << (state >> 40 & 7),
                    _ => {}
                }
            }
            fs::write(&damaged, &bytes).unwrap();
            let told = words(&damaged);
            if fill == 0 {
                assert!(told.iter().any(|word| word.starts_with("refuse")), "page {page}: the damage shows");
            }
            assert!(told.iter().all(|word| word == "accept 5" || !word.starts_with("accept")), "{told:?}");
        }
    }
}

/// Has all pages below the root of a table or an index be one of them.
fn fold_tree(path: &Path, name: &str) {
    let query = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let root: u32 = Connection::open(path).unwrap().query_row(query, [name], |row| row.get(0)).unwrap();
    let mut bytes = fs::read(path).unwrap();
    let page = &mut bytes[(root as usize - 1) * 4096..][..4096];
    assert!(matches!(page[0], 2 | 5), "{name} has pages below its root");
    let children: Vec<usize> = (0..usize::from(page[4]))
        .map(|i| usize::from(page[12 + 2 * i]) << 8 | usize::from(page[13 + 2 * i]))
        .collect();
    let first: [u8; 4] = page[children[0]..][..4].try_into().unwrap();
    children.into_iter().chain([8]).for_each(|at| page[at..at + 4].copy_from_slice(&first));
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_tree_that_leads_to_one_page_from_many_is_left_at_the_second_time() {
    let dir = tempfile::tempdir().unwrap();
    for (tree, lost) in [
        ("events", "read table events: its rows are not in order"),
        ("sessions", "read the list of sessions, some of which may be lost: its rows are not in order"),
        ("sqlite_autoindex_sessions_1", "read the list of sessions, some of which may be lost: its rows"),
    ] {
        let path = dir.path().join(format!("{tree}.db"));
        let database = database(&path);
        database.execute_batch("BEGIN").unwrap();
        for number in 0..100 {
            let id = format!("s-{number:02}-{}", "x".repeat(200));
            add_session(&database, &id);
            add_turn(&database, &id, 0);
        }
        database.execute_batch("COMMIT").unwrap();
        drop(database);
        fold_tree(&path, tree);
        let reports = inspect_all(&path);
        let refusal = reports[0].judgement.refusal.as_ref().unwrap();
        assert_eq!(refusal.kind.as_str(), "sqlite-corrupt", "{tree}");
        assert!(refusal.message.contains(lost), "{tree}: {refusal}");
        // Each of the two trees has the sessions that the other one lost.
        assert_eq!(reports.len(), 1 + 100, "{tree}");
    }
}

#[test]
fn orphans_and_an_empty_database_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = database(&path);
    let plan = super::importer().plan(std::slice::from_ref(&path));
    assert_eq!((plan.sources.len(), plan.ignored.len()), (0, 1));
    database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    add_session(&database, "b");
    for id in ["a", "b", "c", "d", "e"] {
        add_turn(&database, id, 0);
    }
    let reports = inspect_all(&path);
    let refusal = reports[0].judgement.refusal.as_ref().unwrap();
    assert_eq!(refusal.kind.as_str(), "orphan-events");
    assert!(refusal.message.contains("4 sessions") && refusal.message.contains("a, c, d, ..."), "{refusal}");
    assert_eq!(word(&reports[1].judgement), "accept 2");
    database.execute("DELETE FROM persistence_state", []).unwrap();
    assert!(words(&path).contains(&"refuse value".to_owned()));
}

#[test]
fn ids_that_are_too_long_are_told_in_few_faults_and_hide_no_session() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = database(&path);
    let longest = "y".repeat(1024);
    add_session(&database, &longest);
    add_turn(&database, &longest, 0);
    for number in 0..40 {
        let id = format!("{number:02}{}", "x".repeat(1023));
        add_session(&database, &id);
        add_turn(&database, &id, 0);
    }
    let reports = inspect_all(&path);
    let told: Vec<_> = reports.iter().map(|report| word(&report.judgement)).collect();
    assert_eq!(told[..16], ["refuse limit"; 16]);
    assert_eq!(told[16..], ["refuse orphan-events", "accept 2"]);
    let message = |index: usize| &reports[index].judgement.refusal.as_ref().unwrap().message;
    assert!(message(15).contains("24 more rows") && !message(14).contains("more rows"), "{}", message(15));
    assert!(message(16).contains("nobody"), "{}", message(16));
}

#[test]
fn a_million_rows_without_an_id_are_counted_in_the_last_of_few_faults() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = database(&path);
    add_session(&database, "s");
    add_turn(&database, "s", 0);
    drop(database);
    let strict = |from: &str, to: &str| {
        let change =
            format!("UPDATE sqlite_schema SET sql = replace(sql, '{from}', '{to}') WHERE name = 'sessions'");
        let database = Connection::open(&path).unwrap();
        database.execute_batch(&format!("PRAGMA writable_schema = ON; {change}")).unwrap();
    };
    // No table that is STRICT takes NULL for an id.
    strict(") STRICT", ") ");
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) \
                INSERT INTO sessions SELECT NULL, 0, 5, NULL, NULL, NULL, NULL, 0, NULL, 'x', 1 FROM n";
    Connection::open(&path).unwrap().execute_batch(rows).unwrap();
    strict(") ", ") STRICT");
    let reports = inspect_all(&path);
    let told: Vec<_> = reports.iter().map(|report| word(&report.judgement)).collect();
    assert_eq!(told[..16], ["refuse value"; 16]);
    assert_eq!(told[16..], ["accept 2"]);
    let last = &reports[15].judgement.refusal.as_ref().unwrap().message;
    assert!(last.contains("999984 more rows"), "{last}");
}

#[test]
fn cases_70_to_76_have_their_verdicts() {
    let cases: [(&str, &str, &[&str]); 9] = [
        ("70-sqlite-good.py", "sessions.db", &["accept 8", "accept 8", "accept 8"]),
        ("73-wal-db-in-read-only-dir.py", "ro/sessions.db", &["accept 6"]),
        ("74-sqlite-damaged.py", "not-a-database.db", &["refuse not-sqlite"]),
        ("74-sqlite-damaged.py", "zero-bytes.db", &["refuse empty"]),
        ("76-sqlite-gap-and-packed.py", "gap-committed.db", &["refuse seq-gap"]),
        ("76-sqlite-gap-and-packed.py", "gap-tail.db", &["repair seq-gap-tail"]),
        ("76-sqlite-gap-and-packed.py", "orphan-events.db", &["refuse orphan-events"]),
        ("76-sqlite-gap-and-packed.py", "packed.db", &["accept 9"]),
        ("71-sqlite-busy.py", "sessions.db", &["accept 6"]),
    ];
    for (script, file, expected) in cases {
        let Some((_dir, path)) = written(script, &[]) else { return };
        let file = path.join(file);
        let directory = file.parent().unwrap();
        let before = listing(directory);
        assert_eq!(words(&file), expected, "{script} {}", file.display());
        let store = memory_store();
        let added: u64 = import_all(&store, &file).iter().map(|report| report.added).sum();
        let again = import_all(&store, &file);
        assert_eq!(
            again
                .iter()
                .map(|report| (report.added, report.skipped))
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1)),
            (0, added)
        );
        assert!(before == listing(directory), "{script} changed its source");
        restore_rights(directory);
    }
}

#[test]
fn case_74_and_76_say_where_and_keep_what_is_good() {
    let Some((_dir, path)) = written("74-sqlite-damaged.py", &[]) else { return };
    let zeroed = words(&path.join("page-zeroed.db"));
    let bad = zeroed.iter().filter(|word| *word == "refuse sqlite-corrupt").count();
    let accepted = zeroed.iter().filter(|word| *word == "accept 8").count();
    assert!(bad > 0 && accepted > 20 && bad + accepted == zeroed.len(), "{zeroed:?}");
    let truncated = words(&path.join("truncated.db"));
    assert_eq!(truncated[0], "refuse sqlite-truncated");
    let Some((_dir, path)) = written("76-sqlite-gap-and-packed.py", &[]) else { return };
    let report = inspect_all(&path.join("gap-tail.db")).remove(0);
    assert_eq!(report.judgement.state.as_ref().map(|state| state.surface().to_vec()), Some(vec![1, 3, 7]));
    let repair = report.judgement.repair.unwrap();
    assert_eq!((repair.cut_total, repair.cut[0].seq.map(|seq| seq.get())), (2, Some(9)));
    let refusal = inspect_all(&path.join("gap-committed.db")).remove(0).judgement.refusal.unwrap();
    assert_eq!((refusal.seq.map(|seq| seq.get()), refusal.rowid), (Some(4), Some(6)));
}

/// A directory without the right to write cannot be removed by anybody but root.
fn restore_rights(directory: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    #[cfg(not(unix))]
    let _ = directory;
}
