//! One session as its users hold it: what it is, and the state that appends and reads share.
//!
//! Lock order: the catalog, then a session's state, then its owner's state. Refreshing and sealing hold the catalog while
//! they change states, so whoever holds a state never asks for the catalog, nor for the reader that a refresh uses. The log
//! takes none of them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::cancel::Cancel;
use super::catalog::{Row, Shared};
use super::inner::Inner;
use super::places::{Place, Run};
use super::records::EncodedRun;
use super::store::Store;
use super::summary::Summary;
use super::upkeep::Handle;
use crate::event::{SessionHeader, SessionState};
use crate::ids::{Position, SegmentId, Seq, SessionKey};
use crate::limits::CHECKPOINT_LIVE_LAG_EVENTS;
use crate::log::{Committed, Completion, off_the_wakers};
use crate::projection::State;
use crate::{Error, ErrorKind, Result};

/// A session of a store. Handles are cheap to clone and share one state; any number of threads may use them.
///
/// The projections are in memory while a handle lives; later they are restored from the last checkpoint and folded on.
#[derive(Clone)]
pub struct Session {
    /// It goes first: its end needs the store.
    _lease: Arc<Lease>,
    pub(super) store: Handle,
    pub(super) entry: Arc<Entry>,
    cancel: Option<Cancel>,
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
        Self { store: store.inner.clone(), entry, cancel: store.cancel.clone(), _lease: lease }
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        self.cancel.as_ref().map_or(Ok(()), Cancel::check)
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.entry.header().id
    }

    /// The session's header.
    #[must_use]
    pub fn header(&self) -> &SessionHeader {
        self.entry.header()
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

    /// How far the session survives a power loss: all seqs below this one. In a store opened for reading: as far as the
    /// files said so at the last refresh, which is at most a group less than the writer knows.
    #[must_use]
    pub fn durable_seq(&self) -> Seq {
        let mut state = self.entry.state.lock();
        state.absorb();
        state.row.durable_seq(self.store.synced_through())
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
    /// What its create frame says; absent until one is met.
    identity: OnceLock<Identity>,
    /// The header in its absence, once it was asked for.
    stand_in: OnceLock<Arc<SessionHeader>>,
    pub(super) state: Mutex<EntryState>,
}

/// What a create frame says of its session.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) header: Arc<SessionHeader>,
    /// Few sessions are forks.
    pub(super) shared: Option<Box<Shared>>,
}

impl Entry {
    /// A session of which nothing but its key is known.
    pub(super) fn unnamed(key: SessionKey, state: EntryState) -> Self {
        Self { key, identity: OnceLock::new(), stand_in: OnceLock::new(), state: Mutex::new(state) }
    }

    pub(super) fn new(key: SessionKey, identity: Identity, state: EntryState) -> Self {
        Self { identity: identity.into(), ..Self::unnamed(key, state) }
    }

    /// Gives it its identity, unless it has one.
    pub(super) fn name(&self, identity: Identity) {
        let _ = self.identity.set(identity);
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    pub(super) fn is_named(&self) -> bool {
        self.identity.get().is_some()
    }

    /// Its header; one with a stand-in id if its create frame is lost.
    pub(super) fn header(&self) -> &Arc<SessionHeader> {
        match self.identity.get() {
            Some(identity) => &identity.header,
            None => self.stand_in.get_or_init(|| SessionHeader::new(format!("?key-{}", self.key), 0).into()),
        }
    }

    /// The id under which it may be listed; `None` if nobody has asked for its id so far.
    pub(super) fn known_id(&self) -> Option<&str> {
        let header = self.identity.get().map(|identity| &identity.header).or(self.stand_in.get())?;
        Some(&header.id)
    }

    pub(super) fn shared(&self) -> Option<&Shared> {
        self.identity.get()?.shared.as_deref()
    }

    pub(super) fn revision(&self, row: &Row) -> Revision {
        Revision { key: self.key, events: row.next_seq, chain: row.summary.chain }
    }

    fn lease(self: &Arc<Self>, store: &Handle) -> Arc<Lease> {
        let mut state = self.state.lock();
        if let Some(lease) = state.lease.upgrade() {
            return lease;
        }
        let lease = Arc::new(Lease { store: store.downgrade(), entry: Arc::clone(self) });
        state.lease = Arc::downgrade(&lease);
        lease
    }
}

/// Lives as long as any handle of a session. Its end frees the projections, whose state is then kept for the next
/// checkpoint, and the id of a session that was never written.
#[derive(Debug)]
pub(super) struct Lease {
    store: Weak<Inner>,
    entry: Arc<Entry>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (store, entry) = (std::mem::take(&mut self.store), Arc::clone(&self.entry));
        off_the_wakers(move || entry.go_idle(&store));
    }
}

