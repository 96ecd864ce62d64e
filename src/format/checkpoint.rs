//! Checkpoint files: the projections of sessions at one of their seqs, so that resuming folds only what came later.
//!
//! Header, one compressed body for each session, a directory, footer. Everything is bound to
//! the store and checked before it is believed. A file that is not right in every byte that is looked at is as good as none.

use super::compress::{FrameEncoder, LEVEL_DEFAULT, TextDecoder};
use super::{FORMAT_VERSION, StoreId, crc32};
use crate::ids::{Seq, SessionKey};
use crate::limits::{CHECKPOINT_BYTES_MAX, CHECKPOINT_SESSIONS_MAX, EVENTS_PER_SESSION_MAX};
use crate::{Error, ErrorKind, Result};

/// Bytes of the header: the offset of the first body.
pub(crate) const CHECKPOINT_HEADER_BYTES: usize = 64;
/// Bytes of one row of the directory.
pub(crate) const CHECKPOINT_ROW_BYTES: usize = 36;
/// Bytes of the footer.
pub(crate) const CHECKPOINT_FOOTER_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"SESSCKP\n";
const SUFFIX: &str = ".state";
const SECTION_HEADER_BYTES: usize = 12;

/// The name of the checkpoint file of this number.
// Format: section 3.
pub(crate) fn checkpoint_file_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

/// The number in the name of a checkpoint file; `None` for any other name.
pub(crate) fn parse_checkpoint_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX).filter(|digits| digits.len() == 16)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (checkpoint_file_name(number) == name).then_some(number)
}

/// The bytes from a checkpoint file's start to its first body.
// Format: section 11.1.
pub(crate) fn encode_checkpoint_header(store_id: StoreId, number: u64) -> [u8; CHECKPOINT_HEADER_BYTES] {
    let mut bytes = [0; CHECKPOINT_HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[16..32].copy_from_slice(&store_id);
    bytes[32..40].copy_from_slice(&number.to_le_bytes());
    let crc = crc32(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// One session's checkpoint: what it is bound to, and where its body lies.
// Format: section 11.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointRow {
    /// The session.
    pub(crate) key: SessionKey,
    /// Offset of the body.
    pub(crate) offset: u64,
    /// The events below this seq are folded.
    pub(crate) next_seq: Seq,
    /// The session's chain there.
    pub(crate) chain: u32,
    /// Length of the body as stored.
    pub(crate) stored_bytes: u32,
    /// Length of the body once decoded.
    pub(crate) decoded_bytes: u32,
    /// CRC of the body as stored.
    pub(crate) crc: u32,
}

impl CheckpointRow {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.get().to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        // Sessions have fewer than 2^32 events.
        let next_seq = u32::try_from(self.next_seq.get()).unwrap_or(u32::MAX);
        for field in [next_seq, self.chain, self.stored_bytes, self.decoded_bytes, self.crc] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8; CHECKPOINT_ROW_BYTES]) -> Self {
        Self {
            key: SessionKey::new(u64_at(bytes, 0)),
            offset: u64_at(bytes, 8),
            next_seq: Seq::new(u64::from(u32_at(bytes, 16))),
            chain: u32_at(bytes, 20),
            stored_bytes: u32_at(bytes, 24),
            decoded_bytes: u32_at(bytes, 28),
            crc: u32_at(bytes, 32),
        }
    }
}

