//! The one scanner of segments: for opening, for recovery, for readers beside a writer.
//!
//! It believes a header only by its CRC, a payload only by its CRC, and a batch only as a whole. It reads
//! through one buffer that grows to the largest frame met, hands payloads on in place, and looks at each
//! byte a bounded number of times.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::patch::{FrameFile, PatchReader};
use super::sealed::SealedFile;
use crate::format::sealed::SealedName;
use crate::format::{
    FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, FramePlace, SEGMENT_HEADER_BYTES,
    segment_file_name,
};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::storage::StorageFile;
use crate::{Error, ErrorKind, Result};

/// Receives what a log holds, in order.
pub trait Visitor {
    /// A frame of a whole batch: its header as stored, its payload decoded. A kind that is not known is one that may be
    /// skipped.
    ///
    /// # Errors
    /// Whatever the visitor returns ends the scan and becomes its result.
    fn frame(&mut self, at: Position, header: &FrameHeader, payload: &[u8]) -> Result<()>;

    /// Bytes below the durable end that cannot be read, or a frame that is lost with its batch.
    fn damage(&mut self, damage: &Damage);

    /// A sealed file, which stands for all segments in its name, shown or not yet.
    ///
    /// # Errors
    /// Whatever the visitor returns ends the scan and becomes its result.
    fn sealed(&mut self, file: &Arc<SealedFile>) -> Result<()> {
        let _ = file;
        Ok(())
    }

    /// A file in the directory whose name is none of the store's; it is left alone.
    fn foreign_file(&mut self, name: &str) {
        let _ = name;
    }
}

/// A place that holds no event any more, though it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins.
    pub at: Position,
    /// How far it goes.
    pub bytes: u64,
    /// What is wrong.
    pub cause: DamageCause,
    /// The frame that is lost, if its header can be believed.
    pub frame: Option<FrameHeader>,
}

/// What is wrong with a damaged place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageCause {
    /// The segment's header: with `bytes` of a header only, a sound copy was found and nothing is lost;
    /// otherwise the whole segment.
    SegmentHeader,
    /// No frame begins where one should.
    FrameHeader,
    /// The payload, or its padding, differs from what the frame's header says.
    Payload,
    /// The frame is sound, but another one of its batch is not.
    BrokenBatch,
    /// The frame is sound, but the one that it says the changes of is not.
    Patch,
    /// Header or footer of this sealed file, and with it all events in it. The place is its first segment that
    /// no other file has; the bytes are those of the file.
    SealedFile(SealedName),
}

impl Damage {
    /// Name of the file.
    #[must_use]
    pub fn file_name(&self) -> String {
        match self.cause {
            DamageCause::SealedFile(name) => name.file_name(),
            _ => segment_file_name(self.at.segment),
        }
    }
}

/// What the end of the newest segment looks like.
// Format: section 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Survey {
    /// S: everything below was durable.
    pub(super) synced: u64,
    /// V: end of the whole batches from there.
    pub(super) valid_end: u64,
    /// Whether an end frame says that nothing else was ever written.
    pub(super) cleanly_ended: bool,
}

/// Reads the frames of one segment file.
#[derive(Debug)]
pub(super) struct Scanner {
    segment: SegmentId,
    epoch: WriterEpoch,
    path: PathBuf,
    window: Window,
    patches: PatchReader,
}

/// What stands at an offset.
enum Found {
    Frame(FrameHeader),
    BadPayload(FrameHeader),
    Nothing,
}

impl Scanner {
    pub(super) fn new(
        segment: SegmentId,
        epoch: WriterEpoch,
        path: PathBuf,
        file: Arc<dyn StorageFile>,
    ) -> Result<Self> {
        let window = Window { file, file_bytes: 0, buf: Vec::new(), start: 0, filled: 0, loads: 0 };
        let patches = PatchReader::default();
        let mut scanner = Self { segment, epoch, path, window, patches };
        scanner.forget()?;
        Ok(scanner)
    }

    pub(super) fn file(&self) -> Arc<dyn StorageFile> {
        Arc::clone(&self.window.file)
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.window.file_bytes
    }

    /// Forgets what was read, because somebody may have written since.
    pub(super) fn forget(&mut self) -> Result<()> {
        self.window.filled = 0;
        self.window.file_bytes = self.window.file.len().map_err(|source| self.io_error(source, 0))?;
        Ok(())
    }

    /// Whether nothing was written at `at` yet.
    pub(super) fn is_blank(&mut self, at: u64) -> Result<bool> {
        self.forget()?;
        Ok(self.bytes(at, FRAME_ALIGN_BYTES)?.is_none_or(|bytes| bytes.iter().all(|&byte| byte == 0)))
    }

