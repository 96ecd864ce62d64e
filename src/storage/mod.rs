//! The only module that touches the operating system: one flat directory of named files behind one trait.
//!
//! Everything above speaks [`Storage`] and [`StorageFile`], so that the same code runs over a real
//! directory, over memory, and over a storage that fails and crashes on demand.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A flat directory of files that one store lives in. Names have no separators.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file; `NotFound` if there is none.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>>;

    /// Creates a file that must not exist yet, for reading and writing. Its name is durable only after
    /// [`sync_directory`](Self::sync_directory).
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Gives a file a new name that must not be taken. Durable only after [`sync_directory`](Self::sync_directory).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Durable only after [`sync_directory`](Self::sync_directory).
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes created, renamed and removed names durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Takes the writer's lock without waiting. `Ok(Err(holder))` when somebody has it.
    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>>;

    /// The directory, where there is one, for messages.
    fn path(&self) -> Option<&Path>;
}

/// One open file. All reads and writes are positional, so handles are shared between threads.
pub trait StorageFile: fmt::Debug + Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Reads up to `buf.len()` bytes at `offset`; 0 only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `buf` at `offset`; on an error any part of it may have been written.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the file's bytes and its length durable (not its name).
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts or grows the file; grown space reads as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For reading and writing.
    Write,
}

/// The writer's lock, released when dropped.
pub trait StorageLock: fmt::Debug + Send + Sync {}

/// Who holds the writer's lock, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// Process id written by the holder, if it could be read.
    pub pid: Option<u32>,
}
