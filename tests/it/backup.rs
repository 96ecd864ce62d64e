//! A backup is a store of its own: whole or not there, whatever happens while it is made, and whatever happens to its source.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use sessionlog::storage::fault::{CrashMode, Fault, FaultPlan, FaultStorage};
use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, ErrorKind, Seq, Store, StoreOptions};

use crate::history::{Contents, History, Host, small_segments};
use crate::sealing::{create, fill, findings, small};
use crate::support::options;

/// A source with several segments, sealed ones among them, forks and removed sessions.
fn worked(seed: u64) -> (FaultStorage, Host, Arc<Mutex<History>>) {
    let history = Arc::new(Mutex::new(History::default()));
    let storage = FaultStorage::new(seed);
    let mut host = Host::open(&storage, &history, seed).unwrap();
    for _ in 0..40 {
        host.step().unwrap();
    }
    host.store.flush().unwrap();
    (storage, host, history)
}

fn opened(storage: &FaultStorage) -> sessionlog::Result<Store> {
    small_segments().open_storage_read_only(Arc::new(storage.clone()))
}

#[test]
fn a_crash_at_any_moment_leaves_a_whole_backup_or_none() {
    let mut whole = 0;
    let mut none = 0;
    for seed in 0..12 {
        let (_, host, _) = worked(seed);
        let expected = Contents::of(&host.store).unwrap();
        let target = FaultStorage::new(seed);
        let crashes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&crashes);
        target.on_change(move |point| {
            for mode in CrashMode::ALL {
                let disk = point.crashed_copy(mode, point.operation());
                seen.lock().unwrap().push((point.operation(), mode, disk));
            }
        });
        let to: Arc<dyn Storage> = Arc::new(target.clone());
        assert_eq!(host.store.snapshot_to_storage(&to).unwrap().findings, []);
        for (operation, mode, disk) in std::mem::take(&mut *crashes.lock().unwrap()) {
            let Ok(backup) = opened(&disk) else {
                none += 1;
                continue;
            };
            whole += 1;
            let at = format!("seed {seed}, operation {operation}, {mode:?}");
            assert_eq!(Contents::of(&backup).unwrap(), expected, "{at}");
            assert_eq!(findings(&backup), [""; 0], "{at}");
        }
        let left = target.crash(CrashMode::DropUnsynced, 0);
        assert_eq!(Contents::of(&opened(&left).unwrap()).unwrap(), expected, "what was reported is durable");
    }
    assert!(whole >= 12 && none >= 100, "{whole} whole, {none} without one");
}

/// A check that a lying disk passes checks nothing.
#[test]
fn a_disk_that_lies_about_syncs_loses_the_backup() {
    let (_, host, _) = worked(1);
    let target = FaultStorage::new(1);
    target.set_plan(FaultPlan::new().lying_sync());
    let to: Arc<dyn Storage> = Arc::new(target.clone());
    host.store.snapshot_to_storage(&to).unwrap();
    assert!(opened(&target.crash(CrashMode::DropUnsynced, 0)).is_err());
}

#[test]
fn a_failure_of_any_operation_is_told_and_leaves_a_whole_backup_or_none() {
    let (_, host, _) = worked(5);
    let expected = Contents::of(&host.store).unwrap();
    let run = |plan: FaultPlan| {
        let target = FaultStorage::new(3);
        target.set_plan(plan);
        let to: Arc<dyn Storage> = Arc::new(target.clone());
        let result = host.store.snapshot_to_storage(&to);
        (target, result)
    };
    let (target, result) = run(FaultPlan::new());
    result.unwrap();
    let operations = target.counters().operations;
    let mut told = 0;
    for operation in 0..operations {
        for fault in [Fault::Io, Fault::ShortWrite] {
            let (target, result) = run(FaultPlan::new().fail(operation, fault));
            let left = opened(&target.crash(CrashMode::KeepUnsynced, 0));
            // What failed may be a read that was none too many.
            assert!(result.is_err() || left.is_ok(), "operation {operation} failed and nobody was told");
            told += usize::from(result.is_err());
            if let Ok(backup) = left {
                assert_eq!(Contents::of(&backup).unwrap(), expected, "operation {operation}");
            }
        }
    }
    assert!(told as u64 > operations, "{told} of {} failures were told", 2 * operations);
}

