//! The 4,096 bytes at the start of every file of a store, raw segment or sealed.
//!
//! Owns their layout and what must hold between the fields in both; what a kind of file adds to that, its own module
//! checks.

use super::segment::{PreviousEnd, StoreId};
use super::{Features, SEGMENT_HEADER_BYTES, crc32, version::FORMAT_VERSION};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::{Error, ErrorKind, Result};

const HEADER_BYTES: u32 = 4096;
pub(super) const COPY_BYTES: usize = 128;
pub(super) const COPY_OFFSETS: [usize; 2] = [0, 2048];
pub(super) const CRC_OFFSET: usize = 124;
/// Ids and offsets from here on are refused, so that adding to one never overflows.
pub(super) const NUMBER_END: u64 = 1 << 63;

/// What a file says about itself.
// Format: section 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) store_id: StoreId,
    pub(super) first: SegmentId,
    pub(super) last: SegmentId,
    pub(super) epoch: WriterEpoch,
    pub(super) features: Features,
    pub(super) previous_end: PreviousEnd,
    pub(super) published: u64,
    /// 0 in a raw segment.
    pub(super) generation: u64,
}

impl FileHeader {
    pub(super) fn encode(&self, magic: [u8; 8]) -> Vec<u8> {
        let mut copy = [0; COPY_BYTES];
        let (previous_segment, previous_offset) =
            self.previous_end.map_or((0, 0), |end| (end.segment.get(), end.offset));
        copy[0..8].copy_from_slice(&magic);
        copy[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        copy[12..16].copy_from_slice(&HEADER_BYTES.to_le_bytes());
        copy[16..32].copy_from_slice(&self.store_id);
        let numbers = [
            self.first.get(),
            self.last.get(),
            self.epoch.get(),
            self.features.compatible,
            self.features.read_compatible,
            self.features.incompatible,
            previous_segment,
            previous_offset,
            self.published,
            self.generation,
        ];
        for (field, number) in copy[32..112].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32(&copy[..CRC_OFFSET]);
        copy[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES];
        for offset in COPY_OFFSETS {
            bytes[offset..offset + COPY_BYTES].copy_from_slice(&copy);
        }
        bytes
    }

    /// Reads the header from the first bytes of a file; `None` if they hold no sound copy of one with this magic.
    pub(super) fn decode(magic: [u8; 8], bytes: &[u8]) -> Result<Option<Self>> {
        let Some(copy) = COPY_OFFSETS.iter().find_map(|&offset| sound_copy(magic, bytes, offset)) else {
            return Ok(None);
        };
        let version = u32_at(copy, 8);
        if version > FORMAT_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "read file header: format version {version}, this release reads up to {FORMAT_VERSION}"
                ),
            ));
        }
        let features = Features {
            compatible: u64_at(copy, 56),
            read_compatible: u64_at(copy, 64),
            incompatible: u64_at(copy, 72),
        };
        features.check_read()?;
        let header = Self::from_copy(copy, features);
        header.check(copy)?;
        Ok(Some(header))
    }

    fn from_copy(copy: &[u8], features: Features) -> Self {
        let mut store_id = StoreId::default();
        store_id.copy_from_slice(&copy[16..32]);
        let previous = Position { segment: SegmentId::new(u64_at(copy, 80)), offset: u64_at(copy, 88) };
        Self {
            store_id,
            first: SegmentId::new(u64_at(copy, 32)),
            last: SegmentId::new(u64_at(copy, 40)),
            epoch: WriterEpoch::new(u64_at(copy, 48)),
            features,
            previous_end: (previous.segment.get() > 0).then_some(previous),
            published: u64_at(copy, 96),
            generation: u64_at(copy, 104),
        }
    }

    fn check(&self, copy: &[u8]) -> Result<()> {
        let previous = self.previous_end.map_or(0, |end| end.segment.get());
        let offset = self.previous_end.map_or(0, |end| end.offset);
        let first_frame = SEGMENT_HEADER_BYTES as u64;
        let sound = u32_at(copy, 12) == HEADER_BYTES
            && (1..NUMBER_END).contains(&self.first.get())
            && (self.first.get()..NUMBER_END).contains(&self.last.get())
            && self.epoch.get() < NUMBER_END
            && previous == self.first.get() - 1
            && offset < NUMBER_END
            && (first_frame..NUMBER_END).contains(&self.published)
            && self.generation < NUMBER_END;
        if sound {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, "read file header: its fields contradict each other"))
    }
}

fn sound_copy(magic: [u8; 8], bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let copy = bytes.get(offset..offset + COPY_BYTES)?;
    (copy.starts_with(&magic) && u32_at(copy, CRC_OFFSET) == crc32(&copy[..CRC_OFFSET])).then_some(copy)
}

fn u32_at(copy: &[u8], offset: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&copy[offset..offset + 4]);
    u32::from_le_bytes(bytes)
}

fn u64_at(copy: &[u8], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&copy[offset..offset + 8]);
    u64::from_le_bytes(bytes)
}

const _: () = assert!(HEADER_BYTES as usize == SEGMENT_HEADER_BYTES);
