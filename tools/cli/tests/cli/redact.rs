//! `export --redact`: no secret leaves, and the log stays the same in all else.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Bench, header, sample};

/// Names and words around it make it an OpenAI-like key; it is none.
const KEY: &str = "sk-ant-api03-FAKE0123456789abcdef";

/// The judging view without what redaction changes.
fn essence(bench: &Bench, path: &str) -> Value {
    let mut view = bench.json(&["inspect", path]).remove(0);
    let view = view.as_object_mut().unwrap();
    ["path", "requestHeader"].iter().for_each(|key| drop(view.remove(*key)));
    Value::Object(view.clone())
}

fn lines_with_secrets() -> Vec<String> {
    let args = Value::String(
        json!({"command": format!("echo {KEY}"), "env": {"DB_PASSWORD": "hunter22"}}).to_string(),
    );
    let hidden = args.to_string().replace("sk-", "\\\\u0073k-");
    let model = r#""role":"assistant","source":{"kind":"model","provider":"p","model":"m"}"#;
    let mut lines = vec![
        r#""turn/start","data":{"turn":1}"#.to_owned(),
        format!(
            r#""user/message","data":{{"id":"u","role":"user","source":{{"kind":"user"}},"content":[{{"type":"text","text":"my key is {KEY}, keep it"}}]}},"surfaceOp":"append""#
        ),
        r#""step/start","data":{"turn":1,"step":1}"#.to_owned(),
        format!(
            r#""request/header","data":{{"header":{{"config":{{"provider":"p","model":"m"}},"system":"use {KEY}"}},"reason":"initial"}}"#
        ),
    ];
    for piece in KEY.as_bytes().chunks(3) {
        let piece = std::str::from_utf8(piece).unwrap();
        lines.push(format!(r#""assistant/chunk","data":{{"turn":1,"step":1,"chunk":{{"type":"text-delta","index":0,"text":"{piece}"}}}}"#));
    }
    lines.extend([
        format!(r#""assistant/message","data":{{"turn":1,"step":1,"message":{{"id":"a",{model},"content":[{{"type":"tool-call","id":"c","name":"sh","arguments":{hidden}}}]}}}},"surfaceOp":"append""#),
        format!(r#""tool/call","data":{{"turn":1,"step":1,"callId":"c","name":"sh","arguments":{args}}}"#),
        format!(r#""tool/result","data":{{"turn":1,"step":1,"message":{{"id":"r","role":"user","source":{{"kind":"tool","callId":"c"}},"content":[{{"type":"tool-result","toolCallId":"c","content":[{{"type":"text","text":"API_KEY={KEY}\nAuthorization: Bearer FAKEFAKEFAKEFAKEFAKE"}}]}}]}}}},"surfaceOp":"append""#),
        format!(r#""tool/code-dispatch-start","data":{{"rootCallId":"c","parentCallId":"c","subCallId":"d","name":"sh","arguments":{{"id":"{KEY}","apiKey":"short"}}}}"#),
        r#""step/end","data":{"turn":1,"step":1}"#.to_owned(),
        r#""turn/end","data":{"turn":1,"reason":{"kind":"completed"}}"#.to_owned(),
        format!(r#""session/title","data":{{"title":"key {KEY}"}}"#),
    ]);
    let numbered = lines.iter().enumerate();
    numbered.map(|(seq, rest)| format!(r#"{{"seq":{seq},"time":1,"type":{rest}}}"#)).collect()
}

#[test]
fn no_secret_leaves_and_nothing_else_changes() {
    let bench = Bench::new();
    let events = lines_with_secrets();
    let log = bench.file("log.jsonl", format!("{}\n{}\n", header("s"), events.join("\n")));
    bench.json(&["import", &log]);
    let names = [
        ("true", "packed.jsonl"),
        ("false", "plain.jsonl"),
        ("true", "frames.jsonl.zstd"),
        ("true", "database.db"),
    ];
    for (packed, name) in names {
        let out = bench.path(name).to_str().unwrap().to_owned();
        let run = bench.run(&["export", "s", "--to", &out, "--redact", &format!("--packed={packed}")]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(
            run.stderr.starts_with("redacted 12 secrets: sk-key 8, authorization 1, named 3"),
            "{}",
            run.stderr
        );
        assert_eq!(essence(&bench, &out), essence(&bench, &log));
    }
    let database = fs::read(bench.path("database.db")).unwrap();
    assert!(!database.windows(KEY.len()).any(|bytes| bytes == KEY.as_bytes()));
    let text = fs::read_to_string(bench.path("packed.jsonl")).unwrap();
    for secret in [KEY, "FAKE", "hunter22", "\"short\"", "u0073k"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(
        text.contains(r#""title":"key [redacted:1]""#) && text.contains("my key is [redacted:1], keep it"),
        "{text}"
    );
    assert!(text.contains(r#"\"DB_PASSWORD\":\"[redacted:2]\""#), "{text}");
}

#[test]
fn sample_logs_have_no_secret_and_come_out_as_they_are() {
    let bench = Bench::with_samples();
    for (number, id) in
        [("01", "flaky-invoice-test"), ("03", "map-tiles-cache"), ("04", "search-latency-pool")]
    {
        let plain = bench.run(&["export", id, "--to", "-"]);
        let run = bench.run(&["export", id, "--to", "-", "--redact"]);
        assert!(run.code == 0 && run.stdout == plain.stdout, "{number}: {}", run.stderr);
        assert_eq!(run.stderr, "redacted 0 secrets\n", "{}", sample(number));
    }
}

#[test]
fn own_patterns_count_with_or_without_the_built_in_ones() {
    let bench = Bench::with_samples();
    let to = bench.path("root").to_str().unwrap().to_owned();
    let told = bench.json(&["export", "--all", "--to", &to, "--redact-pattern", "(?i)invoice", "--redact"]);
    let redacted = &told.last().unwrap()["redacted"];
    assert!(redacted["(?i)invoice"].as_u64() > Some(5), "{redacted}");
    let run = bench.run(&[
        "export",
        "flaky-invoice-test",
        "--to",
        "-",
        "--redact-pattern",
        "assistant|user|text|tool",
    ]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let copy = bench.file("copy.jsonl", run.stdout);
    assert_eq!(
        essence(&bench, &copy)["surface"],
        essence(&bench, &sample("01"))["surface"],
        "words of the format stay"
    );
    for pattern in ["(", "x*"] {
        let run = bench.run(&["export", "flaky-invoice-test", "--to", "-", "--redact-pattern", pattern]);
        assert!(run.code == 2 && run.stderr.contains("--redact-pattern"), "{run:?}");
    }
}
