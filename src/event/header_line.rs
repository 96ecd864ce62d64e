//! The session header's line as this crate writes it, read at a glance: opening a store reads one for each session.
//!
//! Owns no rule. A line in exactly the form of [`SessionHeader::write_json`] without escapes means what the general reader
//! says it means; any other line is left to that.

use super::SessionHeader;
use super::json::JsonString;
use crate::limits::SAFE_INTEGER_MAX;

/// Of the largest integer that a double holds exactly.
const INTEGER_DIGITS_MAX: usize = 16;

/// Reads a line in the usual form; `None` for any other. The fields are not judged.
pub(super) fn parse_usual(line: &str) -> Option<SessionHeader> {
    let mut line = Line(line);
    line.literal("{\"type\":\"session\",\"version\":0,\"id\":\"")?;
    let id = line.string()?;
    line.literal(",\"createdAt\":")?;
    let mut header = SessionHeader::new(id, line.integer()?);
    if line.literal(",\"cwd\":\"").is_some() {
        header.cwd = Some(line.json_string()?);
    }
    if line.literal(",\"parentSession\":\"").is_some() {
        header.parent_session = Some(line.json_string()?);
    }
    if line.literal(",\"seedLength\":").is_some() {
        header.seed_length = Some(line.integer()?.unsigned_abs());
    }
    header.subagent = line.literal(",\"origin\":\"subagent\"").is_some();
    line.literal(",\"delegationDepth\":")?;
    header.delegation_depth = Some(line.integer()?.unsigned_abs());
    if line.literal(",\"agentPreset\":\"").is_some() {
        header.agent_preset = Some(line.json_string()?);
    }
    (line.0 == "}").then_some(header)
}

/// Takes tokens off the front.
struct Line<'a>(&'a str);

impl<'a> Line<'a> {
    fn literal(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// The rest of a string literal behind its first quote, which has nothing that is escaped or should be.
    fn string(&mut self) -> Option<&'a str> {
        let end = memchr::memchr2(b'"', b'\\', self.0.as_bytes())?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.strip_prefix('"')?;
        // Without a branch, so that it is done many bytes at a time.
        let has_control = text.bytes().fold(false, |found, byte| found | (byte < 0x20));
        (!has_control).then_some(text)
    }

    fn json_string(&mut self) -> Option<JsonString<'static>> {
        Some(JsonString::from(self.string()?).into_owned())
    }

    /// A natural number that a double holds exactly.
    fn integer(&mut self) -> Option<i64> {
        let mut number = 0;
        let mut digits = 0;
        for byte in self.0.bytes().take_while(u8::is_ascii_digit).take(INTEGER_DIGITS_MAX + 1) {
            number = number * 10 + i64::from(byte - b'0');
            digits += 1;
        }
        let is_canonical = digits == 1 || (digits > 0 && !self.0.starts_with('0'));
        self.0 = &self.0[digits..];
        (is_canonical && number <= SAFE_INTEGER_MAX).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::session_header::parse_any;
    use super::*;

    const FULL: &str = r#"{"type":"session","version":0,"id":"a-1é","createdAt":1767225600000,"cwd":"/w","parentSession":"p","seedLength":10,"origin":"subagent","delegationDepth":0,"agentPreset":"x y"}"#;
    const PLAIN: &str = r#"{"type":"session","version":0,"id":"a","createdAt":0,"delegationDepth":2}"#;

    /// What the usual form says, if the line has it, is what the general reader says.
    fn agrees(line: &str) -> bool {
        let Some(usual) = parse_usual(line) else { return false };
        assert_eq!(usual.validate().map(|()| usual), parse_any(line), "{line}");
        true
    }

    #[test]
    fn lines_as_written_are_read_at_a_glance() {
        for line in [FULL, PLAIN] {
            assert!(agrees(line));
            let mut written = String::new();
            parse_usual(line).unwrap().write_json(&mut written);
            assert_eq!(written, line);
        }
    }

    #[test]
    fn a_changed_line_means_the_same_to_both_readers_or_is_left_to_the_general_one() {
        let mut read = 0;
        for line in [FULL, PLAIN] {
            for (at, old) in line.char_indices() {
                let (before, after) = (&line[..at], &line[at + old.len_utf8()..]);
                agrees(before);
                read += usize::from(agrees(&format!("{before}{after}")));
                for new in (0..128).map(char::from).chain(['é', '\u{fffd}', '\u{10ffff}']) {
                    read += usize::from(agrees(&format!("{before}{new}{after}")));
                    read += usize::from(agrees(&format!("{before}{new}{old}{after}")));
                }
            }
        }
        assert!(read > 1_000, "{read}");
        for number in ["9007199254740991", "9007199254740992", "00", "01", "-0", "1.0", "1e3", ""] {
            agrees(&PLAIN.replace(":0,\"del", &format!(":{number},\"del")));
            agrees(&PLAIN.replace("2}", &format!("{number}}}")));
        }
        let long = "i".repeat(crate::limits::SESSION_ID_BYTES_MAX + 1);
        assert!(agrees(&PLAIN.replace("\"a\"", &format!("\"{long}\""))));
    }
}
