//! The envelopes of one unit's events, column by column.
//!
//! Types, times, surface ops and sources of neighbours are alike, so each has a column of its own; where an event's
//! data lies is one more column. The reader checks a whole unit once and then finds any event in a few steps.

use crate::format::record::{self, Flags, Taken};
use crate::format::varint;
use crate::format::{Record, Sources, SurfaceOp};
use crate::ids::Seq;
use crate::limits::RECORD_BYTES_MAX;

const COLUMNS: usize = 6;
const FLAGS: usize = 0;
const TYPES: usize = 1;
const TIMES: usize = 2;
const REPLACED: usize = 3;
const SOURCES: usize = 4;
const DATA: usize = 5;

const DATA_INLINE: u64 = 0;
const DATA_PIECE: u64 = 1;
const DATA_SPLICED: u64 = 2;
const DATA_KIND_BITS: u32 = 2;

/// An event can be reached by walking over at most so many before it.
const MARK_EVENTS: usize = 16;

/// Where the data of an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataPlace<'a> {
    /// In the unit's text.
    Inline { at: usize, bytes: usize },
    /// All of it is one piece.
    Piece(u32),
    /// In the unit's text, with pieces put in.
    Spliced { at: usize, bytes: usize, splices: Splices<'a> },
}

impl DataPlace<'_> {
    /// The pieces that the data needs.
    pub(super) fn pieces(&self) -> impl Iterator<Item = u32> {
        let (whole, splices) = match *self {
            Self::Inline { .. } => (None, None),
            Self::Piece(id) => (Some(id), None),
            Self::Spliced { splices, .. } => (None, Some(splices)),
        };
        whole.into_iter().chain(splices.into_iter().flat_map(Splices::iter).map(|splice| splice.piece))
    }
}

/// A piece that was taken out of an event's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Splice {
    /// Bytes of the remaining data between the splice before, or its start, and this one.
    pub(super) gap: usize,
    /// What stands there.
    pub(super) piece: u32,
}

/// The splices of one event, still encoded; already checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Splices<'a> {
    encoded: &'a [u8],
}

impl<'a> Splices<'a> {
    pub(super) fn iter(self) -> impl Iterator<Item = Splice> + use<'a> {
        let mut rest = self.encoded;
        std::iter::from_fn(move || take_splice(&mut rest).ok())
    }
}

/// Collects the envelopes of a unit's events.
#[derive(Debug, Default)]
pub(super) struct EnvelopeWriter {
    columns: [Vec<u8>; COLUMNS],
    previous_time_ms: i64,
}

impl EnvelopeWriter {
    /// Adds the unit's next event. Its data, of which `inline_bytes` went to the unit's text, is not looked at.
    // Format: section 10.2.
    pub(super) fn push(&mut self, record: &Record<'_, &[Seq]>, data: DataDraft<'_>) {
        self.columns[FLAGS].push(record::flags_of(record));
        record::put_type(&mut self.columns[TYPES], record.event_type);
        varint::put_signed(&mut self.columns[TIMES], record.time_ms.wrapping_sub(self.previous_time_ms));
        self.previous_time_ms = record.time_ms;
        if let SurfaceOp::Replace { start, end } = record.surface_op {
            varint::put(&mut self.columns[REPLACED], start.get());
            varint::put(&mut self.columns[REPLACED], end.get());
        }
        if let Some(sources) = record.sources {
            record::put_sources(&mut self.columns[SOURCES], sources);
        }
        data.put(&mut self.columns[DATA]);
    }

    /// Bytes collected so far.
    pub(super) fn bytes(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// Moves what was collected to `out`, replacing what that holds.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        out.clear();
        for column in &self.columns[TYPES..DATA] {
            varint::put(out, column.len() as u64);
        }
        for column in &mut self.columns {
            out.append(column);
        }
        self.previous_time_ms = 0;
    }
}

/// Where the builder put an event's data.
#[derive(Debug, Clone, Copy)]
pub(super) enum DataDraft<'a> {
    Inline(usize),
    Piece(u32),
    Spliced(usize, &'a [Splice]),
}

