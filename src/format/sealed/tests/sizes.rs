//! What sealing saves. Each test prints its figures (`--nocapture`) and holds them to a bound.

use super::*;
use crate::format::compress::{FrameEncoder, LEVEL_DEFAULT};
use crate::format::sealed::rows::PIECE_ROW_BYTES;

/// A seeded source of text that compresses about as prose does.
struct Prose {
    state: u64,
    words: Vec<String>,
}

impl Prose {
    fn new(seed: u64) -> Self {
        let mut prose = Self { state: seed, words: Vec::new() };
        for _ in 0..3_000 {
            let letters = 2 + prose.below(9);
            let word = (0..letters).map(|_| char::from(b'a' + u8::try_from(prose.below(26)).unwrap()));
            let word = word.collect();
            prose.words.push(word);
        }
        prose
    }

    fn below(&mut self, end: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.state >> 33).unwrap() % end
    }

    /// Words, the first ones more often.
    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            let rank = self.below(3_000) * self.below(3_000) / 3_000;
            text.push_str(&self.words[rank]);
            text.push(' ');
        }
        text.truncate(bytes);
        text
    }

    fn base64(&mut self, bytes: usize) -> String {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        (0..bytes).map(|_| char::from(digits[self.below(64)])).collect()
    }

    /// A header of `bytes`, its tools behind the part of the system prompt that changes.
    fn header(&mut self, bytes: usize) -> [String; 2] {
        let system = self.text(bytes / 4);
        let mut tools = String::new();
        while tools.len() < bytes * 3 / 4 {
            let (name, text) = (self.below(1_000), self.text(600));
            tools.push_str(&format!("{{\"name\":\"tool_{name}\",\"description\":\"{text}\"}},"));
        }
        [system, tools]
    }
}

fn header_data(parts: &[String; 2], note: &str) -> String {
    format!(
        "{{\"header\":{{\"system\":\"{}{note}\",\"tools\":[{}]}},\"reason\":\"change\"}}",
        parts[0], parts[1]
    )
}

/// Bytes that events with this data take in a file, beyond what an empty session takes, and those of its keyframes.
fn stored_bytes_of(data: Vec<String>) -> (u64, u64) {
    let session = |events| [Session { key: 1, first: 0, events }];
    let (empty, _) = build(&session(Vec::new()));
    let (full, stats) = build(&session(data.into_iter().map(|data| event(HEADER_TYPE, data)).collect()));
    let file = Sealed::open(&full[..]).unwrap();
    let alone: u64 = (1..stats.piece_count)
        .map(|id| pieces::PieceSource::row(&file, id).unwrap())
        .filter(|row| row.base.is_none())
        .map(|row| u64::from(row.stored_bytes) + PIECE_ROW_BYTES as u64)
        .sum();
    (stats.file_bytes - empty.len() as u64 - alone, alone)
}

#[test]
fn a_changed_header_costs_what_changed() {
    let mut prose = Prose::new(1);
    for (bytes, bound) in [(2_000, 182), (25_000, 182), (65_000, 182), (200_000, 350), (1_000_000, 500)] {
        let mut parts = prose.header(bytes);
        let versions: u64 = if bytes < 1_000_000 { 100 } else { 40 };
        let mut data = Vec::new();
        for version in 0..versions {
            // A line of memory or another word in some tool now and then, and the day each time.
            if prose.below(10) < 4 {
                let line = prose.text(60);
                parts[0].push_str(&format!("\\n- {line}"));
            }
            if prose.below(10) < 2 {
                let at = prose.below(bytes / 2);
                parts[1].replace_range(at..at + 1, "q");
            }
            data.push(header_data(&parts, &format!("\\nToday is day {version}.")));
        }
        let (changes, keyframes) = stored_bytes_of(data);
        let mean = changes / versions;
        println!("header of {bytes} bytes: {mean} bytes a change, {keyframes} bytes of keyframes");
        assert!(mean <= bound, "{bytes}: {mean}");
    }
}

#[test]
fn an_equal_header_costs_next_to_nothing() {
    let header = header_data(&Prose::new(2).header(65_000), "");
    let (once, _) = stored_bytes_of(vec![header.clone()]);
    let (often, _) = stored_bytes_of(vec![header; 101]);
    let mean = (often - once) / 100;
    println!("equal header: {mean} bytes");
    assert!(mean <= 64);
}

