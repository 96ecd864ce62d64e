//! Packs runs of `assistant/chunk` events into rows (spec section 13), the inverse of `import::packed`, for every format.
//!
//! An event joins a row only if its payload text is byte for byte what expanding the row gives back, so
//! packing never loses anything. Rows are bounded in members and bytes, as SQLite's are.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::Result;
use crate::event::Event;
use crate::ids::Seq;
use crate::import::packed::{CHUNK_TYPE, ROW_DATA_BYTES_MAX, ROW_MEMBERS_MAX, ROW_MEMBERS_MIN, RowKind};
use crate::limits::SAFE_INTEGER_MAX;

/// What a log is written of.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    Event(&'a Event<'a>),
    /// A row that stands for a run of events.
    Row {
        kind: RowKind,
        seq: Seq,
        time: i64,
        data: &'a str,
    },
}

/// Takes the pieces in order.
pub(super) type Sink<'s> = dyn FnMut(Piece<'_>) -> Result<()> + 's;

/// Turns events into pieces, holding back the run that may become a row.
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
    /// Bytes of the time differences.
    step_bytes: usize,
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
    /// Takes the next event and hands out the pieces that are certain by now.
    pub(super) fn push(&mut self, event: &Event<'_>, out: &mut Sink<'_>) -> Result<()> {
        let Some(chunk) = packable(event) else {
            self.flush(out)?;
            return out(Piece::Event(event));
        };
        while let Some(run) = &mut self.run
            && run.goes_on_with(event, &chunk)
        {
            if run.has_room_for(&chunk, event.time, chunk.token) {
                run.add(event.time, chunk.token);
                return Ok(());
            }
            // A run too short for a row gives up its first event, and what is left may still become one.
            if run.times.len() >= ROW_MEMBERS_MIN || run.times.len() == 1 {
                break;
            }
            run.write_first(out)?;
        }
        self.flush(out)?;
        let mut run = Run {
            first_data: event.data.clone().into_owned(),
            head_bytes: chunk.head.len(),
            first_seq: event.seq,
            times: Vec::new(),
            tokens: String::new(),
            ends: Vec::new(),
            step_bytes: 0,
        };
        run.add(event.time, chunk.token);
        self.run = Some(run);
        Ok(())
    }

    /// Hands out what was held back.
    pub(super) fn flush(&mut self, out: &mut Sink<'_>) -> Result<()> {
        let Some(mut run) = self.run.take() else { return Ok(()) };
        if run.times.len() >= ROW_MEMBERS_MIN
            && let Some(chunk) = Chunk::parse(&run.first_data)
        {
            let time = run.times.first().copied().unwrap_or_default();
            let data = run.row_data(&chunk);
            return out(Piece::Row { kind: chunk.kind, seq: run.first_seq, time, data: &data });
        }
        while !run.times.is_empty() {
            run.write_first(out)?;
        }
        Ok(())
    }
}

impl Run {
    fn goes_on_with(&self, event: &Event<'_>, chunk: &Chunk<'_>) -> bool {
        let last_time = self.times.last().copied().unwrap_or_default();
        self.first_seq.get() + self.times.len() as u64 == event.seq.get()
            && self.first_data[..self.head_bytes] == *chunk.head
            && safe(event.time - last_time)
            && self.times.len() < ROW_MEMBERS_MAX
    }

