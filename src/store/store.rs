//! The store: one directory, one log, all sessions.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::append::{AppendOptions, Appended, Draft};
use super::cancel::Cancel;
use super::catalog::Shared;
use super::checkpoints::Occasion;
use super::options::StoreOptions;
use super::session::{Entry, EntryState, Identity, Revision, Session};
use super::upkeep::{Handle, Upkeep};
use crate::event::json::JsonString;
use crate::event::{Origin, SessionHeader, Vocabulary};
use crate::format::{FrameKind, encode_vocabulary};
use crate::ids::Seq;
use crate::log::{Batch, Durability, FrameDraft, LogMetrics};
use crate::{Error, ErrorKind, Result};

/// A store of sessions. Handles are cheap to clone and share everything; any number of threads may use them.
#[derive(Clone)]
pub struct Store {
    pub(super) inner: Handle,
    pub(super) cancel: Option<Cancel>,
}

/// What [`Store::list`] says of a session, without reading any payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The header, shared with the store.
    pub header: Arc<SessionHeader>,
    /// Number of events.
    pub events: u64,
    /// Size of the events as unpacked JSON lines, in bytes.
    pub bytes: u64,
    /// Time of the last event, in milliseconds since the Unix epoch.
    pub last_time: Option<i64>,
    /// The latest title.
    pub title: Option<Arc<str>>,
    /// What state the session is in.
    pub condition: SessionCondition,
    /// Token of the content.
    pub revision: Revision,
}

/// A batch for one of many sessions; see [`Store::submit`].
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// The session.
    pub session: &'a Session,
    /// Its new events.
    pub drafts: &'a [Draft<'a>],
    /// As [`AppendOptions::expected`].
    pub expected: Option<Seq>,
}

/// State of a listed session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionCondition {
    /// No turn is open.
    Idle,
    /// A turn has begun and not ended: it runs, or it was interrupted.
    OpenTurn,
    /// Some of its events are damaged or missing, or its create frame is; then its id is a stand-in.
    Damaged,
}

impl SessionCondition {
    /// The stable word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::OpenTurn => "open-turn",
            Self::Damaged => "damaged",
        }
    }
}

