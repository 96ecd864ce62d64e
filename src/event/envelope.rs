//! From the JSON text of a record to a [`Candidate`]: the keys of the envelope and their types (spec sections 2.1 and 21).
//!
//! Judges nothing that needs the session, nor of the type more than whether it joins the surface; that is the gate's part.
//! The text is walked in place and the payload stays a slice of it.

use std::borrow::Cow;

use super::json::{Fault, JsonString, Scan, Value, scan};
use super::legacy::{legacy_kind, legacy_refusal};
use super::model::{Candidate, Provenance, SurfaceOp};
use super::payload::Payload;
use super::surface_rules::too_many_sources;
use super::verdict::{Refusal, RefusalKind};
use super::vocabulary::is_surface_type;
use crate::ids::Seq;
use crate::limits::SOURCES_PER_EVENT_MAX;

/// Reads one record of a log: `scan` is what [`scan`](super::json::scan) found in `text`.
///
/// Repeated keys of the envelope: the last wins, and the admitted event carries a warning.
///
/// # Errors
///
/// A legacy kind for a malformed record of one (the gate refuses whole ones); `not-an-event` for JSON that is no object,
/// `envelope`; of an event that joins the surface `surface-op-shape`, `provenance` and `range-provenance`. [`Refusal::seq`] is set where the record has a usable seq.
pub fn parse_record<'a>(text: &'a str, scan: &Scan) -> Result<Candidate<'a>, Refusal> {
    parse(text, scan, None)
}

/// Reads one event that a host or a person writes: like [`parse_record`], but `seq` may be absent, and so may `time`,
/// which is then `time_default` (milliseconds since the Unix epoch).
///
/// # Errors
///
/// Those of [`parse_record`], and `corrupt-record` for text that is not JSON.
pub fn parse_draft(text: &str, time_default: i64) -> Result<Candidate<'_>, Refusal> {
    let scan = scan(text).map_err(|fault| not_json(&fault))?;
    parse(text, &scan, Some(time_default))
}

/// The members of one record, by name.
#[derive(Default)]
struct Envelope<'a> {
    type_name: Option<Value<'a>>,
    seq: Option<Value<'a>>,
    time: Option<Value<'a>>,
    data: Option<Payload<'a>>,
    surface_op: Option<Value<'a>>,
    sources: Option<Value<'a>>,
    ignorable: Option<Value<'a>>,
}

fn parse<'a>(text: &'a str, scan: &Scan, time_default: Option<i64>) -> Result<Candidate<'a>, Refusal> {
    members(text, scan).and_then(|envelope| candidate(envelope, time_default)).map_err(|refusal| {
        // The seq for the refusal, whatever else is wrong with the record.
        let seq = scan.last_of(text, ["seq"])[0].and_then(natural);
        match legacy_kind(text, scan) {
            Some(kind) => legacy_refusal(kind, seq),
            None => Refusal { seq, ..refusal },
        }
    })
}

/// Exactly the seven keys (spec section 2.1). Of a repeated key the last wins.
fn members<'a>(text: &'a str, scan: &Scan) -> Result<Envelope<'a>, Refusal> {
    if scan.members.is_empty() && !Value::new(text).is_object() {
        let message = "the record is JSON but no object";
        return Err(Refusal::new(RefusalKind::NotAnEvent, "record-object", message));
    }
    let mut envelope = Envelope::default();
    for scanned in &scan.members {
        let member = scanned.of(text);
        let key = key_name(member.key);
        let slot = match &*key {
            "type" => &mut envelope.type_name,
            "seq" => &mut envelope.seq,
            "time" => &mut envelope.time,
            "data" => {
                envelope.data = Some(Payload::of_member(member.value, scanned, scan.notes.duplicate_key));
                continue;
            }
            "surfaceOp" => &mut envelope.surface_op,
            "sourceEventSeqs" => &mut envelope.sources,
            "ignorable" => &mut envelope.ignorable,
            foreign => {
                let name: String = foreign.chars().take(80).collect();
                return Err(fault(
                    "envelope-keys",
                    format!("the event has a member {name:?} that no event has"),
                ));
            }
        };
        *slot = Some(member.value);
    }
    if scan.more_members {
        return Err(fault("envelope-keys", "the event has too many members"));
    }
    Ok(envelope)
}

