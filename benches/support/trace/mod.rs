//! Sessions as agent hosts write them, event by event, from a seed alone.
//!
//! About two thirds of the events are stream chunks; most bytes are request headers and tool results. Turns, steps, calls
//! and compactions keep the invariants of spec section 7, and every session is accepted by all doors.

pub(crate) mod header;
pub(crate) mod random;
mod words;

use std::collections::VecDeque;
use std::fmt::Write as _;

use sessionlog::event::SurfaceOp;
use sessionlog::{Draft, Seq};

use header::Header;
use random::Random;
use words::{prose, tool_output, word};

/// Creation time of every session, in milliseconds since the Unix epoch.
pub(crate) const CREATED_AT_MS: i64 = 1_780_000_000_000;

/// What a session is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// About the size of a request header, in bytes. Each turn logs one.
    pub(crate) header_bytes: usize,
    /// Largest tool result, in bytes.
    pub(crate) result_bytes_max: usize,
    /// Turns between two compactions; 0: there are none.
    pub(crate) turns_per_compaction: u64,
}

impl Shape {
    /// A coding agent with some fifty tools: 55 % of the bytes are headers.
    pub(crate) const CODING: Self =
        Self { header_bytes: 64 << 10, result_bytes_max: 19 << 10, turns_per_compaction: 8 };
}

/// An event to be.
#[derive(Debug, Clone)]
pub(crate) struct TraceEvent {
    /// Its type.
    pub(crate) type_name: &'static str,
    /// Its payload as JSON.
    pub(crate) data: String,
    /// Its surface op.
    pub(crate) surface_op: Option<SurfaceOp>,
    /// Its `sourceEventSeqs`, if any.
    pub(crate) sources: Vec<Seq>,
    /// Milliseconds since the Unix epoch.
    pub(crate) time_ms: i64,
}

