//! Whole files: what goes in comes out, and what damage costs.

mod cached;
mod damage;
mod sizes;

use std::ops::Range;

use super::*;
use crate::format::{EventType, Features, FrameKind, Record, SurfaceOp};
use crate::ids::{Position, SegmentId, Seq, SessionKey, WriterEpoch};
use crate::{ErrorKind, Result};

const HEADER_TYPE: u32 = 7;

/// An event as the tests hold it.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    code: u32,
    time_ms: i64,
    op: SurfaceOp,
    sources: Option<Vec<Seq>>,
    data: String,
}

#[derive(Debug, Clone)]
struct Session {
    key: u64,
    first: u64,
    events: Vec<Event>,
}

fn event(code: u32, data: impl Into<String>) -> Event {
    Event { code, time_ms: 1_000, op: SurfaceOp::None, sources: None, data: data.into() }
}

fn sealed_header() -> SealedHeader {
    SealedHeader {
        store_id: *b"0123456789abcdef",
        name: SealedName { first: SegmentId::new(1), last: SegmentId::new(3), generation: 1 },
        epoch: WriterEpoch::new(2),
        features: Features::default(),
        previous_end: None,
    }
}

fn end() -> Position {
    Position { segment: SegmentId::new(3), offset: 4_136 }
}

fn build(sessions: &[Session]) -> (Vec<u8>, SealedStats) {
    let mut builder = SealedBuilder::new(Vec::new(), sealed_header(), &[HEADER_TYPE]).unwrap();
    for session in sessions {
        builder
            .control(FrameKind::CREATE, session.key, format!("session {}", session.key).as_bytes())
            .unwrap();
        for event in &session.events {
            builder.observe(EventType::Code(event.code), &event.data).unwrap();
        }
    }
    for session in sessions {
        builder.begin_session(SessionKey::new(session.key), Seq::new(session.first)).unwrap();
        for event in &session.events {
            builder
                .event(&Record {
                    event_type: EventType::Code(event.code),
                    time_ms: event.time_ms,
                    ignorable: false,
                    surface_op: event.op,
                    sources: event.sources.as_deref(),
                    data: &event.data,
                })
                .unwrap();
        }
        builder.end_session(format!("summary {}", session.key).as_bytes()).unwrap();
    }
    builder.finish(end()).unwrap()
}

fn owned(record: &Record<'_>) -> Event {
    let EventType::Code(code) = record.event_type else { panic!("a named type") };
    Event {
        code,
        time_ms: record.time_ms,
        op: record.surface_op,
        sources: record.sources.map(|sources| sources.iter().collect()),
        data: record.data.to_owned(),
    }
}

/// What a file gives for a session: events and the ranges that cannot be read.
fn read<S: ByteSource>(file: &Sealed<S>, row: &SessionRow) -> (Vec<(u64, Event)>, Vec<Range<u64>>) {
    let (mut events, mut lost) = (Vec::new(), Vec::new());
    let mut decoder = SealedDecoder::new().unwrap();
    file.events(row, row.first..row.end(), &|_, _| true, &mut decoder, &mut |item| {
        match item {
            SealedItem::Event(seq, record) => events.push((seq.get(), owned(&record))),
            SealedItem::Unreadable(seqs, error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                lost.push(seqs.start.get()..seqs.end.get());
            }
        }
        Ok(())
    })
    .unwrap();
    (events, lost)
}

