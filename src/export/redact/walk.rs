//! The string values of a JSON text, each with its key and whether the format lives on it.

use std::borrow::Cow;

use crate::event::HeaderReason;
use crate::event::json::{JsonString, Value};

/// Members whose objects have words of the format among their members. What lies under any other key is free.
const STRUCTURES: [&str; 11] = [
    "block", "chunk", "config", "content", "error", "header", "inserted", "message", "messages", "reason",
    "source",
];
/// Members of such objects whose strings stay, and with them all that end in `Id`.
const WORDS: [&str; 5] = ["code", "id", "kind", "role", "type"];

/// Walks the string values in text order. Nesting costs nothing.
pub(super) struct Strings<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Depth of the outermost container around that is no structure.
    free_from: Option<usize>,
    /// The key whose value comes next.
    key: Option<&'a str>,
}

/// A string value.
pub(super) struct StringValue<'a> {
    /// Where the literal begins in the text.
    pub(super) at: usize,
    /// The literal, quotes included.
    pub(super) literal: &'a str,
    key: Option<&'a str>,
    in_structure: bool,
}

impl<'a> Strings<'a> {
    /// Of a validated text.
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, free_from: None, key: None }
    }

    fn enter(&mut self) {
        let key = self.key.take();
        if self.free_from.is_none() && key.is_some_and(|key| !STRUCTURES.contains(&&*name(key))) {
            self.free_from = Some(self.depth);
        }
        self.depth += 1;
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.free_from == Some(self.depth) {
            self.free_from = None;
        }
    }

    /// The literal that begins here.
    fn literal(&mut self) -> (usize, &'a str) {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        self.at += 1;
        while let Some(found) = memchr::memchr2(b'"', b'\\', bytes.get(self.at..).unwrap_or_default()) {
            self.at += found + 1;
            if bytes[self.at - 1] == b'"' {
                return (start, self.text.get(start..self.at).unwrap_or_default());
            }
            self.at += 1;
        }
        self.at = bytes.len();
        (start, "\"\"")
    }

    /// Whether the literal that was just passed is a key.
    fn at_colon(&self) -> bool {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        rest.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b':')
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = StringValue<'a>;

    fn next(&mut self) -> Option<StringValue<'a>> {
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            match byte {
                b'{' | b'[' => self.enter(),
                b'}' | b']' => self.leave(),
                b',' => self.key = None,
                b'"' => {
                    let (at, literal) = self.literal();
                    if self.at_colon() {
                        self.key = Some(literal);
                        continue;
                    }
                    let in_structure = self.free_from.is_none();
                    return Some(StringValue { at, literal, key: self.key.take(), in_structure });
                }
                _ => {}
            }
            self.at += 1;
        }
        None
    }
}

impl StringValue<'_> {
    /// The decoded key, if it is the value of a member.
    pub(super) fn key(&self) -> Option<Cow<'_, str>> {
        self.key.map(name)
    }

    /// Whether the log would no longer be the same without it.
    pub(super) fn is_structural(&self) -> bool {
        let Some(key) = self.key.filter(|_| self.in_structure) else { return false };
        let key = name(key);
        WORDS.contains(&&*key)
            || key.ends_with("Id")
            || key == "reason" && HeaderReason::of(Value::new(self.literal)).is_some()
    }
}

fn name(literal: &str) -> Cow<'_, str> {
    if literal.contains('\\') {
        return Cow::Owned(JsonString::decode(literal).to_lossy().into_owned());
    }
    Cow::Borrowed(literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each string with its key, those that stay marked.
    fn walked(text: &str) -> Vec<String> {
        crate::event::json::scan(text).expect("valid JSON");
        let shown = |s: StringValue<'_>| {
            let mark = if s.is_structural() { "!" } else { "" };
            assert!(text[s.at..].starts_with(s.literal));
            format!("{}={}{mark}", s.key().unwrap_or_default(), s.literal)
        };
        Strings::of(text).map(shown).collect()
    }

    #[test]
    fn words_of_the_format_stay_and_free_text_does_not() {
        let text = r#"{"turn":1,"message" : {"i\u0064":"m","role" :"user","content":[{"type":"text","text":"a,\"b:"},"c"],
            "source":{"kind":"tool","callId":"x"}},"reason":"initial","meta":{"id":"free","message":{"id":"too"}},"id":"z"}"#;
        let expected = [
            "id=\"m\"!",
            "role=\"user\"!",
            "type=\"text\"!",
            r#"text="a,\"b:""#,
            "=\"c\"",
            "kind=\"tool\"!",
            "callId=\"x\"!",
            "reason=\"initial\"!",
            "id=\"free\"",
            "id=\"too\"",
            "id=\"z\"!",
        ];
        assert_eq!(walked(text), expected);
        assert_eq!(
            walked(r#"{"reason":"the user said so","arguments":{"type":"t"}}"#).join(" "),
            r#"reason="the user said so" type="t""#
        );
        assert_eq!(walked(r#"["a",1,"b"]"#), ["=\"a\"", "=\"b\""]);
        assert_eq!(walked(r#""alone""#), ["=\"alone\""]);
        assert_eq!(walked(&format!("{}\"deep\"{}", "[".repeat(100_000), "]".repeat(100_000))), ["=\"deep\""]);
    }
}
