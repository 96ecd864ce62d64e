//! A store's directory in memory, for stores that need not outlive their process, and for tests.
//!
//! Owns the sharing and the lock; bytes and names are [`ram`](super::ram)'s. A sync does nothing: there is
//! no crash that these files could survive.

use super::ram::{Contents, Directory};
use super::{Access, LockHolder, Storage, StorageFile, StorageLock};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A directory in memory. Clones share it; it is gone when the last of them and of its files is dropped.
#[derive(Debug, Clone, Default)]
pub struct MemoryStorage {
    shared: Arc<Mutex<Shared>>,
}

impl MemoryStorage {
    /// An empty directory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Storage for MemoryStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.shared.lock().directory.names())
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        let contents = Arc::clone(self.shared.lock().directory.get(name)?);
        Ok(Arc::new(MemoryFile { contents, access }))
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let contents = Arc::default();
        self.shared.lock().directory.create(name, Arc::clone(&contents))?;
        Ok(Arc::new(MemoryFile { contents, access: Access::Write }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.shared.lock().directory.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.shared.lock().directory.remove(name).map(drop)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>> {
        if std::mem::replace(&mut self.shared.lock().locked, true) {
            return Ok(Err(LockHolder { pid: Some(std::process::id()) }));
        }
        Ok(Ok(Box::new(MemoryLock { shared: Arc::clone(&self.shared) })))
    }

    fn path(&self) -> Option<&Path> {
        None
    }
}

#[derive(Debug, Default)]
struct Shared {
    directory: Directory<Arc<RwLock<Contents>>>,
    locked: bool,
}

#[derive(Debug)]
struct MemoryFile {
    contents: Arc<RwLock<Contents>>,
    access: Access,
}

impl StorageFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.contents.read().len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.contents.read().read_at(buf, offset))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.access.check_write()?;
        self.contents.write().write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.access.check_write()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.access.check_write()?;
        self.contents.write().set_len(len)
    }
}

#[derive(Debug)]
struct MemoryLock {
    shared: Arc<Mutex<Shared>>,
}

impl StorageLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.shared.lock().locked = false;
    }
}
