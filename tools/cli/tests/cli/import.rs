//! Importing: idempotent, in order, one bad log never stops the others.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Bench, EVENT, header, keys, sample};

fn samples() -> String {
    format!("{}/samples", env!("CARGO_MANIFEST_DIR"))
}

fn verdicts(documents: &[Value]) -> Vec<&str> {
    documents.iter().filter_map(|document| document["verdict"].as_str()).collect()
}

#[test]
fn good_logs_are_taken_and_bad_ones_named() {
    let bench = Bench::new();
    let run = bench.run(&["import", &samples(), "--json"]);
    assert_eq!(run.code, 1);
    let told = run.documents();
    assert_eq!(verdicts(&told), ["accept", "repair", "accept", "accept", "refuse", "refuse"]);
    let expected =
        ["added", "events", "path", "refusal", "repair", "session", "skipped", "verdict", "warnings"];
    assert_eq!(keys(&told[0]), expected);
    assert_eq!((&told[0]["added"], &told[0]["session"]), (&json!(368), &json!("flaky-invoice-test")));
    let summary = &told[6]["summary"];
    assert_eq!(keys(summary), ["accepted", "bytes", "events", "refused", "repaired", "seconds", "sources"]);
    assert_eq!(
        (&summary["accepted"], &summary["repaired"], &summary["refused"]),
        (&json!(3), &json!(1), &json!(2))
    );
    assert_eq!(bench.json(&["ls"]).len(), 4);
}

#[test]
fn a_second_import_adds_nothing_and_any_number_of_jobs_says_the_same() {
    let bench = Bench::new();
    let first = bench.run(&["import", &samples(), "--json", "--jobs", "1"]).documents();
    let many = Bench::new().run(&["import", &samples(), "--json", "--jobs", "8"]).documents();
    assert_eq!(first[..6], many[..6]);
    let again = bench.run(&["import", &samples(), "--json"]).documents();
    assert!(again[..6].iter().all(|source| source["added"] == 0));
    assert_eq!(again[0]["skipped"], 368);
}

