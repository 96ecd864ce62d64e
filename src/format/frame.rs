//! The frame header: one fixed row of bytes before each payload, bound by its CRC to the place where it
//! stands.

use super::file_header::NUMBER_END;
use super::{CODEC_PATCH, CODEC_PLAIN, FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, crc32};
use crate::ids::{SegmentId, WriterEpoch};
use crate::{Error, ErrorKind, Result, limits};

const FLAG_COMMIT: u8 = 1;
const FLAG_BEGIN: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_COMMIT | FLAG_BEGIN;
const SKIPPABLE: u8 = 0x80;
const CRC_OFFSET: usize = 36;

/// What a frame holds. Any byte but 0 is a kind; only some are known to this release.
// Format: section 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameKind(u8);

impl FrameKind {
    /// Begins a commit group; names the position known durable before it.
    pub const GROUP: Self = Self(1);
    /// Closes a segment.
    pub const END: Self = Self(2);
    /// Binds a session id to its key.
    pub const CREATE: Self = Self(3);
    /// A run of events of one session.
    pub const EVENTS: Self = Self(4);
    /// The session is gone.
    pub const REMOVE: Self = Self(5);
    /// Event types that a host registered.
    pub const VOCABULARY: Self = Self(6);

    /// The kind as stored.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The kind stored as `byte`; 0 is none.
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        if byte == 0 { None } else { Some(Self(byte)) }
    }

    /// Whether this release knows what such a frame means.
    #[must_use]
    pub const fn is_known(self) -> bool {
        self.0 >= Self::GROUP.0 && self.0 <= Self::VOCABULARY.0
    }

    /// Whether a reader that does not know the kind may pass over the frame.
    #[must_use]
    pub const fn is_skippable(self) -> bool {
        self.0 & SKIPPABLE != 0
    }

    /// Whether the frame belongs to the log itself and to no batch.
    #[must_use]
    pub const fn is_structural(self) -> bool {
        self.0 == Self::GROUP.0 || self.0 == Self::END.0
    }
}

/// Where a frame stands; seeds its header's CRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePlace {
    /// Segment that holds the frame.
    pub segment: SegmentId,
    /// Epoch of that segment.
    pub epoch: WriterEpoch,
    /// Offset of the frame in its file.
    pub offset: u64,
}

/// A frame's header.
// Format: section 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame holds.
    pub kind: FrameKind,
    /// First frame of its batch.
    pub begins: bool,
    /// Last frame of its batch.
    pub commits: bool,
    /// How the payload is encoded: [`CODEC_PLAIN`], or in events frames [`CODEC_PATCH`].
    pub codec: u8,
    /// Bytes of the payload as stored, without padding.
    pub payload_bytes: u32,
    /// Session key; in group and end frames a segment id.
    pub subject: u64,
    /// Seq of the first event; in group and end frames an offset.
    pub tag: u64,
    /// Number of events.
    pub count: u32,
    /// Bytes of the payload once decoded.
    pub decoded_bytes: u32,
    /// CRC-32 of the payload as stored.
    pub payload_crc: u32,
}

impl FrameHeader {
    /// A header of a frame without payload.
    #[must_use]
    pub const fn empty(kind: FrameKind, subject: u64, tag: u64) -> Self {
        Self {
            kind,
            begins: false,
            commits: false,
            codec: CODEC_PLAIN,
            payload_bytes: 0,
            subject,
            tag,
            count: 0,
            decoded_bytes: 0,
            payload_crc: 0,
        }
    }

    /// Whether the payload says what changed since another frame's.
    #[must_use]
    pub fn is_patch(&self) -> bool {
        self.kind == FrameKind::EVENTS && self.codec == CODEC_PATCH
    }

