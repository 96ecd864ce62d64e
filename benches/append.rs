//! Durable appends through the full gate, against the least that durability costs: overwriting 4 KiB of zeroed space and
//! one fdatasync. A row is one round: every thread commits one batch and waits for it.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use sessionlog::{AppendOptions, Draft, Session, Store};
use support::measure::{Bench, timed};
use support::trace::{Shape, Trace, TraceEvent};
use support::{SEED, Scratch, create};

mod support;

/// Headers are what `header_volume` is about; here an event is a small one.
const SHAPE: Shape = Shape { header_bytes: 2 << 10, result_bytes_max: 2 << 10, turns_per_compaction: 8 };

fn main() {
    let mut bench = Bench::new();
    let scratch = Scratch::new("append");
    for (threads, batch) in [(1, 1), (1, 16), (1, 256), (8, 1), (8, 16), (64, 1), (64, 16)] {
        let store = Store::open(scratch.path().join(format!("{threads}x{batch}"))).expect("a new store");
        let mut writers: Vec<Writer> = (0..threads).map(|n| Writer::new(&store, n, batch)).collect();
        let mut limit = Overwrite::new(&scratch.path().join("limit"));
        bench.ratio(
            &format!("append/{threads}x{batch}"),
            "4 KiB overwrite + fdatasync",
            |rounds| run(&mut writers, rounds),
            |rounds| timed(rounds, || limit.run()),
        );
        drop(writers);
        store.close().expect("closed");
    }
    bench.finish();
}

/// All writers for so many rounds, a thread each.
fn run(writers: &mut [Writer], rounds: u64) -> Duration {
    for writer in &mut *writers {
        writer.prepare(rounds);
    }
    let barrier = Barrier::new(writers.len());
    let span = |writer: &Writer| {
        barrier.wait();
        let start = Instant::now();
        writer.run();
        (start, Instant::now())
    };
    let spans: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = writers.iter().map(|writer| scope.spawn(|| span(writer))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let start = spans.iter().map(|span| span.0).min().expect("a writer");
    let end = spans.iter().map(|span| span.1).max().expect("a writer");
    end - start
}

/// A session that goes on and on.
struct Writer {
    session: Session,
    trace: Trace,
    batch: usize,
    ready: Vec<TraceEvent>,
}

impl Writer {
    fn new(store: &Store, n: u64, batch: usize) -> Self {
        let session = create(store, &format!("session-{n}"));
        Self { session, trace: Trace::new(SHAPE, SEED + n), batch, ready: Vec::new() }
    }

    fn prepare(&mut self, rounds: u64) {
        let events = self.batch * usize::try_from(rounds).expect("few rounds");
        self.ready = self.trace.by_ref().take(events).collect();
    }

    fn run(&self) {
        for batch in self.ready.chunks(self.batch) {
            let drafts: Vec<Draft<'_>> = batch.iter().map(TraceEvent::draft).collect();
            let appended = self.session.append(&drafts, AppendOptions::default()).expect("admitted");
            appended.wait().expect("durable");
        }
    }
}

/// The limit.
struct Overwrite {
    file: File,
    block: u64,
}

impl Overwrite {
    const BLOCK: [u8; 4096] = [1; 4096];
    const BLOCKS: u64 = 4096;

    fn new(path: &Path) -> Self {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path).expect("a file");
        for _ in 0..Self::BLOCKS {
            file.write_all(&[0; 4096]).expect("zeroed");
        }
        file.sync_all().expect("synced");
        Self { file, block: 0 }
    }

    fn run(&mut self) {
        self.file.seek(SeekFrom::Start(self.block % Self::BLOCKS * 4096)).expect("a position");
        self.file.write_all(&Self::BLOCK).expect("written");
        self.file.sync_data().expect("synced");
        self.block += 1;
    }
}