#[test]
fn a_longer_log_extends_and_a_diverging_one_is_refused() {
    let bench = Bench::new();
    let text = fs::read_to_string(sample("01")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let to_first_turn_end = format!("{}\n", lines[..228].join("\n"));
    let short = bench.file("short.jsonl", &to_first_turn_end);
    assert_eq!(bench.json(&["import", &short])[0]["added"], 227);
    let longer = bench.json(&["import", &sample("01"), &sample("01")]).remove(0);
    assert_eq!((&longer["added"], &longer["skipped"]), (&json!(141), &json!(227)));
    let other = bench.file("other.jsonl", text.replace("about once a day", "about once a week"));
    let run = bench.run(&["import", &other, "--json"]);
    assert_eq!((run.code, &run.documents()[0]["refusal"]["kind"]), (1, &json!("id-conflict")));
}

#[test]
fn a_dry_run_stores_nothing() {
    let bench = Bench::new();
    let run = bench.run(&["import", "--dry-run", &sample("01"), &sample("02"), "--json"]);
    assert_eq!((run.code, verdicts(&run.documents())), (0, vec!["accept", "repair"]));
    assert!(!bench.store().exists());
    bench.json(&["import", &sample("01")]);
    let told = bench.json(&["import", "--dry-run", &sample("01"), &sample("03")]);
    assert_eq!([&told[0]["added"], &told[0]["skipped"]], [0, 368]);
    assert_eq!([&told[1]["added"], &told[1]["skipped"]], [&told[1]["events"], &json!(0)]);
    assert_eq!(bench.json(&["ls"]).len(), 1);
}

#[test]
fn stop_on_error_ends_at_the_first_refusal() {
    let bench = Bench::new();
    let logs = [sample("01"), sample("06"), sample("03")];
    let run =
        bench.run(&["import", &logs[0], &logs[1], &logs[2], "--jobs", "1", "--stop-on-error", "--json"]);
    assert_eq!((run.code, verdicts(&run.documents())), (1, vec!["accept", "refuse"]));
    let run = bench.run(&["import", &logs[0], &logs[1], &logs[2], "--json"]);
    assert_eq!(verdicts(&run.documents()), ["accept", "refuse", "accept"]);
}

#[test]
fn what_cannot_be_read_is_told_after_the_rest_is_done() {
    let bench = Bench::new();
    let missing = bench.path("missing.jsonl").to_str().unwrap().to_owned();
    let run = bench.run(&["import", &missing, &sample("01"), "--json"]);
    assert_eq!(run.code, 3);
    assert!(run.stderr.contains("missing.jsonl"), "{}", run.stderr);
    let told = run.documents();
    assert_eq!((keys(&told[0]), &told[0]["path"]), (vec!["error", "path"], &json!(missing)));
    assert_eq!((verdicts(&told), &told[2]["summary"]["sources"]), (vec!["accept"], &json!(2)));
    assert_eq!(bench.json(&["ls"]).len(), 1);
}

#[test]
fn one_id_in_two_places_is_ambiguous() {
    let bench = Bench::new();
    let copy = bench.file("copy.jsonl", fs::read(sample("03")).unwrap());
    let run = bench.run(&["import", &copy, &sample("03"), &sample("01"), "--json"]);
    assert_eq!(run.code, 1);
    let told = run.documents();
    assert_eq!(verdicts(&told), ["refuse", "refuse", "accept"]);
    assert_eq!(told[0]["refusal"]["kind"], "duplicate-id");
}

#[test]
fn a_log_may_come_from_stdin() {
    let bench = Bench::new();
    let run = bench.run_with(&["import", "-", "--json"], &fs::read_to_string(sample("03")).unwrap());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(run.documents()[0]["path"], "-");
    assert_eq!(bench.json(&["ls"])[0]["id"], "map-tiles-cache");
}

#[test]
fn foreign_types_and_bytes_are_taken_only_when_allowed() {
    let bench = Bench::new();
    let event = r#"{"type":"acme/note","seq":0,"time":0,"data":{}}"#;
    let foreign = bench.file("foreign.jsonl", format!("{}\n{event}\n", header("foreign")));
    let run = bench.run(&["import", &foreign, "--json"]);
    assert_eq!((run.code, &run.documents()[0]["refusal"]["kind"]), (1, &json!("unsupported-event")));
    assert_eq!(bench.run(&["import", &foreign, "--allow-type", "acme/note"]).code, 0);
    let run = bench.run_with(&["append", "foreign"], r#"{"type":"acme/note","data":1}"#);
    assert_eq!(run.code, 0, "an allowed type is known to the store from then on: {}", run.stderr);

    let mut bytes =
        format!("{}\n{}\n", header("bytes"), EVENT.replace("\"data\"", "\"seq\":0,\"time\":0,\"data\""))
            .replace("ok", "?")
            .into_bytes();
    let at = bytes.iter().position(|&byte| byte == b'?').unwrap();
    bytes[at] = 0xFF;
    let invalid = bench.file("invalid.jsonl", bytes);
    let run = bench.run(&["import", &invalid, "--json"]);
    assert_eq!((run.code, &run.documents()[0]["refusal"]["kind"]), (1, &json!("invalid-utf8")));
    assert_eq!(bench.run(&["import", &invalid, "--lossy-utf8"]).code, 0);
}

/// The import waits for its output to be read, so it cannot have ended when it is interrupted.
#[cfg(unix)]
#[test]
fn an_interrupted_import_keeps_what_it_told_and_goes_on_when_run_again() {
    use std::io::{BufRead, BufReader, Read};
    const LOGS: usize = 120;
    let bench = Bench::new();
    let root = bench.path("root");
    fs::create_dir(&root).unwrap();
    let odd = r#"{"type":"todo/write","seq":SEQ,"time":0,"data":{"a":-0}}"#;
    for number in 0..LOGS {
        let events: String = (0..50).map(|seq| odd.replace("SEQ", &format!("{seq}")) + "\n").collect();
        fs::write(root.join(format!("{number:03}.jsonl")), header(&format!("s{number}")) + "\n" + &events)
            .unwrap();
    }
    let root = root.to_str().unwrap();
    let mut child = bench.command(&["import", root, "--json", "--jobs", "2"]).spawn().unwrap();
    let (mut stdout, mut stderr) =
        (BufReader::new(child.stdout.take().unwrap()), BufReader::new(child.stderr.take().unwrap()));
    let mut told = String::new();
    stdout.read_line(&mut told).unwrap();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut notes = String::new();
    stderr.read_line(&mut notes).unwrap();
    assert!(notes.starts_with("interrupted: "), "{notes}");
    stdout.read_to_string(&mut told).unwrap();
    stderr.read_to_string(&mut notes).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));

    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let taken = verdicts(&told).len();
    assert!(0 < taken && taken < LOGS, "{taken}");
    assert_eq!(told.last().unwrap()["summary"]["accepted"], taken);
    let next = format!("{taken} of {LOGS} logs are in; run the same command again");
    assert!(notes.contains(&next), "{notes}");
    assert_eq!(bench.json(&["ls"]).len(), taken, "what was told is in, and nothing else");
    assert_eq!(bench.run(&["verify", "--deep"]).code, 0);

    let rest = bench.json(&["import", root]);
    let added = |log: &&Value| log["added"] == 50;
    assert_eq!(rest[..LOGS].iter().filter(added).count(), LOGS - taken);
    assert_eq!(bench.json(&["ls"]).len(), LOGS);
}

