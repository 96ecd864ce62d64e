//! Packs runs of `assistant/chunk` events into rows (spec section 13), the inverse of `import::packed`.
//!
//! An event joins a row only if its payload text is byte for byte what expanding the row gives back, so
//! packing never loses anything. Rows are bounded in members and bytes, as SQLite's are.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::event::Event;
use crate::ids::Seq;
use crate::import::packed::{CHUNK_TYPE, RowKind};
use crate::limits::SAFE_INTEGER_MAX;

/// Fewest members of a row; shorter runs stay single events.
const MEMBERS_MIN: usize = 3;
/// Most members of a row.
const MEMBERS_MAX: usize = 1024;
/// Most bytes of the tokens of a row.
const TOKEN_BYTES_MAX: usize = 512 << 10;

/// Turns events into lines, holding back the run that may become a row.
#[derive(Debug, Default)]
pub(super) struct Packer {
    run: Option<Run>,
}

/// Consecutive chunk events that differ in seq, time and token only.
#[derive(Debug)]
struct Run {
    /// Payload text of the first event.
    first_data: String,
    /// How much of it stands before the token.
    head_bytes: usize,
    first_seq: Seq,
    times: Vec<i64>,
    /// The tokens one after another, and where each ends.
    tokens: String,
    ends: Vec<usize>,
}

/// The parts of a payload in the spelling that expanding gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk<'a> {
    kind: RowKind,
    turn: &'a str,
    step: &'a str,
    index: &'a str,
    id: Option<&'a str>,
    name: Option<&'a str>,
    /// All before the token.
    head: &'a str,
    token: &'a str,
}

impl Packer {
    /// Takes the next event and appends the lines that are certain by now.
    pub(super) fn push(&mut self, event: &Event<'_>, out: &mut String) {
        let Some(chunk) = packable(event) else {
            self.flush(out);
            write_line(event, out);
            return;
        };
        if let Some(run) = &mut self.run
            && run.goes_on_with(event, &chunk)
        {
            run.add(event.time, chunk.token);
            return;
        }
        self.flush(out);
        let mut run = Run {
            first_data: event.data.clone().into_owned(),
            head_bytes: chunk.head.len(),
            first_seq: event.seq,
            times: Vec::new(),
            tokens: String::new(),
            ends: Vec::new(),
        };
        run.add(event.time, chunk.token);
        self.run = Some(run);
    }

    /// Appends what was held back.
    pub(super) fn flush(&mut self, out: &mut String) {
        let Some(run) = self.run.take() else { return };
        let Some(chunk) = Chunk::parse(&run.first_data) else { return };
        if run.times.len() < MEMBERS_MIN {
            run.write_events(&chunk, out);
        } else {
            run.write_row(&chunk, out);
        }
    }
}

impl Run {
    fn goes_on_with(&self, event: &Event<'_>, chunk: &Chunk<'_>) -> bool {
        let last_time = self.times.last().copied().unwrap_or_default();
        self.first_seq.get() + self.times.len() as u64 == event.seq.get()
            && self.first_data[..self.head_bytes] == *chunk.head
            && safe(event.time - last_time)
            && self.times.len() < MEMBERS_MAX
            && self.tokens.len() + chunk.token.len() <= TOKEN_BYTES_MAX
    }

    fn add(&mut self, time: i64, token: &str) {
        self.times.push(time);
        self.tokens.push_str(token);
        self.ends.push(self.tokens.len());
    }