    /// Finds S and V, starting at the frame boundary `from`, where `synced` is known already.
    // Format: section 7.
    pub(super) fn survey(&mut self, from: u64, mut synced: u64) -> Result<Survey> {
        let len = self.window.file_bytes;
        let mut at = from;
        let mut ended_at = None;
        while at < len {
            let Some(header) = self.header_at(at, len)? else {
                at = self.resynchronise(at, len)?;
                continue;
            };
            if header.kind.is_structural() && header.subject == self.segment.get() && header.tag <= at {
                synced = synced.max(header.tag);
                if header.kind == FrameKind::END && header.tag == at {
                    ended_at = Some(at);
                }
            }
            at += header.frame_bytes();
        }
        let cleanly_ended = ended_at == Some(synced);
        let valid_end = if cleanly_ended { synced } else { self.whole_batches_end(synced.max(from), len)? };
        Ok(Survey { synced, valid_end, cleanly_ended })
    }

    fn whole_batches_end(&mut self, from: u64, len: u64) -> Result<u64> {
        let (mut end, mut at, mut in_batch) = (from, from, false);
        while let Found::Frame(header) = self.look(at, len)? {
            at += header.frame_bytes();
            if header.kind.is_structural() {
                if in_batch || header.kind == FrameKind::END {
                    break;
                }
                end = at;
                continue;
            }
            if header.begins == in_batch {
                break;
            }
            in_batch = !header.commits;
            if !in_batch {
                end = at;
            }
        }
        Ok(end)
    }

    /// Visits the batches between two frame boundaries, everything between which counts: what is not right
    /// is damage. Reads afresh: a live writer may have completed what an earlier look saw half written.
    // Format: section 7.
    pub(super) fn scan(&mut self, from: u64, to: u64, visitor: &mut dyn Visitor) -> Result<()> {
        self.forget()?;
        let mut at = from;
        let mut batch = None;
        let mut loads = self.window.loads;
        while at < to {
            match self.look(at, to)? {
                Found::Frame(header) => {
                    let next = at + header.frame_bytes();
                    let structural = header.kind.is_structural();
                    if (structural || header.begins)
                        && let Some(start) = batch.take()
                    {
                        self.report_broken(start, at, visitor)?;
                    }
                    if header.begins && !structural {
                        batch = Some(at);
                        loads = self.window.loads;
                    }
                    match batch {
                        Some(start) if header.commits => {
                            self.deliver(start, next, loads, visitor)?;
                            batch = None;
                        }
                        None if !structural => self.report_broken(at, next, visitor)?,
                        _ => {}
                    }
                    at = next;
                }
                bad => {
                    if let Some(start) = batch.take() {
                        self.report_broken(start, at, visitor)?;
                    }
                    at = self.report_bad(at, to, &bad, visitor)?;
                }
            }
        }
        batch.map_or(Ok(()), |start| self.report_broken(start, to, visitor))
    }

    /// Hands on a batch that was found whole; checks it again if parts had to be read again.
    fn deliver(&mut self, start: u64, end: u64, loads: u64, visitor: &mut dyn Visitor) -> Result<()> {
        let mut at = start;
        while at < end {
            let header = self.header_at(at, end)?.ok_or_else(|| self.changed(at))?;
            let place = Position { segment: self.segment, offset: at };
            self.rest_of_frame(at, &header)?;
            let was_read_again = self.window.loads != loads;
            let rest = self.rest_of_frame(at, &header)?;
            if was_read_again && !header.matches(rest) {
                return Err(self.changed(at));
            }
            if header.is_patch() {
                self.deliver_patch(at, &header, visitor)?;
            } else {
                visitor.frame(place, &header, payload_of(&header, rest))?;
            }
            at += header.frame_bytes();
        }
        Ok(())
    }

