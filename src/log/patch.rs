//! Reading frames by position out of one raw segment, patches by what they change.
//!
//! The only place where a patch meets its base: scans and reads by position come here. A base is an events frame of the same
//! subject with a plain payload that ends before the patch begins, so nothing is ever followed further than one step. What
//! is held: the bases read last, within [`limits`] and one of any size beyond, and one decoded payload.

use std::collections::VecDeque;
use std::sync::Arc;

use super::segments::{Frame, read_full};
use crate::format::compress::{DecodeFault, TextDecoder};
use crate::format::{CODEC_PLAIN, FRAME_HEADER_BYTES, FrameHeader, FrameKind, FramePlace, Patch};
use crate::ids::{SegmentId, WriterEpoch};
use crate::storage::StorageFile;
use crate::{Error, ErrorKind, Result, limits};

/// The file of a raw segment. Its errors have an offset and no path.
#[derive(Debug, Clone)]
pub(super) struct FrameFile {
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) segment: SegmentId,
    pub(super) epoch: WriterEpoch,
}

impl FrameFile {
    /// Reads the frame at `offset`, which must end by `end`, its payload decoded.
    pub(super) fn read(&self, offset: u64, end: u64) -> Result<Frame> {
        let mut frame = self.read_stored(offset, end)?;
        if frame.header.is_patch() {
            let mut reader = PatchReader::default();
            reader.decode(self, offset, &frame.header, &frame.payload)?;
            frame.payload = reader.text;
        }
        Ok(frame)
    }

    /// Reads the frame at `offset`, checking header and payload.
    fn read_stored(&self, offset: u64, end: u64) -> Result<Frame> {
        let io = |source| Error::io("read frame", source).with_offset(offset);
        let mut first = [0; FIRST_READ_BYTES];
        let filled = read_full(&*self.file, &mut first, offset).map_err(io)?;
        let place = FramePlace { segment: self.segment, epoch: self.epoch, offset };
        let header = first[..filled].first_chunk().and_then(|bytes| FrameHeader::decode(bytes, place));
        let Some(header) = header else { return Err(corrupt(offset, "there is no sound frame header")) };
        header.check_supported().map_err(|error| error.with_offset(offset))?;
        // Before anything is allocated: the frame has to be there.
        let frame_end = offset.saturating_add(header.frame_bytes());
        if frame_end > end.min(self.file.len().map_err(io)?) {
            return Err(corrupt(offset, "the segment ends within the frame"));
        }
        let (Ok(frame_bytes), Ok(payload_bytes)) =
            (usize::try_from(header.frame_bytes()), usize::try_from(header.payload_bytes))
        else {
            let message = "read frame: too large for this machine";
            return Err(Error::new(ErrorKind::Limit, message).with_offset(offset));
        };
        let mut payload = Vec::with_capacity(frame_bytes - FRAME_HEADER_BYTES);
        payload.extend_from_slice(&first[FRAME_HEADER_BYTES..filled.min(frame_bytes)]);
        let have = payload.len();
        payload.resize(frame_bytes - FRAME_HEADER_BYTES, 0);
        let next = offset + (FRAME_HEADER_BYTES + have) as u64;
        read_full(&*self.file, &mut payload[have..], next).map_err(io)?;
        if !header.matches(&payload) {
            return Err(corrupt(offset, "the payload does not match its checksum"));
        }
        payload.truncate(payload_bytes);
        Ok(Frame { header, payload })
    }
}

/// Decodes the patches of one segment.
#[derive(Debug, Default)]
pub(super) struct PatchReader {
    decoder: Option<TextDecoder>,
    bases: Bases,
    text: Vec<u8>,
}

impl PatchReader {
    /// The payload of the sound patch frame at `offset` whose stored payload this is.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], at the patch, if its base is none or does not make what was promised.
    pub(super) fn decode(
        &mut self,
        file: &FrameFile,
        offset: u64,
        header: &FrameHeader,
        stored: &[u8],
    ) -> Result<&[u8]> {
        let patch = Patch::read(stored).ok_or_else(|| corrupt(offset, "the patch is too short"))?;
        let base = self.bases.get(file, patch.base_at, offset).map_err(|error| {
            let cause = format!("its base at offset {} is none: {}", patch.base_at, error.message());
            match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Unsupported => corrupt(offset, &cause),
                _ => error,
            }
        })?;
        if base.header.subject != header.subject {
            return Err(corrupt(offset, "its base belongs to another session"));
        }
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(TextDecoder::new()?),
        };
        match patch.apply(&base.payload, header.decoded_bytes, decoder, &mut self.text) {
            Ok(()) => Ok(&self.text),
            Err(DecodeFault::OutOfMemory) => {
                let message = "read frame: no memory for its payload";
                Err(Error::new(ErrorKind::Limit, message).with_offset(offset))
            }
            Err(_) => Err(corrupt(offset, "its base does not make the payload that was promised")),
        }
    }
}

