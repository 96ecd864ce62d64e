//! The fixed-width rows of a sealed file's directories, and its footer.
//!
//! A row is found by arithmetic and checked by itself, so a damaged one costs what it names and no more. Its CRC
//! binds it to its file and its place in it.

use crate::format::crc32;
use crate::ids::{Seq, SessionKey};
use crate::limits::{EVENTS_PER_SESSION_MAX, RECORD_BYTES_MAX, SEALED_UNIT_EVENTS_MAX};

pub(super) const SESSION_ROW_BYTES: usize = 44;
pub(super) const UNIT_ROW_BYTES: usize = 44;
pub(super) const PIECE_ROW_BYTES: usize = 24;
pub(super) const FOOTER_BYTES: usize = 64;
pub(super) const MAGIC: [u8; 8] = *b"SESSEAL\n";

/// One session in a sealed file: the run of its events that the file holds.
// Format: section 10.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionRow {
    /// The session.
    pub key: SessionKey,
    /// Its first event in this file.
    pub first: Seq,
    /// How many of its events the file holds.
    pub count: u32,
    pub(super) first_unit: u32,
    pub(super) unit_count: u32,
    pub(super) summary: Stretch,
}

/// One unit: consecutive events of one session that are compressed and checked together.
// Format: section 10.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitRow {
    /// Number of the unit in its file: with the file, a key for a cache.
    pub index: u32,
    /// Its first event.
    pub first: Seq,
    /// How many events it holds.
    pub count: u32,
    pub(super) offset: u64,
    pub(super) envelope: Frame,
    pub(super) text: Frame,
}

/// One piece: a text that is stored once and may be referred to by any event of the file.
// Format: section 10.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceRow {
    pub(super) offset: u64,
    pub(super) stored_bytes: u32,
    pub(super) text_bytes: u32,
    /// The piece whose text is the prefix of this one's frame; always an earlier one.
    pub(super) base: Option<u32>,
    pub(super) crc: u32,
}

/// A compressed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Frame {
    pub(super) stored_bytes: u32,
    pub(super) text_bytes: u32,
    pub(super) crc: u32,
}

/// Bytes that are stored as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stretch {
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) crc: u32,
}

/// The last bytes of a sealed file.
// Format: section 10.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footer {
    /// Where the directories begin; they end where the footer begins.
    pub(super) directories: u64,
    pub(super) session_count: u32,
    pub(super) unit_count: u32,
    pub(super) piece_count: u32,
    pub(super) control_count: u32,
    pub(super) covered_to: u64,
    pub(super) file_bytes: u64,
    pub(super) event_count: u64,
    pub(super) directories_crc: u32,
}

/// The file that a row stands in; part of what its CRC covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileMark {
    pub(super) first: u64,
    pub(super) generation: u64,
}

/// What a row is one of; with its number, its seat in the file.
// Format: section 10.4.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Session = 1,
    Unit = 2,
    Piece = 3,
    Footer = 4,
}

impl FileMark {
    /// CRC of a row of at most [`FOOTER_BYTES`].
    fn crc(self, kind: Kind, number: u32, row: &[u8]) -> u32 {
        let mut bytes = [0; 24 + FOOTER_BYTES];
        bytes[0..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..20].copy_from_slice(&number.to_le_bytes());
        bytes[20..24].copy_from_slice(&(kind as u32).to_le_bytes());
        bytes[24..24 + row.len()].copy_from_slice(row);
        crc32(&bytes[..24 + row.len()])
    }

    fn seal(self, kind: Kind, number: u32, row: &mut Vec<u8>) {
        let crc = self.crc(kind, number, row);
        row.extend(crc.to_le_bytes());
    }

    /// The fields of a row that ends with its own CRC.
    fn open(self, kind: Kind, number: u32, row: &[u8]) -> Option<Fields<'_>> {
        let (fields, crc) = row.split_last_chunk::<4>()?;
        (u32::from_le_bytes(*crc) == self.crc(kind, number, fields)).then_some(Fields(fields))
    }
}

impl SessionRow {
    /// The seq behind the last event that the file holds.
    #[must_use]
    pub const fn end(&self) -> Seq {
        Seq::new(self.first.get() + self.count as u64)
    }

