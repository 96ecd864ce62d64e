//! `backup`, beside a host in another process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::support::{Bench, EVENT, header, keys};

#[test]
fn a_backup_beside_a_writing_host_holds_what_the_host_was_told_and_can_be_written_to() {
    let bench = Bench::with_samples();
    let meta = bench.file("meta.json", header("live"));
    let mut host =
        bench.command(&["append", "live", "--create", &meta]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (host.stdin.take().unwrap(), host.stdout.take().unwrap());
    let told = AtomicU64::new(0);
    thread::scope(|scope| {
        // Ends with the host, which ends when its input does.
        scope.spawn(|| {
            BufReader::new(output).lines().for_each(|line| {
                assert!(line.unwrap().ends_with("\"durable\":true}"));
                told.fetch_add(1, Ordering::Release);
            });
        });
        for round in 0..6 {
            (0..40).for_each(|_| writeln!(input, "{EVENT}").unwrap());
            while told.load(Ordering::Acquire) < round * 40 + 1 {
                thread::yield_now();
            }
            let before = told.load(Ordering::Acquire);
            let dir = bench.path(&format!("backup-{round}"));
            let made = &bench.json(&["backup", dir.to_str().unwrap()])[0];
            assert_eq!(keys(made), ["bytes", "events", "files", "findings", "path", "seconds", "sessions"]);
            assert_eq!((&made["findings"], &made["sessions"]), (&0.into(), &5.into()));
            let listed = bench.run_over(&dir, &["--json", "ls"]).documents();
            let live = listed.iter().find(|session| session["id"] == "live").unwrap();
            assert!(live["events"].as_u64().unwrap() >= before, "round {round}: {live} after {before}");
            assert_eq!(bench.run_over(&dir, &["verify", "--deep"]).code, 0);
            assert_eq!(bench.run_over(&dir, &["close", "live"]).code, 0, "it opens for writing");
        }
        drop(input);
    });
    assert!(host.wait().unwrap().success());
}

#[test]
fn the_source_can_be_compacted_and_emptied_later() {
    let bench = Bench::with_samples();
    assert_eq!(bench.run(&["compact", "--apply"]).code, 0);
    let dir = bench.path("backup");
    let listed = bench.run(&["--json", "ls"]).stdout;
    assert_eq!(bench.run(&["backup", dir.to_str().unwrap()]).code, 0);
    for session in bench.json(&["ls"]) {
        assert_eq!(bench.run(&["rm", session["id"].as_str().unwrap(), "--apply"]).code, 0);
    }
    assert_eq!(bench.run(&["compact", "--apply"]).code, 0);
    assert_eq!(bench.json(&["ls"]).len(), 0);
    assert_eq!(bench.run_over(&dir, &["--json", "ls"]).stdout, listed);
    assert_eq!(bench.run_over(&dir, &["verify", "--deep", "--strict"]).code, 0);
}

#[test]
fn a_damaged_source_is_copied_and_told() {
    let bench = Bench::with_samples();
    assert_eq!(bench.run(&["compact", "--apply"]).code, 0);
    let sealed = fs::read_dir(bench.store()).unwrap().map(|entry| entry.unwrap().path());
    let sealed = sealed.into_iter().find(|path| path.extension().is_some_and(|end| end == "sealed")).unwrap();
    let mut bytes = fs::read(&sealed).unwrap();
    bytes[6_000] ^= 1;
    fs::write(&sealed, &bytes).unwrap();
    let dir = bench.path("backup");
    let run = bench.run(&["--json", "backup", dir.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.documents()[0]["findings"].as_u64() > Some(0));
    assert!(run.stderr.contains("the source is damaged") && run.stderr.contains(".sealed"), "{}", run.stderr);
    assert_eq!(fs::read(dir.join(sealed.file_name().unwrap())).unwrap(), bytes);
    let again = bench.run(&["backup", dir.to_str().unwrap()]);
    assert_eq!(again.code, 3);
    assert!(again.stderr.contains("choose another"), "{}", again.stderr);
}
