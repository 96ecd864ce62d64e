//! Appending from stdin: acknowledgements, batches, refusals, and a kill in the middle.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Bench, EVENT, header};

/// A store with one empty session header on file, to be created by the first append.
fn bench() -> (Bench, String) {
    let bench = Bench::new();
    let meta = bench.file("meta.json", header("live"));
    (bench, meta)
}

fn events(bench: &Bench) -> Vec<Value> {
    bench.run(&["show", "live", "--events", "0..100000"]).documents()
}

#[test]
fn each_event_is_told_with_its_seq() {
    let (bench, meta) = bench();
    let input = format!("{EVENT}\n\n{EVENT}\n{}", EVENT.replace("\"data\"", "\"time\":7,\"data\""));
    let run = bench.run_with(&["append", "live", "--create", &meta], &input);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let told: String = (0..3).map(|seq| format!("{{\"seq\":{seq},\"durable\":true}}\n")).collect();
    assert_eq!(run.stdout, told);
    assert_eq!(events(&bench)[2]["time"], 7);
    let run = bench.run_with(&["append", "live", "--durability", "buffered"], EVENT);
    assert_eq!(run.stdout, "{\"seq\":3,\"durable\":false}\n");
}

#[test]
fn a_refused_line_stores_nothing_of_its_batch() {
    let (bench, meta) = bench();
    let bad = r#"{"type":"acme/unknown","data":{}}"#;
    let input = format!("{EVENT}\n{EVENT}\n{EVENT}\n{bad}\n{EVENT}\n");
    let run = bench.run_with(&["append", "live", "--create", &meta, "--batch", "2"], &input);
    assert_eq!((run.code, run.documents().len()), (1, 2));
    assert!(
        run.stderr.contains("lines 3 to 4") && run.stderr.contains("unsupported-event"),
        "{}",
        run.stderr
    );
    assert_eq!(events(&bench).len(), 2);
    for bad in ["{", "[]", r#"{"type":"todo/write"}"#, r#"{"type":"todo/write","data":-0}"#, "\u{feff}{}"] {
        let run = bench.run_with(&["append", "live"], &format!("{EVENT}\n{bad}\n"));
        assert_eq!((run.code, run.documents().len()), (1, 1), "{bad}");
        assert!(run.stderr.contains("line 2"), "{bad}: {}", run.stderr);
    }
}

#[test]
fn events_that_name_their_seq_may_be_sent_twice() {
    let (bench, meta) = bench();
    let numbered = |seqs: std::ops::Range<u64>| -> String {
        seqs.map(|seq| format!("{{\"type\":\"feedback/record\",\"seq\":{seq},\"data\":{{}}}}\n")).collect()
    };
    let first = bench.run_with(&["append", "live", "--create", &meta], &numbered(0..4));
    assert_eq!((first.code, first.documents().len()), (0, 4));
    let again = bench.run_with(&["append", "live", "--create", &meta], &numbered(2..6));
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_eq!(again.documents()[0], json!({"seq": 2, "durable": true}));
    assert_eq!(events(&bench).len(), 6);
    let gap = bench.run_with(&["append", "live"], &numbered(9..10));
    assert_eq!((gap.code, gap.stdout.as_str()), (1, ""));
    let mixed = bench.run_with(&["append", "live", "--batch", "9"], &(numbered(6..7) + &numbered(8..9)));
    assert_eq!((mixed.code, mixed.stdout.as_str()), (1, ""));
    assert_eq!(events(&bench).len(), 6);
}

#[test]
fn creating_wants_the_same_header_again() {
    let (bench, meta) = bench();
    assert_eq!(bench.run_with(&["append", "live", "--create", &meta], EVENT).code, 0);
    let other = bench.file("other.json", header("live").replace("1795770000000", "1"));
    assert_eq!(bench.run_with(&["append", "live", "--create", &other], EVENT).code, 3);
    assert_eq!(bench.run_with(&["append", "another", "--create", &meta], EVENT).code, 3);
    assert_eq!(events(&bench).len(), 1);
}

#[test]
fn a_new_header_may_leave_out_what_is_known() {
    let bench = Bench::new();
    let meta = bench.file("meta.json", "{\n  \"cwd\": \"/srv/\\ud83c\"\n}\n");
    for seq in 0..2 {
        let run = bench.run_with(&["append", "live", "--create", &meta], EVENT);
        assert_eq!((run.code, run.documents()[0]["seq"].as_u64()), (0, Some(seq)), "{}", run.stderr);
    }
    assert!(bench.run(&["ls", "--json"]).stdout.contains(r#""cwd":"/srv/\ud83c""#));
    for (meta, says) in [("{", "not JSON"), ("[]", "no JSON object"), (r#"{"cwd":"relative"}"#, "absolute")] {
        let meta = bench.file("bad.json", meta);
        let run = bench.run_with(&["append", "new", "--create", &meta], EVENT);
        assert!(run.code == 3 && run.stderr.contains(says), "{says}: {}", run.stderr);
    }
}

#[test]
fn a_slow_producer_hears_of_each_event_before_the_next() {
    let (bench, meta) = bench();
    let args = ["append", "live", "--create", &meta, "--batch", "100"];
    let mut child = bench.command(&args).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    for seq in 0..3 {
        writeln!(input, "{EVENT}").unwrap();
        assert_eq!(told.next().unwrap().unwrap(), format!("{{\"seq\":{seq},\"durable\":true}}"));
    }
    drop(input);
    assert!(told.next().is_none() && child.wait().unwrap().success());
}

#[test]
fn what_was_told_survives_a_kill() {
    let (bench, meta) = bench();
    let mut survived = 0;
    for round in 1..=10_usize {
        let mut child =
            bench.command(&["append", "live", "--create", &meta]).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let feed = std::thread::spawn(move || while writeln!(input, "{EVENT}").is_ok() {});
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
        let last = told.by_ref().nth(20 * round).unwrap().unwrap();
        child.kill().unwrap();
        // What was told before the kill may still lie in the pipe.
        let last = told.map_while(Result::ok).filter(|line| line.ends_with('}')).last().unwrap_or(last);
        child.wait().unwrap();
        feed.join().unwrap();
        let last: Value = serde_json::from_str(&last).unwrap();
        let stored = events(&bench);
        let told = usize::try_from(last["seq"].as_u64().unwrap()).unwrap() + 1;
        assert!(told > survived, "each round goes on where the last one was killed");
        assert!(stored.len() >= told, "round {round}: {} stored, {told} told", stored.len());
        survived = stored.len();
        // The next round goes on in the segment that was cut, or behind a sealed file.
        if round % 2 == 0 {
            assert_eq!(bench.run(&["compact", "--apply"]).code, 0);
            assert_eq!(events(&bench), stored);
        }
    }
    assert_eq!(bench.run(&["verify", "--deep"]).code, 0);
}
