//! What is legal in a log but worth a person's look: the warnings that need more than one event to see.
//!
//! Keeps fingerprints of ids, never the ids, and counts what it no longer lists, so that cost per event is
//! bounded whatever a log holds. Must never refuse anything.

use std::collections::{BTreeMap, BTreeSet};

use super::Projection;
use super::messages::MessageParts;
use crate::event::json::{Digest, Digester, Value};
use crate::event::{Admitted, Event, Placement, Warning, WarningKind};
use crate::ids::Seq;
use crate::limits::WARNINGS_LISTED_MAX;

/// Warnings of one log: of each kind the first few, and how many there were.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warnings {
    listed: Vec<Warning>,
    totals: BTreeMap<WarningKind, u64>,
}

impl Warnings {
    /// The first of each kind, in the order found.
    #[must_use]
    pub fn listed(&self) -> &[Warning] {
        &self.listed
    }

    /// How many there were of each kind.
    pub fn totals(&self) -> impl Iterator<Item = (WarningKind, u64)> + '_ {
        self.totals.iter().map(|(&kind, &total)| (kind, total))
    }

    /// Adds one; beyond the first few of its kind it is only counted and `warning` is not called.
    pub fn add(&mut self, kind: WarningKind, warning: impl FnOnce() -> Warning) {
        let total = self.totals.entry(kind).or_default();
        *total += 1;
        if *total <= WARNINGS_LISTED_MAX {
            self.listed.push(warning());
        }
    }
}

/// The fold that finds anomalies.
#[derive(Debug, Clone, Default)]
pub struct Anomalies {
    warnings: Warnings,
    last_time: Option<i64>,
    message_ids: BTreeSet<Digest>,
    /// Ids of the tool-call blocks of appended messages.
    call_ids: BTreeSet<Digest>,
    /// Ids of `tool/call` events that no message had announced.
    unannounced: BTreeSet<Digest>,
    /// Calls of the open turn without a result, by id.
    waiting: BTreeMap<Digest, Place>,
    /// The last appended message other than a result.
    last_message: Option<Seq>,
    /// The last message whose results were reported as interleaved.
    interleaved: Option<Seq>,
    bracket: Option<(Digest, Place)>,
}

/// An event and its line in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    seq: Seq,
    line: Option<u64>,
}

impl Anomalies {
    /// Takes in an event that stands on a line of a source file, with the warnings of the gate.
    pub(crate) fn take_in(&mut self, event: &Admitted<'_>, parts: &MessageParts<'_>, line: Option<u64>) {
        for warning in event.warnings() {
            self.warnings.add(warning.kind, || Warning { line: warning.line.or(line), ..warning.clone() });
        }
        self.take(event.event(), event.placement(), parts, line);
    }

    /// For warnings about the source itself.
    pub fn warnings_mut(&mut self) -> &mut Warnings {
        &mut self.warnings
    }

    /// What was found so far, of a log that does not go on.
    #[must_use]
    pub fn into_warnings(self) -> Warnings {
        self.warnings
    }

    /// Ends the fold: what can only be said of the whole log. `seed_length` and `has_parent` come from the
    /// session header, `events` is the number of events in the log.
    #[must_use]
    pub fn finish(mut self, seed_length: Option<u64>, has_parent: bool, events: u64) -> Warnings {
        if let Some((_, place)) = self.bracket.take() {
            self.warn(WarningKind::OpenBracket, place, || "a compaction starts here and never ends".into());
        }
        let seed = seed_length.unwrap_or_default();
        let mut of_header = |kind, message: String| {
            self.warnings.add(kind, || Warning { kind, line: Some(1), seq: None, message });
        };
        if seed > events {
            let message = format!("the header's seedLength {seed} exceeds the {events} events of the log");
            of_header(WarningKind::SeedBound, message);
        }
        if seed > 0 && !has_parent {
            let message = format!("the header's seedLength {seed} has no parentSession to inherit from");
            of_header(WarningKind::SeedWithoutParent, message);
        }
        self.warnings
    }

    fn take(
        &mut self,
        event: &Event<'_>,
        placement: &Placement,
        parts: &MessageParts<'_>,
        line: Option<u64>,
    ) {
        let place = Place { seq: event.seq, line };
        self.clock(event.time, place);
        self.message_id(parts, placement, place);
        match &*event.type_name {
            "user/message" if *placement == Placement::Append => self.last_message = Some(event.seq),
            "assistant/message" if *placement == Placement::Append => self.calls(parts, place),
            "tool/result" => self.result(parts, placement, place),
            "tool/call" => self.started(event),
            "turn/end" => self.turn_end(),
            "compaction/start" => self.bracket_start(event, place),
            "compaction/end" => self.bracket_end(event),
            "session/end-seed" => self.bracket = None,
            _ => {}
        }
    }