    pub(super) fn encode(&self, mark: FileMark, number: u32) -> Vec<u8> {
        let mut row = Vec::with_capacity(SESSION_ROW_BYTES);
        row.extend(self.key.get().to_le_bytes());
        row.extend(narrow(self.first.get()).to_le_bytes());
        for number in [self.count, self.first_unit, self.unit_count] {
            row.extend(number.to_le_bytes());
        }
        row.extend(self.summary.offset.to_le_bytes());
        row.extend(self.summary.bytes.to_le_bytes());
        row.extend(self.summary.crc.to_le_bytes());
        mark.seal(Kind::Session, number, &mut row);
        row
    }

    pub(super) fn decode(mark: FileMark, number: u32, row: &[u8]) -> Option<Self> {
        let mut fields = mark.open(Kind::Session, number, row)?;
        let row = Self {
            key: SessionKey::new(fields.u64()),
            first: Seq::new(fields.u32().into()),
            count: fields.u32(),
            first_unit: fields.u32(),
            unit_count: fields.u32(),
            summary: Stretch { offset: fields.u64(), bytes: fields.u32(), crc: fields.u32() },
        };
        (row.end().get() <= EVENTS_PER_SESSION_MAX).then_some(row)
    }
}

impl UnitRow {
    /// The seq behind the unit's last event.
    #[must_use]
    pub const fn end(&self) -> Seq {
        Seq::new(self.first.get() + self.count as u64)
    }

    /// Where the text's frame is: behind that of the envelopes.
    pub(super) fn text_offset(&self) -> u64 {
        self.offset.saturating_add(self.envelope.stored_bytes.into())
    }

    pub(super) fn encode(&self, mark: FileMark) -> Vec<u8> {
        let mut row = Vec::with_capacity(UNIT_ROW_BYTES);
        row.extend(narrow(self.first.get()).to_le_bytes());
        row.extend(self.count.to_le_bytes());
        row.extend(self.offset.to_le_bytes());
        for frame in [self.envelope, self.text] {
            for number in [frame.stored_bytes, frame.text_bytes, frame.crc] {
                row.extend(number.to_le_bytes());
            }
        }
        mark.seal(Kind::Unit, self.index, &mut row);
        row
    }

    /// The first event that a row names, before the row is believed.
    pub(super) fn first_unchecked(row: &[u8]) -> Seq {
        Seq::new(Fields(row).u32().into())
    }

    pub(super) fn decode(mark: FileMark, index: u32, row: &[u8]) -> Option<Self> {
        let mut fields = mark.open(Kind::Unit, index, row)?;
        let row = Self {
            index,
            first: Seq::new(fields.u32().into()),
            count: fields.u32(),
            offset: fields.u64(),
            envelope: fields.frame(),
            text: fields.frame(),
        };
        let sound =
            (1..=SEALED_UNIT_EVENTS_MAX).contains(&row.count) && row.end().get() <= EVENTS_PER_SESSION_MAX;
        sound.then_some(row)
    }
}

impl PieceRow {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = self.fields();
        row.extend(self.crc.to_le_bytes());
        row
    }

    /// Reads a row; whether it is sound only [`is_sound`](Self::is_sound) tells.
    pub(super) fn decode(id: u32, row: &[u8]) -> Option<Self> {
        let mut fields = Fields(row);
        let row = Self {
            offset: fields.u64(),
            stored_bytes: fields.u32(),
            text_bytes: fields.u32(),
            base: fields.u32().checked_sub(1),
            crc: fields.u32(),
        };
        (u64::from(row.text_bytes) <= RECORD_BYTES_MAX && row.base.is_none_or(|base| base < id))
            .then_some(row)
    }

    /// Whether this is the row of piece `id` and `stored` its frame.
    pub(super) fn is_sound(&self, mark: FileMark, id: u32, stored: &[u8]) -> bool {
        self.crc == self.crc_with(mark, id, stored)
    }

    /// The one CRC of the row and the frame that it names.
    pub(super) fn crc_with(&self, mark: FileMark, id: u32, stored: &[u8]) -> u32 {
        let mut covered = self.fields();
        covered.extend(crc32(stored).to_le_bytes());
        mark.crc(Kind::Piece, id, &covered)
    }

    fn fields(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(PIECE_ROW_BYTES);
        row.extend(self.offset.to_le_bytes());
        for number in [self.stored_bytes, self.text_bytes, self.base.map_or(0, |base| base + 1)] {
            row.extend(number.to_le_bytes());
        }
        row
    }
}

