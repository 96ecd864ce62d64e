//! Puts groups into the log: the active segment, its rotation, and the space prepared ahead.
//!
//! Used by one leader at a time, under the committer's lock. After any error the writer is dead: it never
//! writes again, because what reached the disk is unknown. It keeps: a segment is synced to its end before
//! the next one gets its name; a batch never crosses segments; what a group frame names as synced was
//! synced.

use std::io;
use std::sync::Arc;

use super::batch::{Batch, Durability};
use super::commit::Entry;
use super::completion::Committed;
use super::metrics::Counters;
use super::scan::{Damage, Visitor};
use super::segments::{SPARE_NAME, Segments, temporary_name};
use crate::format::{
    CODEC_PLAIN, FRAME_HEADER_BYTES, Features, FrameHeader, FrameKind, FramePlace, Patch,
    SEGMENT_HEADER_BYTES, SegmentHeader, StoreId, crc32, padding_bytes, segment_file_name,
};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::storage::{Access, StorageFile};
use crate::{Error, ErrorKind, Result, limits};

const HEADER_BYTES: u64 = SEGMENT_HEADER_BYTES as u64;
const FRAME_BYTES: u64 = FRAME_HEADER_BYTES as u64;
/// One write of zeros: short, because a commit may wait for it.
static ZERO_CHUNK: [u8; 256 << 10] = [0; 256 << 10];

/// What a writer is made of.
#[derive(Debug, Clone)]
pub(super) struct WriterParts {
    pub(super) segments: Arc<Segments>,
    pub(super) counters: Arc<Counters>,
    pub(super) store_id: StoreId,
    pub(super) epoch: WriterEpoch,
    pub(super) segment_bytes_max: u64,
    pub(super) clock: fn() -> u64,
}

#[derive(Debug)]
pub(super) struct Writer {
    parts: WriterParts,
    active: Option<Active>,
    /// Where the next segment's predecessor ends; `None` in an empty store.
    previous_end: Option<Position>,
    /// Bytes of the active segment that are not handed to the file yet: the last ones before `written`.
    buffer: Vec<u8>,
    spare: Option<Spare>,
    spare_refused: bool,
    /// Bytes of the last commit.
    group_bytes: u64,
    /// A segment was ended since somebody asked.
    segment_ended: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Failed,
    Finished,
}

#[derive(Debug)]
struct Active {
    file: Arc<dyn StorageFile>,
    segment: SegmentId,
    written: u64,
    synced: u64,
    /// How many bytes more its frames would take without patches.
    patches_saved: u64,
    /// The part of that below `synced`.
    patches_saved_synced: u64,
    /// A group frame of the present commit stands in this segment.
    in_group: bool,
    /// The file holds zeros from `written` up to here.
    zeroed: u64,
    /// Up to where zeroing is under way.
    zero_target: u64,
    /// Some of the zeros were never synced.
    zeros_are_new: bool,
}

/// What a sync off the commit path will have made durable.
pub(super) struct Backlog {
    file: Arc<dyn StorageFile>,
    through: Position,
    patches_saved: u64,
}

impl Backlog {
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// A file for the next segment, zeroed so that its first commits do not grow it.
#[derive(Debug)]
pub(super) struct Spare {
    file: Arc<dyn StorageFile>,
    zeroed: u64,
}

/// All that is needed to prepare a spare without the writer.
pub(super) struct SpareRecipe {
    segments: Arc<Segments>,
    bytes: u64,
}

impl Writer {
    pub(super) fn new(parts: WriterParts, previous_end: Option<Position>) -> Self {
        Self {
            parts,
            active: None,
            previous_end,
            buffer: Vec::new(),
            spare: None,
            spare_refused: false,
            group_bytes: 0,
            segment_ended: false,
            state: State::Open,
        }
    }

    /// The position below which everything is durable.
    pub(super) fn synced_through(&self) -> Position {
        match (&self.active, self.previous_end) {
            (Some(active), _) => Position { segment: active.segment, offset: active.synced },
            (None, Some(end)) => end,
            (None, None) => Position { segment: SegmentId::new(1), offset: 0 },
        }
    }

