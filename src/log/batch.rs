//! A batch: the frames that become visible together or not at all.
//!
//! Encoded by the caller, outside every lock; only the header CRCs wait for the place in the log.

use crate::format::{
    FRAME_HEADER_BYTES, FrameHeader, FrameKind, FramePlace, crc32, padding_bytes, seal_frames,
};
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

/// Frames that are committed together. An empty batch commits nothing, but waits for all before it.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Where the frame begins that is being written.
    open: Option<usize>,
    last: Option<(usize, FrameHeader)>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that the batch takes in the log.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether there is no frame in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a frame; answers its offset from the batch's first byte, which
    /// [`Committed::at`](super::Committed::at) will place.
    ///
    /// # Errors
    /// As [`end_frame`](Self::end_frame).
    pub fn push(&mut self, draft: FrameDraft, payload: &[u8]) -> Result<u64> {
        self.begin_frame(payload.len()).extend_from_slice(payload);
        self.end_frame(draft)
    }

    /// Begins a frame with room for so many bytes, and answers where to write its payload.
    pub fn begin_frame(&mut self, payload_bytes: usize) -> &mut Vec<u8> {
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
    pub fn payload(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Ends the frame that was begun, with what was written since as its payload; answers its offset as
    /// [`push`](Self::push) does. After an error the batch is as before the frame.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if the frame or the batch becomes too large; [`ErrorKind::Invalid`] for a group or end frame,
    /// which only the log writes, and without a frame that was begun.
    pub fn end_frame(&mut self, draft: FrameDraft) -> Result<u64> {
        let at = self
            .open
            .take()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "encode batch: no frame was begun"))?;
        self.finish_frame(at, draft).inspect_err(|_| self.bytes.truncate(at))?;
        Ok(at as u64)
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
        self.put_header(at, &header);
        if let Some((before, last)) = self.last.replace((at, header)) {
            self.put_header(before, &FrameHeader { commits: false, ..last });
        }
        Ok(())
    }

    fn put_header(&mut self, at: usize, header: &FrameHeader) {
        self.bytes[at..at + FRAME_HEADER_BYTES].copy_from_slice(&header.encode_unplaced());
    }

    /// The batch's bytes as they stand at `place`.
    pub(super) fn seal(&mut self, place: FramePlace) -> &[u8] {
        seal_frames(&mut self.bytes, place);
        &self.bytes
    }
}

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
        assert_eq!(offsets, [0, 48, 96]);
        let place = FramePlace { segment: SegmentId::new(1), epoch: WriterEpoch::new(1), offset: 4136 };
        let bytes = batch.seal(place);
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
