//! Splits text into records at line feeds (spec section 14.3), without ever holding much more than one.
//!
//! Only the byte 0x0A ends a record; carriage returns, NULs and other white space belong to it. A record
//! above [`RECORD_BYTES_MAX`] is passed over, not buffered, and reported as an [`Item::Fault`].

use std::io::{self, Read};
use std::ops::Range;

use super::{Item, Record, RecordOrigin, RecordSource};
use crate::event::{Refusal, RefusalKind};
use crate::limits::RECORD_BYTES_MAX;

/// Plain JSONL as a stream of records. All of them are lenient: any tail may be cut.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    splitter: Splitter,
}

impl<R: Read> Lines<R> {
    /// Reads `reader` from where it stands. It is read in large pieces and needs no buffer of its own.
    pub fn new(reader: R) -> Self {
        Self { reader, splitter: Splitter::new() }
    }
}

impl<R: Read> RecordSource for Lines<R> {
    fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        let found = loop {
            if let Some(found) = self.splitter.next() {
                break found;
            }
            match self.reader.read(self.splitter.room()) {
                Ok(0) => match self.splitter.finish() {
                    Some(fragment) => break fragment,
                    None => return Ok(None),
                },
                Ok(bytes) => self.splitter.filled(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Some(self.splitter.item(found, true)))
    }
}

/// The buffer between text that arrives in pieces and records that leave whole.
#[derive(Debug)]
pub(super) struct Splitter {
    buffer: Vec<u8>,
    /// The bytes that arrived and did not leave: `buffer[pending]`.
    pending: Range<usize>,
    /// No line feed lies in the pending bytes below this index.
    searched: usize,
    /// The pending bytes below this index are NULs.
    nuls_to: usize,
    /// Bytes of the pending record that were dropped.
    dropped: u64,
    /// The pending record is above the limit: what of it was buffered is dropped.
    oversize: bool,
    /// Line and offset of the pending record.
    line: u64,
    offset: u64,
    record_bytes_max: usize,
}

/// A record that leaves: a place in the buffer, valid until the buffer is filled again.
#[derive(Debug)]
pub(super) struct Found {
    bytes: Range<usize>,
    line: u64,
    offset: u64,
    ended: bool,
    oversize: bool,
}

/// Least room that is offered to a read.
const READ_BYTES: usize = 64 << 10;
/// NULs at the start of a record that are kept. A longer run says no more, and sparse files have huge ones.
const NULS_KEPT: usize = 4 << 10;

impl Splitter {
    pub(super) fn new() -> Self {
        Self::with_limit(usize::try_from(RECORD_BYTES_MAX).unwrap_or(usize::MAX))
    }

    fn with_limit(record_bytes_max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            pending: 0..0,
            searched: 0,
            nuls_to: 0,
            dropped: 0,
            oversize: false,
            line: 1,
            offset: 0,
            record_bytes_max,
        }
    }