impl Entry {
    /// The last handle is gone.
    fn go_idle(&self, store: &Weak<Inner>) {
        let mut state = self.state.lock();
        if state.lease.strong_count() > 0 {
            return;
        }
        state.spare_memory();
        let live = state.live.take().filter(|live| live.state.next_seq() == state.next_seq());
        let (unwritten, removed, chain) = (!state.created, state.removed, state.summary().chain);
        drop(state);
        let Some(store) = store.upgrade() else { return };
        if unwritten {
            store.catalog.lock().forget_unwritten(self);
        } else if let Some(live) = live.filter(|_| !removed) {
            store.take_idle(self, &live.state, chain);
        }
    }
}

/// What changes about a session.
#[derive(Debug, Default)]
pub(super) struct EntryState {
    /// What is written.
    pub(super) row: Row,
    /// The create frames that are written or queued.
    create_frames: CreateFrames,
    /// The projections, queued batches included. Absent until needed, and apart: a store has an entry for each session.
    pub(super) live: Option<Box<Live>>,
    /// Absent until something is written, and apart, for the same reason.
    writing: Option<Box<Writing>>,
    /// The session exists: its create frame is written, queued, or known to be lost.
    pub(super) created: bool,
    pub(super) removed: bool,
    /// Another session has its id, so that it is not listed. Only a damaged log has such sessions.
    pub(super) shadowed: bool,
    pub(super) lease: Weak<Lease>,
}

/// The projections with all queued events taken in.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) state: State,
    /// The seq from which on a checkpoint is worth its while although the session is in use.
    checkpoint_due: Seq,
}

impl Live {
    /// A state, and the seq of the newest checkpoint below it.
    pub(super) fn new(state: State, checkpoint: Seq) -> Self {
        let checkpoint_due = due_behind(checkpoint, &state);
        Self { state, checkpoint_due }
    }

    /// Whether a checkpoint is due; it is called for once, and then for the events to come.
    pub(super) fn calls_for_checkpoint(&mut self) -> bool {
        let next = self.state.next_seq();
        let is_due = next >= self.checkpoint_due;
        if is_due {
            self.checkpoint_due = due_behind(next, &self.state);
        }
        is_due
    }
}

/// A checkpoint grows with the surface. Where it is large it is written less often, so that it takes a bounded part of all that is
/// written.
fn due_behind(checkpoint: Seq, state: &State) -> Seq {
    let lag = CHECKPOINT_LIVE_LAG_EVENTS.max(state.visible().nodes().len() as u64 / 32);
    Seq::new(checkpoint.get().saturating_add(lag))
}

/// What the next batches of a session build on.
#[derive(Debug, Default)]
struct Writing {
    /// Batches on their way, oldest first.
    pending: VecDeque<Pending>,
    /// What later request headers can be patches of. It counts in its own segment only.
    patch_base: Option<WrittenBase>,
}

/// A batch that was handed to the log.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) completion: Completion,
    pub(super) runs: Vec<EncodedRun>,
    /// The seq after its last event.
    pub(super) next_seq: Seq,
    /// The summary with its events taken in.
    pub(super) summary: Summary,
    /// It begins with the session's create frame.
    pub(super) names: bool,
}

/// The last request header that is written plain.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrittenBase {
    pub(super) at: Position,
    /// What the patches of it take. They grow as the header moves away from it; once they cost as much as a new base, one
    /// is due.
    pub(super) patches_bytes: u64,
}

/// How often, and where last, a session's create frame stands in raw segments.
#[derive(Debug, Default)]
struct CreateFrames {
    count: u64,
    segment: Option<SegmentId>,
}

