//! What the reading commands print, and that text out of a log passes through whole or harmless.

use std::fs;

use serde_json::json;

use crate::support::{Bench, EVENT, header, keys, sample};

#[test]
fn a_listing_is_newest_first_with_its_contract_keys() {
    let bench = Bench::with_samples();
    let listed = bench.json(&["ls"]);
    let ids: Vec<_> = listed.iter().map(|session| session["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["search-latency-pool", "map-tiles-cache", "disk-alert-db3", "flaky-invoice-test"]);
    let expected = [
        "bytes",
        "createdAt",
        "cwd",
        "events",
        "id",
        "lastTime",
        "parentSession",
        "seedLength",
        "state",
        "title",
    ];
    assert_eq!(keys(&listed[0]), expected);
    assert_eq!(listed[0]["seedLength"], 64);
    assert_eq!(listed[2]["state"], "open-turn");
    let found = bench.json(&["ls", "--cwd", "/srv/ops"]);
    assert_eq!((found.len(), &found[0]["id"]), (1, &json!("disk-alert-db3")));
    assert_eq!(bench.json(&["ls", "--limit", "2"]).len(), 2);
}

#[test]
fn inspect_and_show_give_the_same_judging_view() {
    let bench = Bench::with_samples();
    for (number, id) in
        [("01", "flaky-invoice-test"), ("03", "map-tiles-cache"), ("04", "search-latency-pool")]
    {
        let mut file = bench.json(&["inspect", &sample(number)]).remove(0);
        let stored = bench.json(&["show", id]).remove(0);
        assert_eq!(file.as_object_mut().unwrap().remove("path"), Some(json!(sample(number))));
        assert_eq!(file, stored);
        assert_eq!(file["verdict"], "accept");
    }
    let view = bench.json(&["show", "flaky-invoice-test"]).remove(0);
    assert_eq!(view["replacements"][0]["seq"], 256);
    assert_eq!(view["replacements"][0]["shadowedSeqs"].as_array().unwrap().len(), 11);
    let reasons: Vec<_> =
        view["headers"].as_array().unwrap().iter().map(|header| &header["reason"]).collect();
    assert_eq!(reasons, ["initial", "change", "series", "resume"]);
}

#[test]
fn a_cut_log_is_repaired_in_the_view_and_nowhere_else() {
    let bench = Bench::new();
    let path = bench.file("cut.jsonl", fs::read(sample("02")).unwrap());
    let view = bench.json(&["inspect", &path]).remove(0);
    assert_eq!((&view["verdict"], &view["repair"]["kind"]), (&json!("repair"), &json!("torn-tail")));
    let closers: Vec<_> = view["closers"].as_array().unwrap().iter().map(|closer| &closer["type"]).collect();
    assert_eq!(closers, ["tool/result", "step/end", "turn/end"]);
    assert_eq!(view["events"], 123);
    assert_eq!(fs::read(path).unwrap(), fs::read(sample("02")).unwrap());
}

#[test]
fn a_refused_log_has_a_refusal_and_no_more() {
    let bench = Bench::new();
    let run = bench.run(&["inspect", &sample("06"), "--json"]);
    assert_eq!(run.code, 1);
    let view = run.documents().remove(0);
    assert_eq!(keys(&view), ["path", "refusal", "repair", "session", "verdict", "warnings"]);
    assert_eq!(keys(&view["refusal"]), ["family", "kind", "line", "message", "offset", "rule", "seq"]);
    assert_eq!(view["refusal"]["kind"], "seq-gap");
    assert_eq!((&view["refusal"]["seq"], &view["refusal"]["line"]), (&json!(19), &json!(21)));
}

#[test]
fn a_request_is_rebuilt_as_of_any_seq() {
    let bench = Bench::with_samples();
    let now = bench.json(&["request", "flaky-invoice-test"]).remove(0);
    assert_eq!(keys(&now), ["header", "headerSeq", "messages", "reason", "surface"]);
    assert_eq!((&now["reason"], now["header"]["tools"].as_array().unwrap().len()), (&json!("resume"), 5));
    let then = bench.json(&["request", "flaky-invoice-test", "--at", "226"]).remove(0);
    assert_eq!((&then["reason"], then["header"]["tools"].as_array().unwrap().len()), (&json!("initial"), 4));
    assert_eq!(then["messages"].as_array().unwrap().len(), 11);
    let surface = bench.json(&["show", "flaky-invoice-test", "--surface", "--at", "226"]);
    assert_eq!(json!(surface), then["messages"]);
    let first = bench.json(&["request", "flaky-invoice-test", "--at", "0"]).remove(0);
    assert_eq!((&first["header"], &first["messages"]), (&json!(null), &json!([])));
}

#[test]
fn a_log_and_its_session_rebuild_the_same_requests() {
    let bench = Bench::with_samples();
    let requests = bench.json(&["replay", "flaky-invoice-test"]);
    assert_eq!(keys(&requests[0]), ["hash", "headerSeq", "messages", "reason", "seq", "startsSeries"]);
    for told in &requests {
        let before = (told["seq"].as_u64().unwrap() - 1).to_string();
        let rebuilt = bench.json(&["request", "flaky-invoice-test", "--at", &before]).remove(0);
        assert_eq!(told["headerSeq"], rebuilt["headerSeq"]);
        assert_eq!(told["messages"], rebuilt["messages"].as_array().unwrap().len());
    }
    assert!(requests.iter().any(|told| told["reason"] == "change") && requests[0]["startsSeries"] == true);
    assert_eq!(bench.json(&["replay", &sample("01")]), requests);
    let told = bench.json(&["replay", "flaky-invoice-test", "--against", &sample("01")]).remove(0);
    assert_eq!((&told["differ"], &told["same"]), (&json!(false), &json!(requests.len())));
    let text = fs::read_to_string(sample("01")).unwrap();
    let other = bench.file("other.jsonl", text.replace("about once a day", "about once a week"));
    let run = bench.run(&["replay", &other, "--against", "flaky-invoice-test", "--json"]);
    let told = run.documents().remove(0);
    assert_eq!((run.code, &told["differ"]), (1, &json!(true)), "{told}");
    assert_eq!(told["log"]["seq"], told["against"]["seq"]);
    assert_ne!(told["log"]["hash"], told["against"]["hash"]);
}

#[test]
fn headers_say_what_changed() {
    let bench = Bench::with_samples();
    let headers = bench.json(&["headers", "flaky-invoice-test"]);
    assert_eq!(
        keys(&headers[0]),
        ["bytes", "changed", "hash", "reason", "seq", "startsSeries", "storedBytes"]
    );
    let changed: Vec<_> = headers.iter().map(|header| header["changed"].clone()).collect();
    assert_eq!(
        changed,
        [json!(["config", "system", "tools"]), json!(["system", "tools"]), json!([]), json!([])]
    );
    assert_eq!(headers[1]["hash"], headers[3]["hash"]);
    let prompts = bench.json(&["show", "flaky-invoice-test", "--prompts"]);
    let seqs: Vec<_> = prompts.iter().map(|prompt| &prompt["seq"]).collect();
    assert_eq!(
        seqs,
        [&headers[0]["seq"], &headers[2]["seq"], &headers[3]["seq"]],
        "each series, not each change"
    );
}

/// Spellings that a JSON library would change: a lone surrogate, negative zero, exponents, big integers, order of keys.
const ODD_DATA: &str = r#"{"z":"\ud83c \u0000","10":-0,"2":1E3,"n":9007199254740993,"a":[ 1.50 ],"a":{}}"#;

#[test]
fn data_passes_through_byte_for_byte() {
    let bench = Bench::new();
    let event = format!(r#"{{"type":"todo/write","seq":0,"time":-5,"data":{ODD_DATA}}}"#);
    let log = format!("{}\n{event}\n", header("odd"));
    let path = bench.file("odd.jsonl", &log);
    assert_eq!(bench.run(&["import", &path]).code, 0);
    assert_eq!(bench.run(&["show", "odd", "--events", "0..9"]).stdout, format!("{event}\n"));
    assert_eq!(bench.run(&["export", "odd", "--to", "-"]).stdout, log);
}

#[test]
fn samples_leave_the_store_as_they_came() {
    let bench = Bench::with_samples();
    for (number, id, packed) in
        [("01", "flaky-invoice-test", "--packed=false"), ("03", "map-tiles-cache", "--packed")]
    {
        let exported = bench.run(&["export", id, "--to", "-", packed]).stdout;
        assert!(exported == fs::read_to_string(sample(number)).unwrap(), "{id} changed");
    }
    let file = bench.path("one.jsonl.zstd").to_str().unwrap().to_owned();
    assert_eq!(bench.run(&["export", "map-tiles-cache", "--to", &file]).code, 0);
    assert_eq!(fs::read(&file).unwrap()[..4], [0x28, 0xB5, 0x2F, 0xFD], "the name says zstd");
    let root = bench.path("root").to_str().unwrap().to_owned();
    let told = bench.json(&["export", "--all", "--to", &root, "--format", "jsonl.zstd"]);
    assert_eq!(told.len(), 4);
    let again = Bench::new();
    assert_eq!(again.run(&["import", &root]).code, 0);
    for (told, before) in told.iter().zip(bench.json(&["ls"])) {
        let id = told["id"].as_str().unwrap();
        let events = ["show", id, "--events", "0..1000"];
        assert!(again.run(&events).stdout == bench.run(&events).stdout, "{id} changed");
        assert_eq!(before["events"], told["events"]);
    }
    let run = bench.run(&["export", "--all", "--to", &root, "--format", "jsonl.zstd"]);
    assert_eq!(run.code, 1, "nothing is written over: {}", run.stderr);
    assert!(run.stderr.contains("next: choose another place"), "{}", run.stderr);
}

#[test]
fn a_session_that_cannot_be_written_stops_no_other() {
    let bench = Bench::new();
    let long = "/".repeat(100);
    for (n, id) in ["a", &long, "z"].into_iter().enumerate() {
        let log = bench.file(&format!("{n}.jsonl"), format!("{}\n", header(id)));
        bench.json(&["import", &log]);
    }
    let listed = bench.run(&["ls"]).stdout;
    assert!(listed.contains('…') && listed.lines().all(|line| line.chars().count() < 200), "{listed}");
    let root = bench.path("root").join("_no-cwd");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(root.join("a"), "in the way").unwrap();
    let root = bench.path("root").to_str().unwrap().to_owned();
    let run = bench.run(&["--json", "export", "--all", "--to", &root]);
    assert_eq!((run.code, run.documents().len()), (1, 2), "{}", run.stderr);
    assert!(run.stderr.contains("root/_no-cwd/a"), "{}", run.stderr);
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let bench = Bench::new();
    let text = r"\u001b[2J\u0007 and \u202e";
    let log = format!(
        "{}\n{}\n{}\n",
        header(r"hostile\u001b]0;x\u0007"),
        format_args!(
            r#"{{"type":"user/message","seq":0,"time":0,"data":{{"id":"u","role":"user","content":[{{"type":"text","text":"{text}"}}],"source":{{"kind":"user"}}}},"surfaceOp":"append"}}"#
        ),
        format_args!(r#"{{"type":"session/title","seq":1,"time":0,"data":{{"title":"{text}"}}}}"#),
    );
    let path = bench.file("hostile.jsonl", log);
    let id = "hostile\u{1b}]0;x\u{7}";
    for args in [&["import", &path][..], &["inspect", &path], &["ls"], &["show", id], &["request", id]] {
        let run = bench.run(args);
        assert_eq!(run.code, 0, "{args:?}: {}", run.stderr);
        let hostile = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!run.stdout.contains(hostile), "{args:?}: {:?}", run.stdout);
    }
    assert!(bench.run(&["show", id]).stdout.contains("␛[2J"));
}

#[test]
fn removing_waits_for_apply() {
    let bench = Bench::with_samples();
    let plan = bench.json(&["rm", "map-tiles-cache"]).remove(0);
    assert_eq!((&plan["applied"], bench.json(&["ls"]).len()), (&json!(false), 4));
    assert_eq!(bench.json(&["rm", "map-tiles-cache", "--apply"])[0]["applied"], true);
    assert_eq!(bench.json(&["ls"]).len(), 3);
    assert_eq!(bench.run(&["show", "map-tiles-cache"]).code, 3);
}

#[test]
fn retention_removes_what_is_older_by_its_last_event() {
    let bench = Bench::with_samples();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let meta = bench.file("meta.json", header("fresh"));
    bench.run_with(
        &["append", "fresh", "--create", &meta],
        &EVENT.replace("\"data\"", &format!("\"time\":{now},\"data\"")),
    );
    let old = bench.file("old.jsonl", header("old").replace("1795770000000", "1000") + "\n");
    bench.json(&["import", &old]);
    let plan = bench.json(&["rm", "--older-than", "1d"]);
    assert!(plan.iter().all(|session| session["applied"] == false && session["id"] != "fresh"), "{plan:?}");
    assert!(plan.iter().any(|session| session["id"] == "old"), "{plan:?}");
    assert_eq!(bench.json(&["ls"]).len(), 6, "nothing is changed without --apply");
    assert_eq!(bench.json(&["rm", "--older-than", "1d", "--apply"]).len(), plan.len());
    assert_eq!(bench.json(&["ls"]).len(), 6 - plan.len());
    assert!(bench.json(&["rm", "--older-than", "20000w"]).is_empty());
    for args in [&["rm"][..], &["rm", "--older-than", "soon"], &["rm", "fresh", "--older-than", "1d"]] {
        assert_eq!(bench.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn compacting_waits_for_apply_and_keeps_every_event() {
    let bench = Bench::with_samples();
    let events = ["show", "flaky-invoice-test", "--events", "0..1000"];
    let before = bench.run(&events).stdout;
    bench.json(&["rm", "map-tiles-cache", "--apply"]);
    let plan = bench.json(&["compact"]).remove(0);
    assert_eq!(
        (keys(&plan), &plan["sessions"]),
        (vec!["after", "before", "segments", "sessions"], &json!(3))
    );
    assert_eq!(plan["after"], json!(null));
    let told = bench.json(&["compact", "--apply"]).remove(0);
    assert_eq!((keys(&told), &told["sessions"]), (keys(&plan), &json!(3)));
    assert!(told["after"].as_u64() < told["before"].as_u64(), "{told}");
    assert!(bench.run(&events).stdout == before, "compacting changed events");
    assert_eq!(bench.run(&["verify", "--deep"]).code, 0);
    let headers = bench.json(&["headers", "flaky-invoice-test"]);
    assert!(headers[0]["storedBytes"].as_u64() < headers[0]["bytes"].as_u64(), "{headers:?}");
    assert!(
        headers[3]["storedBytes"].as_u64() < Some(100),
        "but for its reason it equals the second: {headers:?}"
    );
}

#[test]
fn verify_is_quiet_on_a_sound_store_and_names_damage() {
    let bench = Bench::with_samples();
    let found = bench.json(&["verify", "--deep", "--strict"]);
    assert_eq!(
        keys(&found[0]["summary"]),
        ["events", "findings", "frames", "seconds", "segments", "sessions"]
    );
    assert_eq!((found.len(), &found[0]["summary"]["sessions"]), (1, &json!(4)));

    let segments = fs::read_dir(bench.store()).unwrap().map(|entry| entry.unwrap().path());
    let segments = segments.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let segment = segments.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(&segment, bytes).unwrap();
    let run = bench.run(&["verify", "--json"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let findings = run.documents();
    assert_eq!(keys(&findings[0]), ["family", "kind", "message", "offset", "path", "seq", "session"]);
    assert_eq!(findings[0]["family"], "damaged");
    assert_eq!(findings[0]["path"], json!(segment.to_str().unwrap()));
    assert_eq!(bench.json(&["ls"]).len(), 4, "damage hides no session");

    let bench = Bench::with_samples();
    let mut segments: Vec<_> =
        fs::read_dir(bench.store()).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|end| end == "log"));
    let last = segments.iter().max().unwrap();
    fs::rename(last, last.with_file_name("00000000000000ff.log")).unwrap();
    let run = bench.run(&["verify", "--json"]);
    let told = run.documents();
    assert_eq!((run.code, &told.last().unwrap()["summary"]["findings"]), (1, &json!(1)), "{told:?}");
}

#[test]
fn tokens_are_counted_once_a_step_and_a_fork_counts_its_own() {
    let bench = Bench::new();
    let message = |seq: u64, turn: u64, usage: &str| {
        let message = format!(
            r#"{{"id":"m{seq}","role":"assistant","content":[],"source":{{"kind":"model","provider":"p","model":"m"}}}}"#
        );
        format!(
            r#"{{"type":"assistant/message","seq":{seq},"time":1,"data":{{"turn":{turn},"step":1,"message":{message},"usage":{usage}}},"surfaceOp":"append"}}"#
        )
    };
    let sample = r#"{"type":"assistant/chunk","seq":0,"time":1,"data":{"turn":1,"step":1,"chunk":{"type":"usage","usage":{"inputTokens":99,"outputTokens":9}}}}"#;
    let figure = r#"{"inputTokens":100,"outputTokens":20,"reasoningTokens":15}"#;
    let log = [header("parent"), sample.to_owned(), message(1, 1, figure)].join("\n") + "\n";
    bench.json(&["import", &bench.file("log.jsonl", log)]);
    bench.json(&["fork", "parent", "--at", "1", "child"]);
    let run = bench.run_with(&["append", "child"], &message(3, 2, r#"{"inputTokens":7,"outputTokens":1}"#));
    assert_eq!(run.code, 0, "{}", run.stderr);
    let usage = |id: &str| bench.json(&["show", id]).remove(0)["usage"].clone();
    let expected = json!({"steps": 1, "inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 0, "cacheWriteTokens": 0, "reasoningTokens": 15});
    assert_eq!(usage("parent"), expected);
    assert_eq!((&usage("child")["inputTokens"], &usage("child")["outputTokens"]), (&json!(7), &json!(1)));
    let told = "tokens: 1 step, 100 in, 20 out, 15 of it reasoning\n";
    let shown = bench.run(&["show", "parent"]).stdout;
    assert!(shown.ends_with(&format!("── {told}")), "{shown}");

    let measured = |id: &str| bench.json(&["stats", id]).remove(0)["usage"].clone();
    assert_eq!(measured("parent"), expected);
    assert_eq!(measured("child"), usage("child"));
    let report = bench.run(&["stats", "parent", "--report", "-"]).stdout;
    assert!(report.contains("<dt>Tokens</dt><dd>120</dd>"), "{report}");
    assert!(bench.run(&["stats", "parent"]).stdout.contains(told));
    assert!(bench.json(&["stats"])[0]["usage"].is_null(), "a store is measured without reading data");
}

#[test]
fn a_subagent_is_told_with_its_parent_and_its_depth() {
    let bench = Bench::new();
    let header = r#"{"type":"session","version":0,"id":"s","createdAt":1,"parentSession":"p","origin":"subagent","delegationDepth":2}"#;
    let log = bench.file("log.jsonl", format!("{header}\n"));
    let told = "subagent of p, delegation depth 2";
    let inspected = bench.run(&["inspect", &log]).stdout;
    assert!(inspected.contains(told), "{inspected}");
    assert_eq!(bench.json(&["inspect", &log])[0]["session"]["delegationDepth"], 2);
    assert_eq!(bench.run(&["import", &log]).code, 0);
    assert!(bench.run(&["show", "s"]).stdout.contains(told));
}
