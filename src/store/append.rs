//! Appending: drafts pass the gate under the session's lock, are encoded, and join the commit queue.

use std::borrow::Cow;

use super::records::{Encoder, is_patched};
use super::session::{EntryState, Pending, Session};
use crate::event::json::{Value, equal, scan};
use crate::event::{
    Candidate, Event, Origin, Payload, Provenance, RefusalKind, SurfaceOp, admit, parse_draft,
};
use crate::format::{CreatePayload, FrameKind, SharedPrefix};
use crate::ids::Seq;
use crate::log::{Batch, Completion, Durability, FrameDraft};
use crate::projection::Projection;
use crate::{Error, ErrorKind, Result};

/// An event that a host wants to append. The session assigns its seq, and its time unless it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft<'a> {
    type_name: Cow<'a, str>,
    data: Payload<'a>,
    time: Option<i64>,
    surface_op: Option<SurfaceOp>,
    sources: Option<Provenance<'a>>,
    ignorable: bool,
}

impl<'a> Draft<'a> {
    /// A log-only event of `type_name` with `data`, a JSON text that is kept byte for byte.
    #[must_use]
    pub fn new(type_name: impl Into<Cow<'a, str>>, data: impl Into<Payload<'a>>) -> Self {
        Self {
            type_name: type_name.into(),
            data: data.into(),
            time: None,
            surface_op: None,
            sources: None,
            ignorable: false,
        }
    }

    /// A draft of what a candidate asks for; its seq is left to the session.
    pub(super) fn from_candidate(candidate: Candidate<'a>) -> Self {
        Self {
            type_name: candidate.type_name,
            data: candidate.data,
            time: Some(candidate.time),
            surface_op: candidate.surface_op,
            sources: candidate.sources,
            ignorable: candidate.ignorable,
        }
    }

    /// Reads a draft from an event's JSON text, where `seq` and `time` may be absent; the claimed seq comes beside.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Rejected`] if the text is no event envelope (spec section 2.1).
    pub fn parse(json: &'a str) -> Result<(Self, Option<Seq>)> {
        // No event has this time: the envelope allows safe integers only.
        const ABSENT: i64 = i64::MIN;
        let candidate = parse_draft(json, ABSENT)?;
        let (seq, time) = (candidate.seq, candidate.time);
        let draft = Self { time: (time != ABSENT).then_some(time), ..Self::from_candidate(candidate) };
        Ok((draft, seq))
    }

    /// Puts the event at the end of the surface.
    #[must_use]
    pub fn on_surface(mut self) -> Self {
        self.surface_op = Some(SurfaceOp::Append);
        self
    }

    /// Puts the event in the place of the surface nodes from `start` to `end`.
    #[must_use]
    pub fn replacing(mut self, start: Seq, end: Seq) -> Self {
        self.surface_op = Some(SurfaceOp::Replace { start, end });
        self
    }

    /// Names the events that this one derives from (`sourceEventSeqs`).
    #[must_use]
    pub fn with_sources(mut self, sources: impl Into<Cow<'a, [Seq]>>) -> Self {
        self.sources = Some(Provenance::List(sources.into()));
        self
    }

    /// Fixes the event's time, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn at_time(mut self, time_ms: i64) -> Self {
        self.time = Some(time_ms);
        self
    }

    /// Lets readers that do not know the type pass over the event.
    #[must_use]
    pub fn ignorable(mut self) -> Self {
        self.ignorable = true;
        self
    }

    pub(super) fn is_type(&self, name: &str) -> bool {
        self.type_name == name
    }

    fn candidate(&self, seq: Seq, now_ms: impl Fn() -> i64) -> Candidate<'_> {
        Candidate {
            type_name: Cow::Borrowed(&self.type_name),
            seq: Some(seq),
            time: self.time.unwrap_or_else(now_ms),
            data: self.data.borrowed(),
            surface_op: self.surface_op,
            sources: self.sources.as_ref().map(Provenance::borrowed),
            ignorable: self.ignorable,
        }
    }

    /// Whether `event` is what this draft would have become, its time only if the draft fixes one.
    fn is(&self, event: &Event<'_>) -> bool {
        let sources_equal = match (&self.sources, &event.sources) {
            (None, None) => true,
            (Some(Provenance::List(a)), Some(b)) => a == b,
            _ => false,
        };
        self.type_name == event.type_name
            && self.surface_op == event.surface_op
            && self.ignorable == event.ignorable
            && sources_equal
            && self.time.is_none_or(|time| time == event.time)
            && (self.data.text() == event.data || same_value(self.data.text(), event.value()))
    }
}