/// Sessions that use all that a file has: several units, versions that hang on each other, a repeated payload, an event
/// larger than a unit, sources, replaced ranges.
fn varied() -> Vec<Session> {
    let payload = "A".repeat(5_000);
    let mut first = Vec::new();
    for number in 0..6_u64 {
        first.push(event(
            HEADER_TYPE,
            format!("{{\"system\":\"{}\",\"day\":{number}}}", "be brief ".repeat(9)),
        ));
        first.push(event(1, format!("{{\"text\":\"{}\"}}", format!("long text {number} ").repeat(2_500))));
        let sources = Some((0..=number).map(Seq::new).collect());
        let op = SurfaceOp::Replace { start: Seq::new(number), end: Seq::new(number + 1) };
        let spliced = format!("{{\"a\":\"{payload}\",\"é\":\"{payload}\",\"n\":{number}}}");
        first.push(Event { sources, op, time_ms: 5_000 - 7 * number.cast_signed(), ..event(2, spliced) });
    }
    first.push(event(3, format!("[\"{}\"]", "x".repeat(70_000))));
    let second =
        vec![first[0].clone(), first[2].clone(), event(1, "{}"), event(HEADER_TYPE, "{\"system\":\"\"}")];
    vec![
        Session { key: 4, first: 40, events: first },
        Session { key: 9, first: 0, events: Vec::new() },
        Session { key: 11, first: 2, events: second },
    ]
}

fn control_of<S: ByteSource>(file: &Sealed<S>) -> Result<Vec<(FrameKind, u64, Vec<u8>)>> {
    let mut records = Vec::new();
    file.control(&mut SealedDecoder::new()?, &mut |record| {
        records.push((record.kind, record.subject, record.payload.to_vec()));
        Ok(())
    })?;
    Ok(records)
}

#[test]
fn what_goes_in_comes_out() {
    let sessions = varied();
    let (bytes, stats) = build(&sessions);
    let file = Sealed::open(&bytes[..]).unwrap();
    assert_eq!(*file.header(), sealed_header());
    assert_eq!((file.covered_to(), file.footer_crc()), (end(), stats.footer_crc));
    assert_eq!((file.file_bytes(), file.event_count()), (bytes.len() as u64, stats.event_count));
    assert!(stats.unit_count >= 5 && stats.piece_count >= 8, "{stats:?}");
    let rows: Vec<SessionRow> = file.sessions().map(Result::unwrap).collect();
    assert_eq!(rows.len(), sessions.len());
    for (row, session) in rows.iter().zip(&sessions) {
        assert_eq!((row.key.get(), row.first.get()), (session.key, session.first));
        assert_eq!(file.find(row.key).unwrap(), Some(*row));
        assert_eq!(&*file.summary(row).unwrap(), format!("summary {}", session.key).as_bytes());
        let (events, lost) = read(&file, row);
        assert!(events.into_iter().eq((session.first..).zip(session.events.iter().cloned())));
        assert!(lost.is_empty());
    }
    assert_eq!(file.find(SessionKey::new(5)).unwrap(), None);
    let control = control_of(&file).unwrap();
    assert!(control.iter().map(|record| record.1).eq([4, 9, 11]));
    assert_eq!(control[1], (FrameKind::CREATE, 9, b"session 9".to_vec()));
    let mut decoder = SealedDecoder::new().unwrap();
    file.check_all(&mut decoder, &mut |finding| panic!("{finding:?}")).unwrap();
}

#[test]
fn one_event_is_found_through_its_unit() {
    let sessions = varied();
    let file = Sealed::open(build(&sessions).0).unwrap();
    let (mut decoder, mut unit) = (SealedDecoder::new().unwrap(), Unit::default());
    for session in &sessions {
        let row = file.find(SessionKey::new(session.key)).unwrap().unwrap();
        for (seq, event) in (session.first..).map(Seq::new).zip(&session.events) {
            let unit_row = file.unit_of(&row, seq).unwrap().unwrap();
            assert_eq!(file.unit_about(&row, seq), Some(unit_row.index));
            file.decode_unit(&unit_row, true, &mut decoder, &mut unit).unwrap();
            let piece = file.piece_of(&unit, seq).unwrap();
            assert_eq!(piece.is_some(), event.code == HEADER_TYPE);
            assert!(unit.memory_bytes() > 0);
        }
        assert_eq!(file.unit_of(&row, row.end()).unwrap(), None);
        let all = row.first..row.end();
        assert_eq!(file.units_within(&row, &all), row.unit_count);
    }
}

