//! Changes to a text: which ranges go, and what takes their place.

use std::ops::Range;

use super::{Secret, Tags};

/// A range that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edit {
    /// Where, in the text that is changed.
    pub(super) range: Range<usize>,
    /// The secret as it reads decoded.
    pub(super) secret: String,
    pub(super) pattern: usize,
    /// What the range is of its secret.
    pub(super) part: Part,
}

/// A secret that chunks cut is replaced where it begins and left out in the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it, or its beginning.
    Head,
    /// What follows in a later chunk.
    Rest,
}

impl Edit {
    /// The edit for a secret found in `text` whose place in the text to change is `range`; none for an empty one.
    pub(super) fn new(secret: &Secret, text: &str, range: Range<usize>) -> Option<Self> {
        let found = text.get(secret.range.clone()).filter(|found| !found.is_empty())?;
        Some(Self { range, secret: found.to_owned(), pattern: secret.pattern, part: Part::Head })
    }
}

/// The edits in order, those that overlap made one that covers both. It is told by the longest of them.
pub(super) fn merge(mut edits: Vec<Edit>) -> Vec<Edit> {
    edits.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
    let mut merged: Vec<Edit> = Vec::with_capacity(edits.len());
    for edit in edits {
        let Some(last) = merged.last_mut().filter(|last| edit.range.start < last.range.end) else {
            merged.push(edit);
            continue;
        };
        let range = last.range.start..last.range.end.max(edit.range.end);
        // Part of a secret that began in an earlier chunk: it has its tag there.
        let rest = Part::Rest == last.part || Part::Rest == edit.part;
        if edit.secret.len() > last.secret.len() {
            *last = edit;
        }
        last.range = range;
        last.part = if rest { Part::Rest } else { Part::Head };
    }
    merged
}

/// The text with `edits`, merged ones, carried out.
pub(super) fn apply(text: &str, edits: &[Edit], tags: &mut Tags) -> String {
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for edit in edits {
        out.push_str(text.get(from..edit.range.start).unwrap_or_default());
        if edit.part == Part::Head {
            out.push_str(&tags.of(&edit.secret, edit.pattern));
        }
        from = edit.range.end;
    }
    out.push_str(text.get(from..).unwrap_or_default());
    out
}