impl TraceEvent {
    /// The event for [`Session::append`](sessionlog::Session::append).
    pub(crate) fn draft(&self) -> Draft<'_> {
        let draft = Draft::new(self.type_name, self.data.as_str()).at_time(self.time_ms);
        let draft = if self.sources.is_empty() { draft } else { draft.with_sources(&self.sources[..]) };
        match self.surface_op {
            None => draft,
            Some(SurfaceOp::Append) => draft.on_surface(),
            Some(SurfaceOp::Replace { start, end }) => draft.replacing(start, end),
        }
    }

    /// The event as a line of JSONL.
    pub(crate) fn write_line(&self, seq: u64, out: &mut String) {
        let Self { type_name, data, time_ms, .. } = self;
        // Writing to a string cannot fail.
        let _ = write!(out, r#"{{"type":"{type_name}","seq":{seq},"time":{time_ms},"data":{data}"#);
        if !self.sources.is_empty() {
            let _ = write!(out, r#","sourceEventSeqs":{}"#, list(&self.sources));
        }
        if let Some(op) = self.surface_op {
            out.push_str(r#","surfaceOp":"#);
            op.write_json(out);
        }
        out.push_str("}\n");
    }
}

/// The header line of a session.
pub(crate) fn header_line(id: &str) -> String {
    let time = CREATED_AT_MS;
    format!(r#"{{"type":"session","version":0,"id":"{id}","createdAt":{time},"delegationDepth":0}}"#) + "\n"
}

/// A whole session as JSONL text.
pub(crate) fn jsonl(id: &str, events: &[TraceEvent]) -> String {
    let mut text = header_line(id);
    for (seq, event) in (0..).zip(events) {
        event.write_line(seq, &mut text);
    }
    text
}

/// The endless events of one session.
#[derive(Debug)]
pub(crate) struct Trace {
    shape: Shape,
    random: Random,
    header: Header,
    ready: VecDeque<TraceEvent>,
    /// Number of events made so far.
    made: u64,
    time_ms: i64,
    turn: u64,
    surface: Vec<Seq>,
    /// The next header starts a message series (spec section 6.2).
    starts_series: bool,
}

impl Trace {
    /// The session of a seed.
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let header = Header::new(&mut random, shape.header_bytes);
        Self {
            shape,
            random,
            header,
            ready: VecDeque::new(),
            made: 0,
            time_ms: CREATED_AT_MS,
            turn: 0,
            surface: Vec::new(),
            starts_series: false,
        }
    }

    fn turn(&mut self) {
        self.turn += 1;
        let turn = self.turn;
        self.log("turn/start", format!(r#"{{"turn":{turn}}}"#));
        let steps = 2 + self.random.below(3);
        for step in 1..=steps {
            self.step(step, step == steps);
        }
        self.log("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#));
        if self.shape.turns_per_compaction > 0 && turn.is_multiple_of(self.shape.turns_per_compaction) {
            self.compact();
        }
    }

    fn step(&mut self, step: usize, last: bool) {
        let turn = self.turn;
        self.log("step/start", format!(r#"{{"turn":{turn},"step":{step}}}"#));
        if step == 1 {
            let text = self.prose(60, 400);
            let message = self.user_message(&text, r#"{"kind":"user"}"#);
            self.show("user/message", message, Vec::new());
            self.request_header();
        }
        let first = self.made;
        let text = self.text_chunks(step);
        let call = (!last).then(|| self.call_chunks(step));
        self.chunk(step, r#"{"type":"usage","usage":{"inputTokens":31207,"outputTokens":412}}"#);
        self.chunk(step, r#"{"type":"finish","reason":{"kind":"stop"}}"#);
        let sources = (first..self.made).map(Seq::new).collect();
        self.assistant_message(step, &text, call.as_ref(), sources);
        if let Some(call) = &call {
            self.tool(step, call);
        }
        self.log("step/end", format!(r#"{{"turn":{turn},"step":{step}}}"#));
    }

    fn request_header(&mut self) {
        let reason = if self.turn == 1 { "initial" } else { "change" };
        if self.turn > 1 {
            self.header.edit(&mut self.random);
        }
        let mut data = String::from(r#"{"header":"#);
        self.header.write_json(&mut data);
        let series = if std::mem::take(&mut self.starts_series) { r#","startsSeries":true"# } else { "" };
        let _ = write!(data, r#","reason":"{reason}"{series}}}"#);
        self.log("request/header", data);
    }

    /// The chunks of a text block; the text.
    fn text_chunks(&mut self, step: usize) -> String {
        self.chunk(step, r#"{"type":"block-start","index":0,"blockType":"text"}"#);
        let mut text = String::new();
        for _ in 0..4 + self.random.below(4) {
            let from = text.len();
            text.push(' ');
            prose(&mut self.random, 8, &mut text);
            let delta = format!(r#"{{"type":"text-delta","index":0,"text":"{}"}}"#, &text[from..]);
            self.chunk(step, &delta);
        }
        self.chunk(step, r#"{"type":"block-end","index":0,"block":{"type":"text"}}"#);
        text
    }

    /// The chunks of a tool call.
    fn call_chunks(&mut self, step: usize) -> Call {
        let name = ["bash", "read", "grep", "edit"][self.random.below(4)];
        let call = Call {
            id: format!("call_{:016x}", self.random.next()),
            name,
            arguments: format!(r#"{{\"path\":\"src/{}.rs\"}}"#, word(&mut self.random)),
        };
        self.chunk(step, r#"{"type":"block-start","index":1,"blockType":"tool-call"}"#);
        for (name, part) in [(name, ""), ("", call.arguments.as_str())] {
            let id = &call.id;
            let delta = format!(
                r#"{{"type":"tool-call-delta","index":1,"id":"{id}","name":"{name}","argumentsDelta":"{part}"}}"#
            );
            self.chunk(step, &delta);
        }
        self.chunk(step, r#"{"type":"block-end","index":1,"block":{"type":"tool-call"}}"#);
        call
    }

    fn assistant_message(&mut self, step: usize, text: &str, call: Option<&Call>, sources: Vec<Seq>) {
        let (turn, id) = (self.turn, self.id());
        let call = call.map_or_else(String::new, |Call { id, name, arguments }| {
            format!(r#",{{"type":"tool-call","id":"{id}","name":"{name}","arguments":"{arguments}"}}"#)
        });
        let data = format!(
            r#"{{"turn":{turn},"step":{step},"message":{{"id":"{id}","role":"assistant","content":[{{"type":"text","text":"{text}"}}{call}],"source":{{"kind":"model","provider":"acme","model":"acme-large"}}}},"usage":{{"inputTokens":31207,"outputTokens":412}}}}"#
        );
        self.show("assistant/message", data, sources);
    }

    fn tool(&mut self, step: usize, call: &Call) {
        let (turn, Call { id: call_id, name, arguments }) = (self.turn, call);
        let called = Seq::new(self.made);
        let data = format!(
            r#"{{"turn":{turn},"step":{step},"callId":"{call_id}","name":"{name}","arguments":"{arguments}"}}"#
        );
        self.log("tool/call", data);
        let mut output = String::new();
        let bytes = 100 + self.random.below(self.shape.result_bytes_max);
        tool_output(&mut self.random, bytes, &mut output);
        let id = self.id();
        let data = format!(
            r#"{{"turn":{turn},"step":{step},"message":{{"id":"{id}","role":"user","source":{{"kind":"tool","callId":"{call_id}"}},"content":[{{"type":"tool-result","toolCallId":"{call_id}","content":[{{"type":"text","text":"{output}"}}]}}]}}}}"#
        );
        self.show("tool/result", data, vec![called]);
    }

    /// Between two turns: everything but the last nodes becomes a summary (spec section 8.2).
    fn compact(&mut self) {
        let id = self.id();
        let shadowed = self.surface.clone();
        let (start, end) = (shadowed[0], shadowed[shadowed.len() - 1]);
        let begun = Seq::new(self.made);
        self.log("compaction/start", format!(r#"{{"compactionId":"{id}","turn":null}}"#));
        let text = self.prose(400, 800);
        let summary = Seq::new(self.made);
        let data = format!(
            r#"{{"compactionId":"{id}","summary":[{{"type":"text","text":"{text}"}}],"shadowedRange":{{"start":{start},"end":{end}}},"shadowedSeqs":{},"shadowedTokenCount":9000,"provider":"acme","model":"acme-large"}}"#,
            list(&shadowed)
        );
        self.log("compaction/summary", data);
        let source = format!(r#"{{"kind":"plugin","plugin":"compact","compactionId":"{id}"}}"#);
        let message = self.user_message(&text, &source);
        let sources = [begun, summary].into_iter().chain(shadowed).collect();
        self.surface = vec![Seq::new(self.made)];
        self.starts_series = true;
        self.push("user/message", message, Some(SurfaceOp::Replace { start, end }), sources);
        self.log("compaction/end", format!(r#"{{"compactionId":"{id}","turn":null}}"#));
    }

    fn user_message(&mut self, text: &str, source: &str) -> String {
        let id = self.id();
        format!(
            r#"{{"id":"{id}","role":"user","content":[{{"type":"text","text":"{text}"}}],"source":{source}}}"#
        )
    }

    fn chunk(&mut self, step: usize, chunk: &str) {
        let turn = self.turn;
        self.log("assistant/chunk", format!(r#"{{"turn":{turn},"step":{step},"chunk":{chunk}}}"#));
    }

    fn log(&mut self, type_name: &'static str, data: String) {
        self.push(type_name, data, None, Vec::new());
    }

    fn show(&mut self, type_name: &'static str, data: String, sources: Vec<Seq>) {
        self.surface.push(Seq::new(self.made));
        self.push(type_name, data, Some(SurfaceOp::Append), sources);
    }

    fn push(&mut self, type_name: &'static str, data: String, op: Option<SurfaceOp>, sources: Vec<Seq>) {
        self.made += 1;
        self.time_ms += i64::try_from(self.random.below(40)).unwrap_or(0);
        self.ready.push_back(TraceEvent { type_name, data, surface_op: op, sources, time_ms: self.time_ms });
    }

    fn id(&mut self) -> String {
        let (high, low) = (self.random.next(), self.random.next());
        let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
        format!("{a:08x}-{b:04x}-4{c:03x}-a{:03x}-{:012x}", low >> 52, low & 0xffff_ffff_ffff)
    }

    fn prose(&mut self, bytes_min: usize, spread: usize) -> String {
        let mut text = String::new();
        let bytes = bytes_min + self.random.below(spread);
        prose(&mut self.random, bytes, &mut text);
        text
    }
}

impl Iterator for Trace {
    type Item = TraceEvent;

    /// The next event; there is always one.
    fn next(&mut self) -> Option<TraceEvent> {
        if self.ready.is_empty() {
            self.turn();
        }
        self.ready.pop_front()
    }
}

/// A tool call; its arguments as they stand in a JSON string.
struct Call {
    id: String,
    name: &'static str,
    arguments: String,
}

fn list(seqs: &[Seq]) -> String {
    let numbers: Vec<String> = seqs.iter().map(Seq::to_string).collect();
    format!("[{}]", numbers.join(","))
}
