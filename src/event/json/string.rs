//! JSON strings as JavaScript sees them: sequences of UTF-16 units, held as WTF-8 so that lone surrogates live.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// A decoded JSON string: UTF-8, except that a lone surrogate stands as its three-byte WTF-8 form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsonString<'a>(Cow<'a, [u8]>);

impl<'a> JsonString<'a> {
    /// Decodes a validated string literal, quotes included. Borrows when it holds no escapes.
    #[must_use]
    pub fn decode(literal: &'a str) -> Self {
        let inner = literal.as_bytes().get(1..literal.len().saturating_sub(1)).unwrap_or_default();
        Self(decode_escapes(inner))
    }

    /// The WTF-8 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the string is `""`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text, if it has no lone surrogate.
    #[must_use]
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text for people: a lone surrogate reads as U+FFFD.
    #[must_use]
    pub fn to_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The string free of the text that it was decoded from.
    #[must_use]
    pub fn into_owned(self) -> JsonString<'static> {
        JsonString(Cow::Owned(self.0.into_owned()))
    }
}

impl<'a> From<&'a str> for JsonString<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }
}

impl From<String> for JsonString<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text.into_bytes()))
    }
}

impl PartialEq<str> for JsonString<'_> {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for JsonString<'_> {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl fmt::Display for JsonString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_lossy())
    }
}

/// Appends `string` to `out` as a JSON literal with quotes, spelled as JavaScript's `JSON.stringify` does:
/// short escapes for `" \ \b \f \n \r \t`, `\u00xx` for other controls, `\udxxx` for lone surrogates.
pub fn write_string(out: &mut String, string: &JsonString<'_>) {
    out.push('"');
    let mut rest = string.as_bytes();
    while let Some(at) = surrogate_position(rest) {
        write_plain(out, &String::from_utf8_lossy(&rest[..at]));
        let unit = 0xD000 | u16::from(rest[at + 1] & 0x3F) << 6 | u16::from(rest[at + 2] & 0x3F);
        write_unit(out, unit);
        rest = &rest[at + 3..];
    }
    write_plain(out, &String::from_utf8_lossy(rest));
    out.push('"');
}

/// Where the first lone surrogate stands: `ED`, then a byte that no UTF-8 text has there, then a third.
fn surrogate_position(bytes: &[u8]) -> Option<usize> {
    bytes.windows(3).position(|w| w[0] == 0xED && w[1] >= 0xA0)
}

/// Orders two key literals (quotes included) by their decoded bytes.
pub(super) fn compare_keys(a: &[u8], b: &[u8]) -> Ordering {
    if !a.contains(&b'\\') && !b.contains(&b'\\') {
        return a.cmp(b);
    }
    let decode = |literal: &[u8]| decode_escapes(&literal[1..literal.len() - 1]).into_owned();
    decode(a).cmp(&decode(b))
}

fn write_plain(out: &mut String, text: &str) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            0x0c => "\\f",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..0x20 => "",
            _ => continue,
        };
        out.push_str(&text[from..at]);
        from = at + 1;
        if short.is_empty() {
            write_unit(out, u16::from(byte));
        } else {
            out.push_str(short);
        }
    }
    out.push_str(&text[from..]);
}

fn write_unit(out: &mut String, unit: u16) {
    out.push_str("\\u");
    for shift in [12, 8, 4, 0] {
        write_hex(out, ((unit >> shift) & 0xF).to_le_bytes()[0]);
    }
}

fn write_hex(out: &mut String, nibble: u8) {
    out.push(char::from(b"0123456789abcdef"[usize::from(nibble & 0xF)]));
}

fn decode_escapes(inner: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = inner.iter().position(|&b| b == b'\\') else { return Cow::Borrowed(inner) };
    let mut out = Vec::with_capacity(inner.len());
    out.extend_from_slice(&inner[..first]);
    let mut at = first;
    // A high surrogate just written, which a low one would complete.
    let mut high: Option<u32> = None;
    while let Some(&byte) = inner.get(at) {
        if byte != b'\\' {
            out.push(byte);
            high = None;
            at += 1;
            continue;
        }
        let unit = match inner.get(at + 1) {
            Some(b'u') => hex_unit(inner.get(at + 2..at + 6).unwrap_or_default()),
            Some(&c) => unescape(c),
            None => 0,
        };
        at += if inner.get(at + 1) == Some(&b'u') { 6 } else { 2 };
        match (high.take(), unit) {
            (Some(h), 0xDC00..=0xDFFF) => {
                out.truncate(out.len() - 3);
                push_code_point(&mut out, 0x10000 + ((h - 0xD800) << 10) + (unit - 0xDC00));
            }
            (_, 0xD800..=0xDBFF) => {
                push_code_point(&mut out, unit);
                high = Some(unit);
            }
            _ => push_code_point(&mut out, unit),
        }
    }
    Cow::Owned(out)
}

fn unescape(escape: u8) -> u32 {
    u32::from(match escape {
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        other => other,
    })
}

fn hex_unit(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |n, &d| n << 4 | char::from(d).to_digit(16).unwrap_or(0))
}

/// UTF-8 by its bit pattern, surrogates included.
fn push_code_point(out: &mut Vec<u8>, c: u32) {
    let low = |shift: u32| 0x80 | ((c >> shift) & 0x3F).to_le_bytes()[0];
    let lead = |mark: u8, shift: u32| mark | (c >> shift).to_le_bytes()[0];
    match c {
        0..0x80 => out.push(lead(0, 0)),
        0x80..0x800 => out.extend([lead(0xC0, 6), low(0)]),
        0x800..0x10000 => out.extend([lead(0xE0, 12), low(6), low(0)]),
        _ => out.extend([lead(0xF0, 18), low(12), low(6), low(0)]),
    }
}
