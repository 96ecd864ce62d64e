//! Large stores, made once and kept for the next run: many sessions of equal length, compacted into one sealed file.

use std::path::{Path, PathBuf};
use std::thread;

use sessionlog::event::SessionHeader;
use sessionlog::{AppendOptions, Draft, Durability, Session, Store};

use super::trace::{CREATED_AT_MS, Shape, Trace, TraceEvent};

/// How large a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Number of sessions.
    pub(crate) sessions: usize,
    /// Events of each.
    pub(crate) events: usize,
}

impl Scale {
    /// What opening is held to.
    pub(crate) const FULL: Self = Self { sessions: 10_000, events: 1_000 };
    /// Enough to see that it runs.
    pub(crate) const TRIAL: Self = Self { sessions: 20, events: 100 };

    /// The id of a session.
    pub(crate) fn id(n: usize) -> String {
        format!("{n:08x}-5e55-4000-a000-{:012x}", n * 0x9E37_79B1)
    }
}

/// Sessions of a small agent: the size of a store is in its number of events here.
const SHAPE: Shape = Shape { header_bytes: 4 << 10, result_bytes_max: 900, turns_per_compaction: 8 };
/// Different histories; every session has one of them.
const HISTORIES: u64 = 64;
/// Events of one append.
const BATCH: usize = 250;

/// The events of session `n` are those of `histories[n % histories.len()]`.
pub(crate) fn histories(seed: u64, events: usize) -> Vec<Vec<TraceEvent>> {
    (0..HISTORIES).map(|n| Trace::new(SHAPE, seed + n).take(events).collect()).collect()
}

/// The directory in `parent` that holds a store of this size; it is made if it is not there.
pub(crate) fn kept(parent: &Path, seed: u64, scale: Scale) -> PathBuf {
    make_once(&parent.join(format!("large-{}x{}-{seed}", scale.sessions, scale.events)), |path| {
        std::fs::create_dir_all(path).expect("a directory");
        let store = Store::open(path).expect("a new store");
        fill(&store, seed, scale);
        store.compact().expect("compacted");
        store.close().expect("closed");
    })
}

/// The id of the session in a store of one.
pub(crate) const SESSION: &str = "session-0";

/// The directory in `parent` that holds a store with one long session of a coding agent; it is made if it is not there.
pub(crate) fn kept_session(parent: &Path, seed: u64, events: usize) -> PathBuf {
    make_once(&parent.join(format!("long-{events}-{seed}")), |path| {
        std::fs::create_dir_all(path).expect("a directory");
        let store = Store::open(path).expect("a new store");
        let header = SessionHeader::new(SESSION, CREATED_AT_MS);
        let session = store.create_session(header).expect("a new session");
        append(&session, &Trace::new(Shape::CODING, seed).take(events).collect::<Vec<_>>(), BATCH);
        store.compact().expect("compacted");
        store.close().expect("closed");
    })
}

/// Gives `path` what `make` makes, unless it was made before.
pub(crate) fn make_once(path: &Path, make: impl FnOnce(&Path)) -> PathBuf {
    if !path.exists() {
        let unfinished = path.with_extension("part");
        let _ = std::fs::remove_dir_all(&unfinished);
        let _ = std::fs::remove_file(&unfinished);
        make(&unfinished);
        std::fs::rename(&unfinished, path).expect("its name");
    }
    path.to_owned()
}

fn fill(store: &Store, seed: u64, scale: Scale) {
    let histories = histories(seed, scale.events);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for worker in 0..workers {
            let histories = &histories;
            scope.spawn(move || {
                for n in (worker..scale.sessions).step_by(workers) {
                    append(&create(store, n), &histories[n % histories.len()], BATCH);
                }
            });
        }
    });
}

/// A store in `dir` as a killed writer leaves it: one segment, full and not sealed, of sixteen sessions of coding agents.
pub(crate) fn killed(dir: &Path, seed: u64, segment_bytes: u64) {
    const SESSIONS: u64 = 16;
    killed_amid(dir, (0..SESSIONS).map(|n| Trace::new(Shape::CODING, seed + n)), segment_bytes);
}

/// As [`killed`], of sessions with these events.
pub(crate) fn killed_amid(dir: &Path, traces: impl Iterator<Item = Trace>, segment_bytes: u64) {
    let written = dir.with_extension("live");
    let store = Store::open(&written).expect("a new store");
    let session = |n: usize| {
        let header = SessionHeader::new(format!("session-{n}"), CREATED_AT_MS);
        store.create_session(header).expect("a new session")
    };
    let mut writers: Vec<_> = traces.enumerate().map(|(n, trace)| (session(n), trace)).collect();
    let mut turn = 0;
    while store.metrics().expect("a writer").bytes < segment_bytes * 31 / 32 {
        let (session, trace) = &mut writers[turn];
        append(session, &trace.take(16).collect::<Vec<_>>(), 16);
        turn = (turn + 1) % writers.len();
    }
    // What a kill leaves is what the files hold now; a copy has no writer.
    copy(&written, dir);
    drop((writers, store));
    let _ = std::fs::remove_dir_all(&written);
}

/// Copies a directory, in the place of what is there. What goes meanwhile, as upkeep lets go of files, is left out.
pub(crate) fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        if let Err(error) = std::fs::copy(entry.path(), to.join(entry.file_name())) {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}: {error}", entry.path().display());
        }
    }
}

fn create(store: &Store, n: usize) -> Session {
    let mut header = SessionHeader::new(Scale::id(n), created_at_ms(n));
    header.cwd = Some(cwd(n).into());
    store.create_session(header).expect("a new session")
}

/// When session `n` was created, in milliseconds since the Unix epoch.
pub(crate) fn created_at_ms(n: usize) -> i64 {
    CREATED_AT_MS + i64::try_from(n).unwrap_or(0) * 60_000
}

/// The working directory of session `n`.
pub(crate) fn cwd(n: usize) -> String {
    format!("/home/dev/projects/project-{}", n % 40)
}

/// Appends events without waiting for the disk.
pub(crate) fn append(session: &Session, events: &[TraceEvent], batch: usize) {
    let options = AppendOptions { durability: Durability::Buffered, ..AppendOptions::default() };
    for events in events.chunks(batch) {
        let drafts: Vec<Draft<'_>> = events.iter().map(TraceEvent::draft).collect();
        session.append(&drafts, options).expect("admitted").wait().expect("written");
    }
}