impl Footer {
    /// The footer's bytes, and its CRC.
    pub(super) fn encode(&self, mark: FileMark) -> (Vec<u8>, u32) {
        let mut footer = Vec::with_capacity(FOOTER_BYTES);
        footer.extend(self.directories.to_le_bytes());
        for count in [self.session_count, self.unit_count, self.piece_count, self.control_count] {
            footer.extend(count.to_le_bytes());
        }
        for number in [self.covered_to, self.file_bytes, self.event_count] {
            footer.extend(number.to_le_bytes());
        }
        footer.extend(self.directories_crc.to_le_bytes());
        let crc = mark.crc(Kind::Footer, 0, &footer);
        footer.extend(crc.to_le_bytes());
        footer.extend(MAGIC);
        (footer, crc)
    }

    /// The footer and its CRC; `None` if it is not one, or not that of a file of `file_bytes`.
    pub(super) fn decode(mark: FileMark, file_bytes: u64, footer: &[u8]) -> Option<(Self, u32)> {
        let body = footer.strip_suffix(&MAGIC).filter(|body| body.len() == FOOTER_BYTES - MAGIC.len())?;
        let offset = file_bytes.checked_sub(FOOTER_BYTES as u64)?;
        let mut fields = mark.open(Kind::Footer, 0, body)?;
        let decoded = Self {
            directories: fields.u64(),
            session_count: fields.u32(),
            unit_count: fields.u32(),
            piece_count: fields.u32(),
            control_count: fields.u32(),
            covered_to: fields.u64(),
            file_bytes: fields.u64(),
            event_count: fields.u64(),
            directories_crc: fields.u32(),
        };
        let sound = decoded.file_bytes == file_bytes
            && decoded.directories.checked_add(decoded.directories_bytes()) == Some(offset)
            && decoded.control_count <= decoded.piece_count;
        let crc = body.last_chunk::<4>().map(|crc| u32::from_le_bytes(*crc))?;
        sound.then_some((decoded, crc))
    }

    pub(super) fn session_row_offset(&self, index: u32) -> u64 {
        self.directories + u64::from(index) * SESSION_ROW_BYTES as u64
    }

    pub(super) fn unit_row_offset(&self, index: u32) -> u64 {
        self.session_row_offset(self.session_count) + u64::from(index) * UNIT_ROW_BYTES as u64
    }

    pub(super) fn piece_row_offset(&self, id: u32) -> u64 {
        self.unit_row_offset(self.unit_count) + u64::from(id) * PIECE_ROW_BYTES as u64
    }

    fn directories_bytes(&self) -> u64 {
        u64::from(self.session_count) * SESSION_ROW_BYTES as u64
            + u64::from(self.unit_count) * UNIT_ROW_BYTES as u64
            + u64::from(self.piece_count) * PIECE_ROW_BYTES as u64
    }
}

/// Takes fields off the front of a row of known length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk::<N>() else {
            return [0; N];
        };
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn frame(&mut self) -> Frame {
        Frame { stored_bytes: self.u32(), text_bytes: self.u32(), crc: self.u32() }
    }
}

/// A seq as stored: the builder admits none above the limit, which fits.
fn narrow(seq: u64) -> u32 {
    u32::try_from(seq).unwrap_or(u32::MAX)
}