    fn clock(&mut self, time: i64, place: Place) {
        if let Some(before) = self.last_time.replace(time).filter(|&before| time < before) {
            let message = || format!("time goes back by {} ms", before.saturating_sub(time));
            self.warn(WarningKind::ClockStep, place, message);
        }
    }

    /// A replacement may keep the id of what it replaces.
    fn message_id(&mut self, parts: &MessageParts<'_>, placement: &Placement, place: Place) {
        let Some(id) = parts.id else { return };
        let repeated = fingerprint(id).is_some_and(|digest| !self.message_ids.insert(digest));
        if repeated && *placement == Placement::Append {
            let message = || format!("message id {} was used before", short(id));
            self.warn(WarningKind::DuplicateMessageId, place, message);
        }
    }

    fn calls(&mut self, parts: &MessageParts<'_>, place: Place) {
        self.last_message = Some(place.seq);
        for id in parts.tool_calls().filter_map(|block| block.get("id")) {
            let Some(digest) = fingerprint(id) else { continue };
            self.waiting.insert(digest, place);
            if !self.call_ids.insert(digest) {
                let message = || format!("tool call id {} was used before", short(id));
                self.warn(WarningKind::DuplicateCallId, place, message);
            }
        }
    }

    fn started(&mut self, event: &Event<'_>) {
        let digest = event.value().get("callId").and_then(fingerprint);
        if let Some(digest) = digest.filter(|digest| !self.call_ids.contains(digest)) {
            self.unannounced.insert(digest);
        }
    }

    fn result(&mut self, parts: &MessageParts<'_>, placement: &Placement, place: Place) {
        let Some(id) = parts.answered_call() else { return };
        let Some(digest) = fingerprint(id) else { return };
        let call = self.waiting.remove(&digest);
        if *placement != Placement::Append {
            return;
        }
        if !self.call_ids.contains(&digest) && !self.unannounced.contains(&digest) {
            let message = || format!("the result answers call {}, which was never logged", short(id));
            self.warn(WarningKind::OrphanResult, place, message);
        }
        if let Some(call) =
            call.filter(|c| self.last_message > Some(c.seq) && self.interleaved != Some(c.seq))
        {
            self.interleaved = Some(call.seq);
            let message =
                || format!("another message stands between the calls of seq {} and this result", call.seq);
            self.warn(WarningKind::InterleavedResults, place, message);
        }
    }

    fn turn_end(&mut self) {
        let mut calls: Vec<Place> = std::mem::take(&mut self.waiting).into_values().collect();
        calls.sort_unstable();
        for call in calls {
            let message = || "a tool call of this message has no result when its turn ends".into();
            self.warn(WarningKind::DanglingCall, call, message);
        }
    }

    fn bracket_start(&mut self, event: &Event<'_>, place: Place) {
        let id = event.value().get("compactionId").and_then(fingerprint).unwrap_or_default();
        if let Some((_, earlier)) = self.bracket.replace((id, place)) {
            let message = || "a compaction starts here and has no end before the next one starts".into();
            self.warn(WarningKind::OpenBracket, earlier, message);
        }
    }

    fn bracket_end(&mut self, event: &Event<'_>) {
        let id = event.value().get("compactionId").and_then(fingerprint).unwrap_or_default();
        self.bracket.take_if(|(open, _)| *open == id);
    }

    fn warn(&mut self, kind: WarningKind, place: Place, message: impl FnOnce() -> String) {
        let Place { seq, line } = place;
        self.warnings.add(kind, || Warning { kind, line, seq: Some(seq), message: message() });
    }
}

impl Projection for Anomalies {
    fn apply(&mut self, event: &Admitted<'_>) {
        self.take_in(event, &MessageParts::of(event.event()), None);
    }
}

/// Fingerprint of a non-empty string.
fn fingerprint(id: Value<'_>) -> Option<Digest> {
    let id = id.string().filter(|id| !id.is_empty())?;
    let mut digester = Digester::default();
    digester.bytes(id.as_bytes());
    Some(digester.finish())
}

