//! Damage: it costs the events whose bytes it took, it is named, and it hides nothing else.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sessionlog::event::{SessionHeader, SessionState};
use sessionlog::format::sealed::SealedName;
use sessionlog::format::{
    CreatePayload, EventType, FrameHeader, FrameKind, Record, RecordWriter, SharedPrefix, SurfaceOp,
    encode_vocabulary, segment_file_name,
};
use sessionlog::log::{Batch, FrameDraft, Log, LogOptions};
use sessionlog::storage::fault::{Fault, FaultPlan, FaultStorage};
use sessionlog::storage::{Access, LockHolder, MemoryStorage, Storage, StorageFile, StorageLock};
use sessionlog::{
    AppendOptions, Draft, Durability, ErrorKind, Position, SegmentId, Seq, SessionCondition, SessionKey,
    Store, VerifyOptions,
};

use crate::support::{Frames, frames, lines, open, options};

fn todo(n: u64) -> Draft<'static> {
    Draft::new("todo/write", format!(r#"{{"todos":[{n}]}}"#))
}

fn append(store: &Store, id: &str, n: u64) -> sessionlog::Result<()> {
    let session = store.session(id).or_else(|_| store.create_session(SessionHeader::new(id, 5)))?;
    session.append(&[todo(n)], AppendOptions::default())?.wait()
}

fn ids(store: &Store) -> BTreeSet<String> {
    store.list().unwrap().into_iter().map(|info| info.header.id.clone()).collect()
}

fn finding_sessions(store: &Store) -> Vec<Option<String>> {
    let report = store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap();
    report.findings.into_iter().map(|finding| finding.session).collect()
}

fn copy(storage: &MemoryStorage) -> MemoryStorage {
    let copied = MemoryStorage::new();
    for name in storage.list().unwrap() {
        let from = storage.open(&name, Access::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(from.len().unwrap()).unwrap()];
        assert_eq!(from.read_at(&mut bytes, 0).unwrap(), bytes.len());
        copied.create_new(&name).unwrap().write_all_at(&bytes, 0).unwrap();
    }
    copied
}

/// A copy of the store with one byte changed.
fn damaged(storage: &MemoryStorage, at: Position) -> MemoryStorage {
    let copied = copy(storage);
    let file = copied.open(&segment_file_name(at.segment), Access::Write).unwrap();
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, at.offset).unwrap(), 1);
    file.write_all_at(&[byte[0] ^ 0x10], at.offset).unwrap();
    copied
}

#[test]
fn every_session_is_listed_whatever_byte_of_its_first_batch_is_damaged() {
    let storage = MemoryStorage::new();
    {
        let store = open(Arc::new(storage.clone()));
        append(&store, "parent", 0).unwrap();
        append(&store, "short", 0).unwrap();
        append(&store, "parent", 1).unwrap();
        let child = store.fork("parent", None, "child").unwrap();
        child.append(&[todo(3)], AppendOptions::default()).unwrap().wait().unwrap();
    }
    let frames = frames(&storage);
    let mut keys = BTreeSet::new();
    let firsts = frames.iter().filter(|(_, header)| header.begins && keys.insert(header.subject));
    for (start, first) in firsts {
        let batch = frames.iter().filter(|(at, header)| {
            header.subject == first.subject
                && at >= start
                && at.offset < start.offset + first.frame_bytes() + 1
        });
        let end = batch.map(|(at, header)| at.offset + header.frame_bytes()).max().unwrap();
        for offset in start.offset..end {
            let storage = damaged(&storage, Position { offset, ..*start });
            let store = open(Arc::new(storage));
            let mut expected: BTreeSet<_> = ["parent", "short", "child"].map(str::to_owned).into();
            if first.subject == 2 {
                expected.remove("short");
                expected.insert("?key-2".to_owned());
            }
            assert_eq!(ids(&store), expected, "key {} offset {offset}", first.subject);
            assert!(!finding_sessions(&store).is_empty());
        }
    }
    assert_eq!(keys, [1, 2, 3].into());
}

