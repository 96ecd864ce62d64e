//! A storage that fails and loses power on demand, for tests of whatever stands on [`Storage`].
//!
//! [`FaultStorage`] is a disk behind a page cache that forgets. It counts its operations, fails those that
//! a [`FaultPlan`] names, and answers at any moment what a power loss would leave:
//!
//! ```
//! use sessionlog::storage::{Access, Storage, fault::{CrashMode, FaultStorage}};
//!
//! let storage = FaultStorage::new(1);
//! let file = storage.create_new("log")?;
//! storage.sync_directory()?;
//! file.write_all_at(b"synced", 0)?;
//! file.sync_data()?;
//! file.write_all_at(b" and not", 6)?;
//!
//! let left = storage.crash(CrashMode::DropUnsynced, 2);
//! assert_eq!(left.open("log", Access::Read)?.len()?, 6);
//! assert!(file.len().is_err(), "what was opened before the crash is dead");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! What is lost is drawn from a seed: the same seeds and the same calls give the same outcome. This module
//! must never read a clock, another source of randomness, or the file system.

mod model;
#[cfg(test)]
mod tests;

use super::{Access, LockHolder, Storage, StorageFile, StorageLock};
use model::{FileId, Model, NameChange, Random};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A simulated disk. Clones share it.
///
/// Every call on the storage or on one of its files is one operation, numbered from 0; releasing the lock
/// is none. A call that fails is an operation too, except after a crash.
#[derive(Clone)]
pub struct FaultStorage {
    state: Arc<Mutex<State>>,
}

impl FaultStorage {
    /// An empty disk that nothing goes wrong with yet. The seed decides what a failed sync loses.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_model(Model::default(), seed)
    }

    fn with_model(model: Model, seed: u64) -> Self {
        let state = State {
            model,
            random: Random::new(seed),
            plan: FaultPlan::default(),
            capacity: None,
            counters: Counters::default(),
            hook: None,
            locked: false,
            crashed: false,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Replaces the plan for the operations to come.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.state.lock().plan = plan;
    }

    /// From now on a write that makes a file longer fails with `StorageFull`, and has no effect, if the files that have names would
    /// take more than so many bytes; `None`: there is room for all.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Bytes of the files that have names.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().model.used_bytes()
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// Calls `hook` at the end of each operation that may have changed the disk, failed ones included; thus
    /// one run of a workload can be crashed at every moment that matters. The hook holds up the disk: it
    /// must not call this storage, but for the [`CrashPoint`] that it is given.
    pub fn on_change(&self, hook: impl FnMut(&CrashPoint<'_>) + Send + 'static) {
        self.state.lock().hook = Some(Box::new(hook));
    }

    /// Cuts the power: the disk that is found afterwards, without a plan, lock or hook, its counters at
    /// zero. Every later call on this storage and on what was opened from it is an error.
    #[must_use]
    pub fn crash(&self, mode: CrashMode, seed: u64) -> FaultStorage {
        let mut state = self.state.lock();
        state.crashed = true;
        Self::with_model(state.model.survivor(mode, seed), seed)
    }

    /// The disk that [`crash`](Self::crash) would leave, while this one goes on.
    #[must_use]
    pub fn crashed_copy(&self, mode: CrashMode, seed: u64) -> FaultStorage {
        Self::with_model(self.state.lock().model.survivor(mode, seed), seed)
    }

    /// Runs an operation that cannot change the disk.
    fn look<T>(&self, run: impl FnOnce(&Model) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        state.begin().and_then(fail)?;
        run(&state.model)
    }

    /// Runs an operation that may change the disk, and lets it see to its own fault.
    fn change<T>(&self, run: impl FnOnce(&mut State, Option<Fault>) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        let operation = state.counters.operations;
        let fault = state.begin()?;
        let result = run(&mut state, fault);
        state.call_hook(operation);
        result
    }

    fn change_name(&self, change: NameChange) -> io::Result<()> {
        self.change(|state, fault| {
            fail(fault)?;
            state.model.change_name(change)
        })
    }

    fn file(&self, id: FileId, access: Access) -> Arc<dyn StorageFile> {
        let told = AtomicU64::new(self.state.lock().model.failed_syncs(id));
        Arc::new(FaultFile { storage: self.clone(), id, access, told })
    }
}

impl fmt::Debug for FaultStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("FaultStorage")
            .field("plan", &state.plan)
            .field("counters", &state.counters)
            .field("crashed", &state.crashed)
            .finish_non_exhaustive()
    }
}