/// Whether a text that nobody checked yet is JSON for `stored`.
fn same_value(text: &str, stored: Value<'_>) -> bool {
    scan(text).is_ok() && equal(Value::new(text), stored)
}

/// How a batch is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendOptions {
    /// The seq that the first event must get; the batch is a [`Conflict`](ErrorKind::Conflict) if it does not, unless
    /// the very same events are stored there already.
    pub expected: Option<Seq>,
    /// When the completion is done.
    pub durability: Durability,
}

impl Default for AppendOptions {
    /// Synced, at any seq.
    fn default() -> Self {
        Self { expected: None, durability: Durability::Synced }
    }
}

/// A batch that was admitted.
#[derive(Debug)]
#[must_use = "the batch is safe only once `wait` has returned"]
pub struct Appended {
    /// Seq of its first event.
    pub first: Seq,
    /// The seq after its last event.
    pub next: Seq,
    /// The same events were stored before: nothing was added.
    pub already_stored: bool,
    pub(super) completion: Option<Completion>,
}

impl Appended {
    /// Waits until the batch has the durability that was asked for. Like a future, a batch that nobody waits
    /// for is written with the next group of anyone, or when this value is dropped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if writing failed, [`ErrorKind::Closed`] if it failed before: the batch is not acknowledged,
    /// and the store must be reopened.
    pub fn wait(&self) -> Result<()> {
        self.completion.as_ref().map_or(Ok(()), |completion| completion.wait().map(|_| ()))
    }

    /// The completion to await, absent if the batch is already as durable as asked.
    #[must_use]
    pub fn into_completion(self) -> Option<Completion> {
        self.completion
    }
}

