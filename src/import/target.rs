//! Where an imported log goes: nowhere, into a new session, or against a stored one.
//!
//! What the store has against one log is that log's refusal; only what ends every import is an error.

use super::judgement::word;
use super::{Item, Place};
use crate::event::json::{JsonString, Value, equal};
use crate::event::{Admitted, Event, Refusal, RefusalKind, SessionHeader};
use crate::ids::Seq;
use crate::store::Ingest;
use crate::{Error, ErrorKind, Events, Result, Session, Store};

/// The destination of one log.
pub(super) struct Target<'s> {
    store: Option<&'s Store>,
    mode: Mode,
    destination: Destination,
    /// Where the record stands that is judged now.
    at: Place,
    seen: u64,
}

/// What is done with events that the store lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// They are counted.
    Compare,
    /// Those of a new session are taken in.
    Create,
    /// Those that follow a stored session are taken in too.
    Extend,
}

/// What an import did, or would do.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) added: u64,
    pub(super) skipped: u64,
    pub(super) conflict: Option<Refusal>,
    /// A stored session lacks the events counted as added.
    pub(super) extends: bool,
}

enum Destination {
    /// The header has not come yet, or nobody wants the events.
    Nowhere,
    /// The store has no such session.
    New(Option<Box<Ingest>>),
    /// The store has one.
    Stored(Box<Comparison>),
    /// The store takes none of it.
    Refused(Refusal),
}

/// A stored session, compared with a log event by event.
struct Comparison {
    session: Session,
    stored: Events,
    stored_end: u64,
    extension: Option<Ingest>,
}

impl<'s> Target<'s> {
    pub(super) fn nowhere() -> Self {
        Self {
            store: None,
            mode: Mode::Compare,
            destination: Destination::Nowhere,
            at: Place::Line(1, 0),
            seen: 0,
        }
    }

    pub(super) fn store(store: &'s Store, mode: Mode) -> Self {
        Self { store: Some(store), mode, ..Self::nowhere() }
    }

    /// Notes the record that the events to come are in.
    pub(super) fn next_item(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(record) => self.at = record.place(),
            Item::HeaderRow { rowid, .. } => self.at = Place::Row(*rowid),
            Item::Unusable(..) | Item::Fault(_) | Item::TornFrame { .. } => {}
        }
    }

    /// Chooses the destination by the log's header. Later calls change nothing.
    pub(super) fn decide(&mut self, header: &SessionHeader) -> Result<()> {
        let Some(store) = self.store.take() else { return Ok(()) };
        self.destination = match place_of(store, self.mode, header) {
            Ok(place) => place,
            Err(error) => Destination::Refused(refusal_of(error)?),
        };
        self.refuse_at_record();
        Ok(())
    }

    pub(super) fn push(&mut self, admitted: &Admitted<'_>) -> Result<()> {
        self.seen += 1;
        let pushed = match &mut self.destination {
            Destination::New(Some(ingest)) => ingest.push(admitted).map(|()| None),
            Destination::Stored(comparison) => comparison.push(admitted),
            Destination::Nowhere | Destination::New(None) | Destination::Refused(_) => return Ok(()),
        };
        let refusal = match pushed {
            Ok(None) => return Ok(()),
            Ok(Some(refusal)) => refusal,
            Err(error) => refusal_of(error)?,
        };
        self.destination = Destination::Refused(refusal);
        self.refuse_at_record();
        Ok(())
    }

    /// Makes the log's events the store's, unless the log is `refused`.
    pub(super) fn conclude(self, refused: bool) -> Result<Outcome> {
        let outcome = match self.destination {
            _ if refused => Ok(Outcome::default()),
            Destination::Nowhere => Ok(Outcome::default()),
            Destination::Refused(refusal) => Ok(Outcome { conflict: Some(refusal), ..Outcome::default() }),
            Destination::New(ingest) => {
                let finished = ingest.map_or(Ok(()), |ingest| ingest.finish().map(drop));
                finished.map(|()| Outcome { added: self.seen, ..Outcome::default() })
            }
            Destination::Stored(comparison) => comparison.conclude(self.seen),
        };
        outcome.or_else(|error| Ok(Outcome { conflict: Some(refusal_of(error)?), ..Outcome::default() }))
    }

    fn refuse_at_record(&mut self) {
        if let Destination::Refused(refusal) = &mut self.destination {
            *refusal = self.at.mark(refusal.clone());
        }
    }
}

impl Comparison {
    fn new(session: Session, mode: Mode) -> Result<Self> {
        let extension = (mode == Mode::Extend).then(|| session.extend()).transpose()?;
        let stored_end = session.next_seq()?;
        let stored = session.events(Seq::new(0)..stored_end)?;
        Ok(Self { session, stored, stored_end: stored_end.get(), extension })
    }

    /// Compares the next event; one that the session lacks is taken in if it is to be extended.
    fn push(&mut self, admitted: &Admitted<'_>) -> Result<Option<Refusal>> {
        let event = admitted.event();
        if event.seq.get() >= self.stored_end {
            return self.extension.as_mut().map_or(Ok(()), |ingest| ingest.push(admitted)).map(|()| None);
        }
        match self.stored.next() {
            Some(Ok(stored)) => Ok(difference(&stored, event).map(|what| {
                let message = format!(
                    "the stored session {} went another way here, {what}; give the log a new id",
                    self.session.id()
                );
                conflict(message).at_seq(event.seq)
            })),
            Some(Err(error)) => Err(error.with_seq(event.seq)),
            None => Ok(None),
        }
    }

