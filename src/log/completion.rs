//! The answer to a batch: blocks or is awaited, with no runtime.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::batch::FrameSlot;
use super::commit::{Committer, Failure, Turn};
use super::group::Group;
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
    group: Arc<Group>,
    /// The batch's place in the group.
    slot: usize,
    /// Where the waker of whoever polls this handle is kept.
    waker: Option<usize>,
}

impl Completion {
    pub(super) fn new(committer: Arc<Committer>, group: Arc<Group>, slot: usize) -> Self {
        Self { committer, group, slot, waker: None }
    }

    fn outcome(&self) -> Option<Outcome> {
        let outcome = self.group.outcome()?.as_ref();
        Some(
            outcome
                .map_err(Clone::clone)
                .and_then(|group| group.get(self.slot).copied().ok_or_else(Failure::closed)),
        )
    }

    /// Blocks until the batch is committed with the durability asked for.
    ///
    /// # Errors
    /// [`Io`](crate::ErrorKind::Io) if writing or syncing failed, [`Closed`](crate::ErrorKind::Closed) if
    /// that, or the log's close, came before the batch's turn. Asked again, the answer is the same.
    pub fn wait(&self) -> Result<Committed> {
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome.map_err(|failure| failure.to_error());
            }
            if self.committer.await_turn(&self.group) == Turn::Lead {
                self.committer.lead();
            }
        }
    }

    /// Whether [`wait`](Self::wait) would answer at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.group.outcome().is_some()
    }

    /// The answer, if it is known by now.
    #[must_use]
    pub fn try_result(&self) -> Option<Result<Committed>> {
        Some(self.outcome()?.map_err(|failure| failure.to_error()))
    }
}

impl Clone for Completion {
    /// Another handle to the same answer. Dropping any of them unfinished drives the batch.
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.committer), Arc::clone(&self.group), self.slot)
    }
}

impl Future for Completion {
    type Output = Result<Committed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if let Some(outcome) = this.outcome() {
                return Poll::Ready(outcome.map_err(|failure| failure.to_error()));
            }
            match this.committer.poll_turn(&this.group, &mut this.waker, context.waker()) {
                None => return Poll::Pending,
                Some(Turn::Done) => {}
                Some(Turn::Lead) => this.committer.lead(),
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.is_done() {
            self.committer.abandon(&self.group);
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("done", &self.is_done()).finish()
    }
}

pub(super) type Outcome = Result<Committed, Failure>;
