//! What all handles of one store share.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::catalog::Catalog;
use super::checkpoints::Checkpoints;
use super::options::{Clock, StoreOptions};
use super::session::WrittenBase;
use super::store::Store;
use super::upkeep::{Handle, Upkeep};
use crate::event::Vocabulary;
use crate::format::parse_segment_name;
use crate::format::sealed::{SealedDecoder, SealedName};
use crate::ids::Position;
use crate::log::{CheckpointFiles, FrameReader, Log, LogFile, LogOptions, LogReader, PatchBase, Refreshed};
use crate::storage::{self, Storage};
use crate::{Error, ErrorKind, Result, observe};

/// The shared part of a [`Store`].
pub(super) struct Inner {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) log: Access,
    pub(super) catalog: Mutex<Catalog>,
    /// The catalog's vocabulary, for appends that must not wait for the catalog.
    pub(super) vocabulary: RwLock<Arc<Vocabulary>>,
    /// What reads need of the log, so that they wait for no refresh.
    view: RwLock<View>,
    /// [`Catalog::nameless_damage`] at the opening. While this process writes, nothing is added to it.
    pub(super) nameless_damage: u64,
    pub(super) checkpoints: Checkpoints,
    /// Absent unless the store is to seal by itself.
    pub(super) upkeep: Option<Arc<Upkeep>>,
    is_closed: AtomicBool,
    clock: Clock,
    /// Decoders of sealed files that nobody uses now.
    decoders: Mutex<Vec<SealedDecoder>>,
}

/// How this process uses the log.
pub(super) enum Access {
    Write(Log),
    Read(Box<Mutex<Follower>>),
}

/// A reader that follows a writer in another process.
pub(super) struct Follower {
    reader: LogReader,
    /// A refresh failed on its way: the catalog holds a part of what was new, and is to be built again.
    is_void: bool,
}

struct View {
    frames: FrameReader,
    /// How far the log was durable when it was looked at last.
    synced_through: Position,
}

impl View {
    fn of(reader: &LogReader) -> Self {
        Self { frames: reader.frames(), synced_through: reader.synced_through() }
    }
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
        catalog.settle();
        let view = View { frames: log.frames(), synced_through: log.synced_through() };
        let checkpoints = CheckpointFiles::new(Arc::clone(&storage), log.store_id());
        let seals = options.background && options.sealing;
        let upkeep = seals.then(Arc::<Upkeep>::default);
        let access = Access::Write(log);
        let store = Self::assemble(storage, access, view, catalog, checkpoints, upkeep, options.clock);
        store.inner.seal_as_segments_end();
        Ok(store)
    }

    pub(super) fn open_for_reading(storage: Arc<dyn Storage>, options: StoreOptions) -> Result<Self> {
        let (reader, mut catalog): (_, Catalog) = LogReader::open_fresh(&storage)?;
        catalog.settle();
        let view = View::of(&reader);
        let checkpoints = CheckpointFiles::new(Arc::clone(&storage), reader.store_id());
        let access = Access::Read(Box::new(Mutex::new(Follower { reader, is_void: false })));
        Ok(Self::assemble(storage, access, view, catalog, checkpoints, None, options.clock))
    }

    fn assemble(
        storage: Arc<dyn Storage>,
        log: Access,
        view: View,
        catalog: Catalog,
        checkpoints: CheckpointFiles,
        upkeep: Option<Arc<Upkeep>>,
        clock: Clock,
    ) -> Self {
        observe::opened(catalog.by_id.len(), catalog.frames, catalog.damage.len());
        let vocabulary = RwLock::new(Arc::new(catalog.vocabulary.clone()));
        let inner = Inner {
            storage,
            log,
            nameless_damage: catalog.nameless_damage,
            catalog: Mutex::new(catalog),
            vocabulary,
            view: RwLock::new(view),
            checkpoints: Checkpoints::new(checkpoints),
            upkeep,
            is_closed: AtomicBool::new(false),
            clock,
            decoders: Mutex::default(),
        };
        Self { inner: Handle::new(inner), cancel: None }
    }
}

impl Inner {
    /// The log, if this process may write.
    pub(super) fn writer(&self) -> Result<&Log> {
        match &self.log {
            Access::Write(_) if self.is_closed.load(Ordering::Acquire) => {
                Err(Error::new(ErrorKind::Closed, "write to store: it was closed; reopen it"))
            }
            Access::Write(log) => Ok(log),
            Access::Read(_) => {
                let message = "write to store: it was opened for reading only; open it for writing";
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// Ends the upkeep that the store runs by itself.
    pub(super) fn stop_upkeep(&self) {
        if let Some(upkeep) = &self.upkeep {
            upkeep.stop();
        }
    }

    /// Closes the log; whoever wants to write from here on is refused.
    pub(super) fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        match &self.log {
            Access::Write(log) => log.close(),
            Access::Read(_) => Ok(()),
        }
    }

    /// Reads frames of places that were looked up before, or, with a session's state locked, are looked up next.
    pub(super) fn frames(&self) -> FrameReader {
        self.view.read().frames.clone()
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
        let Access::Read(follower) = &self.log else { return Ok(()) };
        let mut catalog = self.catalog.lock();
        let mut follower = follower.lock();
        let was_void = std::mem::replace(&mut follower.is_void, true);
        if was_void || follower.reader.refresh(&mut *catalog)? == Refreshed::Superseded {
            let (opened, mut afresh): (_, Catalog) = LogReader::open_fresh(&self.storage)?;
            afresh.settle();
            follower.reader = opened;
            catalog.replace(afresh);
        } else {
            catalog.settle();
        }
        follower.is_void = false;
        self.checkpoints.forget_listing();
        *self.vocabulary.write() = Arc::new(catalog.vocabulary.clone());
        // Only now: who still holds old places has the old reader, and new places that it does not know are looked up again.
        *self.view.write() = View::of(&follower.reader);
        Ok(())
    }

    /// What a batch that is about to be queued may hold patches of; read again, so that no session holds it in memory.
    pub(super) fn patch_base(&self, base: Option<WrittenBase>) -> Option<PatchBase> {
        // Behind another segment it would be of no use.
        let base = base.filter(|base| base.at.segment == self.synced_through().segment)?;
        // What cannot be read is none.
        let payload = self.frames().read(base.at).ok()?.payload;
        (base.patches_bytes <= payload.len() as u64).then_some(PatchBase { at: base.at, payload })
    }

    /// How far the log is known to be durable.
    pub(super) fn synced_through(&self) -> Position {
        match &self.log {
            Access::Write(log) => log.synced_through(),
            Access::Read(_) => self.view.read().synced_through,
        }
    }

    /// Path of a file of the store, or of its directory if `name` is empty.
    pub(super) fn file_path(&self, name: &str) -> PathBuf {
        let directory = self.storage.path().unwrap_or(Path::new(""));
        if name.is_empty() { directory.to_owned() } else { directory.join(name) }
    }

    /// The segment files that count, in order.
    pub(super) fn files(&self) -> Result<Vec<LogFile>> {
        crate::log::files(&self.storage)
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
