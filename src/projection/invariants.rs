//! The log invariants that admission does not demand (spec sections 7 and 8.3): how turns, steps, calls and
//! compactions nest. A log that breaks one still loads; `verify --strict` tells.

use std::collections::BTreeMap;

use crate::event::json::{Value, equal};
use crate::event::{Event, SurfaceOp};
use crate::ids::Seq;

/// Checks events in order. After a broken invariant it goes on with what the event says.
#[derive(Debug, Clone, Default)]
pub struct Invariants {
    last_turn: i64,
    open_turn: Option<i64>,
    last_step: i64,
    open_step: Option<i64>,
    /// Calls of the open step by canonical id: how many wait for a result.
    unanswered: BTreeMap<Vec<u8>, u64>,
    bracket: Option<Bracket>,
    /// Turn boundaries inside the open bracket: broken, unless the session was seeded with a compaction that never ends.
    boundaries: Vec<(Seq, &'static str)>,
}

/// An open compaction.
#[derive(Debug, Clone)]
struct Bracket {
    id: String,
    command: Option<String>,
    turn: String,
    summarised: bool,
}

impl Invariants {
    /// Takes in the next event and reports which invariants it breaks, or by now is seen to have broken. What is reported
    /// begins with the event's type.
    pub fn check(&mut self, event: &Event<'_>, report: &mut dyn FnMut(Seq, String)) {
        match &*event.type_name {
            "turn/start" if self.bracket.is_some() => self.boundaries.push((event.seq, "turn/start")),
            "turn/end" if self.bracket.is_some() => self.boundaries.push((event.seq, "turn/end")),
            "compaction/end" => self.report_boundaries(report),
            "session/end-seed" => self.boundaries.clear(),
            _ => {}
        }
        if let Some(broken) = self.take(event) {
            // Some of the sentences name it themselves.
            let named = broken.starts_with(&*event.type_name);
            report(event.seq, if named { broken } else { format!("{}: {broken}", event.type_name) });
        }
    }

    /// Reports what only the end of the log shows.
    pub fn finish(mut self, report: &mut dyn FnMut(Seq, String)) {
        self.report_boundaries(report);
    }

    fn report_boundaries(&mut self, report: &mut dyn FnMut(Seq, String)) {
        for (seq, type_name) in self.boundaries.drain(..) {
            report(seq, format!("{type_name} inside an open compaction"));
        }
    }

    fn take(&mut self, event: &Event<'_>) -> Option<String> {
        let data = event.value();
        match &*event.type_name {
            "turn/start" => self.turn_start(data),
            "turn/end" => self.turn_end(data),
            "step/start" => self.step_start(data),
            "step/end" => self.step_end(data),
            "tool/call" => self.tool_call(data),
            "tool/result" => self.tool_result(event),
            "assistant/chunk" | "assistant/message" => self.in_step(data),
            "todo/write" | "request/header" | "request/context" => self.in_turn(),
            "compaction/start" => self.compaction_start(data),
            "compaction/summary" => self.compaction_summary(data),
            "compaction/end" => self.compaction_end(data),
            "user/message" => self.checkpoint(event),
            "session/end-seed" => {
                self.bracket = None;
                None
            }
            _ => None,
        }
    }

    fn turn_start(&mut self, data: Value<'_>) -> Option<String> {
        let turn = integer(data, "turn");
        let broken = if let Some(open) = self.open_turn {
            Some(format!("turn/start while turn {open} is open"))
        } else if turn != Some(self.last_turn + 1) {
            Some(format!("turn/start does not carry the next turn, {}", self.last_turn + 1))
        } else {
            None
        };
        self.last_turn = turn.unwrap_or(self.last_turn);
        self.open_turn = Some(self.last_turn);
        self.last_step = 0;
        self.leave_step();
        broken
    }

    fn turn_end(&mut self, data: Value<'_>) -> Option<String> {
        let broken = if self.open_turn.is_none() || integer(data, "turn") != self.open_turn {
            Some("turn/end does not name the open turn".to_owned())
        } else {
            self.open_step.map(|step| format!("turn/end while step {step} is open"))
        };
        self.open_turn = None;
        self.leave_step();
        broken
    }

