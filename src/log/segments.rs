//! The segment files of one store: which there are, how far each counts, and reading a frame out of them.
//!
//! Shared by the writer and by reads; opens files when they are needed and keeps a bounded number open.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;

use super::patch::FrameFile;
use super::reserve::RESERVE_NAME;
use super::scan::Scanner;
use super::sealed::SealedFile;
use crate::format::checkpoint::parse_checkpoint_name;
use crate::format::sealed::{DecodedCache, SealedName};
use crate::format::{FrameHeader, parse_segment_name, segment_file_name};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::storage::{Access, Storage, StorageFile};
use crate::{Error, ErrorKind, Result, limits};

/// A frame that was read by its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its header, as stored.
    pub header: FrameHeader,
    /// Its payload, decoded.
    pub payload: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Segments {
    storage: Arc<dyn Storage>,
    known: RwLock<Known>,
    /// What reads of sealed files decoded lately.
    decoded: Arc<DecodedCache>,
}

#[derive(Debug, Default)]
struct Known {
    segments: BTreeMap<SegmentId, Segment>,
    /// By their first segment.
    sealed: BTreeMap<SegmentId, Arc<SealedFile>>,
    /// Sealed files whose header or footer is damaged: they stand for nothing.
    unreadable: BTreeSet<SealedName>,
    files_open: usize,
}

#[derive(Debug)]
struct Segment {
    epoch: WriterEpoch,
    /// Frames from here on do not count.
    end: u64,
    file: Option<Arc<dyn StorageFile>>,
}

/// What the store's directory holds.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Raw segments and sealed files that together have every id from 1, but for those of unreadable files.
    pub(super) segments: Vec<SegmentId>,
    pub(super) sealed: Vec<SealedName>,
    pub(super) unreadable: Vec<SealedName>,
    /// Files whose segments a sealed file stands for.
    pub(super) superseded: Vec<String>,
    /// Files that were never finished.
    pub(super) temporary: Vec<String>,
    pub(super) foreign: Vec<String>,
    /// The space for work that frees space is there.
    pub(super) has_reserve: bool,
}

/// Segments that only an unreadable sealed file has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub(super) name: SealedName,
    pub(super) first: SegmentId,
    /// The next segment that may be there.
    pub(super) resume: SegmentId,
}

