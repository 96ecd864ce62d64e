//! Each operation of a workload fails once; what the callers are told, and what a new opening finds.
//!
//! Invariants 1 and 8 of the architecture document.

use std::sync::{Arc, Mutex};
use std::thread;

use sessionlog::event::SessionHeader;
use sessionlog::storage::fault::{CrashMode, Fault, FaultPlan, FaultStorage};
use sessionlog::{AppendOptions, Draft, Durability, ErrorKind, Seq, Store};

use crate::history::{Contents, History, Host, small_segments};
use crate::support::lines;

const STEPS: usize = 60;
const FAULTS: [Fault; 3] = [Fault::Io, Fault::Full, Fault::ShortWrite];

#[test]
fn whatever_operation_fails_callers_are_told_and_the_next_opening_goes_on() {
    let worker = |seed: u64| -> Vec<String> {
        let clean = FaultStorage::new(seed);
        let mut host = Host::open(&clean, &Arc::default(), seed).unwrap();
        (0..STEPS).for_each(|_| host.step().unwrap());
        let operations = clean.counters().operations;
        assert!(operations > 150, "{operations} operations");
        let failing = |operation| FAULTS.map(|fault| (operation, fault));
        (0..operations)
            .flat_map(failing)
            .filter_map(|(operation, fault)| {
                let error = fail_once(seed, operation, fault).err()?;
                Some(format!("seed {seed}, operation {operation}, {fault:?}: {error}"))
            })
            .collect()
    };
    let complaints = thread::scope(|scope| {
        let other = scope.spawn(|| worker(3));
        [worker(4), other.join().unwrap()].concat()
    });
    let shown = complaints.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(complaints.is_empty(), "{} complaints:\n{shown}", complaints.len());
}

/// Runs a workload into one fault, and judges the open store, then the next opening, then a power loss.
fn fail_once(seed: u64, operation: u64, fault: Fault) -> Result<(), String> {
    let storage = FaultStorage::new(seed ^ operation);
    storage.set_plan(FaultPlan::new().fail(operation, fault));
    let history = Arc::new(Mutex::new(History::default()));
    match Host::open(&storage, &history, seed) {
        Err(error) => io_or_closed(&error)?,
        Ok(mut host) => {
            if let Some(error) = (0..STEPS).find_map(|_| host.step().err()) {
                io_or_closed(&error)?;
                stays_honest(&host)?;
            }
        }
    }
    let history = history.lock().unwrap();
    let store = reopen(&storage)?;
    let found = Contents::of(&store)?;
    history.kept(&found, true)?;
    store
        .create_session(SessionHeader::new("after", 5))
        .and_then(|session| session.append(&[todo()], AppendOptions::default())?.wait())
        .map_err(|error| format!("append after reopening: {error}"))?;
    let expected = Contents::of(&store)?;
    let left = Contents::of(&reopen(&storage.crash(CrashMode::DropUnsynced, 0))?)?;
    if left != expected { Err("a power loss after reopening loses what was found".into()) } else { Ok(()) }
}

/// After a failure a session shows nothing of the step that failed.
fn stays_honest(host: &Host) -> Result<(), String> {
    let before = host.before_step();
    let listed = host.store.list().map_err(|error| format!("list after a failure: {error}"))?;
    for info in listed {
        let id = &info.header.id;
        let session = host.store.session(id).map_err(|error| error.to_string())?;
        let events = session.events(Seq::new(0)..Seq::new(u64::MAX));
        let Ok(shown) = events.and_then(Iterator::collect::<sessionlog::Result<Vec<_>>>) else { continue };
        let held = before.sessions.get(id).map_or(0, |held| held.lines.len());
        if shown.len() > held {
            return Err(format!("{id} shows {} events, {held} before the failure", shown.len()));
        }
    }
    Ok(())
}

#[test]
fn a_failed_write_or_sync_closes_the_store_for_every_caller() {
    for fault in FAULTS {
        for ahead in [0, 1] {
            let storage = FaultStorage::new(ahead);
            let store = reopen(&storage).unwrap();
            append(&store, "s").unwrap();
            let session = store.session("s").unwrap();
            let other = store.create_session(SessionHeader::new("t", 5)).unwrap();
            let waiting = session.append(&[todo()], AppendOptions::default()).unwrap();
            let queued = other.append(&[todo()], AppendOptions::default()).unwrap();
            // A group is one write, then one sync.
            let next = storage.counters().operations;
            storage.set_plan(FaultPlan::new().fail(next + ahead, fault));
            let failed = waiting.wait().unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
            assert!(std::error::Error::source(&failed).is_some(), "{failed} has a cause");
            assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::Io, "asked again, the same answer");
            assert_eq!(queued.wait().unwrap_err().kind(), ErrorKind::Io, "they shared the group");
            for (unwritten, seq) in [(&session, 1), (&other, 0)] {
                assert_eq!(unwritten.event(Seq::new(seq)).unwrap_err().kind(), ErrorKind::Io);
            }
            assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(store.maintain().map_err(|error| error.kind()), Ok(()), "nothing is due");
            let later = store.create_session(SessionHeader::new("u", 5)).unwrap();
            let refused = later.append(&[todo()], AppendOptions::default()).unwrap().wait().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Closed);
            assert_eq!(store.register_type("acme/x").unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(store.clone().close().unwrap_err().kind(), ErrorKind::Closed);
            let store = reopen(&storage).unwrap();
            assert!(!lines(&store.session("s").unwrap()).is_empty());
            append(&store, "s").unwrap();
        }
    }
}