fn candidate(envelope: Envelope<'_>, time_default: Option<i64>) -> Result<Candidate<'_>, Refusal> {
    let type_name = event_type(envelope.type_name)?;
    let seq = match envelope.seq {
        None if time_default.is_some() => None,
        seq => Some(seq.and_then(natural).ok_or_else(|| {
            fault("envelope-seq", "seq must be a non-negative integer of at most 2^53 - 1")
        })?),
    };
    let time = envelope.time.map_or(time_default, |time| time.safe_integer());
    let time = time.ok_or_else(|| {
        fault(
            "envelope-time",
            "time must be an integer of at most 2^53 - 1 in size: milliseconds since the Unix epoch",
        )
    })?;
    let data = envelope.data.ok_or_else(|| fault("envelope-data", "the event has no data"))?;
    if envelope.ignorable.is_some_and(|mark| !mark.is_true()) {
        return Err(fault("envelope-ignorable", "ignorable must be true or absent"));
    }
    // Of an event that does not join the surface the gate refuses these members, whatever they say.
    let joins = is_surface_type(&type_name) || type_name == "steering/message";
    let (surface_op, sources) = match joins {
        true => {
            (envelope.surface_op.map(surface_op).transpose()?, envelope.sources.map(sources).transpose()?)
        }
        false => (
            envelope.surface_op.map(|_| SurfaceOp::Append),
            envelope.sources.map(|_| Provenance::List(Cow::Borrowed(&[]))),
        ),
    };
    Ok(Candidate { type_name, seq, time, data, surface_op, sources, ignorable: envelope.ignorable.is_some() })
}

/// `type` is a string (spec section 20: anything else is an envelope fault). A lone surrogate in it belongs to no
/// vocabulary.
fn event_type(value: Option<Value<'_>>) -> Result<Cow<'_, str>, Refusal> {
    let literal = value
        .filter(Value::is_string)
        .map(|v| v.raw())
        .ok_or_else(|| fault("envelope-type", "type must be a string"))?;
    if !literal.contains('\\') {
        return Ok(key_name(literal));
    }
    match JsonString::decode(literal).to_str() {
        Some(name) => Ok(Cow::Owned(name.to_owned())),
        None => Err(fault("envelope-type", "type must be valid Unicode")),
    }
}

/// `"append"`, or exactly `{op: "replace", start, end}` with two seqs (spec section 5).
fn surface_op(value: Value<'_>) -> Result<SurfaceOp, Refusal> {
    if value.is_str("append") {
        return Ok(SurfaceOp::Append);
    }
    let refuse = |message: &str| Err(Refusal::new(RefusalKind::SurfaceOpShape, "surface-op-shape", message));
    if value.has_only(&["op", "start", "end"]) {
        let [op, start, end] = value.get_all(["op", "start", "end"]);
        let ends = (start.and_then(natural), end.and_then(natural));
        if let (true, (Some(start), Some(end))) = (op.is_some_and(|op| op.is_str("replace")), ends) {
            return Ok(SurfaceOp::Replace { start, end });
        }
    } else if value.get("startSeq").is_some() || value.get("endSeq").is_some() {
        return refuse(
            "surfaceOp names its range startSeq and endSeq, as a newer writer does; this format has start and end",
        );
    }
    refuse("surfaceOp must be \"append\" or {op: \"replace\", start, end} with two seqs")
}

/// A list of seqs, or the later spelling with `[start, end]` pairs in it (spec sections 5 and 20). Whether the numbers
/// fit the session is judged by the gate.
fn sources(value: Value<'_>) -> Result<Provenance<'_>, Refusal> {
    if !value.is_array() {
        return Err(bad_source("sourceEventSeqs must be an array"));
    }
    let (text, elements) = (value.raw(), value.elements());
    // Two bytes of text make a source, which takes up to sixteen: the count is bounded first.
    if text.len() / 2 > SOURCES_PER_EVENT_MAX && elements.clone().nth(SOURCES_PER_EVENT_MAX).is_some() {
        return Err(too_many_sources());
    }
    // A bracket inside a string is taken for a range's here, and its string is refused either way.
    if memchr::memchr(b'[', &text.as_bytes()[1..]).is_some() {
        return Ok(Provenance::Ranges(elements.map(range).collect::<Result<_, _>>()?));
    }
    Ok(Provenance::List(Cow::Owned(elements.map(single).collect::<Result<_, _>>()?)))
}

fn range(element: Value<'_>) -> Result<(Seq, Seq), Refusal> {
    if element.is_array() { pair(element) } else { single(element).map(|seq| (seq, seq)) }
}

fn single(element: Value<'_>) -> Result<Seq, Refusal> {
    natural(element)
        .ok_or_else(|| bad_source("sourceEventSeqs must hold non-negative integers of at most 2^53 - 1"))
}

fn pair(element: Value<'_>) -> Result<(Seq, Seq), Refusal> {
    let mut ends = element.elements();
    match (ends.next().and_then(natural), ends.next().and_then(natural), ends.next()) {
        (Some(start), Some(end), None) => Ok((start, end)),
        _ => Err(Refusal::new(
            RefusalKind::RangeProvenance,
            "range-pair",
            "a range in sourceEventSeqs must be [start, end] with two seqs",
        )),
    }
}

fn bad_source(message: &str) -> Refusal {
    Refusal::new(RefusalKind::Provenance, "source-elements", message)
}

/// A non-negative safe integer, judged by value: `2e0` and `-0` are integers (spec section 21).
fn natural(value: Value<'_>) -> Option<Seq> {
    value.safe_integer().and_then(|n| u64::try_from(n).ok()).map(Seq::new)
}

/// The decoded key. A lone surrogate reads as U+FFFD: it names no member either way.
fn key_name(literal: &str) -> Cow<'_, str> {
    if memchr::memchr(b'\\', literal.as_bytes()).is_some() {
        return Cow::Owned(JsonString::decode(literal).to_lossy().into_owned());
    }
    Cow::Borrowed(literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default())
}

fn fault(rule: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::Envelope, rule, message)
}

pub(super) fn not_json(fault: &Fault) -> Refusal {
    let message = format!("the record is not JSON: {fault}");
    Refusal::new(RefusalKind::CorruptRecord, "record-json", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"type":"todo/write","seq":3,"time":7,"data":{"todos":[]}}"#;

    /// An event whose type joins the surface.
    const MESSAGE: &str = r#"{"type":"user/message","seq":3,"time":7,"data":{}}"#;

    fn record(text: &str) -> Result<Candidate<'_>, Refusal> {
        parse_record(text, &scan(text).unwrap())
    }

    fn verdict(text: &str) -> (&'static str, &'static str, Option<u64>) {
        let refusal = record(text).unwrap_err();
        (refusal.kind.as_str(), refusal.rule, refusal.seq.map(Seq::get))
    }

    fn seqs(list: &[u64]) -> Vec<Seq> {
        list.iter().copied().map(Seq::new).collect()
    }

    #[test]
    fn an_event_is_read_without_a_copy_of_its_payload() {
        let text = r#"{"data": {"a" : 1} ,"t\u0079pe":"tool\/result","time":-5,"seq":2e0,"sourceEventSeqs":[1,0.0],"surfaceOp":{"end":1,"op":"replace","start":-0},"ignorable":true}"#;
        let candidate = record(text).unwrap();
        assert_eq!(
            (&*candidate.type_name, candidate.seq, candidate.time),
            ("tool/result", Some(Seq::new(2)), -5)
        );
        assert_eq!(candidate.data.text(), r#"{"a" : 1}"#);
        let op = SurfaceOp::Replace { start: Seq::new(0), end: Seq::new(1) };
        assert_eq!((candidate.surface_op, candidate.ignorable), (Some(op), true));
        assert_eq!(candidate.sources, Some(Provenance::List(seqs(&[1, 0]).into())));
    }

    #[test]
    fn exactly_the_seven_keys_with_their_types() {
        for (from, to, rule, seq) in [
            (r#""time":7"#, r#""time":7,"traceId":1"#, "envelope-keys", Some(3)),
            (r#""type":"todo/write""#, r#""type":7"#, "envelope-type", Some(3)),
            (r#""type":"todo/write","#, "", "envelope-type", Some(3)),
            (r#""type":"todo/write""#, r#""type":"\ud800""#, "envelope-type", Some(3)),
            (r#""seq":3"#, r#""seq":3.5"#, "envelope-seq", None),
            (r#""seq":3"#, r#""seq":-1"#, "envelope-seq", None),
            (r#""seq":3"#, r#""seq":9007199254740992"#, "envelope-seq", None),
            (r#""seq":3,"#, "", "envelope-seq", None),
            (r#""time":7"#, r#""time":"7""#, "envelope-time", Some(3)),
            (r#""time":7"#, r#""time":1e400"#, "envelope-time", Some(3)),
            (r#","data":{"todos":[]}"#, "", "envelope-data", Some(3)),
            (r#""time":7"#, r#""time":7,"ignorable":false"#, "envelope-ignorable", Some(3)),
        ] {
            assert_eq!(verdict(&EVENT.replace(from, to)), ("envelope", rule, seq), "{to}");
        }
        let many: String = (0..20).map(|_| r#""time":7,"#).collect();
        assert_eq!(verdict(&EVENT.replace(r#""time":7,"#, &many)).1, "envelope-keys");
        assert_eq!(verdict("[]").0, "not-an-event");
    }

    #[test]
    fn surface_ops_have_two_forms() {
        for op in [
            "null",
            "\"prepend\"",
            r#"{"op":"append"}"#,
            r#"{"op":"replace","start":1}"#,
            r#"{"op":"replace","start":1,"end":-1}"#,
            r#"{"op":"replace","start":1,"end":2,"x":3}"#,
            r#"{"op":"replace","startSeq":1,"endSeq":2}"#,
        ] {
            let text = MESSAGE.replace(r#""time":7"#, &format!(r#""time":7,"surfaceOp":{op}"#));
            assert_eq!(verdict(&text), ("surface-op-shape", "surface-op-shape", Some(3)), "{op}");
            assert_eq!(record(&text).unwrap_err().message.contains("newer writer"), op.contains("startSeq"));
        }
    }

    #[test]
    fn sources_are_seqs_or_later_ranges() {
        let with = |sources: &str| {
            MESSAGE.replace(r#""time":7"#, &format!(r#""time":7,"sourceEventSeqs":{sources}"#))
        };
        for (sources, rule) in [
            ("null", "source-elements"),
            ("{}", "source-elements"),
            ("[\"1\"]", "source-elements"),
            ("[1,-1]", "source-elements"),
            ("[9007199254740992]", "source-elements"),
            ("[[1,2],null]", "source-elements"),
            ("[[1]]", "range-pair"),
            ("[1,[1,2,3]]", "range-pair"),
            ("[[1,2],[\"1\",2]]", "range-pair"),
        ] {
            assert_eq!(verdict(&with(sources)).1, rule, "{sources}");
        }
        let text = with("[0,[1,2],5]");
        let ranges = record(&text).map(|c| c.sources);
        let pair = |a, b| (Seq::new(a), Seq::new(b));
        assert_eq!(ranges.unwrap(), Some(Provenance::Ranges(vec![pair(0, 0), pair(1, 2), pair(5, 5)])));
        assert_eq!(record(&with("[]")).unwrap().sources, Some(Provenance::List(Vec::new().into())));
    }

    #[test]
    fn a_legacy_record_is_called_that_whatever_else_is_wrong() {
        let text = r#"{"type":"request/header-delta","seq":4,"foreign":1}"#;
        assert_eq!(verdict(text), ("legacy-header-delta", "legacy-event", Some(4)));
    }

    #[test]
    fn a_draft_may_leave_out_seq_and_time() {
        let draft = parse_draft("{\"type\":\"todo/write\",\n\"data\":{\n}}", 42).unwrap();
        assert_eq!((draft.seq, draft.time), (None, 42));
        assert_eq!(parse_draft(EVENT, 42).unwrap().time, 7);
        assert_eq!(parse_draft("{", 0).unwrap_err().kind, RefusalKind::CorruptRecord);
        assert_eq!(parse_draft(r#"{"type":"x","data":1,"seq":null}"#, 0).unwrap_err().rule, "envelope-seq");
        assert_eq!(parse_draft(r#"{"type":"x","data":1,"time":null}"#, 0).unwrap_err().rule, "envelope-time");
    }
}
