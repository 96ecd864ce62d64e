//! What all benchmarks share, and tests of the same things with them: one seeded trace of sessions, and a way to measure
//! something beside its limit.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

pub(crate) mod blocks;
pub(crate) mod large;
pub(crate) mod measure;
pub(crate) mod sealed;
pub(crate) mod trace;
pub(crate) mod zipf;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sessionlog::event::SessionHeader;
use sessionlog::storage::MemoryStorage;
use sessionlog::{Session, Store, StoreOptions};

/// The seed of everything.
pub(crate) const SEED: u64 = 7;

/// A new store in memory, without a thread of its own.
pub(crate) fn memory_store() -> Store {
    let options = StoreOptions::new().background(false).store_id([7; 16]);
    options.open_storage(Arc::new(MemoryStorage::new())).expect("a store in memory")
}

/// A new session of a store.
pub(crate) fn create(store: &Store, id: &str) -> Session {
    store.create_session(SessionHeader::new(id, trace::CREATED_AT_MS)).expect("a new session")
}

/// Whether this is no measurement, but a look whether everything runs.
pub(crate) fn is_trial() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

/// A fresh directory on the disk that holds the build, removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// The directory of this name.
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
