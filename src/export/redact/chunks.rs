//! Holds back the events of a step while its text is streamed, so that the text is searched as a whole.
//!
//! Events keep their order. What a step may hold is bounded: beyond it the export fails rather than let a secret out in two
//! halves.

use std::collections::HashMap;
use std::ops::Range;

use super::edit::{Edit, Part};
use super::view;
use crate::event::Event;
use crate::event::json::Value;
use crate::import::packed::{CHUNK_TYPE, RowKind};
use crate::limits::REDACTION_HELD_BYTES_MAX;
use crate::{Error, ErrorKind, Result};

/// What an event that is held back takes beside its data, in bytes.
const EVENT_BYTES: usize = 256;

/// The events held back, and the texts that their chunks spell.
#[derive(Default)]
pub(super) struct Chunks {
    held: Vec<Held>,
    bytes: usize,
    texts: Vec<String>,
    /// Texts that may still go on, by step.
    open: HashMap<Step, HashMap<(RowKind, String), usize>>,
}

/// Turn and step, as far as they are numbers.
type Step = (Option<i64>, Option<i64>);

struct Held {
    event: Event<'static>,
    piece: Option<Piece>,
}

/// What a chunk adds to a text.
struct Piece {
    text: usize,
    /// Its place in the text.
    range: Range<usize>,
    /// Where its literal begins in the event's data.
    literal_at: usize,
}

/// An event's part in a streamed text.
enum Role<'a> {
    /// It adds a token to the text of this kind and block.
    Token(RowKind, Value<'a>, Value<'a>),
    /// A block begins: the texts of the block before it are whole.
    Block(Value<'a>),
    /// All texts of the step are whole.
    EndOfStep,
    /// All texts are whole.
    EndOfTurn,
    /// None.
    Bystander,
}

impl Chunks {
    /// Whether an event has to wait, or opens what others wait for.
    pub(super) fn must_hold(&self, event: &Event<'_>) -> bool {
        !self.held.is_empty() || matches!(role(event).1, Role::Token(..))
    }

    /// Whether no text may go on.
    pub(super) fn is_complete(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn hold(&mut self, event: Event<'_>) -> Result<()> {
        let sources_bytes = event.sources.as_deref().map_or(0, size_of_val::<[_]>);
        self.bytes = self.bytes.saturating_add(event.data.len() + sources_bytes + EVENT_BYTES);
        if self.bytes > REDACTION_HELD_BYTES_MAX {
            let message = format!(
                "redact: the streamed text of one step takes more than {REDACTION_HELD_BYTES_MAX} bytes to be searched as a whole"
            );
            return Err(Error::new(ErrorKind::Limit, message).with_seq(event.seq));
        }
        let piece = self.take_in(&event);
        self.held.push(Held { event: event.into_owned(), piece });
        Ok(())
    }

    fn take_in(&mut self, event: &Event<'_>) -> Option<Piece> {
        let (step, role) = role(event);
        match role {
            Role::Token(kind, index, token) => {
                let (texts, by_block) = (&mut self.texts, self.open.entry(step).or_default());
                let text = *by_block.entry((kind, index.raw().to_owned())).or_insert_with(|| {
                    texts.push(String::new());
                    texts.len() - 1
                });
                let whole = texts.get_mut(text)?;
                let start = whole.len();
                whole.push_str(view::of_literal(token.raw()).text());
                let literal_at = token.raw().as_ptr().addr() - event.data.as_ptr().addr();
                return Some(Piece { text, range: start..whole.len(), literal_at });
            }
            Role::Block(index) => {
                if let Some(by_block) = self.open.get_mut(&step) {
                    for kind in RowKind::ALL {
                        by_block.remove(&(kind, index.raw().to_owned()));
                    }
                    if by_block.is_empty() {
                        self.open.remove(&step);
                    }
                }
            }
            Role::EndOfStep => drop(self.open.remove(&step)),
            Role::EndOfTurn => self.open.clear(),
            Role::Bystander => {}
        }
        None
    }

    /// Everything held back, each event with the edits of the texts that it has a part in.
    pub(super) fn take(&mut self, secrets: &dyn Fn(&str) -> Vec<Edit>) -> Vec<(Event<'static>, Vec<Edit>)> {
        let Self { held, texts, .. } = std::mem::take(self);
        let found: Vec<Vec<Edit>> = texts.iter().map(|text| secrets(text)).collect();
        let with_edits = |Held { event, piece }: Held| {
            let edits = piece.map(|piece| piece.edits(&found[piece.text], &event)).unwrap_or_default();
            (event, edits)
        };
        held.into_iter().map(with_edits).collect()
    }
}

impl Piece {
    /// The parts of a text's edits that lie in this piece, in the places of the event's data.
    fn edits(&self, of_text: &[Edit], event: &Event<'_>) -> Vec<Edit> {
        let first = of_text.partition_point(|edit| edit.range.end <= self.range.start);
        let own = of_text[first..].iter().take_while(|edit| edit.range.start < self.range.end);
        let mut own = own.peekable();
        if own.peek().is_none() {
            return Vec::new();
        }
        let literal = event.data.get(self.literal_at..).map(literal_of).unwrap_or_default();
        let view = view::of_literal(literal);
        own.map(|edit| {
            let start = edit.range.start.max(self.range.start) - self.range.start;
            let end = edit.range.end.min(self.range.end) - self.range.start;
            let range = view.source_range(&(start..end));
            let part = if edit.range.start < self.range.start { Part::Rest } else { Part::Head };
            let range = self.literal_at + range.start..self.literal_at + range.end;
            Edit { range, part, ..edit.clone() }
        })
        .collect()
    }
}

/// The string literal that a text begins with.
fn literal_of(text: &str) -> &str {
    super::walk::Strings::of(text).next().map_or("\"\"", |string| string.literal)
}

/// The step that an event names, and its part.
fn role<'e>(event: &'e Event<'_>) -> (Step, Role<'e>) {
    let is_relevant = matches!(
        &*event.type_name,
        CHUNK_TYPE | "assistant/message" | "step/end" | "llm/retry" | "llm/retry-started"
    );
    if !is_relevant {
        let ends = matches!(&*event.type_name, "turn/start" | "turn/end");
        return ((None, None), if ends { Role::EndOfTurn } else { Role::Bystander });
    }
    let [turn, step, chunk] = event.value().get_all(["turn", "step", "chunk"]);
    let number = |value: Option<Value<'_>>| value.and_then(|value| value.safe_integer());
    let role = match chunk.filter(|_| event.type_name == CHUNK_TYPE) {
        Some(chunk) => role_of_chunk(chunk),
        None if event.type_name == CHUNK_TYPE => Role::Bystander,
        None => Role::EndOfStep,
    };
    ((number(turn), number(step)), role)
}

fn role_of_chunk(chunk: Value<'_>) -> Role<'_> {
    let [kind, index] = chunk.get_all(["type", "index"]);
    let Some(kind) = kind else { return Role::Bystander };
    if kind.is_str("finish") {
        return Role::EndOfStep;
    }
    let Some(index) = index else { return Role::Bystander };
    if kind.is_str("block-start") {
        return Role::Block(index);
    }
    let row = RowKind::ALL.into_iter().find(|row| kind.is_str(row.chunk_type()));
    let token = row.and_then(|row| Some((row, chunk.get(row.token_key()).filter(Value::is_string)?)));
    token.map_or(Role::Bystander, |(row, token)| Role::Token(row, index, token))
}