/// A failed sync forgets pages, and the next sync of the same file succeeds without them.
#[test]
fn pages_that_a_failed_sync_forgot_are_neither_acknowledged_nor_reported() {
    let mut lost = 0;
    for seed in 0..60 {
        let storage = FaultStorage::new(seed);
        let store = reopen(&storage).unwrap();
        append(&store, "s").unwrap();
        let session = store.session("s").unwrap();
        let large = Draft::new("todo/write", format!("\"{}\"", "x".repeat(20_000)));
        let buffered = AppendOptions { expected: None, durability: Durability::Buffered };
        session.append(&[large, todo()], buffered).unwrap().wait().unwrap();
        assert_eq!(session.durable_seq().get(), 1);
        storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
        assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(session.durable_seq().get(), 1, "an event is not durable because its sync was tried");
        drop((session, store));

        let store = reopen(&storage).unwrap();
        let found = lines(&store.session("s").unwrap());
        assert!(found.len() == 1 || found.len() == 3, "a batch is whole or absent: {} events", found.len());
        lost += u64::from(found.len() == 1);
        append(&store, "s").unwrap();
        let expected = lines(&store.session("s").unwrap());
        let left = reopen(&storage.crash(CrashMode::DropUnsynced, seed)).unwrap();
        assert_eq!(lines(&left.session("s").unwrap()), expected);
        assert_eq!(expected[..found.len()], found);
    }
    assert!((1..60).contains(&lost), "{lost} of 60 batches were lost");
}

/// Space ahead may fail to be prepared; a failed sync there may have swallowed the error of a commit.
#[test]
fn upkeep_that_cannot_write_costs_nothing_and_upkeep_that_cannot_sync_closes_the_store() {
    let (mut closed, mut harmless) = (0, 0);
    for fault in FAULTS {
        for ahead in 0.. {
            let storage = FaultStorage::new(ahead);
            let store = reopen(&storage).unwrap();
            let fill = Draft::new("todo/write", format!("\"{}\"", "x".repeat(40_000)));
            let session = store.create_session(SessionHeader::new("s", 5)).unwrap();
            session.append(&[fill], AppendOptions::default()).unwrap().wait().unwrap();
            let before = storage.counters().operations;
            storage.set_plan(FaultPlan::new().fail(before + ahead, fault));
            let maintained = store.maintain();
            if storage.counters().operations <= before + ahead {
                break;
            }
            let appended = append(&store, "s");
            match &maintained {
                Ok(()) => assert_eq!(appended.map_err(|error| error.kind()), Ok(())),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                    assert_eq!(appended.unwrap_err().kind(), ErrorKind::Closed);
                }
            }
            drop((session, store));
            let events = lines(&reopen(&storage).unwrap().session("s").unwrap()).len();
            assert_eq!(events, if maintained.is_ok() { 2 } else { 1 });
            *(if maintained.is_ok() { &mut harmless } else { &mut closed }) += 1;
        }
    }
    assert!(closed >= 3 && harmless >= 3, "{closed} closed the store, {harmless} were harmless");
}

fn io_or_closed(error: &sessionlog::Error) -> Result<(), String> {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Closed => Ok(()),
        kind => Err(format!("a failing disk is reported as {kind}: {error}")),
    }
}

fn reopen(storage: &FaultStorage) -> Result<Store, String> {
    small_segments().open_storage(Arc::new(storage.clone())).map_err(|error| format!("reopen: {error}"))
}

/// Appends one event, durably; makes the session if there is none.
fn append(store: &Store, id: &str) -> sessionlog::Result<()> {
    let session = store.session(id).or_else(|_| store.create_session(SessionHeader::new(id, 5)))?;
    session.append(&[todo()], AppendOptions::default())?.wait()
}

fn todo() -> Draft<'static> {
    Draft::new("todo/write", r#"{"todos":[]}"#)
}

#[test]
fn a_failed_append_stores_nothing_of_its_batch() {
    for (ahead, fault) in (0..2).flat_map(|ahead| FAULTS.map(|fault| (ahead, fault))) {
        let storage = FaultStorage::new(7);
        let open = || small_segments().open_storage(Arc::new(storage.clone())).unwrap();
        let event = |n: u64| [Draft::new("todo/write", n.to_string())];
        let store = open();
        let session = store.create_session(SessionHeader::new("s", 1)).unwrap();
        session.append(&event(0), AppendOptions::default()).unwrap().wait().unwrap();
        // The write of the next group, then its sync.
        storage.set_plan(FaultPlan::new().fail(storage.counters().operations + ahead, fault));
        session.append(&event(1), AppendOptions::default()).unwrap().wait().unwrap_err();
        drop((session, store));
        let reopened = open().session("s").unwrap();
        assert_eq!(lines(&reopened).len(), 1, "operation {ahead} failed with {fault:?}");
    }
}
