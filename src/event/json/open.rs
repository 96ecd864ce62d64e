//! What the validating pass remembers of the containers that are open: their kinds and their keys.
//!
//! Shallow and narrow texts cost no allocation; deep ones an eighth of a byte a level. Keys cost eight bytes each, as does
//! the start of an object among them, up to a bound for both together.

use super::string::compare_keys;

/// Keys, and objects, that are open at once; further keys are not checked for repetition. Bounds the memory of the check.
const OPEN_KEYS_MAX: usize = 1 << 16;

/// The kinds of the open containers: one bit each, the innermost in the lowest bit of `top`.
#[derive(Default)]
pub(super) struct Depth {
    top: u64,
    below: Vec<u64>,
    pub(super) len: usize,
}

impl Depth {
    pub(super) fn push(&mut self, object: bool) {
        if self.len > 0 && self.len.is_multiple_of(64) {
            self.below.push(self.top);
        }
        self.top = self.top << 1 | u64::from(object);
        self.len += 1;
    }

    /// Leaves the innermost container; `true` if it was an object.
    pub(super) fn pop(&mut self) -> bool {
        let object = self.top_is_object();
        self.top >>= 1;
        self.len -= 1;
        if self.len > 0 && self.len.is_multiple_of(64) {
            self.top = self.below.pop().unwrap_or_default();
        }
        object
    }

    pub(super) fn top_is_object(&self) -> bool {
        self.top & 1 == 1
    }
}

/// The keys of all open objects, innermost last; an empty span stands before the keys of each object.
pub(super) struct Keys {
    /// The first spans, which is all that ordinary texts need.
    inline: [(u32, u32); INLINE_KEYS],
    inline_len: usize,
    /// All spans, once there were too many.
    spilled: Vec<(u32, u32)>,
    /// The innermost objects that began when no room was left.
    unkept: usize,
    /// Some key so far was spelled with escapes, so equal keys may be spelled differently.
    escaped: bool,
}

/// Spans that are kept in place.
const INLINE_KEYS: usize = 32;

/// What stands before the keys of an object.
const MARK: (u32, u32) = (0, 0);

impl Keys {
    pub(super) fn new() -> Self {
        Self { inline: [MARK; INLINE_KEYS], inline_len: 0, spilled: Vec::new(), unkept: 0, escaped: false }
    }

    pub(super) fn open(&mut self) {
        if self.has_room() {
            self.push_span(MARK);
        } else {
            self.unkept += 1;
        }
    }

    pub(super) fn push(&mut self, key: (u32, u32), escaped: bool) {
        self.escaped |= escaped;
        if self.has_room() {
            self.push_span(key);
        }
    }

    /// Room never comes back inside an object that is not kept: only the end of a kept one frees any.
    fn has_room(&self) -> bool {
        self.spilled.len() < OPEN_KEYS_MAX
    }

    /// Leaves the innermost object; the offset of a key that it has twice.
    pub(super) fn close(&mut self, text: &[u8]) -> Option<u32> {
        if self.unkept > 0 {
            self.unkept -= 1;
            return None;
        }
        let all =
            if self.spilled.is_empty() { &mut self.inline[..self.inline_len] } else { &mut self.spilled[..] };
        let start = all.iter().rposition(|span| *span == MARK)?;
        let keys = &mut all[start + 1..];
        let repeated = repeated_key(keys, text, self.escaped);
        if self.spilled.is_empty() {
            self.inline_len = start;
        } else {
            self.spilled.truncate(start);
            self.inline_len = 0;
        }
        repeated
    }

    fn push_span(&mut self, span: (u32, u32)) {
        if self.spilled.is_empty() {
            if let Some(slot) = self.inline.get_mut(self.inline_len) {
                *slot = span;
                self.inline_len += 1;
                return;
            }
            self.spilled.extend_from_slice(&self.inline);
        }
        self.spilled.push(span);
    }
}

/// Offset of the first key whose like stands before it.
fn repeated_key(spans: &mut [(u32, u32)], text: &[u8], escaped: bool) -> Option<u32> {
    let key = |span: (u32, u32)| &text[span.0 as usize..span.1 as usize];
    let compare = |a, b| if escaped { compare_keys(key(a), key(b)) } else { key(a).cmp(key(b)) };
    if spans.len() <= 8 {
        let may_equal = |a: (u32, u32), b: (u32, u32)| escaped || a.1 - a.0 == b.1 - b.0;
        let same = |a, b| may_equal(a, b) && compare(a, b).is_eq();
        let repeats = |i: usize| spans[..i].iter().any(|earlier| same(*earlier, spans[i]));
        return (1..spans.len()).find(|i| repeats(*i)).map(|i| spans[i].0);
    }
    spans.sort_by(|a, b| compare(*a, *b).then(a.0.cmp(&b.0)));
    spans.windows(2).filter(|w| compare(w[0], w[1]).is_eq()).map(|w| w[1].0).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_their_object_across_the_border_of_the_inline_part() {
        // Objects in objects, four keys each, two spelled alike in every fifth object.
        let text: String = (0..200)
            .map(|i| format!("\"a\"\"bb\"\"ccc\"\"{}\"", if i % 5 == 0 { "a" } else { "d" }))
            .collect();
        let span = |at: usize, len: usize| (u32::try_from(at).unwrap(), u32::try_from(at + len).unwrap());
        let mut keys = Keys::new();
        for object in (0..200).map(|i| i * 15) {
            keys.open();
            [(0, 3), (3, 4), (7, 5), (12, 3)]
                .iter()
                .for_each(|(at, len)| keys.push(span(object + at, *len), false));
        }
        for i in (0..200_u32).rev() {
            let expected = (i % 5 == 0).then_some(i * 15 + 12);
            assert_eq!(keys.close(text.as_bytes()), expected, "object {i}");
        }
        assert_eq!(keys.close(b""), None);
    }

    #[test]
    fn any_number_of_open_objects_and_keys_takes_bounded_memory() {
        let text = b"\"a\"\"b\"";
        let (a, b) = ((0, 3), (3, 6));
        let mut keys = Keys::new();
        for _ in 0..200_000 {
            keys.open();
            keys.push(a, false);
        }
        assert_eq!(keys.spilled.len(), OPEN_KEYS_MAX);
        (0..200_000).for_each(|_| assert_eq!(keys.close(text), None));
        // Room is there again.
        keys.open();
        [a, b, a].into_iter().for_each(|key| keys.push(key, false));
        keys.open();
        (0..100_000).for_each(|_| keys.push(b, false));
        assert_eq!(keys.spilled.len(), OPEN_KEYS_MAX);
        assert_eq!(keys.close(text), Some(3));
        assert_eq!(keys.close(text), Some(0));
    }

    #[test]
    fn kinds_survive_any_depth() {
        let mut depth = Depth::default();
        let kinds: Vec<bool> = (0..1000).map(|i| i % 3 == 0).collect();
        kinds.iter().for_each(|kind| depth.push(*kind));
        for kind in kinds.iter().rev() {
            assert_eq!((depth.top_is_object(), depth.pop()), (*kind, *kind));
        }
        assert_eq!(depth.len, 0);
    }
}
