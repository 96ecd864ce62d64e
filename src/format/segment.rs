//! The header of a segment file, and the names of segment files.

use super::{Features, SEGMENT_HEADER_BYTES, crc32, version::FORMAT_VERSION};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::{Error, ErrorKind, Result};

/// Names one store; the same in every file of it. Handed in by whoever creates the store.
pub type StoreId = [u8; 16];

/// Up to where the preceding segment counts; `None` in the first segment.
pub type PreviousEnd = Option<Position>;

const HEADER_BYTES: u32 = 4096;
const MAGIC: [u8; 8] = *b"SESSLOG\n";
const COPY_BYTES: usize = 128;
const COPY_OFFSETS: [usize; 2] = [0, 2048];
const CRC_OFFSET: usize = 124;
/// Ids and offsets from here on are refused, so that adding to one never overflows.
const NUMBER_END: u64 = 1 << 63;

/// What a raw segment says about itself.
// Format: section 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store that the file belongs to.
    pub store_id: StoreId,
    /// The segment's id.
    pub segment: SegmentId,
    /// The opening for writing that created it.
    pub epoch: WriterEpoch,
    /// Features that its frames may use.
    pub features: Features,
    /// Where the preceding segment ends.
    pub previous_end: PreviousEnd,
    /// Bytes of the file that were durable before it got its name.
    pub published: u64,
}

impl SegmentHeader {
    /// The bytes from the file's start to its first frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut copy = [0; COPY_BYTES];
        let segment = self.segment.get();
        let (previous_segment, previous_offset) =
            self.previous_end.map_or((0, 0), |end| (end.segment.get(), end.offset));
        copy[0..8].copy_from_slice(&MAGIC);
        copy[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        copy[12..16].copy_from_slice(&HEADER_BYTES.to_le_bytes());
        copy[16..32].copy_from_slice(&self.store_id);
        let numbers = [
            segment,
            segment,
            self.epoch.get(),
            self.features.compatible,
            self.features.read_compatible,
            self.features.incompatible,
            previous_segment,
            previous_offset,
            self.published,
        ];
        for (field, number) in copy[32..104].chunks_exact_mut(8).zip(numbers) {
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

    /// Reads the header from the first bytes of a file; `None` if they hold no sound copy of one.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a newer version or an unknown incompatible feature, and
    /// [`ErrorKind::Corrupt`] if a sound copy contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(copy) = COPY_OFFSETS.iter().find_map(|&offset| sound_copy(bytes, offset)) else {
            return Ok(None);
        };
        let version = u32_at(copy, 8);
        if version > FORMAT_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "read segment header: format version {version}, this release reads up to {FORMAT_VERSION}"
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
            segment: SegmentId::new(u64_at(copy, 32)),
            epoch: WriterEpoch::new(u64_at(copy, 48)),
            features,
            previous_end: (previous.segment.get() > 0).then_some(previous),
            published: u64_at(copy, 96),
        }
    }

    fn check(&self, copy: &[u8]) -> Result<()> {
        let segment = self.segment.get();
        let previous = self.previous_end.map_or(0, |end| end.segment.get());
        let offset = self.previous_end.map_or(0, |end| end.offset);
        let first_frame = SEGMENT_HEADER_BYTES as u64;
        let sound = u32_at(copy, 12) == HEADER_BYTES
            && (1..NUMBER_END).contains(&segment)
            && u64_at(copy, 40) == segment
            && self.epoch.get() < NUMBER_END
            && previous == segment - 1
            && offset < NUMBER_END
            && (first_frame..NUMBER_END).contains(&self.published);
        if sound {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, "read segment header: its fields contradict each other"))
    }
}

/// Name of the raw segment file of `segment`.
// Format: section 3.
#[must_use]
pub fn segment_file_name(segment: SegmentId) -> String {
    format!("{:016x}.log", segment.get())
}

