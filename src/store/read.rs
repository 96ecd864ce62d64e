//! Reading a session: events by range, the projections, the derived messages, any request as of any seq.
//!
//! What is read is written: a read first waits for the session's queued batches, so nothing is ever shown that
//! may still fail. Payloads are read frame by frame; no call holds a whole session unless it returns one.

use std::ops::Range;

use super::catalog::Run;
use super::headers::reason_text;
use super::records::events_of;
use super::session::{Entry, EntryState, Live, Session};
use crate::event::{Candidate, CanonicalHeader, Event, Origin, Provenance, RefusalKind, SessionState, admit};
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
        let mut state = self.lock()?;
        state.settle()?;
        let runs = self.runs(&mut state, &range)?;
        drop(state);
        self.read_runs(&runs, &range, each)
    }

    /// The events whose seqs are in `range`, one frame in memory at a time. A range beyond the end is cut.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each); the iterator goes on behind a damaged frame.
    pub fn events(&self, range: Range<Seq>) -> Result<Events> {
        let mut state = self.lock()?;
        state.settle()?;
        let runs = self.runs(&mut state, &range)?;
        drop(state);
        Ok(Events { session: self.clone(), runs: runs.into_iter(), range, frame: Vec::new().into_iter() })
    }

    /// One event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Corrupt`] if its bytes are damaged.
    pub fn event(&self, seq: Seq) -> Result<Event<'static>> {
        self.events(seq..seq.next())?.next().unwrap_or_else(|| {
            let message = format!("read session {}: there is no such event", self.id());
            Err(Error::new(ErrorKind::NotFound, message).with_seq(seq))
        })
    }

    /// Runs `read` over the projections of all events.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if an event cannot be read or does not pass the gate.
    pub fn with_state<T>(&self, read: impl FnOnce(&State) -> T) -> Result<T> {
        let mut state = self.lock()?;
        state.settle()?;
        self.fold(&mut state)?;
        Ok(read(&live(&state)?.state))
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
        self.request_at(Seq::new(u64::MAX - 1))
    }

    /// The request as it was once the event at `seq` had been logged. A seq beyond the end means the end.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn request_at(&self, seq: Seq) -> Result<Request> {
        let then = self.state_at(seq)?;
        let surface = surface_of(&then);
        let messages = self.messages(&surface)?;
        let header_seq = then.request_header().seq();
        Ok(Request {
            header_seq,
            reason: header_seq
                .map(|seq| self.event(seq).map(|event| reason_text(event.value())))
                .transpose()?,
            header: then.request_header().header().cloned(),
            surface,
            messages,
        })
    }

    /// The projections as they were once the event at `seq` had been logged.
    ///
    /// # Errors
    ///
    /// As [`with_state`](Self::with_state).
    pub fn state_at(&self, seq: Seq) -> Result<State> {
        let mut state = self.lock()?;
        state.settle()?;
        let end = Seq::new(state.row.next_seq.min(seq.get().saturating_add(1)));
        let mut folded = Live { state: State::new(self.id()) };
        self.fold_to(&mut state, &mut folded, end)?;
        Ok(folded.state)
    }

    /// The derived messages of `nodes`, in that order, each as JSON (spec section 5).
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each).
    pub fn messages(&self, nodes: &[Seq]) -> Result<Vec<String>> {
        let mut by_seq: Vec<(Seq, usize)> = nodes.iter().copied().zip(0..).collect();
        by_seq.sort_unstable();
        let mut messages = vec![None; nodes.len()];
        let mut wanted = by_seq.into_iter().peekable();
        // One walk over the frames that hold wanted events, whatever the surface order.
        while let Some(&(first, _)) = wanted.peek() {
            let mut stop = first.next();
            self.visit_frame(first, &mut |event| {
                stop = event.seq.next();
                while let Some((_, place)) = wanted.next_if(|(seq, _)| *seq == event.seq) {
                    messages[place] = derived_message(&event.type_name, event.value())
                        .map(|message| message.raw().to_owned());
                }
                Ok(())
            })?;
            while wanted.next_if(|(seq, _)| *seq < stop).is_some() {}
        }
        Ok(messages.into_iter().flatten().collect())
    }

    /// Brings the projections up to the last queued event.
    pub(super) fn fold(&self, state: &mut EntryState) -> Result<()> {
        let mut live = state.live.take().unwrap_or_else(|| Live { state: State::new(self.id()) });
        if live.state.next_seq() < state.next_seq() {
            state.settle()?;
            let end = Seq::new(state.row.next_seq);
            self.fold_to(state, &mut live, end)?;
        }
        state.live = Some(live);
        Ok(())
    }

    fn fold_to(&self, state: &mut EntryState, live: &mut Live, end: Seq) -> Result<()> {
        let vocabulary = self.store.vocabulary();
        let from = live.state.next_seq();
        self.read_locked(state, from..end, &mut |event| {
            let admitted = admit(&live.state, stored_candidate(event), Origin::Load, &vocabulary).map_err(
                |refusal| {
                    let seq = refusal.seq;
                    let error =
                        Error::new(ErrorKind::Corrupt, format!("load session {}: {refusal}", self.id()));
                    let error = error.with_rule(refusal.rule).with_refusal(refusal.kind);
                    if let Some(seq) = seq { error.with_seq(seq) } else { error }
                },
            )?;
            live.state.apply(&admitted);
            Ok(())
        })
    }

    pub(super) fn read_locked(
        &self,
        state: &mut EntryState,
        range: Range<Seq>,
        each: &mut dyn FnMut(Event<'_>) -> Result<()>,
    ) -> Result<()> {
        let runs = self.runs(state, &range)?;
        self.read_runs(&runs, &range, each)
    }

    /// The frames that hold `range`, inherited ones first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if a seq of the range lies in no frame, or in two.
    pub(super) fn runs(&self, state: &mut EntryState, range: &Range<Seq>) -> Result<Vec<Run>> {
        let end = range.end.min(Seq::new(state.row.next_seq));
        if range.start >= end {
            return Ok(Vec::new());
        }
        let mut runs = Vec::new();
        Self::inherited_runs(&self.entry, &(range.start..end), &mut runs);
        runs.extend(overlapping(&state.row.runs, &(range.start..end)));
        self.check_contiguous(&runs, &(range.start..end))?;
        Ok(runs)
    }

    fn inherited_runs(entry: &Entry, range: &Range<Seq>, runs: &mut Vec<Run>) {
        // Walk up the chain of owners, then collect from the oldest down.
        let mut chain = Vec::new();
        let mut shared = entry.shared.as_ref();
        let mut end = range.end;
        while let Some(link) = shared {
            end = end.min(link.end);
            chain.push((&link.owner, end));
            shared = link.owner.shared.as_ref();
        }
        for (owner, end) in chain.into_iter().rev().filter(|(_, end)| range.start < *end) {
            let state = owner.state.lock();
            runs.extend(overlapping(&state.row.runs, &(range.start..end)).map(|run| clipped(run, end)));
        }
    }

    /// Every seq of the range lies in exactly one frame (invariant 4).
    fn check_contiguous(&self, runs: &[Run], range: &Range<Seq>) -> Result<()> {
        let corrupt = |refusal, seq, what: &str| {
            let message = format!("read session {}: {what}; run verify", self.id());
            Err(Error::new(ErrorKind::Corrupt, message).with_refusal(refusal).with_seq(seq))
        };
        let mut next = range.start;
        for run in runs {
            if run.first > next {
                break;
            }
            if run.first < next && next > range.start {
                return corrupt(RefusalKind::SeqFork, run.first, "events are stored twice");
            }
            next = run.end();
        }
        if next < range.end {
            return corrupt(RefusalKind::SeqGap, next, "events are damaged or missing");
        }
        Ok(())
    }

    fn read_runs(
        &self,
        runs: &[Run],
        range: &Range<Seq>,
        each: &mut dyn FnMut(Event<'_>) -> Result<()>,
    ) -> Result<()> {
        runs.iter().try_for_each(|run| self.read_run(run, range, each))
    }

    fn read_run(
        &self,
        run: &Run,
        range: &Range<Seq>,
        each: &mut dyn FnMut(Event<'_>) -> Result<()>,
    ) -> Result<()> {
        self.check_cancelled()?;
        let frame = self.store.read_frame(run.at).map_err(|error| error.with_seq(run.first))?;
        for event in events_of(&frame.payload, run.first, frame.header.count) {
            let event = event?;
            if event.seq >= range.end.min(run.end()) {
                break;
            }
            if event.seq >= range.start {
                each(event)?;
            }
        }
        Ok(())
    }

    /// Calls `each` with the events of the frame that holds `seq`, from `seq` on.
    fn visit_frame(&self, seq: Seq, each: &mut dyn FnMut(Event<'_>) -> Result<()>) -> Result<()> {
        let mut state = self.lock()?;
        state.settle()?;
        let runs = self.runs(&mut state, &(seq..seq.next()))?;
        drop(state);
        let Some(run) = runs.last() else { return Ok(()) };
        self.read_run(run, &(seq..run.end()), each)
    }
}

/// Iterator over stored events; see [`Session::events`].
#[derive(Debug)]
pub struct Events {
    session: Session,
    runs: std::vec::IntoIter<Run>,
    range: Range<Seq>,
    frame: std::vec::IntoIter<Event<'static>>,
}

impl Iterator for Events {
    type Item = Result<Event<'static>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.frame.next() {
                return Some(Ok(event));
            }
            let run = self.runs.next()?;
            let mut events = Vec::new();
            let read = self.session.read_run(&run, &self.range, &mut |event| {
                events.push(event.into_owned());
                Ok(())
            });
            self.frame = events.into_iter();
            if let Err(error) = read {
                return Some(Err(error));
            }
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
    state.live.as_ref().ok_or_else(|| Error::new(ErrorKind::Closed, "read session: no state"))
}

fn surface_of(state: &State) -> Vec<Seq> {
    state.visible().nodes().iter().map(|&node| Seq::new(u64::from(node))).collect()
}

/// The runs that hold a seq of `range`; runs are in seq order.
fn overlapping<'r>(runs: &'r [Run], range: &Range<Seq>) -> impl Iterator<Item = Run> + use<'r> {
    let from = runs.partition_point(|run| run.end() <= range.start);
    let to = runs.partition_point(|run| run.first < range.end);
    runs[from..to.max(from)].iter().copied()
}

/// The run without events at or after `end`.
fn clipped(run: Run, end: Seq) -> Run {
    let count = end.get().saturating_sub(run.first.get()).min(u64::from(run.count));
    Run { count: u32::try_from(count).unwrap_or(run.count), ..run }
}
