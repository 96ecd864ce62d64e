//! Long texts between two quotes, and which of them occur more than once.
//!
//! A payload such as an image is one JSON string. Finding it takes no JSON: only where quotes are that no backslash
//! escapes. A span is known by CRC and length until its bytes are compared, so nothing here decides that two are equal.

use std::collections::HashMap;
use std::ops::Range;

use crate::format::crc32;
use crate::limits::{SEALED_SPAN_BYTES_MIN, SEALED_TABLE_ENTRIES_MAX};

/// What two equal texts have in common, and few others.
pub(super) type Print = (u32, usize);

pub(super) fn print_of(text: &[u8]) -> Print {
    (crc32(text), text.len())
}

/// What is known of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    /// It was seen once, as far as its print tells.
    Once,
    /// It was seen again.
    Repeated,
    /// It is stored as this piece.
    Stored(u32),
}

/// The spans of a file's data.
#[derive(Debug, Default)]
pub(super) struct SpanTable {
    seen: HashMap<Print, Span>,
}

impl SpanTable {
    /// Counts the spans of one event's data.
    pub(super) fn observe(&mut self, data: &str) {
        for span in spans(data.as_bytes()) {
            let print = print_of(&data.as_bytes()[span]);
            let room = self.seen.len() < SEALED_TABLE_ENTRIES_MAX;
            match self.seen.get_mut(&print) {
                Some(seen) => *seen = Span::Repeated,
                None if room => {
                    self.seen.insert(print, Span::Once);
                }
                None => {}
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    pub(super) fn get(&self, print: Print) -> Option<Span> {
        self.seen.get(&print).copied()
    }

    pub(super) fn set_stored(&mut self, print: Print, piece: u32) {
        self.seen.insert(print, Span::Stored(piece));
    }
}

/// The places between two neighbouring unescaped quotes that are at least [`SEALED_SPAN_BYTES_MIN`] apart.
pub(super) fn spans(data: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let long_enough = if data.len() < SEALED_SPAN_BYTES_MIN { &[] } else { data };
    let mut quotes = memchr::memchr_iter(b'"', long_enough).filter(|&at| !is_escaped(data, at));
    let mut previous = quotes.next();
    std::iter::from_fn(move || {
        loop {
            let start = previous? + 1;
            previous = quotes.next();
            let end = previous?;
            if end - start >= SEALED_SPAN_BYTES_MIN {
                return Some(start..end);
            }
        }
    })
}

/// Whether an odd number of backslashes stands before `at`. They end at the quote before, so a scan stays linear.
fn is_escaped(data: &[u8], at: usize) -> bool {
    data[..at].iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(data: &str) -> Vec<usize> {
        spans(data.as_bytes()).map(|span| span.len()).collect()
    }

    #[test]
    fn only_long_texts_between_unescaped_quotes_are_spans() {
        let long = "x".repeat(4096);
        let cut = "x".repeat(4095);
        assert_eq!(lengths(&format!("[\"{long}\",\"{cut}\"]")), [4096]);
        assert_eq!(lengths(&format!("[\"{cut}\\\"\"]")), [4097]);
        assert_eq!(lengths(&format!("[\"{cut}\\\\\"]")), [4097]);
        assert_eq!(lengths(&format!("[\"{cut}\\\\\\\"{long}\"]")), [4095 + 4 + 4096]);
        assert_eq!(lengths(&format!("{long}\"{long}")), [0; 0]);
        assert_eq!(lengths(&long), [0; 0]);
        assert_eq!(lengths(&format!("\"\"{long}\"")), [4096]);
        assert_eq!(lengths(&"\\\"".repeat(9_000)), [0; 0]);
    }

    #[test]
    fn what_occurs_again_is_known() {
        let (a, b) = (format!("\"{}\"", "a".repeat(5_000)), format!("\"{}\"", "b".repeat(5_000)));
        let mut table = SpanTable::default();
        assert!(table.is_empty());
        for data in [&a, &b, &a, "\"short\"", "\"short\""] {
            table.observe(data);
        }
        let print = |data: &str| print_of(&data.as_bytes()[1..5_001]);
        assert_eq!(table.get(print(&a)), Some(Span::Repeated));
        assert_eq!(table.get(print(&b)), Some(Span::Once));
        assert_eq!(table.get((0, 5)), None);
        table.set_stored(print(&a), 3);
        assert_eq!(table.get(print(&a)), Some(Span::Stored(3)));
    }
}
