//! Reading a session: events by range, the projections, the derived messages, any request as of any seq.
//!
//! What is read is written: a read first waits for the session's queued batches, so nothing is ever shown that
//! may still fail. Payloads are read frame by frame; no call holds a whole session unless it returns one.

use std::ops::Range;

use super::headers::reason_text;
use super::records::read_event;
use super::runs::{Each, Events, Reading};
use super::session::{EntryState, Live, Session};
use crate::event::{
    Admitted, Candidate, CanonicalHeader, Event, Origin, Provenance, SessionState, Vocabulary, admit,
};
use crate::ids::Seq;
use crate::projection::{Projection, State, derived_message};
use crate::{Error, ErrorKind, Result};

/// What a model was asked: the header in force and the messages of the surface (spec sections 5 and 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Seq of the header snapshot in force.
    pub header_seq: Option<Seq>,
    /// Why that snapshot was logged.
    pub reason: Option<String>,
    /// The canonical header as JSON.
    pub header: Option<CanonicalHeader>,
    /// The surface nodes.
    pub surface: Vec<Seq>,
    /// The messages that they derive to, each as JSON; a node without content derives to none.
    pub messages: Vec<String>,
}

impl Session {
    /// Calls `each` with every event whose seq is in `range`, in order. A range beyond the end is cut.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] at the first event whose bytes are damaged; what `each` returns.
    pub fn for_each(&self, range: Range<Seq>, each: &mut dyn FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        self.read_range(range, Reading::KEEPING, &mut |seq, record| each(read_event(seq, record)?))
    }

    /// The events whose seqs are in `range`, one frame in memory at a time. A range beyond the end is cut.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each); the iterator goes on behind a damaged frame.
    pub fn events(&self, range: Range<Seq>) -> Result<Events> {
        Events::new(self, range)
    }

