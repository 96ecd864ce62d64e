//! Secrets go wherever they stand and however they are spelled or cut; all else stays.

use proptest::prelude::*;

use super::*;
use crate::event::json::{JsonString, scan, write_string};
use crate::ids::Seq;
use crate::{ErrorKind, limits};

/// `KEY-` and capitals or digits, not behind a letter.
fn keys(_: Option<&str>, text: &str) -> Vec<Secret> {
    let ends = |from: usize| text[from..].find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit());
    let starts = text.match_indices("KEY-").map(|(at, _)| at);
    let free = starts.filter(|&at| !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric()));
    let ranges = free.map(|at| at..ends(at + 4).map_or(text.len(), |end| at + 4 + end));
    ranges.filter(|range| range.len() > 7).map(|range| Secret { range, pattern: 3 }).collect()
}

fn event(seq: u64, type_name: &str, data: &str) -> Event<'static> {
    scan(data).unwrap_or_else(|fault| panic!("{fault}: {data}"));
    let (type_name, data) = (type_name.to_owned().into(), data.to_owned().into());
    let seq = Seq::new(seq);
    Event { type_name, seq, time: 0, data, surface_op: None, sources: None, ignorable: false }
}

/// The data of the events that come out, in order.
fn redact(redactor: &mut Redactor<'_>, events: &[Event<'_>]) -> Vec<String> {
    let mut out = Vec::new();
    let mut sink = |event: &Event<'_>| {
        assert_eq!(event.seq, Seq::new(out.len() as u64), "in order");
        scan(&event.data).unwrap_or_else(|fault| panic!("{fault}: {}", event.data));
        out.push(event.data.clone().into_owned());
        Ok(())
    };
    redactor.begin();
    events.iter().for_each(|event| redactor.event(event.clone(), &mut sink).unwrap());
    redactor.finish(&mut sink).unwrap();
    assert_eq!(out.len(), events.len());
    out
}

