//! A batch: the frames that become visible together or not at all.
//!
//! Encoded by the caller, outside every lock; only what depends on the place in the log waits for it: the header CRCs, and
//! where bases stand that are in the batch themselves.

use std::ops::Range;

use crate::format::{
    CODEC_PATCH, FRAME_HEADER_BYTES, FrameHeader, FrameKind, FramePlace, Patch, crc32, encode_patch,
    padding_bytes, seal_frames,
};
use crate::ids::{Position, SegmentId};
use crate::{Error, ErrorKind, Result, limits};

/// When a batch counts as committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Handed to the operating system: survives the end of the process, not the loss of power.
    Buffered,
    /// Synced to the medium.
    Synced,
}

/// What the caller says about a frame; the log adds the rest of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameDraft {
    /// What the frame holds; not a group or end frame.
    pub kind: FrameKind,
    /// Session key.
    pub subject: u64,
    /// Seq of the first event.
    pub tag: u64,
    /// Number of events.
    pub count: u32,
}

/// Where a frame stands in its batch, which is known only once the batch has its place: see
/// [`Committed::position_of`](super::Committed::position_of).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSlot {
    /// Its offset from the batch's first byte if the batch is written plain.
    pub(super) plain: u64,
    /// Its offset if those frames that have a patch are written as patches.
    pub(super) patched: u64,
    /// Bytes of its payload as a patch; 0 if it has none.
    pub(super) patch_bytes: u32,
}

/// A committed frame with a plain payload, since which later versions of it may say what changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchBase {
    /// Where it stands.
    pub at: Position,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Frames that are committed together. An empty batch commits nothing, but waits for all before it.
///
/// Frames that are versions of something have two forms, plain and as a patch. A base counts within its own segment
/// only, so which form is written is decided when the batch has its place: all patches, or none.
#[derive(Debug, Default)]
pub struct Batch {
    /// The frames, all of them plain.
    bytes: Vec<u8>,
    /// Where the frame begins that is being written.
    open: Option<usize>,
    last: Option<(usize, FrameHeader)>,
    /// Other forms of some frames, in order.
    patches: Vec<PatchedFrame>,
    /// The segment that the patches count in; `None`: any, because all their bases are in the batch.
    base_segment: Option<SegmentId>,
    /// How many bytes shorter the batch is with patches.
    patches_save: u64,
    /// The last version that has no patch: offset of its frame, and its header.
    own_base: Option<(FrameSlot, FrameHeader)>,
}

/// A frame's form as a patch.
#[derive(Debug)]
struct PatchedFrame {
    /// Where the plain form stands in the batch.
    plain: Range<usize>,
    header: FrameHeader,
    /// Offset of the base, if it is in the batch as well, when that is written with patches.
    base_in_batch: Option<u64>,
    /// Header, payload and padding.
    bytes: Vec<u8>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that the batch takes in the log at most.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether there is no frame in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a frame; answers its place in the batch.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if the frame or the batch becomes too large; [`ErrorKind::Invalid`] for a group or end frame,
    /// which only the log writes.
    pub fn push(&mut self, draft: FrameDraft, payload: &[u8]) -> Result<FrameSlot> {
        self.begin_frame(payload.len()).extend_from_slice(payload);
        self.end_frame(draft)
    }

    /// Begins a frame with room for so many bytes, and answers where to write its payload.
    pub(crate) fn begin_frame(&mut self, payload_bytes: usize) -> &mut Vec<u8> {
        debug_assert!(self.open.is_none(), "a frame is open");
        let (at, room) =
            (self.bytes.len(), FRAME_HEADER_BYTES + payload_bytes + padding_bytes(payload_bytes));
        if at == 0 {
            self.bytes.reserve_exact(room);
        } else {
            self.bytes.reserve(room);
        }
        self.open = Some(at);
        self.bytes.resize(at + FRAME_HEADER_BYTES, 0);
        &mut self.bytes
    }