impl Segments {
    pub(super) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, known: RwLock::default(), decoded: DecodedCache::new(limits::DECODED_CACHE_BYTES) }
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.storage.path().map_or_else(|| PathBuf::from(name), |directory| directory.join(name))
    }

    /// Lists the directory; again if it shows a later file and not an earlier one, as it may while files come
    /// and go.
    // Format: section 3.
    pub(super) fn list(&self) -> Result<Listing> {
        let mut listing = self.list_once()?;
        for _ in 1..LISTINGS_MAX {
            if listing.missing().is_none() {
                break;
            }
            listing = self.list_once()?;
        }
        match listing.missing() {
            None => Ok(listing),
            Some(missing) => Err(self.missing(missing)),
        }
    }

    pub(super) fn missing(&self, segment: SegmentId) -> Error {
        Error::new(ErrorKind::Corrupt, "open store: a segment file is missing")
            .with_path(self.path(&segment_file_name(segment)))
    }

    fn list_once(&self) -> Result<Listing> {
        let names = self.storage.list().map_err(|source| self.io_error("list store", "", source))?;
        let known = self.known.read();
        let mut listing = Listing::default();
        for name in names {
            if let Some(segment) = parse_segment_name(&name) {
                listing.segments.push(segment);
            } else if let Some(sealed) = SealedName::parse(&name) {
                let readable = !known.unreadable.contains(&sealed);
                (if readable { &mut listing.sealed } else { &mut listing.unreadable }).push(sealed);
            } else if name == RESERVE_NAME {
                listing.has_reserve = true;
            } else if is_temporary(&name) {
                listing.temporary.push(name);
            } else if name != "LOCK" && name != "LOCK.pid" && parse_checkpoint_name(&name).is_none() {
                listing.foreign.push(name);
            }
        }
        listing.drop_superseded();
        Ok(listing)
    }

    /// Opens all sealed files that count; what stands in the directory then.
    pub(super) fn open_all_sealed(&self) -> Result<Listing> {
        self.relisting(|listing| {
            let known =
                |name: &SealedName| self.known_over(name.first).is_some_and(|file| file.name() == *name);
            for name in listing.sealed.iter().filter(|name| !known(name)) {
                if self.open_sealed(*name)?.is_none() {
                    return Ok(None);
                }
            }
            Ok(Some(listing))
        })
    }

    /// The sealed file that stands for `segment`, if one does.
    pub(super) fn sealed_over(&self, segment: SegmentId) -> Result<Option<Arc<SealedFile>>> {
        self.relisting(|listing| {
            let name = listing.sealed.iter().find(|name| name.covers(segment));
            match name {
                Some(name) => Ok(self.open_sealed(*name)?.map(Some)),
                None => Ok(Some(None)),
            }
        })
    }

    /// As [`sealed_over`](Self::sealed_over), of the files that are open.
    pub(super) fn known_over(&self, segment: SegmentId) -> Option<Arc<SealedFile>> {
        self.known.read().over(segment).cloned()
    }

    /// Lists the directory anew as long as `look` meets a file that is gone, or that cannot be read.
    pub(super) fn relisting<T>(&self, mut look: impl FnMut(Listing) -> Result<Option<T>>) -> Result<T> {
        for _ in 0..LISTINGS_MAX {
            if let Some(found) = look(self.list()?)? {
                return Ok(found);
            }
        }
        Err(Error::new(ErrorKind::Io, "open store: its files vanish while they are opened; try again")
            .with_path(self.path("")))
    }

    /// Opens a sealed file and keeps it in the place of what it supersedes; `None` if it is gone, or if its
    /// header or footer is damaged: then it no longer counts.
    pub(super) fn open_sealed(&self, name: SealedName) -> Result<Option<Arc<SealedFile>>> {
        let file_name = name.file_name();
        let file = match self.storage.open(&file_name, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io_error("open sealed file", &file_name, error)),
        };
        let opened = SealedFile::open(self.path(&file_name), name, file, self.decoded.of_file());
        let mut known = self.known.write();
        let file = match opened {
            Ok(file) => Arc::new(file),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                known.unreadable.insert(name);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        known.sealed.retain(|_, other| !name.supersedes(&other.name()));
        known.sealed.insert(name.first, Arc::clone(&file));
        Ok(Some(file))
    }

    /// What of the unreadable sealed files begins at `segment` and stands nowhere else.
    pub(super) fn lost_at(&self, segment: SegmentId) -> Result<Option<Lost>> {
        if self.known.read().unreadable.is_empty() {
            return Ok(None);
        }
        let listing = self.list()?;
        let covering = listing.unreadable.iter().filter(|name| name.covers(segment));
        // The newest one, if one replaced another.
        let Some(name) = covering.max_by_key(|name| (name.last, name.generation)) else { return Ok(None) };
        let present = listing.ranges().into_iter().map(|(first, _)| first).find(|first| *first > segment);
        let resume = present.unwrap_or(name.last.next()).min(name.last.next());
        Ok(Some(Lost { name: *name, first: segment, resume }))
    }

    /// A generation that no file of this range has.
    pub(super) fn next_generation(&self, first: SegmentId, last: SegmentId) -> Result<u64> {
        let names = self.storage.list().map_err(|source| self.io_error("list store", "", source))?;
        let taken = names.iter().filter_map(|name| SealedName::parse(name));
        let taken = taken.filter(|name| (name.first, name.last) == (first, last)).map(|name| name.generation);
        Ok(taken.max().unwrap_or(0) + 1)
    }

    /// Sealed files in the directory that are not open yet.
    pub(super) fn new_sealed(&self) -> Result<Vec<SealedName>> {
        let mut names = self.list()?.sealed;
        let known = self.known.read();
        names.retain(|name| known.sealed.get(&name.first).is_none_or(|file| file.name() != *name));
        Ok(names)
    }

    /// Raw segments before `before` that no sealed file stands for, with where each ends.
    pub(super) fn raw_before(&self, before: SegmentId) -> Vec<(SegmentId, u64)> {
        let known = self.known.read();
        let raw = known.segments.range(..before).map(|(segment, entry)| (*segment, entry.end));
        raw.filter(|(segment, _)| known.over(*segment).is_none()).collect()
    }

    /// How many raw segments have ended that no sealed file stands for, and their bytes.
    pub(super) fn unsealed(&self) -> (u64, u64) {
        let newest = self.known.read().segments.last_key_value().map(|(newest, _)| *newest);
        let raw = newest.map(|newest| self.raw_before(newest)).unwrap_or_default();
        (raw.len() as u64, raw.iter().map(|(_, end)| end).sum())
    }

    /// The sealed files, in order.
    pub(super) fn sealed_files(&self) -> Vec<Arc<SealedFile>> {
        self.known.read().sealed.values().cloned().collect()
    }

    /// Takes raw segments out of use; reads of them answer `NotFound` from here on.
    pub(super) fn forget(&self, range: std::ops::RangeInclusive<SegmentId>) {
        let mut known = self.known.write();
        let gone: Vec<SegmentId> = known.segments.range(range).map(|(segment, _)| *segment).collect();
        for segment in gone {
            if known.segments.remove(&segment).is_some_and(|entry| entry.file.is_some()) {
                known.files_open -= 1;
            }
        }
    }

    /// A scanner of a raw segment.
    pub(super) fn scanner(&self, segment: SegmentId) -> Result<Scanner> {
        let (file, epoch, _) = self.file(segment)?;
        Scanner::new(segment, epoch, self.path(&segment_file_name(segment)), file)
    }

    /// Makes a segment readable, the first `end` bytes of which count.
    pub(super) fn add(&self, segment: SegmentId, epoch: WriterEpoch, end: u64, file: Arc<dyn StorageFile>) {
        let mut known = self.known.write();
        known.segments.entry(segment).or_insert(Segment { epoch, end, file: None });
        known.keep(segment, file);
    }

    /// Says how far a segment counts.
    pub(super) fn set_end(&self, segment: SegmentId, end: u64) {
        if let Some(entry) = self.known.write().segments.get_mut(&segment) {
            entry.end = end;
        }
    }

    /// Reads the frame at `at`, checking header and payload.
    pub(super) fn read(&self, at: Position) -> Result<Frame> {
        let (file, epoch, end) = self.file(at.segment)?;
        let file = FrameFile { file, segment: at.segment, epoch };
        file.read(at.offset, end).map_err(|error| error.with_path(self.path(&segment_file_name(at.segment))))
    }

    fn file(&self, segment: SegmentId) -> Result<(Arc<dyn StorageFile>, WriterEpoch, u64)> {
        let name = segment_file_name(segment);
        let known = self.known.read();
        let entry = known.segments.get(&segment).ok_or_else(|| self.gone(&name))?;
        let (epoch, end) = (entry.epoch, entry.end);
        if let Some(file) = &entry.file {
            return Ok((Arc::clone(file), epoch, end));
        }
        drop(known);
        let file = self.storage.open(&name, Access::Read).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => self.gone(&name),
            _ => self.io_error("open segment", &name, source),
        })?;
        self.known.write().keep(segment, Arc::clone(&file));
        Ok((file, epoch, end))
    }

    fn gone(&self, name: &str) -> Error {
        Error::new(ErrorKind::NotFound, "read frame: the store has no such segment")
            .with_path(self.path(name))
    }

    pub(super) fn io_error(&self, attempted: &str, name: &str, source: io::Error) -> Error {
        let attempted = if source.kind() == io::ErrorKind::StorageFull {
            format!("{attempted}: the disk is full; free some space and reopen the store")
        } else {
            attempted.to_owned()
        };
        Error::io(attempted, source).with_path(self.path(name))
    }
}

