//! Checkpoints: resuming without replay, and no answer that depends on them.

use std::sync::Arc;

use sessionlog::event::SessionState;
use sessionlog::limits::{CHECKPOINT_FILES_MAX, CHECKPOINT_LIVE_LAG_EVENTS};
use sessionlog::storage::fault::{CrashMode, Fault, FaultPlan, FaultStorage};
use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, Durability, ErrorKind, Seq, Session, Store, VerifyOptions};

use crate::sealing::{answers, copy, crashes_during, create, fill, findings, names, small};
use crate::support::{lines, options};

fn states(storage: &impl Storage) -> Vec<String> {
    names(storage).into_iter().filter(|name| name.ends_with(".state")).collect()
}

fn bytes(storage: &impl Storage, name: &str) -> Vec<u8> {
    let file = storage.open(name, Access::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn overwrite(storage: &impl Storage, name: &str, offset: usize, bytes: &[u8]) {
    storage.open(name, Access::Write).unwrap().write_all_at(bytes, offset as u64).unwrap();
}

fn reader(storage: &MemoryStorage) -> Store {
    options().open_storage_read_only(Arc::new(storage.clone())).unwrap()
}

/// What verify says about checkpoints.
fn checkpoint_findings(store: &Store) -> Vec<String> {
    let report = store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap();
    let about = report.findings.into_iter().filter(|finding| finding.kind == "checkpoint");
    about.map(|finding| finding.message).collect()
}

/// Whether there is a place whose damage costs events of a session, and yet its surface is known.
fn folds_without_its_events(storage: &MemoryStorage, id: &str) -> bool {
    const PLACES: usize = 16;
    (1..PLACES).any(|place| {
        let damaged = MemoryStorage::new();
        copy(storage, &damaged, &names(storage));
        for name in names(&damaged).iter().filter(|name| name.ends_with(".sealed")) {
            // Behind the header and the control records.
            let body = bytes(&damaged, name).len() - 4096;
            overwrite(&damaged, name, 4096 + body / PLACES * place, &[0x55; 16]);
        }
        let store = reader(&damaged);
        let Ok(session) = store.session(id) else { return false };
        let all = Seq::new(0)..session.next_seq().unwrap();
        let costs_events = session.for_each(all, &mut |_| Ok(())).is_err();
        match session.surface() {
            Ok(_) => costs_events,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                false
            }
        }
    })
}

#[test]
fn a_sealed_session_is_resumed_without_reading_its_events() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    fill(&create(&store, "s"), 12, 1);
    store.compact().unwrap();
    let before = answers(&store);
    store.close().unwrap();
    assert_eq!(states(&storage).len(), 1);
    assert!(folds_without_its_events(&storage, "s"));
    assert_eq!(answers(&small(&storage)), before);
    for name in states(&storage) {
        storage.remove(&name).unwrap();
    }
    assert!(!folds_without_its_events(&storage, "s"));
    assert_eq!(answers(&reader(&storage)), before);
    let store = small(&storage);
    assert_eq!(answers(&store), before);
    store.compact().unwrap();
    drop(store);
    assert!(folds_without_its_events(&storage, "s"), "a compaction restores them");
    assert_eq!(findings(&small(&storage)), Vec::<String>::new());
}

#[test]
fn sessions_that_went_idle_or_were_live_are_checkpointed_at_close_and_small_ones_are_not() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    fill(&create(&store, "idle"), 4, 1);
    let live = create(&store, "live");
    fill(&live, 4, 2);
    fill(&create(&store, "tiny"), 2, 3);
    assert_eq!(states(&storage), Vec::<String>::new(), "dropping a handle writes nothing");
    store.close().unwrap();
    let found = states(&storage);
    assert_eq!(found.len(), 1);
    // Header, three rows' worth at most, footer: two rows of 36 bytes stand before the footer.
    let file = bytes(&storage, &found[0]);
    assert_eq!(file[file.len() - 16..file.len() - 12], 2_u32.to_le_bytes());
    let store = small(&storage);
    let all = answers(&store);
    fill(&store.session("live").unwrap(), 1, 4);
    store.close().unwrap();
    assert_eq!(states(&storage), found, "24 events more are not worth a file");
    assert_ne!(answers(&small(&storage)), all);
}

