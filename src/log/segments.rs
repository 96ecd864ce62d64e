//! The segment files of one store: which there are, how far each counts, and reading a frame out of them.
//!
//! Shared by the writer and by reads; opens files when they are needed and keeps a bounded number open.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;

use super::scan::Scanner;
use super::sealed::SealedFile;
use crate::format::sealed::SealedName;
use crate::format::{FRAME_HEADER_BYTES, FrameHeader, FramePlace, parse_segment_name, segment_file_name};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::storage::{Access, Storage, StorageFile};
use crate::{Error, ErrorKind, Result, limits};

/// A frame that was read by its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// Its payload as stored.
    pub payload: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Segments {
    storage: Arc<dyn Storage>,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    segments: BTreeMap<SegmentId, Segment>,
    /// By their first segment.
    sealed: BTreeMap<SegmentId, Arc<SealedFile>>,
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
    /// Raw segments and sealed files that together have every id from 1, without gaps.
    pub(super) segments: Vec<SegmentId>,
    pub(super) sealed: Vec<SealedName>,
    /// Files whose segments a sealed file stands for.
    pub(super) superseded: Vec<String>,
    pub(super) temporary: Vec<String>,
    pub(super) foreign: Vec<String>,
}

impl Segments {
    pub(super) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, known: RwLock::default() }
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.storage.path().map_or_else(|| PathBuf::from(name), |directory| directory.join(name))
    }

    // Format: section 3.
    pub(super) fn list(&self) -> Result<Listing> {
        let names = self.storage.list().map_err(|source| self.io_error("list store", "", source))?;
        let mut listing = Listing::default();
        for name in names {
            if let Some(segment) = parse_segment_name(&name) {
                listing.segments.push(segment);
            } else if let Some(sealed) = SealedName::parse(&name) {
                listing.sealed.push(sealed);
            } else if name.ends_with(".tmp") {
                listing.temporary.push(name);
            } else if name != "LOCK" && name != "LOCK.pid" {
                listing.foreign.push(name);
            }
        }
        listing.drop_superseded();
        match listing.missing() {
            None => Ok(listing),
            Some(missing) => Err(Error::new(ErrorKind::Corrupt, "open store: a segment file is missing")
                .with_path(self.path(&segment_file_name(missing)))),
        }
    }

    /// The sealed file that stands for `segment`, if one does.
    pub(super) fn sealed_over(&self, segment: SegmentId) -> Result<Option<Arc<SealedFile>>> {
        let known = self.known.read();
        let before = known.sealed.range(..=segment).next_back();
        if let Some((_, file)) = before.filter(|(_, file)| segment <= file.name().last) {
            return Ok(Some(Arc::clone(file)));
        }
        drop(known);
        let listing = self.list()?;
        let name = listing.sealed.iter().find(|name| (name.first..=name.last).contains(&segment));
        name.map(|name| self.open_sealed(*name)).transpose()
    }

    /// Opens a sealed file and keeps it in the place of what it supersedes.
    pub(super) fn open_sealed(&self, name: SealedName) -> Result<Arc<SealedFile>> {
        let file_name = name.file_name();
        let file = self
            .storage
            .open(&file_name, Access::Read)
            .map_err(|source| self.io_error("open sealed file", &file_name, source))?;
        let file = Arc::new(SealedFile::open(self.path(&file_name), name, file)?);
        let mut known = self.known.write();
        known.sealed.retain(|_, other| !name.supersedes(&other.name()));
        known.sealed.insert(name.first, Arc::clone(&file));
        Ok(file)
    }

    /// Sealed files in the directory that are not open yet.
    pub(super) fn new_sealed(&self) -> Result<Vec<SealedName>> {
        let mut names = self.list()?.sealed;
        let known = self.known.read();
        names.retain(|name| known.sealed.get(&name.first).is_none_or(|file| file.name() != *name));
        Ok(names)
    }

    /// Raw segments before `before`, with where each ends.
    pub(super) fn raw_before(&self, before: SegmentId) -> Vec<(SegmentId, u64)> {
        let known = self.known.read();
        known.segments.range(..before).map(|(segment, entry)| (*segment, entry.end)).collect()
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
        let io = |source| {
            self.io_error("read frame", &segment_file_name(at.segment), source).with_offset(at.offset)
        };
        let mut first = [0; FIRST_READ_BYTES];
        let filled = read_full(&*file, &mut first, at.offset).map_err(io)?;
        let place = FramePlace { segment: at.segment, epoch, offset: at.offset };
        let header = first[..filled].first_chunk().and_then(|bytes| FrameHeader::decode(bytes, place));
        let Some(header) = header else { return Err(self.corrupt(at, "there is no sound frame header")) };
        header.check_supported().map_err(|error| self.at(error, at))?;
        // Before anything is allocated: the frame has to be there.
        let frame_end = at.offset.saturating_add(header.frame_bytes());
        if frame_end > end.min(file.len().map_err(io)?) {
            return Err(self.corrupt(at, "the segment ends within the frame"));
        }
        let (Ok(frame_bytes), Ok(payload_bytes)) =
            (usize::try_from(header.frame_bytes()), usize::try_from(header.payload_bytes))
        else {
            return Err(self.at(Error::new(ErrorKind::Limit, "read frame: too large for this machine"), at));
        };
        let mut payload = Vec::with_capacity(frame_bytes - FRAME_HEADER_BYTES);
        payload.extend_from_slice(&first[FRAME_HEADER_BYTES..filled.min(frame_bytes)]);
        let have = payload.len();
        payload.resize(frame_bytes - FRAME_HEADER_BYTES, 0);
        let next = at.offset + (FRAME_HEADER_BYTES + have) as u64;
        read_full(&*file, &mut payload[have..], next).map_err(io)?;
        if !header.matches(&payload) {
            return Err(self.corrupt(at, "the payload does not match its checksum"));
        }
        payload.truncate(payload_bytes);
        Ok(Frame { header, payload })
    }

    fn corrupt(&self, at: Position, what: &str) -> Error {
        self.at(Error::new(ErrorKind::Corrupt, format!("read frame: {what}")), at)
    }

    fn at(&self, error: Error, at: Position) -> Error {
        error.with_path(self.path(&segment_file_name(at.segment))).with_offset(at.offset)
    }

    fn file(&self, segment: SegmentId) -> Result<(Arc<dyn StorageFile>, WriterEpoch, u64)> {
        let name = segment_file_name(segment);
        let known = self.known.read();
        let entry = known.segments.get(&segment).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "read frame: the store has no such segment")
                .with_path(self.path(&name))
        })?;
        let (epoch, end) = (entry.epoch, entry.end);
        if let Some(file) = &entry.file {
            return Ok((Arc::clone(file), epoch, end));
        }
        drop(known);
        let file = self
            .storage
            .open(&name, Access::Read)
            .map_err(|source| self.io_error("open segment", &name, source))?;
        self.known.write().keep(segment, Arc::clone(&file));
        Ok((file, epoch, end))
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
    // Format: section 10.1.
    fn drop_superseded(&mut self) {
        let all = self.sealed.clone();
        let superseded = |name: &SealedName| all.iter().any(|other| other.supersedes(name));
        self.superseded.extend(all.iter().filter(|name| superseded(name)).map(SealedName::file_name));
        self.sealed.retain(|name| !superseded(name));
        self.sealed.sort_unstable_by_key(|name| name.first);
        let covered = |segment: &SegmentId| self.sealed.iter().any(|n| (n.first..=n.last).contains(segment));
        self.superseded.extend(self.segments.iter().filter(|s| covered(s)).map(|s| segment_file_name(*s)));
        self.segments.retain(|segment| !covered(segment));
        self.segments.sort_unstable();
    }

    /// The first id that no file has, though a later one is there.
    fn missing(&self) -> Option<SegmentId> {
        let raw = self.segments.iter().map(|segment| (*segment, *segment));
        let mut ranges: Vec<_> = self.sealed.iter().map(|name| (name.first, name.last)).chain(raw).collect();
        ranges.sort_unstable();
        let mut expected = SegmentId::new(1);
        for (first, last) in ranges {
            if first != expected {
                return Some(expected);
            }
            expected = last.next();
        }
        None
    }
}

impl Known {
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

/// One read serves header and payload of most frames.
const FIRST_READ_BYTES: usize = 4096;

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