impl Listing {
    /// Whether there is no store.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.sealed.is_empty() && self.unreadable.is_empty()
    }

    // Format: section 10.1.
    fn drop_superseded(&mut self) {
        // Each after those that could supersede it.
        self.sealed.sort_unstable_by_key(|name| (name.first, Reverse((name.last, name.generation))));
        let mut covered_to = SegmentId::new(0);
        let superseded = self.sealed.extract_if(.., |name| {
            let superseded = name.last <= covered_to;
            covered_to = covered_to.max(name.last);
            superseded
        });
        self.superseded.extend(superseded.map(|name| name.file_name()));
        let sealed = &self.sealed;
        let before = |segment| sealed[..sealed.partition_point(|name| name.first <= segment)].last();
        let superseded =
            self.unreadable.extract_if(.., |name| before(name.first).is_some_and(|b| b.supersedes(name)));
        self.superseded.extend(superseded.map(|name| name.file_name()));
        let superseded =
            self.segments.extract_if(.., |segment| before(*segment).is_some_and(|b| b.covers(*segment)));
        self.superseded.extend(superseded.map(segment_file_name));
        self.segments.sort_unstable();
    }

    /// First and last id of each file that counts, in order.
    fn ranges(&self) -> Vec<(SegmentId, SegmentId)> {
        let raw = self.segments.iter().map(|segment| (*segment, *segment));
        let mut ranges: Vec<_> = self.sealed.iter().map(|name| (name.first, name.last)).chain(raw).collect();
        ranges.sort_unstable();
        ranges
    }

    /// The first id that no file has, though a later one is there.
    fn missing(&self) -> Option<SegmentId> {
        let mut expected = SegmentId::new(1);
        for (first, last) in self.ranges() {
            while let Some(name) =
                self.unreadable.iter().find(|name| expected < first && name.covers(expected))
            {
                expected = name.last.next().min(first);
            }
            if first != expected {
                return Some(expected);
            }
            expected = last.next();
        }
        None
    }
}