    /// Bytes from this frame's start to the next one's.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        (FRAME_HEADER_BYTES as u64 + u64::from(self.payload_bytes)).next_multiple_of(FRAME_ALIGN_BYTES as u64)
    }

    /// The header as it stands at `place`.
    #[must_use]
    pub fn encode(&self, place: FramePlace) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = self.encode_unplaced();
        let crc = header_crc(&bytes, place);
        bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header of a frame whose place is not known yet; [`seal_frames`] makes it valid.
    #[must_use]
    pub fn encode_unplaced(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0] = self.kind.0;
        bytes[1] = if self.commits { FLAG_COMMIT } else { 0 } | if self.begins { FLAG_BEGIN } else { 0 };
        bytes[2] = self.codec;
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.subject.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.decoded_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes
    }

    /// The header that stands at `place`, if these bytes are one: cheap refusals first, then the CRC.
    #[must_use]
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES], place: FramePlace) -> Option<Self> {
        let payload_bytes = u32_at(bytes, 4);
        let plausible = bytes[0] != 0
            && bytes[1] & !FLAGS_KNOWN == 0
            && bytes[3] == 0
            && (bytes[2] != CODEC_PLAIN || payload_bytes == u32_at(bytes, 28))
            && u64::from(payload_bytes) <= limits::FRAME_PAYLOAD_BYTES_MAX
            && u64_at(bytes, 8).max(u64_at(bytes, 16)) < NUMBER_END;
        if !plausible || u32_at(bytes, CRC_OFFSET) != header_crc(bytes, place) {
            return None;
        }
        Some(Self {
            kind: FrameKind(bytes[0]),
            begins: bytes[1] & FLAG_BEGIN != 0,
            commits: bytes[1] & FLAG_COMMIT != 0,
            codec: bytes[2],
            payload_bytes,
            subject: u64_at(bytes, 8),
            tag: u64_at(bytes, 16),
            count: u32_at(bytes, 24),
            decoded_bytes: u32_at(bytes, 28),
            payload_crc: u32_at(bytes, 32),
        })
    }

    /// Whether this release knows what to do with the frame: read it, or skip it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an unknown kind that must not be skipped, or an unknown codec.
    pub fn check_supported(&self) -> Result<()> {
        let codec_is_known = self.codec == CODEC_PLAIN || self.is_patch();
        if self.kind.is_skippable() || self.kind.is_known() && codec_is_known {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("read frame: kind {} under codec {} belongs to a newer release", self.kind.0, self.codec),
        ))
    }

    /// Whether `rest`, the bytes between this header and the next frame, are the payload it promises:
    /// the right number of bytes, the right CRC, and zeros as padding.
    #[must_use]
    pub fn matches(&self, rest: &[u8]) -> bool {
        let Ok(payload_bytes) = usize::try_from(self.payload_bytes) else { return false };
        rest.len() == payload_bytes + padding_bytes(payload_bytes)
            && rest[payload_bytes..].iter().all(|&byte| byte == 0)
            && crc32(&rest[..payload_bytes]) == self.payload_crc
    }
}

/// Makes the headers of a row of whole frames valid for the place where the first of them will stand.
pub fn seal_frames(mut frames: &mut [u8], mut place: FramePlace) {
    while let Some((header, rest)) = frames.split_first_chunk_mut::<FRAME_HEADER_BYTES>() {
        let crc = header_crc(header, place);
        header[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        let Ok(payload_bytes) = usize::try_from(u32_at(header, 4)) else { return };
        let payload_bytes = payload_bytes + padding_bytes(payload_bytes);
        place.offset += (FRAME_HEADER_BYTES + payload_bytes) as u64;
        frames = rest.get_mut(payload_bytes..).unwrap_or_default();
    }
}

/// Zero bytes that follow a payload of this many bytes.
#[must_use]
pub const fn padding_bytes(payload_bytes: usize) -> usize {
    payload_bytes.wrapping_neg() % FRAME_ALIGN_BYTES
}

fn header_crc(bytes: &[u8; FRAME_HEADER_BYTES], place: FramePlace) -> u32 {
    let mut seeded = [0; 24 + CRC_OFFSET];
    seeded[0..8].copy_from_slice(&place.segment.get().to_le_bytes());
    seeded[8..16].copy_from_slice(&place.epoch.get().to_le_bytes());
    seeded[16..24].copy_from_slice(&place.offset.to_le_bytes());
    seeded[24..].copy_from_slice(&bytes[..CRC_OFFSET]);
    crc32(&seeded)
}

fn u32_at(bytes: &[u8; FRAME_HEADER_BYTES], offset: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8; FRAME_HEADER_BYTES], offset: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(field)
}