/// Later v0 writers spell provenance in ranges and mark types of their own; what is stored and exported has one spelling.
#[test]
fn ranges_are_written_out_and_ignorable_types_kept() {
    let bench = Bench::new();
    let message = |seq: u64, marks: &str| {
        let data = format!(r#"{{"id":"m{seq}","role":"user","content":[],"source":{{"kind":"user"}}}}"#);
        format!(r#"{{"type":"user/message","seq":{seq},"time":0,"data":{data},"surfaceOp":{marks}}}"#)
    };
    let later = r#"{"type":"later/event","seq":1,"time":0,"data":[1E3],"ignorable":true}"#;
    let log = |sources: &str| {
        let replace = format!(r#"{{"op":"replace","start":0,"end":2}},"sourceEventSeqs":{sources}"#);
        [
            header("later"),
            message(0, r#""append""#),
            later.to_owned(),
            message(2, r#""append""#),
            message(3, &replace),
        ]
        .join("\n")
            + "\n"
    };
    let path = bench.file("ranges.jsonl", log("[[0,1],2]"));
    let told = bench.json(&["import", &path]).remove(0);
    let (kind, seq) = (&told["warnings"][0]["kind"], &told["warnings"][0]["seq"]);
    assert_eq!((kind, seq, told["warnings"].as_array().unwrap().len()), (&json!("normalised"), &json!(3), 1));
    let out = bench.run(&["export", "later", "--to", "-"]).stdout;
    assert!(out.contains(later) && out.contains(r#""sourceEventSeqs":[0,1,2]"#), "{out}");
    let again = bench.json(&["import", &path, "--dry-run"]).remove(0);
    assert_eq!((&again["added"], &again["skipped"]), (&json!(0), &json!(4)));

    for (sources, kind) in [
        ("[[0,3]]", "range-provenance"),
        ("[[0,9007199254740991]]", "range-provenance"),
        ("[[1,2],0]", "range-provenance"),
        ("[[0,2],2]", "range-provenance"),
        ("[[0],1,2]", "range-provenance"),
        ("[[0,1]]", "surface"),
    ] {
        let run = bench.run(&["inspect", &bench.file("bad.jsonl", log(sources)), "--json"]);
        assert_eq!(run.documents()[0]["refusal"]["kind"], kind, "{sources}: {}", run.stdout);
    }
    for mark in ["false", "null", "1", "\"true\""] {
        let text = log("[0,1,2]").replace("\"ignorable\":true", &format!("\"ignorable\":{mark}"));
        let run = bench.run(&["inspect", &bench.file("bad.jsonl", text), "--json"]);
        assert_eq!(run.documents()[0]["refusal"]["kind"], "envelope", "{mark}");
    }
}

#[test]
fn zeros_behind_the_last_record_are_called_so() {
    let bench = Bench::new();
    let log = [header("s").as_bytes(), b"\n", &[0; 4096]].concat();
    let run = bench.run(&["import", &bench.file("log.jsonl", log)]);
    assert!(run.stdout.contains("4.0 KiB of zeros behind the last record"), "{}", run.stdout);
}
