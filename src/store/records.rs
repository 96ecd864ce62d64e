//! Events to stored records and back, and the encoder that turns admitted events into frames of a batch.

use std::borrow::Cow;

use crate::event::{Event, SurfaceOp, code_of, name_of};
use crate::format::{self, EventType, FrameKind, Record, RecordReader, RecordWriter};
use crate::ids::{Seq, SessionKey};
use crate::log::{Batch, FrameDraft};
use crate::{Error, ErrorKind, Result, limits};

use super::summary::Summary;

/// More than the envelope of a record takes, sources and type name aside, with what a frame adds.
const ENVELOPE_BYTES_MAX: usize = 256;

/// Where one frame of an encoder's batch stands and which events it holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct EncodedRun {
    pub(super) first: Seq,
    pub(super) count: u32,
    /// Offset of the frame from the start of its batch.
    pub(super) offset: u64,
}

/// Encodes a run of events of one session into the frames of a batch.
pub(super) struct Encoder {
    key: SessionKey,
    batch: Batch,
    runs: Vec<EncodedRun>,
    records: RecordWriter,
    payload: Vec<u8>,
    first: Seq,
    count: u32,
    summary: Summary,
}

impl Encoder {
    /// An encoder for the events from `first` on, on top of `summary`, behind what `batch` holds already.
    pub(super) fn new(key: SessionKey, first: Seq, summary: Summary, batch: Batch) -> Self {
        Self {
            key,
            batch,
            runs: Vec::new(),
            records: RecordWriter::new(),
            payload: Vec::new(),
            first,
            count: 0,
            summary,
        }
    }

    /// Adds the next event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] if the batch would exceed [`limits::BATCH_BYTES_MAX`].
    pub(super) fn push(&mut self, event: &Event<'_>) -> Result<()> {
        if self.bytes() + event.data.len() as u64 > limits::BATCH_BYTES_MAX {
            let message = format!("append batch: more than {} bytes; split it", limits::BATCH_BYTES_MAX);
            return Err(Error::new(ErrorKind::Limit, message).with_seq(event.seq));
        }
        self.summary.apply(event);
        if event.data.len() >= limits::FRAME_RUN_BYTES {
            return self.push_large(event);
        }
        self.records.push(&mut self.payload, &record_of(event));
        self.count += 1;
        if self.payload.len() >= limits::FRAME_RUN_BYTES {
            self.end_run()?;
        }
        Ok(())
    }

    /// A large event gets a frame of its own and is copied once, straight into it.
    fn push_large(&mut self, event: &Event<'_>) -> Result<()> {
        self.end_run()?;
        let mut draft = self.draft();
        draft.count = 1;
        let sources = event.sources.as_deref().map_or(0, <[Seq]>::len);
        let offset = self.batch.push_with(draft, |out| {
            out.reserve_exact(event.data.len() + event.type_name.len() + 20 * sources + ENVELOPE_BYTES_MAX);
            RecordWriter::new().push(out, &record_of(event));
            Ok(())
        })?;
        self.ran(1, offset);
        Ok(())
    }

    /// The seq of the first event that was added.
    pub(super) fn first_seq(&self) -> Seq {
        self.runs.first().map_or(self.first, |run| run.first)
    }

    /// Bytes encoded so far.
    pub(super) fn bytes(&self) -> u64 {
        self.batch.len() + self.payload.len() as u64
    }

    /// The seq that the next event must have.
    pub(super) fn next_seq(&self) -> Seq {
        Seq::new(self.first.get() + u64::from(self.count))
    }

    pub(super) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The batch, its runs, and the summary with these events taken in.
    pub(super) fn finish(mut self) -> Result<(Batch, Vec<EncodedRun>, Summary)> {
        self.end_run()?;
        Ok((self.batch, self.runs, self.summary))
    }

    fn end_run(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let offset = self.batch.push(self.draft(), &self.payload)?;
        self.ran(self.count, offset);
        self.payload.clear();
        self.records = RecordWriter::new();
        Ok(())
    }