fn redacted(events: &[Event<'_>]) -> Vec<String> {
    redact(&mut Redactor::new(&keys), events)
}

fn one(data: &str) -> String {
    redacted(&[event(0, "todo/write", data)]).remove(0)
}

fn literal(text: &str) -> String {
    let mut out = String::new();
    write_string(&mut out, &JsonString::from(text));
    out
}

fn delta(seq: u64, index: u32, token: &str) -> Event<'static> {
    let token = literal(token);
    let chunk = format!(r#"{{"type":"text-delta","index":{index},"text":{token}}}"#);
    event(seq, "assistant/chunk", &format!(r#"{{"turn":1,"step":1,"chunk":{chunk}}}"#))
}

/// The texts of the deltas of a block, one after another.
fn joined(data: &[String], index: u32) -> String {
    let mark = format!(r#""index":{index},"text":"#);
    let tokens =
        data.iter().filter_map(|data| data.split_once(&mark).map(|(_, token)| &token[..token.len() - 2]));
    tokens.map(|token| JsonString::decode(token).to_lossy().into_owned()).collect()
}

#[test]
fn only_the_secret_changes() {
    let data =
        r#"{ "a" : [1E3, "x KEY-AB12\ud83c KEY-\u0043D34", -0], "KEY-AB12":"","k\u0065y":"KEY-AB12" }"#;
    let expected = r#"{ "a" : [1E3, "x [redacted:1]\ud83c [redacted:2]", -0], "KEY-AB12":"","k\u0065y":"[redacted:1]" }"#;
    assert_eq!(one(data), expected);
    let clean = r#"{"text":"no KEY- here, nor xKEY-AB12"}"#;
    assert_eq!(one(clean), clean);
}

#[test]
fn words_of_the_format_stay() {
    let data = r#"{"id":"KEY-AB12","message":{"role":"KEY-AB12","source":{"callId":"KEY-AB12"},"content":[{"text":"KEY-AB12","id":"KEY-AB12"}]},"arguments":{"id":"KEY-AB12"}}"#;
    let expected = r#"{"id":"KEY-AB12","message":{"role":"KEY-AB12","source":{"callId":"KEY-AB12"},"content":[{"text":"[redacted:1]","id":"KEY-AB12"}]},"arguments":{"id":"[redacted:1]"}}"#;
    assert_eq!(one(data), expected);
}

#[test]
fn equal_secrets_share_a_tag_over_sessions_and_are_counted() {
    let mut redactor = Redactor::new(&keys);
    assert_eq!(
        redact(&mut redactor, &[event(0, "x", r#"["KEY-AAAA","KEY-BBBB"]"#)]),
        [r#"["[redacted:1]","[redacted:2]"]"#]
    );
    assert_eq!(redact(&mut redactor, &[event(0, "x", r#"["KEY-BBBB"]"#)]), [r#"["[redacted:2]"]"#]);
    assert_eq!(redactor.counts().iter().collect::<Vec<_>>(), [(&3, &3)]);
}

#[test]
fn json_inside_of_json_hides_nothing() {
    let mut text = r#"{"command":"echo \u004bEY-AB12 # KEY\u002dAB12"}"#.to_owned();
    for _ in 0..3 {
        text = literal(&text);
        let mut out = one(&text);
        assert_eq!(out.matches("[redacted:1]").count(), 2, "{out}");
        while out.starts_with('"') {
            out = JsonString::decode(&out).to_str().unwrap().to_owned();
        }
        assert_eq!(out, r#"{"command":"echo [redacted:1] # [redacted:1]"}"#);
    }
}

#[test]
fn escapes_that_unfold_without_end_are_left_to_themselves() {
    let unfolding = format!(r"\{}", "u005c".repeat(200_000));
    assert_eq!(one(&literal(&unfolding)), literal(&unfolding));
}

#[test]
fn a_streamed_secret_goes_from_all_its_chunks() {
    let cut = ["say KE", "Y-A", "", "B1", "2 twice: KEY-AB12, K", "EY-ZZZZ"];
    let mut events: Vec<_> = (0..).zip(cut).map(|(seq, token)| delta(seq, 0, token)).collect();
    events.insert(3, event(3, "todo/write", r#"["KEY-ZZZZ"]"#));
    events.iter_mut().zip(0..).for_each(|(event, seq)| event.seq = Seq::new(seq));
    let out = redacted(&events);
    assert_eq!(joined(&out, 0), "say [redacted:1] twice: [redacted:1], [redacted:2]");
    assert_eq!(out[3], r#"["[redacted:2]"]"#);
    assert!(
        out[0].ends_with(r#""text":"say [redacted:1]"}}"#) && out[1].ends_with(r#""text":""}}"#),
        "{out:?}"
    );
}

#[test]
fn what_another_attempt_begins_with_is_looked_at_by_itself() {
    let start = r#"{"turn":1,"step":1,"chunk":{"type":"block-start","index":0,"blockType":"text"}}"#;
    for between in [("assistant/chunk", start), ("llm/retry", r#"{"turn":1,"step":1}"#)] {
        let events =
            [delta(0, 0, "x"), event(1, between.0, between.1), delta(2, 0, "KEY-A"), delta(3, 0, "B12")];
        assert_eq!(joined(&redacted(&events), 0), "x[redacted:1]", "{between:?}");
    }
}

#[test]
fn events_leave_as_soon_as_their_step_is_whole() {
    let find = keys;
    let mut redactor = Redactor::new(&find);
    let mut left = 0;
    let end = r#"{"turn":1,"step":1,"message":{}}"#;
    let events = [
        delta(0, 0, "a"),
        event(1, "todo/write", "1"),
        event(2, "assistant/message", end),
        event(3, "x", "1"),
    ];
    let counts: Vec<u64> = events
        .into_iter()
        .map(|event| {
            redactor
                .event(event, &mut |_| {
                    left += 1;
                    Ok(())
                })
                .unwrap();
            left
        })
        .collect();
    assert_eq!(counts, [0, 0, 3, 4]);
}

#[test]
fn a_step_beyond_all_bounds_is_an_error_and_no_leak() {
    let huge = delta(0, 0, &"x".repeat(limits::REDACTION_HELD_BYTES_MAX));
    let mut redactor = Redactor::new(&keys);
    let error = redactor.event(huge, &mut |_| panic!("nothing leaves")).unwrap_err();
    assert_eq!((error.kind(), error.seq()), (ErrorKind::Limit, Some(Seq::new(0))));
    assert_eq!(
        redact(&mut redactor, &[delta(0, 0, "KEY-AB12")]).len(),
        1,
        "the next session is none the worse"
    );
}

#[test]
fn sources_count_in_what_a_step_holds() {
    let mut redactor = Redactor::new(&keys);
    redactor.event(delta(0, 0, "KEY-"), &mut |_| panic!("nothing leaves")).unwrap();
    let sources = vec![Seq::new(0); limits::REDACTION_HELD_BYTES_MAX / size_of::<Seq>()];
    let bystander = Event { sources: Some(sources.into()), ..event(1, "todo/write", "1") };
    let error = redactor.event(bystander, &mut |_| panic!("nothing leaves")).unwrap_err();
    assert_eq!((error.kind(), error.seq()), (ErrorKind::Limit, Some(Seq::new(1))));
}

proptest! {
    /// However two streams are cut and mixed, each comes out as if it had been one text.
    #[test]
    fn cuts_make_no_difference(
        texts in prop::array::uniform2("( KEY-[A-Z]{4} | KEY- |\\\\|[a-z\" é]{1,3}){0,8}"),
        cuts in prop::collection::vec((0..2_usize, 0..5_usize), 0..60),
    ) {
        let mut rest: [Vec<char>; 2] = texts.clone().map(|text| text.chars().collect());
        let mut events = Vec::new();
        for (stream, length) in cuts.into_iter().chain([(0, usize::MAX), (1, usize::MAX)]) {
            let length = length.min(rest[stream].len());
            let token: String = rest[stream].drain(..length).collect();
            events.push(delta(events.len() as u64, u32::try_from(stream).unwrap(), &token));
        }
        let tagless = |text: &str| text.split("[redacted:").map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit())).collect::<Vec<_>>().join("#");
        let out = redacted(&events);
        for (index, text) in texts.iter().enumerate() {
            let whole = JsonString::decode(&one(&literal(text))).to_lossy().into_owned();
            prop_assert_eq!(tagless(&joined(&out, u32::try_from(index).unwrap())), tagless(&whole));
        }
    }
}
