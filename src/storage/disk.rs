//! A store's directory on a real file system.
//!
//! Owns every call into the operating system: positional reads and writes, the lock, the syncs. It must
//! never repeat a failed sync (the kernel may have dropped the pages and would then report success) and
//! never replace a file. Directories are 0700 and files 0600 where the system has such modes.

use super::{
    Access, LOCK_NAME, LOCK_PID_NAME, LockHolder, Mapping, SEALED_SUFFIX, Storage, StorageFile, StorageLock,
    check_name,
};
use parking_lot::Mutex;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of the file system.
///
/// The lock is `File::try_lock` on a file `LOCK` that is never deleted. Its holder's process id lies beside
/// it in `LOCK.pid`, for messages only: a missing, stale or damaged one affects nobody's right to the lock.
#[derive(Debug)]
pub struct DiskStorage {
    dir: PathBuf,
    access: Access,
    /// Held while a name is given, so that a rename and a creation in this process cannot meet at one name.
    naming: Mutex<()>,
    own_name: Mutex<OwnName>,
}

/// How durable the directory's own name is.
#[derive(Debug, Clone, Copy)]
enum OwnName {
    Durable,
    /// Made by this process, or perhaps by one that was killed before it could sync the parent.
    Unsynced {
        created: bool,
    },
    /// A sync of the parent failed; another one would prove nothing.
    Lost,
}

impl DiskStorage {
    /// Opens a directory for reading and writing. With `create` a missing one is made, and its own name
    /// is durable with the first names in it, when [`sync_directory`](Storage::sync_directory) returns; its parent must
    /// exist. Files in it are not touched.
    ///
    /// # Errors
    /// `NotFound` without `create`, `NotADirectory` if the path is something else, and what the system reports.
    pub fn open(dir: impl AsRef<Path>, create: bool) -> io::Result<Self> {
        let dir = std::path::absolute(dir)?;
        let own_name = match create {
            true => OwnName::Unsynced { created: create_directory(&dir)? },
            false => OwnName::Durable,
        };
        Self::existing(dir, Access::Write, own_name)
    }

    /// Opens a directory for reading. Nothing is created, written or locked; whatever would change the
    /// directory is `ReadOnlyFilesystem`.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, and what the system reports.
    pub fn open_read_only(dir: impl AsRef<Path>) -> io::Result<Self> {
        Self::existing(std::path::absolute(dir)?, Access::Read, OwnName::Durable)
    }

    fn existing(dir: PathBuf, access: Access, own_name: OwnName) -> io::Result<Self> {
        if !fs::metadata(&dir)?.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(Self { dir, access, naming: Mutex::new(()), own_name: Mutex::new(own_name) })
    }

    /// Makes the directory's own name durable, unless it is.
    fn sync_own_name(&self) -> io::Result<()> {
        let mut own_name = self.own_name.lock();
        let created = match *own_name {
            OwnName::Durable => return Ok(()),
            OwnName::Lost => {
                return Err(io::Error::other("an earlier sync of the directory's parent failed"));
            }
            OwnName::Unsynced { created } => created,
        };
        *own_name = OwnName::Lost;
        sync_name(&self.dir, created)?;
        *own_name = OwnName::Durable;
        Ok(())
    }

    fn file_path(&self, name: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        Ok(self.dir.join(name))
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.access {
            Access::Write => Ok(()),
            Access::Read => {
                Err(io::Error::new(ErrorKind::ReadOnlyFilesystem, "the directory was opened for reading"))
            }
        }
    }
}

impl Storage for DiskStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let is_file = match entry.file_type() {
                Ok(file_type) => file_type.is_file(),
                Err(error) if error.kind() == ErrorKind::NotFound => false, // removed since it was read
                Err(error) => return Err(error),
            };
            // A name that is not Unicode is none of ours.
            if let (true, Ok(name)) = (is_file, entry.file_name().into_string())
                && check_name(&name).is_ok()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        if access == Access::Write {
            self.check_writable()?;
        }
        let path = self.file_path(name)?;
        let file = OpenOptions::new().read(true).write(access == Access::Write).open(path)?;
        let mappable = access == Access::Read && name.ends_with(SEALED_SUFFIX);
        Ok(Arc::new(DiskFile { file, access, mappable }))
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.check_writable()?;
        let path = self.file_path(name)?;
        let _naming = self.naming.lock();
        let file = private_file().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(DiskFile { file, access: Access::Write, mappable: false }))
    }

    /// Looks, then renames. A hard link would refuse a taken name in one step, but a crash between linking
    /// and unlinking leaves a file under two names, and not every file system has links. The look is safe
    /// because only the process that holds the lock gives names, and this storage gives one at a time.
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        let (from, to) = (self.file_path(from)?, self.file_path(to)?);
        let _naming = self.naming.lock();
        match fs::symlink_metadata(&to) {
            Ok(_) => Err(ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => fs::rename(from, to),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        fs::remove_file(self.file_path(name)?)
    }

    fn link(&self, directory: &Path, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        check_name(from)?;
        let to = self.file_path(to)?;
        let _naming = self.naming.lock();
        fs::hard_link(directory.join(from), to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.check_writable()?;
        // First: what is durable in a directory without a name is lost.
        self.sync_own_name()?;
        sync_directory(&self.dir)
    }

    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>> {
        self.check_writable()?;
        let file = private_file()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.dir.join(LOCK_NAME))?;
        let pid_path = self.dir.join(LOCK_PID_NAME);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Ok(Box::new(DiskLock::new(file, pid_path)))),
                Err(TryLockError::WouldBlock) => return Ok(Err(LockHolder { pid: read_pid(&pid_path) })),
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.dir)
    }
}

