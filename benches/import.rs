//! Importing JSONL with full validation, against parsing the same lines into `serde_json::Value`, which validates nothing
//! but the JSON.

use std::fs;
use std::hint::black_box;

use serde_json::Value;
use sessionlog::import::{Importer, JudgeOptions, Lines, judge};
use support::measure::{Bench, timed};
use support::trace::{Shape, Trace, TraceEvent, jsonl};
use support::{SEED, Scratch, memory_store};

mod support;

const LIMIT: &str = "serde_json to Value, line by line";

fn main() {
    let mut bench = Bench::new();
    let scratch = Scratch::new("import");
    let small = Shape { header_bytes: 2 << 10, result_bytes_max: 1 << 10, turns_per_compaction: 8 };
    for (name, shape, events) in [("coding", Shape::CODING, 2_000), ("chunks", small, 10_000)] {
        let events: Vec<TraceEvent> = Trace::new(shape, SEED).take(events).collect();
        let text = jsonl("session-0", &events);
        eprintln!("import/{name}: {} events, {} bytes", events.len(), text.len());
        let parse = || {
            for line in text.lines() {
                black_box(serde_json::from_str::<Value>(line).expect("JSON"));
            }
        };
        bench.ratio(
            &format!("import/{name}/judge"),
            LIMIT,
            |n| timed(n, || check(&text)),
            |n| timed(n, parse),
        );
        let path = scratch.path().join(format!("{name}.jsonl"));
        fs::write(&path, &text).expect("written");
        let importer = Importer::new(JudgeOptions::default());
        let plan = importer.plan(std::slice::from_ref(&path));
        let import = || {
            let report = importer.import(&memory_store(), &plan.sources[0], &|_| ()).expect("imported");
            assert_eq!(report.added, events.len() as u64);
        };
        bench.ratio(&format!("import/{name}/into_memory"), LIMIT, |n| timed(n, import), |n| timed(n, parse));
    }
    bench.finish();
}

fn check(text: &str) {
    let judgement = judge(&mut Lines::new(text.as_bytes()), &JudgeOptions::default(), &mut |_| Ok(()));
    assert!(black_box(judgement).expect("judged").refusal.is_none());
}
