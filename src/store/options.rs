//! How a store is opened, and what it takes from its host: clock, entropy, upkeep, vocabulary.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::store::Store;
use crate::storage::{DiskStorage, Storage};
use crate::{Error, ErrorKind, Result, limits};

/// Milliseconds since the Unix epoch, for events whose time the host does not fix.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// How to open a store; see the setters for what can be chosen. Checked by [`open`](Self::open).
#[derive(Clone)]
#[must_use = "options do nothing before `open`"]
pub struct StoreOptions {
    pub(super) create: bool,
    pub(super) segment_bytes_max: u64,
    pub(super) background: bool,
    pub(super) sealing: bool,
    pub(super) register: Vec<String>,
    pub(super) clock: Clock,
    pub(super) store_id: Option<[u8; 16]>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StoreOptions {
    /// The defaults that the setters state.
    pub fn new() -> Self {
        Self {
            create: true,
            segment_bytes_max: limits::SEGMENT_BYTES_DEFAULT,
            background: true,
            sealing: true,
            register: Vec::new(),
            clock: Arc::new(system_time_ms),
            store_id: None,
        }
    }

    /// Whether a store that does not exist is created. Default: yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Size at which a segment is closed and the next one begun, in bytes. Default:
    /// [`SEGMENT_BYTES_DEFAULT`](limits::SEGMENT_BYTES_DEFAULT); from [`SEGMENT_BYTES_MIN`](limits::SEGMENT_BYTES_MIN) to
    /// [`SEGMENT_BYTES_MAX`](limits::SEGMENT_BYTES_MAX).
    pub fn segment_bytes_max(mut self, bytes: u64) -> Self {
        self.segment_bytes_max = bytes;
        self
    }

    /// Whether a thread of the store drives awaited and dropped completions and the upkeep. Default: yes. Without it
    /// polling drives inline, and [`Store::maintain`] is the host's to call.
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Whether a thread of the store calls [`Store::maintain`] each time that a segment has ended, or a session in use has run
    /// far ahead of its checkpoints. Default: yes; never without [`background`](Self::background), nor in a store opened for
    /// reading. It is started when it is first needed. What it fails at is in [`Store::metrics`] until the host calls [`Store::maintain`], which returns it.
    pub fn sealing(mut self, sealing: bool) -> Self {
        self.sealing = sealing;
        self
    }

    /// Registers an event type of the host; may be called repeatedly. A registered type is log-only.
    pub fn register_type(mut self, name: impl Into<String>) -> Self {
        self.register.push(name.into());
        self
    }

    /// Where event times come from. Default: the system clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The id of a store that is created. Default: random.
    pub fn store_id(mut self, id: [u8; 16]) -> Self {
        self.store_id = Some(id);
        self
    }

    /// Opens the store in `dir` for writing.
    ///
    /// # Errors
    ///
    /// As [`Store::open`]; [`ErrorKind::Invalid`] for options out of their limits.
    pub fn open(self, dir: impl AsRef<Path>) -> Result<Store> {
        let dir = dir.as_ref();
        let storage = DiskStorage::open(dir, self.create).map_err(|source| open_error(dir, source))?;
        self.open_storage(Arc::new(storage))
    }

    /// Opens the store in `dir` for reading, beside whoever writes to it.
    ///
    /// # Errors
    ///
    /// As [`Store::open_read_only`].
    pub fn open_read_only(self, dir: impl AsRef<Path>) -> Result<Store> {
        let dir = dir.as_ref();
        let storage = DiskStorage::open_read_only(dir).map_err(|source| open_error(dir, source))?;
        self.open_storage_read_only(Arc::new(storage))
    }

    /// Opens a store over any storage for writing.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_storage(self, storage: Arc<dyn Storage>) -> Result<Store> {
        let register = self.register.clone();
        let store = Store::open_for_writing(storage, self)?;
        register.iter().try_for_each(|name| store.register_type(name))?;
        Ok(store)
    }

    /// Opens a store over any storage for reading.
    ///
    /// # Errors
    ///
    /// As [`open_read_only`](Self::open_read_only).
    pub fn open_storage_read_only(self, storage: Arc<dyn Storage>) -> Result<Store> {
        Store::open_for_reading(storage, self)
    }

    /// The id for a new store: the given one, or 16 random bytes as a version-4 UUID.
    pub(super) fn new_store_id(&self) -> [u8; 16] {
        self.store_id.unwrap_or_else(random_uuid)
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("create", &self.create)
            .field("segment_bytes_max", &self.segment_bytes_max)
            .field("background", &self.background)
            .field("sealing", &self.sealing)
            .field("register", &self.register)
            .finish_non_exhaustive()
    }
}

fn open_error(dir: &Path, source: std::io::Error) -> Error {
    let error = match source.kind() {
        std::io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "open store: there is none"),
        _ => Error::io("open store", source),
    };
    error.with_path(dir)
}

fn system_time_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(limits::SAFE_INTEGER_MAX)
}

/// The keys that the standard library seeds its hash maps with come from the operating system.
fn random_uuid() -> [u8; 16] {
    let word = |n: u8| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u8(n);
        hasher.finish().to_le_bytes()
    };
    let mut id = [0; 16];
    id[..8].copy_from_slice(&word(0));
    id[8..].copy_from_slice(&word(1));
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}
