//! A directory that appears under its name only when it is whole.
//!
//! Owns the name beside the target under which it is filled until then. Never touches what stands at the target, unless it is
//! an empty directory, and never leaves a part of the new one there.

use super::disk::{create_private_directory, sync_directory};
use super::{DiskStorage, Storage};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the names of directories end that are not whole yet.
const STAGED_END: &str = ".sessionlog.tmp";
/// Temporary names that are tried before giving up.
const NAMES_TRIED_MAX: u32 = 1 << 16;

/// A directory on its way. Dropped before it was published, it is removed.
#[derive(Debug)]
pub(crate) struct StagedDirectory {
    target: PathBuf,
    storage: Arc<DiskStorage>,
    /// Where the directory is now, unless it has its name.
    staged: Option<PathBuf>,
    /// As long as it is held, nobody takes the directory for a leftover.
    _hold: Hold,
}

/// The lock on a directory, where the system has such locks.
#[derive(Debug)]
struct Hold(
    #[cfg(unix)]
    #[expect(dead_code, reason = "it is held, and never read")]
    fs::File,
);

impl StagedDirectory {
    /// A new directory beside `target`, which must not exist, or be an empty directory. Its parent must exist. The name is
    /// `{target}.{12 hexadecimal digits}.sessionlog.tmp`, where the digits only need to be free. Removes those that killed processes
    /// left beside this target.
    ///
    /// # Errors
    /// `AlreadyExists` if something else stands at `target`, `NotFound` without a parent, and what the system reports.
    pub(crate) fn create(target: impl AsRef<Path>) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let target = std::path::absolute(target)?;
        check_vacant(&target)?;
        remove_leftovers(&target);
        for _ in 0..NAMES_TRIED_MAX {
            let number = u64::from(std::process::id()) << 16 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xFFFF;
            let mut name = target.clone().into_os_string();
            name.push(format!(".{number:012x}{STAGED_END}"));
            let staged = PathBuf::from(name);
            match create_private_directory(&staged) {
                // A leftover, or another process's, is not ours to fill.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => {
                    created?;
                    let Some(hold) = Hold::of(&staged)? else { continue };
                    let storage = Arc::new(DiskStorage::open(&staged, true)?);
                    return Ok(Self { target, storage, staged: Some(staged), _hold: hold });
                }
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "no temporary name is free"))
    }

    /// What the directory is filled through. Nobody may have a file of it open when it is published.
    #[must_use]
    pub(crate) fn storage(&self) -> Arc<DiskStorage> {
        Arc::clone(&self.storage)
    }

    /// Gives the directory its name, durably. What was written to its files must be durable by now.
    ///
    /// # Errors
    /// `AlreadyExists` if something was put there meanwhile, and what the system reports; the directory is removed then,
    /// unless it had its name already and only that could not be made durable.
    pub(crate) fn publish(mut self) -> io::Result<PathBuf> {
        self.storage.sync_directory()?;
        check_vacant(&self.target)?;
        if let Some(staged) = &self.staged {
            // Not every system puts a directory in the place of an empty one.
            if self.target.is_dir() {
                fs::remove_dir(&self.target)?;
            }
            fs::rename(staged, &self.target)?;
        }
        self.staged = None;
        self.target.parent().map_or(Ok(()), sync_directory)?;
        Ok(self.target.clone())
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        // Best effort: a leftover is recognised by its name and harms nobody.
        if let Some(staged) = &self.staged {
            let _leftover = fs::remove_dir_all(staged);
        }
    }
}

