use std::borrow::Cow;
use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::event::SurfaceOp;
use crate::event::json::scan;
use crate::ids::Seq;
use crate::import::{Item, RecordSource, ZstdFrames, packed};

const HEADER: &str = r#"{"type":"session","version":0,"id":"s","createdAt":0,"delegationDepth":0}"#;

fn event<'a>(seq: u64, time: i64, type_name: &'a str, data: &'a str) -> Event<'a> {
    Event {
        type_name: Cow::Borrowed(type_name),
        seq: Seq::new(seq),
        time,
        data: Cow::Borrowed(data),
        surface_op: None,
        sources: None,
        ignorable: false,
    }
}

fn text_chunk(token: &str) -> String {
    format!(r#"{{"turn":1,"step":1,"chunk":{{"type":"text-delta","index":0,"text":{token}}}}}"#)
}

fn written(events: &[Event<'_>], format: JsonlFormat, packed: bool) -> Vec<u8> {
    let mut writer = JsonlWriter::new(Vec::new(), format, packed, &SessionHeader::new("s", 0)).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish().unwrap()
}

/// Lines behind the header.
fn lines(events: &[Event<'_>]) -> Vec<String> {
    let text = String::from_utf8(written(events, JsonlFormat::Plain, true)).unwrap();
    let rest = text.strip_prefix(HEADER).and_then(|t| t.strip_prefix('\n')).unwrap();
    rest.lines().map(str::to_owned).collect()
}

/// The lines of single events that packed lines stand for.
fn unpacked(lines: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    for line in lines {
        match packed::expand(line, &scan(line).unwrap()).unwrap() {
            None => out.push(line.clone()),
            Some(rows) => out.extend(rows.map(|m| {
                let mut text = String::new();
                event(m.seq.get(), m.time, packed::CHUNK_TYPE, &m.data).write_json(&mut text);
                text
            })),
        }
    }
    out
}

fn plain_lines(events: &[Event<'_>]) -> Vec<String> {
    let one = |e: &Event<'_>| {
        let mut text = String::new();
        e.write_json(&mut text);
        text
    };
    events.iter().map(one).collect()
}

#[test]
fn three_chunks_become_a_row_and_two_stay() {
    let data: Vec<String> = [r#""a""#, r#""\ud83c""#, r#""""#].iter().map(|t| text_chunk(t)).collect();
    let times = [10, 13, 11];
    let chunks: Vec<_> = (0..3).map(|i| event(i as u64, times[i], "assistant/chunk", &data[i])).collect();
    let row = r#"{"type":"text-chunks","seq0":0,"time0":10,"data":{"turn":1,"step":1,"index":0,"dt":[3,-2],"texts":["a","\ud83c",""]}}"#;
    assert_eq!(lines(&chunks), [row]);
    assert_eq!(lines(&chunks[..2]), plain_lines(&chunks[..2]));
}

#[test]
fn tool_calls_pack_with_their_id_before_the_arguments() {
    let data: Vec<String> = ["{", "}", ""]
        .iter()
        .map(|t| format!(r#"{{"turn":1,"step":2,"chunk":{{"type":"tool-call-delta","index":2,"id":"c\"1","name":"bash","argumentsDelta":"{t}"}}}}"#))
        .collect();
    let events: Vec<_> = data.iter().zip(4..).map(|(d, i)| event(i, 0, "assistant/chunk", d)).collect();
    let row = r#"{"type":"tool-call-chunks","seq0":4,"time0":0,"data":{"turn":1,"step":2,"index":2,"dt":[0,0],"id":"c\"1","name":"bash","args":["{","}",""]}}"#;
    assert_eq!(lines(&events), [row]);
    assert_eq!(unpacked(&lines(&events)), plain_lines(&events));
}

#[test]
fn what_a_row_would_not_give_back_stays_single() {
    let spellings = [
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"a"} }"#,
        r#"{"step":1,"turn":1,"chunk":{"type":"text-delta","index":0,"text":"a"}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"a","more":1}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":null}}"#,
        r#"{"turn":"1","step":1,"chunk":{"type":"text-delta","index":0,"text":"a"}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"block-start","index":0,"blockType":"text"}}"#,
        r#"{"turn":1,"step":1,"chunk":{"type":"tool-call-delta","index":0,"id":1,"argumentsDelta":"a"}}"#,
        "null",
    ];
    for data in spellings {
        let events: Vec<_> = (0..4).map(|i| event(i, 0, "assistant/chunk", data)).collect();
        assert_eq!(lines(&events), plain_lines(&events));
    }
    let data = text_chunk(r#""a""#);
    let mut marked = event(0, 0, "assistant/chunk", &data);
    marked.ignorable = true;
    let events: Vec<_> = (0..4).map(|i| Event { seq: Seq::new(i), ..marked.clone() }).collect();
    assert_eq!(lines(&events), plain_lines(&events));
}

#[test]
fn long_runs_are_split_within_the_bounds() {
    let data = text_chunk(r#""token""#);
    let events: Vec<_> = (0..2_050).map(|i| event(i, 7, "assistant/chunk", &data)).collect();
    let packed = lines(&events);
    // 1024 + 1024 + 2 that are too few for a row.
    assert_eq!(packed.len(), 4);
    assert_eq!(unpacked(&packed), plain_lines(&events));

    let data = text_chunk(&format!("\"{}\"", "x".repeat(200_000)));
    let events: Vec<_> = (0..20).map(|i| event(i, 7, "assistant/chunk", &data)).collect();
    let packed = lines(&events);
    assert!(packed.iter().all(|l| l.len() < 1 << 20));
    assert_eq!(unpacked(&packed), plain_lines(&events));
}

#[test]
fn zstd_jsonl_reads_back_with_the_header_in_a_frame_of_its_own() {
    let data: Vec<String> =
        (0..3_000).map(|i| format!(r#"{{"n":{i},"text":"{}"}}"#, "y".repeat(300))).collect();
    let events: Vec<_> = data.iter().zip(0..).map(|(d, i)| event(i, 0, "todo/write", d)).collect();
    let file = written(&events, JsonlFormat::Zstd, true);
    let mut source = ZstdFrames::new(Cursor::new(&file)).unwrap();
    let mut expected = vec![HEADER.to_owned()];
    expected.extend(plain_lines(&events));
    for line in expected {
        let item = source.next_item().unwrap();
        assert!(matches!(item, Some(Item::Record(r)) if r.bytes == line.as_bytes() && r.ended), "{line}");
    }
    assert!(source.next_item().unwrap().is_none());
}

#[test]
fn a_row_tag_is_no_event_that_jsonl_can_hold() {
    let mut writer =
        JsonlWriter::new(Vec::new(), JsonlFormat::Plain, false, &SessionHeader::new("s", 0)).unwrap();
    let error = writer.event(&event(0, 0, "text-chunks", "{}")).unwrap_err();
    assert_eq!((error.kind(), error.seq()), (ErrorKind::Unsupported, Some(Seq::new(0))));
}

/// An event of a few shapes that do and do not pack.
fn any_event() -> impl Strategy<Value = (String, String, i64, bool)> {
    let token = prop::sample::select(vec![r#""a""#, r#""\"""#, r#""\\""#, r#""é\ud800""#, r#""}}""#]);
    let shape = 0..6_usize;
    (shape, token, 1..3_u8, -5..5_i64, prop::bool::weighted(0.05)).prop_map(|(shape, token, n, time, marked)| {
        let data = match shape {
            0 | 1 => format!(r#"{{"turn":{n},"step":1,"chunk":{{"type":"text-delta","index":0,"text":{token}}}}}"#),
            2 => format!(r#"{{"turn":1,"step":1e0,"chunk":{{"type":"reasoning-delta","index":{n},"text":{token}}}}}"#),
            3 => format!(r#"{{"turn":1,"step":1,"chunk":{{"type":"tool-call-delta","index":0,"id":{token},"argumentsDelta":"x"}}}}"#),
            4 => format!(r#"{{"turn":1,"step":1,"chunk":{{"type":"tool-call-delta","index":0,"id":"c","name":"n{n}","argumentsDelta":{token}}}}}"#),
            _ => format!(r#"{{"turn":{n}}}"#),
        };
        let type_name = if shape == 5 { "turn/start" } else { packed::CHUNK_TYPE };
        (type_name.to_owned(), data, time, marked)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn packing_and_expanding_give_the_events_back(
        runs in prop::collection::vec((any_event(), 1..9_usize), 0..12),
        first in prop::sample::select(vec![0, 7, (1_u64 << 53) - 20]),
    ) {
        let flat: Vec<_> = runs.iter().flat_map(|(e, n)| std::iter::repeat_n(e, *n)).collect();
        let events: Vec<_> = flat
            .iter()
            .zip(first..)
            .map(|((type_name, data, time, marked), seq)| {
                let mut e = event(seq, *time, type_name, data);
                e.surface_op = marked.then_some(SurfaceOp::Append);
                e
            })
            .collect();
        let packed = lines(&events);
        prop_assert_eq!(unpacked(&packed), plain_lines(&events));
        prop_assert!(packed.len() <= events.len());
    }

    #[test]
    fn a_packed_row_of_a_log_is_packed_again_as_it_was(
        tokens in prop::collection::vec("[a-z]{0,3}", 3..40),
        seq in 0..1_000_u64,
        time in -1_000..1_000_i64,
        dt in prop::collection::vec(-9..9_i64, 40),
    ) {
        let steps: Vec<String> = dt[..tokens.len() - 1].iter().map(ToString::to_string).collect();
        let row = format!(
            r#"{{"type":"reasoning-chunks","seq0":{seq},"time0":{time},"data":{{"turn":1,"step":2,"index":3,"dt":[{}],"texts":["{}"]}}}}"#,
            steps.join(","),
            tokens.join("\",\""),
        );
        let members: Vec<_> = packed::expand(&row, &scan(&row).unwrap()).unwrap().unwrap().collect();
        let events: Vec<_> =
            members.iter().map(|m| event(m.seq.get(), m.time, packed::CHUNK_TYPE, &m.data)).collect();
        prop_assert_eq!(lines(&events), [row]);
    }
}