    /// One event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Corrupt`] if its bytes are damaged.
    pub fn event(&self, seq: Seq) -> Result<Event<'static>> {
        self.read_one(seq)?.ok_or_else(|| {
            let message = format!("read session {}: there is no such event", self.id());
            Error::new(ErrorKind::NotFound, message).with_seq(seq)
        })
    }

    /// Runs `read` over the projections of all events. The session is locked meanwhile: `read` must not use it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if an event cannot be read or does not pass the gate.
    pub fn with_state<T>(&self, read: impl FnOnce(&State) -> T) -> Result<T> {
        let mut read = Some(read);
        self.again_if_moved(&mut || {
            let mut state = self.lock()?;
            state.settle()?;
            self.fold(&mut state)?;
            let live = live(&state)?;
            Ok(read.take().map(|read| read(&live.state)))
        })?
        .ok_or_else(no_state)
    }

    /// The surface: the ordered seqs whose messages the model sees (spec section 5).
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn surface(&self) -> Result<Vec<Seq>> {
        self.with_state(surface_of)
    }

    /// Number of replacements so far.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn replace_generation(&self) -> Result<u64> {
        self.with_state(|state| state.visible().replace_generation())
    }

    /// The request header in force, canonical.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn request_header(&self) -> Result<Option<CanonicalHeader>> {
        self.with_state(|state| state.request_header().header().cloned())
    }

    /// The request that would be sent now.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn request(&self) -> Result<Request> {
        let now = self.with_state(Request::of)?;
        self.with_messages(now)
    }

    /// The request as it was once the event at `seq` had been logged. A seq beyond the end means the end.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn request_at(&self, seq: Seq) -> Result<Request> {
        if seq.get().saturating_add(1) >= self.next_seq()?.get() {
            return self.request();
        }
        self.with_messages(Request::of(&self.state_at(seq)?))
    }

    /// The request with what the projections do not hold.
    fn with_messages(&self, request: Request) -> Result<Request> {
        let reason = request.header_seq.map(|seq| self.event(seq).map(|event| reason_text(event.value())));
        Ok(Request { reason: reason.transpose()?, messages: self.messages(&request.surface)?, ..request })
    }

    /// The projections as they were once the event at `seq` had been logged. A seq beyond the end means the end.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn state_at(&self, seq: Seq) -> Result<State> {
        let end = Seq::new(seq.get().saturating_add(1));
        if end >= self.next_seq()? {
            return self.with_state(Clone::clone);
        }
        let mut then = self.state_before(end)?;
        self.fold_on(&mut then, end)?;
        Ok(then)
    }

    /// Feeds a projection of the host with all events, in order.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn project(&self, projection: &mut dyn Projection) -> Result<()> {
        let mut state = State::new(self.id());
        self.each_admitted(&mut state, self.next_seq()?, &mut |admitted| projection.apply(admitted))
    }

    /// Takes the events from where `state` stands to before `end` into it.
    pub(super) fn fold_on(&self, state: &mut State, end: Seq) -> Result<()> {
        self.each_admitted(state, end, &mut |_| ())
    }

    /// Folds on, and shows each event. No lock is held meanwhile.
    pub(super) fn each_admitted(
        &self,
        state: &mut State,
        end: Seq,
        each: &mut dyn FnMut(&Admitted<'_>),
    ) -> Result<()> {
        let vocabulary = self.store.vocabulary();
        self.scan(state.next_seq()..end, &mut |event| {
            let admitted = self.load(state, event, &vocabulary)?;
            state.apply(&admitted);
            each(&admitted);
            Ok(())
        })
    }

    /// The derived messages of `nodes`, in that order, each as JSON (spec section 5).
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each).
    pub fn messages(&self, nodes: &[Seq]) -> Result<Vec<String>> {
        let mut places: Vec<(Seq, usize)> = nodes.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let seqs: Vec<Seq> = places.iter().map(|(seq, _)| *seq).collect();
        let mut messages = vec![None; nodes.len()];
        let mut done = 0;
        // One walk over the frames and units that hold wanted events, whatever the surface order.
        while let Some(&first) = seqs.get(done) {
            let mut stop = first.next();
            self.read_beside(&seqs[done..], &mut |event| {
                stop = event.seq.next();
                let message = derived_message(&event.type_name, event.value());
                let asked = places.iter().skip(seqs.partition_point(|seq| *seq < event.seq));
                for (_, place) in asked.take_while(|(seq, _)| *seq == event.seq) {
                    messages[*place] = message.map(|message| message.raw().to_owned());
                }
                Ok(())
            })?;
            done = seqs.partition_point(|seq| *seq < stop);
        }
        Ok(messages.into_iter().flatten().collect())
    }

    /// Brings the projections up to the last queued event.
    pub(super) fn fold(&self, state: &mut EntryState) -> Result<()> {
        if state.live.as_ref().is_some_and(|live| live.state.next_seq() >= state.next_seq()) {
            return Ok(());
        }
        state.settle()?;
        let end = Seq::new(state.row.next_seq);
        let live = match state.live.take() {
            Some(mut live) => {
                self.fold_to(state, &mut live, end)?;
                live
            }
            None => {
                let chain = state.row.summary.chain;
                let read = |range, each: &mut Each<'_>| self.read_locked(state, range, each);
                let state = self.resumed(end, chain, &read)?;
                Box::new(Live::new(state, self.store.checkpoints.newest_below(&self.entry, end)))
            }
        };
        state.live = Some(live);
        Ok(())
    }

    fn fold_to(&self, state: &EntryState, live: &mut Live, end: Seq) -> Result<()> {
        let vocabulary = self.store.vocabulary();
        let from = live.state.next_seq();
        self.read_locked(state, from..end, &mut |event| {
            live.state.apply(&self.load(&live.state, event, &vocabulary)?);
            Ok(())
        })
    }

    /// Brings a stored event through the gate. What breaks a rule there was damaged; what is of a newer release was not.
    pub(super) fn load<'e>(
        &self,
        state: &State,
        event: Event<'e>,
        vocabulary: &Vocabulary,
    ) -> Result<Admitted<'e>> {
        admit(state, stored_candidate(event), Origin::Load, vocabulary).map_err(|refusal| {
            let (rule, kind, seq) = (refusal.rule, refusal.kind, refusal.seq);
            let error_kind = match Error::from(refusal.clone()).kind() {
                ErrorKind::Rejected => ErrorKind::Corrupt,
                kind => kind,
            };
            let error = Error::new(error_kind, format!("load session {}: {refusal}", self.id()));
            let error = error.with_rule(rule).with_refusal(kind);
            if let Some(seq) = seq { error.with_seq(seq) } else { error }
        })
    }
}

impl Request {
    /// What the projections hold of it.
    fn of(state: &State) -> Self {
        Self {
            header_seq: state.request_header().seq(),
            reason: None,
            header: state.request_header().header().cloned(),
            surface: surface_of(state),
            messages: Vec::new(),
        }
    }
}

/// A stored event as a candidate for the gate.
pub(super) fn stored_candidate(event: Event<'_>) -> Candidate<'_> {
    Candidate {
        type_name: event.type_name,
        seq: Some(event.seq),
        time: event.time,
        data: event.data.into(),
        surface_op: event.surface_op,
        sources: event.sources.map(Provenance::List),
        ignorable: event.ignorable,
    }
}

fn live(state: &EntryState) -> Result<&Live> {
    state.live.as_deref().ok_or_else(no_state)
}

fn no_state() -> Error {
    Error::new(ErrorKind::Closed, "read session: no state")
}

fn surface_of(state: &State) -> Vec<Seq> {
    state.visible().nodes().iter().map(|&node| Seq::new(u64::from(node))).collect()
}