/// Appends `count` small events without waiting for any disk.
pub(crate) fn run_ahead(session: &Session, count: u64) {
    let events: Vec<_> = (0..64).map(|n| Draft::new("todo/write", format!("{n}")).at_time(n)).collect();
    let buffered = AppendOptions { expected: None, durability: Durability::Buffered };
    for _ in 0..count / 64 {
        session.append(&events, buffered).unwrap().wait().unwrap();
    }
}

/// Where the session of the only checkpoint in a file stood: the row before the footer tells.
pub(crate) fn checkpointed(storage: &impl Storage, name: &str) -> u64 {
    let file = bytes(storage, name);
    let next_seq = &file[file.len() - 32 - 36 + 16..][..4];
    u64::from(u32::from_le_bytes(next_seq.try_into().unwrap()))
}

#[test]
fn a_session_in_use_is_checkpointed_as_it_runs_ahead() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let session = create(&store, "long");
    run_ahead(&session, CHECKPOINT_LIVE_LAG_EVENTS - 64);
    store.maintain().unwrap();
    let sealed_only = states(&storage);
    let upkeep = |ahead: u64| {
        run_ahead(&session, ahead);
        store.maintain().unwrap();
        states(&storage)
    };
    let first = upkeep(64);
    let newest = first.last().unwrap();
    assert_ne!(sealed_only.last(), Some(newest));
    assert_eq!(checkpointed(&storage, newest), CHECKPOINT_LIVE_LAG_EVENTS);
    // A kill leaves what the files hold now.
    let killed = MemoryStorage::new();
    copy(&storage, &killed, &names(&storage));
    assert_eq!(checkpoint_findings(&reader(&killed)), Vec::<String>::new());
    assert_eq!(answers(&small(&killed)), answers(&store));
}

#[test]
fn checkpoints_of_sleeping_sessions_are_not_rewritten_for_those_in_use() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    (0..300).for_each(|n| fill(&create(&store, &format!("asleep-{n}")), 4, n));
    store.compact().unwrap();
    let asleep = states(&storage);
    assert_eq!(asleep.len(), 1);
    let session = create(&store, "long");
    for round in 1..20 {
        run_ahead(&session, CHECKPOINT_LIVE_LAG_EVENTS);
        store.maintain().unwrap();
        let found = states(&storage);
        assert_eq!(found[0], asleep[0], "round {round}");
        assert!(found.len() <= CHECKPOINT_FILES_MAX, "round {round}: {found:?}");
    }
    assert_eq!(findings(&store), Vec::<String>::new());
}

#[test]
fn a_fork_goes_on_from_the_checkpoint_of_its_owner_and_needs_none_of_its_own() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let owner = create(&store, "owner");
    run_ahead(&owner, 2 * CHECKPOINT_LIVE_LAG_EVENTS);
    store.maintain().unwrap();
    let found = states(&storage);
    let fork = store.fork("owner", None, "fork").unwrap();
    run_ahead(&fork, 64);
    store.maintain().unwrap();
    assert_eq!(states(&storage), found);
    run_ahead(&fork, CHECKPOINT_LIVE_LAG_EVENTS);
    store.maintain().unwrap();
    assert_ne!(states(&storage), found);
}

#[test]
fn a_checkpoint_that_was_called_for_is_written_when_it_can_be() {
    let storage = FaultStorage::new(5);
    let store = options().open_storage(Arc::new(storage.clone())).unwrap();
    let session = create(&store, "long");
    run_ahead(&session, CHECKPOINT_LIVE_LAG_EVENTS);
    store.flush().unwrap();
    store.maintain().unwrap();
    let found = states(&storage);
    assert!(!found.is_empty());
    run_ahead(&session, CHECKPOINT_LIVE_LAG_EVENTS);
    store.flush().unwrap();
    // The upkeep prepares nothing, so the first change is the checkpoint's file.
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
    store.maintain().unwrap();
    assert_eq!(states(&storage), found);
    store.maintain().unwrap();
    assert_ne!(states(&storage), found);
}