/// The directory and the footer behind the bodies that `rows` name, in this order.
// Format: sections 11.2 and 11.4.
pub(crate) fn encode_checkpoint_end(
    header: &[u8; CHECKPOINT_HEADER_BYTES],
    rows: &[CheckpointRow],
) -> Result<Vec<u8>> {
    let count = u32::try_from(rows.len()).ok().filter(|count| *count <= CHECKPOINT_SESSIONS_MAX);
    let Some(count) = count else {
        return Err(Error::new(ErrorKind::Limit, "write checkpoints: too many sessions for one file"));
    };
    let directory_at = rows.last().map_or(CHECKPOINT_HEADER_BYTES as u64, body_end);
    let mut bytes = Vec::with_capacity(rows.len() * CHECKPOINT_ROW_BYTES + CHECKPOINT_FOOTER_BYTES);
    rows.iter().for_each(|row| row.encode(&mut bytes));
    let directory_crc = crc32(&bytes);
    let footer_at = bytes.len();
    bytes.extend_from_slice(&directory_at.to_le_bytes());
    let file_bytes = directory_at + (footer_at + CHECKPOINT_FOOTER_BYTES) as u64;
    bytes.extend_from_slice(&file_bytes.to_le_bytes());
    for field in [count, directory_crc, crc32(header)] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    let footer_crc = crc32(&bytes[footer_at..]);
    bytes.extend_from_slice(&footer_crc.to_le_bytes());
    Ok(bytes)
}

/// What the ends of a checkpoint file say of its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointFrame {
    /// Offset of the directory.
    pub(crate) directory_at: u64,
    /// Its length, in bytes.
    pub(crate) directory_bytes: usize,
    directory_crc: u32,
}

impl CheckpointFrame {
    /// Reads header and footer of a file of this length that has the name of this number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a newer version, [`ErrorKind::Corrupt`] for anything else that is not right.
    // Format: sections 11.1 and 11.4.
    pub(crate) fn decode(
        header: &[u8; CHECKPOINT_HEADER_BYTES],
        footer: &[u8; CHECKPOINT_FOOTER_BYTES],
        file_bytes: u64,
        store_id: StoreId,
        number: u64,
    ) -> Result<Self> {
        if header[..8] != MAGIC || crc32(&header[..60]) != u32_at(header, 60) {
            return Err(corrupt("its header is damaged"));
        }
        if u32_at(header, 8) > FORMAT_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "read checkpoints: a newer release wrote the file",
            ));
        }
        if *header != encode_checkpoint_header(store_id, number) {
            return Err(corrupt("it belongs to another store or has the name of another file"));
        }
        if crc32(&footer[..28]) != u32_at(footer, 28) || crc32(header) != u32_at(footer, 24) {
            return Err(corrupt("its footer is damaged"));
        }
        let (directory_at, count) = (u64_at(footer, 0), u32_at(footer, 16));
        let directory_bytes = u64::from(count) * CHECKPOINT_ROW_BYTES as u64;
        let end = directory_at.checked_add(directory_bytes + CHECKPOINT_FOOTER_BYTES as u64);
        let lengths_agree = u64_at(footer, 8) == file_bytes
            && end == Some(file_bytes)
            && directory_at >= CHECKPOINT_HEADER_BYTES as u64
            && count <= CHECKPOINT_SESSIONS_MAX;
        match usize::try_from(directory_bytes) {
            Ok(directory_bytes) if lengths_agree => {
                Ok(Self { directory_at, directory_bytes, directory_crc: u32_at(footer, 20) })
            }
            _ => Err(corrupt("its footer names another length")),
        }
    }

    /// The rows of the directory, whose sessions ascend and whose bodies stand one behind the other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`].
    // Format: section 11.2.
    pub(crate) fn rows(&self, directory: &[u8]) -> Result<Vec<CheckpointRow>> {
        let (rows, rest) = directory.as_chunks::<CHECKPOINT_ROW_BYTES>();
        if !rest.is_empty() || crc32(directory) != self.directory_crc {
            return Err(corrupt("its directory is damaged"));
        }
        let rows: Vec<_> = rows.iter().map(CheckpointRow::decode).collect();
        let mut at = CHECKPOINT_HEADER_BYTES as u64;
        for row in &rows {
            let sound = row.offset == at
                && u64::from(row.decoded_bytes) <= CHECKPOINT_BYTES_MAX as u64
                && row.next_seq.get() <= EVENTS_PER_SESSION_MAX;
            if !sound {
                return Err(corrupt("its directory contradicts itself"));
            }
            at = body_end(row);
        }
        if at != self.directory_at || rows.windows(2).any(|pair| pair[0].key >= pair[1].key) {
            return Err(corrupt("its directory contradicts itself"));
        }
        Ok(rows)
    }
}