/// The segment whose file has this name; `None` for any other file.
#[must_use]
pub fn parse_segment_name(name: &str) -> Option<SegmentId> {
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 16)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    let segment = SegmentId::new(number);
    ((1..NUMBER_END).contains(&number) && segment_file_name(segment) == name).then_some(segment)
}

fn sound_copy(bytes: &[u8], offset: usize) -> Option<&[u8]> {
    let copy = bytes.get(offset..offset + COPY_BYTES)?;
    (copy.starts_with(&MAGIC) && u32_at(copy, CRC_OFFSET) == crc32(&copy[..CRC_OFFSET])).then_some(copy)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            store_id: *b"0123456789abcdef",
            segment: SegmentId::new(2),
            epoch: WriterEpoch::new(7),
            features: Features::default(),
            previous_end: Some(Position { segment: SegmentId::new(1), offset: 4136 }),
            published: 4096,
        }
    }

    fn resealed(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut bytes = header().encode();
        for offset in COPY_OFFSETS {
            let copy = &mut bytes[offset..offset + COPY_BYTES];
            change(copy);
            let crc = crc32(&copy[..CRC_OFFSET]).to_le_bytes();
            copy[CRC_OFFSET..].copy_from_slice(&crc);
        }
        bytes
    }

    #[test]
    fn bytes_are_pinned() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), 4096);
        let mut expected = Vec::new();
        expected.extend(b"SESSLOG\n\x01\0\0\0\x00\x10\0\x000123456789abcdef");
        for number in [2u64, 2, 7, 0, 0, 0, 1, 4136, 4096] {
            expected.extend(number.to_le_bytes());
        }
        expected.extend([0; 20]);
        expected.extend(crc32(&expected).to_le_bytes());
        assert_eq!(bytes[..128], expected);
        assert_eq!(bytes[2048..2176], expected);
        assert!(bytes[128..2048].iter().chain(&bytes[2176..]).all(|&byte| byte == 0));
        assert_eq!(expected[124..], 0xFDFA_29C8_u32.to_le_bytes());
    }

    #[test]
    fn one_damaged_copy_is_survived_and_two_are_none() {
        for at in 0..COPY_BYTES {
            let mut bytes = header().encode();
            bytes[at] ^= 0x10;
            assert_eq!(SegmentHeader::decode(&bytes).unwrap(), Some(header()), "byte {at}");
            bytes[2048 + at] ^= 0x01;
            assert_eq!(SegmentHeader::decode(&bytes).unwrap(), None, "byte {at}");
        }
        assert_eq!(SegmentHeader::decode(b"SESSLOG\n").unwrap(), None);
        assert_eq!(SegmentHeader::decode(&[]).unwrap(), None);
    }

    #[test]
    fn newer_versions_and_features_are_unsupported() {
        for at in [8, 72] {
            let bytes = resealed(|copy| copy[at] = 2);
            assert_eq!(SegmentHeader::decode(&bytes).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert!(SegmentHeader::decode(&resealed(|copy| copy[56] = 2)).unwrap().is_some());
        assert!(SegmentHeader::decode(&resealed(|copy| copy[64] = 2)).unwrap().is_some());
    }

    #[test]
    fn contradictions_are_corrupt() {
        for (at, value) in
            [(12, 1), (32, 0), (40, 3), (39, 0x80), (55, 0x80), (80, 2), (95, 0x80), (97, 0), (103, 0x80)]
        {
            let bytes = resealed(|copy| copy[at] = value);
            assert_eq!(SegmentHeader::decode(&bytes).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
        }
    }

    #[test]
    fn only_exact_names_are_segments() {
        let name = segment_file_name(SegmentId::new(0xab));
        assert_eq!(name, "00000000000000ab.log");
        assert_eq!(parse_segment_name(&name), Some(SegmentId::new(0xab)));
        for other in [
            "LOCK",
            "ab.log",
            "00000000000000AB.log",
            "0000000000000000.log",
            "+0000000000000ab.log",
            "ffffffffffffffff.log",
            "00000000000000ab.log.tmp",
        ] {
            assert_eq!(parse_segment_name(other), None, "{other}");
        }
    }
}