/// What is checkpointed survives a power loss, also where nobody had asked for that.
#[test]
fn a_checkpoint_of_a_session_in_use_waits_for_its_events() {
    let storage = FaultStorage::new(11);
    let store = options().open_storage(Arc::new(storage.clone())).unwrap();
    let session = create(&store, "long");
    run_ahead(&session, CHECKPOINT_LIVE_LAG_EVENTS);
    assert!(session.durable_seq() < session.next_seq().unwrap());
    let crashes = crashes_during(&storage, || store.maintain().unwrap());
    let mut checkpoints = 0;
    for (operation, mode, disk) in crashes {
        let found = states(&disk);
        checkpoints += found.len();
        let store = small(&disk);
        let end = store.session("long").map_or(Seq::new(0), |session| session.next_seq().unwrap());
        for name in &found {
            assert!(checkpointed(&disk, name) <= end.get(), "operation {operation}, {mode:?}");
        }
        assert_eq!(checkpoint_findings(&store), Vec::<String>::new(), "operation {operation}, {mode:?}");
    }
    assert!(checkpoints > 0);
}

#[test]
fn files_are_merged_and_nothing_of_removed_sessions_stays_after_a_compaction() {
    let storage = MemoryStorage::new();
    for n in 0..20 {
        let store = small(&storage);
        fill(&create(&store, &format!("s{n}")), 3, n);
        let before = answers(&store);
        store.close().unwrap();
        assert!((1..=8).contains(&states(&storage).len()), "{:?}", states(&storage));
        let store = reader(&storage);
        assert_eq!(answers(&store), before);
        assert_eq!(checkpoint_findings(&store), Vec::<String>::new());
    }
    let store = small(&storage);
    store.compact().unwrap();
    assert_eq!(states(&storage).len(), 1);
    let many = bytes(&storage, &states(&storage)[0]).len();
    (1..20).for_each(|n| store.remove(&format!("s{n}")).unwrap());
    store.compact().unwrap();
    assert_eq!(states(&storage).len(), 1);
    assert!(bytes(&storage, &states(&storage)[0]).len() * 4 < many);
    store.remove("s0").unwrap();
    store.compact().unwrap();
    assert_eq!(states(&storage), Vec::<String>::new());
    drop(store);
    let store = small(&storage);
    let again = create(&store, "s0");
    assert_eq!(again.surface().unwrap(), []);
    fill(&again, 3, 99);
    assert_eq!(again.next_seq().unwrap(), Seq::new(72));
}

#[test]
fn any_changed_byte_of_a_checkpoint_file_is_found_and_changes_no_answer() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    fill(&create(&store, "a"), 3, 1);
    fill(&create(&store, "b"), 3, 2);
    store.close().unwrap();
    let [name] = &states(&storage)[..] else { panic!("one file") };
    let sound = bytes(&storage, name);
    let surfaces = |store: &Store| {
        let of = |id| store.session(id).unwrap().with_state(Clone::clone).unwrap();
        [of("a"), of("b")]
    };
    let before = surfaces(&reader(&storage));
    assert_eq!(checkpoint_findings(&reader(&storage)), Vec::<String>::new());
    for at in 0..sound.len() {
        overwrite(&storage, name, at, &[sound[at] ^ 0x10]);
        let store = reader(&storage);
        assert_eq!(surfaces(&store), before, "byte {at}");
        if at % 7 == 0 {
            assert_eq!(checkpoint_findings(&store).len(), 1, "byte {at}");
        }
        overwrite(&storage, name, at, &sound[at..=at]);
    }
    for len in (0..sound.len()).step_by(5) {
        storage.open(name, Access::Write).unwrap().set_len(len as u64).unwrap();
        assert_eq!(surfaces(&reader(&storage)), before, "cut to {len}");
    }
    // A writer replaces what is not right.
    let store = small(&storage);
    store.compact().unwrap();
    drop(store);
    assert_eq!(findings(&reader(&storage)), Vec::<String>::new());
}

#[test]
fn a_checkpoint_of_other_events_under_the_same_key_is_not_believed() {
    let made = |salt| {
        let storage = MemoryStorage::new();
        let store = small(&storage);
        fill(&create(&store, "s"), 6, salt);
        store.close().unwrap();
        storage
    };
    let (one, other) = (made(1), made(2));
    let before = answers(&reader(&one));
    let name = &states(&one)[0];
    one.remove(name).unwrap();
    copy(&other, &one, &states(&other));
    assert_eq!(answers(&reader(&one)), before);
    assert_eq!(checkpoint_findings(&reader(&one)).len(), 1);
    // Its events go on behind the wrong one.
    let store = small(&one);
    fill(&store.session("s").unwrap(), 6, 3);
    let longer = answers(&store);
    store.close().unwrap();
    assert_eq!(answers(&reader(&one)), longer);
    let store = small(&one);
    store.compact().unwrap();
    assert_eq!(answers(&store), longer);
    assert_eq!(findings(&store), Vec::<String>::new());
}