    /// Writes a group and, if anyone asked, syncs it; says of each entry where it stands.
    pub(super) fn commit(&mut self, group: &mut [Entry]) -> Result<()> {
        self.unless_failed(|writer| {
            let start = writer.end();
            writer.commit_group(group).inspect_err(|_| writer.cut_back(start))
        })
    }

    /// Takes a failed group out of the file, as far as the system lets it: nobody was told that any of it is stored.
    fn cut_back(&self, start: Position) {
        if let Some(active) = self.active.as_ref().filter(|active| active.segment == start.segment) {
            let _ = active.file.set_len(start.offset);
        }
    }

    fn unless_failed(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.state != State::Open {
            return Err(Error::new(
                ErrorKind::Closed,
                "write to log: an earlier write failed; reopen the store",
            ));
        }
        // Failed until proven otherwise, so that a panic on the way counts as a failure.
        self.state = State::Failed;
        write(self)?;
        self.state = State::Open;
        Ok(())
    }

    fn commit_group(&mut self, group: &mut [Entry]) -> Result<()> {
        if let Some(active) = &mut self.active {
            active.in_group = false;
        }
        let mut batches = 0;
        self.group_bytes = 0;
        for entry in &mut *group {
            if entry.batch.is_empty() {
                let end = self.end();
                entry.committed = Some(Committed { at: end, end, patched: false });
                continue;
            }
            batches += 1;
            entry.committed = Some(self.append_batch(&mut entry.batch)?);
        }
        self.write_buffered()?;
        if group.iter().any(|entry| entry.durability == Durability::Synced) {
            self.sync()?;
        }
        if batches > 0 {
            self.parts.counters.group(batches);
        }
        Ok(())
    }

    fn append_batch(&mut self, batch: &mut Batch) -> Result<Committed> {
        let place = self.place(batch)?;
        batch.seal(place, |bytes| self.append(bytes))?;
        let (patches, saved) = (batch.patches_in(place.segment), batch.saved_in(place.segment));
        if patches > 0 {
            self.active_mut()?.patches_saved += saved;
            self.parts.counters.patched(patches);
        }
        self.group_bytes += batch.len() - saved;
        let at = Position { segment: place.segment, offset: place.offset };
        Ok(Committed { at, end: self.end(), patched: patches > 0 })
    }

    fn end(&self) -> Position {
        self.active.as_ref().map_or_else(
            || self.synced_through(),
            |active| Position { segment: active.segment, offset: active.written },
        )
    }

    /// The place for a batch: in the active segment behind its group frame, or in a new one if it does not
    /// fit.
    // Format: section 6.
    fn place(&mut self, batch: &Batch) -> Result<FramePlace> {
        if let Some(active) = &self.active {
            let group_bytes = if active.in_group { 0 } else { FRAME_BYTES };
            let batch_bytes = batch.len() - batch.saved_in(active.segment);
            let needed = active.written + group_bytes + batch_bytes + FRAME_BYTES;
            // A batch too large for any segment gets one of its own.
            if needed > self.parts.segment_bytes_max && active.written > HEADER_BYTES {
                self.end_segment()?;
            }
        }
        if self.active.is_none() {
            self.begin_segment(|_| Ok(()))?;
        }
        if !self.active()?.in_group {
            self.append_structural(FrameKind::GROUP)?;
            self.active_mut()?.in_group = true;
        }
        self.next_place()
    }

    fn next_place(&self) -> Result<FramePlace> {
        let active = self.active()?;
        Ok(FramePlace { segment: active.segment, epoch: self.parts.epoch, offset: active.written })
    }

