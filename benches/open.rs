//! Opening a store: one that was closed, a large one, one whose writer was killed; listing the sessions of a large one; and
//! resuming a long sealed session, against the same without its checkpoint.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use sessionlog::Store;
use support::large::{self, Scale};
use support::measure::{Bench, timed};
use support::trace::{Shape, Trace};
use support::{SEED, Scratch, create, is_trial};

mod support;

const SESSIONS: u64 = 16;
const READING: &str = "reading its files";
const LIMIT: (&str, Duration) = ("100 ms", Duration::from_millis(100));

fn main() {
    let mut bench = Bench::new();
    let scratch = Scratch::new("open");
    small(&mut bench, &scratch);
    large(&mut bench);
    killed(&mut bench, &scratch);
    resume_sealed(&mut bench, scratch.path());
    bench.finish();
}

fn small(bench: &mut Bench, scratch: &Scratch) {
    for events in [1_600, 16_000] {
        let path = scratch.path().join(events.to_string());
        fill(&path, events);
        let opened = || drop(black_box(Store::open_read_only(&path).expect("opened")));
        let read = || drop(black_box(read_files(&path).expect("read")));
        bench.ratio(&format!("open/store/{events}"), READING, |n| timed(n, opened), |n| timed(n, read));
        let store = Store::open_read_only(&path).expect("opened");
        let resume = || store.session("session-0").expect("a session").surface().expect("folded");
        bench.ratio(
            &format!("open/session/{}_of_{events}", events / 16),
            "reading the files of all",
            |n| timed(n, || drop(black_box(resume()))),
            |n| timed(n, read),
        );
    }
}

/// Ten thousand sessions with ten million events, in one sealed file.
fn large(bench: &mut Bench) {
    let scale = if is_trial() { Scale::TRIAL } else { Scale::FULL };
    let path = large::kept(Path::new(env!("CARGO_TARGET_TMPDIR")), SEED, scale);
    let name = format!("{}x{}", scale.sessions, scale.events);
    let opened = || Store::open_read_only(&path).expect("opened");
    bench.within(&format!("open/reading/{name}"), LIMIT, || (), opened);
    let opened = || Store::open(&path).expect("opened");
    bench.within(&format!("open/writing/{name}"), LIMIT, || (), opened);
    let store = Store::open_read_only(&path).expect("opened");
    let listed = || {
        let listed = store.list().expect("listed");
        assert_eq!(listed.len(), scale.sessions);
        listed
    };
    bench.within(&format!("list/{name}"), LIMIT, || (), listed);
}

/// A segment that is full and not sealed, as a killed writer leaves it.
fn killed(bench: &mut Bench, scratch: &Scratch) {
    let segment_bytes = if is_trial() { 1 << 20 } else { sessionlog::limits::SEGMENT_BYTES_DEFAULT };
    let (image, again) = (scratch.path().join("killed"), scratch.path().join("again"));
    large::killed(&image, SEED, segment_bytes);
    let opened = || Store::open_read_only(&image).expect("opened");
    bench.within("open/reading/killed", LIMIT, || (), opened);
    let opened = || Store::open(&again).expect("opened");
    bench.within("open/writing/killed", LIMIT, || large::copy(&image, &again), opened);
}

/// What an agent loop needs to go on: surface, header and next seq, from the closed store on.
fn resume_sealed(bench: &mut Bench, scratch: &Path) {
    let events = if is_trial() { 3_000 } else { 300_000 };
    let (with, without) = (scratch.join("sealed"), scratch.join("sealed-alone"));
    fill_one(&with, events);
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
        &format!("open/resume/{events}"),
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
    let trace = Trace::new(Shape::CODING, SEED).take(events);
    large::append(&session, &trace.collect::<Vec<_>>(), BATCH);
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
    for n in 0..events / BATCH {
        let writer = n % writers.len();
        let (session, trace) = &mut writers[writer];
        large::append(session, &trace.take(BATCH).collect::<Vec<_>>(), BATCH);
    }
    store.close().expect("closed");
}

fn read_files(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    fs::read_dir(path)?.map(|entry| fs::read(entry?.path())).collect()
}