#[test]
fn a_source_that_fails_gives_an_error_and_no_backup() {
    let (storage, host, _) = worked(6);
    let run = |plan: FaultPlan| {
        storage.set_plan(plan);
        let reader = opened(&storage)?;
        let target = FaultStorage::new(3);
        let to: Arc<dyn Storage> = Arc::new(target.clone());
        let result = reader.snapshot_to_storage(&to);
        Ok::<_, sessionlog::Error>((target, result))
    };
    let first = storage.counters().operations;
    run(FaultPlan::new()).unwrap().1.unwrap();
    let operations = storage.counters().operations - first;
    let expected = Contents::of(&host.store).unwrap();
    for step in 0..operations {
        let plan = FaultPlan::new().fail(storage.counters().operations + step, Fault::Io);
        if let Ok((target, result)) = run(plan) {
            let left = opened(&target);
            assert_eq!(result.is_err(), left.is_err(), "step {step}: {result:?}");
            if let Ok(backup) = left {
                assert_eq!(Contents::of(&backup).unwrap(), expected, "step {step}");
            }
        }
    }
}

fn todo(n: u64) -> Draft<'static> {
    Draft::new("todo/write", format!(r#"{{"todos":[{n}]}}"#))
}

fn reopened(dir: &Path) -> Store {
    options().open(dir).unwrap()
}

/// Sets a flag when it goes.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn each_backup_taken_while_others_write_seal_and_remove_holds_what_was_synced_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = StoreOptions::new().segment_bytes_max(64 << 10).open(&path).unwrap();
    fill(&create(&store, "old"), 10, 1);
    let session = create(&store, "live");
    session.append(&[todo(0)], AppendOptions::default()).unwrap().wait().unwrap();
    let (synced, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            let _stopping = Stopping(&stop);
            while !stop.load(Ordering::Relaxed) {
                let next = synced.load(Ordering::Relaxed);
                session.append(&[todo(next)], AppendOptions::default()).unwrap().wait().unwrap();
                synced.store(next + 1, Ordering::Release);
                round += 1;
                if round % 40 == 0 {
                    let id = format!("gone-{round}");
                    fill(&create(&store, &id), 1, round);
                    store.remove(&id).unwrap();
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.compact().unwrap();
                store.maintain().unwrap();
            }
        });
        // The others end whatever happens here.
        let _stopping = Stopping(&stop);
        let reader = StoreOptions::new().open_read_only(&path).unwrap();
        for (n, source) in [&store, &reader].into_iter().cycle().take(12).enumerate() {
            let before = synced.load(Ordering::Acquire);
            let target = dir.path().join(format!("backup-{n}"));
            let snapshot = source.snapshot_to(&target).unwrap();
            assert_eq!(snapshot.findings, []);
            let backup = reopened(&target);
            let live = backup.session("live").unwrap();
            let held = live.next_seq().unwrap().get();
            assert!(held >= before, "backup {n}: {held} of {before} events");
            assert_eq!(backup.session("old").unwrap().next_seq().unwrap().get(), 240);
            assert_eq!(findings(&backup), [""; 0]);
            live.append(&[todo(held)], AppendOptions::default()).unwrap().wait().unwrap();
        }
    });
    let leftovers = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(leftovers.filter(|name| name.to_string_lossy().ends_with(".tmp")).count(), 0);
}