#[test]
fn forks_resume_from_what_they_share_and_earlier_states_from_earlier_checkpoints() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let parent = create(&store, "parent");
    fill(&parent, 12, 1);
    store.compact().unwrap();
    let child = store.fork("parent", None, "child").unwrap();
    fill(&child, 1, 2);
    fill(&parent, 12, 3);
    store.compact().unwrap();
    // As a child's header reads once it was stored.
    let before = answers(&reader(&storage));
    let at = |store: &Store, seq| store.session("parent").unwrap().state_at(Seq::new(seq)).unwrap();
    let earlier: Vec<_> = [10, 287, 288, 300].map(|seq| at(&store, seq)).into();
    drop((parent, child));
    store.close().unwrap();
    assert!(folds_without_its_events(&storage, "parent"));
    let store = reader(&storage);
    assert_eq!(answers(&store), before);
    for name in states(&storage) {
        storage.remove(&name).unwrap();
    }
    let store = reader(&storage);
    assert_eq!(answers(&store), before);
    assert_eq!([10, 287, 288, 300].map(|seq| at(&store, seq)).to_vec(), earlier);
    let store = small(&storage);
    store.remove("parent").unwrap();
    store.compact().unwrap();
    let child = lines(&store.session("child").unwrap());
    drop(store);
    assert_eq!(lines(&small(&storage).session("child").unwrap()), child);
}

#[test]
fn a_reader_goes_on_beside_a_writer_that_rewrites_checkpoints() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    fill(&create(&store, "s"), 6, 1);
    store.compact().unwrap();
    let view = reader(&storage);
    for round in 0..6 {
        let known = view.session("s").unwrap();
        let surface = known.surface().unwrap();
        drop(known);
        fill(&store.session("s").unwrap(), 4, 10 + round);
        store.compact().unwrap();
        assert_eq!(view.session("s").unwrap().surface().unwrap(), surface, "as of its last refresh");
        view.refresh().unwrap();
        assert_eq!(answers(&view), answers(&store));
    }
    let before = names(&storage);
    let session = view.session("s").unwrap();
    assert_eq!(session.with_state(|state| state.next_seq()).unwrap(), Seq::new(30 * 24));
    drop(session);
    view.close().unwrap();
    assert_eq!(names(&storage), before, "a reader writes nothing");
}

#[test]
fn a_crash_at_any_operation_of_a_checkpoint_changes_no_answer() {
    type Work = fn(Store);
    let works: [Work; 2] =
        [|store| store.close().unwrap(), |store| assert!(store.compact().unwrap().sessions > 0)];
    for (number, work) in works.into_iter().enumerate() {
        let storage = FaultStorage::new(3);
        {
            let store = small(&storage);
            fill(&create(&store, "a"), 4, 1);
            fill(&create(&store, "gone"), 4, 2);
            store.close().unwrap();
        }
        let store = small(&storage);
        fill(&store.session("a").unwrap(), 4, 3);
        fill(&create(&store, "b"), 4, 4);
        store.remove("gone").unwrap();
        store.flush().unwrap();
        let before = answers(&store);
        let crashes = crashes_during(&storage, || work(store));
        assert!(crashes.len() > 20);
        for (operation, mode, disk) in crashes {
            let case = format!("work {number}, operation {operation}, {mode:?}");
            let view = options().open_storage_read_only(Arc::new(disk.clone())).unwrap();
            assert_eq!(answers(&view), before, "{case}: a reader");
            let store = small(&disk);
            assert_eq!(answers(&store), before, "{case}: a writer");
            assert_eq!(checkpoint_findings(&store), Vec::<String>::new(), "{case}");
            store.compact().unwrap();
            assert_eq!((answers(&store), states(&disk).len()), (before, 1), "{case}: compacted");
        }
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_no_error_of_the_upkeep() {
    let storage = FaultStorage::new(3);
    {
        let store = small(&storage);
        fill(&create(&store, "a"), 4, 1);
        store.close().unwrap();
    }
    for name in states(&storage) {
        storage.remove(&name).unwrap();
    }
    let image = storage.crash(CrashMode::KeepUnsynced, 0);
    let mut unwritten = 0;
    for after in 0.. {
        let disk = image.crashed_copy(CrashMode::KeepUnsynced, 0);
        let store = small(&disk);
        let before = answers(&store);
        let operation = disk.counters().operations + after;
        disk.set_plan(FaultPlan::new().fail(operation, Fault::Io));
        // The handles are gone: what is idle is written.
        let result = store.maintain();
        let is_over = disk.counters().operations <= operation;
        disk.set_plan(FaultPlan::new());
        assert!(result.is_ok() || states(&disk).is_empty(), "operation {after}: {result:?}");
        unwritten += u32::from(result.is_ok() && states(&disk).is_empty());
        assert_eq!(answers(&store), before, "operation {after}");
        store.compact().unwrap();
        assert_eq!(states(&disk).len(), 1, "operation {after}, tried again");
        drop(store);
        assert_eq!(answers(&small(&disk)), before, "operation {after}, opened again");
        if is_over {
            break;
        }
    }
    assert!(unwritten > 2, "{unwritten}");
}

/// Seventy events that no surface shows.
fn chat(session: &Session) {
    let chunk = r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"word"}}"#;
    let batch = vec![Draft::new("assistant/chunk", chunk); 70];
    session.append(&batch, AppendOptions::default()).unwrap().wait().unwrap();
}

