//! The segment files of one store: which there are, how far each counts, and reading a frame out of them.
//!
//! Shared by the writer and by reads; opens files when they are needed and keeps a bounded number open.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;

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
    /// Without gaps, from 1.
    pub(super) segments: Vec<SegmentId>,
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
            match parse_segment_name(&name) {
                Some(segment) => listing.segments.push(segment),
                None if name.ends_with(".tmp") => listing.temporary.push(name),
                None if name == "LOCK" || name == "LOCK.pid" => {}
                None => listing.foreign.push(name),
            }
        }
        listing.segments.sort_unstable();
        let gap =
            (1..).map(SegmentId::new).zip(&listing.segments).find(|(expected, found)| expected != *found);
        match gap {
            None => Ok(listing),
            Some((missing, _)) => {
                Err(Error::new(ErrorKind::Corrupt, "open store: a segment file is missing")
                    .with_path(self.path(&segment_file_name(missing))))
            }
        }
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