// A header is a whole number of alignment steps, so the payload begins aligned as well.
const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGN_BYTES));

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: FramePlace =
        FramePlace { segment: SegmentId::new(3), epoch: WriterEpoch::new(5), offset: 4136 };

    fn header() -> FrameHeader {
        FrameHeader {
            begins: true,
            commits: true,
            payload_bytes: 5,
            count: 2,
            decoded_bytes: 5,
            payload_crc: crc32(b"hello"),
            ..FrameHeader::empty(FrameKind::EVENTS, 0x0102_0304, 9)
        }
    }

    #[test]
    fn bytes_are_pinned() {
        let bytes = header().encode(PLACE);
        let expected = [
            4, 3, 0, 0, 5, 0, 0, 0, // kind, flags, codec, reserved, payload length
            4, 3, 2, 1, 0, 0, 0, 0, // subject
            9, 0, 0, 0, 0, 0, 0, 0, // tag
            2, 0, 0, 0, 5, 0, 0, 0, // count, decoded length
            0x86, 0xa6, 0x10, 0x36, // CRC of "hello"
        ];
        assert_eq!(bytes[..36], expected);
        assert_eq!(bytes[36..], 0x0A69_FF6A_u32.to_le_bytes());
        assert_eq!(FrameHeader::decode(&bytes, PLACE), Some(header()));
        assert_eq!(header().frame_bytes(), 48);
    }

    #[test]
    fn a_header_is_valid_in_its_place_only() {
        let bytes = header().encode(PLACE);
        let others = [
            FramePlace { segment: SegmentId::new(4), ..PLACE },
            FramePlace { epoch: WriterEpoch::new(6), ..PLACE },
            FramePlace { offset: 4144, ..PLACE },
        ];
        assert!(others.iter().all(|&place| FrameHeader::decode(&bytes, place).is_none()));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        for bit in 0..FRAME_HEADER_BYTES * 8 {
            let mut bytes = header().encode(PLACE);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(&bytes, PLACE), None, "bit {bit}");
        }
        assert_eq!(FrameHeader::decode(&[0; FRAME_HEADER_BYTES], PLACE), None);
    }

    #[test]
    fn a_length_above_the_limit_is_refused_despite_its_crc() {
        let long = FrameHeader { payload_bytes: u32::MAX, decoded_bytes: u32::MAX, ..header() };
        assert_eq!(FrameHeader::decode(&long.encode(PLACE), PLACE), None);
    }

    #[test]
    fn an_id_or_an_offset_above_the_limit_is_refused_despite_its_crc() {
        for (subject, tag) in [(NUMBER_END, 0), (0, NUMBER_END), (u64::MAX, u64::MAX)] {
            let header = FrameHeader { subject, tag, ..header() };
            assert_eq!(FrameHeader::decode(&header.encode(PLACE), PLACE), None);
        }
        let highest = FrameHeader { subject: NUMBER_END - 1, tag: NUMBER_END - 1, ..header() };
        assert_eq!(FrameHeader::decode(&highest.encode(PLACE), PLACE), Some(highest));
    }

    #[test]
    fn a_payload_matches_with_zero_padding_only() {
        assert!(header().matches(b"hello\0\0\0"));
        assert!(!header().matches(b"hello\0\0\x01"));
        assert!(!header().matches(b"hello"));
        assert!(!header().matches(b"hellO\0\0\0"));
    }

    #[test]
    fn frames_sealed_in_a_row_are_valid_each_in_its_place() {
        let mut row = [&header().encode_unplaced()[..], b"hello\0\0\0"].concat().repeat(2);
        seal_frames(&mut row, PLACE);
        assert_eq!(row[..40], header().encode(PLACE));
        assert_eq!(row[48..88], header().encode(FramePlace { offset: PLACE.offset + 48, ..PLACE }));
        seal_frames(&mut row[..60], PLACE);
    }

    #[test]
    fn unknown_frames_are_unsupported_unless_they_may_be_skipped() {
        let with = |kind, codec| FrameHeader { codec, ..FrameHeader::empty(FrameKind(kind), 0, 0) };
        for known in [with(4, 0), with(4, 1), with(200, 9)] {
            assert!(known.check_supported().is_ok());
        }
        for unknown in [with(7, 0), with(4, 2), with(3, 1), with(7, 1)] {
            assert_eq!(unknown.check_supported().unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn kinds_say_what_an_unknowing_reader_does() {
        assert!(FrameKind::GROUP.is_structural() && FrameKind::END.is_structural());
        assert!(FrameKind::VOCABULARY.is_known() && !FrameKind(7).is_known() && !FrameKind(128).is_known());
        assert!(!FrameKind(127).is_skippable() && FrameKind(128).is_skippable());
    }
}