/// Sections on their way into a body.
#[derive(Debug, Default)]
pub(crate) struct SectionWriter(Vec<u8>);

impl SectionWriter {
    /// Adds a section.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] if the body becomes too large.
    // Format: section 11.3.
    pub(crate) fn put(&mut self, code: u32, version: u32, bytes: &[u8]) -> Result<()> {
        let length = u32::try_from(bytes.len()).ok();
        let all = self.0.len() + SECTION_HEADER_BYTES + bytes.len();
        let Some(length) = length.filter(|_| all <= CHECKPOINT_BYTES_MAX) else {
            return Err(Error::new(ErrorKind::Limit, "write checkpoint: the session's state is too large"));
        };
        for field in [code, version, length] {
            self.0.extend_from_slice(&field.to_le_bytes());
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    /// The body as it is stored, and its length before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] when memory is short.
    pub(crate) fn finish(self) -> Result<(Vec<u8>, u32)> {
        let mut stored = Vec::new();
        FrameEncoder::new(LEVEL_DEFAULT, false)?.encode(&self.0, &mut stored)?;
        // The buffer is as large as the worst case.
        stored.shrink_to_fit();
        Ok((stored, u32::try_from(self.0.len()).unwrap_or(u32::MAX)))
    }
}

/// The sections of a body.
#[derive(Debug)]
pub(crate) struct SectionReader {
    body: Vec<u8>,
}

impl SectionReader {
    /// Decodes a stored body.
    pub(crate) fn new(stored: &[u8], decoded_bytes: u32) -> Option<Self> {
        let decoded_bytes = usize::try_from(decoded_bytes).ok()?;
        let mut body = Vec::new();
        TextDecoder::new().ok()?.decode(stored, &[], decoded_bytes, &mut body).ok()?;
        Some(Self { body })
    }

    /// The first section of this code and version.
    pub(crate) fn get(&self, code: u32, version: u32) -> Option<&[u8]> {
        let mut rest = &self.body[..];
        while let Some((header, after)) = rest.split_first_chunk::<SECTION_HEADER_BYTES>() {
            let (section, after) = after.split_at_checked(usize::try_from(u32_at(header, 8)).ok()?)?;
            if (u32_at(header, 0), u32_at(header, 4)) == (code, version) {
                return Some(section);
            }
            rest = after;
        }
        None
    }
}

fn body_end(row: &CheckpointRow) -> u64 {
    row.offset.saturating_add(u64::from(row.stored_bytes))
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("read checkpoints: {what}"))
}

/// The field at a constant offset within a structure of fixed size.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = [7; 16];

    fn row(key: u64, offset: u64, stored_bytes: u32) -> CheckpointRow {
        let (next_seq, key) = (Seq::new(5 * key), SessionKey::new(key));
        CheckpointRow { key, offset, next_seq, chain: 0xC0DE, stored_bytes, decoded_bytes: 9, crc: 0xBEEF }
    }

