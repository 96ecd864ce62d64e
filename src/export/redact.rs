//! Replaces secrets in the strings of a session's events, on their way out.
//!
//! Which parts of a text are secrets is for the caller to say. Only those parts change, each into a tag that equal secrets
//! share, so all other bytes stay as they are. Keys of objects and the words that the format lives on (types, ids, roles,
//! header reasons) stay too, so the result is a valid log with the same seqs, surface and pairing.
//!
//! Texts are searched decoded, and decoded again as long as they hold escapes: JSON inside of JSON, as tools are called with
//! it, hides nothing. A streamed text is searched as a whole, however its chunks cut it.

mod chunks;
mod edit;
mod view;
mod walk;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use self::chunks::Chunks;
use self::edit::{Edit, apply, merge};
use self::walk::Strings;
use crate::Result;
use crate::event::Event;

/// A part of a text that must not go out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// Where it lies, in bytes.
    pub range: Range<usize>,
    /// What found it: a number of the caller's, by which [`Redactor::counts`] counts.
    pub pattern: usize,
}

/// Says what is secret in a text: given the key of the member that the text is the value of, if it is one, and the text. The
/// ranges must lie on character boundaries; they may overlap.
pub type FindSecrets<'f> = dyn Fn(Option<&str>, &str) -> Vec<Secret> + 'f;

/// Replaces secrets in events. Equal secrets get equal tags in all sessions that one redactor sees.
pub struct Redactor<'f> {
    find: &'f FindSecrets<'f>,
    tags: Tags,
    chunks: Chunks,
}

impl<'f> Redactor<'f> {
    /// A redactor that asks `find` what is secret.
    #[must_use]
    pub fn new(find: &'f FindSecrets<'f>) -> Self {
        Self { find, tags: Tags::default(), chunks: Chunks::default() }
    }

    /// How many secrets were replaced so far, by what found them.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<usize, u64> {
        &self.tags.counts
    }

    /// Begins a session; of one that failed before its end nothing is left.
    pub fn begin(&mut self) {
        self.chunks = Chunks::default();
    }

    /// Takes the next event of a session; `sink` is given the events that are certain by now, in order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if the chunks of one step exceed what is held back to search them as a
    /// whole; those of `sink`.
    pub fn event(&mut self, event: Event<'_>, sink: &mut Sink<'_>) -> Result<()> {
        if self.chunks.must_hold(&event) {
            self.chunks.hold(event)?;
        } else {
            sink(&self.redacted(event, Vec::new()))?;
        }
        if self.chunks.is_complete() { self.release(sink) } else { Ok(()) }
    }

    /// Ends a session: `sink` is given the events that were held back.
    ///
    /// # Errors
    ///
    /// Those of `sink`.
    pub fn finish(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.release(sink)
    }

    fn release(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let find = self.find;
        let held = self.chunks.take(&|text| secrets(find, None, text));
        held.into_iter().try_for_each(|(event, edits)| sink(&self.redacted(event, edits)))
    }

    /// The event without its secrets: `edits` are those that its chunk's text has a part in.
    fn redacted<'e>(&mut self, event: Event<'e>, mut edits: Vec<Edit>) -> Event<'e> {
        let alone = Strings::of(&event.data).filter(|string| !string.is_structural());
        for string in alone {
            let literal = view::of_literal(string.literal);
            let found = secrets(self.find, string.key().as_deref(), literal.text());
            edits.extend(found.into_iter().map(|edit| {
                let range = literal.source_range(&edit.range);
                Edit { range: string.at + range.start..string.at + range.end, ..edit }
            }));
        }
        if edits.is_empty() {
            return event;
        }
        let data = apply(&event.data, &merge(edits), &mut self.tags);
        Event { data: Cow::Owned(data), ..event }
    }
}

/// Takes the events that come out of a [`Redactor`].
pub type Sink<'s> = dyn FnMut(&Event<'_>) -> Result<()> + 's;

/// The secrets of a decoded text, at any level of escaping, in its own places.
fn secrets(find: &FindSecrets<'_>, key: Option<&str>, text: &str) -> Vec<Edit> {
    let mut edits: Vec<Edit> = find(key, text)
        .into_iter()
        .filter_map(|secret| Edit::new(&secret, text, secret.range.clone()))
        .collect();
    let mut deeper: Vec<view::View<'_>> = Vec::new();
    for _ in 0..view::LEVELS_MAX {
        let source = deeper.last().map_or(text, view::View::text);
        let Some(unescaped) = view::unescaped(source) else { break };
        let outward = |range: &Range<usize>| {
            deeper.iter().rev().fold(unescaped.source_range(range), |range, view| view.source_range(&range))
        };
        let found = find(None, unescaped.text());
        edits.extend(found.iter().filter_map(|s| Edit::new(s, unescaped.text(), outward(&s.range))));
        deeper.push(unescaped.into_owned());
    }
    merge(edits)
}

/// The tags given out, and how often.
#[derive(Default)]
struct Tags {
    by_secret: HashMap<String, usize>,
    counts: BTreeMap<usize, u64>,
}

impl Tags {
    /// The tag of a secret, which is counted.
    fn of(&mut self, secret: &str, pattern: usize) -> String {
        *self.counts.entry(pattern).or_default() += 1;
        let next = self.by_secret.len() + 1;
        let number = match self.by_secret.get(secret) {
            Some(&number) => number,
            None => *self.by_secret.entry(secret.to_owned()).or_insert(next),
        };
        format!("[redacted:{number}]")
    }
}

#[cfg(test)]
mod tests;
