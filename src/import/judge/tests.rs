use super::*;
use crate::import::{Lines, Verdict};

const HEADER: &str = r#"{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}"#;

fn event(seq: u64, type_name: &str, data: &str) -> String {
    format!(r#"{{"type":"{type_name}","seq":{seq},"time":{},"data":{data}}}"#, 10 + seq)
}

fn turn_start(seq: u64) -> String {
    event(seq, "turn/start", r#"{"turn":1}"#)
}

fn turn_end(seq: u64) -> String {
    event(seq, "turn/end", r#"{"turn":1,"reason":{"kind":"completed"}}"#)
}

fn todo(seq: u64) -> String {
    event(seq, "todo/write", "{}")
}

/// The header and these records, each with its line feed.
fn log(records: &[String]) -> Vec<u8> {
    let mut text = format!("{HEADER}\n");
    records.iter().for_each(|record| text += &format!("{record}\n"));
    text.into_bytes()
}

fn judged_with(text: &[u8], options: &JudgeOptions) -> Judgement {
    judge(&mut Lines::new(text), options, &mut |_| Ok(())).expect("memory reads and the sink takes all")
}

fn judged(text: &[u8]) -> Judgement {
    judged_with(text, &JudgeOptions::default())
}

/// Verdict and kind in one word, as in `refuse seq-gap`.
fn word_of(judgement: &Judgement) -> String {
    let kind = match (&judgement.refusal, &judgement.repair) {
        (Some(refusal), _) => refusal.kind.as_str(),
        (None, Some(repair)) => repair.kind.as_str(),
        (None, None) => "",
    };
    format!("{} {kind}", judgement.verdict().as_str()).trim_end().to_owned()
}

#[test]
fn the_first_record_must_be_a_whole_header_line() {
    let header = |text: &str| word_of(&judged(text.as_bytes()));
    assert_eq!(header(""), "refuse empty");
    assert_eq!(header("\n"), "refuse no-header");
    assert_eq!(header("\0\0"), "refuse no-header");
    assert_eq!(header("{\"type\":\"sess"), "refuse no-header");
    assert_eq!(header(HEADER), "refuse no-header");
    assert_eq!(header(&format!("{HEADER}\n")), "accept");
    assert_eq!(header(&format!("{HEADER}\r\n")), "accept");
    assert_eq!(header(&format!("\u{FEFF}{HEADER}\n")), "refuse bom");
    assert_eq!(header(&format!("{}\n", turn_start(0))), "refuse no-header");
    assert_eq!(header("{\"type\":\"session\",\"version\":0}\n"), "refuse header");
}

/// Each fault in an open tail, and the same fault with a turn/end behind it.
#[test]
fn a_stream_fault_costs_an_open_tail_and_refuses_a_committed_part() {
    let glued = format!("{}{}", &todo(1)[..20], todo(2));
    let row = r#"{"type":"text-chunks","seq0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":[]}}"#;
    let cases = [
        (todo(3), "seq-gap-tail", "seq-gap"),
        (todo(0), "seq-fork-tail", "seq-fork"),
        (String::new(), "bad-tail", "blank-record"),
        ("null".into(), "bad-tail", "not-an-event"),
        ("{\"type\":".into(), "bad-tail", "corrupt-record"),
        ("\0\0".into(), "nul-tail", "nul-padding"),
        (glued, "bad-tail", "glued-record"),
        (HEADER.into(), "bad-tail", "not-an-event"),
        (todo(1).replace(":1,", ":1.5,"), "bad-tail", "envelope"),
        (row.into(), "bad-tail", "packed-row"),
    ];
    for (fault, tail, committed) in cases {
        let open = judged(&log(&[turn_start(0), fault.clone()]));
        assert_eq!(word_of(&open), format!("repair {tail}"), "{fault}");
        assert_eq!(open.events(), Some(2), "the open turn is closed after {fault}");
        assert_eq!(open.closers.len(), 1);
        let closed = judged(&log(&[turn_start(0), fault.clone(), turn_end(7)]));
        assert_eq!(word_of(&closed), format!("refuse {committed}"), "{fault}");
        let refusal = closed.refusal.expect("refused");
        let offset = HEADER.len() + turn_start(0).len() + 2;
        assert_eq!((refusal.line, refusal.offset), (Some(3), Some(offset as u64)), "{fault}");
    }
}

#[test]
fn a_turn_end_out_of_sequence_is_its_own_proof() {
    assert_eq!(word_of(&judged(&log(&[turn_start(0), turn_end(5)]))), "refuse seq-gap");
}

#[test]
fn a_fragment_never_counts_as_committed() {
    let mut text = log(&[turn_start(0)]);
    text.extend(turn_end(1).as_bytes());
    let judgement = judged(&text);
    assert_eq!(word_of(&judgement), "repair torn-tail");
    let repair = judgement.repair.expect("a repair");
    assert_eq!((repair.cut_total, repair.bytes_cut), (1, turn_end(1).len() as u64));
    assert_eq!(repair.cut[0].type_name.as_deref(), Some("turn/end"));
    // Nor does it turn an earlier fault of the tail into damage of a committed part.
    let mut text = log(&[turn_start(0), todo(4)]);
    text.extend(turn_end(5).as_bytes());
    assert_eq!(word_of(&judged(&text)), "repair seq-gap-tail");
}

#[test]
fn nuls_after_the_last_record_lose_nothing_but_records_behind_them_do() {
    let mut text = log(&[turn_start(0), turn_end(1)]);
    text.extend([0; 300]);
    let judgement = judged(&text);
    let repair = judgement.repair.as_ref().expect("a repair");
    assert_eq!((repair.kind, repair.cut_total, repair.bytes_cut), (RepairKind::NulTail, 0, 300));
    assert_eq!(judgement.closers, []);
    text.extend(format!("\n{}\n", todo(2)).bytes());
    assert_eq!(word_of(&judged(&text)), "repair bad-tail");
}

#[test]
fn cut_records_are_listed_and_a_flood_of_them_is_counted() {
    let tail: Vec<String> = (0..1000).map(|i| todo(i + 5)).collect();
    let mut records = vec![turn_start(0)];
    records.extend(tail.clone());
    let repair = judged(&log(&records)).repair.expect("a repair");
    assert_eq!((repair.cut_total, repair.cut.len()), (1000, 100));
    assert_eq!(repair.bytes_cut, tail.iter().map(|r| r.len() as u64 + 1).sum::<u64>());
    assert_eq!((repair.cut[1].line, repair.cut[1].seq), (4, Some(Seq::new(6))));
}

#[test]
fn an_event_fault_refuses_at_once_and_a_fault_of_the_cut_tail_does_not() {
    let unknown = |seq| event(seq, "acme/x", "{}");
    let judgement = judged(&log(&[turn_start(0), unknown(1), todo(9)]));
    assert_eq!(word_of(&judgement), "refuse unsupported-event");
    assert_eq!(judgement.refusal.and_then(|r| r.line), Some(3));
    assert_eq!(word_of(&judged(&log(&[turn_start(0), todo(9), unknown(1)]))), "repair seq-gap-tail");
}

#[test]
fn legacy_events_outrank_everything_but_a_foreign_version() {
    let delta = |seq| event(seq, "request/header-delta", "{}");
    let mode = |seq| event(seq, "mode/set", "{}");
    let fallback = |seq| event(seq, "request/header", r#"{"header":{},"reason":"fallback"}"#);
    let bad = || event(0, "acme/x", "{}");
    assert_eq!(
        word_of(&judged(&log(&[bad(), fallback(5), mode(1), delta(9)]))),
        "refuse legacy-header-delta"
    );
    assert_eq!(word_of(&judged(&log(&[bad(), fallback(5), mode(1)]))), "refuse legacy-fallback-reason");
    assert_eq!(word_of(&judged(&log(&[fallback(0), todo(1)]))), "refuse legacy-fallback-reason");
    assert_eq!(word_of(&judged(&log(&[turn_start(0), todo(5), mode(9)]))), "refuse legacy-mode-set");
    let mut torn = log(&[turn_start(0)]);
    torn.extend(delta(1).as_bytes());
    assert_eq!(word_of(&judged(&torn)), "refuse legacy-header-delta");
    let broken_header = format!("{{\"type\":\"session\",\"version\":0}}\n{}\n", mode(0));
    assert_eq!(word_of(&judged(broken_header.as_bytes())), "refuse legacy-mode-set");
    let newer = format!("{{\"type\":\"session\",\"version\":1}}\n{}\n", mode(0));
    assert_eq!(word_of(&judged(newer.as_bytes())), "refuse newer-format");
}

#[test]
fn invalid_utf8_is_refused_with_its_offset_or_replaced_on_request() {
    let mut text = log(&[event(0, "todo/write", "\"?\"")]);
    let at = text.iter().position(|&b| b == b'?').expect("the mark");
    text[at] = 0xC3;
    let refusal = judged(&text).refusal.expect("refused");
    assert_eq!(
        (refusal.kind, refusal.line, refusal.offset),
        (RefusalKind::InvalidUtf8, Some(2), Some(at as u64))
    );
    let lossy = JudgeOptions { lossy_utf8: true, ..JudgeOptions::default() };
    let judgement = judged_with(&text, &lossy);
    assert_eq!(judgement.verdict(), Verdict::Accept);
    assert_eq!(judgement.warnings.listed()[0].kind, WarningKind::Normalised);
    // In a fragment it is a cut character like any other cut.
    text.truncate(at + 1);
    assert_eq!(word_of(&judged(&text)), "repair torn-tail");
}

#[test]
fn a_packed_row_is_taken_whole_or_not_at_all() {
    let row = |seq: u64| {
        format!(
            r#"{{"type":"text-chunks","seq0":{seq},"time0":5,"data":{{"turn":1,"step":1,"index":0,"dt":[1,2],"texts":["a","b","c"]}}}}"#
        )
    };
    let judgement = judged(&log(&[turn_start(0), row(1), turn_end(4)]));
    assert_eq!((word_of(&judgement).as_str(), judgement.events()), ("accept", Some(5)));
    let judgement = judged(&log(&[turn_start(0), row(2)]));
    assert_eq!((word_of(&judgement).as_str(), judgement.events()), ("repair seq-gap-tail", Some(2)));
    assert_eq!(judgement.repair.expect("a repair").cut[0].seq, Some(Seq::new(2)));
}

#[test]
fn the_sink_sees_the_admitted_events_but_no_closers_and_may_stop() {
    let text = log(&[turn_start(0), todo(1), todo(7)]);
    let options = JudgeOptions::default();
    let mut seen = Vec::new();
    let judgement = judge(&mut Lines::new(&text[..]), &options, &mut |event| {
        seen.push(event.event().seq.get());
        Ok(())
    });
    assert_eq!(judgement.expect("read").events(), Some(3));
    assert_eq!(seen, [0, 1]);
    let stopped = judge(&mut Lines::new(&text[..]), &options, &mut |_| {
        Err(Error::new(crate::ErrorKind::Cancelled, "import a log: stopped"))
    });
    assert_eq!(stopped.expect_err("stopped").kind(), crate::ErrorKind::Cancelled);
}

#[test]
fn a_pending_call_that_no_result_can_name_makes_the_log_unloadable() {
    let message = r#"{"turn":1,"step":1,"message":{"id":"a","role":"assistant","content":[{"type":"tool-call","id":""}],"source":{"kind":"model","provider":"p","model":"m"}}}"#;
    let call =
        event(1, "assistant/message", message).replace("\"time\"", "\"surfaceOp\":\"append\",\"time\"");
    assert_eq!(word_of(&judged(&log(&[turn_start(0), call.clone()]))), "refuse empty-call-id");
    assert_eq!(word_of(&judged(&log(&[turn_start(0), call, turn_end(2)]))), "accept");
}

/// Items as a zstd decoder hands them out; an empty record stands for the torn frame.
struct Frames {
    items: std::vec::IntoIter<(Vec<u8>, bool)>,
    current: Vec<u8>,
    line: u64,
}

impl RecordSource for Frames {
    fn next_item(&mut self) -> std::io::Result<Option<Item<'_>>> {
        let Some((bytes, lenient)) = self.items.next() else { return Ok(None) };
        self.current = bytes;
        if self.current.is_empty() {
            return Ok(Some(Item::TornFrame { offset: 99, bytes: 55 }));
        }
        self.line += 1;
        let (line, offset) = (self.line, self.line * 100);
        Ok(Some(Item::Record(Record {
            bytes: &self.current,
            line,
            offset,
            ended: true,
            lenient,
            origin: RecordOrigin::Line,
        })))
    }
}

fn judged_frames(strict: &[String], torn: &[String]) -> Judgement {
    let mut items = vec![(HEADER.as_bytes().to_vec(), false)];
    items.extend(strict.iter().map(|r| (r.clone().into_bytes(), false)));
    if !torn.is_empty() {
        items.push((Vec::new(), true));
        let torn = torn.iter().filter(|r| !r.is_empty());
        items.extend(torn.map(|r| (r.clone().into_bytes(), true)));
    }
    let mut frames = Frames { items: items.into_iter(), current: Vec::new(), line: 0 };
    judge(&mut frames, &JudgeOptions::default(), &mut |_| Ok(())).expect("judged")
}

#[test]
fn whole_frames_allow_no_fault_and_a_torn_one_the_usual() {
    assert_eq!(word_of(&judged_frames(&[turn_start(0), turn_end(1)], &[])), "accept");
    assert_eq!(word_of(&judged_frames(&[turn_start(0), todo(5)], &[])), "refuse seq-gap");
    let torn = judged_frames(&[turn_start(0)], &[turn_end(1)]);
    assert_eq!((word_of(&torn).as_str(), torn.closers.len()), ("repair torn-frame", 0));
    let places = |torn: &Judgement| torn.repair.as_ref().map(|r| (r.frame_offset, r.offset, r.bytes_cut));
    assert_eq!(places(&torn), Some((Some(99), None, 0)), "all that it yields is kept");
    let torn = judged_frames(&[turn_start(0)], &[todo(1), todo(5)]);
    assert_eq!((word_of(&torn).as_str(), torn.events()), ("repair torn-frame", Some(3)));
    assert_eq!(torn.repair.as_ref().expect("a repair").cut_total, 1);
    assert_eq!(places(&torn), Some((Some(99), Some(400), todo(5).len() as u64 + 1)));
    let torn = judged_frames(&[turn_start(0)], &[String::new()]);
    assert_eq!(places(&torn), Some((Some(99), None, 55)), "it yields nothing");
    assert_eq!(word_of(&judged_frames(&[turn_start(0)], &[todo(5), turn_end(6)])), "refuse seq-gap");
}

fn conversation() -> Vec<u8> {
    let user =
        r#"{"id":"u","role":"user","content":[{"type":"text","text":"é \ud83c"}],"source":{"kind":"user"}}"#;
    let call = r#"{"turn":1,"step":1,"message":{"id":"a","role":"assistant","content":[{"type":"tool-call","id":"c","name":"n","arguments":"{}"}],"source":{"kind":"model","provider":"p","model":"m"}}}"#;
    let surface = |line: String| line.replace("\"time\"", "\"surfaceOp\":\"append\",\"time\"");
    let records = [
        turn_start(0),
        surface(event(1, "user/message", user)),
        event(2, "step/start", r#"{"turn":1,"step":1}"#),
        surface(event(3, "assistant/message", call)),
        event(4, "tool/call", r#"{"turn":1,"step":1,"callId":"c"}"#),
        event(5, "step/end", r#"{"turn":1,"step":1}"#),
        turn_end(6),
    ];
    log(&records)
}

#[test]
fn a_log_cut_at_any_byte_keeps_its_whole_records() {
    let text = conversation();
    for cut in HEADER.len() + 1..=text.len() {
        let judgement = judged(&text[..cut]);
        assert_ne!(judgement.verdict(), Verdict::Refuse, "cut at {cut}: {:?}", judgement.refusal);
        let whole = text[..cut].iter().filter(|&&b| b == b'\n').count() - 1;
        let added = judgement.closers.len() as u64;
        assert_eq!(judgement.events(), Some(whole as u64 + added), "cut at {cut}");
        let torn = text[cut - 1] != b'\n';
        assert_eq!(judgement.repair.is_some_and(|r| r.kind == RepairKind::TornTail), torn, "cut at {cut}");
    }
}

#[test]
fn any_damaged_byte_gets_a_verdict() {
    let text = conversation();
    let mut random = 7_u64;
    for _ in 0..1_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = usize::try_from(random >> 33).unwrap_or(0) % text.len();
        let mut damaged = text.clone();
        damaged[at] = random.to_le_bytes()[3];
        let judgement = judged(&damaged);
        let refused = judgement.refusal.is_some_and(|r| r.line.is_some());
        assert!(refused || judgement.state.is_some(), "byte {at}");
    }
}

#[test]
fn a_refusal_names_the_events_that_are_lost_and_what_to_do() {
    let cut = "{\"type\":".to_owned();
    let cases = [
        (vec![turn_start(0), cut.clone(), turn_end(4)], "; the events of seq 1 to 3 are lost; "),
        (vec![turn_start(0), cut.clone(), turn_end(2)], "; the event of seq 1 is lost; "),
        (vec![turn_start(0), String::new(), todo(1), turn_end(2)], "; no event is lost by it; "),
    ];
    for (records, says) in cases {
        let refusal = judged(&log(&records)).refusal.expect("committed records follow");
        assert_eq!((refusal.line, refusal.seq), (Some(3), Some(Seq::new(1))));
        assert!(refusal.message.contains(says), "{}", refusal.message);
        assert!(refusal.message.ends_with("; mend it in a copy of the log"), "{}", refusal.message);
    }
    let strict = judged_frames(&[turn_start(0), cut, todo(3)], &[]).refusal.expect("no frame is torn");
    assert!(strict.message.contains("seq 1 to 2 are lost"), "{}", strict.message);
}

#[test]
fn repeated_keys_are_told_of_headers_and_rows_too() {
    let row = r#"{"type":"text-chunks","seq0":1,"time0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[0],"texts":["a","b"]}}"#;
    let text = String::from_utf8(log(&[turn_start(0), row.into(), turn_end(3)])).expect("text");
    let text = text.replacen("\"createdAt\":1", "\"createdAt\":0,\"createdAt\":1", 1);
    let text = text.replace("\"time0\":1", "\"time0\":10");
    let judgement = judged(text.as_bytes());
    assert_eq!(word_of(&judgement), "accept", "{:?}", judgement.refusal);
    let told: Vec<_> = judgement.warnings.listed().iter().map(|w| (w.kind, w.line, w.seq)).collect();
    let kind = WarningKind::DuplicateKey;
    assert_eq!(told, [(kind, Some(1), None), (kind, Some(3), Some(Seq::new(1)))]);
}
