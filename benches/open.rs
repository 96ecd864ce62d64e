//! Opening: a store that was closed, and one session of it up to its surface, both against reading the same files; and
//! resuming a long sealed session, against the same without its checkpoint.

use std::hint::black_box;
use std::path::Path;
use std::{fs, io};

use sessionlog::{AppendOptions, Draft, Store};
use support::measure::{Bench, timed};
use support::trace::{Shape, Trace, TraceEvent};
use support::{SEED, Scratch, create};

mod support;

const SESSIONS: u64 = 16;
const LONG_EVENTS: usize = 300_000;

fn main() {
    let mut bench = Bench::new();
    let scratch = Scratch::new("open");
    for events in [1_600, 16_000] {
        let path = scratch.path().join(events.to_string());
        fill(&path, events);
        bench.ratio(
            &format!("open/store/{events}"),
            "reading its files",
            |n| timed(n, || drop(black_box(Store::open_read_only(&path).expect("opened")))),
            |n| timed(n, || drop(black_box(read_files(&path).expect("read")))),
        );
        let store = Store::open_read_only(&path).expect("opened");
        let resume = || store.session("session-0").expect("a session").surface().expect("folded");
        bench.ratio(
            &format!("open/session/{}_of_{events}", events / 16),
            "reading the files of all",
            |n| timed(n, || drop(black_box(resume()))),
            |n| timed(n, || drop(black_box(read_files(&path).expect("read")))),
        );
    }
    resume_sealed(&mut bench, scratch.path());
    bench.finish();
}

/// What an agent loop needs to go on: surface, header and next seq, from the closed store on.
fn resume_sealed(bench: &mut Bench, scratch: &Path) {
    let (with, without) = (scratch.join("sealed"), scratch.join("sealed-alone"));
    fill_one(&with, LONG_EVENTS);
    fs::create_dir(&without).expect("a directory");
    for entry in fs::read_dir(&with).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "state") {
            fs::copy(&path, without.join(path.file_name().expect("a name"))).expect("copied");
        }
    }
    let resume = |path: &Path| {
        let session = Store::open_read_only(path).expect("opened").session("session-0").expect("a session");
        let header = session.request_header().expect("restored");
        black_box((session.surface().expect("restored"), header, session.next_seq().expect("there")));
    };
    bench.ratio(
        &format!("open/resume/{LONG_EVENTS}"),
        "without its checkpoint",
        |n| timed(n, || resume(&with)),
        // So much slower that one is enough.
        |n| timed(1, || resume(&without)).mul_f64(n as f64),
    );
}

/// A compacted store with one session.
fn fill_one(path: &Path, events: usize) {
    const BATCH: usize = 256;
    let store = Store::open(path).expect("a new store");
    let session = create(&store, "session-0");
    let mut trace = Trace::new(Shape::CODING, SEED);
    let options = AppendOptions { durability: sessionlog::Durability::Buffered, ..AppendOptions::default() };
    for _ in 0..events.div_ceil(BATCH) {
        let events: Vec<TraceEvent> = trace.by_ref().take(BATCH).collect();
        let drafts: Vec<Draft<'_>> = events.iter().map(TraceEvent::draft).collect();
        session.append(&drafts, options).expect("admitted").wait().expect("written");
    }
    drop(session);
    store.compact().expect("compacted");
    store.close().expect("closed");
}

/// A store whose sessions were written in turns, 16 events a batch.
fn fill(path: &Path, events: usize) {
    const BATCH: usize = 16;
    let store = Store::open(path).expect("a new store");
    let mut writers: Vec<_> = (0..SESSIONS)
        .map(|n| (create(&store, &format!("session-{n}")), Trace::new(Shape::CODING, SEED + n)))
        .collect();
    let options = AppendOptions { durability: sessionlog::Durability::Buffered, ..AppendOptions::default() };
    for n in 0..events / BATCH {
        let writer = n % writers.len();
        let (session, trace) = &mut writers[writer];
        let events: Vec<TraceEvent> = trace.take(BATCH).collect();
        let drafts: Vec<Draft<'_>> = events.iter().map(TraceEvent::draft).collect();
        session.append(&drafts, options).expect("admitted").wait().expect("written");
    }
    store.close().expect("closed");
}

fn read_files(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    fs::read_dir(path)?.map(|entry| fs::read(entry?.path())).collect()
}
