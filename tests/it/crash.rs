//! Power is cut after every operation that changes the disk; what is found then is judged by the history.
//!
//! Invariants 1, 3, 4 and 7 of the architecture document.

use std::sync::{Arc, Mutex};
use std::thread;

use sessionlog::event::SessionHeader;
use sessionlog::storage::fault::{CrashMode, FaultPlan, FaultStorage};
use sessionlog::{AppendOptions, ErrorKind, Result, Store, VerifyOptions};

use crate::history::{
    Change, Contents, History, Host, Random, drafts, event, small_segments, surfaces_agree,
};

/// Seeds of the matrix; each gives some hundreds of crashes.
const SEEDS: u64 = 60;
const STEPS: usize = 42;
/// The least number of operations after which all that was not synced is dropped.
const CRASHES_MIN: usize = 5_000;

/// The disk that a crash leaves, and the history up to that moment.
struct Crash {
    disk: FaultStorage,
    mode: CrashMode,
    history: History,
    operation: u64,
}

#[test]
fn whatever_operation_a_crash_follows_all_that_was_acknowledged_is_found_and_nothing_else() {
    let worker = |first: u64| {
        let mut outcome = (0, Vec::new());
        for seed in (first..SEEDS).step_by(2) {
            let (crashes, ended) = run(seed, FaultPlan::new());
            outcome.0 += crashes.iter().filter(|crash| crash.mode == CrashMode::DropUnsynced).count();
            outcome.1.extend(ended.err().map(|error| format!("seed {seed}: {error}")));
            outcome.1.extend(crashes.iter().filter_map(|crash| complaint(seed, crash)));
        }
        outcome
    };
    let (a, b) = thread::scope(|scope| {
        let other = scope.spawn(|| worker(1));
        (worker(0), other.join().unwrap())
    });
    let complaints = [a.1, b.1].concat();
    let shown = complaints.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(complaints.is_empty(), "{} complaints:\n{shown}", complaints.len());
    assert!(a.0 + b.0 >= CRASHES_MIN, "only {} crashes", a.0 + b.0);
}

/// A check that a lying disk passes checks nothing.
#[test]
fn a_disk_that_lies_about_syncs_fails_the_same_check() {
    let (crashes, _) = run(1, FaultPlan::new().lying_sync());
    for mode in [CrashMode::DropUnsynced, CrashMode::TornSectors, CrashMode::TornPages] {
        let mut found = crashes.iter().filter(|crash| crash.mode == mode);
        assert!(found.any(|crash| check(crash).is_err()), "{mode:?} is survived without a sync");
    }
}

/// The matrix says nothing of patches unless there are some.
#[test]
fn the_histories_write_headers_as_what_changed() {
    let mut patches = 0;
    for seed in 0..12 {
        let storage = FaultStorage::new(seed);
        let mut host = Host::open(&storage, &Arc::default(), seed).unwrap();
        for _ in 0..STEPS {
            host.step().unwrap();
        }
        patches += host.store.metrics().unwrap().patches;
    }
    assert!(patches > 10, "only {patches}");
}

/// Works a store over several crashes, and crashes copies of its disk after each operation.
fn run(seed: u64, plan: FaultPlan) -> (Vec<Crash>, Result<(), String>) {
    let crashes = Arc::new(Mutex::new(Vec::new()));
    let history = Arc::new(Mutex::new(History::default()));
    let watched = |storage: &FaultStorage, seed: u64| {
        storage.set_plan(plan.clone());
        watch(storage, &history, &crashes, seed);
    };
    let storage = FaultStorage::new(seed);
    watched(&storage, seed);
    let work = || -> Result<(), String> {
        let mut host = Host::open(&storage, &history, seed).map_err(|error| error.to_string())?;
        let mut random = Random::new(!seed);
        for step in 0..STEPS {
            host.step().map_err(|error| format!("step {step}: {error}"))?;
            if random.below(30) == 0 {
                let mode = some_mode(&mut random);
                let left = host.storage.crash(mode, random.next());
                watched(&left, random.next());
                host.restart(left, mode != CrashMode::KeepUnsynced)?;
            }
        }
        host.store.close().map_err(|error| error.to_string())
    };
    let ended = work();
    let crashes = std::mem::take(&mut *crashes.lock().unwrap());
    (crashes, ended)
}

