//! What the catalog knows of a session without reading its payloads: kept while appending, rebuilt at open.

use std::sync::Arc;

use crate::Result;
use crate::event::json::{Kind, Value};
use crate::event::{Event, SurfaceOp};
use crate::format::{SummaryPayload, crc32};

/// The running summary of a session's events, taken in one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// Time of the last event, in milliseconds since the Unix epoch.
    pub(super) last_time: Option<i64>,
    /// The latest `session/title`.
    pub(super) title: Option<Arc<str>>,
    /// A turn has begun and not ended.
    pub(super) open_turn: bool,
    /// Size of the events as unpacked JSON lines, in bytes.
    pub(super) logical_bytes: u64,
    /// Checksum chained over every event: two sessions with the same chain and length hold the same events.
    pub(super) chain: u32,
}

impl Summary {
    /// Takes in the next event.
    pub(super) fn apply(&mut self, event: &Event<'_>) {
        self.last_time = Some(event.time);
        match &*event.type_name {
            "turn/start" => self.open_turn = true,
            "turn/end" => self.open_turn = false,
            "session/title" => self.title = title(event.value()).or_else(|| self.title.take()),
            _ => {}
        }
        self.logical_bytes = self.logical_bytes.saturating_add(json_line_bytes(event));
        self.chain = chained(self.chain, event);
    }
}

impl Summary {
    /// The bytes that a sealed file keeps.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (last_time, open_turn) = (self.last_time, self.open_turn);
        let (logical_bytes, chain) = (self.logical_bytes, self.chain);
        SummaryPayload { last_time, open_turn, logical_bytes, chain, title: self.title.as_deref() }
            .encode(&mut out);
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let SummaryPayload { last_time, open_turn, logical_bytes, chain, title } =
            SummaryPayload::decode(bytes)?;
        Ok(Self { last_time, title: title.map(Arc::from), open_turn, logical_bytes, chain })
    }
}

fn title(data: Value<'_>) -> Option<Arc<str>> {
    let title = data.get("title").filter(|t| t.kind() == Kind::String)?;
    title.string().map(|t| Arc::from(&*t.to_lossy()))
}

/// The chain with one more event.
// Format: section 8.3.
pub(super) fn chained(chain: u32, event: &Event<'_>) -> u32 {
    let mut link = [0; 24];
    link[..4].copy_from_slice(&chain.to_le_bytes());
    link[4..12].copy_from_slice(&event.time.to_le_bytes());
    link[12..16].copy_from_slice(&crc32(event.type_name.as_bytes()).to_le_bytes());
    link[16..20].copy_from_slice(&crc32(event.data.as_bytes()).to_le_bytes());
    link[20..].copy_from_slice(&envelope_crc(event).to_le_bytes());
    crc32(&link)
}

/// Checksum of what else an event says: whether it is ignorable, its place on the surface, its sources.
// Format: section 8.3.
fn envelope_crc(event: &Event<'_>) -> u32 {
    let (op, start, end) = match event.surface_op {
        None => (0, 0, 0),
        Some(SurfaceOp::Append) => (1, 0, 0),
        Some(SurfaceOp::Replace { start, end }) => (2, start.get(), end.get()),
    };
    let mut head = [0; 17];
    head[0] = u8::from(event.ignorable) | u8::from(event.sources.is_some()) << 1 | op << 2;
    head[1..9].copy_from_slice(&start.to_le_bytes());
    head[9..].copy_from_slice(&end.to_le_bytes());
    let sources = event.sources.as_deref().unwrap_or_default();
    sources.iter().fold(crc32(&head), |crc, source| {
        let mut link = [0; 12];
        link[..4].copy_from_slice(&crc.to_le_bytes());
        link[4..].copy_from_slice(&source.get().to_le_bytes());
        crc32(&link)
    })
}

/// Length of the event as one JSON line with its line feed: what [`Event::write_json`] would write.
pub(super) fn json_line_bytes(event: &Event<'_>) -> u64 {
    let mut bytes =
        r#"{"type":"","seq":,"time":,"data":}"#.len() + 1 + event.type_name.len() + event.data.len();
    bytes += digits(event.seq.get()) + digits(event.time.unsigned_abs()) + usize::from(event.time < 0);
    if let Some(sources) = &event.sources {
        bytes += r#","sourceEventSeqs":[]"#.len() + sources.len().saturating_sub(1);
        bytes += sources.iter().map(|s| digits(s.get())).sum::<usize>();
    }
    match event.surface_op {
        None => {}
        Some(SurfaceOp::Append) => bytes += r#","surfaceOp":"append""#.len(),
        Some(SurfaceOp::Replace { start, end }) => {
            bytes += r#","surfaceOp":{"op":"replace","start":,"end":}"#.len();
            bytes += digits(start.get()) + digits(end.get());
        }
    }
    if event.ignorable {
        bytes += r#","ignorable":true"#.len();
    }
    bytes as u64
}

fn digits(n: u64) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::ids::Seq;

    #[test]
    fn line_lengths_equal_the_written_line() {
        let seqs = [Seq::new(0), Seq::new(9), Seq::new(10), Seq::new(99_999)];
        let ops = [
            None,
            Some(SurfaceOp::Append),
            Some(SurfaceOp::Replace { start: Seq::new(10), end: Seq::new(9) }),
        ];
        for (op, (time, ignorable)) in
            ops.into_iter().zip([(-1_000, true), (0, false), (1_767_225_600_000, false)])
        {
            for sources in [None, Some(Cow::Borrowed(&seqs[..])), Some(Cow::Borrowed(&seqs[..0]))] {
                let event = Event {
                    type_name: "turn/start".into(),
                    seq: Seq::new(100),
                    time,
                    data: "{\"turn\":1}".into(),
                    surface_op: op,
                    sources,
                    ignorable,
                };
                let mut line = String::new();
                event.write_json(&mut line);
                assert_eq!(json_line_bytes(&event), line.len() as u64 + 1, "{line}");
            }
        }
    }
}