/// The literal as it fits into a message.
fn short(id: Value<'_>) -> String {
    const CHARS: usize = 80;
    let mut text: String = id.raw().chars().take(CHARS).collect();
    if text.len() < id.raw().len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::testing::event;

    const CALL: &str =
        r#"{"message":{"id":"m1","content":[{"type":"tool-call","id":"a"},{"type":"tool-call","id":"b"}]}}"#;

    fn result(id: &str, call: &str) -> String {
        format!(r#"{{"message":{{"id":"{id}","source":{{"callId":"{call}"}}}}}}"#)
    }

    fn found(events: &[(&str, &str)]) -> Vec<(&'static str, Option<u64>)> {
        let mut anomalies = Anomalies::default();
        for (seq, (type_name, data)) in (0..).zip(events) {
            let surface = matches!(*type_name, "user/message" | "assistant/message" | "tool/result");
            let placement = if surface { Placement::Append } else { Placement::LogOnly };
            let event = event(seq, type_name, data);
            anomalies.take(&event, &placement, &MessageParts::of(&event), None);
        }
        let warnings = anomalies.finish(None, false, 0);
        warnings.listed().iter().map(|w| (w.kind.as_str(), w.seq.map(Seq::get))).collect()
    }

    #[test]
    fn a_clean_exchange_is_quiet() {
        let (a, b) = (result("m2", "a"), result("m3", "b"));
        let events = [
            ("assistant/message", CALL),
            ("tool/result", a.as_str()),
            ("tool/result", &b),
            ("turn/end", "{}"),
            ("compaction/start", r#"{"compactionId":"c"}"#),
            ("compaction/end", r#"{"compactionId":"c"}"#),
        ];
        assert_eq!(found(&events), []);
    }

    #[test]
    fn each_anomaly_is_named_at_its_event() {
        let (a, b) = (result("m1", "a"), result("m3", "b"));
        let user = ("user/message", r#"{"id":"u"}"#);
        assert_eq!(
            found(&[("assistant/message", CALL), ("tool/result", &a)]),
            [("duplicate-message-id", Some(1))]
        );
        assert_eq!(found(&[("tool/result", &b)]), [("orphan-result", Some(0))]);
        assert_eq!(found(&[("tool/call", r#"{"callId":"b"}"#), ("tool/result", &b)]), []);
        assert_eq!(
            found(&[("assistant/message", CALL), ("tool/result", &b), ("turn/end", "{}")]),
            [("dangling-call", Some(0))]
        );
        assert_eq!(
            found(&[("assistant/message", CALL), user, ("tool/result", &b)]),
            [("interleaved-results", Some(2))]
        );
        assert_eq!(
            found(&[
                ("assistant/message", r#"{"message":{"content":[{"type":"tool-call","id":"a"}]}}"#),
                ("assistant/message", CALL)
            ]),
            [("duplicate-call-id", Some(1))]
        );
        assert_eq!(found(&[("compaction/start", r#"{"compactionId":"c"}"#)]), [("open-bracket", Some(0))]);
        assert_eq!(found(&[("compaction/start", r#"{"compactionId":"c"}"#), ("session/end-seed", "{}")]), []);
    }

    #[test]
    fn time_that_goes_back_is_a_clock_step() {
        let mut anomalies = Anomalies::default();
        for (seq, time) in [(0, 5), (1, 4), (2, 4), (3, i64::MIN)] {
            let mut event = event(seq, "todo/write", "{}");
            event.time = time;
            anomalies.take(&event, &Placement::LogOnly, &MessageParts::default(), Some(seq + 2));
        }
        let warnings = anomalies.finish(None, false, 4);
        let places: Vec<_> = warnings.listed().iter().map(|w| (w.kind, w.line)).collect();
        assert_eq!(places, [(WarningKind::ClockStep, Some(3)), (WarningKind::ClockStep, Some(5))]);
    }

    #[test]
    fn seeds_are_judged_at_the_end() {
        let kinds = |seed, parent, events| {
            let warnings = Anomalies::default().finish(seed, parent, events);
            warnings.totals().map(|(kind, _)| kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(Some(3), true, 3), []);
        assert_eq!(kinds(Some(4), true, 3), [WarningKind::SeedBound]);
        assert_eq!(kinds(Some(3), false, 3), [WarningKind::SeedWithoutParent]);
        assert_eq!(kinds(Some(0), false, 0), []);
    }

    #[test]
    fn a_flood_is_counted_not_listed() {
        let mut warnings = Warnings::default();
        for _ in 0..1000 {
            let warning =
                Warning { kind: WarningKind::ClockStep, line: None, seq: None, message: String::new() };
            warnings.add(WarningKind::ClockStep, || warning);
        }
        assert_eq!(warnings.listed().len() as u64, WARNINGS_LISTED_MAX);
        assert_eq!(warnings.totals().collect::<Vec<_>>(), [(WarningKind::ClockStep, 1000)]);
    }
}