impl DataDraft<'_> {
    fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => varint::put(out, (bytes as u64) << DATA_KIND_BITS | DATA_INLINE),
            Self::Piece(id) => varint::put(out, u64::from(id) << DATA_KIND_BITS | DATA_PIECE),
            Self::Spliced(bytes, splices) => {
                varint::put(out, (bytes as u64) << DATA_KIND_BITS | DATA_SPLICED);
                varint::put(out, splices.len() as u64);
                for splice in splices {
                    varint::put(out, splice.gap as u64);
                    varint::put(out, u64::from(splice.piece));
                }
            }
        }
    }
}

/// One step of a walk: the event's envelope, its record's data left empty, and where the data is.
pub(super) type Step<'a> = (Seq, Record<'a, Sources<'a>>, DataPlace<'a>);

/// Walks over the envelopes of a unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walk<'a> {
    columns: [&'a [u8]; COLUMNS],
    next: u64,
    previous_time_ms: i64,
    text_at: usize,
}

impl<'a> Walk<'a> {
    /// A walk over the `count` events of a unit. Their envelopes are checked on the way.
    pub(super) fn new(envelope: &'a [u8], first: Seq, count: u32) -> Taken<Self> {
        let count = usize::try_from(count).map_err(|_| "bad count")?;
        let mut rest = envelope;
        let mut columns = [&[][..]; COLUMNS];
        let mut lengths = [count, 0, 0, 0, 0];
        for length in &mut lengths[TYPES..] {
            let bytes = varint::take(&mut rest).ok_or("bad column length")?;
            *length = usize::try_from(bytes).map_err(|_| "bad column length")?;
        }
        for (column, length) in columns.iter_mut().zip(lengths) {
            (*column, rest) = rest.split_at_checked(length).ok_or("column longer than its unit")?;
        }
        columns[DATA] = rest;
        Ok(Self { columns, next: first.get(), previous_time_ms: 0, text_at: 0 })
    }

    /// The next event; `None` at the end.
    // Inlined, so that a walk which only checks builds no record.
    #[inline(always)]
    pub(super) fn step(&mut self) -> Taken<Option<Step<'a>>> {
        let Some((&flags, rest)) = self.columns[FLAGS].split_first() else {
            return Ok(None);
        };
        self.columns[FLAGS] = rest;
        let flags = Flags::check(flags)?;
        let seq = Seq::new(self.next);
        let record = Record {
            event_type: record::take_type(&mut self.columns[TYPES])?,
            time_ms: record::take_time(&mut self.columns[TIMES], self.previous_time_ms)?,
            ignorable: flags.ignorable(),
            surface_op: record::take_surface_op(&mut self.columns[REPLACED], flags)?,
            sources: record::take_sources(&mut self.columns[SOURCES], flags, seq)?,
            data: "",
        };
        let data = self.take_data()?;
        self.previous_time_ms = record.time_ms;
        self.next += 1;
        Ok(Some((seq, record, data)))
    }

    #[inline(always)]
    fn take_data(&mut self) -> Taken<DataPlace<'a>> {
        let column = &mut self.columns[DATA];
        let word = varint::take(column).ok_or("bad data")?;
        let number = word >> DATA_KIND_BITS;
        if word & 3 == DATA_PIECE {
            return u32::try_from(number).map(DataPlace::Piece).map_err(|_| "bad piece");
        }
        let bytes = Some(number).filter(|&bytes| bytes <= RECORD_BYTES_MAX).ok_or("bad length")?;
        let bytes = usize::try_from(bytes).map_err(|_| "bad length")?;
        let at = self.text_at;
        self.text_at = at.checked_add(bytes).ok_or("bad length")?;
        match word & 3 {
            DATA_INLINE => Ok(DataPlace::Inline { at, bytes }),
            DATA_SPLICED => Ok(DataPlace::Spliced { at, bytes, splices: take_splices(column, bytes)? }),
            _ => Err("unknown kind of data"),
        }
    }

    /// Checks that nothing is left, and that all data in the unit's text adds up to `text_bytes`.
    pub(super) fn check_end(&self, text_bytes: u32) -> Taken<()> {
        if self.columns.iter().any(|column| !column.is_empty()) {
            return Err("bytes after the last event");
        }
        if usize::try_from(text_bytes) != Ok(self.text_at) {
            return Err("a text of another length");
        }
        Ok(())
    }

    fn mark(&self) -> Mark {
        Mark { left: self.columns.map(<[u8]>::len), time_ms: self.previous_time_ms, text_at: self.text_at }
    }
}