    /// Where to write more of the payload of the frame that was begun last. What stands there is not to be touched.
    pub(crate) fn payload(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Ends the frame that was begun, with what was written since as its payload; answers its place in the batch. After an
    /// error the batch is as before the frame.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if the frame or the batch becomes too large; [`ErrorKind::Invalid`] for a group or end frame,
    /// which only the log writes, and without a frame that was begun.
    pub(crate) fn end_frame(&mut self, draft: FrameDraft) -> Result<FrameSlot> {
        let at = self
            .open
            .take()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "encode batch: no frame was begun"))?;
        self.finish_frame(at, draft).inspect_err(|_| self.bytes.truncate(at))?;
        let plain = at as u64;
        Ok(FrameSlot { plain, patched: plain - self.patches_save, patch_bytes: 0 })
    }

    /// Ends an events frame that is a version of something whose earlier version, of the same subject, is `base` or one in
    /// this batch. It is stored as what changed since then, where that is small and the base in the same segment; else it
    /// is a base itself.
    ///
    /// # Errors
    /// As [`end_frame`](Self::end_frame).
    pub(crate) fn end_version(&mut self, draft: FrameDraft, base: Option<&PatchBase>) -> Result<FrameSlot> {
        let slot = self.end_frame(draft)?;
        let Some((at, header)) = self.last else { return Ok(slot) };
        match self.patch_of(at, header, base) {
            Some(patch) => {
                let patch_bytes = patch.header.payload_bytes;
                self.patches_save += (patch.plain.len() - patch.bytes.len()) as u64;
                self.patches.push(patch);
                Ok(FrameSlot { patch_bytes, ..slot })
            }
            None => {
                self.own_base = Some((slot, header));
                Ok(slot)
            }
        }
    }

    fn finish_frame(&mut self, at: usize, draft: FrameDraft) -> Result<()> {
        if draft.kind.is_structural() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "encode batch: only the log writes group and end frames",
            ));
        }
        let payload = self.bytes.get(at + FRAME_HEADER_BYTES..).unwrap_or_default();
        let payload_bytes = u32::try_from(payload.len())
            .ok()
            .filter(|&bytes| u64::from(bytes) <= limits::FRAME_PAYLOAD_BYTES_MAX)
            .ok_or_else(|| too_large("frame", limits::FRAME_PAYLOAD_BYTES_MAX))?;
        let padded = self.bytes.len() + padding_bytes(payload.len());
        if padded as u64 > limits::BATCH_BYTES_MAX {
            return Err(too_large("batch", limits::BATCH_BYTES_MAX));
        }
        let header = FrameHeader {
            begins: at == 0,
            commits: true,
            payload_bytes,
            count: draft.count,
            decoded_bytes: payload_bytes,
            payload_crc: crc32(payload),
            ..FrameHeader::empty(draft.kind, draft.subject, draft.tag)
        };
        self.bytes.resize(padded, 0);
        put_header(&mut self.bytes, at, &header);
        if let Some((before, last)) = self.last.replace((at, header)) {
            put_header(&mut self.bytes, before, &FrameHeader { commits: false, ..last });
            if let Some(patch) = self.patches.last_mut().filter(|patch| patch.plain.start == before) {
                patch.header.commits = false;
                patch.put_header();
            }
        }
        Ok(())
    }

    /// The last frame as a patch, if there is a base from which little has changed.
    // Format: section 5.1.
    fn patch_of(&mut self, at: usize, header: FrameHeader, base: Option<&PatchBase>) -> Option<PatchedFrame> {
        let payload = payload_at(&self.bytes, at, &header).filter(|_| header.kind == FrameKind::EVENTS)?;
        let own = self.own_base.as_ref().filter(|(_, own)| own.subject == header.subject);
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        // Without memory for it there is no patch.
        let base_in_batch = if let Some((slot, own)) = own {
            let own_payload = payload_at(&self.bytes, usize::try_from(slot.plain).ok()?, own)?;
            encode_patch(0, own_payload, payload, &mut bytes).ok()?;
            Some(slot.patched)
        } else {
            let base = base.filter(|base| self.base_segment.is_none_or(|known| known == base.at.segment))?;
            encode_patch(base.at.offset, &base.payload, payload, &mut bytes).ok()?;
            None
        };
        let stored = &bytes[FRAME_HEADER_BYTES..];
        if stored.len() > payload.len() / PATCH_SHARE_MAX {
            return None;
        }
        let payload_bytes = u32::try_from(stored.len()).ok()?;
        let header = FrameHeader { codec: CODEC_PATCH, payload_bytes, payload_crc: crc32(stored), ..header };
        bytes.resize(bytes.len() + padding_bytes(stored.len()), 0);
        if base_in_batch.is_none() {
            self.base_segment = base.map(|base| base.at.segment);
        }
        let mut patch = PatchedFrame { plain: at..self.bytes.len(), header, base_in_batch, bytes };
        patch.put_header();
        Some(patch)
    }

    /// Whether the batch is written with patches if it goes into `segment`.
    fn is_patched_in(&self, segment: SegmentId) -> bool {
        !self.patches.is_empty() && self.base_segment.is_none_or(|bases| bases == segment)
    }

    /// How many bytes shorter than [`len`](Self::len) it is in `segment`.
    pub(super) fn saved_in(&self, segment: SegmentId) -> u64 {
        if self.is_patched_in(segment) { self.patches_save } else { 0 }
    }

    /// Number of patches that are written in `segment`.
    pub(super) fn patches_in(&self, segment: SegmentId) -> u64 {
        if self.is_patched_in(segment) { self.patches.len() as u64 } else { 0 }
    }

    /// Hands on the batch's bytes as they stand at `place`, piece by piece.
    pub(super) fn seal(
        &mut self,
        place: FramePlace,
        mut write: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if !self.is_patched_in(place.segment) {
            seal_frames(&mut self.bytes, place);
            return write(&self.bytes);
        }
        let mut next = place;
        let mut seal = |bytes: &mut [u8]| {
            seal_frames(bytes, next);
            next.offset += bytes.len() as u64;
            write(bytes)
        };
        let mut at = 0;
        for patch in &mut self.patches {
            seal(&mut self.bytes[at..patch.plain.start])?;
            patch.place_base(place.offset);
            seal(&mut patch.bytes)?;
            at = patch.plain.end;
        }
        seal(&mut self.bytes[at..])
    }
}

