//! The projections together, over events that the gate admitted.

use super::*;
use crate::event::{Candidate, Origin, Provenance, SessionState, SurfaceOp, Vocabulary, admit};
use crate::ids::Seq;

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % n
    }
}

fn candidate(
    type_name: &'static str,
    data: String,
    surface_op: Option<SurfaceOp>,
    sources: Option<Vec<Seq>>,
) -> Candidate<'static> {
    Candidate {
        type_name: type_name.into(),
        seq: None,
        time: 0,
        data: data.into(),
        surface_op,
        sources: sources.map(|s| Provenance::List(s.into())),
        ignorable: false,
    }
}

fn message(random: &mut Random, seq: Seq) -> (&'static str, String) {
    match random.below(4) {
        0 => {
            let source = r#"{"kind":"user"}"#;
            ("user/message", format!(r#"{{"id":"m{seq}","role":"user","content":[],"source":{source}}}"#))
        }
        1 => {
            let result = format!(r#"{{"type":"tool-result","toolCallId":"c{seq}","content":[]}}"#);
            let source = format!(r#"{{"kind":"tool","callId":"c{seq}"}}"#);
            let message =
                format!(r#"{{"id":"m{seq}","role":"user","content":[{result}],"source":{source}}}"#);
            ("tool/result", format!(r#"{{"turn":1,"step":1,"message":{message}}}"#))
        }
        calls => {
            let calls = vec![format!(r#"{{"type":"tool-call","id":"c{seq}"}}"#); calls - 2].join(",");
            let source = r#"{"kind":"model","provider":"p","model":"m"}"#;
            let message =
                format!(r#"{{"id":"m{seq}","role":"assistant","content":[{calls}],"source":{source}}}"#);
            ("assistant/message", format!(r#"{{"turn":1,"step":1,"message":{message}}}"#))
        }
    }
}

/// The next event of a random log: log-only, appended, or replacing a range with all its nodes as sources.
fn next(random: &mut Random, state: &State) -> Candidate<'static> {
    let nodes: Vec<Seq> = state.surface().iter().map(|&n| Seq::new(u64::from(n))).collect();
    let seq = state.next_seq();
    let (type_name, data) = message(random, seq);
    match random.below(5) {
        0 => candidate("todo/write", "{}".into(), None, None),
        1 if !nodes.is_empty() && type_name != "tool/result" => {
            let start = random.below(nodes.len());
            let end = start + random.below((nodes.len() - start).min(5));
            let op = SurfaceOp::Replace { start: nodes[start], end: nodes[end] };
            candidate(type_name, data, Some(op), Some(nodes[start..=end].to_vec()))
        }
        _ => candidate(type_name, data, Some(SurfaceOp::Append), None),
    }
}

#[test]
fn the_incremental_state_is_the_complete_fold() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut state = State::new("s");
        let mut log = Vec::new();
        for _ in 0..200 {
            let candidate = next(&mut random, &state);
            let event = admit(&state, candidate, Origin::Append, &Vocabulary::default()).expect("admitted");
            state.apply(&event);
            if random.below(10) == 0 {
                // Asking in between must not change later answers.
                let _ = state.cuts();
            }
            log.push(event);
        }
        let fold = fold_surface(&log);
        assert_eq!(fold.nodes, state.surface());
        assert_eq!(fold.replacements.len() as u64, state.visible().replace_generation());
        let mut complete = State::new("s");
        log.iter().for_each(|event| complete.apply(event));
        assert_eq!(complete, state);
        let answer = |state: &mut State| state.cuts().map(<[bool]>::to_vec).map_err(|e| e.to_string());
        assert_eq!(answer(&mut complete), answer(&mut state));
        let derived = |node: &u32| {
            let event = log[*node as usize].event();
            derived_message(&event.type_name, event.value()).is_some()
        };
        assert_eq!(state.surface().iter().filter(|n| derived(n)).count(), state.message_count());
    }
}

#[test]
fn the_header_in_force_is_the_latest_snapshot() {
    let mut state = State::new("s");
    for (reason, system) in [("initial", "a"), ("change", "b")] {
        let config = r#"{"provider":"p","model":"m"}"#;
        let data =
            format!(r#"{{"header":{{"config":{config},"system":"{system}","x":1}},"reason":"{reason}"}}"#);
        let candidate = candidate("request/header", data, None, None);
        let event = admit(&state, candidate, Origin::Append, &Vocabulary::default()).expect("admitted");
        state.apply(&event);
    }
    let header = state.request_header();
    assert_eq!(header.seq(), Some(Seq::new(1)));
    let text = header.header().map(crate::event::CanonicalHeader::text);
    assert_eq!(text, Some(r#"{"config":{"provider":"p","model":"m"},"system":"b"}"#));
}
