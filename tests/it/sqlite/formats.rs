//! The same sessions as JSONL, zstd JSONL and databases: any door in, any door out.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rusqlite::Connection;
use serde_json::Value;
use sessionlog::Store;
use sessionlog::event::SessionHeader;
use sessionlog::event::json::JsonString;
use sessionlog::export::{JsonlFormat, SqliteWriter, export_session_to};

use super::{export_all, export_one, import_all, inspect_all, listing, word};
use crate::support::{lines, memory_store, shared};
use crate::verdicts::{differs, report};

#[test]
fn the_recorded_database_is_judged_as_its_logs_and_left_as_it_was() {
    let Some(data) = shared().map(|root| root.join("data")) else { return };
    let verdicts = fs::read_to_string(data.join("logs.verdicts.jsonl")).unwrap();
    let verdicts: Vec<Value> = verdicts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let before = listing(&data);
    let reports = inspect_all(&data.join("sessions.db"));
    let store = memory_store();
    let imported = import_all(&store, &data.join("sessions.db"));
    assert!(before == listing(&data), "reading changed the source");
    assert_eq!((reports.len(), imported.len()), (95, 95));
    let difference = |(expected, (inspected, imported)): (&Value, (_, sessionlog::import::SourceReport))| {
        let inspected: sessionlog::import::SourceReport = inspected;
        let file = expected["file"].as_str().unwrap();
        if inspected.session().unwrap() != format!("log-{}", &file[..3]) {
            return Some(format!("{file}: {:?}", inspected.session()));
        }
        let differs =
            differs(expected, inspected.judgement).or_else(|| differs(expected, imported.judgement));
        differs.map(|difference| format!("{file}: {difference}"))
    };
    let pairs = verdicts.iter().zip(reports.into_iter().zip(imported));
    report("sessions.db", 95, &pairs.filter_map(difference).collect::<Vec<_>>());

    // Out again: the same events, the same schema.
    let dir = tempfile::tempdir().unwrap();
    for packed in [true, false] {
        let path = dir.path().join(format!("packed-{packed}.db"));
        export_all(&store, &path, packed);
        let again = memory_store();
        let reports = import_all(&again, &path);
        assert!(
            reports.iter().all(|report| report
                .judgement
                .warnings
                .totals()
                .all(|(kind, _)| kind.as_str() != "normalised"))
        );
        assert_eq!(all_lines(&again), all_lines(&store));
        let rows = count(&path, "SELECT count(*) FROM events");
        let packed_rows = count(&path, "SELECT count(*) FROM events WHERE ignorable = 0");
        assert_eq!((packed_rows > 50, rows < 5_000), (packed, packed), "{rows} rows, {packed_rows} packed");
    }
    let ours = schema(&dir.path().join("packed-true.db"));
    assert_eq!(ours, schema(&data.join("sessions.db")));
    assert_eq!(ours.len(), 5);
}

fn count(path: &Path, sql: &str) -> i64 {
    immutable(path).query_row(sql, [], |row| row.get(0)).unwrap()
}

/// A connection that leaves no trace.
fn immutable(path: &Path) -> Connection {
    use rusqlite::OpenFlags;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file://{}?immutable=1", path.display()), flags).unwrap()
}

/// Every object of the schema, text and all, and the marks of the file.
fn schema(path: &Path) -> Vec<String> {
    let database = immutable(path);
    let mut statement = database
        .prepare("SELECT sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*' ORDER BY type, name")
        .unwrap();
    let mut schema: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    for pragma in ["PRAGMA user_version", "PRAGMA application_id"] {
        schema.push(database.query_row(pragma, [], |row| row.get::<_, i64>(0)).unwrap().to_string());
    }
    schema
}