/// A checked unit's envelopes, and how to reach any of them.
#[derive(Debug, Default)]
pub(super) struct Envelopes {
    pub(super) bytes: Vec<u8>,
    first: u64,
    count: usize,
    marks: Vec<Mark>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// What is left of each column.
    left: [usize; COLUMNS],
    time_ms: i64,
    text_at: usize,
}

impl Envelopes {
    /// Checks the envelopes in `bytes` to the last byte. All data in the unit's text must add up to `text_bytes`.
    pub(super) fn check(&mut self, first: Seq, count: u32, text_bytes: u32) -> Taken<()> {
        (self.first, self.count) = (first.get(), usize::try_from(count).map_err(|_| "bad count")?);
        self.marks.clear();
        let mut walk = Walk::new(&self.bytes, first, count)?;
        for index in 0..self.count {
            if index % MARK_EVENTS == 0 {
                self.marks.push(walk.mark());
            }
            walk.step()?;
        }
        walk.check_end(text_bytes)
    }

    /// A walk over all events; `None` if nothing was checked yet.
    pub(super) fn walk(&self) -> Option<Walk<'_>> {
        Walk::new(&self.bytes, Seq::new(self.first), u32::try_from(self.count).ok()?).ok()
    }

    /// A walk from the event `seq` on; `None` if the unit has no such event.
    pub(super) fn walk_from(&self, seq: Seq) -> Option<Walk<'_>> {
        let index = usize::try_from(seq.get().checked_sub(self.first)?).ok()?;
        if index >= self.count {
            return None;
        }
        let mark = self.marks.get(index / MARK_EVENTS)?;
        let mut walk = self.walk()?;
        for (column, left) in walk.columns.iter_mut().zip(mark.left) {
            *column = column.get(column.len().checked_sub(left)?..)?;
        }
        walk.next = seq.get() - (index % MARK_EVENTS) as u64;
        walk.previous_time_ms = mark.time_ms;
        walk.text_at = mark.text_at;
        for _ in 0..index % MARK_EVENTS {
            walk.step().ok()?;
        }
        Some(walk)
    }

    /// Whether the unit has an event `seq`.
    pub(super) fn holds(&self, seq: Seq) -> bool {
        seq.get().checked_sub(self.first).is_some_and(|index| index < self.count as u64)
    }

    /// Memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.marks.capacity() * size_of::<Mark>()
    }
}

fn take_splices<'a>(rest: &mut &'a [u8], bytes: usize) -> Taken<Splices<'a>> {
    let count = varint::take(rest).ok_or("bad splices")?;
    let encoded = *rest;
    let mut left = bytes;
    for _ in 0..count {
        let splice = take_splice(rest)?;
        left = left.checked_sub(splice.gap).ok_or("splice behind the data")?;
    }
    Ok(Splices { encoded: &encoded[..encoded.len() - rest.len()] })
}