    /// Writes a group or end frame: it names what is synced.
    fn append_structural(&mut self, kind: FrameKind) -> Result<()> {
        let place = self.next_place()?;
        let header = FrameHeader::empty(kind, place.segment.get(), self.active()?.synced);
        self.append(&header.encode(place))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > limits::WRITE_BUFFER_BYTES {
            self.write_buffered()?;
        }
        self.active_mut()?.written += bytes.len() as u64;
        if bytes.len() > limits::WRITE_BUFFER_BYTES {
            return self.write_last(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn write_buffered(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        if !buffer.is_empty() {
            self.write_last(&buffer)?;
        }
        buffer.clear();
        self.buffer = buffer;
        Ok(())
    }

    /// Writes `bytes` as the last ones before `written`.
    fn write_last(&self, bytes: &[u8]) -> Result<()> {
        let active = self.active()?;
        let offset = active.written - bytes.len() as u64;
        active.file.write_all_at(bytes, offset).map_err(|source| self.failed("write to log", source))?;
        self.parts.counters.wrote(bytes.len() as u64);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let Some(active) = &self.active else { return Ok(()) };
        if active.synced == active.written {
            return Ok(());
        }
        let started = (self.parts.clock)();
        active.file.sync_data().map_err(|source| self.failed("sync log", source))?;
        self.parts.counters.synced((self.parts.clock)().saturating_sub(started));
        let active = self.active_mut()?;
        active.synced = active.written;
        active.patches_saved_synced = active.patches_saved;
        Ok(())
    }

    /// Closes the active segment: end frame, sync, cut. The end frame itself is nobody's premise.
    // Format: section 6.
    fn end_segment(&mut self) -> Result<()> {
        let end = self.end();
        self.append_structural(FrameKind::END)?;
        self.write_buffered()?;
        self.sync()?;
        let active = self.active()?;
        if active.zeroed > active.written {
            active.file.set_len(active.written).map_err(|source| self.failed("cut segment", source))?;
        }
        self.parts.segments.set_end(end.segment, end.offset);
        self.previous_end = Some(end);
        self.active = None;
        self.segment_ended = true;
        Ok(())
    }

    /// Begins the next segment. What `fill` appends is durable in it before it gets its name.
    // Format: sections 3 and 4.
    fn begin_segment(&mut self, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let segment = self.previous_end.map_or(SegmentId::new(1), |end| end.segment.next());
        let name = segment_file_name(segment);
        let spare = self.spare.take();
        let temporary = if spare.is_some() { SPARE_NAME.to_owned() } else { temporary_name(&name) };
        let storage = Arc::clone(&self.parts.segments);
        let failed = |source| storage.io_error("begin segment", &name, source);
        let (file, zeroed) = match spare {
            Some(spare) => (spare.file, spare.zeroed),
            None => (storage.storage().create_new(&temporary).map_err(failed)?, 0),
        };
        self.active = Some(Active {
            file: Arc::clone(&file),
            segment,
            written: HEADER_BYTES,
            synced: HEADER_BYTES,
            patches_saved: 0,
            patches_saved_synced: 0,
            in_group: false,
            zeroed,
            zero_target: zeroed,
            zeros_are_new: false,
        });
        fill(self)?;
        self.write_buffered()?;
        let published = self.end().offset;
        let header = SegmentHeader {
            store_id: self.parts.store_id,
            segment,
            epoch: self.parts.epoch,
            features: Features::default(),
            previous_end: self.previous_end,
            published,
        };
        file.write_all_at(&header.encode(), 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        storage.storage().rename(&temporary, &name).map_err(failed)?;
        storage.storage().sync_directory().map_err(failed)?;
        self.active_mut()?.synced = published;
        storage.add(segment, self.parts.epoch, u64::MAX, file);
        self.parts.counters.wrote(HEADER_BYTES);
        self.parts.counters.began_segment();
        Ok(())
    }

    /// Begins the first segment of this opening at once; `copy` may bring in what recovery saved.
    pub(super) fn begin_recovered(
        &mut self,
        copy: impl FnOnce(&mut dyn Visitor) -> Result<()>,
    ) -> Result<()> {
        self.unless_failed(|writer| {
            writer.begin_segment(|writer| {
                let mut copier = Copier { writer, lost: Ok(()) };
                copy(&mut copier).and(copier.lost)
            })
        })
    }

    /// The active segment, or the last one that was.
    pub(super) fn newest_segment(&self) -> SegmentId {
        self.end().segment
    }

    /// Whether a segment was ended since this was asked before.
    pub(super) fn take_segment_ended(&mut self) -> bool {
        std::mem::take(&mut self.segment_ended)
    }

    /// Whether the active segment holds no frame.
    pub(super) fn is_newest_empty(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.written == HEADER_BYTES)
    }

    /// Ends the active segment, if it holds anything, and has a fresh one active.
    pub(super) fn rotate(&mut self) -> Result<SegmentId> {
        self.unless_failed(|writer| {
            if writer.is_newest_empty() {
                return Ok(());
            }
            if writer.active.is_some() {
                writer.sync()?;
                writer.end_segment()?;
            }
            writer.begin_segment(|_| Ok(()))
        })?;
        Ok(self.newest_segment())
    }

    /// Closes the log: everything synced, the active segment ended.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.state == State::Finished {
            return Ok(());
        }
        self.unless_failed(|writer| {
            writer.sync()?;
            if writer.active.is_some() { writer.end_segment() } else { Ok(()) }
        })?;
        self.state = State::Finished;
        if self.spare.take().is_some() {
            // Left behind, it would be deleted at the next opening.
            let _ = self.parts.segments.storage().remove(SPARE_NAME);
        }
        Ok(())
    }

    /// Refuses all further work.
    pub(super) fn abandon(&mut self) {
        self.state = State::Failed;
    }

    /// Whether upkeep would find something to do.
    pub(super) fn maintenance_due(&self) -> bool {
        self.state == State::Open && (self.zero_ahead_due() || self.is_backlog_due() || self.is_spare_due())
    }

    fn zero_ahead_due(&self) -> bool {
        let Some(active) = &self.active else { return false };
        let room_ahead = active.zeroed.saturating_sub(active.written);
        // Large groups outrun the zeros, which would only be written twice.
        active.written > HEADER_BYTES
            && active.zero_target < self.parts.segment_bytes_max
            && room_ahead < limits::ZERO_AHEAD_STEP_BYTES / 2
            && self.group_bytes < limits::ZERO_AHEAD_STEP_BYTES / 2
    }

    /// Writes one chunk of zeros ahead; answers whether there may be more to write.
    pub(super) fn zero_ahead_step(&mut self) -> bool {
        let due = self.state == State::Open && self.zero_ahead_due();
        let bytes_max = self.parts.segment_bytes_max;
        let Some(active) = self.active.as_mut().filter(|_| self.state == State::Open) else { return false };
        let from = active.zeroed.max(active.written);
        if due && from >= active.zero_target {
            active.zero_target = (from + limits::ZERO_AHEAD_STEP_BYTES).min(bytes_max);
        }
        let missing = active.zero_target.saturating_sub(from);
        let chunk = usize::try_from(missing).unwrap_or(usize::MAX).min(ZERO_CHUNK.len());
        if chunk == 0 {
            return false;
        }
        if active.file.write_all_at(&ZERO_CHUNK[..chunk], from).is_err() {
            // Without space ahead commits grow the file, or report the full disk themselves.
            active.zero_target = bytes_max;
            active.zeroed = bytes_max;
            return false;
        }
        active.zeroed = from + chunk as u64;
        active.zeros_are_new = true;
        true
    }

    fn is_backlog_due(&self) -> bool {
        self.active.as_ref().is_some_and(|active| {
            // Recovery writes patches plain.
            let patches_save = active.patches_saved - active.patches_saved_synced;
            let unsynced = active.written - active.synced + patches_save;
            active.zeros_are_new || unsynced > limits::UNSYNCED_BYTES_MAX
        })
    }

    /// What is to be synced off the commit path: new zeros, or more unsynced batches than recovery should
    /// have to move. Through a handle of its own: the system tells each handle once that writing back
    /// failed, and what this sync is told must not be kept from a commit's.
    pub(super) fn backlog_due(&mut self) -> Option<Backlog> {
        let due = self.state == State::Open && self.is_backlog_due();
        let through = self.end();
        let active = self.active.as_mut().filter(|_| due)?;
        let storage = self.parts.segments.storage();
        let file = storage.open(&segment_file_name(active.segment), Access::Write).ok()?;
        active.zeros_are_new = false;
        Some(Backlog { file, through, patches_saved: active.patches_saved })
    }

    /// The backlog's sync returned. If a commit failed meanwhile, that proves nothing.
    pub(super) fn note_synced(&mut self, backlog: &Backlog) {
        let open = self.state == State::Open;
        let active = self.active.as_mut().filter(|_| open);
        if let Some(active) = active.filter(|active| active.segment == backlog.through.segment) {
            active.synced = active.synced.max(backlog.through.offset);
            active.patches_saved_synced = active.patches_saved_synced.max(backlog.patches_saved);
        }
    }

    fn is_spare_due(&self) -> bool {
        let half_full =
            self.active.as_ref().is_some_and(|active| active.written > self.parts.segment_bytes_max / 2);
        half_full && self.spare.is_none() && !self.spare_refused
    }

    pub(super) fn spare_due(&self) -> Option<SpareRecipe> {
        (self.state == State::Open && self.is_spare_due()).then(|| SpareRecipe {
            segments: Arc::clone(&self.parts.segments),
            bytes: self.parts.segment_bytes_max.min(limits::ZERO_AHEAD_STEP_BYTES),
        })
    }

    pub(super) fn keep_spare(&mut self, spare: Option<Spare>) {
        self.spare_refused = spare.is_none();
        self.spare = spare;
    }

    fn active(&self) -> Result<&Active> {
        self.active.as_ref().ok_or_else(no_segment)
    }

    fn active_mut(&mut self) -> Result<&mut Active> {
        self.active.as_mut().ok_or_else(no_segment)
    }

    fn failed(&self, attempted: &str, source: io::Error) -> Error {
        let segment = self.end().segment;
        self.parts.segments.io_error(attempted, &segment_file_name(segment), source)
    }
}

impl SpareRecipe {
    /// Makes the file; `None` if that fails, which costs speed and nothing else: no batch is in it.
    pub(super) fn prepare(&self) -> Option<Spare> {
        let storage = self.segments.storage();
        let file = storage.create_new(SPARE_NAME).ok()?;
        match self.zero(&*file) {
            Ok(zeroed) => Some(Spare { file, zeroed }),
            Err(_) => {
                let _ = storage.remove(SPARE_NAME);
                None
            }
        }
    }