    /// Hands on a patch, decoded. One that has lost its base costs itself and not its batch.
    fn deliver_patch(&mut self, at: u64, header: &FrameHeader, visitor: &mut dyn Visitor) -> Result<()> {
        let mut patches = std::mem::take(&mut self.patches);
        let file = FrameFile { file: self.file(), segment: self.segment, epoch: self.epoch };
        let stored = payload_of(header, self.rest_of_frame(at, header)?);
        let outcome = match patches.decode(&file, at, header, stored) {
            Ok(payload) => visitor.frame(Position { segment: self.segment, offset: at }, header, payload),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.report(at, header.frame_bytes(), DamageCause::Patch, Some(*header), visitor);
                Ok(())
            }
            Err(error) => Err(error.with_path(&self.path)),
        };
        self.patches = patches;
        outcome
    }

    fn report_broken(&mut self, start: u64, end: u64, visitor: &mut dyn Visitor) -> Result<()> {
        let mut at = start;
        while at < end {
            let header = self.header_at(at, end)?.ok_or_else(|| self.changed(at))?;
            self.report(at, header.frame_bytes(), DamageCause::BrokenBatch, Some(header), visitor);
            at += header.frame_bytes();
        }
        Ok(())
    }

    /// Reports what is not a sound frame at `at`; answers where to go on.
    fn report_bad(&mut self, at: u64, to: u64, bad: &Found, visitor: &mut dyn Visitor) -> Result<u64> {
        if let Found::BadPayload(header) = bad {
            self.report(at, header.frame_bytes(), DamageCause::Payload, Some(*header), visitor);
            return Ok(at + header.frame_bytes());
        }
        let next = self.resynchronise(at, to)?;
        self.report(at, next - at, DamageCause::FrameHeader, None, visitor);
        Ok(next)
    }

    fn report(
        &self,
        offset: u64,
        bytes: u64,
        cause: DamageCause,
        frame: Option<FrameHeader>,
        visitor: &mut dyn Visitor,
    ) {
        visitor.damage(&Damage { at: Position { segment: self.segment, offset }, bytes, cause, frame });
    }

    fn look(&mut self, at: u64, end: u64) -> Result<Found> {
        let Some(header) = self.header_at(at, end)? else { return Ok(Found::Nothing) };
        header.check_supported().map_err(|error| error.with_path(&self.path).with_offset(at))?;
        let sound = header.matches(self.rest_of_frame(at, &header)?);
        Ok(if sound { Found::Frame(header) } else { Found::BadPayload(header) })
    }

    /// The header at `at`, if one stands there and its frame ends by `end` and within the file.
    fn header_at(&mut self, at: u64, end: u64) -> Result<Option<FrameHeader>> {
        let place = FramePlace { segment: self.segment, epoch: self.epoch, offset: at };
        let header = self
            .bytes(at, FRAME_HEADER_BYTES)?
            .and_then(<[u8]>::first_chunk)
            .and_then(|bytes| FrameHeader::decode(bytes, place));
        let Some(header) = header else { return Ok(None) };
        let frame_end = at + header.frame_bytes();
        Ok((frame_end <= end && frame_end <= self.window.file_bytes).then_some(header))
    }

    /// Payload and padding of the frame at `at`; empty if the file has shrunk.
    fn rest_of_frame(&mut self, at: u64, header: &FrameHeader) -> Result<&[u8]> {
        let frame_bytes = usize::try_from(header.frame_bytes()).map_err(|_| self.changed(at))?;
        Ok(self.bytes(at, frame_bytes)?.and_then(|frame| frame.get(FRAME_HEADER_BYTES..)).unwrap_or_default())
    }

    /// The next place after the bad one at `at` where a header stands, or `end`.
    fn resynchronise(&mut self, at: u64, end: u64) -> Result<u64> {
        let step = FRAME_ALIGN_BYTES as u64;
        let last = end.min(self.window.file_bytes);
        let mut at = at.next_multiple_of(step) + if at.is_multiple_of(step) { step } else { 0 };
        while at + FRAME_HEADER_BYTES as u64 <= last {
            if self.header_at(at, end)?.is_some() {
                return Ok(at);
            }
            at += step;
        }
        Ok(end)
    }

    fn bytes(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        match self.window.get(at, len) {
            Ok(bytes) => Ok(bytes),
            Err(source) => Err(Error::io("read segment", source).with_path(&self.path).with_offset(at)),
        }
    }

    fn io_error(&self, source: io::Error, at: u64) -> Error {
        Error::io("read segment", source).with_path(&self.path).with_offset(at)
    }

    fn changed(&self, at: u64) -> Error {
        self.io_error(io::Error::other("two reads of the same bytes differ"), at)
    }
}

/// The payload in what follows a frame's header.
fn payload_of<'r>(header: &FrameHeader, rest: &'r [u8]) -> &'r [u8] {
    usize::try_from(header.payload_bytes).ok().and_then(|bytes| rest.get(..bytes)).unwrap_or_default()
}

/// A piece of a file in memory.
#[derive(Debug)]
struct Window {
    file: Arc<dyn StorageFile>,
    /// Length of the file when it was last looked at; nothing beyond is read.
    file_bytes: u64,
    buf: Vec<u8>,
    start: u64,
    filled: usize,
    /// How often it was filled; bytes are the same bytes as long as this stays.
    loads: u64,
}

impl Window {
    const BYTES: usize = 256 << 10;

    /// The bytes at `offset`; `None` if the file ends before their end.
    fn get(&mut self, offset: u64, len: usize) -> io::Result<Option<&[u8]>> {
        let ahead = self.file_bytes.saturating_sub(offset);
        if ahead < len as u64 {
            return Ok(None);
        }
        if self.inside(offset, len).is_none() {
            let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
            self.load(offset, len.max(Self::BYTES).min(ahead))?;
        }
        Ok(self.inside(offset, len).map(|at| &self.buf[at..at + len]))
    }

    fn inside(&self, offset: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        (at.checked_add(len)? <= self.filled).then_some(at)
    }

    fn load(&mut self, offset: u64, wanted: usize) -> io::Result<()> {
        self.loads += 1;
        self.start = offset;
        self.filled = 0;
        if self.buf.len() < wanted {
            self.buf.resize(wanted, 0);
        }
        while self.filled < wanted {
            match self.file.read_at(&mut self.buf[self.filled..wanted], offset + self.filled as u64) {
                Ok(0) => break,
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

const _: () = assert!(SEGMENT_HEADER_BYTES <= Window::BYTES);
