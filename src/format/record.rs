//! Event records: the payload of an events frame.
//!
//! Knows the envelope of an event, not its meaning: data is a text that is carried as it is. The reader
//! borrows from the payload, accepts only what the writer would have written, and allocates nothing.

use super::varint;
use crate::ids::Seq;
use crate::{Error, ErrorKind, Result, limits};

const FLAG_IGNORABLE: u8 = 1;
const FLAG_SOURCES: u8 = 2;
const OP_SHIFT: u8 = 2;
const FLAGS_KNOWN: u8 = 0b1111;

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType<'a> {
    /// A type that the format has a number for; never 0.
    Code(u32),
    /// Any other type, by its name; never empty.
    Name(&'a str),
}

/// What an event does to the surface of its session (spec section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SurfaceOp {
    /// Nothing.
    None,
    /// Adds itself at the end.
    Append,
    /// Takes the place of the nodes from `start` to `end`, both included.
    Replace {
        /// First node that is replaced.
        start: Seq,
        /// Last node that is replaced.
        end: Seq,
    },
}

/// One event, as it is written (`S` a slice of seqs) or as it is read (`S` is [`Sources`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a, S = Sources<'a>> {
    /// The event's type.
    pub event_type: EventType<'a>,
    /// Its time in milliseconds since the epoch of its clock.
    pub time_ms: i64,
    /// Whether a reader that does not know the type may ignore it.
    pub ignorable: bool,
    /// What it does to the surface.
    pub surface_op: SurfaceOp,
    /// The events that it was made from, if it says so; possibly none.
    pub sources: Option<S>,
    /// Its payload.
    pub data: &'a str,
}

/// Appends records to the payload of one events frame.
#[derive(Debug, Default)]
pub struct RecordWriter {
    previous_time_ms: i64,
}

impl RecordWriter {
    /// A writer for a new frame.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the frame's next record to `out`.
    // Format: section 8.
    pub fn push(&mut self, out: &mut Vec<u8>, record: &Record<'_, &[Seq]>) {
        out.push(flags_of(record));
        put_type(out, record.event_type);
        varint::put_signed(out, record.time_ms.wrapping_sub(self.previous_time_ms));
        self.previous_time_ms = record.time_ms;
        if let SurfaceOp::Replace { start, end } = record.surface_op {
            varint::put(out, start.get());
            varint::put(out, end.get());
        }
        if let Some(sources) = record.sources {
            put_sources(out, sources);
        }
        put_text(out, record.data);
    }
}

/// Reads the records of one events frame, in order, with their seqs. Ends after the first error.
#[derive(Debug)]
pub struct RecordReader<'a> {
    rest: &'a [u8],
    next: u64,
    end: u64,
    previous_time_ms: i64,
}

impl<'a> RecordReader<'a> {
    /// A reader of `count` records, the first of which has the seq `first`.
    #[must_use]
    pub fn new(payload: &'a [u8], first: Seq, count: u32) -> Self {
        let end = first.get().saturating_add(u64::from(count));
        Self { rest: payload, next: first.get(), end, previous_time_ms: 0 }
    }

    fn take_next(&mut self) -> Result<Option<(Seq, Record<'a>)>, &'static str> {
        if self.end > limits::EVENTS_PER_SESSION_MAX {
            return Err("seq above the limit");
        }
        if self.next == self.end {
            return if self.rest.is_empty() { Ok(None) } else { Err("bytes after the last record") };
        }
        let seq = Seq::new(self.next);
        let (record, rest) = take_record(self.rest, self.previous_time_ms, seq)?;
        self.rest = rest;
        self.next += 1;
        self.previous_time_ms = record.time_ms;
        Ok(Some((seq, record)))
    }
}

impl<'a> Iterator for RecordReader<'a> {
    type Item = Result<(Seq, Record<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.take_next().transpose().map(|item| {
            item.map_err(|why| {
                let seq = Seq::new(self.next);
                self.rest = &[];
                self.next = 0;
                self.end = 0;
                Error::new(ErrorKind::Corrupt, format!("read event record: {why}")).with_seq(seq)
            })
        })
    }
}

/// The seqs that an event cites, still encoded; already checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources<'a> {
    runs: &'a [u8],
    seq_count: u64,
}

