//! The payload of a candidate: JSON text that is validated exactly once.
//!
//! Only this module and the envelope reader can say that a text was validated, so no unchecked text passes
//! the gate. Stored payload text is one line: line breaks between tokens are removed with all other
//! insignificant white space; any other text is kept byte for byte (spec section 20).

use std::borrow::Cow;

use super::json::{Notes, ScannedMember, Value, validate};
use super::verdict::{Refusal, RefusalKind};

/// The `data` of a [`Candidate`](super::Candidate): JSON text, validated on admission unless a reader of
/// records did so already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload<'a> {
    text: Cow<'a, str>,
    /// What the validating pass found; `None` as long as there was none.
    notes: Option<Notes>,
}

impl<'a> Payload<'a> {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same payload, borrowing this one's text.
    #[must_use]
    pub fn borrowed(&self) -> Payload<'_> {
        Payload { text: Cow::Borrowed(&self.text), notes: self.notes }
    }

    /// The payload free of borrowed text.
    #[must_use]
    pub fn into_owned(self) -> Payload<'static> {
        Payload { text: Cow::Owned(self.text.into_owned()), notes: self.notes }
    }

    /// The value of a member of a scanned record. `record_duplicate` is a repeated key anywhere in the record.
    pub(super) fn of_member(value: Value<'a>, member: &ScannedMember, record_duplicate: Option<u32>) -> Self {
        let start = member.value.0;
        let shift = |at: Option<u32>| at.map(|at| at.saturating_sub(start));
        let notes = Notes {
            negative_zero: shift(member.notes.negative_zero),
            unsafe_integer: shift(member.notes.unsafe_integer),
            non_finite: shift(member.notes.non_finite),
            duplicate_key: shift(member.notes.duplicate_key.or(record_duplicate)),
            line_break: shift(member.notes.line_break),
        };
        Self { text: Cow::Borrowed(value.raw()), notes: Some(notes) }
    }

    /// The text as it is stored, and what is remarkable in it.
    pub(super) fn validated(self) -> Result<(Cow<'a, str>, Notes), Refusal> {
        let (text, notes) = match self.notes {
            Some(notes) => (self.text, notes),
            None => scanned(self.text)?,
        };
        // Valid JSON has no raw line break inside a string, so each one stands between tokens.
        let broken = notes.line_break.is_some() && memchr::memchr2(b'\n', b'\r', text.as_bytes()).is_some();
        Ok((if broken { Cow::Owned(compacted(&text)) } else { text }, notes))
    }
}

impl<'a> From<Cow<'a, str>> for Payload<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self { text, notes: None }
    }
}

impl<'a> From<&'a str> for Payload<'a> {
    fn from(text: &'a str) -> Self {
        Cow::Borrowed(text).into()
    }
}

impl From<String> for Payload<'_> {
    fn from(text: String) -> Self {
        Cow::<'static, str>::Owned(text).into()
    }
}

fn scanned(text: Cow<'_, str>) -> Result<(Cow<'_, str>, Notes), Refusal> {
    let (value, notes) = validate(&text).map_err(|fault| {
        let message = format!("data is not JSON: {fault}");
        Refusal::new(RefusalKind::Envelope, "data-json", message)
    })?;
    let range = value.0 as usize..value.1 as usize;
    let trimmed = match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.get(range).unwrap_or_default()),
        Cow::Owned(text) if range.len() == text.len() => Cow::Owned(text),
        Cow::Owned(text) => Cow::Owned(text.get(range).unwrap_or_default().to_owned()),
    };
    Ok((trimmed, notes))
}

/// The text without white space between tokens.
fn compacted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(quote) = rest.find('"') {
        out.extend(rest[..quote].split([' ', '\t', '\n', '\r']));
        let end = string_end(rest.as_bytes(), quote);
        out.push_str(&rest[quote..end]);
        rest = &rest[end..];
    }
    out.extend(rest.split([' ', '\t', '\n', '\r']));
    out
}

/// End of the string literal that starts at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::super::json::scan;
    use super::*;

    fn stored(text: &str) -> String {
        Payload::from(text).validated().unwrap().0.into_owned()
    }

    #[test]
    fn text_is_kept_byte_for_byte_but_stays_one_line() {
        assert_eq!(stored("{ \"a\" :\t1.0}"), "{ \"a\" :\t1.0}");
        assert_eq!(stored("  [1] \t"), "[1]");
        assert_eq!(stored("\n[1, 2]\r\n"), "[1, 2]");
        assert_eq!(stored("{\n \"a b\\\" \" : [ 1,\r2 ]\t}"), "{\"a b\\\" \":[1,2]}");
        assert_eq!(Payload::from(" 7 ".to_owned()).validated().unwrap().0, "7");
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        for text in ["", "{", "nul", "1 2", "{\"a\":\"\n\"}"] {
            let refusal = Payload::from(text).validated().unwrap_err();
            assert_eq!((refusal.kind, refusal.rule), (RefusalKind::Envelope, "data-json"), "{text}");
        }
    }

    #[test]
    fn notes_count_from_the_payload() {
        let text = r#"{"type":"x","data":{"a":-0}}"#;
        let scan = scan(text).unwrap();
        let member = &scan.members[1];
        let (data, notes) = Payload::of_member(member.of(text).value, member, None).validated().unwrap();
        assert_eq!((&*data, notes.negative_zero), (r#"{"a":-0}"#, Some(5)));
    }
}