#[test]
fn a_checkpoint_names_the_header_in_force_also_one_that_a_fork_inherited_or_that_is_not_written_yet() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let parent = create(&store, "parent");
    fill(&parent, 3, 1);
    let child = store.fork("parent", None, "child").unwrap();
    chat(&child);
    let header = parent.request_header().unwrap().expect("a header");
    let in_child = |store: &Store| store.session("child").unwrap().with_state(Clone::clone).unwrap();
    let live = in_child(&store);
    assert_eq!(live.request_header().header(), Some(&header));
    drop((parent, child));
    assert_eq!(in_child(&store), live, "from the state that waits in memory");
    // The header in force is queued when the last handle goes.
    let session = store.session("child").unwrap();
    let newer = r#"{"header":{"config":{"provider":"p","model":"m"},"system":"newer"},"reason":"change"}"#;
    let queued = AppendOptions { durability: Durability::Buffered, ..AppendOptions::default() };
    let completion = session.append(&[Draft::new("request/header", newer)], queued).unwrap();
    let live = session.with_state(Clone::clone).unwrap();
    drop((session, completion));
    assert_eq!(in_child(&store), live);
    store.compact().unwrap();
    store.close().unwrap();
    assert!(folds_without_its_events(&storage, "child"));
    let stored: usize = states(&storage).iter().map(|name| bytes(&storage, name).len()).sum();
    assert!(stored < 1_000, "no header is stored again: {stored}");
    assert_eq!(in_child(&reader(&storage)), live);
    assert_eq!(findings(&reader(&storage)), Vec::<String>::new());
    for name in states(&storage) {
        storage.remove(&name).unwrap();
    }
    assert_eq!(in_child(&reader(&storage)), live);
}

#[test]
fn a_header_that_cannot_be_read_is_told_and_no_other_one_is_given() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let session = create(&store, "s");
    fill(&session, 12, 1);
    let header = session.request_header().unwrap();
    drop(session);
    store.compact().unwrap();
    store.close().unwrap();
    let sealed = names(&storage).into_iter().find(|name| name.ends_with(".sealed")).expect("a sealed file");
    let sound = bytes(&storage, &sealed);
    let (mut given, mut told) = (0, 0);
    for at in (64..sound.len() - 16).step_by(16) {
        let changed: Vec<u8> = sound[at..at + 16].iter().map(|byte| byte ^ 0x55).collect();
        overwrite(&storage, &sealed, at, &changed);
        let opened = options().open_storage_read_only(Arc::new(storage.clone()));
        let read = |store: Store| {
            let session = store.session("s")?;
            // Where the file's row of the session is lost, no event is known.
            let is_known = session.next_seq()? > Seq::new(0);
            Ok((session.request_header()?, is_known))
        };
        match opened.and_then(read) {
            Ok((found, is_known)) => {
                assert_eq!(found, header.clone().filter(|_| is_known), "damage at {at}");
                given += u32::from(is_known);
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound), "{at}: {error}");
                told += 1;
            }
        }
        overwrite(&storage, &sealed, at, &sound[at..at + 16]);
    }
    assert!(given > 0 && told > 0, "{given} given, {told} told");
}
