//! The header and the name of a sealed file.

use super::rows::{FileMark, MAGIC};
use crate::format::file_header::{FileHeader, NUMBER_END};
use crate::format::{Features, PreviousEnd, SEGMENT_HEADER_BYTES, StoreId};
use crate::ids::{SegmentId, WriterEpoch};
use crate::{Error, ErrorKind, Result};

/// What a sealed file says about itself.
// Format: section 10.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedHeader {
    /// The store that the file belongs to.
    pub store_id: StoreId,
    /// The segments that it takes the place of, and how often that was done.
    pub name: SealedName,
    /// The opening for writing that created it.
    pub epoch: WriterEpoch,
    /// Features that it may use.
    pub features: Features,
    /// Where the segment before the first one ends.
    pub previous_end: PreviousEnd,
}

impl SealedHeader {
    /// The bytes at the file's start.
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
        let name = SealedName { first: file.first, last: file.last, generation: file.generation };
        let header = Self {
            store_id: file.store_id,
            name,
            epoch: file.epoch,
            features: file.features,
            previous_end: file.previous_end,
        };
        if name.is_sound() && header.to_file_header() == file {
            return Ok(Some(header));
        }
        Err(Error::new(ErrorKind::Corrupt, "read sealed header: its fields contradict each other"))
    }

    pub(super) fn mark(&self) -> FileMark {
        FileMark { first: self.name.first.get(), generation: self.name.generation }
    }

    fn to_file_header(self) -> FileHeader {
        FileHeader {
            store_id: self.store_id,
            first: self.name.first,
            last: self.name.last,
            epoch: self.epoch,
            features: self.features,
            previous_end: self.previous_end,
            published: SEGMENT_HEADER_BYTES as u64,
            generation: self.name.generation,
        }
    }
}

/// Which segments a sealed file covers, and its generation: what its name says.
// Format: section 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SealedName {
    /// First segment covered.
    pub first: SegmentId,
    /// Last segment covered.
    pub last: SegmentId,
    /// From 1; a higher one supersedes a lower one of the same range.
    pub generation: u64,
}

impl SealedName {
    /// The name of the file.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{:016x}-{:016x}.{}.sealed", self.first.get(), self.last.get(), self.generation)
    }

    /// What the name of a sealed file says; `None` for any other file.
    #[must_use]
    pub fn parse(file_name: &str) -> Option<Self> {
        let (range, generation) = file_name.strip_suffix(".sealed")?.split_once('.')?;
        let (first, last) = range.split_once('-')?;
        let id = |digits: &str| u64::from_str_radix(digits, 16).ok().map(SegmentId::new);
        let name = Self { first: id(first)?, last: id(last)?, generation: generation.parse().ok()? };
        (name.is_sound() && name.file_name() == file_name).then_some(name)
    }

    /// Whether the file stands for `segment`.
    #[must_use]
    pub fn covers(&self, segment: SegmentId) -> bool {
        (self.first..=self.last).contains(&segment)
    }

    /// Whether this file makes the other one superfluous: it covers all of it, and more or anew.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        let covers = self.first <= other.first && other.last <= self.last;
        let same_range = (self.first, self.last) == (other.first, other.last);
        covers && (!same_range || self.generation > other.generation)
    }

    fn is_sound(&self) -> bool {
        let (first, last) = (self.first.get(), self.last.get());
        first >= 1 && first <= last && last < NUMBER_END && (1..NUMBER_END).contains(&self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentHeader;

    fn name(first: u64, last: u64, generation: u64) -> SealedName {
        SealedName { first: SegmentId::new(first), last: SegmentId::new(last), generation }
    }

    #[test]
    fn only_exact_names_are_sealed_files() {
        let file_name = "00000000000000ab-0000000000000100.2.sealed";
        assert_eq!(name(0xab, 0x100, 2).file_name(), file_name);
        assert_eq!(SealedName::parse(file_name), Some(name(0xab, 0x100, 2)));
        for other in [
            "00000000000000ab.log",
            "00000000000000ab-0000000000000100.sealed",
            "00000000000000ab-0000000000000100.0.sealed",
            "00000000000000ab-0000000000000100.02.sealed",
            "00000000000000ab-0000000000000100.+2.sealed",
            "00000000000000AB-0000000000000100.2.sealed",
            "0000000000000100-00000000000000ab.2.sealed",
            "0000000000000000-00000000000000ab.2.sealed",
            "00000000000000ab-8000000000000000.2.sealed",
            "ab-100.2.sealed",
        ] {
            assert_eq!(SealedName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_wider_or_a_newer_file_supersedes() {
        assert!(name(1, 4, 1).supersedes(&name(2, 4, 9)));
        assert!(name(1, 4, 2).supersedes(&name(1, 4, 1)));
        assert!(!name(1, 4, 1).supersedes(&name(1, 4, 1)));
        assert!(!name(1, 4, 9).supersedes(&name(4, 5, 1)));
    }

    #[test]
    fn headers_round_trip_and_are_told_from_those_of_raw_segments() {
        let header = SealedHeader {
            store_id: *b"0123456789abcdef",
            name: name(1, 3, 1),
            epoch: WriterEpoch::new(7),
            features: Features::default(),
            previous_end: None,
        };
        let bytes = header.encode();
        assert_eq!(SealedHeader::decode(&bytes).unwrap(), Some(header));
        assert_eq!(SegmentHeader::decode(&bytes).unwrap(), None);
        assert_eq!(bytes[..8], *b"SESSEAL\n");
        assert_eq!(bytes[40..48], 3_u64.to_le_bytes());
        assert_eq!(bytes[104..112], 1_u64.to_le_bytes());
        let unborn = SealedHeader { name: name(1, 3, 0), ..header };
        assert_eq!(SealedHeader::decode(&unborn.encode()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
