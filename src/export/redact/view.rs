//! A text with its JSON escapes decoded, and the way back from a place in it to the place it came from.

use std::borrow::Cow;
use std::ops::Range;

/// Levels of escaping that are looked through. Honest nesting is two or three deep; text can be made to take any number.
pub(super) const LEVELS_MAX: usize = 6;

/// A decoded text. What is no escape stays as it is; a lone surrogate reads as U+FFFD.
#[derive(Debug)]
pub(super) struct View<'a> {
    text: Cow<'a, str>,
    /// Places in the text, ascending, each with the place in the source that it came from. Between two of them both texts
    /// are the same.
    anchors: Vec<(usize, usize)>,
}

impl View<'_> {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Where a range of the text came from.
    pub(super) fn source_range(&self, range: &Range<usize>) -> Range<usize> {
        self.source(range.start)..self.source(range.end)
    }

    fn source(&self, at: usize) -> usize {
        let after = self.anchors.partition_point(|(text, _)| *text <= at);
        match after.checked_sub(1).and_then(|i| self.anchors.get(i)) {
            Some((text, source)) => source + (at - text),
            None => at,
        }
    }

    pub(super) fn into_owned(self) -> View<'static> {
        View { text: Cow::Owned(self.text.into_owned()), anchors: self.anchors }
    }
}

/// What a string literal, quotes included, decodes to.
pub(super) fn of_literal(literal: &str) -> View<'_> {
    let inner = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
    let mut view = unescaped(inner).unwrap_or(View { text: Cow::Borrowed(inner), anchors: vec![(0, 0)] });
    view.anchors.iter_mut().for_each(|(_, source)| *source += 1);
    view
}

/// The text with all that looks like a JSON escape decoded; `None` if nothing does.
pub(super) fn unescaped(source: &str) -> Option<View<'_>> {
    let mut view = View { text: Cow::Borrowed(""), anchors: vec![(0, 0)] };
    let mut text = String::new();
    let (mut from, mut at) = (0, 0);
    while let Some(found) = memchr::memchr(b'\\', source.as_bytes().get(at..)?) {
        let start = at + found;
        let Some((decoded, bytes)) = escape(&source.as_bytes()[start..]) else {
            at = start + 1;
            continue;
        };
        text.push_str(source.get(from..start)?);
        view.anchors.push((text.len(), start));
        text.push(decoded);
        (from, at) = (start + bytes, start + bytes);
        view.anchors.push((text.len(), from));
    }
    if from == 0 {
        return None;
    }
    text.push_str(source.get(from..)?);
    view.text = Cow::Owned(text);
    Some(view)
}

/// The character that an escape stands for, and how many bytes the escape takes.
fn escape(bytes: &[u8]) -> Option<(char, usize)> {
    let short = match bytes.get(1)? {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode_escape(bytes),
        &plain @ (b'"' | b'\\' | b'/') => char::from(plain),
        _ => return None,
    };
    Some((short, 2))
}

fn unicode_escape(bytes: &[u8]) -> Option<(char, usize)> {
    let unit = unit(bytes)?;
    if let (0xD800..0xDC00, Some(low @ 0xDC00..0xE000)) = (unit, bytes.get(6..).and_then(self::unit)) {
        let code = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        return Some((char::from_u32(code)?, 12));
    }
    Some((char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), 6))
}

/// The UTF-16 unit that `bytes` begin with an escape of.
fn unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lead_back_to_the_source() {
        let literal = r#""a\u20acb\ud83d\ude00c\ud800\"d""#;
        let view = of_literal(literal);
        assert_eq!(view.text(), "a€b😀c\u{FFFD}\"d");
        let back = |part: &str| {
            let at = view.text().find(part).unwrap();
            &literal[view.source_range(&(at..at + part.len()))]
        };
        assert_eq!(back("€"), r"\u20ac");
        assert_eq!(back("b😀c"), r"b\ud83d\ude00c");
        assert_eq!(back("\"d"), r#"\"d"#);
        assert_eq!(back("a"), "a");
        assert_eq!(of_literal("\"plain\"").source_range(&(0..5)), 1..6);
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in ["", "plain", r"\", r"\x", r"\u12", r"\u12g4 \q"] {
            assert!(unescaped(text).is_none(), "{text}");
        }
        assert_eq!(unescaped(r"C:\x\\y\u0").unwrap().text(), r"C:\x\y\u0");
    }
}