impl Session {
    /// Admits `drafts` as one atomic batch and hands it to the commit queue. Wait on the result for durability.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Rejected`] or [`ErrorKind::Unsupported`] if the gate refuses an event: nothing of the batch is stored;
    /// [`ErrorKind::Conflict`] if the session is not at the expected seq; [`ErrorKind::Limit`]; [`ErrorKind::Closed`].
    pub fn append(&self, drafts: &[Draft<'_>], options: AppendOptions) -> Result<Appended> {
        self.append_from(drafts, options, Origin::Append)
    }

    pub(super) fn append_from(
        &self,
        drafts: &[Draft<'_>],
        options: AppendOptions,
        origin: Origin,
    ) -> Result<Appended> {
        let mut state = self.lock()?;
        let next = state.next_seq();
        if let Some(expected) = options.expected
            && expected != next
        {
            return self.resubmitted(&mut state, drafts, expected, options.durability);
        }
        if drafts.is_empty() {
            return Ok(Appended { first: next, next, already_stored: false, completion: None });
        }
        self.check_end(&state)?;
        self.fold(&mut state)?;
        let outcome = self.encode(&mut state, drafts, origin);
        let encoder = match outcome {
            Ok(encoder) => encoder,
            Err(error) => {
                // Events before the refused one are in the projections by now: fold them again when needed.
                if drafts.len() > 1 {
                    state.live = None;
                }
                return Err(error);
            }
        };
        let end = encoder.next_seq();
        let queued = self.enqueue(&mut state, encoder, options.durability);
        // The projections have events that were not queued.
        let completion = queued.inspect_err(|_| state.live = None)?;
        if state.live.as_mut().is_some_and(|live| live.calls_for_checkpoint()) {
            self.store.call_for_checkpoint(self.entry.key);
        }
        Ok(Appended { first: next, next: end, already_stored: false, completion: Some(completion) })
    }

    fn encode(&self, state: &mut EntryState, drafts: &[Draft<'_>], origin: Origin) -> Result<Encoder> {
        let batch = if state.lacks_create_frame() { self.create_frame()? } else { Batch::new() };
        let mut encoder = Encoder::new(self.entry.key, state.next_seq(), state.summary().clone(), batch);
        if drafts.iter().any(|draft| is_patched(&draft.type_name, draft.data.text())) {
            encoder.set_base(self.store.patch_base(state.patch_base()));
        }
        let vocabulary = self.store.vocabulary();
        let Some(live) = &mut state.live else {
            return Err(Error::new(ErrorKind::Closed, format!("append to session {}: no state", self.id())));
        };
        for draft in drafts {
            let candidate = draft.candidate(encoder.next_seq(), || self.store.now_ms());
            let admitted = admit(&live.state, candidate, origin, &vocabulary)
                .map_err(|refusal| self.refused("append to", refusal.into()))?;
            encoder.push(admitted.event())?;
            live.state.apply(&admitted);
        }
        Ok(encoder)
    }

    /// Refuses to write behind an end that damage may have moved: the seqs of lost events would be given out again.
    pub(super) fn check_end(&self, state: &EntryState) -> Result<()> {
        let why = if !self.entry.is_named() {
            "its create frame is damaged"
        } else if state.row.damage_seen < self.store.nameless_damage {
            "damage behind its last event may have taken others"
        } else {
            return Ok(());
        };
        let message = format!(
            "append to session {}: {why}; run verify, restore the file from a backup or fork the session",
            self.id()
        );
        Err(Error::new(ErrorKind::Corrupt, message))
    }

    /// Queues an encoder's events.
    fn enqueue(
        &self,
        state: &mut EntryState,
        encoder: Encoder,
        durability: Durability,
    ) -> Result<Completion> {
        let next_seq = encoder.next_seq();
        let names = state.lacks_create_frame();
        let (batch, runs, summary) = encoder.finish()?;
        let completion = self.store.writer()?.enqueue(batch, durability);
        state.created = true;
        state.queue(Pending { completion: completion.clone(), runs, next_seq, summary, names });
        Ok(completion)
    }

    /// A batch that begins with the session's create frame.
    pub(super) fn create_frame(&self) -> Result<Batch> {
        let mut header = String::new();
        self.header().write_json(&mut header);
        let shared = self.entry.shared().map(|shared| SharedPrefix {
            owner: shared.owner.key,
            end: shared.end,
            logical_bytes: shared.base.logical_bytes,
            chain: shared.base.chain,
            last_time: shared.base.last_time.unwrap_or_default(),
            title: shared.base.title.as_deref(),
        });
        let mut payload = Vec::new();
        CreatePayload { shared, header: &header }.encode(&mut payload);
        let draft = FrameDraft { kind: FrameKind::CREATE, subject: self.entry.key.get(), tag: 0, count: 0 };
        let mut batch = Batch::new();
        batch.push(draft, &payload)?;
        Ok(batch)
    }

    /// A batch whose expected seq is not the next one: the same events again, or a conflict.
    fn resubmitted(
        &self,
        state: &mut EntryState,
        drafts: &[Draft<'_>],
        expected: Seq,
        durability: Durability,
    ) -> Result<Appended> {
        let next = state.next_seq();
        let end = Seq::new(expected.get().saturating_add(drafts.len() as u64));
        let refusal = if expected > next { RefusalKind::SeqGap } else { RefusalKind::SeqFork };
        let conflict = |why: String| {
            let message =
                format!("append to session {} at seq {expected}: {why}; reload and decide again", self.id());
            Err(Error::new(ErrorKind::Conflict, message).with_refusal(refusal).with_seq(expected))
        };
        if end > next {
            return conflict(format!("the next seq is {next}"));
        }
        state.settle()?;
        let mut drafts_left = drafts.iter();
        let mut differs = None;
        self.read_locked(state, expected..end, &mut |event| {
            if differs.is_none() && !drafts_left.next().is_some_and(|draft| draft.is(&event)) {
                differs = Some(event.seq);
            }
            Ok(())
        })?;
        if let Some(seq) = differs {
            return conflict(format!("another event is stored at seq {seq}"));
        }
        if durability == Durability::Synced && state.row.durable_seq(self.store.synced_through()) < end {
            self.store.writer()?.flush()?;
        }
        Ok(Appended { first: expected, next: end, already_stored: true, completion: None })
    }

    pub(super) fn refused(&self, attempted: &str, error: Error) -> Error {
        error.context(&format!("{attempted} session {}", self.id()))
    }
}
