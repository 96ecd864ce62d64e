//! What each cell may hold, and what a wrong one costs.

use rusqlite::types::{ToSql, Value};
use rusqlite::{Connection, params};

use sessionlog::event::SessionState;

use super::{add_event, add_session, add_turn, database, only, word};

/// A database with one closed turn in `s`, and one row more: type, time, data, sources, op, ignorable.
struct Bad {
    cells: [Value; 6],
    tail: &'static str,
    committed: &'static str,
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn blob(bytes: &[u8]) -> Value {
    Value::Blob(bytes.to_vec())
}

/// A zstd frame of one raw block.
fn frame(content: &[u8]) -> Value {
    let size = u32::try_from(content.len()).unwrap();
    let (header, length) = ((1 | size << 3).to_le_bytes(), u8::try_from(content.len()).unwrap());
    blob(&[&[0x28, 0xB5, 0x2F, 0xFD, 0x20, length], &header[..3], content].concat())
}

const NONE: Value = Value::Null;

/// A cell of the wrong shape.
fn value(cells: [Value; 6]) -> Bad {
    Bad { cells, tail: "refuse value", committed: "refuse value" }
}

/// A cell that does not decode.
fn undecodable(cells: [Value; 6], committed: &'static str) -> Bad {
    Bad { cells, tail: "repair bad-tail", committed }
}

fn todo(data: Value) -> [Value; 6] {
    [text("todo/write"), Value::Integer(10), data, NONE, NONE, NONE]
}

fn user(sources: Value, op: Value) -> [Value; 6] {
    let data = r#"{"id":"u","role":"user","content":[],"source":{"kind":"user"}}"#;
    [text("user/message"), Value::Integer(10), text(data), sources, op, NONE]
}

fn packed(type_name: &str, data: &str) -> [Value; 6] {
    [text(type_name), Value::Integer(10), text(data), NONE, NONE, Value::Integer(0)]
}

fn chunks(members: usize) -> String {
    let (steps, tokens) = (vec!["1"; members.saturating_sub(1)].join(","), vec!["\"a\""; members].join(","));
    format!(r#"{{"turn":1,"step":1,"index":0,"dt":[{steps}],"texts":[{tokens}]}}"#)
}

fn table() -> Vec<Bad> {
    let with = |mut cells: [Value; 6], index: usize, cell: Value| {
        cells[index] = cell;
        cells
    };
    let good = || todo(text("{}"));
    let long =
        format!(r#"{{"turn":1,"step":1,"index":0,"dt":[1,1],"texts":["{}","",""]}}"#, "x".repeat(1 << 20));
    vec![
        value(todo(Value::Integer(5))),
        value(todo(Value::Real(0.5))),
        value(with(good(), 0, text(""))),
        value(with(good(), 1, Value::Integer(1 << 53))),
        value(with(good(), 3, text("[1]"))),
        value(with(good(), 5, Value::Integer(2))),
        undecodable(todo(text("{bad")), "refuse corrupt-record"),
        undecodable(todo(text("")), "refuse corrupt-record"),
        undecodable(todo(text(r#"{},"ignorable":true"#)), "refuse corrupt-record"),
        undecodable(todo(text(r#"{}},{"a":1"#)), "refuse corrupt-record"),
        undecodable(todo(frame(b"{\"a\"")), "refuse corrupt-record"),
        undecodable(todo(frame(b"\"\xFF\"")), "refuse invalid-utf8"),
        undecodable(todo(blob(b"{}")), "refuse frame-magic"),
        undecodable(
            todo(blob(&[0x28, 0xB5, 0x2F, 0xFD, 0x20, 0x02, 0x11, 0, 0, b'{'])),
            "refuse frame-block",
        ),
        undecodable(user(blob(&[0x80, 0x00]), text("\"append\"")), "refuse provenance"),
        undecodable(user(NONE, text("append")), "refuse surface-op-shape"),
        undecodable(packed("todo/write", "{}"), "refuse packed-row"),
        undecodable(packed("text-chunks", &chunks(2)), "refuse packed-row"),
        undecodable(packed("text-chunks", &chunks(1025)), "refuse packed-row"),
        undecodable(packed("text-chunks", &long), "refuse packed-row"),
        undecodable(packed("reasoning-chunks", r#"{"turn":1,"texts":["a","b","c"]}"#), "refuse packed-row"),
        undecodable(with(packed("text-chunks", &chunks(3)), 4, text("\"append\"")), "refuse packed-row"),
    ]
}

fn add(database: &Connection, seq: u32, cells: &[Value; 6]) {
    database.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
    let insert = "INSERT INTO events VALUES ('s', ?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let [a, b, c, d, e, f] = cells;
    let cells: [&dyn ToSql; 7] = [&seq, a, b, c, d, e, f];
    database.execute(insert, cells).unwrap();
}

#[test]
fn a_wrong_shape_is_fatal_and_what_does_not_decode_costs_an_open_tail() {
    for Bad { cells, tail, committed } in table() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let database = database(&path);
        add_session(&database, "s");
        add_turn(&database, "s", 0);
        add(&database, 2, &cells);
        let judgement = only(&path);
        assert_eq!(word(&judgement), tail, "{cells:?}: {:?}", judgement.refusal);
        let rowid = judgement.refusal.and_then(|refusal| refusal.rowid);
        let rowid = rowid.or(judgement.repair.as_ref().and_then(|repair| repair.rowid));
        assert_eq!(rowid, Some(3), "{cells:?}");
        assert_eq!(judgement.state.map(|state| state.surface().len()), judgement.repair.map(|_| 0));

        add_turn(&database, "s", 3);
        let refusal = only(&path).refusal.unwrap();
        assert_eq!(format!("refuse {}", refusal.kind), committed, "{cells:?}: {refusal}");
        assert_eq!((refusal.rowid, refusal.line, refusal.seq.map(|seq| seq.get())), (Some(3), None, Some(2)));
    }
}

#[test]
fn good_cells_of_every_encoding_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = database(&path);
    add_session(&database, "s");
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(200));
    add(&database, 0, &todo(frame(long.as_bytes())));
    add(&database, 1, &user(NONE, text("\"append\"")));
    add(&database, 2, &packed("text-chunks", &chunks(1024)));
    let replace = text(r#"{"op":"replace","start":1,"end":1}"#);
    add(&database, 1026, &user(blob(&[0x01]), replace));
    // A first frame is all that counts of a BLOB.
    let Value::Blob(mut two) = frame(b"[1]") else { unreachable!() };
    two.extend_from_slice(b"rest");
    add(&database, 1027, &todo(blob(&two)));
    let judgement = only(&path);
    assert_eq!(word(&judgement), "accept 1028", "{:?}", judgement.refusal);
    assert_eq!(judgement.replacements[0].shadowed, [sessionlog::Seq::new(1)]);
}

#[test]
fn the_mark_says_what_is_packed_not_the_type() {
    for (mark, expected) in
        [(NONE, "refuse unsupported-event"), (Value::Integer(1), "accept 1"), (Value::Integer(0), "accept 3")]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let database = database(&path);
        add_session(&database, "s");
        let mut cells = packed("text-chunks", &chunks(3));
        cells[5] = mark;
        add(&database, 0, &cells);
        assert_eq!(word(&only(&path)), expected);
    }
}

#[test]
fn rows_of_sessions_have_their_rules() {
    let cases = [
        ("version = 1", "refuse newer-format"),
        ("version = -1", "refuse older-format"),
        ("created_at = -1", "refuse header"),
        ("created_at = 9007199254740992", "refuse value"),
        ("cwd = 'relative'", "refuse header"),
        ("seed_length = -1", "refuse header"),
        ("origin = 'user'", "refuse header"),
        ("delegation_depth = -1", "refuse header"),
        ("incarnation = 'none'", "refuse value"),
        ("delegation_depth = NULL", "accept 2"),
        (
            "origin = 'subagent', cwd = 'C:\\x', parent_session = 'p', agent_preset = '', delegation_depth = 3",
            "accept 2",
        ),
    ];
    for (change, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let database = database(&path);
        add_session(&database, "s");
        add_turn(&database, "s", 0);
        database.execute(&format!("UPDATE sessions SET {change}"), []).unwrap();
        let judgement = only(&path);
        assert_eq!(word(&judgement), expected, "{change}: {:?}", judgement.refusal);
        let refused = judgement.refusal.is_some();
        assert_eq!(judgement.refusal.and_then(|refusal| refusal.rowid), refused.then_some(1), "{change}");
    }
}

#[test]
fn legacy_rows_are_named_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = database(&path);
    add_session(&database, "s");
    database.execute("UPDATE sessions SET cwd = 'relative'", []).unwrap();
    add_event(&database, "s", 0, "acme/unknown", "{}");
    add_event(&database, "s", 1, "request/header-delta", "{}");
    assert_eq!(word(&only(&path)), "refuse legacy-header-delta");
}

#[test]
fn invalid_utf8_in_text_is_refused_or_replaced_on_request() {
    use sessionlog::import::{Importer, JudgeOptions, Verdict};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let database = database(&path);
    add_session(&database, "s");
    let insert =
        "INSERT INTO events VALUES ('s', 0, 'todo/write', 10, CAST(x'22FF22' AS TEXT), NULL, NULL, NULL)";
    database.execute(insert, params![]).unwrap();
    assert_eq!(word(&only(&path)), "refuse invalid-utf8");
    let lossy = Importer::new(JudgeOptions { lossy_utf8: true, ..JudgeOptions::default() });
    let plan = lossy.plan(&[path]);
    let report = lossy.inspect(&plan.sources[0], &|_| ()).unwrap();
    assert_eq!(report.judgement.verdict(), Verdict::Accept);
    assert_eq!(report.judgement.warnings.listed()[0].kind.as_str(), "normalised");
}