    fn file(rows: &[CheckpointRow]) -> Vec<u8> {
        let header = encode_checkpoint_header(STORE, 0x1F);
        let bodies: u32 = rows.iter().map(|row| row.stored_bytes).sum();
        let mut bytes = header.to_vec();
        bytes.extend(std::iter::repeat_n(0xAB, usize::try_from(bodies).unwrap()));
        bytes.extend(encode_checkpoint_end(&header, rows).unwrap());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<CheckpointRow>> {
        let header = bytes.first_chunk().ok_or_else(|| corrupt("short"))?;
        let footer = bytes.last_chunk().ok_or_else(|| corrupt("short"))?;
        let frame = CheckpointFrame::decode(header, footer, bytes.len() as u64, STORE, 0x1F)?;
        let at = usize::try_from(frame.directory_at).unwrap();
        frame.rows(&bytes[at..at + frame.directory_bytes])
    }

    #[test]
    fn names_are_exact() {
        assert_eq!(checkpoint_file_name(0x1F), "000000000000001f.state");
        assert_eq!(parse_checkpoint_name("000000000000001f.state"), Some(0x1F));
        for other in ["1f.state", "000000000000001F.state", "+00000000000001f.state", "000000000000001f.log"]
        {
            assert_eq!(parse_checkpoint_name(other), None, "{other}");
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        let bytes = file(&[row(1, 64, 3), row(9, 67, 2)]);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = concat!(
            "53455353434b500a",
            "01000000",
            "00000000",
            "07070707070707070707070707070707",
            "1f00000000000000",
            "0000000000000000000000000000000000000000",
            "e4215c19",
            "ababab",
            "abab",
            "0100000000000000",
            "4000000000000000",
            "05000000",
            "dec00000",
            "03000000",
            "09000000",
            "efbe0000",
            "0900000000000000",
            "4300000000000000",
            "2d000000",
            "dec00000",
            "02000000",
            "09000000",
            "efbe0000",
            "4500000000000000",
            "ad00000000000000",
            "02000000",
            "1faa2852",
            "1cdf4421",
            "f705006a",
        );
        assert_eq!(hex, expected);
        assert_eq!(read(&bytes).unwrap(), [row(1, 64, 3), row(9, 67, 2)]);
        assert_eq!(read(&file(&[])).unwrap(), []);
    }

    #[test]
    fn every_changed_byte_outside_the_bodies_and_every_other_length_is_refused() {
        let bytes = file(&[row(1, 64, 3), row(9, 67, 2)]);
        for at in (0..bytes.len()).filter(|at| !(64..69).contains(at)) {
            for change in [1, 0x80, 0xFF] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                assert!(read(&changed).is_err(), "byte {at}");
            }
        }
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err());
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn rows_that_contradict_each_other_are_refused() {
        let far = CheckpointRow { next_seq: Seq::new(u64::from(u32::MAX)), ..row(1, 64, 3) };
        let large = CheckpointRow { decoded_bytes: u32::MAX, ..row(1, 64, 3) };
        for rows in [
            vec![row(9, 64, 3), row(1, 67, 2)],
            vec![row(1, 64, 3), row(1, 67, 2)],
            vec![row(1, 64, 3), row(9, 66, 3)],
            vec![row(1, 65, 2)],
            vec![far],
            vec![large],
        ] {
            assert_eq!(read(&file(&rows)).unwrap_err().kind(), ErrorKind::Corrupt, "{rows:?}");
        }
    }

    #[test]
    fn sections_are_found_by_code_and_version() {
        let mut writer = SectionWriter::default();
        writer.put(1, 1, b"one").unwrap();
        writer.put(2, 7, b"").unwrap();
        writer.put(3, 1, b"three").unwrap();
        let (stored, decoded_bytes) = writer.finish().unwrap();
        assert_eq!(decoded_bytes, 3 * 12 + 8);
        let reader = SectionReader::new(&stored, decoded_bytes).unwrap();
        assert_eq!(reader.get(3, 1), Some(&b"three"[..]));
        assert_eq!(reader.get(2, 7), Some(&b""[..]));
        assert_eq!((reader.get(2, 1), reader.get(4, 1)), (None, None));
        for wrong in [0, decoded_bytes - 1, decoded_bytes + 1] {
            assert!(SectionReader::new(&stored, wrong).is_none());
        }
        let boastful = SectionReader { body: [1_u32, 1, 4].iter().flat_map(|n| n.to_le_bytes()).collect() };
        assert_eq!((boastful.get(1, 1), boastful.get(2, 1)), (None, None));
    }
}
