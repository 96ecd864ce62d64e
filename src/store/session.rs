//! One session as its users hold it: what it is, and the state that appends and reads share.
//!
//! Lock order: a session's state, then its owner's state, then the catalog; the log takes none of them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::cancel::Cancel;
use super::catalog::{Place, Row, Run, Shared};
use super::inner::Inner;
use super::records::EncodedRun;
use super::store::Store;
use super::summary::Summary;
use crate::event::SessionHeader;
use crate::ids::{Position, Seq, SessionKey};
use crate::log::{Committed, Completion};
use crate::projection::State;
use crate::{Error, ErrorKind, Result};

/// A session of a store. Handles are cheap to clone and share one state; any number of threads may use them.
///
/// The projections are in memory while a handle lives, and are folded again when one is needed later.
#[derive(Clone)]
pub struct Session {
    pub(super) store: Arc<Inner>,
    pub(super) entry: Arc<Entry>,
    cancel: Option<Cancel>,
    _lease: Arc<Lease>,
}

/// Equality-only token of a session's content: it changes with each append and each repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Revision {
    key: SessionKey,
    events: u64,
    chain: u32,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:08x}", self.key, self.events, self.chain)
    }
}

impl Session {
    pub(super) fn new(store: &Store, entry: Arc<Entry>) -> Self {
        let lease = entry.lease(&store.inner);
        Self { store: Arc::clone(&store.inner), entry, cancel: store.cancel.clone(), _lease: lease }
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        self.cancel.as_ref().map_or(Ok(()), Cancel::check)
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.entry.header.id
    }

    /// The session's header.
    #[must_use]
    pub fn header(&self) -> &SessionHeader {
        &self.entry.header
    }

    /// Number of events, queued ones included; the seq of the next one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] once the session was removed.
    pub fn next_seq(&self) -> Result<Seq> {
        let state = self.lock()?;
        Ok(state.next_seq())
    }

    /// How far the session survives a power loss: all seqs below this one.
    #[must_use]
    pub fn durable_seq(&self) -> Seq {
        let mut state = self.entry.state.lock();
        state.absorb();
        state.durable_seq(self.store.synced_through())
    }

    /// Token of the written content.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] once the session was removed.
    pub fn revision(&self) -> Result<Revision> {
        let mut state = self.lock()?;
        state.settle()?;
        Ok(self.entry.revision(&state.row))
    }

    /// The state of a session that still exists.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, EntryState>> {
        let mut state = self.entry.state.lock();
        if state.removed {
            let message = format!("use session {}: it was removed", self.id());
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        state.absorb();
        Ok(state)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// A session as the catalog holds it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: SessionKey,
    pub(super) header: SessionHeader,
    pub(super) shared: Option<Shared>,
    pub(super) state: Mutex<EntryState>,
}

impl Entry {
    pub(super) fn revision(&self, row: &Row) -> Revision {
        Revision { key: self.key, events: row.next_seq, chain: row.summary.chain }
    }

    fn lease(self: &Arc<Self>, store: &Arc<Inner>) -> Arc<Lease> {
        let mut state = self.state.lock();
        if let Some(lease) = state.lease.upgrade() {
            return lease;
        }
        let lease = Arc::new(Lease { store: Arc::downgrade(store), entry: Arc::clone(self) });
        state.lease = Arc::downgrade(&lease);
        lease
    }
}

/// Lives as long as any handle of a session. Its end frees the projections, and the id of a session that
/// was never written.
#[derive(Debug)]
pub(super) struct Lease {
    store: Weak<Inner>,
    entry: Arc<Entry>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.entry.state.lock();
        if state.lease.strong_count() > 0 {
            return;
        }
        state.live = None;
        let unwritten = !state.created;
        drop(state);
        if unwritten && let Some(store) = self.store.upgrade() {
            store.catalog.lock().forget_unwritten(&self.entry);
        }
    }
}

/// What changes about a session.
#[derive(Debug, Default)]
pub(super) struct EntryState {
    /// What is written.
    pub(super) row: Row,
    /// Batches on their way, oldest first.
    pending: VecDeque<Pending>,
    /// Ends of written batches that are not known to be durable.
    undurable: VecDeque<(Position, Seq)>,
    /// The projections, queued batches included. Absent until needed.
    pub(super) live: Option<Live>,
    /// The create frame is written or queued.
    pub(super) created: bool,
    pub(super) removed: bool,
    pub(super) lease: Weak<Lease>,
}

/// The projections with all queued events taken in.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) state: State,
}

#[derive(Debug)]
struct Pending {
    completion: Completion,
    runs: Vec<EncodedRun>,
    next_seq: Seq,
    summary: Summary,
}

impl EntryState {
    /// The state of a session that the log holds.
    pub(super) fn written(row: Row) -> Self {
        Self { row, created: true, ..Self::default() }
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.pending.back().map_or(Seq::new(self.row.next_seq), |last| last.next_seq)
    }

    /// The summary with queued batches taken in.
    pub(super) fn summary(&self) -> &Summary {
        self.pending.back().map_or(&self.row.summary, |last| &last.summary)
    }

    /// Notes a batch that was handed to the log.
    pub(super) fn queue(
        &mut self,
        completion: Completion,
        runs: Vec<EncodedRun>,
        next_seq: Seq,
        summary: Summary,
    ) {
        self.pending.push_back(Pending { completion, runs, next_seq, summary });
    }

    /// Takes in the batches that are written by now.
    pub(super) fn absorb(&mut self) {
        while let Some(Ok(committed)) = self.pending.front().and_then(|p| p.completion.try_result()) {
            if let Some(pending) = self.pending.pop_front() {
                self.take_written(pending, committed);
            }
        }
    }

    /// Waits until every queued batch is written, so that nothing is shown that may still fail.
    ///
    /// # Errors
    ///
    /// The failure of a queued batch.
    pub(super) fn settle(&mut self) -> Result<()> {
        while let Some(pending) = self.pending.front() {
            let committed = pending.completion.wait()?;
            if let Some(pending) = self.pending.pop_front() {
                self.take_written(pending, committed);
            }
        }
        Ok(())
    }

    pub(super) fn durable_seq(&mut self, synced_through: Position) -> Seq {
        while self.undurable.front().is_some_and(|(end, _)| *end <= synced_through) {
            self.undurable.pop_front();
        }
        match self.undurable.front() {
            Some((_, first)) => *first,
            None => Seq::new(self.row.next_seq),
        }
    }

    /// Becomes what an import gathered for this session.
    pub(super) fn take_staged(&mut self, staged: Self) {
        let lease = std::mem::take(&mut self.lease);
        *self = Self { lease, ..staged };
    }

    fn take_written(&mut self, pending: Pending, committed: Committed) {
        self.undurable.push_back((committed.end, Seq::new(self.row.next_seq)));
        for run in pending.runs {
            let at = Position { segment: committed.at.segment, offset: committed.at.offset + run.offset };
            self.row.take_run(Run { first: run.first, count: run.count, at: Place::Frame(at) });
        }
        self.row.summary = pending.summary;
    }
}
