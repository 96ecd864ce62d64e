//! The only module that touches the operating system: one flat directory of named files behind one trait.
//!
//! Everything above speaks [`Storage`] and [`StorageFile`], so that the same code runs over a real
//! directory, over memory, and over a storage that fails and crashes on demand.

mod disk;
pub mod fault;
mod memory;
mod mmap;
mod ram;
mod staging;
mod temporary;
#[cfg(test)]
mod tests;

pub use disk::DiskStorage;
pub(crate) use disk::{create_private_directory, sync_directory};
pub use memory::MemoryStorage;
pub use mmap::Mapping;
pub(crate) use staging::StagedDirectory;
pub(crate) use temporary::Temporary;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A flat directory of files that one store lives in.
///
/// A name has no separator (`/`, `\`, `:`, NUL), is not `.` or `..`, and is not one of the lock's own names
/// (`LOCK`, `LOCK.pid`, in any case); another is `InvalidInput`.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Names of all data files, sorted; neither directories nor the lock's own files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file; `NotFound` if there is none.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>>;

    /// Creates a file that must not exist yet (`AlreadyExists`), for reading and writing. Its name is durable
    /// only after [`sync_directory`](Self::sync_directory).
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Gives a file a new name that must not be taken (`AlreadyExists`). Durable only after
    /// [`sync_directory`](Self::sync_directory).
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; `NotFound` if there is none. Durable only after [`sync_directory`](Self::sync_directory).
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives the file `from` of another directory the name `to` here as well, without copying it; both names must be plain,
    /// and `to` free (`AlreadyExists`). `Unsupported` where there is no such thing. Durable only after
    /// [`sync_directory`](Self::sync_directory).
    fn link(&self, directory: &Path, from: &str, to: &str) -> io::Result<()> {
        let _ = (directory, from, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes created, renamed and removed names durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Takes the writer's lock without waiting. `Ok(Err(holder))` when somebody has it.
    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>>;

    /// The directory, where there is one, for messages.
    fn path(&self) -> Option<&Path>;
}

/// One open file. All reads and writes are positional, so handles are shared between threads.
#[expect(clippy::len_without_is_empty, reason = "a length that has to be asked of the system is no property")]
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

    /// All of the file as memory. `None` where there is no such thing, and for any file but a sealed one that was
    /// opened for reading: what may still be cut must not be mapped.
    fn map(&self) -> io::Result<Option<Mapping>> {
        Ok(None)
    }
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading; to write, resize or sync is `PermissionDenied`, as not every system could sync.
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

/// How the names of files end that never change once they have their name.
const SEALED_SUFFIX: &str = ".sealed";
const LOCK_NAME: &str = "LOCK";
const LOCK_PID_NAME: &str = "LOCK.pid";

/// Refuses a name that could leave the directory, or that belongs to the lock.
fn check_name(name: &str) -> io::Result<()> {
    let plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0']);
    let reserved = [LOCK_NAME, LOCK_PID_NAME].iter().any(|own| own.eq_ignore_ascii_case(name));
    if plain && !reserved {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a name for a data file")))
}

impl Access {
    fn check_write(self) -> io::Result<()> {
        match self {
            Self::Write => Ok(()),
            Self::Read => Err(io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading")),
        }
    }
}
