//! One writer, any number of readers beside it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use crate::support::{Bench, EVENT, header};

/// A host that has appended one event and holds the store open until its stdin is closed.
fn host(bench: &Bench) -> Child {
    let meta = bench.file("meta.json", header("live"));
    let mut child =
        bench.command(&["append", "live", "--create", &meta]).stdin(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "{EVENT}").unwrap();
    let mut told = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert_eq!(told, "{\"seq\":0,\"durable\":true}\n");
    child
}

#[test]
fn a_second_writer_is_locked_out() {
    let bench = Bench::new();
    let mut host = host(&bench);
    for args in [&["append", "live"][..], &["close", "live"], &["rm", "live", "--apply"]] {
        let run = bench.run(args);
        assert_eq!(run.code, 3, "{args:?}");
        assert!(run.stderr.contains("next: wait for the writer"), "{}", run.stderr);
        assert!(run.stderr.contains(&host.id().to_string()), "the holder's pid is named: {}", run.stderr);
    }
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
    assert_eq!(bench.run_with(&["append", "live"], EVENT).code, 0, "the lock went with its holder");
}

#[test]
fn readers_work_beside_a_writer_and_see_what_it_told() {
    let bench = Bench::new();
    let mut host = host(&bench);
    assert_eq!(bench.json(&["ls"])[0]["events"], 1);
    let shown = bench.run(&["show", "live", "--events", "0..9"]);
    assert_eq!((shown.code, shown.documents().len()), (0, 1), "{}", shown.stderr);
    assert_eq!(bench.json(&["request", "live"])[0]["messages"].as_array().unwrap().len(), 0);
    assert_eq!(bench.run(&["export", "live", "--to", "-"]).stdout.lines().count(), 2);
    assert_eq!(bench.run(&["verify", "--deep", "--strict"]).code, 0);
    writeln!(host.stdin.as_mut().unwrap(), "{EVENT}").unwrap();
    let mut told = String::new();
    BufReader::new(host.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert_eq!(bench.json(&["ls"])[0]["events"], 2);
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
}