    fn step_start(&mut self, data: Value<'_>) -> Option<String> {
        let step = integer(data, "step");
        let broken = if self.open_turn.is_none() || integer(data, "turn") != self.open_turn {
            Some("step/start does not name the open turn".to_owned())
        } else if let Some(open) = self.open_step {
            Some(format!("step/start while step {open} is open"))
        } else if step != Some(self.last_step + 1) {
            Some(format!("step/start does not carry the next step, {}", self.last_step + 1))
        } else {
            None
        };
        self.last_step = step.unwrap_or(self.last_step);
        self.leave_step();
        self.open_step = Some(self.last_step);
        broken
    }

    fn step_end(&mut self, data: Value<'_>) -> Option<String> {
        let broken = self.in_step(data);
        self.leave_step();
        broken
    }

    fn tool_call(&mut self, data: Value<'_>) -> Option<String> {
        if let Some(id) = text(data.get("callId")) {
            *self.unanswered.entry(id).or_default() += 1;
        }
        self.in_step(data)
    }

    fn tool_result(&mut self, event: &Event<'_>) -> Option<String> {
        if event.surface_op != Some(SurfaceOp::Append) {
            return self.in_turn();
        }
        let data = event.value();
        let source = data.get("message").and_then(|message| message.get("source"));
        let id = text(source.and_then(|source| source.get("callId")));
        let waiting = id.and_then(|id| self.unanswered.get_mut(&id)).filter(|waiting| **waiting > 0);
        let answered = waiting.map(|waiting| *waiting -= 1).is_some();
        let code = data.get("error").and_then(|error| error.get("code"));
        let refused = code.is_some_and(|code| code.is_str("TOOL_NOT_STARTED")) && is_error(data);
        if !answered && !refused {
            return Some("tool/result without an unanswered tool/call of that id in this step".to_owned());
        }
        self.in_step(data)
    }

    fn in_turn(&self) -> Option<String> {
        self.open_turn.is_none().then(|| "outside any turn".to_owned())
    }

    fn in_step(&self, data: Value<'_>) -> Option<String> {
        let named = self.open_step.is_some()
            && integer(data, "turn") == self.open_turn
            && integer(data, "step") == self.open_step;
        (!named).then(|| "does not name the open turn and step".to_owned())
    }

    fn leave_step(&mut self) {
        self.open_step = None;
        self.unanswered.clear();
    }

    fn compaction_start(&mut self, data: Value<'_>) -> Option<String> {
        let id = data.get("compactionId").filter(Value::is_non_empty_string);
        let broken = if self.bracket.is_some() {
            Some("compaction/start inside an open compaction".to_owned())
        } else if id.is_none() {
            Some("compaction/start without a compactionId".to_owned())
        } else {
            self.owner(data)
        };
        self.bracket = Some(Bracket {
            id: id.map_or_else(String::new, |id| id.raw().to_owned()),
            command: raw(data.get("sourceCommandId")),
            turn: data.get("turn").map_or("null", |turn| turn.raw()).to_owned(),
            summarised: false,
        });
        broken
    }

    fn compaction_summary(&mut self, data: Value<'_>) -> Option<String> {
        let broken = self.in_bracket(data, "sourceCommandId").or_else(|| {
            let bracket = self.bracket.as_ref()?;
            if bracket.summarised {
                return Some("a second compaction/summary".to_owned());
            }
            shadowed(data).or_else(|| self.owner_is(&bracket.turn))
        });
        if let Some(bracket) = &mut self.bracket {
            bracket.summarised = true;
        }
        broken
    }

    fn compaction_end(&mut self, data: Value<'_>) -> Option<String> {
        let broken = self.in_bracket(data, "sourceCommandId").or_else(|| {
            let bracket = self.bracket.as_ref()?;
            let same_turn = data.get("turn").is_some_and(|turn| equal(turn, Value::new(&bracket.turn)));
            if !same_turn {
                return Some("compaction/end names another turn than its start".to_owned());
            }
            if data.get("error").is_none() && !bracket.summarised {
                return Some("a successful compaction/end without a summary".to_owned());
            }
            self.owner_is(&bracket.turn)
        });
        self.bracket = None;
        broken
    }

