//! A small directory in memory whose power can be cut, and helpers to fill logs and see what is in them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use super::Durability::{Buffered, Synced};
use super::reserve::RESERVE_NAME;
use super::{Batch, Committed, Damage, Durability, FrameDraft, Log, LogOptions, LogReader, Visitor};
use crate::format::{FrameHeader, FrameKind, segment_file_name};
use crate::ids::{Position, SegmentId};
use crate::limits;
use crate::storage::{Access, LockHolder, Storage, StorageFile, StorageLock};
use crate::{Error, Result};

pub(super) const STORE_ID: [u8; 16] = *b"a store for test";

/// Files by name, with what of them a power cut leaves.
#[derive(Debug, Default)]
pub(super) struct TestStorage {
    files: Mutex<BTreeMap<String, Arc<TestFile>>>,
    durable_names: Mutex<BTreeMap<String, Arc<TestFile>>>,
    locked: Arc<AtomicBool>,
    changes: Arc<Changes>,
    /// Names that the next listings leave out, or show though they are gone; one for each listing.
    stale: Mutex<Vec<String>>,
}

/// Counts the operations that change something, and fails them from a chosen one on.
#[derive(Debug)]
struct Changes {
    made: AtomicU64,
    failing_from: AtomicU64,
    panicking_at: AtomicU64,
}

#[derive(Debug)]
struct TestFile {
    bytes: Mutex<Vec<u8>>,
    durable: Mutex<Vec<u8>>,
    changes: Arc<Changes>,
}

impl TestStorage {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn with_files(files: impl Iterator<Item = (String, Vec<u8>)>) -> Arc<Self> {
        let storage = Self::new();
        for (name, bytes) in files {
            storage.put(&name, bytes);
        }
        storage
    }

    /// What another process finds after this one was killed.
    pub(super) fn after_kill(&self) -> Arc<Self> {
        Self::with_files(
            self.files.lock().iter().map(|(name, file)| (name.clone(), file.bytes.lock().clone())),
        )
    }

    /// What is left after the power failed.
    pub(super) fn after_power_cut(&self) -> Arc<Self> {
        let names = self.durable_names.lock();
        Self::with_files(names.iter().map(|(name, file)| (name.clone(), file.durable.lock().clone())))
    }

    /// What is left if of the unsynced sectors only those reached the disk for which `landed` says so.
    pub(super) fn after_torn_power_cut(&self, mut landed: impl FnMut() -> bool) -> Arc<Self> {
        let names = self.durable_names.lock();
        Self::with_files(names.iter().map(|(name, file)| {
            let (mut torn, written) = (file.durable.lock().clone(), file.bytes.lock());
            torn.resize(written.len().max(torn.len()), 0);
            for (old, new) in torn.chunks_mut(512).zip(written.chunks(512)) {
                if landed() {
                    old[..new.len()].copy_from_slice(new);
                }
            }
            (name.clone(), torn)
        }))
    }

    pub(super) fn put(&self, name: &str, bytes: Vec<u8>) {
        let file = TestFile {
            durable: Mutex::new(bytes.clone()),
            bytes: Mutex::new(bytes),
            changes: Arc::clone(&self.changes),
        };
        let file = Arc::new(file);
        self.files.lock().insert(name.to_owned(), Arc::clone(&file));
        self.durable_names.lock().insert(name.to_owned(), file);
    }

    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        self.files.lock()[name].bytes.lock().clone()
    }

    /// The files, but for the space that is kept beside them.
    pub(super) fn names(&self) -> Vec<String> {
        self.files.lock().keys().filter(|name| *name != RESERVE_NAME).cloned().collect()
    }

    /// Lets the next listing show `name` if there is no such file, and leave it out if there is.
    pub(super) fn list_stale(&self, name: &str) {
        self.stale.lock().push(name.to_owned());
    }

    pub(super) fn changes_made(&self) -> u64 {
        self.changes.made.load(SeqCst)
    }

    /// The change after `count` more panics.
    pub(super) fn panic_after(&self, count: u64) {
        self.changes.panicking_at.store(self.changes_made() + count, SeqCst);
    }

    /// The change after `count` more, and all that follow, fail.
    pub(super) fn fail_after(&self, count: u64) {
        self.changes.failing_from.store(self.changes_made() + count, SeqCst);
    }
}

impl Default for Changes {
    fn default() -> Self {
        let [failing_from, panicking_at] = [(); 2].map(|()| AtomicU64::new(u64::MAX));
        Self { made: AtomicU64::new(0), failing_from, panicking_at }
    }
}

impl Changes {
    fn next(&self) -> io::Result<()> {
        let number = self.made.fetch_add(1, SeqCst);
        assert_ne!(number, self.panicking_at.load(SeqCst), "injected");
        if number >= self.failing_from.load(SeqCst) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "injected"));
        }
        Ok(())
    }
}

impl Storage for TestStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = self.files.lock().keys().cloned().collect::<Vec<_>>();
        if let Some(stale) = self.stale.lock().pop() {
            match names.iter().position(|name| *name == stale) {
                Some(at) => drop(names.remove(at)),
                None => names.push(stale),
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str, _: Access) -> io::Result<Arc<dyn StorageFile>> {
        match self.files.lock().get(name) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn StorageFile>),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.changes.next()?;
        let file = TestFile {
            bytes: Mutex::default(),
            durable: Mutex::default(),
            changes: Arc::clone(&self.changes),
        };
        let file = Arc::new(file);
        let taken = self.files.lock().insert(name.to_owned(), Arc::clone(&file));
        assert!(taken.is_none(), "{name} exists");
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.changes.next()?;
        let mut files = self.files.lock();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        assert!(files.insert(to.to_owned(), file).is_none(), "{to} exists");
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.changes.next()?;
        self.files.lock().remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.changes.next()?;
        *self.durable_names.lock() = self.files.lock().clone();
        Ok(())
    }

    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>> {
        if self.locked.swap(true, SeqCst) {
            return Ok(Err(LockHolder { pid: Some(77) }));
        }
        Ok(Ok(Box::new(TestLock(Arc::clone(&self.locked)))))
    }

    fn path(&self) -> Option<&Path> {
        None
    }
}

