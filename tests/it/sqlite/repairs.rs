//! Damaged databases become databases that load: what is kept, what is lost, and that nothing else is touched.

mod damaged;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use sessionlog::ErrorKind;
use sessionlog::repair::{Applied, DatabasePlan, Repairer};
use tempfile::TempDir;

use super::damage::SCHEMA_19;
use super::{add_event, add_session, add_turn, database, import_all, inspect_all, listing, word, words};
use crate::containers::written;
use crate::support::memory_store;

/// The events of each session, one a line.
type Sessions = BTreeMap<String, Vec<String>>;

fn chosen(branches: &[(&str, usize)]) -> BTreeMap<String, usize> {
    branches.iter().map(|&(id, number)| (id.to_owned(), number)).collect()
}

fn plan(path: &Path, branches: &[(&str, usize)]) -> DatabasePlan {
    Repairer::default().plan_database(path, &chosen(branches), &|_, _| ()).unwrap()
}

/// Applies a plan beside its source, which stays as it was, and gives the sessions of the new database and what was saved.
fn mended(plan: &DatabasePlan) -> (Sessions, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let directory = plan.path.parent().unwrap();
    let before = listing(directory);
    let out = dir.path().join("new.db");
    let Applied { saved, .. } = Repairer::default().apply_database(plan, &out, &|_, _| ()).unwrap();
    assert!(before == listing(directory), "the source and what is beside it stay as they were");
    let saved = saved.map_or(Vec::new(), |saved| fs::read(saved).unwrap());
    let saved = String::from_utf8_lossy(&saved);
    let saved: Vec<_> = saved.lines().map(str::to_owned).collect();
    assert_eq!(saved.len() as u64, plan.summary.records_saved);
    let sessions = sessions_of(&out);
    assert_eq!(sessions.len() as u64, plan.summary.sessions_kept);
    assert_eq!(sessions.values().map(|events| events.len() as u64).sum::<u64>(), plan.summary.events_kept);
    for report in inspect_all(&out) {
        let cut = report.judgement.repair.as_ref().is_some_and(|repair| repair.cut_total > 0);
        assert!(report.judgement.refusal.is_none() && !cut, "{:?}", report.judgement);
    }
    assert!(self::plan(&out, &[]).is_sound(), "what was repaired is sound");
    (sessions, saved)
}

/// The sessions of a database that can be imported.
fn sessions_of(path: &Path) -> Sessions {
    let store = memory_store();
    import_all(&store, path);
    let lines = |id: &str| crate::support::lines(&store.session(id).unwrap());
    let ids = store.list().unwrap().into_iter().map(|info| info.header.id.clone());
    ids.map(|id| (id.clone(), lines(&id))).collect()
}

/// Steps by session, or of the database.
fn told(plan: &DatabasePlan) -> Vec<(String, &'static str, &'static str)> {
    let of = |id: &str, steps: &sessionlog::repair::Steps| {
        let step = |step: &sessionlog::repair::Step| (id.to_owned(), step.action.as_str(), step.kind);
        steps.listed().iter().map(step).collect::<Vec<_>>()
    };
    let mut told = of("", &plan.steps);
    for session in &plan.sessions {
        told.extend(of(&session.id, &session.steps));
    }
    told
}

fn expect(plan: &DatabasePlan, expected: &[(&str, &'static str, &'static str)]) {
    let expected: Vec<_> = expected.iter().map(|&(id, action, kind)| (id.to_owned(), action, kind)).collect();
    assert_eq!(told(plan), expected, "{:?} {:?}", plan.steps, plan.sessions);
}

/// Two sessions of four events, `a` and `b`.
fn two_sessions() -> (TempDir, PathBuf, Connection) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = database(&path);
    database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    for id in ["a", "b"] {
        add_session(&database, id);
        add_turn(&database, id, 0);
        add_turn(&database, id, 2);
    }
    (dir, path, database)
}