fn take_splice(rest: &mut &[u8]) -> Taken<Splice> {
    let gap = varint::take(rest).and_then(|gap| usize::try_from(gap).ok()).ok_or("bad splice")?;
    let piece = varint::take(rest).and_then(|piece| u32::try_from(piece).ok()).ok_or("bad splice")?;
    Ok(Splice { gap, piece })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::EventType;
    use proptest::prelude::*;

    fn record(time_ms: i64) -> Record<'static, &'static [Seq]> {
        Record {
            event_type: EventType::Code(3),
            time_ms,
            ignorable: false,
            surface_op: SurfaceOp::Append,
            sources: None,
            data: "",
        }
    }

    fn envelopes(count: u32, text_bytes: u32, bytes: Vec<u8>) -> Taken<Envelopes> {
        let mut envelopes = Envelopes { bytes, ..Envelopes::default() };
        envelopes.check(Seq::new(10), count, text_bytes)?;
        Ok(envelopes)
    }

    #[test]
    fn bytes_are_pinned() {
        let mut writer = EnvelopeWriter::default();
        let sources = [Seq::new(4), Seq::new(5)];
        let replace = SurfaceOp::Replace { start: Seq::new(6), end: Seq::new(300) };
        writer.push(&Record { sources: Some(&sources[..]), ..record(5) }, DataDraft::Inline(2));
        writer.push(
            &Record { event_type: EventType::Name("a"), surface_op: replace, ..record(4) },
            DataDraft::Piece(7),
        );
        writer.push(&record(4), DataDraft::Spliced(3, &[Splice { gap: 1, piece: 9 }]));
        let mut out = vec![99];
        writer.finish(&mut out);
        let columns = [
            &[5, 3, 3, 3][..],                          // bytes of types, times, replaced, sources
            &[0b0110, 0b1000, 0b0100],                  // flags
            &[3, 0, 1, b'a', 3],                        // types
            &[10, 1, 0],                                // times: 5, -1, 0
            &[6, 0xac, 2],                              // replaced
            &[1, 8, 1],                                 // sources: one run from 4, 2 long
            &[2 << 2, 7 << 2 | 1, 3 << 2 | 2, 1, 1, 9], // data
        ];
        assert_eq!(out, columns.concat());
        assert_eq!(writer.bytes(), 0);
        assert!(envelopes(3, 5, out).is_ok());
    }

    #[test]
    fn every_event_is_reached_from_its_mark() {
        let mut writer = EnvelopeWriter::default();
        for index in 0..50_i64 {
            writer.push(&record(index * index), DataDraft::Inline(3));
        }
        let mut out = Vec::new();
        writer.finish(&mut out);
        let envelopes = envelopes(50, 150, out).unwrap();
        for index in 0..50_usize {
            let seq = Seq::new(10 + index as u64);
            let (found, record, place) = envelopes.walk_from(seq).unwrap().step().unwrap().unwrap();
            assert_eq!(found, seq);
            assert_eq!(record.time_ms, (index * index) as i64);
            assert_eq!(place, DataPlace::Inline { at: index * 3, bytes: 3 });
        }
        assert!(envelopes.walk_from(Seq::new(9)).is_none());
        assert!(envelopes.walk_from(Seq::new(60)).is_none());
    }

    #[test]
    fn what_the_writer_never_writes_is_refused() {
        let one = |data: &[u8]| [&[1, 1, 0, 0, 0, 3, 0][..], data].concat();
        assert!(envelopes(1, 1, one(&[1 << 2])).is_ok());
        for (count, text_bytes, bytes, why) in [
            (1, 2, one(&[1 << 2]), "another length"),
            (2, 1, one(&[1 << 2]), "bad length"),
            (1, 1, one(&[1 << 2, 0]), "bytes after"),
            (1, 0, one(&[3]), "unknown kind"),
            (1, 0, one(&[]), "bad data"),
            (1, 1, one(&[1 << 2 | 2, 1, 2, 0]), "behind the data"),
            (1, 1, one(&[1 << 2 | 2, 0xff, 0xff, 0xff, 0xff, 0x7f]), "bad splice"),
            (1, 0, one(&[1, 0xff, 0xff]), "bytes after"),
            (1, 0, vec![0xff; 12], "bad column"),
            (1, 0, vec![9, 0, 0, 0, 0], "longer than its unit"),
        ] {
            let message = envelopes(count, text_bytes, bytes.clone()).expect_err(why);
            assert!(message.contains(why), "{bytes:?}: {message}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), count in 1_u32..9) {
            if let Ok(envelopes) = envelopes(count, 0, bytes) {
                let mut walk = envelopes.walk_from(Seq::new(10)).unwrap();
                prop_assert!(walk.step().is_ok());
            }
        }
    }
}