const _: () = assert!(EVENTS_PER_SESSION_MAX < u32::MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: FileMark = FileMark { first: 5, generation: 2 };

    /// The CRC that section 10.4 names, from the words of the row.
    fn sealed(number: u32, kind: u32, row: &[u8]) -> Vec<u8> {
        let place =
            [&5_u64.to_le_bytes()[..], &2_u64.to_le_bytes(), &number.to_le_bytes(), &kind.to_le_bytes()];
        let crc = crc32(&[&place.concat()[..], row].concat());
        [row, &crc.to_le_bytes()].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn session_rows_are_pinned() {
        let summary = Stretch { offset: 8, bytes: 9, crc: 10 };
        let row = SessionRow {
            key: SessionKey::new(3),
            first: Seq::new(4),
            count: 5,
            first_unit: 6,
            unit_count: 7,
            summary,
        };
        let bytes = row.encode(MARK, 1);
        assert_eq!(bytes, sealed(1, 1, &words(&[3, 0, 4, 5, 6, 7, 8, 0, 9, 10])));
        assert_eq!(bytes.len(), SESSION_ROW_BYTES);
        assert_eq!(SessionRow::decode(MARK, 1, &bytes), Some(row));
        assert_eq!(SessionRow::decode(MARK, 2, &bytes), None);
        assert_eq!(SessionRow::decode(FileMark { first: 6, ..MARK }, 1, &bytes), None);
        let beyond = SessionRow { first: Seq::new(EVENTS_PER_SESSION_MAX), ..row };
        assert_eq!(SessionRow::decode(MARK, 1, &beyond.encode(MARK, 1)), None);
    }

    #[test]
    fn unit_rows_are_pinned() {
        let envelope = Frame { stored_bytes: 3, text_bytes: 4, crc: 5 };
        let text = Frame { stored_bytes: 6, text_bytes: 7, crc: 8 };
        let row = UnitRow { index: 9, first: Seq::new(1), count: 2, offset: 10, envelope, text };
        let bytes = row.encode(MARK);
        assert_eq!(bytes, sealed(9, 2, &words(&[1, 2, 10, 0, 3, 4, 5, 6, 7, 8])));
        assert_eq!(bytes.len(), UNIT_ROW_BYTES);
        assert_eq!(UnitRow::decode(MARK, 9, &bytes), Some(row));
        for count in [0, SEALED_UNIT_EVENTS_MAX + 1] {
            assert_eq!(UnitRow::decode(MARK, 9, &UnitRow { count, ..row }.encode(MARK)), None);
        }
    }

    #[test]
    fn piece_rows_are_pinned_and_answer_for_their_frame() {
        let mut row = PieceRow { offset: 10, stored_bytes: 3, text_bytes: 7, base: Some(4), crc: 0 };
        row.crc = row.crc_with(MARK, 6, b"abc");
        let fields = words(&[10, 0, 3, 7, 5]);
        let covered = sealed(6, 3, &[&fields[..], &crc32(b"abc").to_le_bytes()].concat());
        let bytes = row.encode();
        assert_eq!(bytes, [&fields[..], &covered[covered.len() - 4..]].concat());
        assert_eq!(bytes.len(), PIECE_ROW_BYTES);
        assert_eq!(PieceRow::decode(6, &bytes), Some(row));
        assert!(
            row.is_sound(MARK, 6, b"abc") && !row.is_sound(MARK, 6, b"abd") && !row.is_sound(MARK, 7, b"abc")
        );
        assert_eq!(PieceRow::decode(4, &bytes), None, "a base is an earlier piece");
    }

    #[test]
    fn the_footer_is_pinned() {
        let directories_bytes = SESSION_ROW_BYTES + 2 * UNIT_ROW_BYTES + 3 * PIECE_ROW_BYTES;
        let footer = Footer {
            directories: 5_000,
            session_count: 1,
            unit_count: 2,
            piece_count: 3,
            control_count: 1,
            covered_to: 6_000,
            file_bytes: (5_000 + directories_bytes + FOOTER_BYTES) as u64,
            event_count: 7,
            directories_crc: 8,
        };
        let (bytes, crc) = footer.encode(MARK);
        let length = u32::try_from(footer.file_bytes).unwrap();
        let fields = sealed(0, 4, &words(&[5_000, 0, 1, 2, 3, 1, 6_000, 0, length, 0, 7, 0, 8]));
        assert_eq!(bytes, [&fields[..], b"SESSEAL\n"].concat());
        assert_eq!(bytes.len(), FOOTER_BYTES);
        assert_eq!(Footer::decode(MARK, footer.file_bytes, &bytes), Some((footer, crc)));
        assert_eq!(Footer::decode(MARK, footer.file_bytes + 1, &bytes), None);
        let (other, _) = Footer { unit_count: 3, ..footer }.encode(MARK);
        assert_eq!(Footer::decode(MARK, footer.file_bytes, &other), None);
    }
}
