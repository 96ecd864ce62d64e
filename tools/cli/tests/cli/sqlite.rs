//! Databases: out with `export`, in with `import`, looked at with `inspect`.

use serde_json::json;

use crate::support::{Bench, sample};

#[test]
fn a_store_goes_into_one_database_and_comes_back() {
    let bench = Bench::with_samples();
    let path = bench.path("all.db").to_str().unwrap().to_owned();
    let told = bench.json(&["export", "--all", "--to", &path]);
    assert_eq!((told.len(), &told[0]["path"]), (4, &json!(path)));
    assert_eq!(bench.run(&["export", "--all", "--to", &path]).code, 3, "nothing is written over");

    let inspected = bench.json(&["inspect", &path]);
    assert_eq!(inspected.len(), 4);
    let again = bench.json(&["import", &path]);
    assert!(again[..4].iter().all(|source| source["added"] == 0), "{again:?}");
    let other = Bench::new();
    let taken = other.json(&["import", &path]);
    assert_eq!(taken[4]["summary"]["sources"], 4);
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert_eq!(taken[4]["summary"]["bytes"], bytes, "shared out among the sessions");
    let ids = |bench: &Bench| {
        let mut ids: Vec<_> = bench.json(&["ls"]).iter().map(|session| session["id"].to_string()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&bench), ids(&other));

    let one = bench.json(&["inspect", &path, "--session", "flaky-invoice-test"]);
    assert_eq!((one.len(), &one[0]["events"]), (1, &json!(368)));
    assert_eq!(bench.run(&["inspect", &path, "--session", "nobody"]).code, 3);
}

#[test]
fn the_format_is_asked_for_or_named() {
    let bench = Bench::with_samples();
    let directory = bench.path("");
    let run = bench.run(&[
        "export",
        "flaky-invoice-test",
        "--format",
        "sqlite",
        "--to",
        directory.to_str().unwrap(),
    ]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(bench.json(&["inspect", bench.path("sessions.db").to_str().unwrap()]).len(), 1);
    assert_eq!(bench.run(&["export", "--all", "--format", "sqlite", "--to", "-"]).code, 2);
}

#[test]
fn a_source_is_read_as_it_is_asked_for() {
    let bench = Bench::new();
    let run = bench.run(&["import", "--from", "sqlite", &sample("01"), "--json"]);
    assert_eq!((run.code, &run.documents()[0]["refusal"]["kind"]), (1, &json!("not-sqlite")));
    bench.json(&["import", &sample("01")]);
    let path = bench.path("one.sqlite").to_str().unwrap().to_owned();
    bench.json(&["export", "flaky-invoice-test", "--to", &path]);
    let run = bench.run(&["import", "--from", "jsonl", &path, "--json"]);
    assert_eq!((run.code, &run.documents()[0]["verdict"]), (1, &json!("refuse")));
}