impl Storage for FaultStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        self.look(|model| Ok(model.names()))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        let id = self.look(|model| model.find(name))?;
        Ok(self.file(id, access))
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let id = self.change(|state, fault| {
            fail(fault)?;
            state.model.create(name)
        })?;
        Ok(self.file(id, Access::Write))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change_name(NameChange::Rename { from: from.to_owned(), to: to.to_owned() })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change_name(NameChange::Remove { name: name.to_owned() })
    }

    /// A failed one leaves the names as volatile as they were.
    fn sync_directory(&self) -> io::Result<()> {
        self.change(|state, fault| {
            fail(fault)?;
            state.counters.directory_syncs += 1;
            if !state.plan.lying_sync {
                state.model.sync_directory();
            }
            Ok(())
        })
    }

    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>> {
        let mut state = self.state.lock();
        state.begin().and_then(fail)?;
        if std::mem::replace(&mut state.locked, true) {
            return Ok(Err(LockHolder { pid: Some(std::process::id()) }));
        }
        Ok(Ok(Box::new(FaultLock { storage: self.clone() })))
    }

    fn path(&self) -> Option<&Path> {
        None
    }
}

/// What shall go wrong, by operation number. Empty by default.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct FaultPlan {
    faults: BTreeMap<u64, Fault>,
    lying_sync: bool,
}

impl FaultPlan {
    /// A plan in which nothing goes wrong.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fails the operation of this number, counted from 0 over the storage's life. The next one has the
    /// number [`Counters::operations`].
    pub fn fail(mut self, operation: u64, fault: Fault) -> Self {
        self.faults.insert(operation, fault);
        self
    }

    /// Lets every sync of a file or of the directory succeed without an effect. A test of crash safety
    /// that still passes is no test.
    pub fn lying_sync(mut self) -> Self {
        self.lying_sync = true;
        self
    }
}

/// How an operation fails. It has no effect, but for a short write and for a failed
/// [`sync_data`](StorageFile::sync_data).
///
/// A failed sync of a file is the trap that it is on a real system: some of the dirty pages reached the
/// disk, the others are forgotten, and the next sync through the same handle succeeds without them. As on
/// Linux, each other handle that was open by then reports the error at its next sync, once. Until a crash,
/// reads see either the forgotten bytes or what is on the disk; the storage's seed decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device reports an error (`EIO`).
    Io,
    /// The device is full (`StorageFull`).
    Full,
    /// The device is full after half of the bytes. For all but a write the same as [`Full`](Self::Full).
    ShortWrite,
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Self::Io => io::Error::other("injected input/output error"),
            Self::Full | Self::ShortWrite => io::Error::new(ErrorKind::StorageFull, "injected full device"),
        }
    }
}

/// What a power loss does to changes that were not synced. What was synced survives in every mode.
///
/// A change of the directory survives or is lost as a whole, so a rename leaves one of the two names. A
/// file keeps an arbitrary part of its unsynced writes, cut at the multiples of a block; its length may
/// have grown over bytes that did not arrive, which then read as zeros. Blocks and names go through their
/// states in order: one that missed a change misses all later ones, and so does a file that missed a
/// [`set_len`](StorageFile::set_len).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashMode {
    /// All of them are lost.
    DropUnsynced,
    /// None of them is lost, as when only the process is killed.
    KeepUnsynced,
    /// Each may be lost, writes by blocks of 512 bytes.
    TornSectors,
    /// Each may be lost, writes by blocks of 4,096 bytes.
    TornPages,
}

impl CrashMode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::DropUnsynced, Self::KeepUnsynced, Self::TornSectors, Self::TornPages];
}

