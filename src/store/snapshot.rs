//! Backups: a copy of the whole store while it is written to, by this process or another one.
//!
//! The copy is a store of its own with the same id, sessions and events. Every byte of it is checked before it is there. Nothing
//! of the source is changed, and no lock is taken.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::options::StoreOptions;
use super::store::Store;
use super::verify::{Finding, VerifyReport};
use crate::log;
use crate::storage::{StagedDirectory, Storage};
use crate::{Error, ErrorKind, Result};

/// What [`Store::snapshot_to`] made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Segment files in the copy.
    pub files: u64,
    /// Their size, in bytes.
    pub bytes: u64,
    /// Sessions.
    pub sessions: u64,
    /// Events in them, shared ones counted in each.
    pub events: u64,
    /// What is damaged in the source, and therefore in the copy, which is the same byte for byte.
    pub findings: Vec<Finding>,
}

impl Store {
    /// Makes a copy of the store in `dir`, which must not exist or be an empty directory, while appends go on. It holds every event
    /// that was synced when this was called, and maybe later ones, and opens like any store. It shares no file that changes: files
    /// that never do are linked where the file system can, and removing sessions or compacting on either side leaves the other as it
    /// is. The store id stays the same, so files of the two must never be mixed. The lock is not copied.
    ///
    /// The copy grows under the name `{dir}.{12 hexadecimal digits}.sessionlog.tmp` and gets its own once it is whole, durable and checked;
    /// a failure leaves nothing at `dir`. What a killed process left under such a name goes with the next copy to `dir`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if something stands at `dir`; [`ErrorKind::Corrupt`] if a file of the store is missing;
    /// [`ErrorKind::Closed`] for a store open for writing after a write to it failed: reopen it first, since what its log holds is
    /// not known. [`ErrorKind::Io`], [`ErrorKind::Cancelled`]. A store that was closed is copied as it is. Damage inside files is no error: it is a finding.
    pub fn snapshot_to(&self, dir: impl AsRef<Path>) -> Result<Snapshot> {
        let dir = dir.as_ref();
        let staged = StagedDirectory::create(dir).map_err(|source| staging_error(dir, source))?;
        let storage: Arc<dyn Storage> = staged.storage();
        let snapshot = self.snapshot_to_storage(&storage)?;
        drop(storage);
        let _: PathBuf = staged.publish().map_err(|source| staging_error(dir, source))?;
        Ok(snapshot)
    }

    /// As [`snapshot_to`](Self::snapshot_to), into an empty storage. No store can be opened there before the copy is whole and
    /// durable.
    ///
    /// # Errors
    ///
    /// As [`snapshot_to`](Self::snapshot_to).
    pub fn snapshot_to_storage(&self, to: &Arc<dyn Storage>) -> Result<Snapshot> {
        if self.inner.writer().is_ok() {
            self.flush()?;
        }
        let before = self.list()?;
        log::snapshot(&self.inner.storage, &**to, &mut || self.check_cancelled())?;
        let copy = StoreOptions::new().open_storage_read_only(Arc::clone(to))?;
        let mut report = VerifyReport::default();
        self.check_files(&copy, &mut report)?;
        let (files, sessions) = (copy.inner.files()?, copy.list()?);
        self.check_complete(&before, &sessions, &mut report.findings);
        Ok(Snapshot {
            files: files.len() as u64,
            bytes: files.iter().map(|file| file.bytes).sum(),
            sessions: sessions.len() as u64,
            events: sessions.iter().map(|session| session.events).sum(),
            findings: report.findings,
        })
    }
}

fn staging_error(dir: &Path, source: io::Error) -> Error {
    let error = match source.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            Error::new(ErrorKind::Conflict, "copy store: something stands there; choose another directory")
        }
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, "copy store: the directory to put the copy in does not exist")
        }
        _ => Error::io("copy store", source),
    };
    error.with_path(dir)
}
