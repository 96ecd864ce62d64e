//! The answer to a batch: blocks or is awaited, with no runtime.
//!
//! Lock order: the queue before a ticket.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use super::batch::FrameSlot;
use super::commit::{Committer, Failure, Turn};
use crate::Result;
use crate::ids::Position;

/// Where a committed batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Committed {
    /// Its first frame; [`position_of`](Self::position_of) tells of each.
    pub at: Position,
    /// Its end. The batch is durable once [`Log::synced_through`](super::Log::synced_through) is at least
    /// this.
    pub end: Position,
    /// Frames that have a patch were written as patches.
    pub(super) patched: bool,
}

impl Committed {
    /// Where a frame stands, for which [`Batch::push`](super::Batch::push) answered `slot`.
    #[must_use]
    pub fn position_of(&self, slot: &FrameSlot) -> Position {
        let offset = if self.patched { slot.patched } else { slot.plain };
        Position { segment: self.at.segment, offset: self.at.offset + offset }
    }

    /// Bytes of a frame's payload if it was written as a patch; 0 if it is plain, so that it can be a
    /// [base](super::PatchBase).
    #[must_use]
    pub const fn patch_bytes(&self, slot: &FrameSlot) -> u32 {
        if self.patched { slot.patch_bytes } else { 0 }
    }
}

/// The pending result of one batch.
///
/// [`wait`](Self::wait) commits the batch on the calling thread if nobody else is committing. Awaiting it,
/// or dropping it unfinished, leaves the work to the log's background thread (without one, polling commits
/// inline, and a dropped one is committed with the next group of anyone, or at close). As a future is, a
/// completion that is kept and neither waited for, polled nor dropped is not driven: it is committed with
/// the next group of anyone.
#[must_use = "a batch whose result nobody looks at may have failed"]
pub struct Completion {
    committer: Arc<Committer>,
    ticket: Arc<Ticket>,
    /// Where the waker of whoever polls this handle is kept.
    waker: Option<usize>,
}

impl Completion {
    pub(super) fn new(committer: Arc<Committer>, ticket: Arc<Ticket>) -> Self {
        Self { committer, ticket, waker: None }
    }

    /// Blocks until the batch is committed with the durability asked for.
    ///
    /// # Errors
    /// [`Io`](crate::ErrorKind::Io) if writing or syncing failed, [`Closed`](crate::ErrorKind::Closed) if
    /// that, or the log's close, came before the batch's turn. Asked again, the answer is the same.
    pub fn wait(&self) -> Result<Committed> {
        loop {
            match self.committer.await_turn(&self.ticket) {
                Turn::Done(outcome) => return outcome.map_err(|failure| failure.to_error()),
                Turn::Lead => self.committer.lead(),
            }
        }
    }

    /// Whether [`wait`](Self::wait) would answer at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.state.lock().outcome.is_some()
    }

    /// The answer, if it is known by now.
    #[must_use]
    pub fn try_result(&self) -> Option<Result<Committed>> {
        let outcome = self.ticket.state.lock().outcome.clone()?;
        Some(outcome.map_err(|failure| failure.to_error()))
    }
}

impl Clone for Completion {
    /// Another handle to the same answer. Dropping any of them unfinished drives the batch.
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.committer), Arc::clone(&self.ticket))
    }
}

impl Future for Completion {
    type Output = Result<Committed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match this.committer.poll_turn(&this.ticket, &mut this.waker, context.waker()) {
                None => return Poll::Pending,
                Some(Turn::Done(outcome)) => {
                    return Poll::Ready(outcome.map_err(|failure| failure.to_error()));
                }
                Some(Turn::Lead) => this.committer.lead(),
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.is_done() {
            self.committer.abandon(&self.ticket);
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("done", &self.is_done()).finish()
    }
}

pub(super) type Outcome = Result<Committed, Failure>;

/// What the committer and those who wait for one batch share.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    pub(super) state: Mutex<TicketState>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct TicketState {
    pub(super) outcome: Option<Outcome>,
    /// Threads that block for this batch.
    pub(super) blocked: u32,
    /// One of them is to commit the next group.
    pub(super) promoted: bool,
    /// Somebody counts on the background thread.
    pub(super) demanded: bool,
    /// One for each handle that was polled.
    wakers: Vec<Waker>,
}

impl TicketState {
    /// Keeps a handle's waker in the place of its former one.
    pub(super) fn keep_waker(&mut self, place: &mut Option<usize>, waker: &Waker) {
        match place.and_then(|place| self.wakers.get_mut(place)) {
            Some(known) => known.clone_from(waker),
            None => {
                *place = Some(self.wakers.len());
                self.wakers.push(waker.clone());
            }
        }
    }
}

impl Ticket {
    /// Stores the outcome, for whoever asks from now on; the first one counts.
    pub(super) fn complete(&self, outcome: Outcome) {
        self.state.lock().outcome.get_or_insert(outcome);
    }

    /// Wakes those who wait for the outcome, and nobody else.
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        let wakers = std::mem::take(&mut state.wakers);
        let blocked = state.blocked;
        drop(state);
        if blocked > 0 {
            self.changed.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountWakes(AtomicU32);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn each_handle_that_was_polled_is_woken_by_its_latest_waker() {
        let ticket = Ticket::default();
        let mut places = [None; 2];
        let wakes = [(); 3].map(|()| Arc::new(CountWakes::default()));
        for (handle, waker) in [(0, 0), (1, 1), (0, 2), (1, 1)] {
            let waker = Waker::from(Arc::clone(&wakes[waker]));
            ticket.state.lock().keep_waker(&mut places[handle], &waker);
        }
        ticket.wake();
        assert_eq!(wakes.map(|wakes| wakes.0.load(Ordering::SeqCst)), [0, 1, 1]);
    }
}