fn all_lines(store: &Store) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<_> = store
        .list()
        .unwrap()
        .iter()
        .map(|info| {
            let session = store.session(&info.header.id).unwrap();
            (format!("{:?}", session.header()), lines(&session))
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_database_is_private_whole_and_written_as_the_reference_writes_it() {
    let store = memory_store();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("s.jsonl");
    let long = "x".repeat(5_000);
    let mut text = String::from(
        "{\"type\":\"session\",\"version\":0,\"id\":\"s\",\"createdAt\":7,\"cwd\":\"/srv\",\"parentSession\":\"p\",\"seedLength\":1,\"origin\":\"subagent\",\"delegationDepth\":2,\"agentPreset\":\"a\"}\n",
    );
    let user = r#"{"id":"u","role":"user","content":[],"source":{"kind":"user"}}"#;
    let other = user.replace("\"u\"", "\"v\"");
    text += "{\"type\":\"turn/start\",\"seq\":0,\"time\":1,\"data\":{\"turn\":1}}\n";
    text += &format!(
        "{{\"type\":\"user/message\",\"seq\":1,\"time\":2,\"data\":{user},\"sourceEventSeqs\":[0],\"surfaceOp\":\"append\"}}\n"
    );
    text += &format!(
        "{{\"type\":\"user/message\",\"seq\":2,\"time\":3,\"data\":{other},\"sourceEventSeqs\":[1,0],\"surfaceOp\":{{\"op\":\"replace\",\"start\":1,\"end\":1}}}}\n"
    );
    text +=
        &format!("{{\"type\":\"acme/x\",\"seq\":3,\"time\":-4,\"data\":\"{long}\",\"ignorable\":true}}\n");
    text += "{\"type\":\"text-chunks\",\"seq0\":4,\"time0\":5,\"data\":{\"turn\":1,\"step\":1,\"index\":0,\"dt\":[1,-2],\"texts\":[\"a\",\"\",\"c\"]}}\n";
    fs::write(&log, text).unwrap();
    assert_eq!(import_all(&store, &log)[0].added, 7);
    let path = dir.path().join("out.db");
    export_one(&store.session("s").unwrap(), &path);

    let database = immutable(&path);
    let cell = |sql: &str| database.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    let rows = "SELECT group_concat(seq || type || '|' || time || '|' || typeof(data) || '|' || \
                iif(source_event_seqs IS NULL, '-', hex(source_event_seqs)) || '|' || coalesce(surface_op, '-') || '|' || \
                coalesce(ignorable, '-'), ' ') FROM (SELECT * FROM events ORDER BY seq)";
    assert_eq!(
        cell(rows),
        "0turn/start|1|text|-|-|- 1user/message|2|text|00|\"append\"|- \
         2user/message|3|text|0101|{\"op\":\"replace\",\"start\":1,\"end\":1}|- \
         3acme/x|-4|blob|-|-|1 4text-chunks|5|text|-|-|0"
    );
    let header = "SELECT id || version || created_at || cwd || parent_session || seed_length || origin || \
                  delegation_depth || agent_preset || revision FROM sessions";
    assert_eq!(cell(header), "s07/srvp1subagent2a1");
    assert_eq!(
        cell("SELECT data FROM events WHERE seq = 4"),
        r#"{"turn":1,"step":1,"index":0,"dt":[1,-2],"texts":["a","","c"]}"#
    );
    for id in ["SELECT store_id FROM persistence_state", "SELECT incarnation FROM sessions"] {
        assert_eq!((cell(id).len(), cell(id).as_bytes()[14]), (36, b'4'));
    }
    assert_eq!(cell("PRAGMA integrity_check"), "ok");
    let names: Vec<_> = listing(dir.path()).into_iter().map(|(path, ..)| path).collect();
    assert_eq!(names, [path.clone(), log]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let error = SqliteWriter::create(&path).unwrap_err();
    assert_eq!(error.kind(), sessionlog::ErrorKind::Conflict);
}

#[test]
fn a_session_that_cannot_be_written_leaves_the_others() {
    let store = memory_store();
    let mut header = SessionHeader::new("half", 1);
    header.cwd = Some(JsonString::decode("\"/a\\ud800\"").into_owned());
    let half = store.create_session(header).unwrap();
    let whole = store.create_session(SessionHeader::new("whole", 1)).unwrap();
    for session in [&half, &whole] {
        let draft = sessionlog::Draft::new("todo/write", "{}");
        session.append(&[draft], sessionlog::AppendOptions::default()).unwrap().wait().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.db");
    let mut writer = SqliteWriter::create(&path).unwrap();
    assert_eq!(writer.session(&half, true, None).unwrap_err().kind(), sessionlog::ErrorKind::Unsupported);
    writer.session(&whole, true, None).unwrap();
    assert_eq!(writer.session(&whole, true, None).unwrap_err().kind(), sessionlog::ErrorKind::Conflict);
    assert!(!path.exists());
    writer.finish().unwrap();
    let reports = inspect_all(&path);
    assert_eq!((reports.len(), word(&reports[0].judgement)), (1, "accept 1".to_owned()));
}

/// Writes the same log as JSONL and as a database of one session.
fn both(dir: &Path, name: &str, text: &str) -> [std::path::PathBuf; 2] {
    let log = dir.join(format!("{name}.jsonl"));
    fs::write(&log, text).unwrap();
    let store = memory_store();
    import_all(&store, &log);
    let database = dir.join(format!("{name}.db"));
    export_all(&store, &database, true);
    [log, database]
}

#[test]
fn a_log_and_its_database_are_one_session_in_either_order() {
    let header = "{\"type\":\"session\",\"version\":0,\"id\":\"s\",\"createdAt\":1,\"delegationDepth\":0}\n";
    let turn = |seq: u64, reason: &str| {
        format!(
            "{{\"type\":\"turn/start\",\"seq\":{seq},\"time\":1,\"data\":{{\"turn\":{}}}}}\n{{\"type\":\"turn/end\",\"seq\":{},\"time\":2,\"data\":{{\"turn\":{0},\"reason\":{{\"kind\":\"{reason}\"}}}}}}\n",
            seq / 2 + 1,
            seq + 1
        )
    };
    let short = format!("{header}{}", turn(0, "completed"));
    let long = format!("{short}{}", turn(2, "completed"));
    let other = format!("{header}{}{}", turn(0, "completed"), turn(2, "blocked"));
    let dir = tempfile::tempdir().unwrap();
    let [short, long, other] = [("short", short), ("long", long), ("other", other)]
        .map(|(name, text)| both(dir.path(), name, &text));
    for first in 0..2 {
        let second = 1 - first;
        let store = memory_store();
        let told = |path: &Path| {
            let report = import_all(&store, path).pop().unwrap();
            let refusal = report.judgement.refusal;
            (
                report.added,
                report.skipped,
                refusal.map(|refusal| (refusal.kind.as_str(), refusal.rowid, refusal.line)),
            )
        };
        assert_eq!(told(&short[first]), (2, 0, None));
        assert_eq!(told(&short[second]), (0, 2, None));
        assert_eq!(told(&long[second]), (2, 2, None));
        assert_eq!(told(&long[first]), (0, 4, None));
        assert_eq!(told(&short[first]), (0, 2, None));
        let place = [(None, Some(5)), (Some(4), None)][second];
        assert_eq!(told(&other[second]), (0, 0, Some(("id-conflict", place.0, place.1))));
        assert_eq!(lines(&store.session("s").unwrap()).len(), 4);
    }
    // Under one roof nothing tells which of them is the right one.
    let kinds: Vec<_> = inspect_all(dir.path()).iter().map(|report| word(&report.judgement)).collect();
    assert_eq!(kinds, vec!["refuse duplicate-id"; 6]);
}

/// An event; numbers are taken modulo what is there to choose from.
#[derive(Debug, Clone)]
enum Kind {
    Chunks { kind: usize, count: usize, step: i64, token: usize },
    User { sources: Vec<usize> },
    Replace { start: usize, end: usize },
    Todo(usize),
    Odd(usize),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => (0_usize..3, prop_oneof![9 => 1_usize..6, 1 => Just(1_100)], -5_i64..5, prop_oneof![9 => 0_usize..40, 1 => Just(2_000)])
            .prop_map(|(kind, count, step, token)| Kind::Chunks { kind, count, step, token }),
        3 => prop::collection::vec(any::<usize>(), 0..6).prop_map(|sources| Kind::User { sources }),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(start, end)| Kind::Replace { start, end }),
        2 => prop_oneof![0_usize..100, 4_000_usize..4_200, Just(20_000)].prop_map(Kind::Todo),
        1 => (0_usize..ODD.len()).prop_map(Kind::Odd),
    ]
}

/// Payloads whose spelling no parser gives back.
const ODD: [&str; 6] = [
    r#"{"b":1.0,"a":1E3,"2":-0.0,"1":9007199254740993}"#,
    r#""\ud83c\u0000 \u2028""#,
    "[ 1 ,\t2 ]",
    r#"{"a":1,"a":2}"#,
    "null",
    r#""é""#,
];

/// The log that the steps make.
fn log(steps: &[Kind]) -> String {
    let mut text = String::from(
        "{\"type\":\"session\",\"version\":0,\"id\":\"s\",\"createdAt\":1,\"delegationDepth\":0}\n",
    );
    let (mut seq, mut time) = (0_u64, 1_000_i64);
    let mut surface: Vec<u64> = Vec::new();
    for step in steps {
        let message =
            |seq: u64| format!(r#"{{"id":"m{seq}","role":"user","content":[],"source":{{"kind":"user"}}}}"#);
        match step {
            Kind::Chunks { kind, count, step, token } => {
                let tail = |i: usize| format!("{}{i}", "é\\n".repeat(*token / 3));
                for i in 0..*count {
                    let chunk = match kind {
                        0 => format!(r#"{{"type":"text-delta","index":0,"text":"{}"}}"#, tail(i)),
                        1 => format!(r#"{{"type":"reasoning-delta","index":1,"text":"{}"}}"#, tail(i)),
                        _ => format!(
                            r#"{{"type":"tool-call-delta","index":0,"id":"c","name":"n","argumentsDelta":"{}"}}"#,
                            tail(i)
                        ),
                    };
                    text += &format!(
                        "{{\"type\":\"assistant/chunk\",\"seq\":{seq},\"time\":{time},\"data\":{{\"turn\":1,\"step\":1,\"chunk\":{chunk}}}}}\n"
                    );
                    (seq, time) = (seq + 1, time + step);
                }
            }
            Kind::User { sources } => {
                let mut list: Vec<u64> = Vec::new();
                for source in sources.iter().filter(|_| seq > 0).map(|source| *source as u64 % seq) {
                    if !list.contains(&source) {
                        list.push(source);
                    }
                }
                let list =
                    if list.is_empty() { String::new() } else { format!(",\"sourceEventSeqs\":{list:?}") };
                text += &format!(
                    "{{\"type\":\"user/message\",\"seq\":{seq},\"time\":{time},\"data\":{}{list},\"surfaceOp\":\"append\"}}\n",
                    message(seq)
                );
                surface.push(seq);
                seq += 1;
            }
            Kind::Replace { start, end } if !surface.is_empty() => {
                let (start, end) = (start % surface.len(), end % surface.len());
                let range = start.min(end)..=start.max(end);
                let shadowed: Vec<u64> = surface.splice(range, [seq]).collect();
                text += &format!(
                    "{{\"type\":\"user/message\",\"seq\":{seq},\"time\":{time},\"data\":{},\"sourceEventSeqs\":{shadowed:?},\"surfaceOp\":{{\"op\":\"replace\",\"start\":{},\"end\":{}}}}}\n",
                    message(seq),
                    shadowed[0],
                    shadowed[shadowed.len() - 1]
                );
                seq += 1;
            }
            Kind::Replace { .. } => {}
            Kind::Todo(length) => {
                text += &format!(
                    "{{\"type\":\"todo/write\",\"seq\":{seq},\"time\":{time},\"data\":\"{}\"}}\n",
                    "y".repeat(*length)
                );
                seq += 1;
            }
            Kind::Odd(index) => {
                text += &format!(
                    "{{\"type\":\"acme/odd\",\"seq\":{seq},\"time\":{time},\"data\":{},\"ignorable\":true}}\n",
                    ODD[*index]
                );
                seq += 1;
            }
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, rng_seed: RngSeed::Fixed(11), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_log_goes_through_every_format_and_comes_back(steps in prop::collection::vec(kind(), 0..25)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.jsonl");
        fs::write(&path, log(&steps)).unwrap();
        let first = memory_store();
        let report = import_all(&first, &path).pop().unwrap();
        prop_assert!(report.judgement.refusal.is_none(), "{:?}", report.judgement.refusal);
        let expected = all_lines(&first);
        // Each format in turn is made from what the one before it gave.
        let mut store = first;
        for (number, packed) in [true, false, true].into_iter().enumerate() {
            let session = store.session("s").unwrap();
            let names = ["plain.jsonl", "frames.jsonl.zstd", "rows.db"].map(|name| dir.path().join(format!("{number}-{name}")));
            export_session_to(&session, &names[0], JsonlFormat::Plain, packed, None).unwrap();
            export_session_to(&session, &names[1], JsonlFormat::Zstd, packed, None).unwrap();
            export_all(&store, &names[2], packed);
            for name in &names {
                let next = memory_store();
                import_all(&next, name);
                prop_assert_eq!(&all_lines(&next), &expected, "{}", name.display());
                prop_assert_eq!(import_all(&store, name)[0].added, 0);
                store = next;
            }
        }
    }
}
