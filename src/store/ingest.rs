//! Taking in a judged log: admitted events stream into the store and become a session only at the end.
//!
//! A new session's frames carry a key that no create frame names yet, so a log that is refused halfway, or a crash,
//! leaves no session behind. Memory holds at most one batch.

use super::records::Encoder;
use super::session::{Pending, Session, WrittenBase};
use super::store::Store;
use super::summary::Summary;
use crate::event::{Admitted, SessionHeader};
use crate::ids::Seq;
use crate::log::{Batch, Durability};
use crate::{Error, ErrorKind, Result};

/// Bytes of events that are gathered before they are handed to the log.
const BATCH_BYTES: u64 = 4 << 20;

/// An import on its way into the store.
pub(crate) struct Ingest {
    session: Session,
    encoder: Encoder,
    /// The session existed before; a new one is shown to nobody before it is finished.
    extends: bool,
}

impl Store {
    /// Begins a new session that appears when [`Ingest::finish`] is called, or not at all.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the id is taken.
    pub(crate) fn ingest(&self, header: SessionHeader) -> Result<Ingest> {
        let session = self.create_session(header)?;
        let encoder = Encoder::new(session.entry.key, Seq::new(0), Summary::default(), Batch::new());
        Ok(Ingest { session, encoder, extends: false })
    }
}

impl Session {
    /// Begins to add events that follow the stored ones; whole batches of them stay even if it is not finished.
    pub(crate) fn extend(&self) -> Result<Ingest> {
        let mut state = self.lock()?;
        self.check_end(&state)?;
        state.settle()?;
        let encoder = Encoder::new(self.entry.key, state.next_seq(), state.summary().clone(), Batch::new());
        let mut ingest = Ingest { session: self.clone(), encoder, extends: true };
        ingest.use_base(state.patch_base());
        Ok(ingest)
    }
}

impl Ingest {
    /// Adds the next event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the session moved on meanwhile; [`ErrorKind::Io`], [`ErrorKind::Closed`].
    pub(crate) fn push(&mut self, admitted: &Admitted<'_>) -> Result<()> {
        if admitted.event().seq != self.encoder.next_seq() {
            let message = format!("import session {}: event out of order", self.session.id());
            return Err(Error::new(ErrorKind::Invalid, message).with_seq(admitted.event().seq));
        }
        self.encoder.push(admitted.event())?;
        if self.encoder.bytes() >= BATCH_BYTES {
            self.queue(Durability::Buffered)?;
        }
        Ok(())
    }

    /// Makes the session, or its new events, visible; durable with the next synced group or [`Store::flush`].
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub(crate) fn finish(mut self) -> Result<Session> {
        self.queue(Durability::Buffered)?;
        if !self.extends {
            self.publish()?;
        }
        self.session.lock()?.settle()?;
        Ok(self.session)
    }

    /// Has the gathered events written, so that no more than one batch is ever in memory.
    fn queue(&mut self, durability: Durability) -> Result<()> {
        let next = self.encoder.next_seq();
        let summary = self.encoder.summary().clone();
        let fresh = Encoder::new(self.session.entry.key, next, summary, Batch::new());
        let full = std::mem::replace(&mut self.encoder, fresh);
        if full.bytes() == 0 {
            return Ok(());
        }
        let first = full.first_seq();
        let (batch, runs, summary) = full.finish()?;
        let log = self.session.store.writer()?;
        let mut state = self.session.lock()?;
        if state.next_seq() != first {
            let message =
                format!("import session {}: it was appended to meanwhile; import again", self.session.id());
            return Err(Error::new(ErrorKind::Conflict, message).with_seq(first));
        }
        let completion = log.enqueue(batch, durability);
        state.queue(Pending { completion, runs, next_seq: next, summary, names: false });
        state.live = None;
        state.settle()?;
        let base = state.patch_base();
        drop(state);
        self.use_base(base);
        Ok(())
    }

    /// Writes the next headers as patches of this one, which is written by now.
    fn use_base(&mut self, base: Option<WrittenBase>) {
        self.encoder.set_base(self.session.store.patch_base(base));
    }

    /// Writes the create frame behind the events that it reveals, twice: no later batch may come to repeat it.
    fn publish(&self) -> Result<()> {
        let mut state = self.session.lock()?;
        for _ in 0..2 {
            let batch = self.session.create_frame()?;
            let completion = self.session.store.writer()?.enqueue(batch, Durability::Buffered);
            state.queue_create_frame(completion);
        }
        Ok(())
    }
}
