//! Takes a damaged line apart: whole records, padding between them, and bytes that are neither.
//!
//! Judges bytes alone. Pieces leave one at a time, so that a line of nothing but tiny values needs no memory of its own, and
//! the search for whole records behind cut ones reads a line only so often: work is linear in the line.

use std::borrow::Cow;

use crate::event::RefusalKind;
use crate::event::json::{FaultKind, scan};
use crate::ids::Seq;
use crate::import::{Decoded, decode, marked};

/// How many times over the search for whole records behind cut ones may read a line.
const LINE_READS_MAX: usize = 4;
/// How every record that a writer of this format wrote begins.
const START: &str = "{\"type\":";
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// A part of a line.
pub(super) struct Piece<'a> {
    /// Offset of its first byte in the line.
    pub(super) at: usize,
    /// Its bytes.
    pub(super) bytes: &'a [u8],
    pub(super) what: What<'a>,
}

pub(super) enum What<'a> {
    /// A byte order mark.
    Bom,
    /// NUL bytes.
    Nuls,
    /// A JSON object; bytes in it that are no UTF-8 read as U+FFFD.
    Object(Decoded<'a>),
    /// Anything else.
    Junk(Junk),
}

/// Bytes that are no record.
pub(super) struct Junk {
    pub(super) kind: RefusalKind,
    pub(super) message: String,
    /// The type and the seq that its beginning claims, if it is what is left of a record.
    pub(super) type_name: Option<String>,
    pub(super) seq: Option<Seq>,
    /// It is what is left of a record.
    pub(super) was_record: bool,
}

/// The parts of a line, in order. A line of white space has none.
pub(super) struct Pieces<'a> {
    bytes: &'a [u8],
    /// The line with a question mark for each byte that is no UTF-8, once it is needed.
    text: Option<Cow<'a, str>>,
    at: usize,
    /// Bytes that the search for whole records may still read.
    bytes_left: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn of(line: &'a [u8]) -> Self {
        Self { bytes: line, text: None, at: 0, bytes_left: line.len().saturating_mul(LINE_READS_MAX) }
    }

    /// The bytes up to `end`, which leave.
    fn take(&mut self, end: usize, what: What<'a>) -> Piece<'a> {
        let piece = Piece { at: self.at, bytes: &self.bytes[self.at..end], what };
        self.at = end;
        piece
    }

    /// What stands at the present place, which is neither padding nor the beginning of an object that fills the line.
    fn slow(&mut self) -> Piece<'a> {
        let text = self.text.get_or_insert_with(|| match std::str::from_utf8(self.bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(marked(self.bytes)),
        });
        let at = self.at;
        let rest = text.get(at..).unwrap_or_default();
        let fault = match scan(rest) {
            Ok(_) => return self.value(self.bytes.len()),
            Err(fault) if fault.kind == FaultKind::Trailing => return self.value(at + fault.offset),
            Err(fault) => fault,
        };
        let found = whole_record_behind(rest, &mut self.bytes_left);
        let end = found.map_or(self.bytes.len(), |start| at + start);
        // Padding behind the junk is padding.
        let nuls = self.bytes[at..end].iter().rev().take_while(|&&b| b == 0).count();
        let junk = junk(rest, found.is_some(), &format!("it is not JSON: {fault}"));
        self.take(end - nuls, What::Junk(junk))
    }

    /// The JSON value up to `end`.
    fn value(&mut self, end: usize) -> Piece<'a> {
        match decode(&self.bytes[self.at..end], true) {
            Ok(decoded) => self.take(end, What::Object(decoded)),
            Err(unusable) => {
                let junk = Junk {
                    kind: unusable.kind,
                    message: unusable.message,
                    type_name: None,
                    seq: None,
                    was_record: false,
                };
                self.take(end, What::Junk(junk))
            }
        }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let rest = &self.bytes[self.at..];
        let blank = rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r')).count();
        let nuls = rest[blank..].iter().take_while(|&&b| b == 0).count();
        if blank == rest.len() {
            return None;
        }
        if nuls > 0 || rest[blank..].starts_with(BOM) {
            self.at += blank;
            let (bytes, what) = if nuls > 0 { (nuls, What::Nuls) } else { (BOM.len(), What::Bom) };
            return Some(self.take(self.at + bytes, what));
        }
        if self.text.is_none()
            && let Ok(decoded) = decode(rest, true)
        {
            return Some(self.take(self.bytes.len(), What::Object(decoded)));
        }
        Some(self.slow())
    }
}

/// Where behind the start of `text` a whole record begins. What is nested in a cut record is not taken for one: it has
/// another object's members, or something else than a record follows it. Nothing is found once `bytes_left` are read.
fn whole_record_behind(text: &str, bytes_left: &mut usize) -> Option<usize> {
    for at in memchr::memmem::find_iter(text.as_bytes(), START).filter(|&at| at > 0) {
        let (end, whole) = match scan(&text[at..]) {
            Ok(_) => (text.len(), true),
            Err(fault) => (at + fault.offset, fault.kind == FaultKind::Trailing),
        };
        let left = bytes_left.checked_sub(end - at);
        *bytes_left = left.unwrap_or(0);
        left?;
        if !whole {
            continue;
        }
        let behind = text[end..].trim_start_matches(['\0', ' ', '\t', '\r']);
        let record = decode(&text.as_bytes()[at..end], true);
        let looks_whole = record.is_ok_and(|record| {
            let has = |name| record.member(name).is_some();
            has("data") && (has("seq") && has("time") || has("seq0") && has("time0"))
        });
        if looks_whole && (behind.is_empty() || behind.starts_with(START)) {
            return Some(at);
        }
    }
    None
}

