//! Equality of JSON values as JavaScript judges it, by digests that agree with it.
//!
//! One walk over the text, inner values before outer ones, without recursion: time grows with the text alone. Memory
//! is a few words for each open container that has a finished child, and for each member of an open object.

use std::borrow::Cow;
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::open::Depth;
use super::string::JsonString;
use super::value::{Value, next_token, skip};

/// 128-bit fingerprint of a value; stable over releases and machines.
pub type Digest = u128;

/// Which differences between two values count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyOrder {
    /// The order of keys does not.
    Ignored,
    /// The order of keys counts, as JavaScript keeps it: integer-like keys first in ascending order, then the others in
    /// the order of their first appearance.
    Counts,
}

/// Builds a [`Digest`] of several values and words.
#[derive(Debug, Default)]
pub struct Digester(SipHasher13);

impl Digester {
    /// Adds a value by meaning: key order, number spelling and escapes do not matter, presence does.
    pub fn value(&mut self, value: Value<'_>) {
        self.0.write_u128(digest(value, KeyOrder::Ignored));
    }

    /// Adds a value as [`ordered_equal`] judges it.
    pub fn ordered_value(&mut self, value: Value<'_>) {
        self.0.write_u128(digest(value, KeyOrder::Counts));
    }

    /// Adds bytes with their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.write_u64(bytes.len() as u64);
        self.0.write(bytes);
    }

    /// The fingerprint of all that was added.
    #[must_use]
    pub fn finish(&self) -> Digest {
        self.0.finish128().as_u128()
    }
}

/// Whether two values mean the same: objects without regard to key order, the last of repeated keys wins,
/// numbers as doubles, strings decoded (spec section 21, Surface).
#[must_use]
pub fn equal(a: Value<'_>, b: Value<'_>) -> bool {
    a.raw() == b.raw() || digest(a, KeyOrder::Ignored) == digest(b, KeyOrder::Ignored)
}

/// Whether two values serialise to the same text in JavaScript, by which tool lists compare (spec section 21, Header
/// equality): as [`equal`], but the order of keys counts as JavaScript keeps it.
#[must_use]
pub fn ordered_equal(a: Value<'_>, b: Value<'_>) -> bool {
    a.raw() == b.raw() || digest(a, KeyOrder::Counts) == digest(b, KeyOrder::Counts)
}

fn digest(value: Value<'_>, order: KeyOrder) -> Digest {
    let mut walk = Walk {
        text: value.raw(),
        order,
        depth: Depth::default(),
        arrays: Vec::new(),
        objects: Vec::new(),
        members: Vec::new(),
    };
    let mut at = 0;
    while let Some(start) = next_token(walk.text.as_bytes(), at) {
        match walk.take(start) {
            Step::Next(next) => at = next,
            Step::Done(digest) => return digest,
        }
    }
    0
}

/// The open containers of a walk, and what is known of their children.
struct Walk<'a> {
    text: &'a str,
    order: KeyOrder,
    depth: Depth,
    /// For each open array with a finished child: its level, and its children so far.
    arrays: Vec<(usize, Digest)>,
    /// For each open object: where its members begin.
    objects: Vec<usize>,
    /// Members of the open objects. The last one of an object waits for its value while that is open.
    members: Vec<Member<'a>>,
}

struct Member<'a> {
    key: &'a str,
    digest: Option<Digest>,
}

enum Step {
    Next(usize),
    Done(Digest),
}

impl<'a> Walk<'a> {
    /// Takes the token at `start`.
    fn take(&mut self, start: usize) -> Step {
        let bytes = self.text.as_bytes();
        match bytes[start] {
            open @ (b'{' | b'[') => {
                self.depth.push(open == b'{');
                if open == b'{' {
                    self.objects.push(self.members.len());
                }
                Step::Next(start + 1)
            }
            b'}' | b']' => self.close(start + 1),
            _ => {
                let end = skip(bytes, start);
                let token = self.text.get(start..end).unwrap_or_default();
                if self.awaits_key() {
                    self.members.push(Member { key: token, digest: None });
                    return Step::Next(end);
                }
                self.deliver(scalar_digest(token), end)
            }
        }
    }

