//! From the bytes of a record to JSON text, or to the reason why there is none.
//!
//! Judges bytes alone: what a record means, and what a fault costs the log, is the judge's part.

use std::borrow::Cow;

use crate::event::RefusalKind;
use crate::event::json::{Fault, FaultKind, Member, Scan, Value, scan};
use crate::ids::Seq;

use super::judgement::word;

/// Places in one record at which a whole event is looked for behind a cut one.
const GLUED_TRIES_MAX: usize = 64;
/// How many times over these tries may read the record.
const GLUED_READS_MAX: usize = 4;

/// A record whose text is a JSON object.
pub(crate) struct Decoded<'a> {
    /// The text; bytes in it that are no UTF-8 read as U+FFFD if they are to be replaced, else as question marks.
    pub(crate) text: Cow<'a, str>,
    /// Its members.
    pub(crate) scan: Scan,
    /// Offset in the record of the first byte that is no UTF-8.
    pub(crate) bad_utf8: Option<u64>,
}

/// A record without a JSON object.
pub(crate) struct Unusable {
    /// What it is instead.
    pub(crate) kind: RefusalKind,
    /// What is wrong, for people.
    pub(crate) message: String,
}

impl Decoded<'_> {
    /// The last member of the object with this name.
    pub(crate) fn member(&self, name: &str) -> Option<Value<'_>> {
        let text = &*self.text;
        if self.scan.more_members {
            return Value::new(text).get(name);
        }
        let slice = |(start, end): (u32, u32)| text.get(start as usize..end as usize).unwrap_or_default();
        let members = self.scan.members.iter().rev();
        let mut members = members.map(|m| Member { key: slice(m.key), value: Value::new(slice(m.value)) });
        members.find(|m| m.is(name)).map(|m| m.value)
    }

    /// The member of this name as a seq; `None` for anything that is no integer of 0 to 2^53 - 1.
    pub(crate) fn seq_member(&self, name: &str) -> Option<Seq> {
        self.member(name)?.safe_integer().and_then(|n| u64::try_from(n).ok()).map(Seq::new)
    }

    /// The type, for people.
    pub(crate) fn type_word(&self) -> Option<String> {
        self.member("type")?.string().map(|t| word(&t.to_lossy()))
    }

    /// Whether the record is a `turn/end`, which makes everything before it a committed part of the log.
    pub(crate) fn is_turn_end(&self) -> bool {
        self.member("type").is_some_and(|t| t.is_str("turn/end"))
    }
}

/// Decodes a record: any bytes but a line feed. The text is longer than the record only if bytes that are no UTF-8 are to
/// be replaced in an event (`lossy`), not if they are to be told of.
pub(crate) fn decode(bytes: &[u8], lossy: bool) -> Result<Decoded<'_>, Unusable> {
    let (text, bad_utf8) = match std::str::from_utf8(bytes) {
        Ok(text) => (Cow::Borrowed(text), None),
        Err(error) => {
            let text = if lossy { String::from_utf8_lossy(bytes) } else { marked(bytes).into() };
            (text, Some(error.valid_up_to() as u64))
        }
    };
    match scan(&text) {
        Ok(scan) if text.as_bytes().get(scan.value.0 as usize) == Some(&b'{') => {
            Ok(Decoded { text, scan, bad_utf8 })
        }
        Ok(_) => Err(Unusable::new(RefusalKind::NotAnEvent, "the record is JSON but no object")),
        Err(fault) => Err(classify(bytes, &text, fault, bad_utf8)),
    }
}

/// The text with a question mark in the place of each byte that is no UTF-8: offsets stay.
pub(crate) fn marked(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text
}

/// Whether a record is nothing but NUL bytes.
pub(crate) fn is_nul_run(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&b| b == 0)
}

