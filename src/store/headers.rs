//! The header snapshots of a session, one by one (spec section 6).

use std::collections::HashSet;

use super::records::read_event;
use super::runs::{Reading, StoredData};
use super::session::Session;
use crate::Result;
use crate::event::json::{Kind, Value};
use crate::event::{CanonicalHeader, code_of};
use crate::format::EventType;
use crate::ids::Seq;

/// One `request/header` event: a full snapshot, and what it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderSnapshot {
    /// Its seq.
    pub seq: Seq,
    /// The logged reason.
    pub reason: String,
    /// The event says that a message series starts here.
    pub starts_series: bool,
    /// Size of the event's data, in bytes.
    pub bytes: u64,
    /// Bytes that the data takes in the store: 0 where an equal one before it stands for both, absent where it is compressed
    /// together with other events.
    pub stored_bytes: Option<u64>,
    /// Which of `config`, `system` and `tools` differ from the snapshot before.
    pub changed: Vec<&'static str>,
    /// Stable fingerprint of the canonical header, in hexadecimal: equal headers have equal hashes.
    pub hash: String,
}

impl Session {
    /// All header snapshots, in order.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each).
    pub fn headers(&self) -> Result<Vec<HeaderSnapshot>> {
        let mut snapshots = Vec::new();
        let mut last: Option<CanonicalHeader> = None;
        let end = self.next_seq()?;
        let code = code_of("request/header").map(|code| EventType::Code(u32::from(code)));
        let is_header = |event_type: EventType<'_>| Some(event_type) == code;
        // No other payload is decoded.
        let reading = Reading { want: &|_, event_type| is_header(event_type), keeps: false };
        self.read_range(Seq::new(0)..end, reading, &mut |seq, record| {
            if !is_header(record.event_type) {
                return Ok(());
            }
            let event = read_event(seq, record)?;
            let data = event.value();
            if let Some(header) = CanonicalHeader::from_data(data) {
                snapshots.push(HeaderSnapshot {
                    seq: event.seq,
                    reason: reason_text(data),
                    starts_series: data.get("startsSeries").is_some_and(|v| v.is_true()),
                    bytes: event.data.len() as u64,
                    stored_bytes: None,
                    changed: last
                        .as_ref()
                        .map_or_else(|| header.part_names(), |last| header.changed_since(last)),
                    hash: format!("{:032x}", header.digest()),
                });
                last = Some(header);
            }
            Ok(())
        })?;
        let mut counted = HashSet::new();
        for snapshot in &mut snapshots {
            snapshot.stored_bytes = match self.stored_data(snapshot.seq)? {
                StoredData::Plain => Some(snapshot.bytes),
                StoredData::Patch(stored_bytes) => Some(stored_bytes),
                StoredData::Piece(file, piece) if counted.insert((file, piece.id)) => {
                    Some(piece.stored_bytes)
                }
                StoredData::Piece(..) => Some(0),
                StoredData::Shared => None,
            };
        }
        Ok(snapshots)
    }
}

/// The reason as it was logged, known or not.
pub(super) fn reason_text(data: Value<'_>) -> String {
    let reason = data.get("reason").filter(|reason| reason.kind() == Kind::String);
    reason
        .and_then(|reason| reason.string())
        .map_or_else(String::new, |reason| reason.to_lossy().into_owned())
}
