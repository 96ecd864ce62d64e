//! Equality of JSON values as JavaScript judges it, and digests that agree with it.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::string::{JsonString, write_string};
use super::value::{Kind, Member, Value};

/// 128-bit fingerprint of a value; stable over releases and machines.
pub type Digest = u128;

/// Builds a [`Digest`] of several values and words.
#[derive(Debug, Default)]
pub struct Digester(SipHasher13);

impl Digester {
    /// Adds a value by meaning: key order, number spelling and escapes do not matter, presence does.
    pub fn value(&mut self, value: Value<'_>) {
        let mut sink = HashSink(&mut self.0);
        write_sorted(&mut sink, value);
    }

    /// Adds bytes with their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.write_u64(bytes.len() as u64);
        self.0.write(bytes);
    }

    /// The fingerprint of all that was added.
    #[must_use]
    pub fn finish(&self) -> Digest {
        self.0.finish128().as_u128()
    }
}

/// Whether two values mean the same: objects without regard to key order, the last of repeated keys wins,
/// numbers as doubles, strings decoded (spec section 21, Surface).
#[must_use]
pub fn equal(a: Value<'_>, b: Value<'_>) -> bool {
    let text = |v| {
        let mut out = String::new();
        write_sorted(&mut out, v);
        out
    };
    a.raw() == b.raw() || text(a) == text(b)
}

/// The text by which tool lists compare (spec section 21, Header equality): as JavaScript re-serialises the
/// parsed value. Integer-like keys come first in ascending order, other keys in the order of their first
/// appearance, the last of repeated keys wins, numbers and strings in one spelling.
#[must_use]
pub fn tools_text(value: Value<'_>) -> String {
    let mut out = String::new();
    write_in(&mut out, value, Order::JavaScript);
    out
}

/// Where canonical text goes.
trait Sink {
    fn put(&mut self, text: &str);
}

impl Sink for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

struct HashSink<'a>(&'a mut SipHasher13);

impl Sink for HashSink<'_> {
    fn put(&mut self, text: &str) {
        self.0.write(text.as_bytes());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Sorted,
    JavaScript,
}

fn write_sorted(sink: &mut impl Sink, value: Value<'_>) {
    write_in(sink, value, Order::Sorted);
}

/// What is still to be written of one open container.
enum Frame<'a> {
    Array(super::value::Elements<'a>),
    Object(std::vec::IntoIter<Member<'a>>),
}

/// Writes a value in canonical spelling with an explicit stack.
fn write_in(sink: &mut impl Sink, value: Value<'_>, order: Order) {
    let mut stack = Vec::new();
    let mut next = Some(value);
    let mut first = true;
    loop {
        if let Some(value) = next.take() {
            first = true;
            match value.kind() {
                Kind::Object => {
                    sink.put("{");
                    stack.push(Frame::Object(ordered_members(value, order).into_iter()));
                }
                Kind::Array => {
                    sink.put("[");
                    stack.push(Frame::Array(value.elements()));
                }
                Kind::Number => sink.put(&number_text(value)),
                Kind::String => sink.put(&string_text(value.raw())),
                Kind::Null | Kind::Bool => sink.put(value.raw()),
            }
            first &= matches!(value.kind(), Kind::Object | Kind::Array);
        }
        match stack.last_mut() {
            None => return,
            Some(Frame::Array(elements)) => next = elements.next(),
            Some(Frame::Object(members)) => {
                if let Some(member) = members.next() {
                    if !std::mem::take(&mut first) {
                        sink.put(",");
                    }
                    sink.put(&string_text(member.key));
                    sink.put(":");
                    next = Some(member.value);
                    continue;
                }
            }
        }
        if next.is_some() {
            if !std::mem::take(&mut first) {
                sink.put(",");
            }
        } else {
            sink.put(if matches!(stack.pop(), Some(Frame::Array(_))) { "]" } else { "}" });
            first = false;
        }
    }
}

/// Members without overridden ones, in the wanted order.
fn ordered_members(value: Value<'_>, order: Order) -> Vec<Member<'_>> {
    let mut keyed: Vec<(JsonString<'_>, usize, Member<'_>)> =
        value.members().enumerate().map(|(i, m)| (JsonString::decode(m.key), i, m)).collect();
    keyed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1)));
    // Of each run of equal keys: the place of the first, the value of the last.
    let mut kept: Vec<(JsonString<'_>, usize, Member<'_>)> = Vec::with_capacity(keyed.len());
    for (key, place, member) in keyed {
        match kept.last_mut() {
            Some(last) if last.0 == key => last.2 = member,
            _ => kept.push((key, place, member)),
        }
    }
    if order == Order::JavaScript {
        kept.sort_by_key(|(key, place, _)| match array_index(key) {
            Some(index) => (0, u64::from(index)),
            None => (1, *place as u64),
        });
    }
    kept.into_iter().map(|(_, _, member)| member).collect()
}

/// The number if `key` is one that JavaScript sorts first: canonical, below 2^32 - 1.
fn array_index(key: &JsonString<'_>) -> Option<u32> {
    let text = key.to_str()?;
    let index = text.parse::<u32>().ok().filter(|&n| n != u32::MAX)?;
    (index.to_string() == text).then_some(index)
}

/// One spelling for each double: plain integers where exact, else the shortest digits that read back.
fn number_text(value: Value<'_>) -> String {
    if let Some(integer) = value.safe_integer() {
        return integer.to_string();
    }
    format!("{:e}", value.number().unwrap_or(f64::NAN))
}

fn string_text(literal: &str) -> String {
    let mut out = String::with_capacity(literal.len());
    write_string(&mut out, &JsonString::decode(literal));
    out
}
