//! The answer to a batch: blocks or is awaited, with no runtime.
//!
//! Lock order: the queue before a ticket.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use super::commit::{Committer, Failure, Turn};
use crate::Result;
use crate::ids::Position;

/// Where a committed batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Committed {
    /// Its first frame; the others follow at the offsets that [`Batch::push`](super::Batch::push) answered.
    pub at: Position,
    /// Its end. The batch is durable once [`Log::synced_through`](super::Log::synced_through) is at least
    /// this.
    pub end: Position,
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
}

impl Completion {
    pub(super) fn new(committer: Arc<Committer>, ticket: Arc<Ticket>) -> Self {
        Self { committer, ticket }
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
        Self { committer: Arc::clone(&self.committer), ticket: Arc::clone(&self.ticket) }
    }
}

impl Future for Completion {
    type Output = Result<Committed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.committer.poll_turn(&self.ticket, context.waker()) {
                None => return Poll::Pending,
                Some(Turn::Done(outcome)) => {
                    return Poll::Ready(outcome.map_err(|failure| failure.to_error()));
                }
                Some(Turn::Lead) => self.committer.lead(),
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
    pub(super) waker: Option<Waker>,
}

impl Ticket {
    /// Stores the outcome, for whoever asks from now on.
    pub(super) fn complete(&self, outcome: Outcome) {
        self.state.lock().outcome = Some(outcome);
    }

    /// Wakes those who wait for the outcome, and nobody else.
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        let waker = state.waker.take();
        let blocked = state.blocked;
        drop(state);
        if blocked > 0 {
            self.changed.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
