//! `stats` and its report.

use std::fs;

use serde_json::Value;

use crate::support::{Bench, EVENT, header, keys};

#[test]
fn the_figures_have_the_keys_of_the_contract_and_agree_with_the_other_commands() {
    let bench = Bench::with_samples();
    let stats = &bench.json(&["stats"])[0];
    let contract = [
        "sessions",
        "events",
        "logicalBytes",
        "storedBytes",
        "segments",
        "headers",
        "replacements",
        "byType",
    ];
    for key in contract {
        assert!(!stats[key].is_null(), "{key}");
    }
    assert_eq!(keys(&stats["segments"]), ["active", "sealed"]);
    assert_eq!(keys(&stats["headers"]), ["count", "distinct", "logicalBytes", "storedBytes"]);
    assert_eq!(keys(&stats["replacements"]), ["count", "largestSurface", "shadowedNodes"]);
    assert_eq!(keys(&stats["byType"][0]), ["events", "logicalBytes", "type"]);

    let sessions = bench.json(&["ls"]);
    let sum =
        |documents: &[Value], key: &str| documents.iter().map(|d| d[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(stats["sessions"], sessions.len());
    assert_eq!(stats["events"], sum(&sessions, "events"));
    assert_eq!(stats["logicalBytes"], sum(&sessions, "bytes"));
    let by_type = stats["byType"].as_array().unwrap();
    assert_eq!(stats["events"], sum(by_type, "events"));
    assert_eq!(stats["logicalBytes"], sum(by_type, "logicalBytes"));
    let on_disk = fs::read_dir(bench.store()).unwrap().map(|entry| entry.unwrap()).filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.ends_with(".log") || name.ends_with(".sealed")
    });
    assert_eq!(stats["storedBytes"], on_disk.map(|entry| entry.metadata().unwrap().len()).sum::<u64>());

    let (mut headers, mut replacements) = (Vec::new(), 0);
    for session in &sessions {
        let id = session["id"].as_str().unwrap();
        headers.extend(bench.json(&["headers", id]));
        replacements += bench.json(&["show", id])[0]["replacements"].as_array().unwrap().len();
        let own = &bench.json(&["stats", id])[0];
        assert_eq!((&own["events"], &own["logicalBytes"]), (&session["events"], &session["bytes"]), "{id}");
    }
    let mut hashes: Vec<_> = headers.iter().map(|header| header["hash"].as_str().unwrap()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(stats["headers"]["count"], headers.len());
    assert_eq!(stats["headers"]["distinct"], hashes.len());
    assert_eq!(stats["headers"]["logicalBytes"], sum(&headers, "bytes"));
    assert_eq!(stats["replacements"]["count"], replacements);
}

#[test]
fn people_get_tables() {
    let bench = Bench::with_samples();
    let run = bench.run(&["stats"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    for word in ["sessions", "headers", "TYPE", "FILE", "█"] {
        assert!(run.stdout.contains(word), "{word} in {}", run.stdout);
    }
    assert_eq!(bench.run(&["stats", "nobody"]).code, 3);
}

#[test]
fn the_report_is_one_page_with_nothing_from_elsewhere_in_which_hostile_text_is_text() {
    let bench = Bench::with_samples();
    let meta = bench.file("meta.json", header("evil"));
    let title = r#"{"type":"session/title","data":{"title":"<script>alert(1)</script>"}}"#;
    let run = bench.run_with(
        &["append", "evil", "--create", &meta],
        &format!("{title}\n{}", format!("{EVENT}\n").repeat(99)),
    );
    assert_eq!(run.code, 0, "{}", run.stderr);
    let path = bench.path("report.html");
    for round in 0..2 {
        let run = bench.run(&["--json", "stats", "--report", path.to_str().unwrap()]);
        assert_eq!((run.code, run.documents().len()), (0, 1), "round {round}: {}", run.stderr);
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("&lt;script&gt;") && page.matches("<svg").count() >= 5, "{page}");
    for bad in ["<script", "http://", "https://", "src=", "url("] {
        assert!(!page.contains(bad), "{bad} in {page}");
    }
    let run = bench.run(&["stats", "evil", "--report", "-"]);
    assert!(run.stdout.starts_with("<!doctype html>") && run.stdout.ends_with("</html>\n"), "{}", run.stdout);
    assert_eq!(bench.run(&["--json", "stats", "--report", "-"]).code, 2);
    let beside: Vec<_> =
        fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(beside.iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "{beside:?}");
}

#[test]
fn a_report_takes_the_place_of_no_directory() {
    let bench = Bench::with_samples();
    let run = bench.run(&["stats", "--report", bench.store().to_str().unwrap()]);
    assert_eq!(run.code, 3, "{}", run.stdout);
    assert!(run.stderr.contains("something else than a file"), "{}", run.stderr);
    let absent = bench.path("no/such/report.html");
    assert_eq!(bench.run(&["stats", "--report", absent.to_str().unwrap()]).code, 3);
    assert_eq!(bench.run(&["verify"]).code, 0);
}
