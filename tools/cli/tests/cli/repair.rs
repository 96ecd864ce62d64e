//! Repairing: the plan first, the source untouched, and a way back into the store.

use std::fs;

use serde_json::json;

use crate::support::{Bench, EVENT, header, keys, sample};

/// A header and events of the given seqs, each on its line.
fn log(id: &str, seqs: &[u64]) -> String {
    let event =
        |seq: &u64| EVENT.replace("\"data\"", &format!("\"seq\":{seq},\"time\":{seq},\"data\"")) + "\n";
    format!("{}\n{}", header(id), seqs.iter().map(event).collect::<String>())
}

#[test]
fn a_plan_changes_nothing_and_says_what_is_lost() {
    let bench = Bench::new();
    let broken = bench.file("broken.jsonl", log("gap", &[0, 1, 3, 4]));
    let before = fs::read(&broken).unwrap();
    let run = bench.run(&["repair", &broken, "--json"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let plan = run.documents().remove(0);
    let expected = [
        "applied", "branch", "branches", "lossless", "out", "path", "refusal", "saved", "session", "steps",
        "summary", "totals",
    ];
    assert_eq!(keys(&plan), expected);
    assert_eq!(
        (&plan["lossless"], &plan["applied"], &plan["out"]),
        (&json!(false), &json!(false), &json!(null))
    );
    let step = &plan["steps"][0];
    assert_eq!(
        [&step["action"], &step["kind"], &step["line"], &step["seq"], &step["type"], &step["lossless"]],
        [&json!("cut"), &json!("seq-gap"), &json!(4), &json!(3), &json!("feedback/record"), &json!(false)]
    );
    let summary = &plan["summary"];
    assert_eq!([&summary["eventsKept"], &summary["eventsLost"], &summary["firstLostSeq"]], [2, 2, 2]);
    let told = bench.run(&["repair", &broken]);
    assert_eq!(told.code, 1);
    for words in ["with losses", "line 4", "byte offset", "seq 3", "2 events kept", "--apply --out FILE"] {
        assert!(told.stdout.contains(words), "{words}: {}", told.stdout);
    }
    assert_eq!(fs::read(&broken).unwrap(), before);
    assert!(!bench.store().exists());
}

#[test]
fn a_lossless_repair_ends_well() {
    let bench = Bench::new();
    let text = log("whole", &[0, 1, 1, 2]);
    let broken = bench.file("broken.jsonl", format!("\u{FEFF}{}", text.replace("\n", "\r\n")));
    let out = bench.path("new.jsonl").to_str().unwrap().to_owned();
    let told = bench.json(&["repair", &broken, "--apply", "--out", &out]).remove(0);
    assert_eq!(
        (&told["lossless"], &told["applied"], &told["saved"]),
        (&json!(true), &json!(true), &json!(null))
    );
    assert_eq!(fs::read_to_string(&out).unwrap(), log("whole", &[0, 1, 2]));
    assert_eq!(bench.run(&["repair", &out]).code, 0, "what was repaired is sound");
    assert!(bench.run(&["repair", &out]).stdout.contains("nothing to repair"));
}

/// Only what `--help` and the messages say.
#[test]
fn a_refused_log_finds_its_way_into_the_store() {
    let bench = Bench::new();
    let root = bench.path("root");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("good.jsonl"), log("good", &[0, 1])).unwrap();
    let broken = root.join("bad log.jsonl");
    let torn = log("bad", &[0, 1, 2]).replace("\"seq\":1,\"time\":1,\"data\"", "\"seq\":1,\"ti")
        + &log("bad", &[3])[header("bad").len() + 1..];
    fs::write(&broken, torn + "{\"type\":\"turn/end\",\"seq\":4,\"time\":4,\"data\":5}\n").unwrap();
    let broken = broken.to_str().unwrap();

    let run = bench.run(&["import", root.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{}", run.stdout);
    let command = format!("`sessionlog repair '{broken}'`");
    assert!(run.stdout.contains(&command), "{}", run.stdout);
    assert!(bench.run(&["inspect", broken]).stdout.contains(&command));

    let plan = bench.run(&["repair", broken]);
    assert_eq!(plan.code, 1, "{}", plan.stderr);
    let out = bench.path("mended.jsonl").to_str().unwrap().to_owned();
    let applied = bench.run(&["repair", broken, "--apply", "--out", &out]);
    assert_eq!(applied.code, 1, "{}", applied.stderr);
    assert!(applied.stdout.contains(&format!("`sessionlog import {out}`")), "{}", applied.stdout);
    let saved = fs::read_to_string(format!("{out}.cut.jsonl")).unwrap();
    assert_eq!(saved.lines().count(), 3, "{saved}");
    assert_eq!(bench.run(&["import", &out]).code, 0);
    assert_eq!(bench.json(&["ls"]).len(), 2);
}

#[test]
fn a_branch_of_a_fork_must_be_chosen() {
    let bench = Bench::new();
    let theirs = log("fork", &[2, 3, 4]).replace("ok", "not ok");
    let text = log("fork", &[0, 1, 2, 3]) + &theirs[header("fork").len() + 1..];
    let broken = bench.file("fork.jsonl", text);
    let out = bench.path("new.jsonl").to_str().unwrap().to_owned();
    let run = bench.run(&["repair", &broken, "--apply", "--out", &out, "--json"]);
    let plan = run.documents().remove(0);
    assert_eq!((run.code, &plan["applied"], &plan["branch"]), (1, &json!(false), &json!(null)));
    let branches = plan["branches"].as_array().unwrap();
    let told = ["branch", "events", "firstSeq", "firstTime", "lastTime", "lastType", "line", "offset", "row"];
    assert_eq!((branches.len(), keys(&branches[0])), (2, told.to_vec()));
    assert_eq!([&branches[0]["events"], &branches[1]["events"], &branches[1]["firstSeq"]], [2, 3, 2]);
    assert!(bench.run(&["repair", &broken]).stdout.contains("--branch N"));
    assert!(!bench.path("new.jsonl").exists());
    assert_eq!(bench.run(&["repair", &broken, "--branch", "3"]).code, 2);
    assert_eq!(bench.run(&["repair", &broken, "--branch", "2", "--apply", "--out", &out]).code, 1);
    let kept = bench.json(&["inspect", &out]).remove(0);
    assert_eq!((&kept["verdict"], &kept["events"]), (&json!("accept"), &json!(5)));
}

#[test]
fn what_cannot_be_done_is_told_by_its_code() {
    let bench = Bench::new();
    let good = bench.file("good.jsonl", log("good", &[0]));
    let retired = sample("05");
    let missing = bench.path("missing").to_str().unwrap().to_owned();
    let directory = bench.path("").to_str().unwrap().to_owned();
    let taken = bench.file("taken.jsonl", "mine");
    let ends: &[(&[&str], i32)] = &[
        (&["repair", &good], 0),
        (&["repair", &retired], 1),
        (&["repair", &good, "--apply"], 2),
        (&["repair", &directory], 2),
        (&["repair", &missing], 3),
        (&["repair", &good, "--apply", "--out", &taken], 3),
        (&["repair", &good, "--apply", "--out", &good], 3),
    ];
    for (args, code) in ends {
        let run = bench.run(args);
        assert_eq!(run.code, *code, "{args:?}: {}", run.stderr);
        assert_eq!(run.stderr.is_empty(), *code < 2, "{args:?} says why it fails: {}", run.stderr);
    }
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
    let refused = bench.run(&["repair", &retired]);
    assert!(refused.stdout.contains("legacy-header-delta"), "{}", refused.stdout);
    let hint = bench.run(&["inspect", &retired]).stdout;
    assert!(!hint.contains("sessionlog repair"), "a repair would not help: {hint}");
}

#[test]
fn a_log_may_come_from_stdin() {
    let bench = Bench::new();
    let out = bench.path("new.jsonl.zstd").to_str().unwrap().to_owned();
    let run = bench.run_with(&["repair", "-", "--json", "--apply", "--out", &out], &log("piped", &[0, 1, 3]));
    assert_eq!((run.code, &run.documents()[0]["path"]), (1, &json!("-")), "{}", run.stderr);
    assert_eq!(bench.json(&["inspect", &out])[0]["events"], 2);
}

/// Two sessions in a database; of `gap` the event of seq 1 does not decode any more.
fn database(bench: &Bench) -> String {
    let gap = log("gap", &[0, 1, 2]).replacen("\"ok\"", "\"lost\"", 2).replacen("\"lost\"", "\"ok\"", 1);
    for text in [log("good", &[0, 1, 2]), gap] {
        let file = bench.file("in.jsonl", text);
        assert_eq!(bench.run(&["import", &file]).code, 0);
    }
    let path = bench.path("all.db").to_str().unwrap().to_owned();
    bench.json(&["export", "--all", "--to", &path]);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(6).position(|window| window == b"\"lost\"").unwrap();
    bytes[at + 5] = b'x';
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_database_is_repaired_session_by_session() {
    let bench = Bench::new();
    let broken = database(&bench);
    let before = fs::read(&broken).unwrap();
    let imported = Bench::new().run(&["import", &broken]);
    assert!(imported.stdout.contains(&format!("`sessionlog repair {broken}`")), "{}", imported.stdout);

    let run = bench.run(&["repair", &broken, "--json"]);
    let plan = run.documents().remove(0);
    assert_eq!((run.code, run.documents().len()), (1, 1), "{}", run.stderr);
    let expected =
        ["applied", "lossless", "out", "path", "refusal", "saved", "sessions", "steps", "summary", "totals"];
    assert_eq!(keys(&plan), expected);
    let session = &plan["sessions"][0];
    let expected = ["branch", "branches", "lossless", "refusal", "session", "steps", "summary", "totals"];
    assert_eq!((keys(session), &session["session"]), (expected.to_vec(), &json!("gap")));
    let steps: Vec<_> = session["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| (step["action"].clone(), step["kind"].clone(), step["seq"].clone(), step["row"].is_i64()))
        .collect();
    let step = |action, kind, seq| (json!(action), json!(kind), json!(seq), true);
    assert_eq!(steps, [step("drop", "corrupt-record", 1), step("cut", "seq-gap", 2)]);
    let summary = &plan["summary"];
    assert_eq!([&summary["sessionsKept"], &summary["sessionsCut"], &summary["sessionsLeftOut"]], [2, 1, 0]);
    assert_eq!([&summary["eventsKept"], &summary["eventsLost"], &summary["recordsSaved"]], [4, 2, 1]);

    let told = bench.run(&["repair", &broken]).stdout;
    for words in
        ["with losses", "session gap", "row ", "seq 2", "2 sessions and 4 events kept", "--out NEW.db"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
    let out = bench.path("new.db").to_str().unwrap().to_owned();
    let applied = bench.run(&["repair", &broken, "--apply", "--out", &out]);
    assert_eq!(applied.code, 1, "{}", applied.stderr);
    assert!(applied.stdout.contains(&format!("`sessionlog import {out}`")), "{}", applied.stdout);
    let saved = fs::read_to_string(format!("{out}.cut.jsonl")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!((&saved["session"], &saved["record"]["seq"]), (&json!("gap"), &json!(2)));
    assert_eq!(fs::read(&broken).unwrap(), before);
    assert_eq!(Bench::new().run(&["import", &out]).code, 0);
    let again = bench.run(&["repair", &out]);
    assert!(again.code == 0 && again.stdout.contains("nothing to repair"), "{}", again.stdout);
}

#[test]
fn a_branch_in_a_database_is_named_with_its_session() {
    let bench = Bench::new();
    let broken = database(&bench);
    for choice in ["1", "nobody=1", "good=2", "good=x"] {
        assert_eq!(bench.run(&["repair", &broken, "--branch", choice]).code, 2, "{choice}");
    }
    assert_eq!(bench.run(&["repair", &broken, "--branch", "good=1"]).code, 1);
    let log = bench.file("log.jsonl", log("a", &[0]));
    assert_eq!(bench.run(&["repair", &log, "--branch", "a=1"]).code, 2);
    let text = bench.file("text.db", "no database");
    let run = bench.run(&["repair", &text]);
    assert!(run.code == 1 && run.stdout.contains("it is no SQLite database"), "{}", run.stdout);
}