#[derive(Debug)]
struct DiskFile {
    file: File,
    access: Access,
    /// A sealed file, opened for reading.
    mappable: bool,
}

impl StorageFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match os::read_at(&self.file, buf, offset) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        self.access.check_write()?;
        while !buf.is_empty() {
            match os::write_at(&self.file, buf, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    buf = &buf[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.access.check_write()?;
        self.file.sync_data()
    }

    fn map(&self) -> io::Result<Option<Mapping>> {
        if self.mappable { Mapping::of_sealed(&self.file).map(Some) } else { Ok(None) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.access.check_write()?;
        self.file.set_len(len)
    }
}

#[derive(Debug)]
struct DiskLock {
    file: File,
    pid_path: PathBuf,
}

impl DiskLock {
    /// Leaves the holder's process id for the next one who asks. A disk too full for it must not keep a
    /// store from being opened, so it may end up missing, but never as another process's.
    fn new(file: File, pid_path: PathBuf) -> Self {
        let _ = fs::remove_file(&pid_path);
        let written = private_file()
            .write(true)
            .create_new(true)
            .open(&pid_path)
            .and_then(|mut pid| pid.write_all(format!("{}\n", std::process::id()).as_bytes()));
        if written.is_err() {
            let _ = fs::remove_file(&pid_path);
        }
        Self { file, pid_path }
    }
}

impl StorageLock for DiskLock {}

impl Drop for DiskLock {
    /// The process id goes while the lock is still held, or it could be the next holder's. Unlocking is
    /// explicit because a child process that is being started may share the open file for a moment.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.pid_path);
        let _ = self.file.unlock();
    }
}

/// The process id in a lock's pid file. One without its line end is still being written.
fn read_pid(path: &Path) -> Option<u32> {
    const PID_LINE_BYTES_MAX: u64 = 16;
    let mut line = String::new();
    File::open(path).ok()?.take(PID_LINE_BYTES_MAX).read_to_string(&mut line).ok()?;
    line.strip_suffix('\n')?.parse().ok()
}

/// Makes a directory that only its owner may look into; `AlreadyExists` if the name is taken.
pub(crate) fn create_private_directory(dir: &Path) -> io::Result<()> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "changed only where directories have modes"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Makes a directory, and answers whether there was none.
fn create_directory(dir: &Path) -> io::Result<bool> {
    match create_private_directory(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a directory's name durable. That of one that was not created by this process may be so already, where the parent is
/// not ours to open.
fn sync_name(dir: &Path, created: bool) -> io::Result<()> {
    match dir.parent().map_or(Ok(()), sync_directory) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && !created => Ok(()),
        result => result,
    }
}

#[cfg(unix)]
pub(crate) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Windows has no way to sync a directory; its file systems journal names themselves.
#[cfg(not(unix))]
pub(crate) fn sync_directory(_dir: &Path) -> io::Result<()> {
    Ok(())
}

/// Options that create files which only their owner may read.
pub(super) fn private_file() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "changed only where files have modes"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(unix)]
mod os {
    use std::{fs::File, io, os::unix::fs::FileExt};

    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buf, offset)
    }

    pub(super) fn write_at(file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(buf, offset)
    }
}