/// Bytes of all files of a directory but the lock's.
fn files_of(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with("LOCK"))
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn what_becomes_of_the_source_later_does_not_touch_the_backup_and_the_other_way_round() {
    let dir = tempfile::tempdir().unwrap();
    let (path, target) = (dir.path().join("store"), dir.path().join("backup"));
    let store = options().segment_bytes_max(64 << 10).open(&path).unwrap();
    for id in ["a", "b"] {
        fill(&create(&store, id), 10, 1);
    }
    store.compact().unwrap();
    fill(&store.session("a").unwrap(), 10, 2);
    let expected = Contents::of(&store).unwrap();
    let snapshot = store.snapshot_to(&target).unwrap();
    let copied = files_of(&target);
    assert_eq!(snapshot.files, copied.len() as u64);
    assert_eq!(snapshot.bytes, copied.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
    assert_eq!((snapshot.sessions, snapshot.events), (2, 240 * 3));
    assert!(!target.join("LOCK").exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let linked = |name: &str| fs::metadata(target.join(name)).unwrap().nlink() == 2;
        let newest = &copied.iter().rfind(|(name, _)| name.ends_with(".log")).unwrap().0;
        for (name, _) in &copied {
            assert_eq!(linked(name), name != newest, "{name}: all is linked but what still changes");
        }
    }
    store.remove("b").unwrap();
    fill(&store.session("a").unwrap(), 10, 3);
    store.compact().unwrap();
    store.close().unwrap();
    assert_eq!(files_of(&target), copied);
    let source = files_of(&path);
    let backup = reopened(&target);
    assert_eq!(Contents::of(&backup).unwrap(), expected);
    backup.remove("a").unwrap();
    backup.compact().unwrap();
    backup.close().unwrap();
    assert_eq!(files_of(&path), source);
    assert_eq!(findings(&reopened(&path)), [""; 0]);
}

#[test]
fn damage_is_told_and_copied_as_it_is() {
    for sealed in [false, true] {
        let storage = MemoryStorage::new();
        let store = small(&storage);
        fill(&create(&store, "a"), 20, 1);
        if sealed {
            store.compact().unwrap();
        }
        store.close().unwrap();
        let name = storage.list().unwrap().remove(0);
        let file = storage.open(&name, Access::Write).unwrap();
        let mut byte = [0];
        file.read_at(&mut byte, 6_000).unwrap();
        file.write_all_at(&[!byte[0]], 6_000).unwrap();
        let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
        let target = MemoryStorage::new();
        let to: Arc<dyn Storage> = Arc::new(target.clone());
        let snapshot = reader.snapshot_to_storage(&to).unwrap();
        let told: Vec<_> = snapshot.findings.iter().map(|finding| format!("{finding:?}")).collect();
        assert!(
            !told.is_empty() && told.iter().all(|finding| findings(&reader).contains(finding)),
            "{told:?}"
        );
        let bytes = |storage: &MemoryStorage| {
            let file = storage.open(&name, Access::Read).unwrap();
            let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
            file.read_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(bytes(&target), bytes(&storage), "sealed: {sealed}");
    }
}

#[test]
fn what_stands_at_the_target_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().open(dir.path().join("store")).unwrap();
    fill(&create(&store, "a"), 1, 1);
    let taken = dir.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("precious"), "text").unwrap();
    for target in [taken.clone(), taken.join("precious"), dir.path().join("store")] {
        let error = store.snapshot_to(&target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    assert_eq!(fs::read_to_string(taken.join("precious")).unwrap(), "text");
    assert_eq!(store.snapshot_to(dir.path().join("no/parent")).unwrap_err().kind(), ErrorKind::NotFound);
    let to: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    store.snapshot_to_storage(&to).unwrap();
    assert_eq!(store.snapshot_to_storage(&to).unwrap_err().kind(), ErrorKind::Conflict);
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(store.snapshot_to(&empty).unwrap().events, 24);
    let events = reopened(&empty).session("a").unwrap().events(Seq::new(0)..Seq::new(99)).unwrap().count();
    assert_eq!(events, 24);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is left beside them");
}

#[test]
fn a_closed_store_is_copied_and_a_failed_one_is_to_be_reopened() {
    let storage = FaultStorage::new(1);
    let store = options().open_storage(Arc::new(storage.clone())).unwrap();
    fill(&create(&store, "a"), 1, 1);
    let copy = || -> Arc<dyn Storage> { Arc::new(MemoryStorage::new()) };
    store.clone().close().unwrap();
    assert_eq!(store.snapshot_to_storage(&copy()).unwrap().events, 24);

    let store = options().open_storage(Arc::new(storage.clone())).unwrap();
    let session = store.session("a").unwrap();
    let append = || session.append(&[Draft::new("todo/write", "1")], AppendOptions::default()).unwrap();
    append().wait().unwrap();
    let waiting = append();
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
    assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(store.snapshot_to_storage(&copy()).unwrap_err().kind(), ErrorKind::Closed);
}