#[cfg(unix)]
impl Hold {
    /// Locks the directory; `None` if somebody else has, or it is gone.
    fn of(directory: &Path) -> io::Result<Option<Self>> {
        let file = match fs::File::open(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        Ok(match file.try_lock() {
            Err(fs::TryLockError::WouldBlock) => None,
            // A file system without locks: nobody else gets one either.
            Ok(()) | Err(fs::TryLockError::Error(_)) => {
                directory.symlink_metadata().is_ok().then_some(Self(file))
            }
        })
    }
}

/// No directory can be locked there, and leftovers stay.
#[cfg(not(unix))]
impl Hold {
    fn of(_directory: &Path) -> io::Result<Option<Self>> {
        Ok(Some(Self()))
    }
}

/// Removes the staged directories beside `target` that nobody holds. Only names that no other program gives are looked at.
#[cfg(unix)]
fn remove_leftovers(target: &Path) {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else { return };
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_directory || !is_staged_for(entry.file_name().as_encoded_bytes(), name.as_encoded_bytes()) {
            continue;
        }
        // Best effort, and locked while it goes.
        if let Ok(directory) = fs::File::open(entry.path())
            && directory.try_lock().is_ok()
        {
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(not(unix))]
fn remove_leftovers(_target: &Path) {}

#[cfg(unix)]
fn is_staged_for(name: &[u8], target: &[u8]) -> bool {
    let rest = name.strip_prefix(target).and_then(|rest| rest.strip_prefix(b"."));
    let digits = rest.and_then(|rest| rest.strip_suffix(STAGED_END.as_bytes()));
    digits.is_some_and(|digits| digits.len() == 12 && digits.iter().all(u8::is_ascii_hexdigit))
}

fn check_vacant(target: &Path) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() && fs::read_dir(target)?.next().is_none() => Ok(()),
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("list")
            .map(|e| e.expect("entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_appears_whole_and_alone() {
        let parent = tempfile::tempdir().expect("tempdir");
        for empty_before in [false, true] {
            let target = parent.path().join(format!("target-{empty_before}"));
            if empty_before {
                fs::create_dir(&target).expect("mkdir");
            }
            let staged = StagedDirectory::create(&target).expect("staged");
            staged.storage().create_new("a").expect("file");
            assert!(!target.join("a").exists());
            assert_eq!(staged.publish().expect("published"), target);
            assert_eq!(names(&target), ["a"]);
        }
        assert_eq!(names(parent.path()), ["target-false", "target-true"]);
    }

    #[cfg(unix)]
    #[test]
    fn what_a_killed_copy_left_goes_with_the_next_one_and_nothing_else_does() {
        let parent = tempfile::tempdir().expect("tempdir");
        let target = parent.path().join("target");
        let held = StagedDirectory::create(&target).expect("staged");
        let left = "target.00000000000a.sessionlog.tmp";
        let others =
            ["target.00000000000a.tmp", "other.00000000000a.sessionlog.tmp", "target.x.sessionlog.tmp"];
        for name in others.iter().chain([&left]) {
            fs::create_dir(parent.path().join(name)).expect("mkdir");
            fs::write(parent.path().join(name).join("0000000000000001.log.tmp"), "bytes").expect("write");
        }
        StagedDirectory::create(&target).expect("staged").publish().expect("published");
        let found = names(parent.path());
        assert!(!found.contains(&left.to_owned()), "{found:?}");
        assert!(others.iter().all(|name| found.contains(&(*name).to_owned())), "{found:?}");
        assert_eq!(found.len(), others.len() + 2, "the one that is held, and the target: {found:?}");
        drop(held);
    }

    #[test]
    fn what_stands_there_stays_and_nothing_is_left_beside_it() {
        let parent = tempfile::tempdir().expect("tempdir");
        let target = parent.path().join("target");
        drop(StagedDirectory::create(&target).expect("staged"));
        let late = StagedDirectory::create(&target).expect("staged");
        fs::write(&target, "precious").expect("write");
        assert_eq!(late.publish().expect_err("taken").kind(), ErrorKind::AlreadyExists);
        assert_eq!(StagedDirectory::create(&target).expect_err("a file").kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(parent.path()), ["target"]);
        assert_eq!(fs::read_to_string(&target).expect("read"), "precious");
        let deeper = parent.path().join("absent").join("target");
        assert_eq!(StagedDirectory::create(deeper).expect_err("no parent").kind(), ErrorKind::NotFound);
    }
}
