//! The commit queue: many callers, one write and one sync.
//!
//! Whoever waits for a batch while nobody commits becomes the leader: it takes the whole queue, has the
//! writer put it into the log, passes leadership on if more batches came meanwhile, and only then wakes
//! those it served.
//!
//! Invariants: at most one leader; batches are written, and their results become known, in the order of the
//! queue; after a failure nothing is written any more; a batch that somebody blocks for, awaits or has
//! dropped is never without a leader to come. Lock order: the queue before a group; the writer is never
//! taken with either held.

use std::error::Error as StdError;
use std::fmt;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::batch::{Batch, Durability};
use super::completion::{Committed, Completion};
use super::group::Group;
use super::metrics::{Counters, LogMetrics};
use super::writer::Writer;
use crate::ids::{Position, SegmentId};
use crate::{Error, ErrorKind, Result, limits, observe};

#[cfg(test)]
mod tests;

/// A group's vector with more room than for so many batches is not kept.
const GROUP_RECYCLED_MAX: usize = 1024;
/// How often a leader steps aside without a new batch before it takes the group.
const IDLE_TURNS_MAX: u32 = 3;

pub(super) struct Committer {
    queue: Mutex<Queue>,
    /// Callers that found the queue full.
    room: Condvar,
    /// The background thread.
    work: Condvar,
    writer: Mutex<Writer>,
    maintenance: Mutex<()>,
    synced_through: Mutex<Position>,
    counters: Arc<Counters>,
    has_background: bool,
    /// Called when a segment has ended.
    segment_ended: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What somebody who needs a batch done has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Done,
    Lead,
}

/// A batch on its way through the committer.
pub(super) struct Entry {
    pub(super) batch: Batch,
    pub(super) durability: Durability,
    pub(super) committed: Option<Committed>,
}

/// A batch's group, and its place there.
type Place = (Arc<Group>, usize);

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    /// The group that the entries will be.
    group: Arc<Group>,
    bytes: u64,
    leading: bool,
    waiting_for_room: u32,
    closed: Option<Failure>,
    /// The entry that closes the log, once somebody asked for it.
    closing: Option<Place>,
    /// Batches in the group that was taken last.
    served: usize,
    /// An empty vector whose room the next group uses.
    recycled: Vec<Entry>,
    background: BackgroundOrders,
}

impl Queue {
    /// Whether batches wait and nobody commits. A batch that is not done and not queued is about to be
    /// answered.
    fn needs_leader(&self) -> bool {
        !self.leading && !self.entries.is_empty()
    }
}

/// What the background thread is to do next.
#[derive(Default, Clone, Copy)]
struct BackgroundOrders {
    /// It is to take leadership if nobody has it.
    drive: bool,
    maintain: bool,
    stop: bool,
}

impl Committer {
    pub(super) fn new(writer: Writer, counters: Arc<Counters>, has_background: bool) -> Self {
        Self {
            queue: Mutex::default(),
            room: Condvar::new(),
            work: Condvar::new(),
            synced_through: Mutex::new(writer.synced_through()),
            writer: Mutex::new(writer),
            maintenance: Mutex::default(),
            counters,
            has_background,
            segment_ended: OnceLock::new(),
        }
    }

    pub(super) fn on_segment_end(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.segment_ended.set(hook);
    }

    fn tell_ended(&self, segment_ended: bool) {
        if let Some(hook) = self.segment_ended.get().filter(|_| segment_ended) {
            hook();
        }
    }

    pub(super) fn synced_through(&self) -> Position {
        *self.synced_through.lock()
    }

    pub(super) fn metrics(&self) -> LogMetrics {
        let queue = self.queue.lock();
        let (batches, bytes) = (queue.entries.len() as u64, queue.bytes);
        drop(queue);
        self.counters.snapshot(batches, bytes)
    }

    /// Queues a batch, first waiting for room (and committing others' batches while it waits, if nobody
    /// does).
    pub(super) fn enqueue(self: &Arc<Self>, batch: Batch, durability: Durability) -> Completion {
        let (group, slot) = self.push(batch, durability, false).unwrap_or_else(|failure| {
            let refused = Arc::new(Group::default());
            refused.complete(Err(failure));
            (refused, 0)
        });
        Completion::new(Arc::clone(self), group, slot)
    }

