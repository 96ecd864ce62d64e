//! The event as every layer above knows it, and what the gate makes of one (spec sections 2 and 5).
//!
//! `data` stays the JSON text that it arrived as. An [`Admitted`] event can only be made by
//! [`admit`](super::admit).

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::ops::Range;

use super::json::{Digest, JsonString, Value, write_string};
use super::payload::Payload;
use super::verdict::Warning;
use crate::ids::Seq;

/// One event of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `type` member.
    pub type_name: Cow<'a, str>,
    /// Position in the session.
    pub seq: Seq,
    /// Milliseconds since the Unix epoch; may go backwards.
    pub time: i64,
    /// The payload: one JSON value, as it arrived.
    pub data: Cow<'a, str>,
    /// How the event changes the surface.
    pub surface_op: Option<SurfaceOp>,
    /// `sourceEventSeqs`: the events that this one derives from, in the given order.
    pub sources: Option<Cow<'a, [Seq]>>,
    /// Readers that do not know the type may pass over it.
    pub ignorable: bool,
}

/// How an event changes the surface (spec section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurfaceOp {
    /// The event becomes the last node.
    Append,
    /// The event takes the place of the nodes from `start` to `end`, both included, by position.
    Replace {
        /// First node replaced.
        start: Seq,
        /// Last node replaced.
        end: Seq,
    },
}

/// Where a candidate comes from; the only thing by which admission differs (spec section 20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A live append.
    Append,
    /// Events that a new session starts with.
    Seed,
    /// The store's own log, read back.
    Load,
    /// A log of another format.
    Import,
}

/// `sourceEventSeqs` as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provenance<'a> {
    /// A plain list.
    List(Cow<'a, [Seq]>),
    /// Single seqs and `[start, end]` pairs, as later v0 writers spell it: each member as an inclusive range.
    Ranges(Vec<(Seq, Seq)>),
}

impl Provenance<'_> {
    /// The same provenance, borrowing this one's list.
    #[must_use]
    pub fn borrowed(&self) -> Provenance<'_> {
        match self {
            Self::List(list) => Provenance::List(Cow::Borrowed(list)),
            Self::Ranges(ranges) => Provenance::Ranges(ranges.clone()),
        }
    }
}

/// An event that asks to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The `type` member.
    pub type_name: Cow<'a, str>,
    /// The claimed position; absent where the session assigns it.
    pub seq: Option<Seq>,
    /// Milliseconds since the Unix epoch.
    pub time: i64,
    /// The payload.
    pub data: Payload<'a>,
    /// The surface op.
    pub surface_op: Option<SurfaceOp>,
    /// `sourceEventSeqs`.
    pub sources: Option<Provenance<'a>>,
    /// The `ignorable` mark.
    pub ignorable: bool,
}

/// What admission must know of the session so far. The projections implement it.
pub trait SessionState {
    /// The session's id (for the ids of identified legacy messages).
    fn session_id(&self) -> &str;

    /// The seq that the next event must have.
    fn next_seq(&self) -> Seq;

    /// The surface nodes in order.
    fn surface(&self) -> &[u32];

    /// Position of a node on the surface.
    fn position_of(&self, node: Seq) -> Option<usize>;

    /// Fingerprint of a `tool/result` on the surface without its content; `None` for any other node.
    fn rewrite_digest(&self, node: Seq) -> Option<Digest>;

    /// Message id of an earlier event, where it is known: only imports of older shapes ask.
    fn message_id(&self, event: Seq) -> Option<JsonString<'_>>;
}

/// Where an admitted event stands towards the surface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// Not on the surface.
    LogOnly,
    /// Becomes the last node.
    Append,
    /// Takes the place of the nodes at these positions.
    Replace(Range<usize>),
}

/// An event that passed the gate, with the plan by which the projections take it in.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted<'a> {
    pub(super) event: Event<'a>,
    pub(super) placement: Placement,
    pub(super) rewrite_digest: Option<Digest>,
    pub(super) warnings: Vec<Warning>,
}