/// These move the file's own cursor, which nothing here uses.
#[cfg(windows)]
mod os {
    use std::{fs::File, io, os::windows::fs::FileExt};

    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(buf, offset)
    }

    pub(super) fn write_at(file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(buf, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock_of(storage: &DiskStorage) -> Box<dyn StorageLock> {
        storage.try_lock().expect("lock").expect("free")
    }

    fn holder_seen_by(storage: &DiskStorage) -> LockHolder {
        storage.try_lock().expect("lock").expect_err("held")
    }

    #[test]
    fn a_directory_is_created_only_when_asked() {
        let parent = tempfile::tempdir().expect("tempdir");
        let dir = parent.path().join("store");
        assert_eq!(DiskStorage::open(&dir, false).expect_err("missing").kind(), ErrorKind::NotFound);
        assert_eq!(DiskStorage::open_read_only(&dir).expect_err("missing").kind(), ErrorKind::NotFound);
        assert!(!dir.exists());
        DiskStorage::open(&dir, true).expect("created");
        DiskStorage::open(&dir, true).expect("opened again");
        let deeper = dir.join("missing").join("store");
        assert_eq!(DiskStorage::open(deeper, true).expect_err("no parent").kind(), ErrorKind::NotFound);

        let file = parent.path().join("file");
        fs::write(&file, "x").expect("write");
        assert_eq!(DiskStorage::open(&file, true).expect_err("a file").kind(), ErrorKind::NotADirectory);
    }

    #[cfg(unix)]
    #[test]
    fn names_count_as_durable_only_with_the_directorys_own() {
        let root = tempfile::tempdir().expect("tempdir");
        let (parent, away) = (root.path().join("parent"), root.path().join("away"));
        fs::create_dir(&parent).expect("mkdir");
        let storage = DiskStorage::open(parent.join("store"), true).expect("open");
        storage.sync_directory().expect("both synced");

        let storage = DiskStorage::open(parent.join("store"), true).expect("open");
        fs::rename(&parent, &away).expect("moved");
        assert_eq!(storage.sync_directory().expect_err("no parent").kind(), ErrorKind::NotFound);
        fs::rename(&away, &parent).expect("moved back");
        storage.sync_directory().expect_err("a sync that failed is not repeated");

        let storage = DiskStorage::open(parent.join("store"), false).expect("open");
        fs::rename(&parent, &away).expect("moved");
        assert_eq!(storage.sync_directory().expect_err("gone").kind(), ErrorKind::NotFound);
        fs::rename(&away, &parent).expect("moved back");
        storage.sync_directory().expect("the name was not its to make durable");
    }

    #[cfg(unix)]
    #[test]
    fn directory_and_files_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().expect("tempdir");
        let dir = parent.path().join("store");
        let storage = DiskStorage::open(&dir, true).expect("open");
        storage.create_new("a").expect("create");
        let _lock = lock_of(&storage);
        let mode = |path: PathBuf| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
        assert_eq!(mode(dir.clone()), 0o700);
        for name in ["a", LOCK_NAME, LOCK_PID_NAME] {
            assert_eq!(mode(dir.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn list_skips_directories_and_the_lock() {
        let dir = tempfile::tempdir().expect("tempdir");
        let storage = DiskStorage::open(dir.path(), false).expect("open");
        let _lock = lock_of(&storage);
        fs::create_dir(dir.path().join("sub")).expect("mkdir");
        fs::write(dir.path().join("sub").join("inner"), "x").expect("write");
        storage.create_new("data").expect("create");
        assert_eq!(storage.list().expect("list"), ["data"]);
    }

    #[test]
    fn another_handle_learns_the_holders_pid() {
        let dir = tempfile::tempdir().expect("tempdir");
        let first = DiskStorage::open(dir.path(), false).expect("open");
        let second = DiskStorage::open(dir.path(), false).expect("open");
        let pid_path = dir.path().join(LOCK_PID_NAME);

        let lock = lock_of(&first);
        assert_eq!(holder_seen_by(&second).pid, Some(std::process::id()));
        for damaged in ["", "12", "x\n", "-1\n", "99999999999999999999\n", "1\n2\n"] {
            fs::write(&pid_path, damaged).expect("write");
            assert_eq!(holder_seen_by(&second).pid, None, "{damaged:?}");
        }
        fs::remove_file(&pid_path).expect("remove");
        assert_eq!(holder_seen_by(&second).pid, None);
        drop(lock);

        fs::write(&pid_path, "1\n").expect("left by a killed process");
        let lock = lock_of(&second);
        assert_eq!(holder_seen_by(&first).pid, Some(std::process::id()));
        drop(lock);
        assert!(!pid_path.exists() && dir.path().join(LOCK_NAME).exists());
    }

    #[test]
    fn a_pid_that_cannot_be_written_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().expect("tempdir");
        let storage = DiskStorage::open(dir.path(), false).expect("open");
        fs::create_dir(dir.path().join(LOCK_PID_NAME)).expect("mkdir");
        let _lock = lock_of(&storage);
        assert_eq!(holder_seen_by(&storage).pid, None);
    }

    #[test]
    fn read_only_changes_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("a"), "abc").expect("write");
        let storage = DiskStorage::open_read_only(dir.path()).expect("open");
        let refused = [
            storage.open("a", Access::Write).map(drop),
            storage.create_new("b").map(drop),
            storage.rename("a", "b"),
            storage.remove("a"),
            storage.sync_directory(),
            storage.try_lock().map(drop),
        ];
        for result in refused {
            assert_eq!(result.expect_err("refused").kind(), ErrorKind::ReadOnlyFilesystem);
        }
        let mut buf = [0; 8];
        let file = storage.open("a", Access::Read).expect("open");
        assert_eq!(file.read_at(&mut buf, 0).expect("read"), 3);
        let names = fs::read_dir(dir.path()).expect("list").count();
        assert_eq!(names, 1);
    }
}