#[test]
fn a_sound_database_needs_nothing_and_comes_over_as_it_is() {
    let (_dir, path, database) = two_sessions();
    add_event(&database, "b", 4, "turn/start", r#"{"turn":3}"#);
    add_session(&database, "empty");
    drop(database);
    let plan = plan(&path, &[]);
    assert!(plan.is_sound() && plan.is_lossless(), "{plan:?}");
    assert_eq!((plan.summary.sessions_kept, plan.summary.events_kept, plan.summary.events_lost), (3, 9, 0));
    let (sessions, saved) = mended(&plan);
    assert_eq!((sessions["b"].len(), saved.len()), (5, 0));
}

#[test]
fn rows_stay_rows_and_single_events_single_events() {
    let (_dir, path, database) = two_sessions();
    let packed = r#"{"turn":1,"step":1,"index":0,"dt":[1,1],"texts":["a","b","c"]}"#;
    let insert = "INSERT INTO events VALUES ('a', 4, 'text-chunks', 10, ?1, NULL, NULL, 0)";
    database.execute(insert, [packed]).unwrap();
    for seq in 4..7 {
        let chunk = r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"a"}}"#;
        add_event(&database, "b", seq, "assistant/chunk", chunk);
    }
    drop(database);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new.db");
    Repairer::default().apply_database(&plan(&path, &[]), &out, &|_, _| ()).unwrap();
    let rows = "SELECT count(*) FROM events WHERE session_id = ?1";
    let rows =
        |id| Connection::open(&out).unwrap().query_row(rows, [id], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!([rows("a"), rows("b")], [5, 7]);
    assert_eq!(sessions_of(&out), sessions_of(&path));
}

