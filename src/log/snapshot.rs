//! A consistent copy of a log while its writer goes on.
//!
//! Reads like any reader beside a writer: no lock, and nothing of the source is changed. Files that never change again are
//! linked where that is possible; of the newest segment the whole batches are copied, and an end frame behind them says that
//! they are durable, as they are in the copy. The file with the first segment gets its name last, when all else is durable:
//! without it no store opens, so what a crash leaves is never taken for a copy.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::cursor::{Tail, no_store, tail_of};
use super::segments::{Segments, read_full, temporary_name};
use crate::format::{FrameHeader, FrameKind, FramePlace, parse_segment_name, segment_file_name};
use crate::ids::SegmentId;
use crate::storage::{Access, Storage, StorageFile};
use crate::{Error, ErrorKind, Result};

/// How often a copy goes on with another list of files because one is gone.
const ATTEMPTS_MAX: u32 = 64;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

const FIRST: SegmentId = SegmentId::new(1);

/// A file of a log that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFile {
    /// Its name.
    pub(crate) name: String,
    /// Its length, in bytes.
    pub(crate) bytes: u64,
    /// Whether it is a sealed file.
    pub(crate) is_sealed: bool,
}

/// The files of a log that count, in order; those that a crash left behind sealing do not.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) if one is missing, [`Io`](ErrorKind::Io).
pub(crate) fn files(storage: &Arc<dyn Storage>) -> Result<Vec<LogFile>> {
    let segments = Segments::new(Arc::clone(storage));
    let listed = Listed::of(&segments)?;
    let mut files = Vec::new();
    for (_, name) in listed.files {
        match storage.open(&name, Access::Read).and_then(|file| file.len()) {
            Ok(bytes) => files.push(LogFile { is_sealed: parse_segment_name(&name).is_none(), name, bytes }),
            // Sealed meanwhile: its bytes are in another file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(segments.io_error("list store", &name, error)),
        }
    }
    Ok(files)
}

/// Copies the log in `from` to the empty storage `to`: every batch that was durable when this began, and maybe later ones.
/// `go_on` is asked now and then, and its error ends the copying.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) if `to` is not empty; [`Corrupt`](ErrorKind::Corrupt) if a file of the log is missing;
/// [`Unsupported`](ErrorKind::Unsupported), [`Io`](ErrorKind::Io), and those of `go_on`. No store opens in `to` then. Damage
/// inside files is copied as it is.
pub(crate) fn snapshot(
    from: &Arc<dyn Storage>,
    to: &dyn Storage,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let segments = Segments::new(Arc::clone(from));
    let mut copier = Copier { segments: &segments, to, go_on, done: BTreeSet::new() };
    if !to.list().map_err(|source| copier.failed("", source))?.is_empty() {
        let message = "copy store: the directory is not empty; choose another one";
        return Err(Error::new(ErrorKind::Conflict, message).with_path(to.path().unwrap_or("".as_ref())));
    }
    for _ in 0..ATTEMPTS_MAX {
        let listed = Listed::of(&segments)?;
        copier.drop_all_but(&listed)?;
        if copier.copy(&listed)? {
            return copier.name_all(&listed);
        }
    }
    let message = "copy store: its files vanish while they are copied; try again";
    Err(Error::new(ErrorKind::Io, message).with_path(segments.path("")))
}

/// The files that counted at one moment.
struct Listed {
    /// First segment and name, in order; a readable file before an unreadable one with the same beginning.
    files: Vec<(SegmentId, String)>,
    newest: Option<SegmentId>,
}

impl Listed {
    fn of(segments: &Segments) -> Result<Self> {
        let listing = segments.open_all_sealed()?;
        if listing.is_empty() {
            return Err(no_store(segments));
        }
        let newest = listing.segments.last().copied();
        let raw = listing.segments.iter().map(|segment| (*segment, *segment, segment_file_name(*segment)));
        let sealed = listing.sealed.iter().chain(&listing.unreadable);
        let sealed = sealed.map(|name| (name.first, name.last, name.file_name()));
        let mut files: Vec<_> = raw.chain(sealed).collect();
        files.sort_unstable();
        Ok(Self { files: files.into_iter().map(|(first, _, name)| (first, name)).collect(), newest })
    }

    /// The files, and the names that they have in the copy until all of it is there.
    fn targets(&self) -> impl DoubleEndedIterator<Item = (&str, String)> {
        self.files.iter().map(|(_, name)| (&**name, temporary_name(name)))
    }
}

struct Copier<'s> {
    segments: &'s Segments,
    to: &'s dyn Storage,
    go_on: &'s mut dyn FnMut() -> Result<()>,
    /// Names in the copy of files that never change again.
    done: BTreeSet<String>,
}