    /// Whether the row is short enough with this member.
    fn has_room_for(&self, chunk: &Chunk<'_>, time: i64, token: &str) -> bool {
        let Chunk { kind, turn, step, index, id, name, .. } = *chunk;
        let keys = r#"{"turn":,"step":,"index":,"dt":[],"":[]}"#.len() + kind.tokens_key().len();
        let member = |key: &str, value: Option<&str>| value.map_or(0, |value| key.len() + value.len());
        let once = keys
            + turn.len()
            + step.len()
            + index.len()
            + member(r#","id":"#, id)
            + member(r#","name":"#, name);
        // With the new member there is a comma between all members, and one less between the times.
        let (steps, tokens) = (self.step_bytes + self.step_to(time).len(), self.tokens.len() + token.len());
        let commas = (2 * self.times.len()).saturating_sub(1);
        once + steps + tokens + commas <= ROW_DATA_BYTES_MAX
    }

    /// The difference of a time to that of the last member, as text.
    fn step_to(&self, time: i64) -> String {
        self.times.last().map_or(String::new(), |last| (time - last).to_string())
    }

    fn add(&mut self, time: i64, token: &str) {
        self.step_bytes += self.step_to(time).len();
        self.times.push(time);
        self.tokens.push_str(token);
        self.ends.push(self.tokens.len());
    }

    fn tokens(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.tokens[start..end])
    }

    /// Hands out the first member as the event that it was, and drops it.
    fn write_first(&mut self, out: &mut Sink<'_>) -> Result<()> {
        let (end, time) = (self.ends.remove(0), self.times.remove(0));
        let data = format!("{}{}}}}}", &self.first_data[..self.head_bytes], &self.tokens[..end]);
        let event = Event {
            type_name: Cow::Borrowed(CHUNK_TYPE),
            seq: self.first_seq,
            time,
            data: Cow::Owned(data),
            surface_op: None,
            sources: None,
            ignorable: false,
        };
        self.first_seq = self.first_seq.next();
        self.tokens.drain(..end);
        self.ends.iter_mut().for_each(|later| *later -= end);
        if let Some(second) = self.times.first() {
            self.step_bytes -= (second - time).to_string().len();
        }
        out(Piece::Event(&event))
    }

    /// Format: the keys in the order in which the reference writes them.
    fn row_data(&self, chunk: &Chunk<'_>) -> String {
        let Chunk { kind, turn, step, index, id, name, .. } = *chunk;
        let mut out = String::with_capacity(self.tokens.len() + self.head_bytes + 8 * self.times.len());
        write_all(&mut out, format_args!(r#"{{"turn":{turn},"step":{step},"index":{index},"dt":["#));
        for (i, pair) in self.times.windows(2).enumerate() {
            write_all(&mut out, format_args!("{}{}", if i > 0 { "," } else { "" }, pair[1] - pair[0]));
        }
        out.push(']');
        for (key, value) in [("id", id), ("name", name)] {
            if let Some(value) = value {
                write_all(&mut out, format_args!(r#","{key}":{value}"#));
            }
        }
        write_all(&mut out, format_args!(r#","{}":["#, kind.tokens_key()));
        for (i, token) in self.tokens().enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            out.push_str(token);
        }
        out.push_str("]}");
        out
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

impl Piece<'_> {
    /// Appends it as a line of JSONL.
    pub(super) fn write_line(&self, out: &mut String) {
        match self {
            Self::Event(event) => event.write_json(out),
            Self::Row { kind, seq, time, data } => {
                write_all(
                    out,
                    format_args!(r#"{{"type":"{}","seq0":{seq},"time0":{time},"data":{data}}}"#, kind.tag()),
                );
            }
        }
        out.push('\n');
    }
}

/// Formatting into a string cannot fail.
fn write_all(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _infallible = out.write_fmt(arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that runs of text chunks become: members of a row, or 1 for an event.
    fn packed(tokens: &[usize]) -> Vec<usize> {
        let mut pieces = Vec::new();
        let mut packer = Packer::default();
        let mut take = |piece: Piece<'_>| {
            pieces.push(match piece {
                Piece::Event(event) => {
                    assert!(Chunk::parse(&event.data).is_some());
                    1
                }
                Piece::Row { data, .. } => {
                    assert!(data.len() <= ROW_DATA_BYTES_MAX);
                    data.matches("\"x").count()
                }
            });
            Ok(())
        };
        for (seq, &bytes) in (0_u64..).zip(tokens) {
            let token = "x".repeat(bytes);
            let data = format!(
                r#"{{"turn":1,"step":1,"chunk":{{"type":"text-delta","index":0,"text":"{token}"}}}}"#
            );
            let event = Event {
                type_name: Cow::Borrowed(CHUNK_TYPE),
                seq: Seq::new(seq),
                time: 1_000,
                data: Cow::Owned(data),
                surface_op: None,
                sources: None,
                ignorable: false,
            };
            packer.push(&event, &mut take).unwrap();
        }
        packer.flush(&mut take).unwrap();
        pieces
    }

    #[test]
    fn rows_are_as_long_as_they_may_be() {
        assert_eq!(packed(&[1, 1]), [1, 1]);
        assert_eq!(packed(&[1; 3]), [3]);
        assert_eq!(packed(&[1; 1024]), [1024]);
        assert_eq!(packed(&[1; 1026]), [1024, 1, 1]);
        assert_eq!(packed(&[1; 1027]), [1024, 3]);
        // Of 300 KiB each three fit.
        assert_eq!(packed(&[300 << 10; 7]), [3, 3, 1]);
    }

    #[test]
    fn a_run_that_is_too_long_for_a_row_gives_up_its_first() {
        let large = 600 << 10;
        assert_eq!(packed(&[large; 4]), [1; 4]);
        assert_eq!(packed(&[large, large, 1, 1]), [1, 3]);
        assert_eq!(packed(&[large, 1, large, 1, 1]), [1, 4]);
        assert_eq!(packed(&[2 << 20, 1, 1, 1]), [1, 3]);
    }

    #[test]
    fn no_row_is_longer_than_the_bound_and_none_shorter_than_it_may_be() {
        let around = r#"{"turn":1,"step":1,"index":0,"dt":[0,0],"texts":["","",""]}"#.len();
        let room = ROW_DATA_BYTES_MAX - around;
        assert_eq!(packed(&[room - 2, 1, 1]), [3]);
        assert_eq!(packed(&[room - 1, 1, 1]), [1, 1, 1]);
    }
}