/// The bases that were read last, the latest one at the end.
#[derive(Debug, Default)]
struct Bases {
    frames: VecDeque<(u64, Frame)>,
    bytes: usize,
}

impl Bases {
    /// The frame at `at`, if it can be the base of one at `patch_at`.
    fn get(&mut self, file: &FrameFile, at: u64, patch_at: u64) -> Result<&Frame> {
        let known = self.frames.iter().position(|(known, _)| *known == at);
        let frame = match known.and_then(|index| self.frames.remove(index)) {
            Some((_, frame)) => frame,
            None => {
                if at >= patch_at {
                    return Err(corrupt(at, "it lies behind"));
                }
                self.make_room();
                let frame = file.read_stored(at, patch_at)?;
                if frame.header.kind != FrameKind::EVENTS || frame.header.codec != CODEC_PLAIN {
                    return Err(corrupt(at, "no plain events frame stands there"));
                }
                self.bytes += frame.payload.len();
                frame
            }
        };
        self.frames.push_back((at, frame));
        self.frames.back().map(|(_, frame)| frame).ok_or_else(|| corrupt(at, "there is none"))
    }

    /// Before the next one is read, so that there is never more than one beyond the limits.
    fn make_room(&mut self) {
        while self.bytes > limits::PATCH_BASES_BYTES_MAX || self.frames.len() >= limits::PATCH_BASES_MAX {
            let Some((_, oldest)) = self.frames.pop_front() else { return };
            self.bytes -= oldest.payload.len();
        }
    }
}

fn corrupt(offset: u64, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("read frame: {what}")).with_offset(offset)
}

/// One read serves header and payload of most frames.
const FIRST_READ_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::crc32;
    use crate::log::testing::TestStorage;
    use crate::storage::{Access, Storage};

    /// A file of plain events frames with payloads of these sizes, and where they stand.
    fn file(sizes: impl Iterator<Item = usize>) -> (FrameFile, Vec<u64>) {
        let (segment, epoch) = (SegmentId::new(1), WriterEpoch::new(1));
        let (mut bytes, mut offsets) = (vec![0; 4096], Vec::new());
        for size in sizes {
            let offset = bytes.len() as u64;
            let payload = vec![7; size];
            let payload_bytes = u32::try_from(size).unwrap();
            let header = FrameHeader {
                payload_bytes,
                decoded_bytes: payload_bytes,
                payload_crc: crc32(&payload),
                ..FrameHeader::empty(FrameKind::EVENTS, 9, 0)
            };
            bytes.extend(header.encode(FramePlace { segment, epoch, offset }));
            bytes.extend(payload);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            offsets.push(offset);
        }
        let storage = TestStorage::new();
        storage.put("file", bytes);
        (FrameFile { file: storage.open("file", Access::Read).unwrap(), segment, epoch }, offsets)
    }

    #[test]
    fn bases_are_kept_within_their_bounds_and_the_latest_ones_at_hand() {
        let large = limits::PATCH_BASES_BYTES_MAX + 1;
        let (file, offsets) = file(std::iter::repeat_n(1_000, 100).chain([large, large, 1_000]));
        let mut bases = Bases::default();
        for at in &offsets[..100] {
            assert_eq!(bases.get(&file, *at, u64::MAX).unwrap().payload.len(), 1_000);
            bases.get(&file, offsets[0], u64::MAX).unwrap();
            assert!(bases.frames.len() <= limits::PATCH_BASES_MAX);
            assert!(bases.frames.iter().any(|(known, _)| *known == offsets[0]), "used all the time");
        }
        for at in &offsets[100..] {
            bases.get(&file, *at, u64::MAX).unwrap();
            assert_eq!(bases.bytes, bases.frames.iter().map(|(_, frame)| frame.payload.len()).sum::<usize>());
        }
        assert_eq!(bases.frames.len(), 1, "nothing is kept beside a large one");
    }
}