    /// Whether the next token is a key: the innermost container is an object whose last member has its value.
    fn awaits_key(&self) -> bool {
        if self.depth.len == 0 || !self.depth.top_is_object() {
            return false;
        }
        let first = self.objects.last().copied().unwrap_or_default();
        self.members.len() == first || self.members.last().is_some_and(|member| member.digest.is_some())
    }

    fn close(&mut self, end: usize) -> Step {
        if self.depth.len == 0 {
            return Step::Done(0);
        }
        let level = self.depth.len;
        let digest = if self.depth.pop() {
            let first = self.objects.pop().unwrap_or_default();
            object_digest(self.members.drain(first..), self.order)
        } else {
            let children = self.arrays.pop_if(|(array, _)| *array == level);
            hash(b'[', |hasher| hasher.write_u128(children.map_or(0, |(_, digest)| digest)))
        };
        self.deliver(digest, end)
    }

    /// Gives a finished value to the container that it stands in.
    fn deliver(&mut self, digest: Digest, end: usize) -> Step {
        let level = self.depth.len;
        if level == 0 {
            return Step::Done(digest);
        }
        if self.depth.top_is_object() {
            if let Some(member) = self.members.last_mut() {
                member.digest = Some(digest);
            }
        } else {
            match self.arrays.last_mut().filter(|(array, _)| *array == level) {
                Some((_, children)) => *children = chained(*children, digest),
                None => self.arrays.push((level, chained(0, digest))),
            }
        }
        Step::Next(end)
    }
}

/// Digest of an object: overridden members left out, in the order that counts.
fn object_digest<'a>(members: impl Iterator<Item = Member<'a>>, order: KeyOrder) -> Digest {
    let mut keyed: Vec<(JsonString<'a>, usize, Digest)> =
        members.enumerate().map(|(i, m)| (JsonString::decode(m.key), i, m.digest.unwrap_or(0))).collect();
    keyed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1)));
    // Of each run of equal keys: the place of the first, the value of the last.
    let mut kept: Vec<(JsonString<'a>, usize, Digest)> = Vec::with_capacity(keyed.len());
    for (key, place, digest) in keyed {
        match kept.last_mut() {
            Some(last) if last.0 == key => last.2 = digest,
            _ => kept.push((key, place, digest)),
        }
    }
    if order == KeyOrder::Counts {
        kept.sort_by_key(|(key, place, _)| match array_index(key) {
            Some(index) => (0, u64::from(index)),
            None => (1, *place as u64),
        });
    }
    hash(b'{', |hasher| {
        for (key, _, digest) in &kept {
            hasher.write_u64(key.as_bytes().len() as u64);
            hasher.write(key.as_bytes());
            hasher.write_u128(*digest);
        }
    })
}

fn scalar_digest(token: &str) -> Digest {
    let value = Value::new(token);
    match token.as_bytes().first() {
        Some(b'"') => hash(b'"', |hasher| hasher.write(JsonString::decode(token).as_bytes())),
        Some(b't' | b'f' | b'n') => hash(b'k', |hasher| hasher.write(token.as_bytes())),
        _ => hash(b'0', |hasher| hasher.write(number_text(value).as_bytes())),
    }
}

fn chained(before: Digest, child: Digest) -> Digest {
    hash(b',', |hasher| {
        hasher.write_u128(before);
        hasher.write_u128(child);
    })
}

fn hash(kind: u8, feed: impl FnOnce(&mut SipHasher13)) -> Digest {
    let mut hasher = SipHasher13::new();
    hasher.write_u8(kind);
    feed(&mut hasher);
    hasher.finish128().as_u128()
}

/// The number if `key` is one that JavaScript sorts first: canonical, below 2^32 - 1.
fn array_index(key: &JsonString<'_>) -> Option<u32> {
    let text = key.to_str()?;
    let index = text.parse::<u32>().ok().filter(|&n| n != u32::MAX)?;
    (index.to_string() == text).then_some(index)
}

/// One spelling for each double: plain integers where exact, else the shortest digits that read back.
fn number_text(value: Value<'_>) -> Cow<'_, str> {
    let plain = value.raw().len() <= 15 && value.raw().bytes().all(|b| b.is_ascii_digit());
    if plain {
        return Cow::Borrowed(value.raw());
    }
    match value.safe_integer() {
        Some(integer) => Cow::Owned(integer.to_string()),
        None => Cow::Owned(format!("{:e}", value.number().unwrap_or(f64::NAN))),
    }
}