    fn draft(&self) -> FrameDraft {
        FrameDraft {
            kind: FrameKind::EVENTS,
            subject: self.key.get(),
            tag: self.first.get(),
            count: self.count,
        }
    }

    /// Notes a frame of `count` events.
    fn ran(&mut self, count: u32, offset: u64) {
        self.runs.push(EncodedRun { first: self.first, count, offset });
        self.first = Seq::new(self.first.get() + u64::from(count));
        self.count = 0;
    }
}

/// The events of one frame, in order.
pub(super) fn events_of(payload: &[u8], first: Seq, count: u32) -> impl Iterator<Item = Result<Event<'_>>> {
    RecordReader::new(payload, first, count)
        .map(|item| item.and_then(|(seq, record)| read_event(seq, &record)))
}

fn record_of<'e>(event: &'e Event<'_>) -> Record<'e, &'e [Seq]> {
    Record {
        event_type: match code_of(&event.type_name) {
            Some(code) => EventType::Code(u32::from(code)),
            None => EventType::Name(&event.type_name),
        },
        time_ms: event.time,
        ignorable: event.ignorable,
        surface_op: match event.surface_op {
            None => format::SurfaceOp::None,
            Some(SurfaceOp::Append) => format::SurfaceOp::Append,
            Some(SurfaceOp::Replace { start, end }) => format::SurfaceOp::Replace { start, end },
        },
        sources: event.sources.as_deref(),
        data: &event.data,
    }
}

/// A stored record as an event.
pub(super) fn read_event<'p>(seq: Seq, record: &Record<'p>) -> Result<Event<'p>> {
    event_of(seq, record, sources_of(record))
}

/// A stored record as an event of its own.
pub(super) fn owned_event(seq: Seq, record: &Record<'_>) -> Result<Event<'static>> {
    let type_name = match record.event_type {
        EventType::Name(name) => Cow::Owned(name.to_owned()),
        EventType::Code(code) => Cow::Borrowed(known_name(seq, code)?),
    };
    Ok(assemble(seq, record, type_name, Cow::Owned(record.data.to_owned()), sources_of(record)))
}

/// A record as an event, its sources as a list.
pub(super) fn event_of<'p, S>(
    seq: Seq,
    record: &Record<'p, S>,
    sources: Option<Cow<'p, [Seq]>>,
) -> Result<Event<'p>> {
    let type_name = type_name_of(seq, record.event_type)?;
    Ok(assemble(seq, record, Cow::Borrowed(type_name), Cow::Borrowed(record.data), sources))
}

fn assemble<'e, S>(
    seq: Seq,
    record: &Record<'_, S>,
    type_name: Cow<'e, str>,
    data: Cow<'e, str>,
    sources: Option<Cow<'e, [Seq]>>,
) -> Event<'e> {
    let surface_op = surface_op_of(record.surface_op);
    Event { type_name, seq, time: record.time_ms, data, surface_op, sources, ignorable: record.ignorable }
}

fn sources_of<'e>(record: &Record<'_>) -> Option<Cow<'e, [Seq]>> {
    record.sources.map(|sources| Cow::Owned(sources.iter().collect()))
}

/// The name of a stored event's type.
pub(super) fn type_name_of(seq: Seq, event_type: EventType<'_>) -> Result<&str> {
    match event_type {
        EventType::Name(name) => Ok(name),
        EventType::Code(code) => known_name(seq, code),
    }
}

fn known_name(seq: Seq, code: u32) -> Result<&'static str> {
    u16::try_from(code).ok().and_then(name_of).ok_or_else(|| {
        let message = format!("read event: type code {code} is unknown; a newer release wrote it");
        Error::new(ErrorKind::Unsupported, message).with_seq(seq)
    })
}

/// What a stored event does to the surface.
pub(super) fn surface_op_of(op: format::SurfaceOp) -> Option<SurfaceOp> {
    match op {
        format::SurfaceOp::None => None,
        format::SurfaceOp::Append => Some(SurfaceOp::Append),
        format::SurfaceOp::Replace { start, end } => Some(SurfaceOp::Replace { start, end }),
    }
}