impl<'a> Sources<'a> {
    /// How many seqs there are.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.seq_count
    }

    /// Whether the event cites nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.seq_count == 0
    }

    /// The maximal runs of ascending seqs, in the order given: first and last seq of each.
    pub fn runs(&self) -> impl Iterator<Item = (Seq, Seq)> + use<'a> {
        let mut rest = self.runs;
        let mut previous_end = 0;
        std::iter::from_fn(move || {
            let (start, end) = take_run(&mut rest, previous_end)?;
            previous_end = end;
            Some((Seq::new(start), Seq::new(end)))
        })
    }

    /// The seqs, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = Seq> + use<'a> {
        self.runs().flat_map(|(start, end)| (start.get()..=end.get()).map(Seq::new))
    }
}

/// The flags byte: which of the optional fields follow.
pub(super) fn flags_of<S>(record: &Record<'_, S>) -> u8 {
    let op = match record.surface_op {
        SurfaceOp::None => 0,
        SurfaceOp::Append => 1,
        SurfaceOp::Replace { .. } => 2,
    };
    let ignorable = if record.ignorable { FLAG_IGNORABLE } else { 0 };
    let sources = if record.sources.is_some() { FLAG_SOURCES } else { 0 };
    ignorable | sources | op << OP_SHIFT
}

pub(super) fn put_type(out: &mut Vec<u8>, event_type: EventType<'_>) {
    match event_type {
        EventType::Code(code) => varint::put(out, u64::from(code)),
        EventType::Name(name) => {
            varint::put(out, 0);
            put_text(out, name);
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn put_sources(out: &mut Vec<u8>, sources: &[Seq]) {
    let runs = || sources.chunk_by(|a, b| a.get().checked_add(1) == Some(b.get()));
    varint::put(out, runs().count() as u64);
    let mut previous_end = 0_u64;
    for run in runs() {
        let start = run[0].get();
        varint::put_signed(out, start.wrapping_sub(previous_end).cast_signed());
        varint::put(out, run.len() as u64 - 1);
        previous_end = start + (run.len() as u64 - 1);
    }
}

pub(super) type Taken<T> = Result<T, &'static str>;

fn take_record(payload: &[u8], previous_time_ms: i64, seq: Seq) -> Taken<(Record<'_>, &[u8])> {
    let (&flags, mut rest) = payload.split_first().ok_or("fewer records than promised")?;
    let flags = Flags::check(flags)?;
    let event_type = take_type(&mut rest)?;
    let time_ms = take_time(&mut rest, previous_time_ms)?;
    let surface_op = take_surface_op(&mut rest, flags)?;
    let sources = take_sources(&mut rest, flags, seq)?;
    let data = take_text(&mut rest)?;
    Ok((Record { event_type, time_ms, ignorable: flags.ignorable(), surface_op, sources, data }, rest))
}

/// A flags byte without unknown bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flags(u8);

impl Flags {
    pub(super) fn check(flags: u8) -> Taken<Self> {
        if flags & !FLAGS_KNOWN == 0 { Ok(Self(flags)) } else { Err("unknown flag") }
    }

    pub(super) const fn ignorable(self) -> bool {
        self.0 & FLAG_IGNORABLE != 0
    }
}

pub(super) fn take_time(rest: &mut &[u8], previous_time_ms: i64) -> Taken<i64> {
    let delta = varint::take_signed(rest).ok_or("bad time")?;
    let time_ms = previous_time_ms.checked_add(delta).ok_or("bad time")?;
    if time_ms.unsigned_abs() > limits::SAFE_INTEGER_MAX.unsigned_abs() {
        return Err("time beyond the safe integers");
    }
    Ok(time_ms)
}

pub(super) fn take_surface_op(rest: &mut &[u8], flags: Flags) -> Taken<SurfaceOp> {
    match flags.0 >> OP_SHIFT {
        0 => Ok(SurfaceOp::None),
        1 => Ok(SurfaceOp::Append),
        2 => Ok(SurfaceOp::Replace { start: take_seq(rest)?, end: take_seq(rest)? }),
        _ => Err("unknown surface op"),
    }
}

pub(super) fn take_type<'a>(rest: &mut &'a [u8]) -> Taken<EventType<'a>> {
    let code = varint::take(rest).ok_or("bad type")?;
    if code != 0 {
        return u32::try_from(code).map(EventType::Code).map_err(|_| "bad type");
    }
    match take_text(rest)? {
        "" => Err("empty type name"),
        name => Ok(EventType::Name(name)),
    }
}

fn take_seq(rest: &mut &[u8]) -> Taken<Seq> {
    let seq = varint::take(rest).ok_or("bad replaced range")?;
    if seq >= limits::EVENTS_PER_SESSION_MAX {
        return Err("replaced seq above the limit");
    }
    Ok(Seq::new(seq))
}

pub(super) fn take_sources<'a>(rest: &mut &'a [u8], flags: Flags, seq: Seq) -> Taken<Option<Sources<'a>>> {
    if flags.0 & FLAG_SOURCES == 0 {
        return Ok(None);
    }
    let run_count = varint::take(rest).ok_or("bad sources")?;
    let runs = *rest;
    let mut seq_count = 0_u64;
    let mut previous_end = None;
    for _ in 0..run_count {
        let (start, end) = take_run(rest, previous_end.unwrap_or(0)).ok_or("bad sources")?;
        if previous_end.is_some_and(|previous| previous + 1 == start) {
            return Err("two runs of sources that are one");
        }
        seq_count += end - start + 1;
        if seq_count > seq.get() {
            return Err("more sources than earlier events");
        }
        // A few bytes name a long run, and whoever lists it allocates.
        if seq_count > limits::SOURCES_PER_EVENT_MAX as u64 {
            return Err("more sources than the limit");
        }
        previous_end = Some(end);
    }
    Ok(Some(Sources { runs: &runs[..runs.len() - rest.len()], seq_count }))
}

