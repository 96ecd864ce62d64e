//! What happens to a session as a whole: closing an interrupted turn, the boundary of a fork, empty sessions.

use super::append::{AppendOptions, Draft};
use super::session::Session;
use super::store::END_SEED;
use super::summary::Summary;
use crate::event::SessionState;
use crate::ids::Seq;
use crate::log::Durability;
use crate::{Error, ErrorKind, Result};

impl Session {
    /// Appends the closers of an interrupted turn (spec section 9), durably; returns how many there were.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Rejected`] with refusal `empty-call-id` if a pending call has no id: append its `step/end` first.
    pub fn close_turn(&self) -> Result<u64> {
        let (closers, expected) = self.with_state(|state| (state.closers(), state.next_seq()))?;
        let closers = closers.map_err(|refusal| self.refused("close the turn of", refusal.into()))?;
        if closers.is_empty() {
            return Ok(0);
        }
        let drafts: Vec<_> = closers.into_iter().map(Draft::from_candidate).collect();
        let options = AppendOptions { expected: Some(expected), durability: Durability::Synced };
        self.append(&drafts, options)?.wait()?;
        Ok(drafts.len() as u64)
    }

    /// The end of the prefix that a fork at `at` would share.
    pub(super) fn fork_end(&self, at: Option<Seq>) -> Result<Seq> {
        let next = self.next_seq()?;
        let invalid = |why: &str| {
            let message = format!("fork session {}: {why}", self.id());
            Err(Error::new(ErrorKind::Invalid, message).with_seq(at.unwrap_or(next)))
        };
        if at.is_some_and(|at| at >= next) {
            return invalid("there is no such event");
        }
        let end = at.map_or(next, Seq::next);
        if end.get() > 0 && self.state_at(Seq::new(end.get() - 1))?.turns().open_turn().is_some() {
            return invalid("a turn is open there; choose a seq at or after its turn/end");
        }
        Ok(end)
    }

    /// The summary of the events below `end`, and whether the last of them is `session/end-seed`.
    pub(super) fn summary_at(&self, end: Seq) -> Result<(Summary, bool)> {
        let mut summary = Summary::default();
        let mut ends_with_seed = false;
        self.for_each(Seq::new(0)..end, &mut |event| {
            ends_with_seed = event.type_name == END_SEED;
            summary.apply(&event);
            Ok(())
        })?;
        Ok((summary, ends_with_seed))
    }

    /// Writes the session without an event of its own, durably; twice, as no later batch may come to repeat its name.
    pub(super) fn materialise(&self) -> Result<()> {
        let mut state = self.lock()?;
        if state.created {
            return Ok(());
        }
        let batches = [self.create_frame()?, self.create_frame()?];
        let log = self.store.writer()?;
        let completions = batches.map(|batch| log.enqueue(batch, Durability::Synced));
        for completion in &completions {
            state.queue_create_frame(completion.clone());
        }
        drop(state);
        completions.iter().try_for_each(|completion| completion.wait().map(|_| ()))
    }
}
