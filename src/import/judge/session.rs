//! The part of a log that was accepted so far: its projections and what the report says of it.

use crate::event::json::{Digest, JsonString, Value};
use crate::event::{Admitted, HeaderReason, SessionState};
use crate::ids::Seq;
use crate::import::judgement::{LoggedHeader, word};
use crate::projection::{Anomalies, MessageParts, Replacement, State, Usage};

/// A session under import.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) state: State,
    pub(super) anomalies: Anomalies,
    pub(super) replacements: Vec<Replacement>,
    pub(super) headers: Vec<LoggedHeader>,
    pub(super) usage: Usage,
    /// Message ids of the `tool/result` events, ascending by seq: a rewrite of an older shape inherits one.
    result_ids: Vec<(Seq, JsonString<'static>)>,
    /// Type of the last event, to name both branches of a fork.
    pub(super) last_type: String,
}

impl Session {
    /// Of which the first `seed_length` events are inherited.
    pub(crate) fn new(id: &str, seed_length: Option<u64>) -> Self {
        Self {
            state: State::new(id),
            anomalies: Anomalies::default(),
            replacements: Vec::new(),
            headers: Vec::new(),
            usage: Usage::new(seed_length),
            result_ids: Vec::new(),
            last_type: String::new(),
        }
    }

    pub(crate) fn fold(&mut self, admitted: &Admitted<'_>, line: Option<u64>) {
        let event = admitted.event();
        let parts = MessageParts::of(event);
        self.replacements.extend(self.state.visible().replacement(event.seq, admitted.placement()));
        match &*event.type_name {
            "request/header" => {
                let reason = event.value().get("reason").map(reason_word);
                self.headers.push(LoggedHeader { seq: event.seq, reason });
            }
            "tool/result" => {
                let id = parts.id.and_then(|id| id.string());
                self.result_ids.extend(id.map(|id| (event.seq, id.into_owned())));
            }
            _ => {}
        }
        self.last_type.clear();
        self.last_type.push_str(&event.type_name);
        self.usage.take(event);
        self.anomalies.take_in(admitted, &parts, line);
        self.state.take_in(admitted, &parts);
    }
}

impl SessionState for Session {
    fn session_id(&self) -> &str {
        self.state.session_id()
    }

    fn next_seq(&self) -> Seq {
        self.state.next_seq()
    }

    fn surface(&self) -> &[u32] {
        self.state.surface()
    }

    fn position_of(&self, node: Seq) -> Option<usize> {
        self.state.position_of(node)
    }

    fn rewrite_digest(&self, node: Seq) -> Option<Digest> {
        self.state.rewrite_digest(node)
    }

    fn message_id(&self, event: Seq) -> Option<JsonString<'_>> {
        let at = self.result_ids.binary_search_by_key(&event, |(seq, _)| *seq).ok()?;
        Some(self.result_ids[at].1.clone())
    }
}

fn reason_word(reason: Value<'_>) -> String {
    match HeaderReason::of(reason) {
        Some(known) => known.as_str().into(),
        None => reason.string().map_or_else(|| word(reason.raw()), |text| word(&text.to_lossy())),
    }
}