    fn zero(&self, file: &dyn StorageFile) -> io::Result<u64> {
        let mut zeroed = 0;
        while zeroed < self.bytes {
            let missing = usize::try_from(self.bytes - zeroed).unwrap_or(usize::MAX);
            let chunk = missing.min(ZERO_CHUNK.len());
            file.write_all_at(&ZERO_CHUNK[..chunk], zeroed)?;
            zeroed += chunk as u64;
        }
        file.sync_data()?;
        Ok(zeroed)
    }
}

/// Writes the frames it visits anew, patches plain: their bases stay behind.
struct Copier<'a> {
    writer: &'a mut Writer,
    /// How writing the frames went that cannot be read.
    lost: Result<()>,
}

impl Copier<'_> {
    fn write(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<()> {
        let writer = &mut *self.writer;
        if !writer.active()?.in_group {
            writer.append_structural(FrameKind::GROUP)?;
            writer.active_mut()?.in_group = true;
        }
        let header = header.encode(writer.next_place()?);
        writer.append(&header)?;
        writer.append(payload)?;
        writer.append(&[0; 8][..padding_bytes(payload.len())])
    }
}

impl Visitor for Copier<'_> {
    fn frame(&mut self, _: Position, header: &FrameHeader, payload: &[u8]) -> Result<()> {
        if !header.is_patch() {
            return self.write(header, payload);
        }
        let (payload_bytes, payload_crc) = (header.decoded_bytes, crc32(payload));
        self.write(&FrameHeader { codec: CODEC_PLAIN, payload_bytes, payload_crc, ..*header }, payload)
    }

    /// A patch whose base is damaged: its header goes on to say what is lost.
    fn damage(&mut self, damage: &Damage) {
        let Some(frame) = damage.frame.filter(FrameHeader::is_patch).filter(|_| self.lost.is_ok()) else {
            return;
        };
        let payload = Patch::lost();
        let header = FrameHeader { payload_bytes: Patch::LOST_BYTES, payload_crc: crc32(&payload), ..frame };
        self.lost = self.write(&header, &payload);
    }
}

fn no_segment() -> Error {
    Error::new(ErrorKind::Closed, "write to log: no segment is active")
}