/// The end of one operation, for a hook of [`FaultStorage::on_change`].
#[derive(Debug)]
pub struct CrashPoint<'a> {
    model: &'a Model,
    operation: u64,
}

impl CrashPoint<'_> {
    /// The number of the operation that just ended.
    #[must_use]
    pub fn operation(&self) -> u64 {
        self.operation
    }

    /// The disk that a power loss at this moment would leave.
    #[must_use]
    pub fn crashed_copy(&self, mode: CrashMode, seed: u64) -> FaultStorage {
        FaultStorage::with_model(self.model.survivor(mode, seed), seed)
    }
}

/// What a [`FaultStorage`] did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations begun, and so the number of the next one.
    pub operations: u64,
    /// Bytes written to files, the half of a short write included.
    pub bytes_written: u64,
    /// Syncs of files that reported success.
    pub file_syncs: u64,
    /// Syncs of the directory that reported success.
    pub directory_syncs: u64,
}

struct State {
    model: Model,
    random: Random,
    plan: FaultPlan,
    capacity: Option<u64>,
    counters: Counters,
    hook: Option<Hook>,
    locked: bool,
    crashed: bool,
}

type Hook = Box<dyn FnMut(&CrashPoint<'_>) + Send>;

impl State {
    fn begin(&mut self) -> io::Result<Option<Fault>> {
        if self.crashed {
            return Err(io::Error::other("the storage has crashed"));
        }
        let fault = self.plan.faults.get(&self.counters.operations).copied();
        self.counters.operations += 1;
        Ok(fault)
    }

    fn call_hook(&mut self, operation: u64) {
        if let Some(hook) = &mut self.hook {
            hook(&CrashPoint { model: &self.model, operation });
        }
    }

    fn write(&mut self, id: FileId, buf: &[u8], offset: u64) -> io::Result<()> {
        let growth = (offset + buf.len() as u64).saturating_sub(self.model.file(id).len());
        if growth > 0 && self.capacity.is_some_and(|capacity| self.model.used_bytes() + growth > capacity) {
            return Err(Fault::Full.error());
        }
        self.model.write(id, buf, offset)?;
        self.counters.bytes_written += buf.len() as u64;
        Ok(())
    }
}

fn fail(fault: Option<Fault>) -> io::Result<()> {
    fault.map_or(Ok(()), |fault| Err(fault.error()))
}

#[derive(Debug)]
struct FaultFile {
    storage: FaultStorage,
    id: FileId,
    access: Access,
    /// How many failed syncs of the file this handle has reported, or is too young to report.
    told: AtomicU64,
}

impl FaultFile {
    fn change(&self, run: impl FnOnce(&mut State, Option<Fault>) -> io::Result<()>) -> io::Result<()> {
        self.storage.change(|state, fault| {
            self.access.check_write()?;
            run(state, fault)
        })
    }
}

impl StorageFile for FaultFile {
    fn len(&self) -> io::Result<u64> {
        self.storage.look(|model| Ok(model.file(self.id).len()))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.storage.look(|model| Ok(model.file(self.id).read_at(buf, offset)))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.change(|state, fault| {
            if fault == Some(Fault::ShortWrite) {
                state.write(self.id, &buf[..buf.len() / 2], offset)?;
            }
            fail(fault)?;
            state.write(self.id, buf, offset)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(|state, fault| {
            if fault.is_some() {
                state.model.fail_sync(self.id, &mut state.random);
            }
            let failed = state.model.failed_syncs(self.id);
            if self.told.swap(failed, Ordering::Relaxed) < failed {
                return Err(fault.unwrap_or(Fault::Io).error());
            }
            state.counters.file_syncs += 1;
            if !state.plan.lying_sync {
                state.model.sync(self.id);
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|state, fault| {
            fail(fault)?;
            state.model.set_len(self.id, len)
        })
    }
}

#[derive(Debug)]
struct FaultLock {
    storage: FaultStorage,
}

impl StorageLock for FaultLock {}

impl Drop for FaultLock {
    fn drop(&mut self) {
        self.storage.state.lock().locked = false;
    }
}
