//! What the validating pass remembers of the containers that are open: their kinds and their keys.
//!
//! Shallow and narrow texts cost no allocation; deep ones an eighth of a byte a level, wide ones eight bytes a key up to
//! a bound.

use super::string::compare_keys;

/// Objects are checked for repeated keys while no more than this many keys are open at once, which bounds
/// the memory of the check.
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
        if self.len > 0 && self.len % 64 == 0 {
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
        if self.len > 0 && self.len % 64 == 0 {
            self.top = self.below.pop().unwrap_or_default();
        }
        object
    }

    pub(super) fn top_is_object(&self) -> bool {
        self.top & 1 == 1
    }
}

/// The keys of all open objects, innermost last.
pub(super) struct Keys {
    spans: Stack<(u32, u32), 32>,
    starts: Stack<u32, 16>,
    /// The innermost object had more keys than are kept.
    overflow: bool,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { spans: Stack::new((0, 0)), starts: Stack::new(0), overflow: false }
    }

    pub(super) fn open(&mut self) {
        self.starts.push(u32::try_from(self.spans.len()).unwrap_or(u32::MAX));
    }

    pub(super) fn push(&mut self, key: (u32, u32)) {
        if self.spans.len() < OPEN_KEYS_MAX {
            self.spans.push(key);
        } else {
            self.overflow = true;
        }
    }

    /// Leaves the innermost object; the offset of a key that it has twice.
    pub(super) fn close(&mut self, text: &[u8]) -> Option<u32> {
        let start = self.starts.pop()? as usize;
        let spans = self.spans.from_mut(start);
        let repeated = if std::mem::take(&mut self.overflow) { None } else { repeated_key(spans, text) };
        self.spans.truncate(start);
        repeated
    }
}

/// Offset of the first key whose like stands before it.
fn repeated_key(spans: &mut [(u32, u32)], text: &[u8]) -> Option<u32> {
    let span = |s: &(u32, u32)| &text[s.0 as usize..s.1 as usize];
    let same = |a: &(u32, u32), b: &(u32, u32)| compare_keys(span(a), span(b)).is_eq();
    if spans.len() <= 8 {
        return (1..spans.len()).find(|&i| spans[..i].iter().any(|s| same(s, &spans[i]))).map(|i| spans[i].0);
    }
    spans.sort_by(|a, b| compare_keys(span(a), span(b)).then(a.0.cmp(&b.0)));
    spans.windows(2).filter(|w| same(&w[0], &w[1])).map(|w| w[1].0).min()
}

/// A stack whose first `N` elements lie in place.
struct Stack<T, const N: usize> {
    inline: [T; N],
    /// Elements in `inline`; all are in `spilled` once that is not empty.
    inline_len: usize,
    spilled: Vec<T>,
}

impl<T: Copy, const N: usize> Stack<T, N> {
    fn new(blank: T) -> Self {
        Self { inline: [blank; N], inline_len: 0, spilled: Vec::new() }
    }

    fn len(&self) -> usize {
        if self.spilled.is_empty() { self.inline_len } else { self.spilled.len() }
    }

    fn push(&mut self, element: T) {
        if self.spilled.is_empty() {
            if let Some(slot) = self.inline.get_mut(self.inline_len) {
                *slot = element;
                self.inline_len += 1;
                return;
            }
            self.spilled.extend_from_slice(&self.inline);
        }
        self.spilled.push(element);
    }

    fn pop(&mut self) -> Option<T> {
        let last = self.len().checked_sub(1)?;
        let element = self.from_mut(last).first().copied();
        self.truncate(last);
        element
    }

    /// The elements from `start` on.
    fn from_mut(&mut self, start: usize) -> &mut [T] {
        let all =
            if self.spilled.is_empty() { &mut self.inline[..self.inline_len] } else { &mut self.spilled[..] };
        all.get_mut(start..).unwrap_or_default()
    }

    fn truncate(&mut self, len: usize) {
        if len > 0 && !self.spilled.is_empty() {
            self.spilled.truncate(len);
        } else {
            self.spilled.clear();
            self.inline_len = self.inline_len.min(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_behaves_as_a_vector_across_its_border() {
        let mut stack = Stack::<u32, 4>::new(0);
        let mut model = Vec::new();
        for round in 0..40_u32 {
            for i in 0..round % 9 {
                stack.push(round * 10 + i);
                model.push(round * 10 + i);
            }
            assert_eq!(stack.from_mut(0), model);
            let keep = model.len() / 2;
            stack.truncate(keep);
            model.truncate(keep);
            assert_eq!((stack.pop(), stack.len()), (model.pop(), model.len()));
        }
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