    fn conclude(self, seen: u64) -> Result<Outcome> {
        let added = seen.saturating_sub(self.stored_end);
        let extends = added > 0;
        if let Some(ingest) = self.extension.filter(|_| extends) {
            ingest.finish()?;
        }
        Ok(Outcome { added, skipped: seen - added, conflict: None, extends })
    }
}

fn place_of(store: &Store, mode: Mode, header: &SessionHeader) -> Result<Destination> {
    match store.session(&header.id) {
        Ok(session) => Ok(match header_difference(session.header(), header) {
            Some(what) => Destination::Refused(conflict(format!(
                "the store holds a session {} with another {what}; give one of them a new id",
                header.id
            ))),
            None => Destination::Stored(Box::new(Comparison::new(session, mode)?)),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let ingest = (mode != Mode::Compare).then(|| store.ingest(header.clone())).transpose()?;
            Ok(Destination::New(ingest.map(Box::new)))
        }
        Err(error) => Err(error),
    }
}

/// What the store has against this log; an error that ends every import comes back.
fn refusal_of(error: Error) -> Result<Refusal> {
    let kind = match error.kind() {
        ErrorKind::Conflict | ErrorKind::Corrupt | ErrorKind::NotFound => RefusalKind::IdConflict,
        ErrorKind::Limit => RefusalKind::Limit,
        ErrorKind::Rejected => error.refusal().unwrap_or(RefusalKind::Header),
        _ => return Err(error),
    };
    let next = match error.kind() {
        ErrorKind::Corrupt => "run verify on the store, or give the log a new id",
        ErrorKind::Limit | ErrorKind::Rejected => "mend a copy of the log",
        _ => "import it again",
    };
    let refusal = Refusal::new(kind, "same-session", format!("the store takes none of it: {error}; {next}"));
    Ok(Refusal { seq: error.seq(), ..refusal })
}

fn conflict(message: String) -> Refusal {
    Refusal::new(RefusalKind::IdConflict, "same-session", message)
}

/// The first member in which two headers of one id differ, with both values; an absent delegation depth means 0.
fn header_difference(stored: &SessionHeader, log: &SessionHeader) -> Option<String> {
    let shown = |header: &SessionHeader| {
        let text = |value: &Option<JsonString<'_>>| {
            value.as_ref().map_or("none".into(), |text| word(&text.to_lossy()))
        };
        [
            ("createdAt", header.created_at.to_string()),
            ("cwd", text(&header.cwd)),
            ("parentSession", text(&header.parent_session)),
            ("seedLength", header.seed_length.map_or("none".into(), |length| length.to_string())),
            ("origin", if header.subagent { "subagent" } else { "none" }.into()),
            ("delegationDepth", header.delegation_depth.unwrap_or(0).to_string()),
            ("agentPreset", text(&header.agent_preset)),
        ]
    };
    let same = SessionHeader { delegation_depth: log.delegation_depth, ..stored.clone() } == *log
        && stored.delegation_depth.unwrap_or(0) == log.delegation_depth.unwrap_or(0);
    if same {
        return None;
    }
    let mut members = shown(stored).into_iter().zip(shown(log));
    let differing = members.find(|((_, stored), (_, log))| stored != log);
    Some(
        differing
            .map_or("header".into(), |((name, stored), (_, log))| format!("{name}: {stored}, not {log}")),
    )
}

/// What differs between a stored event and the log's, with both values.
fn difference(stored: &Event<'_>, log: &Event<'_>) -> Option<String> {
    let pair = |name: &str, stored: &dyn std::fmt::Display, log: &dyn std::fmt::Display| {
        Some(format!("it holds {name} {stored}, the log {log}"))
    };
    if stored.type_name != log.type_name {
        return pair("an event", &stored.type_name, &log.type_name);
    }
    if stored.time != log.time {
        return pair("the time", &stored.time, &log.time);
    }
    if stored.data != log.data && !equal(Value::new(&stored.data), Value::new(&log.data)) {
        let (stored, log) = excerpts(&stored.data, &log.data);
        return pair("data", &stored, &log);
    }
    let same = stored.surface_op == log.surface_op
        && stored.sources == log.sources
        && stored.ignorable == log.ignorable;
    (!same).then(|| "its surfaceOp, sourceEventSeqs or ignorable differ from the log's".into())
}

/// Two texts from shortly before the first byte in which they differ.
fn excerpts(a: &str, b: &str) -> (String, String) {
    const BEFORE_BYTES: usize = 24;
    let differs = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    // Up to here both are the same, so it is a boundary in both.
    let start =
        (0..=differs.saturating_sub(BEFORE_BYTES)).rev().find(|&at| a.is_char_boundary(at)).unwrap_or(0);
    let lead = if start > 0 { "..." } else { "" };
    (format!("{lead}{}", word(&a[start..])), format!("{lead}{}", word(&b[start..])))
}
