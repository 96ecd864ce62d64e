//! What all handles of one store share.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::catalog::Catalog;
use super::options::{Clock, StoreOptions};
use super::store::Store;
use crate::event::Vocabulary;
use crate::format::parse_segment_name;
use crate::format::sealed::{SealedDecoder, SealedName};
use crate::ids::Position;
use crate::log::{Frame, Log, LogOptions, LogReader, Refreshed};
use crate::storage::{self, Storage};
use crate::{Error, ErrorKind, Result};

/// The shared part of a [`Store`].
pub(super) struct Inner {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) log: Access,
    pub(super) catalog: Mutex<Catalog>,
    /// The catalog's vocabulary, for appends that must not wait for the catalog.
    pub(super) vocabulary: RwLock<Arc<Vocabulary>>,
    clock: Clock,
    /// Decoders of sealed files that nobody uses now.
    decoders: Mutex<Vec<SealedDecoder>>,
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
        let (reader, catalog) = LogReader::open_fresh(&storage)?;
        Ok(Self::assemble(storage, Access::Read(Box::new(RwLock::new(reader))), catalog, options.clock))
    }

    fn assemble(storage: Arc<dyn Storage>, log: Access, catalog: Catalog, clock: Clock) -> Self {
        let vocabulary = RwLock::new(Arc::new(catalog.vocabulary.clone()));
        let inner = Inner {
            storage,
            log,
            catalog: Mutex::new(catalog),
            vocabulary,
            clock,
            decoders: Mutex::default(),
        };
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

    /// Lends a decoder for sealed files.
    pub(super) fn with_decoder<T>(&self, decode: impl FnOnce(&mut SealedDecoder) -> Result<T>) -> Result<T> {
        let idle = self.decoders.lock().pop();
        let mut decoder = idle.map_or_else(SealedDecoder::new, Ok)?;
        let result = decode(&mut decoder);
        self.decoders.lock().push(decoder);
        result
    }

    /// Takes in what a writer in another process has changed. A store open for writing is always up to date.
    pub(super) fn refresh(&self) -> Result<()> {
        let Access::Read(reader) = &self.log else { return Ok(()) };
        let mut catalog = self.catalog.lock();
        let mut reader = reader.write();
        if reader.refresh(&mut *catalog)? == Refreshed::Superseded {
            let (opened, afresh) = LogReader::open_fresh(&self.storage)?;
            *reader = opened;
            catalog.replace(afresh);
        }
        *self.vocabulary.write() = Arc::new(catalog.vocabulary.clone());
        Ok(())
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

    /// Number of segment files, sealed ones included.
    pub(super) fn segments(&self) -> Result<u64> {
        Ok(self.data_files()?.len() as u64)
    }

    /// Bytes of the segment files.
    pub(super) fn stored_bytes(&self) -> Result<u64> {
        let bytes = |name: String| self.storage.open(&name, storage::Access::Read)?.len();
        let sum = self.data_files()?.into_iter().map(bytes).sum::<io::Result<u64>>();
        sum.map_err(|source| Error::io("measure store", source))
    }

    fn data_files(&self) -> Result<Vec<String>> {
        let mut names = self.storage.list().map_err(|source| Error::io("list store", source))?;
        names.retain(|name| parse_segment_name(name).is_some() || SealedName::parse(name).is_some());
        Ok(names)
    }

    pub(super) fn vocabulary(&self) -> Arc<Vocabulary> {
        Arc::clone(&self.vocabulary.read())
    }

    pub(super) fn now_ms(&self) -> i64 {
        (self.clock)()
    }
}
