//! Sealing and compaction: the same answers from other bytes.

use std::sync::{Arc, Mutex};

use sessionlog::event::SessionHeader;
use sessionlog::storage::fault::{CrashMode, Fault, FaultPlan, FaultStorage};
use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, ErrorKind, Seq, Session, Store, VerifyOptions};

use crate::support::{lines, open, options};

pub(crate) fn small<S: Storage + Clone + 'static>(storage: &S) -> Store {
    options().segment_bytes_max(64 << 10).open_storage(Arc::new(storage.clone())).unwrap()
}

/// Events of many kinds and sizes, a few segments of them.
pub(crate) fn fill(session: &Session, turns: u64, salt: u64) {
    for turn in 1..=turns {
        let text = format!("turn {turn} of {salt} ").repeat(usize::try_from(turn % 7 * 40 + 200).unwrap());
        let user = format!(
            r#"{{"id":"u{salt}-{turn}","role":"user","content":[{{"type":"text","text":"{text}"}}],"source":{{"kind":"user"}}}}"#
        );
        let header = format!(
            r#"{{"header":{{"config":{{"provider":"p","model":"m"}},"system":"{} {}"}},"reason":"{}"}}"#,
            "You are careful. ".repeat(300),
            turn / 3,
            if turn == 1 { "initial" } else { "change" }
        );
        let mut batch = vec![
            Draft::new("turn/start", format!(r#"{{"turn":{turn}}}"#)),
            Draft::new("user/message", user).on_surface(),
            Draft::new("request/header", header),
        ];
        for n in 0..20 {
            let chunk = format!(
                r#"{{"turn":{turn},"step":1,"chunk":{{"type":"text-delta","index":0,"text":"word{n} "}}}}"#
            );
            batch.push(Draft::new("assistant/chunk", chunk));
        }
        batch.push(Draft::new("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#)));
        session.append(&batch, AppendOptions::default()).unwrap().wait().unwrap();
    }
}

pub(crate) fn create(store: &Store, id: &str) -> Session {
    // As a header reads once it was stored.
    let header = SessionHeader { delegation_depth: Some(0), ..SessionHeader::new(id, 1) };
    store.create_session(header).unwrap()
}

/// A digest of all that can be asked of a store; the text itself where it must be looked at.
pub(crate) fn answers(store: &Store) -> u128 {
    let mut digest = sessionlog::event::json::Digester::default();
    digest.bytes(answer_text(store).as_bytes());
    digest.finish()
}

fn answer_text(store: &Store) -> String {
    let mut all = String::new();
    for info in store.list().unwrap() {
        let session = store.session(&info.header.id).unwrap();
        let state = session.with_state(Clone::clone).unwrap();
        let request = session.request_at(Seq::new(info.events / 2)).unwrap();
        let mut headers = session.headers().unwrap();
        // What they take in the files is what sealing changes.
        headers.iter_mut().for_each(|header| header.stored_bytes = None);
        all += &format!("{info:?}\n{:?}\n{state:?}\n{request:?}\n{:?}\n", headers, lines(&session));
    }
    all
}

pub(crate) fn names(storage: &impl Storage) -> Vec<String> {
    storage.list().unwrap()
}

fn sealed_names(storage: &impl Storage) -> Vec<String> {
    names(storage).into_iter().filter(|name| name.ends_with(".sealed")).collect()
}

/// What verify says is wrong: file and offset.
pub(crate) fn findings(store: &Store) -> Vec<String> {
    let options = VerifyOptions { deep: true, strict: false };
    let report = store.verify(options, &mut |_, _| ()).unwrap();
    report.findings.iter().map(|finding| format!("{finding:?}")).collect()
}

#[test]
fn sealed_segments_give_the_same_answers_and_take_less_space() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let (a, b) = (create(&store, "a"), create(&store, "b"));
    for round in 0..6 {
        fill(&a, 5, round);
        fill(&b, 3, 100 + round);
    }
    let before = answers(&store);
    let raw_bytes: u64 = sizes(&storage);
    assert!(names(&storage).len() > 3, "several segments: {:?}", names(&storage));
    store.maintain().unwrap();
    assert!(names(&storage).iter().any(|name| name.ends_with(".sealed")), "{:?}", names(&storage));
    assert_eq!(answers(&store), before);
    fill(&a, 2, 9);
    let after_more = answers(&store);
    let compacted = store.compact().unwrap();
    assert!(compacted.bytes_after * 4 < raw_bytes, "{compacted:?} of {raw_bytes}");
    assert_eq!(answers(&store), after_more);
    assert_eq!(
        store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap().findings,
        []
    );
    drop((a, b, store));
    let store = small(&storage);
    assert_eq!(answers(&store), after_more);
    fill(&store.session("b").unwrap(), 2, 77);
    let last = answers(&store);
    store.compact().unwrap();
    assert_eq!(answers(&store), last);
    assert_eq!(names(&storage).iter().filter(|name| name.ends_with(".sealed")).count(), 1);
}

fn sizes(storage: &MemoryStorage) -> u64 {
    let size = |name: &String| storage.open(name, sessionlog::storage::Access::Read).unwrap().len().unwrap();
    names(storage).iter().map(size).sum()
}

#[test]
fn removed_sessions_give_their_space_back_and_forks_keep_what_they_share() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let (gone, parent) = (create(&store, "gone"), create(&store, "parent"));
    fill(&gone, 20, 1);
    fill(&parent, 20, 2);
    let child = store.fork("parent", Some(Seq::new(239)), "child").unwrap();
    fill(&child, 1, 3);
    let shared = lines(&child);
    let full = store.compact().unwrap().bytes_after;
    store.remove("gone").unwrap();
    store.remove("parent").unwrap();
    let less = store.compact().unwrap().bytes_after;
    assert!(less < full, "{less} of {full}");
    assert_eq!(lines(&child), shared);
    drop((gone, parent, child, store));
    let store = small(&storage);
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(lines(&store.session("child").unwrap()), shared);
    for id in ["gone", "parent"] {
        assert_eq!(store.session(id).unwrap_err().kind(), ErrorKind::NotFound);
    }
    let again = create(&store, "gone");
    fill(&again, 1, 4);
    assert_eq!(
        again.next_seq().unwrap(),
        Seq::new(24),
        "a new session under an old id has nothing of the old one"
    );
}

/// The fork has the highest key, so its create frame, which names its owner, outlives a compaction.
#[test]
fn a_parent_that_was_removed_with_its_last_fork_is_no_damage() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let parent = create(&store, "parent");
    fill(&parent, 1, 1);
    let child = store.fork("parent", None, "child").unwrap();
    store.remove("parent").unwrap();
    store.remove("child").unwrap();
    store.compact().unwrap();
    drop((parent, child, store));
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let store = small(&storage);
    for store in [reader, store] {
        assert!(store.list().unwrap().is_empty());
        assert_eq!(store.stats().unwrap().sessions, 0);
        let report = store.verify(VerifyOptions::default(), &mut |_, _| ()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

#[test]
fn readers_and_handles_go_on_while_files_are_rewritten() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let session = create(&store, "s");
    fill(&session, 12, 1);
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let seen = reader.session("s").unwrap();
    let first = lines(&seen);
    let mut halfway = seen.events(Seq::new(0)..Seq::new(u64::MAX)).unwrap();
    let begun: Vec<_> = halfway.by_ref().take(30).map(|event| event.unwrap().seq.get()).collect();
    store.maintain().unwrap();
    fill(&session, 12, 2);
    store.compact().unwrap();
    assert_eq!(lines(&seen), first, "a reader that did not refresh still reads what it knew");
    let rest: Vec<_> = halfway.map(|event| event.unwrap().seq.get()).collect();
    assert_eq!([begun, rest].concat(), (0..first.len() as u64).collect::<Vec<_>>());
    reader.refresh().unwrap();
    assert_eq!(lines(&seen), lines(&session));
    assert_eq!(answers(&reader), answers(&store));
}

#[test]
fn a_reader_that_lags_behind_a_compaction_sees_nothing_that_was_removed() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    fill(&create(&store, "gone"), 6, 1);
    fill(&create(&store, "kept"), 6, 2);
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let seen = reader.session("kept").unwrap();
    fill(&store.session("kept").unwrap(), 6, 3);
    store.remove("gone").unwrap();
    store.compact().unwrap();
    reader.refresh().unwrap();
    assert_eq!(answers(&reader), answers(&store));
    assert_eq!(reader.session("gone").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(lines(&seen), lines(&store.session("kept").unwrap()));
}

#[test]
fn a_store_without_its_raw_segments_opens_from_sealed_files_alone() {
    let storage = MemoryStorage::new();
    {
        let store = small(&storage);
        fill(&create(&store, "s"), 12, 1);
        store.compact().unwrap();
    }
    let store = open(Arc::new(storage));
    assert_eq!(store.session("s").unwrap().with_state(|state| state.last_time()).unwrap(), Some(1_000));
    assert_eq!(store.list().unwrap()[0].events, 12 * 24);
}

/// Several segments with two sessions, a fork, and a removed session in between.
fn with_removed_session(storage: &FaultStorage) -> Store {
    let store = small(storage);
    let (a, gone, b) = (create(&store, "a"), create(&store, "gone"), create(&store, "b"));
    fill(&a, 6, 1);
    fill(&gone, 6, 2);
    fill(&b, 6, 3);
    fill(&store.fork("b", Some(Seq::new(47)), "c").unwrap(), 1, 4);
    store.remove("gone").unwrap();
    drop((a, gone, b, store));
    // As headers read once they were stored.
    let store = small(storage);
    fill(&store.session("a").unwrap(), 6, 5);
    store
}

#[test]
fn a_crash_at_any_operation_of_sealing_loses_nothing_and_brings_nothing_back() {
    type Work = fn(&Store);
    let works: [Work; 3] = [
        |store| store.maintain().unwrap(),
        |store| assert!(store.compact().unwrap().segments > 0),
        |store| {
            store.maintain().unwrap();
            store.remove("a").unwrap();
            store.compact().unwrap();
        },
    ];
    for (number, work) in works.into_iter().enumerate() {
        let storage = FaultStorage::new(7);
        let store = with_removed_session(&storage);
        store.flush().unwrap();
        let before = answers(&store);
        let mut after = before;
        let crashes = crashes_during(&storage, || {
            work(&store);
            after = answers(&store);
        });
        assert!(crashes.len() > 40);
        for (operation, mode, disk) in crashes {
            let case = format!("work {number}, operation {operation}, {mode:?}");
            let reader = options().open_storage_read_only(Arc::new(disk.clone())).unwrap();
            let found = answers(&reader);
            assert!([before, after].contains(&found), "{case}: a reader");
            let store = small(&disk);
            assert_eq!(answers(&store), found, "{case}: a writer");
            // What recovery found is durable, whatever it deleted.
            let disk = disk.crash(CrashMode::DropUnsynced, 0);
            let store = small(&disk);
            assert_eq!(answers(&store), found, "{case}: after another crash");
            store.maintain().unwrap();
            store.compact().unwrap();
            assert_eq!(answers(&store), found, "{case}: compacted");
            assert_eq!(sealed_names(&disk).len(), 1, "{case}");
            assert_eq!(store.session("gone").unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
}

/// What a crash leaves in each mode after each operation of `work`, with the operation and the mode.
pub(crate) fn crashes_during(
    storage: &FaultStorage,
    work: impl FnOnce(),
) -> Vec<(u64, CrashMode, FaultStorage)> {
    let crashes = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&crashes);
    storage.on_change(move |point| {
        let operation = point.operation();
        for mode in CrashMode::ALL {
            collected.lock().unwrap().push((operation, mode, point.crashed_copy(mode, operation)));
        }
    });
    work();
    storage.on_change(|_| ());
    std::mem::take(&mut *crashes.lock().unwrap())
}

/// Works a store while its disk fails at every operation in turn; answers how often that was an error.
fn fail_everywhere(image: &FaultStorage, check: &dyn Fn(&FaultStorage, Store, u128, &str)) -> u32 {
    let mut errors = 0;
    for after in 0.. {
        let disk = image.crashed_copy(CrashMode::KeepUnsynced, 0);
        let store = small(&disk);
        let before = answers(&store);
        let operation = disk.counters().operations + after;
        disk.set_plan(FaultPlan::new().fail(operation, Fault::Io));
        errors += u32::from(store.maintain().is_err());
        if disk.counters().operations <= operation {
            break;
        }
        check(&disk, store, before, &format!("operation {after}"));
    }
    errors
}

#[test]
fn sealing_that_fails_at_any_operation_changes_nothing_and_can_be_tried_again() {
    let storage = FaultStorage::new(7);
    with_removed_session(&storage).close().unwrap();
    let image = storage.crash(CrashMode::KeepUnsynced, 0);
    let errors = fail_everywhere(&image, &|disk, store, before, case| {
        assert_eq!(answers(&store), before, "{case}");
        store.maintain().unwrap();
        store.compact().unwrap();
        assert_eq!(answers(&store), before, "{case}, tried again");
        drop(store);
        assert_eq!(answers(&small(disk)), before, "{case}, opened again");
    });
    assert!(errors > 10, "{errors}");
    fail_everywhere(&image, &|disk, store, before, case| {
        drop(store);
        assert_eq!(answers(&small(disk)), before, "{case}, opened by the next process");
        for seed in 0..8 {
            let left = disk.crashed_copy(CrashMode::TornPages, seed);
            assert_eq!(answers(&small(&left)), before, "{case}, and a crash");
        }
    });
}

/// Flips a byte of a file, `from_end` bytes before its end.
fn damage(storage: &MemoryStorage, name: &str, from_end: u64) {
    let file = storage.open(name, Access::Write).unwrap();
    let offset = file.len().unwrap() - from_end;
    let mut byte = [0];
    file.read_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

pub(crate) fn copy(from: &MemoryStorage, to: &MemoryStorage, names: &[String]) {
    for name in names {
        let source = from.open(name, Access::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(source.len().unwrap()).unwrap()];
        source.read_at(&mut bytes, 0).unwrap();
        to.create_new(name).unwrap().write_all_at(&bytes, 0).unwrap();
    }
}

#[test]
fn a_damaged_sealed_file_hides_no_other_file_and_its_segments_count_while_they_are_there() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    fill(&create(&store, "s"), 12, 1);
    store.close().unwrap();
    let raw = MemoryStorage::new();
    copy(&storage, &raw, &names(&storage));

    let store = small(&storage);
    let before = answers(&store);
    store.maintain().unwrap();
    let sealed = sealed_names(&storage);
    fill(&create(&store, "later"), 12, 2);
    store.close().unwrap();
    for from_end in [8, 64] {
        // All that it supersedes is there: nothing is lost, and it is sealed anew under another name.
        let both = MemoryStorage::new();
        copy(&raw, &both, &names(&raw));
        copy(&storage, &both, &sealed);
        damage(&both, &sealed[0], from_end);
        assert_eq!(answers(&options().open_storage_read_only(Arc::new(both.clone())).unwrap()), before);
        let store = small(&both);
        assert_eq!(answers(&store), before);
        store.compact().unwrap();
        drop(store);
        let store = small(&both);
        assert_eq!((answers(&store), findings(&store)), (before, vec![]));
        assert!(!names(&both).contains(&sealed[0]), "superseded and deleted");
    }
    // It alone is there: its events are lost, and nothing else.
    damage(&storage, &sealed[0], 8);
    for _ in 0..2 {
        let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
        let store = small(&storage);
        for view in [&reader, &store] {
            let listed: Vec<_> =
                view.list().unwrap().into_iter().map(|info| info.header.id.clone()).collect();
            // Each segment names the sessions that go on in it.
            assert_eq!(listed, ["later", "s"]);
            assert_eq!(lines(&view.session("later").unwrap()).len(), 12 * 24);
            let found = findings(view);
            assert!(found.iter().any(|finding| finding.contains(&sealed[0])), "{found:?}");
        }
        store.maintain().unwrap();
        store.compact().unwrap();
        assert!(names(&storage).contains(&sealed[0]), "damage stays for whoever can repair it");
    }
    damage(&storage, &sealed[0], 8);
    let store = small(&storage);
    assert_eq!(store.list().unwrap().len(), 2, "once it is repaired all is there");
    assert_eq!(lines(&store.session("s").unwrap()).len(), 12 * 24);
}

#[test]
fn a_closed_store_is_not_sealed_any_more() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    fill(&create(&store, "s"), 12, 1);
    let handle = store.clone();
    store.close().unwrap();
    let before = names(&storage);
    assert_eq!(handle.compact().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(handle.maintain().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(names(&storage), before);
}
