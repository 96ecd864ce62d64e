//! The header of a segment file, and the names of segment files.

use super::Features;
use super::file_header::{FileHeader, NUMBER_END};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::{Error, ErrorKind, Result};

/// Names one store; the same in every file of it. Handed in by whoever creates the store.
pub type StoreId = [u8; 16];

/// Up to where the preceding segment counts; `None` in the first segment.
pub type PreviousEnd = Option<Position>;

const MAGIC: [u8; 8] = *b"SESSLOG\n";

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
        self.to_file_header().encode(MAGIC)
    }

    /// Reads the header from the first bytes of a file; `None` if they hold no sound copy of one.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a newer version or an unknown incompatible feature, and
    /// [`ErrorKind::Corrupt`] if a sound copy contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(file) = FileHeader::decode(MAGIC, bytes)? else {
            return Ok(None);
        };
        let header = Self {
            store_id: file.store_id,
            segment: file.first,
            epoch: file.epoch,
            features: file.features,
            previous_end: file.previous_end,
            published: file.published,
        };
        if header.to_file_header() == file {
            return Ok(Some(header));
        }
        Err(Error::new(ErrorKind::Corrupt, "read segment header: it names more than one segment"))
    }

    fn to_file_header(self) -> FileHeader {
        FileHeader {
            store_id: self.store_id,
            first: self.segment,
            last: self.segment,
            epoch: self.epoch,
            features: self.features,
            previous_end: self.previous_end,
            published: self.published,
            generation: 0,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::crc32;
    use crate::format::file_header::{COPY_BYTES, COPY_OFFSETS, CRC_OFFSET};

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