impl PatchedFrame {
    fn put_header(&mut self) {
        put_header(&mut self.bytes, 0, &self.header);
    }

    /// Names the base, if it is in the batch, which will stand at `batch_at`.
    fn place_base(&mut self, batch_at: u64) {
        let Some(base) = self.base_in_batch else { return };
        let Ok(payload_bytes) = usize::try_from(self.header.payload_bytes) else { return };
        let payload = &mut self.bytes[FRAME_HEADER_BYTES..][..payload_bytes];
        Patch::set_base(payload, batch_at + base);
        self.header.payload_crc = crc32(payload);
        self.put_header();
    }
}

fn put_header(bytes: &mut [u8], at: usize, header: &FrameHeader) {
    bytes[at..at + FRAME_HEADER_BYTES].copy_from_slice(&header.encode_unplaced());
}

/// The payload of the frame at `at`.
fn payload_at<'b>(bytes: &'b [u8], at: usize, header: &FrameHeader) -> Option<&'b [u8]> {
    bytes.get(at + FRAME_HEADER_BYTES..)?.get(..usize::try_from(header.payload_bytes).ok()?)
}

/// A patch is used if it takes no more than one part in so many of the payload.
const PATCH_SHARE_MAX: usize = 4;

fn too_large(what: &str, bytes_max: u64) -> Error {
    Error::new(ErrorKind::Limit, format!("encode batch: the {what} exceeds {bytes_max} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{SegmentId, WriterEpoch};

    const DRAFT: FrameDraft = FrameDraft { kind: FrameKind::EVENTS, subject: 1, tag: 2, count: 3 };

    #[test]
    fn only_the_last_frame_commits_and_only_the_first_begins() {
        let mut batch = Batch::new();
        let offsets = [b"a", b"b", b"c"].map(|payload| batch.push(DRAFT, payload).unwrap());
        let offsets = offsets.map(|slot| slot.plain);
        assert_eq!(offsets, [0, 48, 96]);
        let place = FramePlace { segment: SegmentId::new(1), epoch: WriterEpoch::new(1), offset: 4136 };
        let mut bytes = Vec::new();
        batch
            .seal(place, |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
        let flags = offsets.map(|offset| {
            let at = usize::try_from(offset).unwrap();
            let frame = bytes[at..at + 40].try_into().unwrap();
            let header = FrameHeader::decode(frame, FramePlace { offset: 4136 + offset, ..place }).unwrap();
            (header.begins, header.commits)
        });
        assert_eq!(flags, [(true, false), (false, false), (false, true)]);
    }

    #[test]
    fn a_failed_push_leaves_the_batch_as_it_was() {
        let mut batch = Batch::new();
        batch.push(DRAFT, b"kept").unwrap();
        let before = batch.bytes.clone();
        let end = FrameDraft { kind: FrameKind::END, ..DRAFT };
        assert_eq!(batch.push(end, &[1; 100]).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(batch.end_frame(DRAFT).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(batch.bytes, before);
    }
}
