//! The projections together, over events that the gate admitted.

use super::snapshot::testing::Sections;
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

fn snapshot(state: &State) -> Sections {
    let mut sections = Sections::default();
    state.snapshot(&mut sections).expect("a snapshot");
    sections
}

/// The state again, where the log has the header of `of` at its seq and no other.
fn restored(sections: &Sections, of: &RequestHeader) -> Option<State> {
    let header_data = |seq| Ok(of.data().filter(|_| of.seq() == Some(seq)).map(str::to_owned));
    State::restore("s", sections, &header_data).expect("a log that can be read")
}

/// A random log with turns, headers and pending calls in it.
fn step(random: &mut Random, state: &State) -> Candidate<'static> {
    let seq = state.next_seq();
    let log_only = |type_name, data: &str| candidate(type_name, data.to_owned(), None, None);
    match random.below(12) {
        0 => log_only("turn/start", r#"{"turn":1.0}"#),
        1 => log_only("step/start", r#"{"turn":1,"step":-0}"#),
        2 => log_only(
            "tool/call",
            &format!(
                r#"{{"turn":1,"step":1,"callId":"c{}","name":"n","input":{{}}}}"#,
                seq.get().saturating_sub(1)
            ),
        ),
        3 => {
            let header = format!(r#"{{"config":{{"provider":"p","model":"m"}},"system":"s{seq}"}}"#);
            log_only("request/header", &format!(r#"{{"header":{header},"reason":"change"}}"#))
        }
        _ => next(random, state),
    }
}

fn admitted(state: &State, candidate: Candidate<'static>) -> Option<crate::event::Admitted<'static>> {
    admit(state, candidate, Origin::Load, &Vocabulary::default()).ok()
}

#[test]
fn a_state_restored_at_any_prefix_goes_on_as_the_fold() {
    for seed in 0..4 {
        let mut random = Random(seed);
        let mut state = State::new("s");
        let mut resumed: Vec<State> = Vec::new();
        let mut pending = 0;
        for _ in 0..150 {
            let restored =
                restored(&snapshot(&state), state.request_header()).expect("what was written down");
            assert_eq!(restored, state);
            assert_eq!(restored.message_count(), state.message_count());
            assert_eq!(restored.closers(), state.closers());
            pending += usize::from(!state.turns().closers(state.next_seq(), 0).is_ok_and(|c| c.is_empty()));
            resumed.push(restored);
            let candidate = step(&mut random, &state);
            let Some(event) = admitted(&state, candidate) else { continue };
            state.apply(&event);
            resumed.iter_mut().for_each(|state| state.apply(&event));
        }
        assert!(pending > 20, "turns were open: {pending}");
        assert!(resumed.iter().all(|resumed| *resumed == state));
        let answer = |state: &mut State| state.cuts().map(<[bool]>::to_vec).map_err(|e| e.to_string());
        let expected = answer(&mut state);
        assert!(resumed.iter_mut().all(|resumed| answer(resumed) == expected));
    }
}

#[test]
fn a_snapshot_with_a_wrong_section_gives_no_state_or_one_that_panics_nowhere() {
    let mut random = Random(9);
    let mut state = State::new("s");
    for _ in 0..60 {
        let candidate = step(&mut random, &state);
        if let Some(event) = admitted(&state, candidate) {
            state.apply(&event);
        }
    }
    let sound = snapshot(&state);
    let header = state.request_header();
    assert!(header.seq().is_some());
    assert_eq!(restored(&sound, &RequestHeader::default()), None, "the log has another event there");
    assert_eq!(State::restore("s", &sound, &|_| Ok(Some("{".to_owned()))).expect("read"), None, "no JSON");
    let unreadable = |_| Err(crate::Error::new(crate::ErrorKind::Io, "unreadable"));
    assert_eq!(State::restore("s", &sound, &unreadable).unwrap_err().kind(), crate::ErrorKind::Io);
    for section in 0..sound.0.len() {
        let mut without = sound.clone();
        without.0.remove(section);
        assert_eq!(restored(&without, header), None);
        let mut newer = sound.clone();
        newer.0[section].0.version += 1;
        assert_eq!(restored(&newer, header), None);
        for byte in 0..sound.0[section].1.len() {
            for value in [0, 1, 2, 0x22, 0x7b, 0x80, 0xfa, 0xfb, 0xff] {
                let mut wrong = sound.clone();
                wrong.0[section].1[byte] = value;
                if let Some(state) = restored(&wrong, header) {
                    use_up(state, &mut Random(1));
                }
            }
        }
    }
}

/// Asks everything of a state that need not make sense, and goes on from it.
fn use_up(mut state: State, random: &mut Random) {
    let _ = (state.cuts().is_ok(), state.message_count(), state.closers());
    let _ = state.request_header().header();
    for _ in 0..3 {
        let candidate = step(random, &state);
        if let Some(event) = admitted(&state, candidate) {
            state.apply(&event);
        }
    }
    let nodes: Vec<Seq> = state.surface().iter().map(|&n| Seq::new(u64::from(n))).collect();
    if let Some(first) = nodes.first() {
        let _ = (state.balanced_before(*first).is_ok(), state.visible().rewrite_digest(*first));
    }
}

#[test]
fn the_sections_of_a_snapshot_are_pinned() {
    let mut state = State::new("s");
    let surface = Some(SurfaceOp::Append);
    let user = r#"{"id":"u","role":"user","content":[],"source":{"kind":"user"}}"#;
    let header = r#"{"header":{"config":{"provider":"p","model":"m"}},"reason":"initial"}"#;
    let source = r#"{"kind":"model","provider":"p","model":"m"}"#;
    let calls = r#"[{"type":"tool-call","id":"c"}]"#;
    let message = format!(r#"{{"id":"a","role":"assistant","content":{calls},"source":{source}}}"#);
    for (type_name, data, op) in [
        ("turn/start", r#"{"turn":1}"#.to_owned(), None),
        ("user/message", user.to_owned(), surface),
        ("request/header", header.to_owned(), None),
        ("assistant/message", format!(r#"{{"turn":1,"step":1,"message":{message}}}"#), surface),
        ("tool/call", r#"{"turn":1,"step":1,"callId":"c","name":"n","arguments":"{}"}"#.to_owned(), None),
    ] {
        let candidate = candidate(type_name, data, op, None);
        let event = admit(&state, candidate, Origin::Load, &Vocabulary::default()).expect("admitted");
        state.apply(&event);
    }
    let sections: Vec<_> =
        snapshot(&state).0.into_iter().map(|(id, bytes)| (id.code, id.version, bytes)).collect();
    let turns = [1, 1, b'1', 0, 1, 0, 1, 1, b'1', 1, 3, b'"', b'c', b'"', 0, 1, 0, 1, 4];
    let expected = [
        (1, 1, vec![5, 1, 0]),
        (2, 1, vec![0, 2, 2, 4, 0, 0]),
        (3, 2, vec![1, 2]),
        (4, 1, vec![2, 0, 2]),
        (5, 1, turns.to_vec()),
        (6, 1, vec![0]),
    ];
    assert_eq!(sections, expected);
}
