//! The open turn, its open step and the calls that wait for a result, and the events that close them after a
//! crash (spec sections 9 and 21, Closers).
//!
//! Deterministic: the same log gives the same closers. Work and memory grow with the payloads taken in, never
//! with the number of calls pending.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Projection;
use super::messages::MessageParts;
use super::snapshot::{Checkpointed, SectionId};
use crate::event::json::{JsonString, Value, write_string};
use crate::event::{Admitted, Candidate, Event, Provenance, Refusal, RefusalKind, SurfaceOp};
use crate::ids::Seq;
use crate::limits::{BATCH_BYTES_MAX, EVENTS_PER_SESSION_MAX, RECORD_BYTES_MAX};

const OUTCOME_UNKNOWN_TEXT: &str = "The session ended while this tool call was running, so its outcome is unknown: \
    it may have finished, partly finished or done nothing. Retry only with care: retry only if the operation is \
    read-only or idempotent; if it may have side effects, first verify external state or ask the user.";
const NOT_STARTED_TEXT: &str =
    "The session ended before this tool call was started. Nothing was run; it can be retried if needed.";

/// What is open at the end of a session's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    /// JSON text of the number of the open turn.
    turn: Option<String>,
    /// JSON text of the number of the open step.
    step: Option<String>,
    calls: PendingCalls,
}

impl Turns {
    /// JSON text of the open turn's number, if a turn is open.
    #[must_use]
    pub fn open_turn(&self) -> Option<&str> {
        self.turn.as_deref()
    }

    /// JSON text of the open step's number, if a step is open.
    #[must_use]
    pub fn open_step(&self) -> Option<&str> {
        self.step.as_deref()
    }

