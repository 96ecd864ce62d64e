//! The gate as a whole, over a session that is folded in the plainest way.

use std::collections::HashMap;

use super::json::{Digest, JsonString, Value};
use super::*;
use crate::ids::Seq;

/// A session in memory: what the projections know, without their speed.
#[derive(Default)]
pub(super) struct Session {
    pub(super) next: u64,
    pub(super) surface: Vec<u32>,
    pub(super) digests: HashMap<u32, Digest>,
    pub(super) ids: HashMap<u64, String>,
}

impl SessionState for Session {
    fn session_id(&self) -> &str {
        "s \"1\""
    }

    fn next_seq(&self) -> Seq {
        Seq::new(self.next)
    }

    fn surface(&self) -> &[u32] {
        &self.surface
    }

    fn position_of(&self, node: Seq) -> Option<usize> {
        self.surface.iter().position(|n| u64::from(*n) == node.get())
    }

    fn rewrite_digest(&self, node: Seq) -> Option<Digest> {
        self.digests.get(&u32::try_from(node.get()).ok()?).copied()
    }

    fn message_id(&self, event: Seq) -> Option<JsonString<'_>> {
        self.ids.get(&event.get()).map(|id| JsonString::from(&**id))
    }
}

impl Session {
    /// A session with the events of one JSON text per line.
    pub(super) fn of(lines: &[&str]) -> Self {
        let mut session = Self::default();
        for line in lines {
            session.take(line, Origin::Import).unwrap();
        }
        session
    }

    /// Judges a line, and folds it in if it is admitted.
    pub(super) fn take(&mut self, line: &str, origin: Origin) -> Result<Admitted<'static>, Refusal> {
        let candidate = parse_draft(line, 9)?.into_owned();
        let admitted = admit(self, candidate, origin, &Vocabulary::default())?;
        let node = u32::try_from(self.next).unwrap();
        match admitted.placement() {
            Placement::LogOnly => {}
            Placement::Append => self.surface.push(node),
            Placement::Replace(range) => drop(self.surface.splice(range.clone(), [node])),
        }
        if let Some(digest) = admitted.rewrite_digest() {
            self.digests.insert(node, digest);
        }
        let data = admitted.event().value();
        let id = data.get("message").unwrap_or(data).get("id").and_then(|id| id.string());
        if let Some(id) = id {
            self.ids.insert(self.next, id.to_lossy().into_owned());
        }
        self.next += 1;
        Ok(admitted)
    }
}

pub(super) const USER: &str = r#"{"type":"user/message","data":{"id":"u","role":"user","content":[],"source":{"kind":"user"}},"surfaceOp":"append"}"#;
pub(super) const ASSISTANT: &str = r#"{"type":"assistant/message","data":{"turn":1,"step":1,"message":{"id":"a","role":"assistant","content":[],"source":{"kind":"model","provider":"p","model":"m"}}},"sourceEventSeqs":[],"surfaceOp":"append"}"#;
pub(super) const RESULT: &str = r#"{"type":"tool/result","data":{"turn":1,"step":1,"message":{"id":"t","role":"user","source":{"kind":"tool","callId":"c"},"content":[{"type":"tool-result","toolCallId":"c","content":[]}]}},"surfaceOp":"append"}"#;
const CHUNK: &str = r#"{"type":"assistant/chunk","data":{"turn":1,"step":1,"chunk":{}}}"#;

/// Seqs 0 to 3; the surface is 0, 1, 2.
fn session() -> Session {
    Session::of(&[USER, ASSISTANT, RESULT, CHUNK])
}

/// `line` with `from` spelled `to`, which must be there.
fn but(line: &str, from: &str, to: &str) -> String {
    assert!(line.contains(from), "{from} is not in {line}");
    line.replace(from, to)
}

/// The kind of refusal, or the kinds of warnings of an admitted event.
fn verdict(line: &str, origin: Origin) -> String {
    match session().take(line, origin) {
        Err(refusal) => refusal.kind.to_string(),
        Ok(admitted) => {
            let kinds: Vec<&str> = admitted.warnings().iter().map(|w| w.kind.as_str()).collect();
            format!("ok {}", kinds.join(" ")).trim_end().to_owned()
        }
    }
}