    /// A replacement by the compactor belongs to the open compaction.
    fn checkpoint(&self, event: &Event<'_>) -> Option<String> {
        let source = event.value().get("source")?;
        let compact = source.get("plugin").is_some_and(|plugin| plugin.is_str("compact"));
        let replaces = matches!(event.surface_op, Some(SurfaceOp::Replace { .. }));
        if compact && replaces { self.in_bracket(source, "sourceCommandId") } else { None }
    }

    fn in_bracket(&self, data: Value<'_>, command: &str) -> Option<String> {
        let Some(bracket) = &self.bracket else { return Some("outside any open compaction".to_owned()) };
        let same_id = data.get("compactionId").is_some_and(|id| equal(id, Value::new(&bracket.id)));
        if !same_id {
            return Some("names another compaction than the open one".to_owned());
        }
        (raw(data.get(command)) != bracket.command).then(|| "names another source command".to_owned())
    }

    /// A numbered owner is the open turn, `null` means that none is open.
    fn owner(&self, data: Value<'_>) -> Option<String> {
        self.owner_is(data.get("turn").map_or("null", |turn| turn.raw()))
    }

    fn owner_is(&self, turn: &str) -> Option<String> {
        let owner = Value::new(turn).safe_integer();
        (owner != self.open_turn).then(|| "the owner of the compaction is not the open turn".to_owned())
    }
}

fn shadowed(data: Value<'_>) -> Option<String> {
    let [range, seqs, tokens] = data.get_all(["shadowedRange", "shadowedSeqs", "shadowedTokenCount"]);
    let mut seqs = seqs.into_iter().flat_map(|seqs| seqs.elements());
    let Some(first) = seqs.next() else { return Some("compaction/summary shadows nothing".to_owned()) };
    let last = seqs.last().unwrap_or(first);
    let ends = range.map_or([None; 2], |range| range.get_all(["start", "end"]));
    if ends.map(|end| end.and_then(|end| end.safe_integer())) != [first.safe_integer(), last.safe_integer()] {
        return Some("shadowedRange is not the first and last of shadowedSeqs".to_owned());
    }
    let counted = tokens.and_then(|tokens| tokens.safe_integer()).is_some_and(|tokens| tokens >= 0);
    (!counted).then(|| "shadowedTokenCount is not a count".to_owned())
}

/// Whether the block of a `tool/result` is an error.
fn is_error(data: Value<'_>) -> bool {
    let content = data.get("message").and_then(|message| message.get("content"));
    let block = content.and_then(|content| content.elements().next());
    block.and_then(|block| block.get("isError")).is_some_and(|flag| flag.is_true())
}

fn integer(data: Value<'_>, key: &str) -> Option<i64> {
    data.get(key)?.safe_integer()
}

fn text(value: Option<Value<'_>>) -> Option<Vec<u8>> {
    value?.string().map(|text| text.as_bytes().to_vec())
}

fn raw(value: Option<Value<'_>>) -> Option<String> {
    value.map(|value| value.raw().to_owned())
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    type Step = (&'static str, &'static str, Option<SurfaceOp>);

    fn broken(events: &[Step]) -> Vec<(u64, String)> {
        let mut invariants = Invariants::default();
        let event = |seq, (type_name, data, surface_op): Step| Event {
            type_name: Cow::Borrowed(type_name),
            seq: Seq::new(seq),
            time: 0,
            data: Cow::Borrowed(data),
            surface_op,
            sources: None,
            ignorable: false,
        };
        let mut broken = Vec::new();
        let mut report = |seq: Seq, what| broken.push((seq.get(), what));
        (0..).zip(events).for_each(|(seq, e)| invariants.check(&event(seq, *e), &mut report));
        invariants.finish(&mut report);
        broken
    }

    const STEP: &str = r#"{"turn":1,"step":1}"#;
    const TURN: &str = r#"{"turn":1}"#;
    const CALL: &str = r#"{"turn":1,"step":1,"callId":"c"}"#;
    const RESULT: &str = r#"{"turn":1,"step":1,"message":{"source":{"kind":"tool","callId":"c"}}}"#;

    #[test]
    fn a_sound_turn_breaks_nothing() {
        let events = [
            ("turn/start", TURN, None),
            ("step/start", STEP, None),
            ("request/header", "{}", None),
            ("assistant/message", STEP, Some(SurfaceOp::Append)),
            ("tool/call", CALL, None),
            ("tool/result", RESULT, Some(SurfaceOp::Append)),
            ("step/end", STEP, None),
            ("compaction/start", r#"{"compactionId":"k","turn":1}"#, None),
            (
                "compaction/summary",
                r#"{"compactionId":"k","shadowedRange":{"start":1,"end":2},"shadowedSeqs":[1,2],"shadowedTokenCount":3}"#,
                None,
            ),
            (
                "user/message",
                r#"{"source":{"plugin":"compact","compactionId":"k"}}"#,
                Some(SurfaceOp::Replace { start: Seq::new(1), end: Seq::new(2) }),
            ),
            ("compaction/end", r#"{"compactionId":"k","turn":1}"#, None),
            ("turn/end", TURN, None),
        ];
        assert_eq!(broken(&events), []);
    }

    #[test]
    fn each_broken_invariant_is_named_once() {
        let cases: [(&[Step], u64); 11] = [
            (&[("turn/start", r#"{"turn":2}"#, None)], 0),
            (&[("turn/start", TURN, None), ("turn/start", r#"{"turn":2}"#, None)], 1),
            (&[("turn/end", TURN, None)], 0),
            (&[("turn/start", TURN, None), ("step/start", r#"{"turn":1,"step":2}"#, None)], 1),
            (&[("turn/start", TURN, None), ("assistant/chunk", STEP, None)], 1),
            (&[("request/header", "{}", None)], 0),
            (
                &[
                    ("turn/start", TURN, None),
                    ("step/start", STEP, None),
                    ("tool/result", RESULT, Some(SurfaceOp::Append)),
                ],
                2,
            ),
            (&[("compaction/start", r#"{"compactionId":"","turn":null}"#, None)], 0),
            (&[("compaction/start", r#"{"compactionId":"k","turn":1}"#, None)], 0),
            (
                &[
                    ("compaction/start", r#"{"compactionId":"k","turn":null}"#, None),
                    ("compaction/end", r#"{"compactionId":"k","turn":null}"#, None),
                ],
                1,
            ),
            (
                &[
                    ("compaction/start", r#"{"compactionId":"k","turn":null}"#, None),
                    ("turn/start", TURN, None),
                ],
                1,
            ),
        ];
        for (events, seq) in cases {
            let broken = broken(events);
            assert_eq!(
                broken.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
                [seq],
                "{events:?}: {broken:?}"
            );
            let type_name = events[usize::try_from(seq).unwrap()].0;
            assert!(broken[0].1.starts_with(type_name), "{broken:?}");
        }
    }

    #[test]
    fn a_call_is_answered_once_and_a_refused_one_needs_no_call() {
        let unstarted = r#"{"turn":1,"step":1,"message":{"source":{"callId":"x"},"content":[{"isError":true}]},"error":{"code":"TOOL_NOT_STARTED"}}"#;
        let no_error = r#"{"turn":1,"step":1,"message":{"source":{"callId":"x"},"content":[{}]},"error":{"code":"TOOL_NOT_STARTED"}}"#;
        let append = Some(SurfaceOp::Append);
        let events = [
            ("turn/start", TURN, None),
            ("step/start", STEP, None),
            ("tool/result", unstarted, append),
            ("tool/call", CALL, None),
            ("tool/result", RESULT, append),
            ("tool/result", RESULT, append),
            ("tool/result", no_error, append),
        ];
        assert_eq!(broken(&events).iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn turns_inside_a_compaction_are_tolerated_only_in_a_seed_that_never_ends_it() {
        let start = ("compaction/start", r#"{"compactionId":"k","turn":null}"#, None);
        let end = ("compaction/end", r#"{"compactionId":"k","turn":null,"error":{}}"#, None);
        let (turn_start, turn_end) = (("turn/start", TURN, None), ("turn/end", TURN, None));
        let seqs = |events: &[Step]| broken(events).iter().map(|(seq, _)| *seq).collect::<Vec<_>>();
        assert!(seqs(&[start, turn_start, turn_end, ("session/end-seed", "{}", None)]).is_empty());
        assert_eq!(seqs(&[start, turn_start, turn_end, end, ("session/end-seed", "{}", None)]), [1, 2]);
        assert_eq!(seqs(&[start, turn_start, turn_end]), [1, 2]);
    }
}