fn watch(storage: &FaultStorage, history: &Arc<Mutex<History>>, crashes: &Arc<Mutex<Vec<Crash>>>, seed: u64) {
    let (history, crashes) = (Arc::clone(history), Arc::clone(crashes));
    let mut random = Random::new(seed ^ 0xC4A5);
    storage.on_change(move |point| {
        let history = history.lock().unwrap();
        // What is certain to be there, and what may be there besides.
        let drop_all = Some(CrashMode::DropUnsynced);
        let other = Some(some_mode(&mut random)).filter(|mode| *mode != CrashMode::DropUnsynced);
        for mode in drop_all.into_iter().chain(other) {
            let disk = point.crashed_copy(mode, random.next());
            let (history, operation) = (history.clone(), point.operation());
            crashes.lock().unwrap().push(Crash { disk, mode, history, operation });
        }
    });
}

fn some_mode(random: &mut Random) -> CrashMode {
    CrashMode::ALL[random.below(CrashMode::ALL.len())]
}

fn complaint(seed: u64, crash: &Crash) -> Option<String> {
    let error = check(crash).err()?;
    Some(format!("seed {seed}, operation {}, {:?}: {error}", crash.operation, crash.mode))
}

/// What must hold of any disk that a crash leaves.
fn check(crash: &Crash) -> Result<(), String> {
    let seen = match small_segments().open_storage_read_only(Arc::new(crash.disk.clone())) {
        Ok(beside) => Contents::of(&beside)?,
        // There is no store before its first segment has its name.
        Err(error) if error.kind() == ErrorKind::NotFound => Contents::default(),
        Err(error) => return Err(format!("open for reading: {error}")),
    };
    let found = Contents::of(&open(&crash.disk)?)?;
    crash.history.kept(&found, crash.mode != CrashMode::KeepUnsynced)?;
    if seen != found {
        return Err("a reader beside the recovering writer saw something else".into());
    }
    // What recovery reported is as durable as if it had been acknowledged.
    let disk = crash.disk.crash(CrashMode::DropUnsynced, 0);
    let store = open(&disk)?;
    same(&found, &Contents::of(&store)?, "a second recovery")?;
    surfaces_agree(&store, &found)?;
    let report = store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ());
    let findings = report.map_err(|error| format!("verify: {error}"))?.findings;
    if !findings.is_empty() {
        return Err(format!("verify finds {findings:?}"));
    }
    let mut longer = found;
    longer.apply(&one_more(&store, &longer).map_err(|error| format!("append after recovery: {error}"))?);
    let store = open(&disk.crash(crash.mode, 1))?;
    same(&longer, &Contents::of(&store)?, "an append after recovery, and another crash")
}

/// Adds a synced event to the first session, or to a new one.
fn one_more(store: &Store, contents: &Contents) -> Result<Change> {
    let first = contents.sessions.first_key_value();
    let (session, seq) = match first {
        Some((id, held)) => (store.session(id)?, held.lines.len()),
        None => (store.create_session(SessionHeader::new("first", 5))?, 0),
    };
    let line = event("todo/write", seq, r#""one more""#, "");
    session.append(&drafts(std::slice::from_ref(&line)), AppendOptions::default())?.wait()?;
    Ok(Change::Append { id: session.id().to_owned(), lines: vec![line] })
}

fn open(disk: &FaultStorage) -> Result<Store, String> {
    small_segments().open_storage(Arc::new(disk.clone())).map_err(|error| format!("open: {error}"))
}

fn same(expected: &Contents, found: &Contents, after: &str) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{after} changes what is stored")) }
}