impl Store {
    /// Opens a store for writing, creating it where there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Locked`] if another process writes to it; [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::Io`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        StoreOptions::new().open(dir)
    }

    /// Opens a store for reading, beside whoever writes to it. Nothing is written, no lock is taken.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no store; [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`], [`ErrorKind::Io`].
    pub fn open_read_only(dir: impl AsRef<Path>) -> Result<Self> {
        StoreOptions::new().open_read_only(dir)
    }

    /// A new session. Nothing is stored before its first append; the id is free again if all handles go before that.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Rejected`] if the header is malformed; [`ErrorKind::Conflict`] if the id is taken; [`ErrorKind::Closed`].
    pub fn create_session(&self, header: SessionHeader) -> Result<Session> {
        header.validate().map_err(Error::from)?;
        self.reserve(header, None, EntryState::default())
    }

    /// A new session that begins with `events`, and with the `session/end-seed` event behind them if they do not end
    /// with one (spec section 9). Durable when this returns.
    ///
    /// # Errors
    ///
    /// As [`create_session`](Self::create_session) and [`Session::append`]; nothing is stored then.
    pub fn seed_session(&self, header: SessionHeader, events: &[Draft<'_>]) -> Result<Session> {
        let session = self.create_session(header)?;
        let mut seed = events.to_vec();
        if seed.last().is_none_or(|last| !last.is_type(END_SEED)) {
            seed.push(Draft::new(END_SEED, "{}"));
        }
        session.append_from(&seed, AppendOptions::default(), Origin::Seed)?.wait()?;
        Ok(session)
    }

    /// An existing session.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Corrupt`], with file and offset, if damage took what tells where its events are.
    pub fn session(&self, id: &str) -> Result<Session> {
        let session = self.find(id)?;
        session.check_not_lost()?;
        Ok(session)
    }

    /// A session, whatever is left of it.
    pub(super) fn find(&self, id: &str) -> Result<Session> {
        self.check_cancelled()?;
        let entry = self.inner.catalog.lock().by_id.get(id).cloned();
        match entry.filter(|entry| entry.state.lock().created) {
            Some(entry) => Ok(Session::new(self, entry)),
            None => {
                Err(Error::new(ErrorKind::NotFound, format!("open session {id}: there is no such session")))
            }
        }
    }

    /// An existing session, ready to go on: the closers of an interrupted turn are durable (spec section 9).
    ///
    /// # Errors
    ///
    /// As [`session`](Self::session) and [`Session::close_turn`].
    pub fn resume(&self, id: &str) -> Result<Session> {
        let session = self.session(id)?;
        session.close_turn()?;
        Ok(session)
    }

    /// A child session `new_id` that shares the events of session `id` up to and including `at` (the last one if absent),
    /// followed by `session/end-seed` (spec section 11). Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `at` is no event or lies inside an open turn; [`ErrorKind::Conflict`] if `new_id` is taken.
    pub fn fork(&self, id: &str, at: Option<Seq>, new_id: &str) -> Result<Session> {
        let parent = self.session(id)?;
        let end = parent.fork_end(at)?;
        let mut header = SessionHeader::new(new_id, self.inner.now_ms());
        header.cwd.clone_from(&parent.header().cwd);
        header.parent_session = Some(JsonString::from(id).into_owned());
        header.seed_length = Some(end.get());
        header.validate().map_err(Error::from)?;
        let (summary, ends_with_seed) = parent.summary_at(end)?;
        let shared = (end.get() > 0).then_some(Shared {
            owner: Arc::clone(&parent.entry),
            end,
            base: summary.clone(),
        });
        let mut state = EntryState::default();
        state.row.next_seq = end.get();
        state.row.summary = summary;
        let child = self.reserve(header, shared, state)?;
        // Whoever rewrites the events of a session that was removed before the fork was known need not keep them for it.
        drop(parent.lock()?);
        if ends_with_seed {
            child.materialise()?;
        } else {
            child
                .append_from(&[Draft::new(END_SEED, "{}")], AppendOptions::default(), Origin::Seed)?
                .wait()?;
        }
        Ok(child)
    }

    /// Removes a session for good; its handles stop to work. Events that a fork shares stay with the fork.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Io`], [`ErrorKind::Closed`].
    pub fn remove(&self, id: &str) -> Result<()> {
        let session = self.find(id)?;
        let mut state = session.lock()?;
        state.settle()?;
        let mut batch = Batch::new();
        let draft =
            FrameDraft { kind: FrameKind::REMOVE, subject: session.entry.key.get(), tag: 0, count: 0 };
        batch.push(draft, &[])?;
        let log = self.inner.writer()?;
        log.release_reserve();
        log.enqueue(batch, Durability::Synced).wait()?;
        state.removed = true;
        state.live = None;
        drop(state);
        self.inner.catalog.lock().forget(&session.entry);
        Ok(())
    }

    /// All sessions, newest first (by creation time, then id).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`].
    pub fn list(&self) -> Result<Vec<SessionInfo>> {
        self.check_cancelled()?;
        let catalog = self.inner.catalog.lock();
        // By key they are newest first, or nearly so: that leaves little to sort, and meets them as they lie in memory.
        let entries = catalog.by_key.values().rev();
        let mut order: Vec<_> = entries.map(|entry| (entry.header().created_at, Arc::clone(entry))).collect();
        drop(catalog);
        order.sort_unstable_by_key(|(time, _)| Reverse(*time));
        for equal in order.chunk_by_mut(|(a, _), (b, _)| a == b).filter(|equal| equal.len() > 1) {
            equal.sort_unstable_by(|(_, a), (_, b)| a.header().id.cmp(&b.header().id));
        }
        let mut listed = Vec::with_capacity(order.len());
        listed.extend(order.iter().filter_map(|(_, entry)| info(entry)));
        Ok(listed)
    }

    /// Admits one batch for each of many sessions and queues them one after the other, before any is waited for: they share a
    /// write and a sync, unless others commit meanwhile or the queue is full. Each stands for itself: one that is refused takes
    /// no other with it.
    pub fn submit(&self, batches: &[Submission<'_>], durability: Durability) -> Vec<Result<Appended>> {
        let append = |batch: &Submission<'_>| {
            batch.session.append(batch.drafts, AppendOptions { expected: batch.expected, durability })
        };
        batches.iter().map(append).collect()
    }

    /// Makes `name` an event type of this store: log-only, and known to whoever opens the store later.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is malformed or already has a meaning; [`ErrorKind::Io`], [`ErrorKind::Closed`].
    pub fn register_type(&self, name: &str) -> Result<()> {
        let mut vocabulary = self.vocabulary();
        if vocabulary.registered().any(|known| known == name) {
            return Ok(());
        }
        vocabulary.register(name)?;
        let mut payload = Vec::new();
        encode_vocabulary(&mut payload, [name]);
        let mut batch = Batch::new();
        batch.push(FrameDraft { kind: FrameKind::VOCABULARY, subject: 0, tag: 0, count: 0 }, &payload)?;
        self.inner.writer()?.enqueue(batch, Durability::Synced).wait()?;
        // Others may have registered more meanwhile; the same name twice in the log is once in the vocabulary.
        let mut catalog = self.inner.catalog.lock();
        catalog.vocabulary.register(name)?;
        *self.inner.vocabulary.write() = Arc::new(catalog.vocabulary.clone());
        Ok(())
    }

    /// A handle whose reads end with [`ErrorKind::Cancelled`] once `cancel` is thrown.
    #[must_use]
    pub fn cancellable(&self, cancel: &Cancel) -> Self {
        Self { inner: self.inner.clone(), cancel: Some(cancel.clone()) }
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        self.cancel.as_ref().map_or(Ok(()), Cancel::check)
    }

    /// The event types of this store: the known ones and those that hosts registered.
    #[must_use]
    pub fn vocabulary(&self) -> Vocabulary {
        Vocabulary::clone(&self.inner.vocabulary())
    }

    /// Writes and syncs everything that is queued.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], [`ErrorKind::Closed`].
    pub fn flush(&self) -> Result<()> {
        self.inner.writer()?.flush()
    }

    /// Runs the upkeep that is due: prepares space, seals what has ended, and writes checkpoints of what was sealed, of
    /// sessions that nobody holds any more, and of those in use that have run far ahead of their last one. A checkpoint that
    /// cannot be written is no error. A store that [seals](super::StoreOptions::sealing) runs it by itself.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], [`ErrorKind::Closed`]; [`ErrorKind::Cancelled`] through a
    /// [cancellable](Self::cancellable) handle. A failure of what the store ran by itself since the last call, which costs
    /// space only.
    pub fn maintain(&self) -> Result<()> {
        self.run_upkeep()?;
        self.inner.upkeep.as_deref().map_or(Ok(()), Upkeep::take_failure)
    }

    pub(super) fn run_upkeep(&self) -> Result<()> {
        self.inner.writer()?.maintain()?;
        let mut sealed = BTreeSet::new();
        let outcome = self.seal_ended(&mut sealed);
        self.write_checkpoints(Occasion::Upkeep, &sealed);
        outcome
    }

    /// Counters of the commit queue, and what waits for being sealed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the store is open for reading only.
    pub fn metrics(&self) -> Result<LogMetrics> {
        let upkeep_failure = self.inner.upkeep.as_deref().and_then(Upkeep::failure);
        Ok(LogMetrics { upkeep_failure, ..self.inner.writer()?.metrics() })
    }

    /// Takes in what a writer in another process has added since. A store open for writing is always up to date.
    ///
    /// # Errors
    ///
    /// As [`open_read_only`](Self::open_read_only).
    pub fn refresh(&self) -> Result<()> {
        self.inner.refresh()
    }

    /// Ends sealing that is under way, writes and syncs what is queued, writes checkpoints of the sessions that were in use,
    /// and closes the log. Later calls on any handle that create, append, remove, register or maintain answer
    /// [`ErrorKind::Closed`]; what was stored can still be listed and read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if that fails; what was acknowledged stays safe.
    pub fn close(self) -> Result<()> {
        self.inner.stop_upkeep();
        self.write_checkpoints(Occasion::Closing, &BTreeSet::new());
        self.inner.close()
    }

    fn reserve(
        &self,
        header: SessionHeader,
        shared: Option<Shared>,
        mut state: EntryState,
    ) -> Result<Session> {
        self.inner.writer()?;
        // It begins behind all damage.
        state.row.damage_seen = self.inner.nameless_damage;
        let mut catalog = self.inner.catalog.lock();
        if catalog.by_id.get(&header.id).is_some() {
            let message = format!("create session {}: the id is taken; choose another or open it", header.id);
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        let entry = Arc::new(Entry::new(
            catalog.next_key(),
            Identity { header: header.into(), shared: shared.map(Box::new) },
            state,
        ));
        catalog.insert(Arc::clone(&entry));
        drop(catalog);
        Ok(Session::new(self, entry))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// The event that separates inherited events from a session's own.
pub(super) const END_SEED: &str = "session/end-seed";

fn info(entry: &Entry) -> Option<SessionInfo> {
    let mut state = entry.state.lock();
    state.absorb();
    let row = &state.row;
    if !state.created
        || state.removed
        || state.shadowed
        || (row.next_seq == 0 && state.next_seq() > Seq::new(0))
    {
        return None;
    }
    let condition = match row {
        row if !row.damaged.is_empty() || !entry.is_named() => SessionCondition::Damaged,
        row if row.summary.open_turn => SessionCondition::OpenTurn,
        _ => SessionCondition::Idle,
    };
    Some(SessionInfo {
        header: Arc::clone(entry.header()),
        events: row.next_seq,
        bytes: row.summary.logical_bytes,
        last_time: row.summary.last_time,
        title: row.summary.title.clone(),
        condition,
        revision: entry.revision(row),
    })
}