fn junk(text: &str, whole_follows: bool, reason: &str) -> Junk {
    let was_record = text.starts_with('{');
    let (kind, message) = match (was_record, whole_follows) {
        (true, true) => {
            (RefusalKind::GluedRecord, "a record was cut and another one written behind it on its line")
        }
        (true, false) => (RefusalKind::CorruptRecord, "a record is cut or broken"),
        (false, _) => (RefusalKind::CorruptRecord, "these bytes are no record"),
    };
    let (type_name, seq) = claimed(text);
    Junk { kind, message: format!("{message}: {reason}"), type_name, seq, was_record }
}

/// The type and the seq that the beginning of a record spells in the order in which every writer does.
fn claimed(text: &str) -> (Option<String>, Option<Seq>) {
    const TYPE_BYTES_MAX: usize = 80;
    let name = text.strip_prefix("{\"type\":\"").and_then(|rest| rest.split_once('"'));
    let Some((name, rest)) = name.filter(|(name, _)| name.len() <= TYPE_BYTES_MAX) else {
        return (None, None);
    };
    let digits = rest.strip_prefix(",\"seq\":").and_then(|rest| rest.split_once(','));
    (Some(name.to_owned()), digits.and_then(|(digits, _)| digits.parse().ok()).map(Seq::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a line in words: objects by their type, anything else by its kind.
    fn taken_apart(line: &[u8]) -> Vec<String> {
        let mut end = 0;
        Pieces::of(line)
            .map(|piece| {
                assert!(piece.at >= end, "pieces do not overlap");
                end = piece.at + piece.bytes.len();
                match piece.what {
                    What::Bom => "bom".into(),
                    What::Nuls => format!("{} nuls", piece.bytes.len()),
                    What::Object(decoded) => decoded.type_word().unwrap_or("object".into()),
                    What::Junk(junk) => format!("{} {:?}", junk.kind, junk.seq.map(Seq::get)),
                }
            })
            .collect()
    }

    fn event(name: &str, seq: u64) -> String {
        format!(r#"{{"type":"{name}","seq":{seq},"time":1,"data":{{"a":{{"type":"in"}}}}}}"#)
    }

    #[test]
    fn padding_and_whole_records_come_apart() {
        let (a, b) = (event("a", 1), event("b", 2));
        let cases: [(String, &[&str]); 9] = [
            (a.clone(), &["a"]),
            (format!("{a}\r"), &["a"]),
            (String::new(), &[]),
            (" \t\r".into(), &[]),
            (format!("\u{FEFF}{a}"), &["bom", "a"]),
            (format!("\0\0{a}\0"), &["2 nuls", "a", "1 nuls"]),
            (format!("{a}{b} {a}"), &["a", "b", "a"]),
            (format!(" \0 \u{FEFF}{a}\0{b}"), &["1 nuls", "bom", "a", "1 nuls", "b"]),
            ("\0\0\0".into(), &["3 nuls"]),
        ];
        for (line, expected) in cases {
            assert_eq!(taken_apart(line.as_bytes()), expected, "{line:?}");
        }
    }

    #[test]
    fn what_is_cut_is_told_from_what_is_whole() {
        let (a, b) = (event("a", 7), event("b", 8));
        let cut = &a[..a.len() - 9];
        assert_eq!(taken_apart(cut.as_bytes()), ["corrupt-record Some(7)"]);
        assert_eq!(taken_apart(format!("{cut}{b}").as_bytes()), ["glued-record Some(7)", "b"]);
        assert_eq!(taken_apart(format!("{b}{cut}").as_bytes()), ["b", "corrupt-record Some(7)"]);
        assert_eq!(
            taken_apart(format!("{cut}{b}{cut}").as_bytes()),
            ["glued-record Some(7)", "b", "corrupt-record Some(7)"]
        );
        assert_eq!(taken_apart(format!("{b}xyz").as_bytes()), ["b", "corrupt-record None"]);
        assert_eq!(taken_apart(format!("{cut}\0\0").as_bytes()), ["corrupt-record Some(7)", "2 nuls"]);
        // An object inside a cut record is no record.
        let nested = br#"{"type":"a","seq":1,"time":1,"data":{"x":{"type":"b","seq":2,"time":2,"data":3},"y"#;
        assert_eq!(taken_apart(nested), ["corrupt-record Some(1)"]);
        assert_eq!(taken_apart(b"[1,2]"), ["not-an-event None"]);
    }

    #[test]
    fn a_line_that_is_no_utf8_keeps_its_records() {
        let line = [b"{\"type\":\"a\",\"x\":\"\xFF\"}", event("b", 2).as_bytes(), b"\xFF"].concat();
        assert_eq!(taken_apart(&line), ["a", "b", "corrupt-record None"]);
    }

    #[test]
    fn hostile_lines_take_linear_time() {
        for line in ["{\"type\":".repeat(1 << 18), "{}".repeat(1 << 18), "{".repeat(1 << 20)] {
            assert!(Pieces::of(line.as_bytes()).count() >= 1);
        }
    }
}