impl Known {
    /// The open sealed file that stands for `segment`.
    fn over(&self, segment: SegmentId) -> Option<&Arc<SealedFile>> {
        let (_, file) = self.sealed.range(..=segment).next_back()?;
        Some(file).filter(|file| file.name().covers(segment))
    }

    /// Keeps a file open; closes all others when there are too many.
    fn keep(&mut self, segment: SegmentId, file: Arc<dyn StorageFile>) {
        if self.files_open >= limits::SEGMENT_FILES_OPEN_MAX {
            self.segments.values_mut().for_each(|entry| entry.file = None);
            self.files_open = 0;
        }
        if let Some(entry) = self.segments.get_mut(&segment)
            && entry.file.replace(file).is_none()
        {
            self.files_open += 1;
        }
    }
}

/// How often a directory is listed that changes meanwhile.
const LISTINGS_MAX: u32 = 8;

/// Whether a file is what an unfinished step of ours leaves.
fn is_temporary(name: &str) -> bool {
    let published = |name| {
        parse_segment_name(name).is_some()
            || SealedName::parse(name).is_some()
            || parse_checkpoint_name(name).is_some()
    };
    name == SPARE_NAME || name.strip_suffix(TEMPORARY_SUFFIX).is_some_and(published)
}

/// The name of a file before it gets its final one.
pub(super) fn temporary_name(name: &str) -> String {
    format!("{name}{TEMPORARY_SUFFIX}")
}

const TEMPORARY_SUFFIX: &str = ".tmp";
/// A file for the next segment, prepared ahead.
pub(super) const SPARE_NAME: &str = "spare.tmp";

/// Reads until `buf` is full or the file ends; answers how much.
pub(super) fn read_full(file: &dyn StorageFile, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
