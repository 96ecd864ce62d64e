//! Whole files: what goes in comes out, and what damage costs.

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
    file.events(row, row.first..row.end(), &|_| true, &mut decoder, &mut |item| {
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

#[test]
fn a_round_trip() -> Result<()> {
    let sessions =
        [Session { key: 4, first: 10, events: vec![event(1, "{}"), event(HEADER_TYPE, "{\"a\":1}")] }];
    let (bytes, _) = build(&sessions);
    let file = Sealed::open(bytes)?;
    let row = file.find(SessionKey::new(4))?.unwrap();
    let (events, lost) = read(&file, &row);
    assert_eq!(events.len(), 2);
    assert_eq!(events[1], (11, sessions[0].events[1].clone()));
    assert!(lost.is_empty());
    Ok(())
}