    fn tokens(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.tokens[start..end])
    }

    fn write_events(&self, chunk: &Chunk<'_>, out: &mut String) {
        let mut seq = self.first_seq;
        for (token, &time) in self.tokens().zip(&self.times) {
            let event = Event {
                type_name: Cow::Borrowed(CHUNK_TYPE),
                seq,
                time,
                data: Cow::Owned(format!("{}{token}}}}}", chunk.head)),
                surface_op: None,
                sources: None,
                ignorable: false,
            };
            write_line(&event, out);
            seq = seq.next();
        }
    }

    /// Format: the keys in the order in which the reference writes them.
    fn write_row(&self, chunk: &Chunk<'_>, out: &mut String) {
        let Chunk { kind, turn, step, index, id, name, .. } = *chunk;
        let first_time = self.times.first().copied().unwrap_or_default();
        write_all(
            out,
            format_args!(r#"{{"type":"{}","seq0":{},"time0":{first_time},"#, kind.tag(), self.first_seq),
        );
        write_all(out, format_args!(r#""data":{{"turn":{turn},"step":{step},"index":{index},"dt":["#));
        for (i, pair) in self.times.windows(2).enumerate() {
            write_all(out, format_args!("{}{}", if i > 0 { "," } else { "" }, pair[1] - pair[0]));
        }
        out.push(']');
        for (key, value) in [("id", id), ("name", name)] {
            if let Some(value) = value {
                write_all(out, format_args!(r#","{key}":{value}"#));
            }
        }
        write_all(out, format_args!(r#","{}":["#, kind.tokens_key()));
        for (i, token) in self.tokens().enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            out.push_str(token);
        }
        out.push_str("]}}\n");
    }
}

impl<'a> Chunk<'a> {
    /// Takes apart a payload that is spelled exactly as an expanded one; any other gives `None`.
    fn parse(data: &'a str) -> Option<Self> {
        let (turn, rest) = number(data.strip_prefix(r#"{"turn":"#)?)?;
        let (step, rest) = number(rest.strip_prefix(r#","step":"#)?)?;
        let rest = rest.strip_prefix(r#","chunk":{"type":""#)?;
        let (kind, rest) =
            RowKind::ALL.into_iter().find_map(|k| Some((k, rest.strip_prefix(k.chunk_type())?)))?;
        let (index, mut rest) = number(rest.strip_prefix(r#"","index":"#)?)?;
        let (mut id, mut name) = (None, None);
        if kind == RowKind::ToolCall {
            let (literal, after) = string(rest.strip_prefix(r#","id":"#)?)?;
            (id, rest) = (Some(literal), after);
            if let Some(after) = rest.strip_prefix(r#","name":"#) {
                let (literal, after) = string(after)?;
                (name, rest) = (Some(literal), after);
            }
        }
        let rest = rest.strip_prefix(r#",""#)?.strip_prefix(kind.token_key())?.strip_prefix(r#"":"#)?;
        let (token, end) = string(rest)?;
        let head = &data[..data.len() - rest.len()];
        (end == "}}").then_some(Self { kind, turn, step, index, id, name, head, token })
    }
}

/// The event's parts, if it may stand in a row.
fn packable<'a>(event: &'a Event<'_>) -> Option<Chunk<'a>> {
    let plain = event.surface_op.is_none() && event.sources.is_none() && !event.ignorable;
    let in_range = safe(event.time) && i64::try_from(event.seq.get()).is_ok_and(safe);
    (event.type_name == CHUNK_TYPE && plain && in_range).then(|| Chunk::parse(&event.data)).flatten()
}

fn safe(integer: i64) -> bool {
    integer.unsigned_abs() <= SAFE_INTEGER_MAX.unsigned_abs()
}

/// The number that `text`, the rest of a valid JSON object, begins with, and what follows.
fn number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'))?;
    (text.starts_with(|c: char| c == '-' || c.is_ascii_digit())).then(|| text.split_at(end))
}

/// The string literal that `text` begins with, and what follows.
fn string(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut at = usize::from(bytes.first() == Some(&b'"'));
    if at == 0 {
        return None;
    }
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return text.split_at_checked(at + 1);
        }
        at += 2;
    }
}

/// Appends an event as a line of its own.
pub(super) fn write_line(event: &Event<'_>, out: &mut String) {
    event.write_json(out);
    out.push('\n');
}

/// Formatting into a string cannot fail.
fn write_all(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _infallible = out.write_fmt(arguments);
}