    fn push(&self, batch: Batch, durability: Durability, closing: bool) -> Result<Place, Failure> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(failure) = &queue.closed {
                return Err(failure.clone());
            }
            if queue.bytes == 0 || queue.bytes + batch.len() <= limits::QUEUE_BYTES_MAX {
                break;
            }
            if queue.leading {
                queue.waiting_for_room += 1;
                self.room.wait(&mut queue);
                queue.waiting_for_room -= 1;
            } else {
                queue.leading = true;
                drop(queue);
                self.lead();
                queue = self.queue.lock();
            }
        }
        let place = (Arc::clone(&queue.group), queue.entries.len());
        if closing {
            queue.closed = Some(Failure::closed());
            queue.closing = Some(place.clone());
        }
        queue.bytes += batch.len();
        queue.entries.push(Entry { batch, durability, committed: None });
        Ok(place)
    }

    /// Blocks until the group is done or the caller has to commit.
    pub(super) fn await_turn(&self, group: &Group) -> Turn {
        let mut queue = self.queue.lock();
        if group.outcome().is_none() && queue.needs_leader() {
            queue.leading = true;
            return Turn::Lead;
        }
        // Before the queue is free: whoever passes leadership on must find that somebody blocks.
        let waiters = group.waiters();
        drop(queue);
        if group.block(waiters) { Turn::Lead } else { Turn::Done }
    }

    /// Like [`await_turn`](Self::await_turn), but leaves a waker instead of blocking.
    /// `place` is where the caller's waker is kept: each of those who await has one of its own.
    pub(super) fn poll_turn(&self, group: &Group, place: &mut Option<usize>, waker: &Waker) -> Option<Turn> {
        let mut queue = self.queue.lock();
        let mut waiters = group.waiters();
        if group.outcome().is_some() {
            return Some(Turn::Done);
        }
        if queue.needs_leader() && !self.has_background {
            queue.leading = true;
            return Some(Turn::Lead);
        }
        waiters.demand();
        let former = waiters.keep_waker(place, waker);
        drop(waiters);
        self.call_background(&mut queue, |orders| orders.drive = true);
        drop(queue);
        drop(former);
        None
    }

    /// Nobody will ask for the batch any more; it is still to be committed.
    pub(super) fn abandon(&self, group: &Group) {
        let mut queue = self.queue.lock();
        group.waiters().demand();
        self.call_background(&mut queue, |orders| orders.drive = true);
    }

    fn call_background(&self, queue: &mut Queue, order: impl FnOnce(&mut BackgroundOrders)) {
        if self.has_background {
            order(&mut queue.background);
            self.work.notify_one();
        }
    }

    /// Commits what is queued. To be called by the leader only; leadership is passed on or given up.
    pub(super) fn lead(&self) {
        let mut leader = Leader { committer: self, entries: Vec::new(), group: Arc::default(), leads: true };
        while leader.leads {
            leader.take_group();
            let is_committed = self.commit(&mut leader);
            leader.leads = is_committed && self.pass_leadership();
            if !is_committed {
                self.give_up(true);
            }
            leader.group.wake();
            leader.recycle_entries();
        }
    }

    /// Answers the leader's group; whether it was written.
    fn commit(&self, leader: &mut Leader<'_>) -> bool {
        let mut writer = self.writer.lock();
        let result = writer.commit(&mut leader.entries).inspect_err(observe::log_failed);
        let is_committed = result.is_ok();
        let due = is_committed && writer.maintenance_due();
        let segment_ended = writer.take_segment_ended();
        *self.synced_through.lock() = writer.synced_through();
        // Before the writer is free: whoever learns of a batch finds all earlier ones known, and whoever learns that a segment
        // has ended, and seals it, finds all that stand in it known.
        leader.group.complete(result.map_err(Failure::new).and_then(|()| leader.committed()));
        drop(writer);
        self.tell_ended(segment_ended);
        if due {
            self.call_background(&mut self.queue.lock(), |orders| orders.maintain = true);
        }
        is_committed
    }

    /// Finds the next leader among those who want something; answers whether it is the caller.
    fn pass_leadership(&self) -> bool {
        let mut queue = self.queue.lock();
        let queued = !queue.entries.is_empty();
        if queued && queue.group.promote() {
            return false;
        }
        let demanded = queued && queue.group.waiters().is_demanded();
        if demanded && !self.has_background {
            return true;
        }
        queue.leading = false;
        if demanded {
            // It may be busy; a caller that blocks meanwhile need not wait for it.
            self.call_background(&mut queue, |orders| orders.drive = true);
        }
        if queue.waiting_for_room > 0 {
            self.room.notify_all();
        }
        false
    }

    /// Closes the queue after a failure and refuses all that wait in it; an active leader will do so itself.
    fn give_up(&self, as_leader: bool) {
        let mut queue = self.queue.lock();
        queue.closed.get_or_insert_with(Failure::closed);
        if queue.leading && !as_leader {
            return;
        }
        queue.leading = false;
        queue.bytes = 0;
        let _unwritten = mem::take(&mut queue.entries);
        let rest = mem::take(&mut queue.group);
        self.room.notify_all();
        drop(queue);
        rest.complete(Err(Failure::closed()));
        rest.wake();
    }

    /// Closes the log: nothing is written any more.
    fn fail(&self) {
        self.writer.lock().abandon();
        self.give_up(false);
    }

    /// Runs the upkeep that is due: zeroes space ahead of the next commits, syncs a large backlog of
    /// buffered batches, prepares the next segment's file. Between its steps `pause` is called.
    pub(super) fn maintain(&self, pause: &dyn Fn()) -> Result<()> {
        let _one_at_a_time = self.maintenance.lock();
        while self.writer.lock().zero_ahead_step() {
            pause();
        }
        self.sync_backlog()?;
        pause();
        let recipe = self.writer.lock().spare_due();
        if let Some(recipe) = recipe {
            let spare = recipe.prepare();
            self.writer.lock().keep_spare(spare);
        }
        Ok(())
    }

    fn sync_backlog(&self) -> Result<()> {
        // One that cannot be opened is still there next time.
        let Some(backlog) = self.writer.lock().backlog_due() else { return Ok(()) };
        if let Err(source) = backlog.sync() {
            // It may concern bytes that a commit relies on.
            self.fail();
            return Err(Error::io("sync log ahead of its callers; the log is closed", source));
        }
        let mut writer = self.writer.lock();
        writer.note_synced(&backlog);
        *self.synced_through.lock() = writer.synced_through();
        Ok(())
    }

    /// The segment that is being written, or the last one that was.
    pub(super) fn newest_segment(&self) -> SegmentId {
        self.writer.lock().newest_segment()
    }

    pub(super) fn is_newest_empty(&self) -> bool {
        self.writer.lock().is_newest_empty()
    }

    /// Ends the active segment and begins the next one; answers its id.
    pub(super) fn rotate(&self) -> Result<SegmentId> {
        let mut writer = self.writer.lock();
        let result = writer.rotate();
        let segment_ended = writer.take_segment_ended();
        *self.synced_through.lock() = writer.synced_through();
        drop(writer);
        self.tell_ended(segment_ended);
        result.inspect_err(|_| self.give_up(false))
    }

    /// Commits what is queued, ends the segment, and lets nothing in any more. A second call waits for the first.
    pub(super) fn close(self: &Arc<Self>) -> Result<()> {
        let result = self.closing().map_or(Ok(()), |last| last.wait().map(|_| ()));
        let _maintenance_is_over = self.maintenance.lock();
        let mut writer = self.writer.lock();
        let finished = writer.finish();
        *self.synced_through.lock() = writer.synced_through();
        result.and(finished)
    }

    /// The last entry of the queue, behind which nothing is let in; `None` if a failure closed it before.
    fn closing(self: &Arc<Self>) -> Option<Completion> {
        let place = match self.push(Batch::new(), Durability::Synced, true) {
            Ok(place) => Some(place),
            Err(_) => self.queue.lock().closing.clone(),
        };
        place.map(|(group, slot)| Completion::new(Arc::clone(self), group, slot))
    }

    /// The background thread: commits for those who cannot, and does the upkeep. Returns when stopped.
    pub(super) fn run_background(&self) {
        let _unwinding = FailOnUnwind(self);
        loop {
            self.lead_if_asked();
            let mut queue = self.queue.lock();
            let orders = &mut queue.background;
            if orders.drive {
                continue;
            }
            if mem::take(&mut orders.maintain) {
                drop(queue);
                // After an error the log is closed; its callers learn it from their next call.
                let _ = self.maintain(&|| self.lead_if_asked());
            } else if orders.stop {
                return;
            } else {
                self.work.wait(&mut queue);
            }
        }
    }

    /// Commits what is queued if the background thread was asked to and nobody else does.
    fn lead_if_asked(&self) {
        let mut queue = self.queue.lock();
        if mem::take(&mut queue.background.drive) && queue.needs_leader() {
            queue.leading = true;
            drop(queue);
            self.lead();
        }
    }

    pub(super) fn stop_background(&self) {
        self.call_background(&mut self.queue.lock(), |orders| orders.stop = true);
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Committer").finish_non_exhaustive()
    }
}