#[test]
fn sessions_share_equal_and_similar_headers() {
    let parts = Prose::new(3).header(65_000);
    let session = |key: u64, note: &str| Session {
        key,
        first: 0,
        events: vec![event(HEADER_TYPE, header_data(&parts, note))],
    };
    let (_, one) = build(&[session(1, "")]);
    let (_, three) = build(&[session(1, ""), session(2, ""), session(3, "\\nother")]);
    assert_eq!(three.piece_count, one.piece_count + 1);
    assert!(three.piece_bytes < one.piece_bytes + 300);
}

#[test]
fn repeated_payloads_are_stored_once() {
    let mut prose = Prose::new(4);
    let payloads: Vec<String> = (0..4).map(|_| prose.base64(341_000)).collect();
    let mut events = Vec::new();
    for round in 0..12 {
        for payload in &payloads {
            let text = prose.text(900);
            events.push(event(1, format!("{{\"text\":\"{text}\",\"image\":\"{payload}\",\"n\":{round}}}")));
        }
    }
    let logical: usize = events.iter().map(|event| event.data.len()).sum();
    let sessions = [Session { key: 1, first: 0, events }];
    let (bytes, _) = build(&sessions);
    println!("{logical} bytes with repeated payloads: {} sealed", bytes.len());
    assert!(bytes.len() <= 1_400_000);
    let file = Sealed::open(bytes).unwrap();
    let row = file.find(SessionKey::new(1)).unwrap().unwrap();
    let (read, lost) = read(&file, &row);
    assert!(lost.is_empty());
    assert!(read.iter().map(|(_, event)| event).eq(&sessions[0].events));
}

#[test]
fn a_busy_session_is_a_fraction_of_its_batches() {
    let mut prose = Prose::new(5);
    let sessions: Vec<Session> = (1..=8).map(|key| busy_session(&mut prose, key)).collect();
    let without: Vec<Session> = sessions.iter().cloned().map(without_headers).collect();
    let batches: usize = sessions.iter().map(batched_bytes).sum();
    let (full, bare) = (build(&sessions).0.len(), build(&without).0.len());
    println!("batches {batches}, sealed {full}, sealed without headers {bare}");
    assert!(full * 4 <= batches, "{full} of {batches}");
    assert!(full * 10 <= bare * 11, "{full} beside {bare}");
}

/// Turns of a chunked answer and a tool result; a header of 60 KB once a turn.
fn busy_session(prose: &mut Prose, key: u64) -> Session {
    let mut shared = Prose::new(6);
    let mut parts = shared.header(60_000);
    let mut events: Vec<Event> = Vec::new();
    for turn in 0..30 {
        if turn % 3 == 0 {
            let line = prose.text(60);
            parts[0].push_str(&format!("\\n- {line}"));
        }
        events.push(event(HEADER_TYPE, header_data(&parts, &format!("\\nToday is day {turn}."))));
        let first = events.len();
        let answer = prose.text(300);
        for piece in answer.as_bytes().chunks(6) {
            let text = std::str::from_utf8(piece).unwrap();
            events.push(event(
                2,
                format!(
                    "{{\"turn\":{turn},\"step\":1,\"chunk\":{{\"type\":\"text-delta\",\"text\":\"{text}\"}}}}"
                ),
            ));
        }
        let sources = (first..events.len()).map(|seq| Seq::new(seq as u64)).collect();
        let mut message = event(3, format!("{{\"turn\":{turn},\"text\":\"{answer}\"}}"));
        (message.sources, message.op) = (Some(sources), SurfaceOp::Append);
        events.push(message);
        let bytes = 300 + prose.below(11_000);
        events.push(event(4, format!("{{\"turn\":{turn},\"result\":\"{}\"}}", prose.text(bytes))));
    }
    for (event, time_ms) in events.iter_mut().zip(1_790_000_000_000..) {
        event.time_ms = time_ms;
    }
    Session { key, first: 0, events }
}

fn without_headers(mut session: Session) -> Session {
    session.events.retain(|event| event.code != HEADER_TYPE);
    session.events.iter_mut().for_each(|event| event.sources = None);
    session
}

/// What the events take as JSON lines, sixteen to a zstd frame.
fn batched_bytes(session: &Session) -> usize {
    let mut encoder = FrameEncoder::new(LEVEL_DEFAULT, true).unwrap();
    let (mut total, mut frame) = (0, Vec::new());
    for batch in session.events.chunks(16) {
        let mut text = String::new();
        for event in batch {
            let Event { code, time_ms, data, .. } = event;
            text.push_str(&format!("{{\"type\":\"type/{code}\",\"time\":{time_ms},\"data\":{data}}}\n"));
        }
        encoder.encode(text.as_bytes(), &mut frame).unwrap();
        total += frame.len();
    }
    total
}
