//! Navigation of validated JSON text in place: a value is a slice, members and elements are found by skipping.

use std::iter::FusedIterator;

use super::string::JsonString;
use crate::limits::SAFE_INTEGER_MAX;

/// A value inside a text that [`scan`](super::scan) accepted. Copying it copies a slice.
///
/// Every method is total: on text that was never validated answers are meaningless, but nothing panics.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    text: &'a str,
}

/// What a [`Value`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// One member of an object.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// The key literal, with quotes.
    pub key: &'a str,
    /// The value.
    pub value: Value<'a>,
}

impl Member<'_> {
    /// Whether the decoded key is `name`.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        literal_is(self.key, name)
    }
}

impl<'a> Value<'a> {
    /// The value that is all of `text`, a validated JSON text; white space around it is dropped.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self { text: text.trim_matches([' ', '\t', '\n', '\r']) }
    }

    /// The value that is all of `text`, with no white space around it.
    pub(super) fn exact(text: &'a str) -> Self {
        Self { text }
    }

    /// The text of the value.
    #[must_use]
    pub fn raw(&self) -> &'a str {
        self.text
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.text.as_bytes().first() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') | None => Kind::Null,
            Some(_) => Kind::Number,
        }
    }

    /// Whether it is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.kind() == Kind::Object
    }

    /// Whether it is an array.
    #[must_use]
    pub fn is_array(&self) -> bool {
        self.kind() == Kind::Array
    }

    /// Whether it is a string.
    #[must_use]
    pub fn is_string(&self) -> bool {
        self.kind() == Kind::String
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.kind() == Kind::Null
    }

    /// Whether it is the literal `true`.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.text == "true"
    }

    /// Whether it is a string that decodes to `expected`.
    #[must_use]
    pub fn is_str(&self, expected: &str) -> bool {
        self.kind() == Kind::String && literal_is(self.text, expected)
    }

    /// The decoded string, if it is one.
    #[must_use]
    pub fn string(&self) -> Option<JsonString<'a>> {
        (self.kind() == Kind::String).then(|| JsonString::decode(self.text))
    }

    /// Whether it is a string other than `""`.
    #[must_use]
    pub fn is_non_empty_string(&self) -> bool {
        self.kind() == Kind::String && self.text.len() > 2
    }

    /// The number as the double that JavaScript reads (infinite when too large).
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        (self.kind() == Kind::Number).then(|| self.text.parse().ok()).flatten()
    }

    /// The number, if its double is an integer within +-(2^53 - 1), however it is spelled (spec section 21);
    /// negative zero is 0.
    #[must_use]
    pub fn safe_integer(&self) -> Option<i64> {
        if self.kind() != Kind::Number {
            return None;
        }
        if self.text.len() <= 15 && self.text.bytes().all(|b| b.is_ascii_digit()) {
            return self.text.parse().ok();
        }
        let double = self.number()?;
        #[expect(clippy::cast_precision_loss, reason = "2^53 - 1 is exact")]
        let max = SAFE_INTEGER_MAX as f64;
        #[expect(clippy::cast_possible_truncation, reason = "an integer below 2^53 in size")]
        (double.fract() == 0.0 && double.abs() <= max).then_some(double as i64)
    }

    /// Members of an object in text order, repeated keys included; of any other value, none.
    #[must_use]
    pub fn members(&self) -> Members<'a> {
        Members { text: self.text, at: if self.is_object() { 1 } else { self.text.len() } }
    }

    /// Elements of an array; of any other value, none.
    #[must_use]
    pub fn elements(&self) -> Elements<'a> {
        Elements { text: self.text, at: if self.is_array() { 1 } else { self.text.len() } }
    }

    /// The last member named `key`, as JavaScript reads repeated keys. Costs a walk over the object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Self> {
        self.members().filter(|m| m.is(key)).last().map(|m| m.value)
    }

    /// Whether it is an object whose keys are all among `keys`.
    #[must_use]
    pub fn has_only(&self, keys: &[&str]) -> bool {
        self.is_object() && self.members().all(|m| keys.iter().any(|key| m.is(key)))
    }

    /// The last value of each of `keys`, found in one walk.
    #[must_use]
    pub fn get_all<const N: usize>(&self, keys: [&str; N]) -> [Option<Self>; N] {
        let mut found = [None; N];
        for member in self.members() {
            if let Some(i) = keys.iter().position(|k| member.is(k)) {
                found[i] = Some(member.value);
            }
        }
        found
    }
}

/// See [`Value::members`].
#[derive(Debug, Clone)]
pub struct Members<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let bytes = self.text.as_bytes();
        let start = next_item(bytes, self.at)?;
        let end = skip(bytes, start);
        let key = self.text.get(start..end)?;
        let value = next_item(bytes, end)?;
        self.at = skip(bytes, value);
        Some(Member { key, value: Value { text: self.text.get(value..self.at)? } })
    }
}

impl FusedIterator for Members<'_> {}

/// See [`Value::elements`].
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let bytes = self.text.as_bytes();
        let start = next_item(bytes, self.at)?;
        self.at = skip(bytes, start);
        Some(Value { text: self.text.get(start..self.at)? })
    }
}

impl FusedIterator for Elements<'_> {}

/// Start of the next token that begins a key or value, past white space, commas and colons.
fn next_item(bytes: &[u8], at: usize) -> Option<usize> {
    next_token(bytes, at).filter(|&at| !matches!(bytes[at], b'}' | b']'))
}

/// Start of the next token that is more than a separator.
pub(super) fn next_token(bytes: &[u8], at: usize) -> Option<usize> {
    let separates = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':');
    bytes.get(at..)?.iter().position(|b| !separates(b)).map(|n| at + n)
}

/// End of the value that starts at `at`. Depth is a counter: nesting costs nothing.
pub(super) fn skip(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at) {
        Some(b'"') => string_end(bytes, at),
        Some(b'{' | b'[') => container_end(bytes, at),
        _ => {
            let stops = |b: &u8| matches!(b, b',' | b'}' | b']' | b':' | b' ' | b'\t' | b'\n' | b'\r');
            bytes[at..].iter().position(stops).map_or(bytes.len(), |n| at + n)
        }
    }
}

fn container_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = string_end(bytes, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    loop {
        at = special_from(bytes, at);
        match bytes.get(at) {
            Some(b'"') => return at + 1,
            Some(_) => at += 2,
            None => return bytes.len(),
        }
    }
}

/// Where the next quote or backslash stands. Most strings are too short to pay for a call, so the first bytes are looked
/// at eight at a time.
fn special_from(bytes: &[u8], start: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES * 0x80;
    let mut at = start;
    while let Some(chunk) = bytes.get(at..at + 8).filter(|_| at < start + 64) {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let x = u64::from_le_bytes(word);
        let zero_byte = |x: u64| x.wrapping_sub(ONES) & !x & HIGH;
        // The lowest marked byte is exact; borrows can only mark bytes above it.
        let hit = zero_byte(x ^ (ONES * u64::from(b'"'))) | zero_byte(x ^ (ONES * u64::from(b'\\')));
        if hit != 0 {
            return at + hit.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    bytes
        .get(at..)
        .and_then(|rest| memchr::memchr2(b'"', b'\\', rest))
        .map_or(bytes.len(), |found| at + found)
}

fn literal_is(literal: &str, expected: &str) -> bool {
    let inner = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
    // Escapes only lengthen, so an equal literal with escapes is longer.
    inner == expected
        || inner.len() > expected.len() && inner.contains('\\') && JsonString::decode(literal) == *expected
}