/// With so many create frames in different batches, a session is safe from losing its name to one damaged place.
const CREATE_FRAMES_MIN: u64 = 2;

impl EntryState {
    /// The state of a session that has `row`.
    pub(super) fn of(row: Row) -> Self {
        Self { row, ..Self::default() }
    }

    /// Whether the next batch is to begin with the session's create frame: a new session's first two, and one in each
    /// segment that the session reaches later.
    // Format: section 8.1.
    pub(super) fn lacks_create_frame(&self) -> bool {
        self.create_frames.count < CREATE_FRAMES_MIN || self.row.newest_segment() > self.create_frames.segment
    }

    /// Takes in that a create frame was met, in this raw segment.
    pub(super) fn take_create_frame(&mut self, segment: Option<SegmentId>) {
        self.create_frames.count += 1;
        self.create_frames.segment = self.create_frames.segment.max(segment);
    }

    /// Becomes what a new scan found.
    pub(super) fn take_found(&mut self, found: &mut Self) {
        self.row = std::mem::take(&mut found.row);
        (self.created, self.removed) = (found.created, found.removed);
        self.shadowed = found.shadowed;
        self.live = None;
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.newest_pending().map_or(Seq::new(self.row.next_seq), |last| last.next_seq)
    }

    /// The summary with queued batches taken in.
    pub(super) fn summary(&self) -> &Summary {
        self.newest_pending().map_or(&self.row.summary, |last| &last.summary)
    }

    /// Notes a batch that was handed to the log.
    pub(super) fn queue(&mut self, pending: Pending) {
        self.create_frames.count += u64::from(pending.names);
        self.writing.get_or_insert_default().pending.push_back(pending);
    }

    /// Notes a batch that holds nothing but the session's create frame.
    pub(super) fn queue_create_frame(&mut self, completion: Completion) {
        let (next_seq, summary) = (self.next_seq(), self.summary().clone());
        self.queue(Pending { completion, runs: Vec::new(), next_seq, summary, names: true });
        self.created = true;
    }

    /// Takes in the batches that are written by now.
    pub(super) fn absorb(&mut self) {
        while let Some(Ok(committed)) = self.oldest_pending().and_then(|p| p.completion.try_result()) {
            self.take_written(committed);
        }
    }

    /// Waits until every queued batch is written, so that nothing is shown that may still fail.
    ///
    /// # Errors
    ///
    /// The failure of a queued batch.
    pub(super) fn settle(&mut self) -> Result<()> {
        while let Some(pending) = self.oldest_pending() {
            let committed = pending.completion.wait()?;
            self.take_written(committed);
        }
        Ok(())
    }

    /// What the next request header can be a patch of.
    pub(super) fn patch_base(&self) -> Option<WrittenBase> {
        self.writing.as_ref()?.patch_base
    }

    fn oldest_pending(&self) -> Option<&Pending> {
        self.writing.as_ref()?.pending.front()
    }

    fn newest_pending(&self) -> Option<&Pending> {
        self.writing.as_ref()?.pending.back()
    }

    /// Lets go of room that only a session in use needs.
    fn spare_memory(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.pending.shrink_to_fit();
        }
    }

    fn take_version(&mut self, at: Position, patch_bytes: u32) {
        match &mut self.writing.get_or_insert_default().patch_base {
            Some(base) if patch_bytes > 0 => base.patches_bytes += u64::from(patch_bytes),
            base => *base = (patch_bytes == 0).then_some(WrittenBase { at, patches_bytes: 0 }),
        }
    }

    /// Takes in that the oldest batch on its way is written.
    fn take_written(&mut self, committed: Committed) {
        let Some(pending) = self.writing.as_mut().and_then(|writing| writing.pending.pop_front()) else {
            return;
        };
        if pending.names {
            self.create_frames.segment = self.create_frames.segment.max(Some(committed.at.segment));
        }
        for run in pending.runs {
            let at = committed.position_of(&run.slot);
            if run.is_version {
                self.take_version(at, committed.patch_bytes(&run.slot));
            }
            self.row.take_run(Run { first: run.first, count: run.count, at: Place::Frame(at) });
        }
        self.row.summary = pending.summary;
    }
}
