//! Events to stored records and back, and the encoder that turns admitted events into frames of a batch.

use std::borrow::Cow;

use crate::event::{Event, SurfaceOp, code_of, name_of};
use crate::format::{self, EventType, FrameKind, Record, RecordReader, RecordWriter};
use crate::ids::{Seq, SessionKey};
use crate::log::{Batch, FrameDraft, FrameSlot, PatchBase};
use crate::{Error, ErrorKind, Result, limits};

use super::summary::Summary;

/// More than the envelope of a record takes, sources and type name aside.
const ENVELOPE_BYTES_MAX: usize = 64;

/// The type of events whose data are versions of one value.
pub(super) const VERSIONED_TYPE: &str = "request/header";

/// Whether an event is stored as what changed since an earlier one, if there is one.
pub(super) fn is_patched(type_name: &str, data: &str) -> bool {
    data.len() >= limits::PATCHED_DATA_BYTES_MIN && type_name == VERSIONED_TYPE
}

/// Where one frame of an encoder's batch stands and which events it holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct EncodedRun {
    pub(super) first: Seq,
    pub(super) count: u32,
    pub(super) slot: FrameSlot,
    /// It holds one event, a version that later ones may be a patch of.
    pub(super) is_version: bool,
}

/// Encodes a run of events of one session into the frames of a batch.
pub(super) struct Encoder {
    key: SessionKey,
    batch: Batch,
    runs: Vec<EncodedRun>,
    records: RecordWriter,
    /// The run that is being written: its first event, how many it has, and where it begins in the batch.
    first: Seq,
    count: u32,
    run_at: u64,
    /// It holds one version and nothing else.
    is_version: bool,
    summary: Summary,
    base: Option<PatchBase>,
}

impl Encoder {
    /// An encoder for the events from `first` on, on top of `summary`, behind what `batch` holds already.
    pub(super) fn new(key: SessionKey, first: Seq, summary: Summary, batch: Batch) -> Self {
        Self {
            key,
            batch,
            runs: Vec::new(),
            records: RecordWriter::new(),
            first,
            count: 0,
            run_at: 0,
            is_version: false,
            summary,
            base: None,
        }
    }

    /// Has versions written as patches of `base`.
    pub(super) fn set_base(&mut self, base: Option<PatchBase>) {
        self.base = base;
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
        let is_version = is_patched(&event.type_name, &event.data);
        if is_version || event.data.len() >= limits::FRAME_RUN_BYTES {
            // It gets a frame of its own.
            self.end_run()?;
        }
        if self.count == 0 {
            self.run_at = self.batch.len();
            self.batch.begin_frame(record_bytes_max(event));
        }
        self.records.push(self.batch.payload(), &record_of(event));
        self.count += 1;
        self.is_version = is_version;
        if is_version || self.batch.len() - self.run_at >= limits::FRAME_RUN_BYTES as u64 {
            self.end_run()?;
        }
        Ok(())
    }

    /// The seq of the first event that was added.
    pub(super) fn first_seq(&self) -> Seq {
        self.runs.first().map_or(self.first, |run| run.first)
    }

    /// Bytes encoded so far.
    pub(super) fn bytes(&self) -> u64 {
        self.batch.len()
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
        let (first, count, is_version) = (self.first, self.count, self.is_version);
        let draft = FrameDraft { kind: FrameKind::EVENTS, subject: self.key.get(), tag: first.get(), count };
        let slot = if is_version {
            self.batch.end_version(draft, self.base.as_ref())?
        } else {
            self.batch.end_frame(draft)?
        };
        self.runs.push(EncodedRun { first, count, slot, is_version });
        self.first = self.next_seq();
        self.count = 0;
        self.records = RecordWriter::new();
        Ok(())
    }
}

/// The events of one frame, in order.
pub(super) fn events_of(payload: &[u8], first: Seq, count: u32) -> impl Iterator<Item = Result<Event<'_>>> {
    RecordReader::new(payload, first, count)
        .map(|item| item.and_then(|(seq, record)| read_event(seq, &record)))
}

/// Room that the record of `event` needs at most.
fn record_bytes_max(event: &Event<'_>) -> usize {
    let sources = event.sources.as_deref().map_or(0, <[Seq]>::len);
    event.data.len() + event.type_name.len() + 20 * sources + ENVELOPE_BYTES_MAX
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