#[test]
fn a_range_is_read_alone_and_unwanted_data_stays_closed() {
    let sessions = varied();
    let (mut bytes, _) = build(&sessions);
    let row = Sealed::open(&bytes[..]).unwrap().find(SessionKey::new(4)).unwrap().unwrap();
    // Without their texts, headers and envelopes can still be read.
    let file = Sealed::open(&bytes[..]).unwrap();
    let texts: Vec<_> =
        (row.first_unit..row.first_unit + row.unit_count).map(|unit| file.unit_row(unit).unwrap()).collect();
    for unit in texts {
        bytes[usize::try_from(unit.text_offset()).unwrap()] ^= 1;
    }
    let file = Sealed::open(&bytes[..]).unwrap();
    let mut decoder = SealedDecoder::new().unwrap();
    let mut seen = Vec::new();
    let want = |_, event_type: EventType<'_>| event_type == EventType::Code(HEADER_TYPE);
    file.events(&row, Seq::new(42)..Seq::new(47), &want, &mut decoder, &mut |item| {
        let SealedItem::Event(seq, record) = item else { panic!("{item:?}") };
        seen.push((seq.get(), record.data.len()));
        Ok(())
    })
    .unwrap();
    let header = sessions[0].events[3].data.len();
    assert_eq!(seen, [(42, 0), (43, header), (44, 0), (45, 0), (46, header)]);
}

#[test]
fn a_builder_refuses_what_is_out_of_order() {
    let record = Record {
        event_type: EventType::Code(1),
        time_ms: 0,
        ignorable: false,
        surface_op: SurfaceOp::None,
        sources: None,
        data: "",
    };
    let invalid = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid);
    let new = |sink| SealedBuilder::new(sink, sealed_header(), &[]);
    assert!(new(vec![0]).is_err());
    let mut builder = new(Vec::new()).unwrap();
    invalid(builder.event(&record));
    invalid(builder.end_session(b""));
    builder.begin_session(SessionKey::new(2), Seq::new(0)).unwrap();
    invalid(builder.begin_session(SessionKey::new(3), Seq::new(0)));
    invalid(builder.control(FrameKind::CREATE, 1, b""));
    invalid(builder.observe(EventType::Code(1), ""));
    builder.end_session(b"").unwrap();
    invalid(builder.begin_session(SessionKey::new(2), Seq::new(0)));
    invalid(builder.finish(Position { segment: SegmentId::new(2), offset: 0 }).map(|_| ()));
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let mut builder = SealedBuilder::new(Vec::new(), sealed_header(), &[]).unwrap();
    builder.begin_session(SessionKey::new(2), Seq::new(1)).unwrap();
    let sources = [Seq::new(0), Seq::new(0)];
    let record = Record {
        event_type: EventType::Code(1),
        time_ms: 0,
        ignorable: false,
        surface_op: SurfaceOp::None,
        sources: Some(&sources[..]),
        data: "",
    };
    builder.event(&record).unwrap();
    assert_eq!(builder.end_session(b"").unwrap_err().kind(), ErrorKind::Invalid);
}

/// A sink that fails once it has taken a number of bytes.
struct Full(Vec<u8>, usize);

impl ByteSource for Full {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn bytes(&self, offset: u64, len: usize) -> io::Result<Cow<'_, [u8]>> {
        self.0.bytes(offset, len)
    }
}

impl SealedSink for Full {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.0.len() + bytes.len() > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        SealedSink::append(&mut self.0, bytes)
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let builder = SealedBuilder::new(Full(Vec::new(), 5_000), sealed_header(), &[]).unwrap();
    assert!(builder.finish(end()).is_ok());
    let builder = SealedBuilder::new(Full(Vec::new(), 4_000), sealed_header(), &[]).unwrap();
    let error = builder.finish(end()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
}