#[test]
fn every_door_gives_the_same_verdict_on_bad_candidates() {
    let header = |members: &str| {
        format!(
            r#"{{"type":"request/header","data":{{"header":{{"config":{{"provider":"p","model":"m"}}}}{members}}}}}"#
        )
    };
    let table = [
        (CHUNK.to_owned(), "ok"),
        (but(CHUNK, r#""type""#, r#""seq":4,"type""#), "ok"),
        (but(CHUNK, r#""type""#, r#""seq":5,"type""#), "seq-gap"),
        (but(CHUNK, r#""type""#, r#""seq":3,"type""#), "seq-fork"),
        (but(CHUNK, "assistant/chunk", "mode/set"), "legacy-mode-set"),
        (but(CHUNK, "assistant/chunk", "request/header-delta"), "legacy-header-delta"),
        (header(r#","reason":"fallback""#), "legacy-fallback-reason"),
        (header(r#","reason":"change","startsSeries":true"#), "ok"),
        (header(r#","reason":"change","startsSeries":1"#), "header-shape"),
        (but(&header(r#","reason":"change""#), r#""model":"m""#, r#""model":"""#), "header-shape"),
        (but(CHUNK, r#""assistant/chunk""#, r#""acme/note","ignorable":true"#), "ok"),
        (but(CHUNK, "{}", "1e400"), "non-finite"),
        (but(CHUNK, "{}", "9007199254740993"), "ok unsafe-integer"),
        (but(CHUNK, "{}", r#"{"a":1,"a":2}"#), "ok duplicate-key"),
        (but(CHUNK, r#""type""#, r#""time":1,"time":2,"type""#), "ok duplicate-key"),
        (r#"{"type":"turn/start","data":{"turn":0}}"#.to_owned(), "event-shape"),
        (r#"{"type":"turn/start","data":{"turn":1,"trigger":{}}}"#.to_owned(), "event-shape"),
        (r#"{"type":"turn/end","data":{}}"#.to_owned(), "event-shape"),
        (r#"{"type":"turn/end","data":5}"#.to_owned(), "ok"),
        (
            r#"{"type":"turn/end","data":{"turn":1,"reason":{"kind":"aborted","x":1}}}"#.to_owned(),
            "event-shape",
        ),
        (r#"{"type":"step/start","data":null}"#.to_owned(), "event-shape"),
        (r#"{"type":"tool/call","data":null}"#.to_owned(), "event-shape"),
        (r#"{"type":"step/end","data":null}"#.to_owned(), "ok"),
        (r#"{"type":"steering/message","data":{"turn":1}}"#.to_owned(), "event-shape"),
        (but(USER, r#""role":"user""#, r#""role":"system""#), "message-shape"),
        (but(ASSISTANT, r#""content":[]"#, r#""content":[null]"#), "message-shape"),
        (but(RESULT, r#""toolCallId":"c""#, r#""toolCallId":"d""#), "tool-result-shape"),
        (but(RESULT, r#""callId":"c""#, r#""callId":"""#), "empty-call-id"),
        (but(USER, r#","surfaceOp":"append""#, ""), "surface"),
        (but(USER, r#""append""#, r#""replace""#), "surface-op-shape"),
        (but(CHUNK, r#""type""#, r#""surfaceOp":"append","type""#), "surface"),
        (but(CHUNK, r#""type""#, r#""surfaceOp":{"op":1},"type""#), "surface"),
        (but(CHUNK, r#""type""#, r#""surfaceOp":null,"type""#), "surface"),
        (but(CHUNK, r#""type""#, r#""sourceEventSeqs":[0],"type""#), "surface"),
        (but(CHUNK, r#""type""#, r#""sourceEventSeqs":null,"type""#), "surface"),
        (but(CHUNK, r#""type""#, r#""sourceEventSeqs":[],"type""#), "surface"),
        (but(USER, r#""type""#, r#""sourceEventSeqs":null,"type""#), "provenance"),
        (but(USER, r#""type""#, r#""sourceEventSeqs":[],"type""#), "provenance"),
        (but(USER, r#""type""#, r#""sourceEventSeqs":[4],"type""#), "provenance"),
        (but(USER, r#""type""#, r#""sourceEventSeqs":[2,0,2],"type""#), "provenance"),
        (but(USER, r#""type""#, r#""sourceEventSeqs":[2,0,3],"type""#), "ok"),
        (but(USER, r#""append""#, r#"{"op":"replace","start":0,"end":1}"#), "surface"),
        (but(RESULT, r#""append""#, r#"{"op":"replace","start":2,"end":2},"sourceEventSeqs":[2]"#), "ok"),
        (
            but(RESULT, r#""append""#, r#"{"op":"replace","start":1,"end":1},"sourceEventSeqs":[1]"#),
            "surface",
        ),
        (
            but(RESULT, r#""append""#, r#"{"op":"replace","start":1,"end":2},"sourceEventSeqs":[1,2]"#),
            "surface",
        ),
    ];
    for (line, expected) in &table {
        for origin in [Origin::Append, Origin::Seed, Origin::Load, Origin::Import] {
            assert_eq!(verdict(line, origin), *expected, "{origin:?} {line}");
        }
    }
}

#[test]
fn doors_differ_exactly_where_the_format_says_so() {
    let reason =
        r#"{"type":"request/header","data":{"header":{"config":{"provider":"p","model":"m"}},"reason":"x"}}"#;
    let zero = but(CHUNK, "{}", "-0");
    let unknown = but(CHUNK, "assistant/chunk", "acme/note");
    let ranges = but(USER, r#""type""#, r#""sourceEventSeqs":[[0,1],3],"type""#);
    let trigger = r#"{"type":"turn/start","data":{"turn":1,"trigger":{"kind":"user"}}}"#;
    let aborted = r#"{"type":"turn/end","data":{"turn":1,"reason":{"kind":"aborted"}}}"#;
    let steering = r#"{"type":"steering/message","data":{"turn":1,"content":[],"source":{"kind":"user"}},"surfaceOp":"append"}"#;
    let unidentified =
        r#"{"type":"user/message","data":{"content":[],"source":{"kind":"user"}},"surfaceOp":"append"}"#;
    for (line, write, load, import) in [
        (reason, "header-reason", "ok unknown-header-reason", "ok unknown-header-reason"),
        (&zero, "negative-zero", "ok negative-zero", "ok negative-zero"),
        (&unknown, "unsupported-event", "ok", "unsupported-event"),
        (&ranges, "range-provenance", "range-provenance", "ok normalised"),
        (trigger, "event-shape", "event-shape", "ok normalised"),
        (aborted, "event-shape", "event-shape", "ok normalised"),
        (steering, "event-shape", "event-shape", "ok normalised"),
        (unidentified, "message-shape", "message-shape", "ok normalised"),
    ] {
        assert_eq!(verdict(line, Origin::Append), write, "{line}");
        assert_eq!(verdict(line, Origin::Seed), write, "{line}");
        assert_eq!(verdict(line, Origin::Load), load, "{line}");
        assert_eq!(verdict(line, Origin::Import), import, "{line}");
    }
}

#[test]
fn a_refusal_names_the_seq_and_what_was_expected() {
    let refusal = session().take(&but(CHUNK, r#""type""#, r#""seq":9,"type""#), Origin::Append).unwrap_err();
    assert_eq!((refusal.seq, refusal.rule), (Some(Seq::new(9)), "seq-contiguity"));
    assert!(refusal.message.contains("expected seq 4, got 9"), "{}", refusal.message);
    let refusal = session().take(&but(CHUNK, "{}", "1e400"), Origin::Append).unwrap_err();
    assert_eq!(refusal.seq, Some(Seq::new(4)));
}

#[test]
fn payloads_of_hosts_are_validated_here() {
    let admit = |data: &'static str| {
        admit(&session(), Candidate::new("todo/write", 1, data), Origin::Append, &Vocabulary::default())
    };
    assert_eq!(admit("{").unwrap_err().rule, "data-json");
    let admitted = admit(" {\"a\": 1} ").unwrap();
    assert_eq!((&*admitted.event().data, admitted.event().seq), ("{\"a\": 1}", Seq::new(4)));
}

#[test]
fn a_session_holds_no_more_events_than_the_limit() {
    let mut session = Session { next: crate::limits::EVENTS_PER_SESSION_MAX - 1, ..Session::default() };
    let mut judge = || {
        let verdict = session.take(CHUNK, Origin::Append).map(|_| ());
        verdict.map_err(|refusal| (refusal.kind, refusal.rule))
    };
    assert_eq!(judge(), Ok(()));
    assert_eq!(judge(), Err((RefusalKind::Limit, "events-per-session")));
}

#[test]
fn admitted_events_write_back_what_was_read() {
    let line = r#"{"type":"user/message","seq":4,"time":-1,"data":{ "id":"u\u0061","role":"user","content":[1.0,"\ud83c"],"source":{"kind":"user"}},"sourceEventSeqs":[3,0],"surfaceOp":{"op":"replace","start":0,"end":0}}"#;
    let admitted = session().take(line, Origin::Append).unwrap();
    assert_eq!(admitted.placement(), &Placement::Replace(0..1));
    let mut out = String::new();
    admitted.event().write_json(&mut out);
    assert_eq!(out, line);
    let line = r#"{"type":"acme/\"x\"","seq":4,"time":0,"data":null,"ignorable":true}"#;
    let mut out = String::new();
    session().take(line, Origin::Import).unwrap().event().write_json(&mut out);
    assert_eq!(out, line);
    assert!(Value::new(&out).get("ignorable").unwrap().is_true());
}

/// Lines that exercise every rule, older shapes included.
fn samples() -> Vec<String> {
    let replace = r#"{"op":"replace","start":2,"end":2},"sourceEventSeqs":[[0,1],2]"#;
    let samples = [
        USER,
        ASSISTANT,
        RESULT,
        CHUNK,
        r#"{"type":"turn/start","data":{"turn":1,"trigger":{"kind":"user"}}}"#,
        r#"{"type":"turn/end","data":{"turn":1,"reason":{"kind":"error","step":0,"message":"m","code":"c"}}}"#,
        r#"{"type":"steering/message","data":{"turn":1,"content":[],"source":{"kind":"user"}},"surfaceOp":"append"}"#,
        r#"{"type":"tool/result","data":{"callId":"c","content":[],"isError":true},"surfaceOp":"append"}"#,
        r#"{"type":"assistant/message","data":{"content":[],"provenance":{"provider":"p","model":"m"}},"surfaceOp":"append"}"#,
        r#"{"type":"request/header","data":{"header":{"config":{"provider":"p","model":"m"},"tools":[{"a":1}],"system":"s"},"reason":"change","startsSeries":true}}"#,
        r#"{"type":"acme/\u006eote","seq":4,"time":1,"data":[1e3,"\ud800"],"ignorable":true}"#,
    ];
    samples.iter().map(|s| (*s).to_owned()).chain([but(RESULT, "\"append\"", replace)]).collect()
}

/// A small generator of numbers, for repeatable tests.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// The line with one value, key or byte changed.
    fn mutate(&mut self, line: &str) -> String {
        let mut bytes = line.as_bytes().to_vec();
        let starts: Vec<usize> =
            (1..bytes.len()).filter(|i| matches!(bytes[i - 1], b':' | b',' | b'[')).collect();
        let start = starts[self.below(starts.len())];
        let end = start + Value::new(&line[start..]).raw().find([',', '}', ']']).unwrap_or(0);
        match self.below(4) {
            0 => drop(bytes.remove(start)),
            1 => drop(bytes.splice(start..start, line[start..end].bytes().chain([b',']))),
            _ => {
                let tokens = [
                    "null",
                    "[]",
                    "{}",
                    "-0",
                    "0",
                    "2",
                    "1e400",
                    "9007199254740993",
                    "\"\"",
                    "\"user\"",
                    "true",
                    "[[1,0]]",
                    "\"\\ud800\"",
                ];
                drop(bytes.splice(start..end, self.pick(&tokens).bytes()));
            }
        }
        String::from_utf8(bytes).unwrap()
    }
}

#[test]
fn whatever_is_admitted_is_admitted_again_from_its_own_text() {
    let (samples, mut random) = (samples(), Random(0x5EED));
    let mut admitted_total = 0;
    for round in 0..10_000 {
        let mut line = samples[round % samples.len()].clone();
        for _ in 0..=random.below(3) {
            line = random.mutate(&line);
        }
        for origin in [Origin::Import, Origin::Append] {
            let Ok(admitted) = session().take(&line, origin) else { continue };
            let mut text = String::new();
            admitted.event().write_json(&mut text);
            assert!(!text.contains(['\n', '\r']), "{text}");
            let again = session()
                .take(&text, Origin::Load)
                .unwrap_or_else(|refusal| panic!("{refusal}: {text} of {line}"));
            assert_eq!(again.event(), admitted.event(), "{line}");
            assert_eq!(
                (again.placement(), again.rewrite_digest()),
                (admitted.placement(), admitted.rewrite_digest())
            );
            admitted_total += 1;
        }
    }
    assert!(admitted_total > 500, "{admitted_total}");
}