impl Copier<'_> {
    /// Copies what is not there yet; `false` if a file is gone. The newest come first: they are the ones that sealing takes away.
    fn copy(&mut self, listed: &Listed) -> Result<bool> {
        let newest = listed.newest.map(segment_file_name);
        for (name, target) in listed.targets().rev() {
            if self.done.contains(&target) {
                continue;
            }
            let is_newest = newest.as_deref() == Some(name);
            let is_there = match listed.newest.filter(|_| is_newest) {
                Some(segment) => self.copy_newest(segment, &target)?,
                None => self.link(name, &target)? || self.copy_whole(name, &target)?,
            };
            if !is_there {
                return Ok(false);
            }
            if !is_newest {
                self.done.insert(target);
            }
        }
        Ok(true)
    }

    /// Removes what was copied and does not count any more.
    fn drop_all_but(&mut self, listed: &Listed) -> Result<()> {
        let targets: BTreeSet<String> = listed.targets().map(|(_, target)| target).collect();
        self.done.retain(|name| targets.contains(name));
        let found = self.to.list().map_err(|source| self.failed("", source))?;
        for name in found.iter().filter(|name| !self.done.contains(*name)) {
            self.to.remove(name).map_err(|source| self.failed(name, source))?;
        }
        Ok(())
    }

    /// Gives a file that never changes again another name; `false` where that cannot be.
    fn link(&mut self, name: &str, target: &str) -> Result<bool> {
        (self.go_on)()?;
        let Some(directory) = self.segments.storage().path() else { return Ok(false) };
        // Whatever stands against it: copying works or tells.
        Ok(self.to.link(directory, name, target).is_ok())
    }

    /// Copies a file that never changes again; `false` if it is gone.
    fn copy_whole(&mut self, name: &str, target: &str) -> Result<bool> {
        let file = match self.segments.storage().open(name, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(self.failed(name, error)),
        };
        let bytes = file.len().map_err(|source| self.failed(name, source))?;
        let copied = self.copy_bytes(name, &*file, target, bytes)?;
        self.finish(&copied, target)?;
        Ok(true)
    }

    /// Copies the whole batches of the newest segment, and ends it; `false` if it is gone, or was cut meanwhile.
    // Format: section 6.
    fn copy_newest(&mut self, segment: SegmentId, target: &str) -> Result<bool> {
        let name = segment_file_name(segment);
        let Some(Tail { file, epoch, survey }) = tail_of(self.segments, segment)? else { return Ok(false) };
        let bytes = file.len().map_err(|source| self.failed(&name, source))?;
        let end = survey.map_or(bytes, |survey| survey.valid_end);
        if bytes < end {
            return Ok(false);
        }
        let copied = self.copy_bytes(&name, &*file, target, end)?;
        if survey.is_some() {
            let place = FramePlace { segment, epoch, offset: end };
            let end_frame = FrameHeader::empty(FrameKind::END, segment.get(), end).encode(place);
            copied.write_all_at(&end_frame, end).map_err(|source| self.failed(target, source))?;
        }
        self.finish(&copied, target)?;
        Ok(true)
    }

    /// A new file with the first `bytes` of another one.
    fn copy_bytes(
        &mut self,
        name: &str,
        file: &dyn StorageFile,
        target: &str,
        bytes: u64,
    ) -> Result<Arc<dyn StorageFile>> {
        let copy = self.to.create_new(target).map_err(|source| self.failed(target, source))?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < bytes {
            (self.go_on)()?;
            let wanted = usize::try_from(bytes - at).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            let read = read_full(file, &mut buffer[..wanted], at);
            let read = read.map_err(|source| self.failed(name, source).with_offset(at))?;
            if read == 0 {
                return Err(self.failed(name, io::ErrorKind::UnexpectedEof.into()).with_offset(at));
            }
            copy.write_all_at(&buffer[..read], at).map_err(|source| self.failed(target, source))?;
            at += read as u64;
        }
        Ok(copy)
    }

    fn finish(&self, copy: &Arc<dyn StorageFile>, target: &str) -> Result<()> {
        copy.sync_data().map_err(|source| self.failed(target, source))
    }

    /// Gives the files their names; the copy is a store once it has its first segment.
    // Format: section 3.
    fn name_all(&self, listed: &Listed) -> Result<()> {
        let rename = |name: &str| {
            let renamed = self.to.rename(&temporary_name(name), name);
            renamed.map_err(|source| self.failed(name, source))
        };
        let sync = || self.to.sync_directory().map_err(|source| self.failed("", source));
        let (first, others): (Vec<_>, Vec<_>) = listed.files.iter().partition(|(first, _)| *first == FIRST);
        others.iter().try_for_each(|(_, name)| rename(name))?;
        sync()?;
        first.iter().try_for_each(|(_, name)| rename(name).and_then(|()| sync()))
    }

    fn failed(&self, name: &str, source: io::Error) -> Error {
        self.segments.io_error("copy store", name, source)
    }
}