#[test]
fn a_session_without_its_name_is_read_and_not_appended_to() {
    let storage = MemoryStorage::new();
    {
        let store = open(Arc::new(storage.clone()));
        append(&store, "s", 0).unwrap();
    }
    let (create, _) = frames(&storage)[0];
    let store = open(Arc::new(damaged(&storage, create)));
    let session = store.session("?key-1").unwrap();
    assert_eq!(store.list().unwrap()[0].condition, SessionCondition::Damaged);
    assert_eq!(session.event(Seq::new(0)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(session.append(&[todo(1)], AppendOptions::default()).unwrap_err().kind(), ErrorKind::Corrupt);
    append(&store, "s", 7).unwrap();
    assert_eq!(lines(&store.session("s").unwrap()).len(), 1, "another session under the same id");
    store.remove("?key-1").unwrap();
    assert_eq!(ids(&store), ["s".to_owned()].into());
}

/// A log with frames that a sound store would not have.
struct Forged(Log);

impl Forged {
    fn new(storage: &MemoryStorage) -> Self {
        let log_options = LogOptions { create: Some([7; 16]), background: false, ..LogOptions::default() };
        Self(Log::open(Arc::new(storage.clone()), log_options, &mut Frames::default()).unwrap())
    }

    fn frame(&self, kind: FrameKind, subject: u64, count: u32, payload: &[u8]) -> &Self {
        self.draft(FrameDraft { kind, subject, tag: 0, count }, payload)
    }

    fn draft(&self, draft: FrameDraft, payload: &[u8]) -> &Self {
        let mut batch = Batch::new();
        batch.push(draft, payload).unwrap();
        self.0.enqueue(batch, Durability::Synced).wait().unwrap();
        self
    }

    fn create(&self, key: u64, id: &str, owner: Option<u64>) -> &Self {
        let mut header = String::new();
        SessionHeader::new(id, 5).write_json(&mut header);
        let shared = owner.map(|owner| SharedPrefix {
            owner: SessionKey::new(owner),
            end: Seq::new(1),
            logical_bytes: i64::MAX.unsigned_abs(),
            chain: 0,
            last_time: 0,
            title: None,
        });
        let mut payload = Vec::new();
        CreatePayload { shared, header: &header }.encode(&mut payload);
        self.frame(FrameKind::CREATE, key, 0, &payload)
    }

    fn event(&self, key: u64, event_type: EventType<'_>) -> &Self {
        self.event_at(key, 0, event_type)
    }

    fn event_at(&self, key: u64, seq: u64, event_type: EventType<'_>) -> &Self {
        let (surface_op, sources) = (SurfaceOp::None, None::<&[Seq]>);
        let record =
            Record { event_type, time_ms: 1, ignorable: false, surface_op, sources, data: r#"{"a":1}"# };
        let mut payload = Vec::new();
        RecordWriter::new().push(&mut payload, &record);
        self.draft(FrameDraft { kind: FrameKind::EVENTS, subject: key, tag: seq, count: 1 }, &payload)
    }
}

#[test]
fn nothing_that_a_frame_says_keeps_a_store_from_opening() {
    let storage = MemoryStorage::new();
    let log = Forged::new(&storage);
    log.create(1, "good", None).event(1, EventType::Name("acme/metric"));
    log.frame(FrameKind::CREATE, 2, 0, b"no create payload");
    log.create(3, "orphan", Some(2));
    log.create(4, "younger", Some(4));
    log.create(5, "newer", None).event(5, EventType::Code(60_000));
    log.create(6, "garbled", None).frame(FrameKind::EVENTS, 6, 3, b"no records");
    log.frame(FrameKind::VOCABULARY, 0, 0, &[200, 200]);
    let mut names = Vec::new();
    encode_vocabulary(&mut names, ["turn/start", "acme/later"]);
    log.frame(FrameKind::VOCABULARY, 0, 0, &names);
    log.0.close().unwrap();
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let store = open(Arc::new(storage));
    let expected = ["good", "?key-2", "orphan", "?key-4", "newer", "garbled"].map(str::to_owned);
    assert_eq!(ids(&store), expected.clone().into());
    assert_eq!(ids(&reader), expected.into());
    assert!(store.vocabulary().contains("acme/later"));
    let read = |id: &str| store.session(id).unwrap().event(Seq::new(0)).map(|_| ()).map_err(|e| e.kind());
    assert_eq!(read("good"), Ok(()));
    assert_eq!(read("orphan"), Err(ErrorKind::Corrupt));
    assert_eq!(read("newer"), Err(ErrorKind::Unsupported));
    assert_eq!(read("garbled"), Err(ErrorKind::Corrupt));
    let good = store.session("good").unwrap();
    assert_eq!(
        good.with_state(|state| state.next_seq()).unwrap(),
        Seq::new(1),
        "stored, so it was registered"
    );
    let found: BTreeSet<_> = finding_sessions(&store).into_iter().flatten().collect();
    for id in ["?key-2", "?key-4", "orphan", "newer", "garbled"] {
        assert!(found.contains(id), "{id} is not in {found:?}");
    }
    assert!(!found.contains("good"));
    append(&store, "good", 1).unwrap();
}

#[test]
fn seqs_that_damage_may_have_taken_are_not_given_out_again() {
    let storage = MemoryStorage::new();
    {
        let store = open(Arc::new(storage.clone()));
        for (id, n) in [("s", 0), ("s", 1), ("t", 0), ("t", 1), ("s", 2), ("t", 2)] {
            append(&store, id, n).unwrap();
        }
    }
    let all = frames(&storage);
    let is_last = |header: &FrameHeader| header.kind == FrameKind::EVENTS && header.tag == 2;
    let (last_of_s, _) = *all.iter().find(|(_, header)| header.subject == 1 && is_last(header)).unwrap();
    let store = open(Arc::new(damaged(&storage, last_of_s)));
    let refused = append(&store, "s", 9).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert_eq!(store.session("s").unwrap().next_seq().unwrap(), Seq::new(2), "what is left can be read");
    append(&store, "t", 3).unwrap();
    append(&store, "new", 0).unwrap();
    let fork = store.fork("s", None, "fork").unwrap();
    fork.append(&[todo(9)], AppendOptions::default()).unwrap().wait().unwrap();
    assert!(!finding_sessions(&store).is_empty());
    // A group frame stands before each batch, and holds no events.
    let group = Position { offset: last_of_s.offset - 40, ..last_of_s };
    let store = open(Arc::new(damaged(&storage, group)));
    append(&store, "s", 3).unwrap();
    assert_eq!(lines(&store.session("s").unwrap()).len(), 4);
}

#[test]
fn a_reader_that_starts_again_keeps_handles_and_finds_what_is_new() {
    let storage = FaultStorage::new(1);
    let reopen = || options().open_storage(Arc::new(storage.clone())).unwrap();
    let store = reopen();
    append(&store, "s", 0).unwrap();
    append(&store, "gone", 0).unwrap();
    let buffered = AppendOptions { expected: None, durability: Durability::Buffered };
    let session = store.session("s").unwrap();
    session.append(&[todo(1)], buffered).unwrap().wait().unwrap();
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let (seen, gone) = (reader.session("s").unwrap(), reader.session("gone").unwrap());
    assert_eq!(seen.next_seq().unwrap(), Seq::new(2));
    assert_eq!(seen.durable_seq(), Seq::new(1), "shown, and not durable yet");
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Full));
    session.append(&[todo(2)], AppendOptions::default()).unwrap().wait().unwrap_err();
    drop((session, store));
    let store = reopen();
    store.fork("s", None, "child").unwrap();
    store.remove("gone").unwrap();
    reader.refresh().unwrap();
    assert_eq!(lines(&seen), lines(&store.session("s").unwrap()));
    assert_eq!(seen.durable_seq(), Seq::new(2));
    assert_eq!(lines(&reader.session("child").unwrap()), lines(&store.session("child").unwrap()));
    assert_eq!(gone.next_seq().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(ids(&reader), ids(&store));
}

#[test]
fn a_refresh_that_failed_is_made_up_for_by_the_next() {
    let mut failed = 0;
    for reads in 1..12 {
        let storage = MemoryStorage::new();
        let store = open(Arc::new(storage.clone()));
        append(&store, "s", 0).unwrap();
        let flaky = Flaky { storage, reads_left: Arc::new(AtomicU64::new(u64::MAX)) };
        let reader = options().open_storage_read_only(Arc::new(flaky.clone())).unwrap();
        let large = Draft::new("todo/write", format!("\"{}\"", "x".repeat(200_000)));
        let session = store.session("s").unwrap();
        for _ in 0..4 {
            session.append(std::slice::from_ref(&large), AppendOptions::default()).unwrap().wait().unwrap();
        }
        flaky.reads_left.store(reads, Ordering::Relaxed);
        failed += u32::from(reader.refresh().is_err());
        flaky.reads_left.store(u64::MAX, Ordering::Relaxed);
        reader.refresh().unwrap();
        assert_eq!(lines(&reader.session("s").unwrap()), lines(&session));
    }
    assert!(failed > 3, "{failed} refreshes failed");
}

/// A storage whose reads fail after so many.
#[derive(Debug, Clone)]
struct Flaky {
    storage: MemoryStorage,
    reads_left: Arc<AtomicU64>,
}

impl Storage for Flaky {
    fn list(&self) -> io::Result<Vec<String>> {
        self.storage.list()
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        let file = self.storage.open(name, access)?;
        Ok(Arc::new(FlakyFile { file, reads_left: Arc::clone(&self.reads_left) }))
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.storage.create_new(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.storage.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.storage.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.storage.sync_directory()
    }

    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>> {
        self.storage.try_lock()
    }

    fn path(&self) -> Option<&Path> {
        None
    }
}

#[derive(Debug)]
struct FlakyFile {
    file: Arc<dyn StorageFile>,
    reads_left: Arc<AtomicU64>,
}

impl StorageFile for FlakyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.reads_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.reads_left.store(0, Ordering::Relaxed);
            return Err(io::Error::other("no more reads"));
        }
        self.file.read_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

/// Closes the forged log and has what it wrote sealed by itself.
fn seal(log: Forged, storage: &MemoryStorage) {
    log.0.close().unwrap();
    let store = open(Arc::new(storage.clone()));
    store.maintain().unwrap();
    store.close().unwrap();
}

fn sealed_ranges(storage: &MemoryStorage) -> Vec<(u64, u64)> {
    let names = storage.list().unwrap();
    let sealed = names.iter().filter_map(|name| SealedName::parse(name));
    sealed.map(|name| (name.first.get(), name.last.get())).collect()
}

#[test]
fn sealed_files_with_a_gap_between_them_are_compacted_apart() {
    let storage = MemoryStorage::new();
    let metric = EventType::Name("acme/metric");
    let log = Forged::new(&storage);
    log.create(1, "gap", None).event(1, metric).create(2, "whole", None).event(2, metric);
    seal(log, &storage);
    for (segment, gap) in [(2, 5), (3, 6)] {
        let log = Forged::new(&storage);
        log.event_at(1, gap, metric).event_at(2, segment - 1, metric);
        seal(log, &storage);
    }
    // The last segment is sealed once a later one is begun.
    assert_eq!(sealed_ranges(&storage), [(1, 1), (2, 2)]);
    let store = open(Arc::new(storage.clone()));
    let seqs = |store: &Store, id: &str| -> Vec<u64> {
        let session = store.session(id).unwrap();
        (0..8).filter(|seq| session.event(Seq::new(*seq)).is_ok()).collect()
    };
    let told = finding_sessions(&store);
    assert!(told.contains(&Some("gap".to_owned())) && !told.contains(&Some("whole".to_owned())), "{told:?}");
    store.compact().unwrap();
    assert_eq!(sealed_ranges(&storage), [(1, 1), (2, 3)]);
    let reopened = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    for store in [&store, &reopened] {
        assert_eq!((seqs(store, "gap"), seqs(store, "whole")), (vec![0, 5, 6], vec![0, 1, 2]));
        assert_eq!(finding_sessions(store), told, "the gap is told as before");
    }
    // What made the gap and is gone takes it along.
    store.remove("gap").unwrap();
    store.compact().unwrap();
    assert_eq!(sealed_ranges(&storage).len(), 1);
    assert_eq!(seqs(&store, "whole"), [0, 1, 2]);
}

#[test]
fn a_compaction_goes_on_behind_a_segment_that_stays() {
    let storage = MemoryStorage::new();
    for n in 0..4 {
        let store = open(Arc::new(storage.clone()));
        append(&store, if n == 1 { "other" } else { "s" }, n).unwrap();
        store.close().unwrap();
    }
    let (at, frame) = *frames(&storage).iter().rfind(|(at, _)| at.segment.get() == 2).unwrap();
    let storage = damaged(&storage, Position { offset: at.offset + frame.frame_bytes() - 9, ..at });
    let store = open(Arc::new(storage.clone()));
    store.compact().unwrap();
    assert_eq!(sealed_ranges(&storage)[0], (1, 1));
    assert_eq!(sealed_ranges(&storage)[1].0, 3);
    assert!(storage.list().unwrap().contains(&segment_file_name(SegmentId::new(2))));
    assert!(!storage.list().unwrap().contains(&segment_file_name(SegmentId::new(4))));
    assert_eq!(lines(&store.session("s").unwrap()).len(), 3);
}

#[test]
fn of_two_sessions_with_one_id_the_later_is_shown_and_none_is_lost() {
    let storage = MemoryStorage::new();
    let metric = EventType::Name("acme/metric");
    let log = Forged::new(&storage);
    log.create(1, "s", None).event(1, metric);
    log.create(2, "s", None).event(2, metric).event_at(2, 1, metric);
    log.0.close().unwrap();
    let events = |store: &Store| {
        let listed: Vec<_> =
            store.list().unwrap().iter().map(|info| (info.header.id.clone(), info.events)).collect();
        assert!(
            listed.iter().all(|(id, events)| store.session(id).unwrap().next_seq().unwrap().get() == *events)
        );
        listed
    };
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let store = open(Arc::new(storage.clone()));
    for store in [&reader, &store] {
        assert_eq!(events(store), [("s".to_owned(), 2)]);
    }
    let told = vec![Some("s".to_owned())];
    assert_eq!(finding_sessions(&store), told);
    store.compact().unwrap();
    reader.refresh().unwrap();
    for store in [&reader, &store, &open_again(&storage)] {
        assert_eq!((events(store), finding_sessions(store)), (vec![("s".to_owned(), 2)], told.clone()));
    }
    // The other has the id again once nothing of the later one is left; its key stays on record while it is the highest.
    store.remove("s").unwrap();
    assert_eq!(events(&store), []);
    append(&store, "t", 0).unwrap();
    store.compact().unwrap();
    store.close().unwrap();
    let mut left = events(&open_again(&storage));
    left.sort();
    assert_eq!(left, [("s".to_owned(), 1), ("t".to_owned(), 1)]);
    assert_eq!(finding_sessions(&open_again(&storage)), []);
}

fn open_again(storage: &MemoryStorage) -> Store {
    options().open_storage_read_only(Arc::new(storage.clone())).unwrap()
}
