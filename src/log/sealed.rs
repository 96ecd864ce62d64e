//! The sealed files of a log as its readers hold them. A handle stays good when its file is superseded and deleted.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::segments::read_full;
use crate::format::sealed::{
    ByteSource, ControlRecord, FileCache, OutlineVisitor, Sealed, SealedDecoder, SealedFinding, SealedItem,
    SealedName, SealedSink, SessionRow, StoredPiece, Unit,
};
use crate::format::{EventType, Features, StoreId};
use crate::ids::{Position, Seq, SessionKey, WriterEpoch};
use crate::limits::SEALED_READS_UNMAPPED_MAX;
use crate::storage::{Mapping, StorageFile};
use crate::{Error, Result};

/// Names the events whose data is wanted.
pub type Want<'w> = dyn Fn(Seq, EventType<'_>) -> bool + 'w;

/// A sealed file: events grouped by session, in place of the segments in its name.
pub struct SealedFile {
    path: PathBuf,
    file: Arc<dyn StorageFile>,
    reader: Sealed<Bytes>,
    cache: FileCache,
}

impl SealedFile {
    /// Opens a file that has the name `name`.
    pub(super) fn open(
        path: PathBuf,
        name: SealedName,
        file: Arc<dyn StorageFile>,
        cache: FileCache,
    ) -> Result<Self> {
        let failed = |source| Error::io("open sealed file", source).with_path(&path);
        let bytes = Bytes::mapped_late(FileBytes::of(&file).map_err(failed)?);
        let reader = Sealed::open(bytes).map_err(|error| error.with_path(&path))?;
        if reader.header().name != name {
            let message = "open store: the sealed file has the name of another";
            return Err(Error::new(crate::ErrorKind::Corrupt, message).with_path(path));
        }
        Ok(Self { path, file, reader, cache })
    }

    /// The same file read by position, so that a bad disk is an error: for checking and rewriting it.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn by_position(&self) -> Result<Self> {
        let failed = |source| Error::io("open sealed file", source).with_path(&self.path);
        let bytes = Bytes::never_mapped(FileBytes::of(&self.file).map_err(failed)?);
        let reader = Sealed::open(bytes).map_err(|error| error.with_path(&self.path))?;
        let (path, file) = (self.path.clone(), Arc::clone(&self.file));
        Ok(Self { path, file, reader, cache: self.cache.of_another_file() })
    }

    /// The segments that it stands for.
    #[must_use]
    pub fn name(&self) -> SealedName {
        self.reader.header().name
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.reader.file_bytes()
    }

    /// How many sessions have events here.
    #[must_use]
    pub fn session_count(&self) -> usize {
        usize::try_from(self.reader.session_count()).unwrap_or(usize::MAX)
    }

    /// Its sessions; an error in the place of a damaged row.
    pub fn sessions(&self) -> impl Iterator<Item = Result<SessionRow>> {
        self.reader.sessions().map(|row| row.map_err(|error| self.at(error)))
    }

    /// The session with this key, if it has events here.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt), [`Io`](crate::ErrorKind::Io).
    pub fn find(&self, key: SessionKey) -> Result<Option<SessionRow>> {
        self.reader.find(key).map_err(|error| self.at(error))
    }

    /// What was kept of a session for its catalog row.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn summary(&self, session: &SessionRow) -> Result<Cow<'_, [u8]>> {
        self.reader.summary(session).map_err(|error| self.at(error))
    }

    /// Shows the control records, in the order of the log.
    ///
    /// # Errors
    /// As [`find`](Self::find), and those of the visitor.
    pub fn control(
        &self,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(ControlRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        self.reader.control(decoder, visitor).map_err(|error| self.at(error))
    }

    /// Shows a session's events in `range`; data only of those that `want` names. Damage is an item.
    ///
    /// # Errors
    /// [`Io`](crate::ErrorKind::Io), and those of the visitor.
    pub fn events(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        want: &Want<'_>,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(SealedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        self.reader.events(session, range, want, decoder, visitor).map_err(|error| self.at(error))
    }

    /// Shows a session's events in `range` by their envelopes, and the data of those that the visitor wants.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    pub fn outline(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn OutlineVisitor,
    ) -> Result<()> {
        self.reader.outline(session, range, decoder, visitor).map_err(|error| self.at(error))
    }

    /// As [`events`](Self::events), through the cache that all files of the log share: for events that may be asked for again.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    pub fn events_cached(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        want: &Want<'_>,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(SealedItem<'_>) -> Result<()>,
    ) -> Result<()> {
        let read = self.reader.events_cached(session, range, want, &self.cache, decoder, visitor);
        read.map_err(|error| self.at(error))
    }

    /// Where the unit that holds `seq` ends: events up to there are decoded together.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn unit_end(&self, session: &SessionRow, seq: Seq) -> Result<Seq> {
        let unit = self.reader.unit_of(session, seq).map_err(|error| self.at(error))?;
        Ok(unit.map_or_else(|| seq.next(), |unit| unit.end()))
    }

    /// In how many units the events of `range` lie, as far as that can be told.
    #[must_use]
    pub fn units_within(&self, session: &SessionRow, range: &Range<Seq>) -> u32 {
        self.reader.units_within(session, range)
    }

    /// What stands for all of an event's data, if the file stores that as a piece.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt), [`Io`](crate::ErrorKind::Io).
    pub fn piece_of(
        &self,
        session: &SessionRow,
        seq: Seq,
        decoder: &mut SealedDecoder,
    ) -> Result<Option<StoredPiece>> {
        let mut read = || {
            let Some(row) = self.reader.unit_of(session, seq)? else { return Ok(None) };
            let mut unit = Unit::default();
            self.reader.decode_unit(&row, false, decoder, &mut unit)?;
            self.reader.piece_of(&unit, seq)
        };
        read().map_err(|error| self.at(error))
    }

    /// Checks every byte; each finding names the events that it costs.
    ///
    /// # Errors
    /// [`Io`](crate::ErrorKind::Io), and those of the visitor.
    pub fn check(
        &self,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(SealedFinding) -> Result<()>,
    ) -> Result<()> {
        self.reader.check_all(decoder, visitor)
    }

    pub(super) fn store_id(&self) -> StoreId {
        self.reader.header().store_id
    }

    pub(super) fn epoch(&self) -> WriterEpoch {
        self.reader.header().epoch
    }

    pub(super) fn features(&self) -> Features {
        self.reader.header().features
    }

    pub(super) fn previous_end(&self) -> Option<Position> {
        self.reader.header().previous_end
    }

    pub(super) fn covered_to(&self) -> Position {
        self.reader.covered_to()
    }

    fn at(&self, error: Error) -> Error {
        if error.path().is_some() { error } else { error.with_path(&self.path) }
    }
}