impl<'a> Admitted<'a> {
    /// The event, normalised.
    #[must_use]
    pub fn event(&self) -> &Event<'a> {
        &self.event
    }

    /// The event itself.
    #[must_use]
    pub fn into_event(self) -> Event<'a> {
        self.event
    }

    /// Its place on the surface.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// For a `tool/result`: what a later rewrite must keep.
    #[must_use]
    pub fn rewrite_digest(&self) -> Option<Digest> {
        self.rewrite_digest
    }

    /// What the gate let pass but found remarkable.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

impl Event<'_> {
    /// The payload, to walk in place.
    #[must_use]
    pub fn value(&self) -> Value<'_> {
        Value::new(&self.data)
    }

    /// Appends the event as one line of JSON without a line feed: keys in the order type, seq, time, data,
    /// sourceEventSeqs, surfaceOp, ignorable; the data byte for byte.
    pub fn write_json(&self, out: &mut String) {
        out.push_str("{\"type\":");
        write_string(out, &JsonString::from(&*self.type_name));
        out.push_str(",\"seq\":");
        write_integer(out, self.seq);
        out.push_str(",\"time\":");
        write_integer(out, self.time);
        out.push_str(",\"data\":");
        out.push_str(&self.data);
        if let Some(sources) = &self.sources {
            out.push_str(",\"sourceEventSeqs\":[");
            for (i, source) in sources.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_integer(out, source);
            }
            out.push(']');
        }
        if let Some(op) = self.surface_op {
            out.push_str(",\"surfaceOp\":");
            op.write_json(out);
        }
        if self.ignorable {
            out.push_str(",\"ignorable\":true");
        }
        out.push('}');
    }

    /// The event free of borrowed text.
    #[must_use]
    pub fn into_owned(self) -> Event<'static> {
        Event {
            type_name: Cow::Owned(self.type_name.into_owned()),
            seq: self.seq,
            time: self.time,
            data: Cow::Owned(self.data.into_owned()),
            surface_op: self.surface_op,
            sources: self.sources.map(|s| Cow::Owned(s.into_owned())),
            ignorable: self.ignorable,
        }
    }
}

impl SurfaceOp {
    /// Appends the op as JSON, as an event carries it.
    pub fn write_json(self, out: &mut String) {
        match self {
            Self::Append => out.push_str("\"append\""),
            Self::Replace { start, end } => {
                out.push_str("{\"op\":\"replace\",\"start\":");
                write_integer(out, start);
                out.push_str(",\"end\":");
                write_integer(out, end);
                out.push('}');
            }
        }
    }
}

impl<'a> Candidate<'a> {
    /// A candidate off the surface for the next seq.
    #[must_use]
    pub fn new(type_name: impl Into<Cow<'a, str>>, time: i64, data: impl Into<Payload<'a>>) -> Self {
        Self {
            type_name: type_name.into(),
            seq: None,
            time,
            data: data.into(),
            surface_op: None,
            sources: None,
            ignorable: false,
        }
    }

    /// The candidate free of borrowed text.
    #[must_use]
    pub fn into_owned(self) -> Candidate<'static> {
        let sources = self.sources.map(|sources| match sources {
            Provenance::List(list) => Provenance::List(Cow::Owned(list.into_owned())),
            Provenance::Ranges(ranges) => Provenance::Ranges(ranges),
        });
        Candidate {
            type_name: Cow::Owned(self.type_name.into_owned()),
            seq: self.seq,
            time: self.time,
            data: self.data.into_owned(),
            surface_op: self.surface_op,
            sources,
            ignorable: self.ignorable,
        }
    }
}

/// Writing to a `String` cannot fail.
fn write_integer(out: &mut String, integer: impl fmt::Display) {
    let _ = write!(out, "{integer}");
}
