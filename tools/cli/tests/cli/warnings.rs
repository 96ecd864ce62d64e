//! What is legal but odd is told by everything that judges: `inspect`, `import` and `verify`. A clean log is quiet.

use serde_json::{Value, json};

use crate::support::{Bench, header};

const USER: &str = r#"{"id":"u","role":"user","content":[],"source":{"kind":"user"}}"#;
const SURFACE: &str = r#","surfaceOp":"append""#;

/// The events of a log: type, data, further members.
type Events<'a> = &'a [(&'a str, &'a str, &'a str)];

/// A log and the one warning that it gives, at this line and seq.
struct Odd {
    kind: &'static str,
    log: String,
    line: u64,
    seq: Option<u64>,
    /// An import leaves nothing of it in the store.
    gone_once_stored: bool,
}

fn log(id: &str, events: Events<'_>) -> String {
    let mut text = header(id) + "\n";
    for (seq, (kind, data, marks)) in events.iter().enumerate() {
        text += &format!("{{\"type\":\"{kind}\",\"seq\":{seq},\"time\":7,\"data\":{data}{marks}}}\n");
    }
    text
}

fn odd(kind: &'static str, seq: u64, events: Events<'_>) -> Odd {
    Odd { kind, log: log(kind, events), line: seq + 2, seq: Some(seq), gone_once_stored: false }
}

fn of_header(kind: &'static str, members: &str) -> Odd {
    let log = log(kind, &[("todo/write", "{}", "")]).replacen("}\n", &format!(",{members}}}\n"), 1);
    Odd { kind, log, line: 1, seq: None, gone_once_stored: false }
}

fn calls(id: &str, calls: &[&str]) -> String {
    let block =
        |call: &&str| format!(r#"{{"type":"tool-call","id":"{call}","name":"sh","arguments":"{{}}"}}"#);
    let blocks: Vec<_> = calls.iter().map(block).collect();
    format!(
        r#"{{"turn":1,"step":1,"message":{{"id":"{id}","role":"assistant","content":[{}],"source":{{"kind":"model","provider":"p","model":"m"}}}}}}"#,
        blocks.join(",")
    )
}

fn result(id: &str, call: &str) -> String {
    format!(
        r#"{{"turn":1,"step":1,"message":{{"id":"{id}","role":"user","source":{{"kind":"tool","callId":"{call}"}},"content":[{{"type":"tool-result","toolCallId":"{call}","content":[]}}]}}}}"#
    )
}

fn odd_logs() -> Vec<Odd> {
    let (ask, answer) = (calls("a", &["c"]), result("r", "c"));
    let (two, again) = (calls("a", &["c", "d"]), calls("b", &["c"]));
    let (late, end) = (result("s", "d"), ("turn/end", r#"{"turn":1,"reason":{"kind":"completed"}}"#, ""));
    let text = r#"{"header":{"config":{"provider":"p","model":"m"}},"reason":"whim"}"#;
    let mut clock = odd("clock-step", 1, &[("todo/write", "{}", ""), ("todo/write", "{}", "")]);
    clock.log = clock.log.replacen("\"time\":7", "\"time\":8", 1);
    let mut normalised =
        odd("normalised", 0, &[("turn/start", r#"{"turn":1,"trigger":{"kind":"user"}}"#, ""), end]);
    normalised.gone_once_stored = true;
    vec![
        odd("duplicate-key", 0, &[("todo/write", r#"{"a":1,"a":2}"#, "")]),
        odd(
            "duplicate-call-id",
            2,
            &[
                ("assistant/message", &ask, SURFACE),
                ("tool/result", &answer, SURFACE),
                ("assistant/message", &again, SURFACE),
            ],
        ),
        odd("duplicate-message-id", 1, &[("user/message", USER, SURFACE), ("user/message", USER, SURFACE)]),
        odd(
            "dangling-call",
            1,
            &[("turn/start", r#"{"turn":1}"#, ""), ("assistant/message", &ask, SURFACE), end],
        ),
        odd("orphan-result", 0, &[("tool/result", &answer, SURFACE)]),
        odd(
            "interleaved-results",
            3,
            &[
                ("assistant/message", &two, SURFACE),
                ("tool/result", &answer, SURFACE),
                ("user/message", USER, SURFACE),
                ("tool/result", &late, SURFACE),
            ],
        ),
        odd("open-bracket", 0, &[("compaction/start", r#"{"compactionId":"x","turn":null}"#, "")]),
        clock,
        odd("unsafe-integer", 0, &[("todo/write", r#"{"a":9007199254740993}"#, "")]),
        odd("negative-zero", 0, &[("todo/write", r#"{"a":-0}"#, "")]),
        of_header("seed-bound", r#""seedLength":2,"parentSession":"p""#),
        of_header("seed-without-parent", r#""seedLength":1"#),
        odd("unknown-header-reason", 0, &[("request/header", text, "")]),
        normalised,
    ]
}

/// The kind, line and seq of each warning of a document.
fn told(document: &Value) -> Vec<(&str, Option<u64>, Option<u64>)> {
    let warnings = document["warnings"].as_array().unwrap().iter();
    warnings
        .map(|w| {
            assert!(w["message"].as_str().is_some_and(|message| !message.is_empty()), "{w}");
            (w["kind"].as_str().unwrap(), w["line"].as_u64(), w["seq"].as_u64())
        })
        .collect()
}

#[test]
fn every_kind_is_told_by_inspect_import_and_verify() {
    let odd_logs = odd_logs();
    let kinds: Vec<_> = odd_logs.iter().map(|odd| odd.kind).collect();
    let all = sessionlog::event::WarningKind::ALL.iter().map(|kind| kind.as_str());
    assert_eq!(kinds, all.filter(|kind| *kind != "wal-without-wal-file").collect::<Vec<_>>());
    for odd in odd_logs {
        let bench = Bench::new();
        let path = bench.file("odd.jsonl", &odd.log);
        let expected = vec![(odd.kind, Some(odd.line), odd.seq)];
        assert_eq!(told(&bench.json(&["inspect", &path])[0]), expected);
        assert_eq!(told(&bench.json(&["import", "--dry-run", &path])[0]), expected);
        assert_eq!(told(&bench.json(&["import", &path])[0]), expected);
        for depth in [&["verify"][..], &["verify", "--deep"]] {
            let verified = bench.json(depth);
            assert_eq!((verified.len(), &verified[0]["summary"]["findings"]), (1, &json!(0)), "no finding");
            let expected = if odd.gone_once_stored { vec![] } else { vec![(odd.kind, None, odd.seq)] };
            assert_eq!(told(&verified[0]), expected, "{}", odd.kind);
        }
    }
}

#[test]
fn a_person_reads_where_and_why_and_no_more_than_a_few_of_a_kind() {
    let bench = Bench::new();
    let many: Vec<_> = (0..25).map(|_| ("todo/write", r#"{"a":-0}"#, "")).collect();
    let path = bench.file("many.jsonl", log("many", &many));
    let run = bench.run(&["inspect", &path]);
    assert_eq!(run.stdout.matches("negative-zero, line ").count(), 10, "{}", run.stdout);
    assert!(run.stdout.contains("negative-zero: 15 more"), "{}", run.stdout);
    let run = bench.run(&["import", &path]);
    let (first, table) = (format!("{path}: negative-zero, line 2, seq 0: "), "negative-zero     1     25  ");
    assert!(run.code == 0 && run.stdout.contains(&first) && run.stderr.contains(table), "{run:?}");
    let run = bench.run(&["verify"]);
    assert!(run.code == 0 && run.stdout.contains("session many: negative-zero, seq 9: "), "{run:?}");
    assert!(run.stdout.contains("negative-zero: 15 more") && run.stdout.contains("sound: "), "{run:?}");
}

#[test]
fn a_clean_log_is_quiet() {
    let bench = Bench::with_samples();
    let run = bench.run(&["verify"]);
    assert!(run.code == 0 && run.stdout.starts_with("sound: ") && run.stderr.is_empty(), "{run:?}");
    let log = bench.file("clean.jsonl", log("clean", &[("todo/write", "{}", "")]));
    let run = bench.run(&["import", &log]);
    assert!(run.code == 0 && run.stdout.is_empty() && !run.stderr.contains("WARNING"), "{run:?}");
}