/// Who commits now. If it panics, those who count on it learn that the log is closed.
struct Leader<'a> {
    committer: &'a Committer,
    entries: Vec<Entry>,
    group: Arc<Group>,
    leads: bool,
}

impl Leader<'_> {
    fn take_group(&mut self) {
        self.let_served_return();
        let mut queue = self.committer.queue.lock();
        queue.served = queue.entries.len();
        let recycled = mem::take(&mut queue.recycled);
        self.entries = mem::replace(&mut queue.entries, recycled);
        self.group = mem::take(&mut queue.group);
        queue.bytes = 0;
        if queue.waiting_for_room > 0 {
            self.committer.room.notify_all();
        }
    }

    /// Where many commit at once, those just served come back with their next batch while the queue is about to be
    /// taken. The coming sync serves them as well if the leader steps aside as long as more of them arrive; a caller
    /// that was alone never waits.
    fn let_served_return(&self) {
        let (mut queued, served) = {
            let queue = self.committer.queue.lock();
            (queue.entries.len(), queue.served)
        };
        let mut idle_turns = 0;
        while served > 1 && queued < 2 * served && idle_turns < IDLE_TURNS_MAX {
            thread::yield_now();
            let now = self.committer.queue.lock().entries.len();
            idle_turns = if now > queued { 0 } else { idle_turns + 1 };
            queued = now;
        }
    }

    /// Where each batch stands.
    fn committed(&self) -> Result<Vec<Committed>, Failure> {
        self.entries.iter().map(|entry| entry.committed.ok_or_else(Failure::closed)).collect()
    }

    fn recycle_entries(&mut self) {
        self.entries.clear();
        if self.entries.capacity() <= GROUP_RECYCLED_MAX {
            self.committer.queue.lock().recycled = mem::take(&mut self.entries);
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if self.leads {
            self.committer.give_up(true);
            self.group.complete(Err(Failure::closed()));
            self.group.wake();
        }
    }
}

/// Closes the log if the background thread panics: those who await would count on it in vain.
struct FailOnUnwind<'a>(&'a Committer);

impl Drop for FailOnUnwind<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail();
        }
    }
}

/// A failure that many callers are told of.
#[derive(Debug, Clone)]
pub(super) struct Failure(Arc<Error>);

impl Failure {
    fn new(error: Error) -> Self {
        Self(Arc::new(error))
    }

    pub(super) fn closed() -> Self {
        Self::new(Error::new(
            ErrorKind::Closed,
            "append to log: it was closed, or an earlier write failed; reopen the store",
        ))
    }

    pub(super) fn to_error(&self) -> Error {
        let mut error = Error::new(self.0.kind(), self.0.message());
        if let Some(path) = self.0.path() {
            error = error.with_path(path);
        }
        if self.0.source().is_some() { error.with_source(SharedCause(Arc::clone(&self.0))) } else { error }
    }
}

/// The cause of a failure, owned by everybody who was told.
#[derive(Debug)]
struct SharedCause(Arc<Error>);

impl fmt::Display for SharedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.source().map_or(Ok(()), |source| fmt::Display::fmt(source, f))
    }
}

impl StdError for SharedCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}