impl Unusable {
    fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

fn classify(bytes: &[u8], text: &str, fault: Fault, bad_utf8: Option<u64>) -> Unusable {
    if bytes.first() == Some(&0) {
        return Unusable::new(RefusalKind::NulPadding, "NUL bytes stand where a record should begin");
    }
    if bytes.iter().all(|b| matches!(b, b' ' | b'\t' | b'\r')) {
        return Unusable::new(RefusalKind::BlankRecord, "the line is blank");
    }
    if text.starts_with('\u{FEFF}') {
        let message = "a byte order mark (EF BB BF) stands before the record";
        return Unusable::new(RefusalKind::CorruptRecord, message);
    }
    if let Some(at) = whole_event_behind(text) {
        let message = match fault.kind {
            FaultKind::Trailing if fault.offset == at => {
                format!("two whole records stand on one line, the second from its byte {at} on")
            }
            _ => format!(
                "the record is cut, and a whole one was appended to the same line at its byte {at}: what was cut is lost"
            ),
        };
        return Unusable::new(RefusalKind::GluedRecord, message);
    }
    let utf8 = bad_utf8.map(|at| format!(", and not UTF-8 at its byte {at}")).unwrap_or_default();
    let message = format!("the record is not JSON: {fault}{utf8}");
    Unusable::new(RefusalKind::CorruptRecord, message)
}

/// Where a whole object that looks like an event begins, behind the start of the text and up to its end.
fn whole_event_behind(text: &str) -> Option<usize> {
    const START: &[u8] = b"{\"type\"";
    let starts = memchr::memmem::find_iter(text.as_bytes(), START).filter(|&at| at > 0);
    // What is nested in a cut record reads far before it fails: all tries together read the text a few times.
    let mut bytes_left = text.len().saturating_mul(GLUED_READS_MAX);
    for at in starts.take(GLUED_TRIES_MAX) {
        let Err(fault) = scan(&text[at..]) else { return Some(at) };
        bytes_left = bytes_left.checked_sub(fault.offset)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(bytes: &[u8]) -> Option<RefusalKind> {
        decode(bytes, false).err().map(|u| u.kind)
    }

    #[test]
    fn unusable_records_are_told_apart() {
        use RefusalKind as K;
        assert_eq!(kind(b"{\"type\":\"x\"}\r"), None);
        assert_eq!(kind(b""), Some(K::BlankRecord));
        assert_eq!(kind(b" \t\r"), Some(K::BlankRecord));
        assert_eq!(kind(b"\0\0"), Some(K::NulPadding));
        assert_eq!(kind(b"\0{\"type\":\"x\"}"), Some(K::NulPadding));
        assert_eq!(kind(b"null"), Some(K::NotAnEvent));
        assert_eq!(kind(b"[{}]"), Some(K::NotAnEvent));
        assert_eq!(kind(b"{\"type\":\"x\",\"da"), Some(K::CorruptRecord));
        assert_eq!(kind(b"{\"a\":\"\xC3"), Some(K::CorruptRecord));
        assert_eq!(kind(b"{\"type\":\"x\",\"da{\"type\":\"y\",\"data\":{}}"), Some(K::GluedRecord));
        assert_eq!(kind(b"\xEF\xBB\xBF{\"type\":\"y\"}"), Some(K::CorruptRecord));
        let whole = decode(b"{\"type\":\"x\"} {\"type\":\"y\"}", false).err().expect("unusable");
        assert_eq!(whole.kind, K::GluedRecord);
        assert!(whole.message.starts_with("two whole records"), "{}", whole.message);
        assert_eq!(kind(b"{\"a\":[{\"type\":\"t\"}]"), Some(K::CorruptRecord));
    }

    #[test]
    fn invalid_utf8_in_an_object_is_located_and_readable() {
        let record = [&b"{\"a\":\"\xC3\xE2\x82."[..], &[0xFF; 1000], b"\"}"].concat();
        let decoded = decode(&record, false).ok().expect("an object");
        assert_eq!((decoded.bad_utf8, decoded.text.len()), (Some(6), record.len()));
        assert!(decoded.member("a").is_some_and(|a| a.raw().starts_with("\"???.???")));
        let decoded = decode(b"{\"a\":\"\xC3\"}", true).ok().expect("an object");
        assert!(decoded.member("a").is_some_and(|a| a.is_str("\u{FFFD}")));
    }

    #[test]
    fn of_repeated_members_the_last_counts_however_many_there_are() {
        let many: String = (0..40).map(|i| format!(r#""k{i}":0,"#)).collect();
        let text = format!(r#"{{"type":"turn/start",{many}"type":"turn\/end"}}"#);
        assert!(decode(text.as_bytes(), false).ok().expect("an object").is_turn_end());
    }
}