    /// Space for the next piece of text.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.pending.is_empty() {
            self.shift_to_front();
        }
        if self.buffer.len() - self.pending.end < READ_BYTES {
            self.shift_to_front();
            let needed = self.pending.len() + READ_BYTES;
            if self.buffer.len() < needed {
                // Growth by a share keeps the copies linear, a small share the memory close to the record, which the
                // record limit bounds.
                let grown = self.buffer.len() + self.buffer.len() / 8;
                let grown = grown.min(self.record_bytes_max.saturating_add(READ_BYTES)).max(needed);
                self.buffer.reserve_exact(grown - self.buffer.len());
                self.buffer.resize(grown, 0);
            }
        }
        &mut self.buffer[self.pending.end..]
    }

    /// Takes in the first `bytes` of the room.
    pub(super) fn filled(&mut self, bytes: usize) {
        self.pending.end += bytes;
        self.nuls_to = self.nuls_to.max(self.pending.start);
        let rest = &self.buffer[self.nuls_to..self.pending.end];
        self.nuls_to += rest.iter().position(|&b| b != 0).unwrap_or(rest.len());
        if self.nuls_to == self.pending.end && self.pending.len() > NULS_KEPT {
            self.drop_pending_above(NULS_KEPT);
        }
    }

    /// Takes in a piece of text.
    pub(super) fn push(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let room = self.room();
            let bytes = text.len().min(room.len());
            room[..bytes].copy_from_slice(&text[..bytes]);
            self.filled(bytes);
            text = &text[bytes..];
        }
    }

    /// The next record that a line feed ends.
    pub(super) fn next(&mut self) -> Option<Found> {
        let from = self.searched.max(self.pending.start);
        match memchr::memchr(b'\n', &self.buffer[from..self.pending.end]) {
            Some(at) => Some(self.take(from + at, true)),
            None => {
                self.searched = self.pending.end;
                if self.pending.len() > self.record_bytes_max {
                    self.oversize = true;
                }
                if self.oversize {
                    self.drop_pending_above(0);
                }
                None
            }
        }
    }

    /// Whether a record has begun that no line feed has ended. Meaningful once [`next`](Self::next) gave `None`.
    pub(super) fn has_fragment(&self) -> bool {
        !self.pending.is_empty() || self.dropped > 0
    }

    /// What is left at the end: the record that no line feed ended.
    pub(super) fn finish(&mut self) -> Option<Found> {
        self.has_fragment().then(|| self.take(self.pending.end, false))
    }

    /// Drops the record that no line feed has ended yet.
    pub(super) fn forget_fragment(&mut self) {
        self.finish();
    }

    /// A refusal of the record that no line feed has ended.
    pub(super) fn refuse_fragment(&self, kind: RefusalKind, rule: &'static str, message: &str) -> Refusal {
        Refusal::new(kind, rule, message).at_line(self.line, self.offset)
    }

    /// The record as an item.
    pub(super) fn item(&self, found: Found, lenient: bool) -> Item<'_> {
        let Found { bytes, line, offset, ended, oversize } = found;
        if oversize {
            let message =
                format!("the record is longer than {RECORD_BYTES_MAX} bytes, the most that is supported");
            return Item::Fault(
                Refusal::new(RefusalKind::Limit, "record-bytes", message).at_line(line, offset),
            );
        }
        let origin = RecordOrigin::Line;
        Item::Record(Record { bytes: &self.buffer[bytes], line, offset, ended, lenient, origin })
    }

    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Lets the pending record leave, whose bytes end at `end`.
    fn take(&mut self, end: usize, ended: bool) -> Found {
        let bytes = self.pending.start..end;
        let found = Found {
            line: self.line,
            offset: self.offset,
            ended,
            oversize: self.oversize || bytes.len() > self.record_bytes_max,
            bytes,
        };
        let taken = found.bytes.len() + usize::from(ended);
        self.pending.start += taken;
        self.offset += taken as u64 + std::mem::take(&mut self.dropped);
        self.line += u64::from(ended);
        self.oversize = false;
        found
    }

    fn drop_pending_above(&mut self, kept: usize) {
        self.dropped += (self.pending.len() - kept) as u64;
        self.pending.end = self.pending.start + kept;
        self.searched = self.searched.min(self.pending.end);
        self.nuls_to = self.nuls_to.min(self.pending.end);
    }

    fn shift_to_front(&mut self) {
        let by = self.pending.start;
        if by == 0 {
            return;
        }
        self.buffer.copy_within(self.pending.clone(), 0);
        self.pending = 0..self.pending.len();
        self.searched = self.searched.saturating_sub(by);
        self.nuls_to = self.nuls_to.saturating_sub(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that gives pieces of at most `step` bytes.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let bytes = self.1.min(buf.len()).min(self.0.len());
            buf[..bytes].copy_from_slice(&self.0[..bytes]);
            self.0 = &self.0[bytes..];
            Ok(bytes)
        }
    }

    fn lines_of(text: &[u8], step: usize, limit: usize) -> Lines<Drip<'_>> {
        Lines { reader: Drip(text, step), splitter: Splitter::with_limit(limit) }
    }

    /// Every record as (bytes or `None` when above the limit, line, offset, ended).
    type Seen = Vec<(Option<Vec<u8>>, u64, u64, bool)>;

    fn read(mut lines: Lines<Drip<'_>>) -> Seen {
        let mut seen = Vec::new();
        while let Some(item) = lines.next_item().unwrap() {
            seen.push(match item {
                Item::Record(r) => {
                    assert!(r.lenient);
                    (Some(r.bytes.to_vec()), r.line, r.offset, r.ended)
                }
                Item::Fault(f) => {
                    assert_eq!(f.kind, RefusalKind::Limit);
                    (None, f.line.unwrap(), f.offset.unwrap(), true)
                }
                item => panic!("plain text has no {item:?}"),
            });
        }
        seen
    }

    /// The same by splitting a slice.
    fn expected(text: &[u8], limit: usize) -> Seen {
        let (mut seen, mut offset) = (Vec::new(), 0);
        for (i, piece) in text.split_inclusive(|&b| b == b'\n').enumerate() {
            let record = piece.strip_suffix(b"\n");
            let bytes = record.unwrap_or(piece).to_vec();
            let fits = bytes.len() <= limit;
            let ended = record.is_some() || !fits;
            seen.push((fits.then_some(bytes), i as u64 + 1, offset, ended));
            offset += piece.len() as u64;
        }
        seen
    }

    #[test]
    fn only_a_line_feed_ends_a_record_whatever_the_pieces() {
        let texts: [&[u8]; 8] = [
            b"",
            b"\n",
            b"a\nb\n",
            b"a\r\nb",
            b"\n\n\xEF\xBB\xBFx\0y\xFF\n \n",
            b"a\x0bb\x0cc\xc2\x85d\xe2\x80\xa8e\n",
            b"0123456789abc\n0123456789\n01234567890",
            b"01234567890123456789",
        ];
        for text in texts {
            for step in 1..=text.len().max(1) {
                assert_eq!(read(lines_of(text, step, 10)), expected(text, 10), "{text:?} by {step}");
            }
        }
    }

    #[test]
    fn records_cross_the_buffer_and_keep_their_offsets() {
        let text: Vec<u8> = (0..2_000_usize)
            .flat_map(|i| [vec![b'a' + u8::try_from(i % 26).unwrap(); i % 700], vec![b'\n']].concat())
            .chain(*b"rest")
            .collect();
        for step in [1_000, 4_093, usize::MAX] {
            assert_eq!(read(lines_of(&text, step, 1 << 20)), expected(&text, 1 << 20));
        }
    }

    #[test]
    fn a_record_above_the_limit_is_passed_over_without_being_held() {
        let text = [&b"a\n"[..], &vec![b'x'; 5 << 20], b"\nb\n"].concat();
        let mut lines = lines_of(&text, usize::MAX, 100_000);
        assert!(matches!(lines.next_item().unwrap(), Some(Item::Record(r)) if r.bytes == b"a"));
        assert!(
            matches!(lines.next_item().unwrap(), Some(Item::Fault(f)) if f.line == Some(2) && f.offset == Some(2))
        );
        let last = lines.next_item().unwrap();
        assert!(
            matches!(last, Some(Item::Record(r)) if r.bytes == b"b" && r.line == 3 && r.offset == 3 + (5 << 20))
        );
        assert!(lines.splitter.buffer_bytes() <= 100_000 + 2 * READ_BYTES);
    }

    #[test]
    fn a_run_of_nuls_is_shortened_and_still_counted() {
        const RUN: usize = 3 << 20;
        let text = [&b"a\n"[..], &vec![0; RUN], b"\nb\n", &vec![0; RUN]].concat();
        let mut lines = lines_of(&text, usize::MAX, 100_000);
        let mut runs = Vec::new();
        while let Some(item) = lines.next_item().unwrap() {
            let Item::Record(r) = item else { panic!("no fault expected") };
            if r.bytes.first() == Some(&0) {
                assert!(r.bytes.iter().all(|&b| b == 0) && r.bytes.len() >= NULS_KEPT);
                runs.push((r.line, r.offset, r.ended));
            } else {
                assert_eq!(r.offset, if r.line == 1 { 0 } else { 3 + RUN as u64 });
            }
        }
        assert_eq!(runs, [(2, 2, true), (4, 5 + RUN as u64, false)]);
        assert!(lines.splitter.buffer_bytes() <= 2 * READ_BYTES);
    }

    #[test]
    fn nuls_before_text_stay_one_record() {
        let text = [&[0; 300_000][..], b"{\"type\":1}\nz"].concat();
        let seen = read(lines_of(&text, 1_000, 1 << 20));
        let (glued, _, offset, ended) = &seen[0];
        assert!(glued.as_ref().unwrap().ends_with(b"\0{\"type\":1}") && *offset == 0 && *ended);
        assert_eq!(seen[1], (Some(b"z".to_vec()), 2, 300_011, false));
    }
}
