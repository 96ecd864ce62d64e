//! What all handles of one store share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::catalog::Catalog;
use super::options::{Clock, StoreOptions};
use super::store::Store;
use crate::event::Vocabulary;
use crate::format::parse_segment_name;
use crate::ids::Position;
use crate::log::{Frame, Log, LogOptions, LogReader};
use crate::storage::Storage;
use crate::{Error, ErrorKind, Result};

/// The shared part of a [`Store`].
pub(super) struct Inner {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) log: Access,
    pub(super) catalog: Mutex<Catalog>,
    /// The catalog's vocabulary, for appends that must not wait for the catalog.
    pub(super) vocabulary: RwLock<Arc<Vocabulary>>,
    clock: Clock,
}

/// How this process uses the log.
pub(super) enum Access {
    Write(Log),
    Read(Box<RwLock<LogReader>>),
}

impl Store {
    pub(super) fn open_for_writing(storage: Arc<dyn Storage>, options: StoreOptions) -> Result<Self> {
        let mut catalog = Catalog::default();
        let log_options = LogOptions {
            create: options.create.then(|| options.new_store_id()),
            segment_bytes_max: options.segment_bytes_max,
            background: options.background,
            ..LogOptions::default()
        };
        let log = Log::open(Arc::clone(&storage), log_options, &mut catalog)?;
        Ok(Self::assemble(storage, Access::Write(log), catalog, options.clock))
    }

    pub(super) fn open_for_reading(storage: Arc<dyn Storage>, options: StoreOptions) -> Result<Self> {
        let mut catalog = Catalog::default();
        let reader = LogReader::open(Arc::clone(&storage), &mut catalog)?;
        Ok(Self::assemble(storage, Access::Read(Box::new(RwLock::new(reader))), catalog, options.clock))
    }

    fn assemble(storage: Arc<dyn Storage>, log: Access, catalog: Catalog, clock: Clock) -> Self {
        let vocabulary = RwLock::new(Arc::new(catalog.vocabulary.clone()));
        let inner = Inner { storage, log, catalog: Mutex::new(catalog), vocabulary, clock };
        Self { inner: Arc::new(inner), cancel: None }
    }
}

impl Inner {
    /// The log, if this process may write.
    pub(super) fn writer(&self) -> Result<&Log> {
        match &self.log {
            Access::Write(log) => Ok(log),
            Access::Read(_) => {
                let message = "write to store: it was opened for reading only; open it for writing";
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    pub(super) fn read_frame(&self, at: Position) -> Result<Frame> {
        match &self.log {
            Access::Write(log) => log.read(at),
            Access::Read(reader) => reader.read().read(at),
        }
    }

    /// How far the log is durable. A reader sees nothing that it would have to tell apart.
    pub(super) fn synced_through(&self) -> Position {
        match &self.log {
            Access::Write(log) => log.synced_through(),
            Access::Read(reader) => reader.read().position(),
        }
    }

    /// Path of a file of the store, or of its directory if `name` is empty.
    pub(super) fn file_path(&self, name: &str) -> PathBuf {
        let directory = self.storage.path().unwrap_or(Path::new(""));
        if name.is_empty() { directory.to_owned() } else { directory.join(name) }
    }

    /// Number of segment files.
    pub(super) fn segments(&self) -> Result<u64> {
        let names = self.storage.list().map_err(|source| Error::io("list store", source))?;
        Ok(names.iter().filter(|name| parse_segment_name(name).is_some()).count() as u64)
    }

    pub(super) fn vocabulary(&self) -> Arc<Vocabulary> {
        Arc::clone(&self.vocabulary.read())
    }

    pub(super) fn now_ms(&self) -> i64 {
        (self.clock)()
    }
}
