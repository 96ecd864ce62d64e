//! A directory that appears under its name only when it is whole.
//!
//! It is filled as a [`Temporary`] until then. Never touches what stands at the target, unless it is
//! an empty directory, and never leaves a part of the new one there.

use super::disk::sync_directory;
use super::temporary::Temporary;
use super::{DiskStorage, Storage};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory on its way. Dropped before it was published, it is removed.
#[derive(Debug)]
pub(crate) struct StagedDirectory {
    target: PathBuf,
    storage: Arc<DiskStorage>,
    staged: Temporary,
}

impl StagedDirectory {
    /// A new directory beside `target`, which must not exist, or be an empty directory. Its parent must exist.
    ///
    /// # Errors
    /// `AlreadyExists` if something else stands at `target`, `NotFound` without a parent, and what the system reports.
    pub(crate) fn create(target: impl AsRef<Path>) -> io::Result<Self> {
        let target = std::path::absolute(target)?;
        check_vacant(&target)?;
        let staged = Temporary::directory(&target)?;
        let storage = Arc::new(DiskStorage::open(staged.path(), true)?);
        Ok(Self { target, storage, staged })
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
    pub(crate) fn publish(self) -> io::Result<PathBuf> {
        let Self { target, storage, staged } = self;
        storage.sync_directory()?;
        check_vacant(&target)?;
        // Not every system puts a directory in the place of an empty one.
        if target.is_dir() {
            fs::remove_dir(&target)?;
        }
        staged.rename(&target)?;
        target.parent().map_or(Ok(()), sync_directory)?;
        Ok(target)
    }
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