    /// The candidates that close the open turn, ready for the gate: a result for each pending call in the
    /// order of registration, then the end of the step, then the end of the turn. None if no turn is open.
    ///
    /// `next_seq` is the seq of the first of them and `time` the time of all: that of the last event.
    ///
    /// # Errors
    ///
    /// `empty-call-id` if a pending call has an empty id or one that is no string, since no result can name
    /// it; `limit` if the closers exceed a batch.
    pub fn closers(&self, next_seq: Seq, time: i64) -> Result<Vec<Candidate<'static>>, Refusal> {
        let Some(turn) = self.open_turn() else { return Ok(Vec::new()) };
        if let Some(seq) = self.calls.unanswerable {
            let message = "a pending tool call has an id that is empty or no string: no result can answer it";
            return Err(Refusal::new(RefusalKind::EmptyCallId, "pending-call-id", message).at_seq(seq));
        }
        let mut closers = Closers { list: Vec::new(), bytes: 0, next_seq, time };
        for (id, call) in self.calls.in_order() {
            closers.result(turn, id, call)?;
        }
        if let Some(step) = self.open_step() {
            closers.push("step/end", format!(r#"{{"turn":{turn},"step":{step}}}"#), None)?;
        }
        let data = format!(r#"{{"turn":{turn},"reason":{{"kind":"interrupted"}}}}"#);
        closers.push("turn/end", data, None)?;
        Ok(closers.list)
    }

    pub(super) fn take(&mut self, event: &Event<'_>, parts: &MessageParts<'_>) {
        let number = |key| event.value().get(key).map(number_text);
        match &*event.type_name {
            "turn/start" => *self = Self { turn: number("turn"), ..Self::default() },
            "turn/end" => *self = Self::default(),
            "step/start" => self.step = number("step"),
            "step/end" => {
                self.step = None;
                self.calls = PendingCalls::default();
            }
            "assistant/message" => self.calls.register(event, parts),
            "tool/call" => self.calls.started(event),
            "tool/result" => self.calls.answered(parts),
            _ => {}
        }
    }
}

impl Projection for Turns {
    fn apply(&mut self, event: &Admitted<'_>) {
        self.take(event.event(), &MessageParts::of(event.event()));
    }
}

impl Checkpointed for Turns {
    const ID: SectionId = SectionId { code: 5, version: 1 };
    type Kept = KeptTurns;

    fn keep(&self) -> Self::Kept {
        let mut kept = KeptTurns {
            turn: self.turn.clone(),
            step: self.step.clone(),
            registered: self.calls.registered,
            unanswerable: self.calls.unanswerable.map(Seq::get),
            ..KeptTurns::default()
        };
        // The calls of one message share the text of its step: so do they here.
        let mut known: BTreeMap<*const u8, u32> = BTreeMap::new();
        for (id, call) in self.calls.in_order() {
            let step = call.step.as_ref().map(|step| {
                *known.entry(Arc::as_ptr(step).cast()).or_insert_with(|| {
                    kept.steps.push(step.to_string());
                    // There are fewer messages than seqs.
                    u32::try_from(kept.steps.len() - 1).unwrap_or(u32::MAX)
                })
            });
            kept.calls.push((id.clone(), call.order, step, call.started.map(Seq::get)));
        }
        kept
    }

    fn restore(kept: Self::Kept, next_seq: Seq) -> Option<Self> {
        let steps: Vec<Arc<str>> = kept.steps.into_iter().map(Arc::from).collect();
        let is_past = |seq: Option<u64>| seq.is_none_or(|seq| seq < next_seq.get());
        let mut by_id = BTreeMap::new();
        for (id, order, step, started) in kept.calls {
            // What goes between the quotes is judged by the gate.
            let is_literal = id.len() >= 2 && id.starts_with('"') && id.ends_with('"');
            if !is_literal || order >= kept.registered || !is_past(started) {
                return None;
            }
            let step = match step {
                Some(step) => Some(Arc::clone(steps.get(usize::try_from(step).ok()?)?)),
                None => None,
            };
            by_id.insert(id, PendingCall { order, step, started: started.map(Seq::new) });
        }
        let unanswerable = kept.unanswerable.map(Seq::new);
        let countable = kept.registered <= REGISTERED_MAX;
        let calls = PendingCalls { by_id, registered: kept.registered, unanswerable };
        (countable && is_past(kept.unanswerable)).then_some(Self { turn: kept.turn, step: kept.step, calls })
    }
}

/// No log has so many tool calls: each takes a byte of a record.
const REGISTERED_MAX: u64 = EVENTS_PER_SESSION_MAX.saturating_mul(RECORD_BYTES_MAX);

/// What a checkpoint keeps of [`Turns`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KeptTurns {
    turn: Option<String>,
    step: Option<String>,
    registered: u64,
    unanswerable: Option<u64>,
    /// Texts of the steps of pending calls.
    steps: Vec<String>,
    /// Id, order, which of the steps, and the event that started it.
    calls: Vec<(String, u64, Option<u32>, Option<u64>)>,
}

/// The calls without a result, keyed by id, with a counter for their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PendingCalls {
    /// Keyed by the id as a JSON literal in its one canonical spelling.
    by_id: BTreeMap<String, PendingCall>,
    registered: u64,
    /// The first pending call that no result can name, by the seq of its message.
    unanswerable: Option<Seq>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PendingCall {
    order: u64,
    /// JSON text of the step of the registering message; one text shared by all calls of a message.
    step: Option<Arc<str>>,
    /// The `tool/call` event, once the call was started.
    started: Option<Seq>,
}

impl PendingCalls {
    /// A block whose id is still pending keeps its place, but is not started and belongs to this step.
    fn register(&mut self, event: &Event<'_>, parts: &MessageParts<'_>) {
        let mut step = None;
        for block in parts.tool_calls() {
            let id = block.get("id").and_then(|id| id.string()).filter(|id| !id.is_empty());
            let Some(id) = id else {
                self.unanswerable.get_or_insert(event.seq);
                continue;
            };
            let step =
                step.get_or_insert_with(|| event.value().get("step").map(|s| Arc::from(number_text(s))));
            let order = self.registered;
            let call = self
                .by_id
                .entry(literal(&id))
                .or_insert_with(|| PendingCall { order, ..PendingCall::default() });
            call.step.clone_from(step);
            call.started = None;
            self.registered += 1;
        }
    }

    fn started(&mut self, event: &Event<'_>) {
        let id = event.value().get("callId").and_then(|id| id.string());
        if let Some(call) = id.and_then(|id| self.by_id.get_mut(&literal(&id))) {
            call.started = Some(event.seq);
        }
    }

    fn answered(&mut self, parts: &MessageParts<'_>) {
        if let Some(id) = parts.answered_call().and_then(|id| id.string()) {
            self.by_id.remove(&literal(&id));
        }
    }

