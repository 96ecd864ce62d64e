//! Exit codes, the two output streams, and closed pipes.

use std::io::Read;

use crate::support::{Bench, sample};

#[test]
fn every_kind_of_end_has_its_code() {
    let bench = Bench::with_samples();
    let refused = sample("05");
    let one = sample("01");
    let missing = bench.path("missing").to_str().unwrap().to_owned();
    let ends: &[(&[&str], i32)] = &[
        (&["--help"], 0),
        (&["--version"], 0),
        (&["ls"], 0),
        (&["inspect", &refused], 1),
        (&[], 2),
        (&["unknown"], 2),
        (&["show", "flaky-invoice-test", "--events", "9..3"], 2),
        (&["show", "flaky-invoice-test", "--at", "4"], 2),
        (&["demo", "--json"], 2),
        (&["export", "--all", "--to", "-"], 2),
        (&["fork", "flaky-invoice-test", "--at", "10", "inside-a-turn"], 2),
        (&["show", "no-such-session"], 3),
        (&["request", "flaky-invoice-test", "--at", "367"], 0),
        (&["request", "flaky-invoice-test", "--at", "368"], 3),
        (&["show", "flaky-invoice-test", "--surface", "--at", "368"], 3),
        (&["inspect", &missing], 3),
        (&["inspect", &one, "--session", "no-such-session"], 3),
        (&["fork", "flaky-invoice-test", "--at", "367", "map-tiles-cache"], 3),
    ];
    for (args, code) in ends {
        let run = bench.run(args);
        assert_eq!(run.code, *code, "{args:?}: {}", run.stderr);
        assert_eq!(run.stderr.is_empty(), *code < 2, "{args:?} says why it fails: {}", run.stderr);
    }
}

#[test]
fn without_a_store_reading_fails_and_makes_none() {
    let bench = Bench::new();
    for args in [&["ls"][..], &["show", "x"], &["verify"], &["close", "x"], &["append", "x"]] {
        let run = bench.run(args);
        assert_eq!(run.code, 3, "{args:?}");
        assert!(run.stdout.is_empty() && run.stderr.starts_with("sessionlog: "), "{}", run.stderr);
    }
    assert!(!bench.store().exists());
}

#[test]
fn a_closed_pipe_is_no_error() {
    let bench = Bench::with_samples();
    for args in [
        &["show", "flaky-invoice-test", "--events", "0..1000"][..],
        &["export", "flaky-invoice-test", "--to", "-", "--packed=false"],
        &["ls"],
    ] {
        let mut child = bench.command(args).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn the_demo_holds_its_checks_and_keeps_what_it_is_asked_to() {
    let bench = Bench::new();
    let kept = bench.store().to_str().unwrap().to_owned();
    let run = bench.run(&["demo", "--keep", &kept]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    for title in ["1. Import", "2. Live appends", "3. Resume", "4. Any request", "5. Sizes", "6. Verify"] {
        assert!(run.stdout.contains(title), "{title}");
    }
    assert_eq!(bench.json(&["ls"]).len(), 68);
    assert_eq!(bench.run(&["demo", "--keep", &kept]).code, 3, "a kept store is not written into");
}
