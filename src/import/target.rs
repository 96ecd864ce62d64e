//! Where an imported log goes: nowhere, into a new session, or against a stored one.

use super::judgement::Judgement;
use crate::event::json::{Value, equal};
use crate::event::{Admitted, Event, Refusal, RefusalKind, SessionHeader};
use crate::ids::Seq;
use crate::store::Ingest;
use crate::{ErrorKind, Events, Result, Session, Store};

/// The destination of one log.
pub(super) enum Target<'s> {
    /// The log is only judged.
    Nowhere,
    /// The header has not come yet.
    Undecided(&'s Store),
    /// The store has no such session.
    New(Box<Ingest>),
    /// The store has one.
    Stored(Box<Comparison>),
}

/// A stored session, compared with a log event by event.
pub(super) struct Comparison {
    session: Session,
    stored: Events,
    stored_end: u64,
    seen: u64,
    conflict: Option<Refusal>,
}

/// What an import did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) added: u64,
    pub(super) skipped: u64,
    pub(super) conflict: Option<Refusal>,
}

/// Takes the events of a log that the stored session lacks.
pub(super) struct Extension {
    ingest: Ingest,
    from: Seq,
}

impl Extension {
    pub(super) fn push(&mut self, admitted: &Admitted<'_>) -> Result<()> {
        if admitted.event().seq < self.from { Ok(()) } else { self.ingest.push(admitted) }
    }
}

impl Target<'_> {
    /// Chooses the destination by the log's header. Later calls change nothing.
    pub(super) fn decide(&mut self, header: &SessionHeader) -> Result<()> {
        let Target::Undecided(store) = self else { return Ok(()) };
        let found = store.session(&header.id);
        *self = match found {
            Ok(session) => Target::Stored(Box::new(Comparison::new(session, header)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Target::New(Box::new(store.ingest(header.clone())?))
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }

    pub(super) fn push(&mut self, admitted: &Admitted<'_>) -> Result<()> {
        match self {
            Target::Nowhere | Target::Undecided(_) => Ok(()),
            Target::New(ingest) => ingest.push(admitted),
            Target::Stored(comparison) => {
                comparison.compare(admitted.event());
                Ok(())
            }
        }
    }

    /// Makes the log's events the store's, if the judgement allows it. `again` runs the whole log once more, for the events
    /// that a stored session lacks: only now is it known that the log is good to its end.
    pub(super) fn conclude(
        &mut self,
        judgement: &Judgement,
        again: &mut dyn FnMut(&mut Extension) -> Result<()>,
    ) -> Result<Outcome> {
        let target = std::mem::replace(self, Target::Nowhere);
        if judgement.refusal.is_some() {
            return Ok(Outcome::default());
        }
        match target {
            Target::Nowhere | Target::Undecided(_) => Ok(Outcome::default()),
            Target::New(ingest) => {
                let session = ingest.finish()?;
                Ok(Outcome { added: session.next_seq()?.get(), ..Outcome::default() })
            }
            Target::Stored(comparison) => comparison.conclude(again),
        }
    }
}

impl Comparison {
    fn new(session: Session, header: &SessionHeader) -> Result<Self> {
        let stored_end = session.next_seq()?.get();
        let stored = session.events(Seq::new(0)..Seq::new(stored_end))?;
        let conflict = (!same_header(session.header(), header)).then(|| {
            let message = format!(
                "the store holds a session {} with another header: created at {}, not {}; give one of them a new id",
                header.id,
                session.header().created_at,
                header.created_at
            );
            Refusal::new(RefusalKind::IdConflict, "same-session", message)
        });
        Ok(Self { session, stored, stored_end, seen: 0, conflict })
    }

    fn compare(&mut self, event: &Event<'_>) {
        self.seen += 1;
        if self.conflict.is_some() || event.seq.get() >= self.stored_end {
            return;
        }
        match self.stored.next() {
            Some(Ok(stored)) if same_event(&stored, event) => {}
            Some(Ok(stored)) => self.conflict = Some(diverged(event, &stored)),
            Some(Err(error)) => {
                let message = format!("the stored session cannot be read here to compare: {error}");
                self.conflict =
                    Some(Refusal::new(RefusalKind::IdConflict, "same-session", message).at_seq(event.seq));
            }
            None => {}
        }
    }

    fn conclude(self, again: &mut dyn FnMut(&mut Extension) -> Result<()>) -> Result<Outcome> {
        let skipped = self.seen.min(self.stored_end);
        if self.conflict.is_some() {
            return Ok(Outcome { conflict: self.conflict, ..Outcome::default() });
        }
        if self.seen <= self.stored_end {
            return Ok(Outcome { skipped, ..Outcome::default() });
        }
        let mut extension = Extension { ingest: self.session.extend()?, from: Seq::new(self.stored_end) };
        again(&mut extension)?;
        extension.ingest.finish()?;
        Ok(Outcome { added: self.seen - self.stored_end, skipped, conflict: None })
    }
}

/// The same session by its header; an absent delegation depth means 0.
fn same_header(a: &SessionHeader, b: &SessionHeader) -> bool {
    let plain = |header: &SessionHeader| SessionHeader {
        delegation_depth: Some(header.delegation_depth.unwrap_or(0)),
        ..header.clone()
    };
    plain(a) == plain(b)
}

fn same_event(a: &Event<'_>, b: &Event<'_>) -> bool {
    a.type_name == b.type_name
        && a.time == b.time
        && a.surface_op == b.surface_op
        && a.sources == b.sources
        && a.ignorable == b.ignorable
        && (a.data == b.data || equal(Value::new(&a.data), Value::new(&b.data)))
}

fn diverged(log: &Event<'_>, stored: &Event<'_>) -> Refusal {
    let message = format!(
        "the stored session went another way here: it holds {} of time {}, the log {} of time {}; give the log a new id",
        stored.type_name, stored.time, log.type_name, log.time
    );
    Refusal::new(RefusalKind::IdConflict, "same-session", message).at_seq(log.seq)
}