#[test]
fn a_gap_cuts_what_follows_and_saves_it() {
    let (_dir, path, database) = two_sessions();
    database.execute("DELETE FROM events WHERE session_id = 'a' AND seq = 1", []).unwrap();
    database
        .execute("UPDATE events SET data = '{\n\"turn\":2\n}' WHERE session_id = 'a' AND seq = 2", [])
        .unwrap();
    drop(database);
    let plan = plan(&path, &[]);
    expect(&plan, &[("a", "cut", "seq-gap"), ("a", "cut", "seq-gap")]);
    let session = &plan.sessions[0];
    let step = &session.steps.listed()[0];
    assert_eq!((step.row, step.seq.map(|seq| seq.get()), step.line), (Some(3), Some(2), None));
    assert_eq!((session.summary.events_kept, session.summary.events_lost), (1, 2));
    assert!(!plan.is_lossless() && !plan.needs_branch());
    let (sessions, saved) = mended(&plan);
    assert_eq!((sessions["a"].len(), sessions["b"].len()), (1, 4));
    let record = r#"{"type":"turn/start","seq":2,"time":10,"data":{ "turn":2 }}"#;
    assert_eq!(saved[0], format!(r#"{{"session":"a","record":{record}}}"#));
}

#[test]
fn events_of_a_session_without_a_row_are_saved() {
    let (_dir, path, database) = two_sessions();
    database.execute("DELETE FROM sessions WHERE id = 'a'", []).unwrap();
    drop(database);
    assert!(words(&path).contains(&"refuse orphan-events".to_owned()));
    let plan = plan(&path, &[]);
    expect(&plan, &[("", "cut", "orphan-events")]);
    assert_eq!((plan.summary.sessions_left_out, plan.summary.events_lost), (1, 4));
    let (sessions, saved) = mended(&plan);
    assert_eq!((sessions.len(), saved.len()), (1, 4));
    assert!(
        saved.iter().all(|line| line.starts_with(r#"{"session":"a","record":{"type":"turn/"#)),
        "{saved:?}"
    );
}

#[test]
fn a_cell_that_does_not_decode_costs_its_row_and_what_follows() {
    for (change, kind) in [
        ("data = '{bad'", "corrupt-record"),
        ("data = x'0102'", "frame-magic"),
        ("source_event_seqs = x'80'", "provenance"),
        ("surface_op = 'x'", "surface-op-shape"),
        ("ignorable = 0", "packed-row"),
        ("time = 9007199254740993", "value"),
    ] {
        let (_dir, path, database) = two_sessions();
        let update = format!("UPDATE events SET {change} WHERE session_id = 'b' AND seq = 2");
        database.execute(&update, []).unwrap();
        drop(database);
        let plan = plan(&path, &[]);
        expect(&plan, &[("b", "drop", kind), ("b", "cut", "seq-gap")]);
        let (sessions, saved) = mended(&plan);
        assert_eq!((sessions["a"].len(), sessions["b"].len(), saved.len()), (4, 2, 1), "{change}");
    }
}

#[test]
fn loose_types_are_read_without_a_loss() {
    let (_dir, path, database) = two_sessions();
    for (seq, data) in [(4, "42"), (5, "0.1"), (6, "x'7b2261223a317d'"), (7, "-1e300")] {
        let insert =
            format!("INSERT INTO events VALUES ('a', {seq}, 'todo/write', 1, {data}, NULL, NULL, NULL)");
        database.execute(&insert, []).unwrap();
    }
    let message = r#"{"id":"u","role":"user","content":[],"source":{"kind":"user"}}"#;
    let insert = "INSERT INTO events VALUES ('a', 8, 'user/message', 1, ?1, '[1, 4]', '\"append\"', NULL)";
    database.execute(insert, [message]).unwrap();
    drop(database);
    assert!(words(&path).contains(&"refuse value".to_owned()));
    let plan = plan(&path, &[]);
    expect(&plan, &[("a", "retype", "value"); 5]);
    assert!(plan.is_lossless() && !plan.is_sound());
    let (sessions, saved) = mended(&plan);
    let data: Vec<_> =
        sessions["a"][4..].iter().map(|line| line.split("\"data\":").nth(1).unwrap()).collect();
    assert_eq!(data[..4], ["42}", "0.1}", "{\"a\":1}}", "-1e300}"]);
    assert!(data[4].contains("\"sourceEventSeqs\":[1,4]"), "{data:?}");
    assert_eq!(saved.len(), 0);
}

#[test]
fn a_session_that_no_release_reads_is_left_out_and_saved() {
    let (_dir, path, database) = two_sessions();
    add_event(&database, "a", 4, "acme/unknown", "{}");
    database.execute("UPDATE sessions SET version = 7 WHERE id = 'b'", []).unwrap();
    drop(database);
    let plan = plan(&path, &[]);
    let kinds: Vec<_> =
        plan.sessions.iter().map(|session| session.refusal.as_ref().unwrap().kind.as_str()).collect();
    assert_eq!(kinds, ["unsupported-event", "newer-format"]);
    assert_eq!((plan.summary.sessions_kept, plan.summary.sessions_left_out), (0, 2));
    let (sessions, saved) = mended(&plan);
    assert_eq!((sessions.len(), saved.len()), (0, 9));
}

/// Of the one seq, a packed row of one writer and single events of another one.
#[test]
fn of_a_fork_a_person_chooses_the_branch() {
    let (_dir, path, database) = two_sessions();
    let packed = r#"{"turn":1,"step":1,"index":0,"dt":[1,1],"texts":["a","b","c"]}"#;
    let insert = "INSERT INTO events VALUES ('a', 4, 'text-chunks', 10, ?1, NULL, NULL, 0)";
    database.execute(insert, [packed]).unwrap();
    add_turn(&database, "a", 5);
    drop(database);
    let undecided = plan(&path, &[]);
    assert!(undecided.needs_branch() && !undecided.is_lossless());
    let branches = &undecided.sessions[0].branches;
    let shown: Vec<_> = branches.iter().map(|b| (b.first_seq.get(), b.events, b.row, b.line)).collect();
    assert_eq!(shown, [(5, 2, Some(9), None), (5, 2, Some(10), None)]);
    let out = path.with_file_name("never.db");
    let refused = Repairer::default().apply_database(&undecided, &out, &|_, _| ()).unwrap_err();
    assert_eq!((refused.kind(), out.exists()), (ErrorKind::Invalid, false));
    let (first, saved) = mended(&plan(&path, &[("a", 1)]));
    assert_eq!((first["a"].len(), saved.len()), (7, 2));
    let second = plan(&path, &[("a", 2)]);
    let (second, saved) = (mended(&second).0, mended(&second).1);
    assert_eq!((second["a"].len(), second["b"].len(), saved.len()), (7, 4, 1));
    assert!(second["a"][5].contains("turn/start") && saved[0].contains("text-chunks"));
    for branches in [[("a", 3)], [("nobody", 1)], [("b", 2)]] {
        let error = Repairer::default().plan_database(&path, &chosen(&branches), &|_, _| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{branches:?}");
    }
}

/// A writer that lost the index writes on from where the table is not: keys stand twice.
#[test]
fn keys_that_stand_twice_are_branches_too() {
    let (_dir, path, database) = two_sessions();
    database.execute_batch("CREATE TABLE x (a TEXT, b INTEGER, PRIMARY KEY (a, b)) STRICT").unwrap();
    let swap = "PRAGMA writable_schema = ON; \
        UPDATE sqlite_schema SET rootpage = (SELECT sum(rootpage) FROM sqlite_schema \
          WHERE name IN ('sqlite_autoindex_events_1', 'sqlite_autoindex_x_1')) - rootpage \
        WHERE name IN ('sqlite_autoindex_events_1', 'sqlite_autoindex_x_1')";
    database.execute_batch(swap).unwrap();
    drop(database);
    let database = Connection::open(&path).unwrap();
    add_event(&database, "b", 2, "turn/start", r#"{"turn":7}"#);
    add_event(&database, "b", 3, "todo/write", "1");
    database.execute_batch(swap).unwrap();
    drop(database);
    Connection::open(&path).unwrap().execute_batch("DROP TABLE x").unwrap();
    let undecided = plan(&path, &[]);
    assert!(undecided.needs_branch(), "{undecided:?}");
    expect(
        &undecided,
        &[
            ("", "rebuild", "sqlite-corrupt"),
            ("b", "drop-branch", "seq-fork"),
            ("b", "drop-branch", "seq-fork"),
        ],
    );
    let (sessions, saved) = mended(&plan(&path, &[("b", 2)]));
    assert!(sessions["b"][2].contains("\"turn\":7") && sessions["b"].len() == 4 && saved.len() == 2);
}

#[test]
fn a_database_with_a_wal_is_repaired_beside_its_writer() {
    let (dir, path, database) = two_sessions();
    database.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0").unwrap();
    database.execute("DELETE FROM events WHERE session_id = 'a' AND seq = 2", []).unwrap();
    assert!(fs::metadata(dir.path().join("s.db-wal")).unwrap().len() > 0);
    let plan = plan(&path, &[]);
    expect(&plan, &[("a", "cut", "seq-gap")]);
    assert_eq!(mended(&plan).0["a"].len(), 2);
    add_event(&database, "b", 4, "todo/write", "1");
    let out = dir.path().join("new.db");
    let error = Repairer::default().apply_database(&plan, &out, &|_, _| ()).unwrap_err();
    assert_eq!((error.kind(), out.exists()), (ErrorKind::Locked, false), "it is another database by now");
    assert!(!dir.path().join("new.db.cut.jsonl").exists());
}

#[test]
fn nothing_is_overwritten_and_nothing_is_written_for_what_cannot_be_repaired() {
    let (dir, path, database) = two_sessions();
    drop(database);
    let plan = plan(&path, &[]);
    let error = |out: &Path| Repairer::default().apply_database(&plan, out, &|_, _| ()).unwrap_err().kind();
    assert_eq!(error(&path), ErrorKind::Conflict);
    let whole = fs::read(&path).unwrap();
    let broken = dir.path().join("broken.db");
    let cases: [(&[u8], &str); 3] =
        [(&[0; 16], "not-sqlite"), (&whole[..16], "sqlite-truncated"), (b"text", "not-sqlite")];
    for (head, kind) in cases {
        let rest = if head.len() == 16 && kind == "not-sqlite" { &whole[16..] } else { &[] };
        fs::write(&broken, [head, rest].concat()).unwrap();
        let plan = self::plan(&broken, &[]);
        assert_eq!(plan.refusal.as_ref().map(|refusal| refusal.kind.as_str()), Some(kind));
        assert!(!plan.is_lossless() && !plan.is_sound());
        let out = dir.path().join("never.db");
        assert!(Repairer::default().apply_database(&plan, &out, &|_, _| ()).is_err() && !out.exists());
    }
    let foreign = dir.path().join("foreign.db");
    database_of(&foreign, "PRAGMA user_version = 18");
    assert_eq!(self::plan(&foreign, &[]).refusal.unwrap().kind.as_str(), "sqlite-schema");
}

fn database_of(path: &Path, change: &str) {
    database(path).execute_batch(change).unwrap();
}

#[test]
fn a_store_without_an_id_gets_one() {
    let (_dir, path, database) = two_sessions();
    database.execute("DELETE FROM persistence_state", []).unwrap();
    drop(database);
    let plan = plan(&path, &[]);
    expect(&plan, &[("", "rebuild", "value")]);
    assert!(plan.is_lossless());
    assert_eq!(mended(&plan).0.len(), 2);
}

#[test]
fn a_database_of_schema_19_becomes_one_of_17() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = Connection::open(&path).unwrap();
    database.execute_batch(SCHEMA_19).unwrap();
    let session = "INSERT INTO sessions VALUES (7, 's', 0, 5, '/srv', NULL, NULL, NULL, 0, NULL, \
                   '0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d', 1)";
    database.execute(session, []).unwrap();
    for (key, seq) in [(7, 0), (99, 0), (7, 1), (99, 1)] {
        let data = format!(r#"{{"turn":{}}}"#, seq + 1);
        let insert = "INSERT INTO events VALUES (?1, ?2, 'turn/start', 10, ?3, NULL, NULL, 0)";
        database.execute(insert, rusqlite::params![key, seq, data]).unwrap();
    }
    drop(database);
    let plan = plan(&path, &[]);
    expect(&plan, &[("", "cut", "orphan-events")]);
    let (sessions, saved) = mended(&plan);
    assert_eq!((sessions["s"].len(), saved.len()), (2, 2));
    assert!(saved[0].starts_with(r#"{"session":99,"record":{"type":"turn/start","seq":0,"#), "{saved:?}");
}

#[test]
fn what_a_database_has_of_a_session_for_itself_is_made_anew() {
    let (_dir, path, database) = two_sessions();
    database.execute("UPDATE sessions SET incarnation = 'x' WHERE id = 'b'", []).unwrap();
    drop(database);
    assert!(words(&path).contains(&"refuse value".to_owned()));
    let plan = plan(&path, &[]);
    expect(&plan, &[("b", "rebuild", "value")]);
    assert!(plan.is_lossless());
    assert_eq!(mended(&plan).0["b"].len(), 4);
}

/// Sessions whose id stands twice, or is none: only SQL that goes around the schema makes them.
#[test]
fn rows_of_sessions_without_an_id_of_their_own_are_told() {
    let (_dir, path, database) = two_sessions();
    let sql = |from: &str, to: &str| {
        let change =
            format!("UPDATE sqlite_schema SET sql = replace(sql, '{from}', '{to}') WHERE name = 'sessions'");
        let database = Connection::open(&path).unwrap();
        database.execute_batch(&format!("PRAGMA writable_schema = ON; {change}")).unwrap();
    };
    drop(database);
    sql(") STRICT", ") ");
    let insert = "INSERT INTO sessions SELECT NULL, 0, 5, NULL, NULL, NULL, NULL, 0, NULL, 'x', 1";
    Connection::open(&path).unwrap().execute_batch(insert).unwrap();
    sql(") ", ") STRICT");
    let plan = plan(&path, &[]);
    expect(&plan, &[("", "drop", "value")]);
    assert_eq!(plan.steps.listed()[0].row, Some(3));
    assert_eq!(mended(&plan).0.len(), 2);
}

#[test]
fn the_cases_of_the_bug_reports_are_repaired() {
    let cases: [(&str, &str, u64, u64, u64); 6] = [
        ("70-sqlite-good.py", "sessions.db", 3, 0, 0),
        ("74-sqlite-damaged.py", "truncated.db", 0, 0, 0),
        ("74-sqlite-damaged.py", "page-zeroed.db", 0, 0, 0),
        ("76-sqlite-gap-and-packed.py", "gap-committed.db", 1, 0, 7),
        ("76-sqlite-gap-and-packed.py", "orphan-events.db", 0, 1, 6),
        ("76-sqlite-gap-and-packed.py", "packed.db", 1, 0, 0),
    ];
    for (script, file, kept, left_out, saved) in cases {
        let Some((_dir, path)) = written(script, &[]) else { return };
        let plan = plan(&path.join(file), &[]);
        assert_eq!(plan.refusal, None, "{file}");
        let accepted =
            inspect_all(&plan.path).iter().filter(|r| word(&r.judgement).starts_with("accept")).count();
        let (sessions, _) = mended(&plan);
        assert!(sessions.len() >= accepted, "{file}");
        if kept + left_out > 0 {
            let summary = &plan.summary;
            let told = (summary.sessions_kept, summary.sessions_left_out, summary.records_saved);
            assert_eq!(told, (kept, left_out, saved), "{file}: {:?}", plan.sessions);
        }
    }
}