impl StorageFile for TestFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock();
        let from = bytes.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
        let len = from.len().min(buf.len());
        buf[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let failed = self.changes.next();
        // A write that fails has written half.
        let buf = if failed.is_err() { &buf[..buf.len() / 2] } else { buf };
        let mut bytes = self.bytes.lock();
        let from = usize::try_from(offset).unwrap();
        if bytes.len() < from + buf.len() {
            bytes.resize(from + buf.len(), 0);
        }
        bytes[from..from + buf.len()].copy_from_slice(buf);
        failed
    }

    fn sync_data(&self) -> io::Result<()> {
        self.changes.next()?;
        *self.durable.lock() = self.bytes.lock().clone();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changes.next()?;
        self.bytes.lock().resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }
}

#[derive(Debug)]
struct TestLock(Arc<AtomicBool>);

impl StorageLock for TestLock {}

impl Drop for TestLock {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// All that a scan showed. A frame's tag is its number in its log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) frames: Vec<(Position, FrameHeader, Vec<u8>)>,
    pub(super) damages: Vec<Damage>,
    pub(super) foreign: Vec<String>,
}

impl Seen {
    pub(super) fn tags(&self) -> Vec<u64> {
        self.frames.iter().map(|(_, header, _)| header.tag).collect()
    }

    /// Frames are whole batches with the payloads they were written with.
    pub(super) fn check(&self) {
        let mut in_batch = false;
        for (at, header, bytes) in &self.frames {
            assert_eq!(header.begins, !in_batch, "{at}");
            in_batch = !header.commits;
            assert_eq!(*bytes, payload(header.tag), "{at}");
        }
        assert!(!in_batch);
    }
}

impl Visitor for Seen {
    fn frame(&mut self, at: Position, header: &FrameHeader, payload: &[u8]) -> Result<()> {
        self.frames.push((at, *header, payload.to_vec()));
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) {
        self.damages.push(*damage);
    }

    fn foreign_file(&mut self, name: &str) {
        self.foreign.push(name.to_owned());
    }
}

pub(super) fn options() -> LogOptions {
    LogOptions {
        segment_bytes_max: limits::SEGMENT_BYTES_MIN,
        background: false,
        create: Some(STORE_ID),
        clock: || 0,
    }
}

pub(super) fn open(storage: &Arc<TestStorage>) -> (Log, Seen) {
    let mut seen = Seen::default();
    let log = Log::open(dyn_storage(storage), options(), &mut seen).unwrap();
    seen.check();
    (log, seen)
}

pub(super) fn read(storage: &Arc<TestStorage>) -> Seen {
    let mut seen = Seen::default();
    LogReader::open(dyn_storage(storage), &mut seen).unwrap();
    seen.check();
    seen
}

/// A sequence of numbers that look random and are the same for the same seed.
pub(super) fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// The payload of the frame with this number: of a length and content of its own, often not a multiple of 8.
pub(super) fn payload(tag: u64) -> Vec<u8> {
    let len = usize::try_from(tag * 7 % 61).unwrap();
    tag.to_le_bytes().iter().copied().cycle().take(len).collect()
}

/// A batch of frames with these numbers.
pub(super) fn batch(tags: std::ops::Range<u64>) -> Batch {
    let mut batch = Batch::new();
    for tag in tags {
        let draft = FrameDraft { kind: FrameKind::EVENTS, subject: 9, tag, count: 1 };
        batch.push(draft, &payload(tag)).unwrap();
    }
    batch
}

pub(super) fn append(log: &Log, tags: std::ops::Range<u64>, durability: Durability) -> Committed {
    log.enqueue(batch(tags), durability).wait().unwrap()
}

pub(super) fn name(segment: u64) -> String {
    segment_file_name(SegmentId::new(segment))
}

pub(super) fn dyn_storage(storage: &Arc<TestStorage>) -> Arc<dyn Storage> {
    Arc::clone(storage) as Arc<dyn Storage>
}

pub(super) fn open_error(storage: &Arc<TestStorage>, options: LogOptions) -> Error {
    Log::open(dyn_storage(storage), options, &mut Seen::default()).unwrap_err()
}

/// A killed log: batches 0..3, 3..4, 4..6 synced one by one, then 6..8 and 8..9 only buffered.
pub(super) fn killed() -> (Arc<TestStorage>, Vec<Position>) {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let mut ends = Vec::new();
    for (tags, durability) in
        [(0..3, Synced), (3..4, Synced), (4..6, Synced), (6..8, Buffered), (8..9, Buffered)]
    {
        ends.push(append(&log, tags, durability).end);
    }
    (storage.after_kill(), ends)
}

/// A cleanly closed log of one segment with frames 0..9, and where its end frame stands.
pub(super) fn closed() -> (Arc<TestStorage>, u64) {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    for tags in [0..3, 3..4, 4..6, 6..9] {
        append(&log, tags, Synced);
    }
    log.close().unwrap();
    (storage.after_kill(), log.synced_through().offset)
}