impl fmt::Debug for SealedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A sealed file's bytes: read by position at first, and mapped, where that is possible, for those who read on. A page that
/// is touched in a mapping brings its neighbours into memory, so the few places that resuming a session needs would hold many
/// times what is read of them.
struct Bytes {
    file: FileBytes,
    /// How often something was read before the file was mapped.
    reads: AtomicU32,
    /// `Some(None)`: the file is not to be mapped, or cannot be.
    mapping: OnceLock<Option<Mapping>>,
}

impl Bytes {
    fn mapped_late(file: FileBytes) -> Self {
        Self { file, reads: AtomicU32::new(0), mapping: OnceLock::new() }
    }

    fn never_mapped(file: FileBytes) -> Self {
        Self { mapping: OnceLock::from(None), ..Self::mapped_late(file) }
    }

    fn mapping(&self) -> Option<&Mapping> {
        let mapping = self.mapping.get().or_else(|| {
            // How many exactly is of no importance.
            let is_early = self.reads.fetch_add(1, Ordering::Relaxed) < SEALED_READS_UNMAPPED_MAX;
            // What cannot be mapped is read by position.
            (!is_early).then(|| self.mapping.get_or_init(|| self.file.file.map().ok().flatten()))
        });
        mapping?.as_ref()
    }
}

impl ByteSource for Bytes {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn bytes(&self, offset: u64, len: usize) -> io::Result<Cow<'_, [u8]>> {
        match self.mapping() {
            Some(mapping) => mapping.bytes(offset, len),
            None => self.file.bytes(offset, len),
        }
    }
}

/// A file read by position.
struct FileBytes {
    file: Arc<dyn StorageFile>,
    len: u64,
}

impl FileBytes {
    fn of(file: &Arc<dyn StorageFile>) -> io::Result<Self> {
        Ok(Self { len: file.len()?, file: Arc::clone(file) })
    }
}

impl ByteSource for FileBytes {
    fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self, offset: u64, len: usize) -> io::Result<Cow<'_, [u8]>> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len];
        if read_full(&*self.file, &mut bytes, offset)? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Cow::Owned(bytes))
    }
}

/// A file that is being written from its start.
pub(super) struct FileSink(FileBytes);

impl FileSink {
    pub(super) fn new(file: Arc<dyn StorageFile>) -> Self {
        Self(FileBytes { file, len: 0 })
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.file.sync_data()
    }
}

impl ByteSource for FileSink {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn bytes(&self, offset: u64, len: usize) -> io::Result<Cow<'_, [u8]>> {
        self.0.bytes(offset, len)
    }
}

impl SealedSink for FileSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.file.write_all_at(bytes, self.0.len)?;
        self.0.len += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Access, DiskStorage, Storage};

    #[test]
    fn a_file_of_which_little_is_read_is_not_mapped() {
        let directory = tempfile::tempdir().unwrap();
        let storage = DiskStorage::open(directory.path(), false).unwrap();
        storage.create_new("a.sealed").unwrap().write_all_at(b"0123456789", 0).unwrap();
        let file: Arc<dyn StorageFile> = storage.open("a.sealed", Access::Read).unwrap();
        let late = Bytes::mapped_late(FileBytes::of(&file).unwrap());
        let never = Bytes::never_mapped(FileBytes::of(&file).unwrap());
        for read in 0..SEALED_READS_UNMAPPED_MAX {
            assert!(
                matches!(late.bytes(3, 4).unwrap(), Cow::Owned(bytes) if bytes == b"3456"),
                "read {read}"
            );
        }
        assert!(late.mapping.get().is_none());
        for _ in 0..=SEALED_READS_UNMAPPED_MAX {
            assert_eq!(&*never.bytes(3, 4).unwrap(), b"3456");
        }
        assert!(matches!(late.bytes(3, 4).unwrap(), Cow::Borrowed(b"3456")));
        assert!(matches!(never.mapping.get(), Some(None)));
        for bytes in [&late, &never] {
            assert_eq!(bytes.bytes(8, 3).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