fn take_run(rest: &mut &[u8], previous_end: u64) -> Option<(u64, u64)> {
    let start = previous_end.checked_add_signed(varint::take_signed(rest)?)?;
    let end = start.checked_add(varint::take(rest)?)?;
    (end < limits::EVENTS_PER_SESSION_MAX).then_some((start, end))
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Taken<&'a str> {
    let len = varint::take(rest).filter(|&len| len <= limits::RECORD_BYTES_MAX).ok_or("bad length")?;
    let len = usize::try_from(len).map_err(|_| "bad length")?;
    let (text, after) = rest.split_at_checked(len).ok_or("text longer than its frame")?;
    *rest = after;
    std::str::from_utf8(text).map_err(|_| "text is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Draft<'a> = Record<'a, &'a [Seq]>;

    fn draft(data: &str) -> Draft<'_> {
        Record {
            event_type: EventType::Code(3),
            time_ms: 1_000,
            ignorable: false,
            surface_op: SurfaceOp::None,
            sources: None,
            data,
        }
    }

    fn encode(records: &[Draft<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = RecordWriter::new();
        records.iter().for_each(|record| writer.push(&mut out, record));
        out
    }

    fn read_error(payload: &[u8], first: u64, count: u32) -> String {
        let mut reader = RecordReader::new(payload, Seq::new(first), count);
        let error = reader.find_map(Result::err).expect("an error");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(reader.next().is_none(), "the reader ends after an error");
        error.message().to_owned()
    }

    fn seqs(raw: &[u64]) -> Vec<Seq> {
        raw.iter().copied().map(Seq::new).collect()
    }

    #[test]
    fn bytes_are_pinned() {
        let sources = seqs(&[2, 3, 4, 1, 9]);
        let replace = Record {
            event_type: EventType::Name("a/b"),
            time_ms: 999,
            ignorable: true,
            surface_op: SurfaceOp::Replace { start: Seq::new(4), end: Seq::new(300) },
            sources: Some(&sources[..]),
            data: "{}",
        };
        let expected = [
            &[0, 3, 0xd0, 0x0f, 2, b'[', b']'][..], // plain: flags, code, time 1000, data
            &[0b1011, 0, 3, b'a', b'/', b'b', 1, 4, 0xac, 2], // flags, name, time -1, replaced range
            &[3, 4, 2, 5, 0, 16, 0, 2, b'{', b'}'], // runs 2..=4, 1, 9; data
        ]
        .concat();
        assert_eq!(encode(&[draft("[]"), replace]), expected);
    }

    #[test]
    fn absent_and_empty_sources_stay_apart() {
        let payload = encode(&[draft("1"), Record { sources: Some(&[]), ..draft("2") }]);
        let read: Vec<_> = RecordReader::new(&payload, Seq::new(0), 2).map(|item| item.unwrap().1).collect();
        assert_eq!(read[0].sources, None);
        assert!(read[1].sources.unwrap().is_empty());
    }

    #[test]
    fn what_the_writer_never_writes_is_refused() {
        let good = encode(&[draft("[1]")]);
        for (payload, count, why) in [
            (&good[..], 2, "fewer records"),
            (&[&good[..], &[0]].concat(), 1, "bytes after"),
            (&good[..], 0, "bytes after"),
            (&[0x10, 3, 0, 0], 1, "unknown flag"),
            (&[0b1100, 3, 0, 0], 1, "unknown surface op"),
            (&[0, 0, 0, 0, 0], 1, "empty type name"),
            (&[0, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0], 1, "bad type"),
            (&[0, 3, 0x80, 0, 0], 1, "bad time"),
            (&[0, 3, 0, 1, 0xff], 1, "not UTF-8"),
            (&[0, 0, 1, 0xff, 0, 0], 1, "not UTF-8"),
            (&[0, 3, 0, 5, b'1'], 1, "longer than its frame"),
            (&[0, 3, 0, 0xff, 0xff, 0xff, 0xff, 0x7f], 1, "bad length"),
            (&[2, 3, 0, 2, 0, 0, 2, 0, 0], 1, "two runs"),
            (&[2, 3, 0, 1, 0, 11, 0], 1, "more sources"),
            (&[2, 3, 0, 1, 1, 0, 0], 1, "bad sources"),
            (&[2, 3, 0, 0xff, 0xff, 0xff, 0xff, 0x7f], 1, "bad sources"),
        ] {
            let message = read_error(payload, 10, count);
            assert!(message.contains(why), "{payload:?}: {message}");
        }
        let mut many = vec![2, 3, 0, 1, 0];
        varint::put(&mut many, limits::SOURCES_PER_EVENT_MAX as u64 - 1);
        assert!(
            RecordReader::new(&[&many[..], &[0]].concat(), Seq::new(1 << 31), 1).all(|item| item.is_ok())
        );
        many.truncate(5);
        varint::put(&mut many, limits::SOURCES_PER_EVENT_MAX as u64);
        assert!(read_error(&many, 1 << 31, 1).contains("more sources than the limit"));
        let mut late = vec![0, 3];
        varint::put_signed(&mut late, limits::SAFE_INTEGER_MAX + 1);
        assert!(read_error(&late, 0, 1).contains("time beyond"));
        assert!(read_error(&good, limits::EVENTS_PER_SESSION_MAX, 1).contains("seq above"));
        assert!(read_error(&good, u64::MAX, 1).contains("seq above"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_records_round_trip_and_no_prefix_of_them_does(
            times in prop::collection::vec(-limits::SAFE_INTEGER_MAX..=limits::SAFE_INTEGER_MAX, 1..4),
            sources in prop::option::of(prop::collection::vec(0_u64..40, 0..20)),
            op in 0_u8..3,
            ignorable: bool,
            name in "[a-z/]{1,9}",
            data in ".{0,40}",
        ) {
            let sources = sources.as_deref().map(seqs);
            let surface_op = match op {
                0 => SurfaceOp::None,
                1 => SurfaceOp::Append,
                _ => SurfaceOp::Replace { start: Seq::new(7), end: Seq::new(5) },
            };
            let drafts: Vec<Draft<'_>> = times
                .iter()
                .map(|&time_ms| Record {
                    event_type: EventType::Name(&name),
                    time_ms,
                    ignorable,
                    surface_op,
                    sources: sources.as_deref(),
                    data: &data,
                })
                .collect();
            let payload = encode(&drafts);
            let count = u32::try_from(drafts.len()).unwrap();
            let read: Vec<_> =
                RecordReader::new(&payload, Seq::new(100), count).collect::<Result<_>>().unwrap();
            prop_assert_eq!(read.len(), drafts.len());
            for ((seq, record), (index, draft)) in read.iter().zip(drafts.iter().enumerate()) {
                let listed = record.sources.map(|sources| sources.iter().collect::<Vec<_>>());
                prop_assert_eq!(seq.get(), 100 + index as u64);
                prop_assert_eq!(&listed.as_deref(), &draft.sources);
                prop_assert_eq!(record.sources.map(|s| s.len()), draft.sources.map(|s| s.len() as u64));
                let Record { event_type, time_ms, ignorable, surface_op, data, .. } = *record;
                prop_assert_eq!(
                    Record { event_type, time_ms, ignorable, surface_op, sources: draft.sources, data },
                    *draft
                );
            }
            for cut in 0..payload.len() {
                let mut reader = RecordReader::new(&payload[..cut], Seq::new(100), count);
                prop_assert!(reader.any(|item| item.is_err()));
            }
        }

        #[test]
        fn any_bytes_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), count in 0_u32..9) {
            let items = RecordReader::new(&bytes, Seq::new(50), count).count();
            prop_assert!(items <= bytes.len() + 1);
        }
    }
}