    fn in_order(&self) -> Vec<(&String, &PendingCall)> {
        let mut calls: Vec<_> = self.by_id.iter().collect();
        calls.sort_unstable_by_key(|(_, call)| call.order);
        calls
    }
}

/// Closers under construction: one batch, so no larger than a batch may be.
struct Closers {
    list: Vec<Candidate<'static>>,
    bytes: u64,
    next_seq: Seq,
    time: i64,
}

impl Closers {
    fn result(&mut self, turn: &str, id: &str, call: &PendingCall) -> Result<(), Refusal> {
        let step = call.step.as_deref().map(|step| format!(r#","step":{step}"#)).unwrap_or_default();
        let (name, code, text) = match call.started {
            Some(_) => ("ToolOutcomeUnknownError", "TOOL_OUTCOME_UNKNOWN", OUTCOME_UNKNOWN_TEXT),
            None => ("ToolNotStartedError", "TOOL_NOT_STARTED", NOT_STARTED_TEXT),
        };
        let seq = self.next_seq;
        let bare_id = &id[1..id.len() - 1];
        let message = format!(
            r#"{{"id":"interrupted-tool-result-{bare_id}-{seq}","role":"user","source":{{"kind":"tool","callId":{id}}},"content":[{{"type":"tool-result","toolCallId":{id},"isError":true,"content":[{{"type":"text","text":"{text}"}}]}}]}}"#
        );
        let data = format!(
            r#"{{"turn":{turn}{step},"message":{message},"error":{{"name":"{name}","code":"{code}"}}}}"#
        );
        let sources = call.started.map(|seq| Provenance::List(Cow::Owned(vec![seq])));
        self.push("tool/result", data, sources)
    }

    fn push(
        &mut self,
        type_name: &'static str,
        data: String,
        sources: Option<Provenance<'static>>,
    ) -> Result<(), Refusal> {
        self.bytes += data.len() as u64;
        if self.bytes > BATCH_BYTES_MAX {
            let message = format!("the closers of the open turn exceed a batch of {BATCH_BYTES_MAX} bytes");
            return Err(Refusal::new(RefusalKind::Limit, "closers-batch", message));
        }
        self.list.push(Candidate {
            type_name: Cow::Borrowed(type_name),
            seq: Some(self.next_seq),
            time: self.time,
            data: data.into(),
            surface_op: (type_name == "tool/result").then_some(SurfaceOp::Append),
            sources,
            ignorable: false,
        });
        self.next_seq = self.next_seq.next();
        Ok(())
    }
}

/// The number of a turn or step as JavaScript writes it back; whatever else stands there as it is.
fn number_text(value: Value<'_>) -> String {
    value.safe_integer().map_or_else(|| value.raw().to_owned(), |number| number.to_string())
}

fn literal(id: &JsonString<'_>) -> String {
    let mut literal = String::new();
    write_string(&mut literal, id);
    literal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::testing::event;

    const STARTED: [(&str, &str); 3] = [
        ("turn/start", r#"{"turn":1}"#),
        ("step/start", r#"{"turn":1,"step":2}"#),
        (
            "assistant/message",
            r#"{"step":2,"message":{"content":[{"type":"tool-call","id":"c1"},{"type":"tool-call","id":"c2"}]}}"#,
        ),
    ];

    fn folded(events: &[(&str, &str)]) -> Turns {
        let mut turns = Turns::default();
        for (seq, (type_name, data)) in (0..).zip(events) {
            let event = event(seq, type_name, data);
            turns.take(&event, &MessageParts::of(&event));
        }
        turns
    }

    fn closers(events: &[(&str, &str)]) -> Vec<Candidate<'static>> {
        folded(events).closers(Seq::new(events.len() as u64), 7).expect("closers")
    }

    /// Type, call id, step, error code and source of each closer.
    fn told(closers: &[Candidate<'_>]) -> Vec<String> {
        let tell = |c: &Candidate<'_>| {
            let data = Value::new(c.data.text());
            crate::event::json::scan(c.data.text()).expect("valid JSON");
            let text = |v: Option<Value<'_>>| v.map_or("-".into(), |v| v.raw().to_owned());
            let source = data.get("message").and_then(|m| m.get("source"));
            let call = source.and_then(|s| s.get("callId"));
            let code = data.get("error").and_then(|e| e.get("code"));
            let sources = c.sources.as_ref().map_or("-".into(), |s| format!("{s:?}"));
            format!("{} {} {} {} {sources}", c.type_name, text(call), text(data.get("step")), text(code))
        };
        closers.iter().map(tell).collect()
    }

    #[test]
    fn nothing_is_closed_without_an_open_turn() {
        assert_eq!(closers(&[]), []);
        assert_eq!(closers(&[STARTED[0], ("turn/end", "5")]), []);
        assert_eq!(closers(&STARTED[1..]), []);
    }

    #[test]
    fn pending_calls_are_answered_in_order_before_step_and_turn_end() {
        let mut events = STARTED.to_vec();
        events.push(("tool/call", r#"{"callId":"c2"}"#));
        events.push(("tool/call", r#"{"callId":"c2"}"#));
        events.push(("tool/call", r#"{"callId":"c9"}"#));
        let closers = closers(&events);
        let expected = [
            r#"tool/result "c1" 2 "TOOL_NOT_STARTED" -"#,
            r#"tool/result "c2" 2 "TOOL_OUTCOME_UNKNOWN" List([Seq(4)])"#,
            "step/end - 2 - -",
            "turn/end - - - -",
        ];
        assert_eq!(told(&closers), expected);
        let seqs: Vec<_> = closers.iter().map(|c| c.seq.map(Seq::get)).collect();
        assert_eq!(seqs, [Some(6), Some(7), Some(8), Some(9)]);
        assert!(closers[1].data.text().contains("retry only if the operation is read-only or idempotent"));
        assert!(
            closers[1]
                .data
                .text()
                .contains("if it may have side effects, first verify external state or ask the user")
        );
        assert!(closers[0].data.text().contains("can be retried if needed"));
        assert!(closers[0].data.text().starts_with(
            r#"{"turn":1,"step":2,"message":{"id":"interrupted-tool-result-c1-6","role":"user","source":{"kind":"tool","callId":"c1"},"content":[{"type":"tool-result","toolCallId":"c1","isError":true,"content":[{"type":"text","text":"#
        ));
        assert_eq!(closers[3].data.text(), r#"{"turn":1,"reason":{"kind":"interrupted"}}"#);
        assert!(closers.iter().all(|c| c.time == 7));
    }

    #[test]
    fn a_pending_id_named_again_keeps_its_place_and_forgets_its_start() {
        let again = r#"{"step":3,"message":{"content":[{"type":"tool-call","id":"\u00631"}]}}"#;
        let mut events = STARTED.to_vec();
        events.push(("tool/call", r#"{"callId":"c1"}"#));
        events.push(("assistant/message", again));
        let kept = closers(&events);
        assert_eq!(told(&kept)[0], r#"tool/result "c1" 3 "TOOL_NOT_STARTED" -"#);
        // A result in between moves it to the end.
        events.insert(4, ("tool/result", r#"{"message":{"source":{"callId":"c1"}}}"#));
        let moved = closers(&events);
        assert_eq!(told(&moved)[1], r#"tool/result "c1" 3 "TOOL_NOT_STARTED" -"#);
    }

    #[test]
    fn boundaries_drop_pending_calls() {
        let mut events = STARTED.to_vec();
        events.push(("step/end", "null"));
        assert_eq!(told(&closers(&events)), ["turn/end - - - -"]);
        let mut events = STARTED.to_vec();
        events.push(("turn/start", r#"{"turn":4}"#));
        assert_eq!(closers(&events)[0].data.text(), r#"{"turn":4,"reason":{"kind":"interrupted"}}"#);
    }

    #[test]
    fn numbers_are_written_as_the_reference_writes_them() {
        let events = [("turn/start", r#"{"turn":1.0}"#), ("step/start", r#"{"step":-0}"#)];
        let closers = closers(&events);
        assert_eq!(closers[0].data.text(), r#"{"turn":1,"step":0}"#);
    }

    #[test]
    fn an_absent_step_leaves_no_key_and_lone_surrogates_survive() {
        let call = r#"{"message":{"content":[{"type":"tool-call","id":"\ud83c\""}]}}"#;
        let closers = closers(&[STARTED[0], ("assistant/message", call)]);
        assert!(
            closers[0]
                .data
                .text()
                .starts_with(r#"{"turn":1,"message":{"id":"interrupted-tool-result-\ud83c\"-2""#)
        );
        assert_eq!(told(&closers)[0], r#"tool/result "\ud83c\"" - "TOOL_NOT_STARTED" -"#);
    }

    #[test]
    fn a_call_that_no_result_can_name_refuses_closing_until_its_step_ends() {
        for id in [r#""""#, "1", "null"] {
            let call = format!(r#"{{"message":{{"content":[{{"type":"tool-call","id":{id}}}]}}}}"#);
            let mut events = vec![STARTED[0], ("assistant/message", call.as_str())];
            let refusal = folded(&events).closers(Seq::new(2), 0).expect_err("no result can name it");
            assert_eq!((refusal.kind, refusal.seq), (RefusalKind::EmptyCallId, Some(Seq::new(1))));
            events.push(("step/end", "{}"));
            assert_eq!(closers(&events).len(), 1);
        }
    }
}
