//! Writing checkpoints: which sessions are due, and merging files.
//!
//! Only durable events are checkpointed. A failure is no error: without the checkpoint the session is folded from an
//! earlier one. Nothing but one session's state is held in memory at a time, and what waits from idle ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::catalog::Row;
use super::super::places::Place;
use super::super::session::{Entry, Session};
use super::super::store::Store;
use super::super::summary::Summary;
use super::{Checkpoints, Snapshot, lineage};
use crate::event::SessionState;
use crate::format::checkpoint::CheckpointRow;
use crate::format::sealed::SessionRow;
use crate::ids::{Seq, SessionKey};
use crate::limits::{CHECKPOINT_FILES_MAX, CHECKPOINT_LAG_EVENTS_MIN};
use crate::log::{CheckpointFile, CheckpointWriter, Log, SealedFile};
use crate::{Error, ErrorKind, Result, observe};

/// When checkpoints are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Occasion {
    /// Segments were sealed, or might have been.
    Upkeep,
    /// Everything was rewritten: so are the checkpoints.
    Compaction,
    /// The store is closed: sessions that somebody still holds go to sleep too.
    Closing,
}

/// A checkpoint of each session, in a file.
type Stored = BTreeMap<SessionKey, (Arc<CheckpointFile>, CheckpointRow)>;

/// What the checkpoint files hold.
struct Survey {
    numbers: Vec<u64>,
    /// Those of them that could not be read now.
    unread: BTreeSet<u64>,
    /// The newest checkpoint of each session that there still is.
    newest: Stored,
    /// Bytes of the bodies of each file that is right.
    bytes: BTreeMap<u64, u64>,
}

/// A file that is so many times larger than all newer ones together is left as it is when files are merged.
const MERGE_FACTOR: u64 = 4;

/// What goes into the next file.
struct Plan<'s> {
    /// Sessions in what was sealed, which are folded if need be.
    sealed: &'s BTreeSet<SessionKey>,
    /// Sessions that get a new checkpoint.
    due: BTreeSet<SessionKey>,
    /// Checkpoints that are taken over from the files before.
    kept: Stored,
}

impl Store {
    /// Writes the checkpoints that are due: of the sessions in `sealed`, of those that nobody holds any more, and of those that
    /// have run far ahead.
    pub(in crate::store) fn write_checkpoints(&self, occasion: Occasion, sealed: &BTreeSet<SessionKey>) {
        // Nothing is kept for a store that is only read, or was closed.
        let Ok(log) = self.inner.writer() else { return };
        // Whoever throws a cancel token wants his reads and the upkeep to end, not that a closing store forgets its sessions.
        let cancel = self.cancel.clone().filter(|_| occasion == Occasion::Upkeep);
        let store = Self { inner: self.inner.clone(), cancel };
        let checkpoints = &self.inner.checkpoints;
        let _writing = checkpoints.writing.lock();
        let called_for = std::mem::take(&mut checkpoints.known.lock().called_for);
        // Without them resuming takes longer, and that is all.
        if let Err(error) = store.try_write_checkpoints(log, occasion, sealed, &called_for) {
            checkpoints.known.lock().called_for.extend(called_for);
            if error.kind() != ErrorKind::Cancelled {
                observe::checkpoints_failed(&error);
            }
        }
    }

    fn try_write_checkpoints(
        &self,
        log: &Log,
        occasion: Occasion,
        sealed: &BTreeSet<SessionKey>,
        called_for: &BTreeSet<SessionKey>,
    ) -> Result<()> {
        let checkpoints = &self.inner.checkpoints;
        let mut due: BTreeSet<SessionKey> = sealed.union(called_for).copied().collect();
        due.extend(checkpoints.known.lock().idle.keys());
        if occasion == Occasion::Closing {
            due.extend(self.live_sessions());
        }
        due.retain(|key| self.is_due(*key, sealed));
        if due.is_empty() && occasion != Occasion::Compaction {
            return Ok(());
        }
        if occasion == Occasion::Closing {
            self.flush()?;
        }
        let survey = self.survey_checkpoints()?;
        let superseded = survey.superseded(&due, occasion);
        if due.is_empty() && superseded.is_empty() {
            return Ok(());
        }
        let number = survey.numbers.last().map_or(1, |last| last.saturating_add(1));
        let mut kept = survey.newest;
        kept.retain(|_, (file, _)| superseded.contains(&file.number()));
        let plan = Plan { sealed, due, kept };
        let written = log.write_checkpoints(&checkpoints.files, number, &superseded, &mut |writer| {
            let keys: BTreeSet<SessionKey> = plan.due.iter().chain(plan.kept.keys()).copied().collect();
            keys.into_iter().try_for_each(|key| {
                self.check_cancelled()?;
                self.write_checkpoint(key, &plan, writer)
            })
        });
        let file = written.inspect_err(|_| checkpoints.forget_listing())?;
        checkpoints.take_written(file, &superseded);
        Ok(())
    }

    /// Writes the checkpoint of a session: a new one if it is due and can be had, else the one that there is.
    fn write_checkpoint(
        &self,
        key: SessionKey,
        plan: &Plan<'_>,
        writer: &mut CheckpointWriter,
    ) -> Result<()> {
        if plan.due.contains(&key)
            && let Some(snapshot) = self.durable_snapshot(key, plan.sealed)
        {
            let Snapshot { next_seq, chain, decoded_bytes, stored } = &*snapshot;
            return writer.push(key, *next_seq, *chain, *decoded_bytes, stored);
        }
        if let Some((file, row)) = plan.kept.get(&key)
            && let Ok(stored) = file.read(row)
        {
            return writer.push(key, row.next_seq, row.chain, row.decoded_bytes, &stored);
        }
        Ok(())
    }

    fn entry(&self, key: SessionKey) -> Option<Arc<Entry>> {
        self.inner.catalog.lock().by_key.get(&key).cloned()
    }

    /// The sessions whose projections are in memory.
    fn live_sessions(&self) -> Vec<SessionKey> {
        let catalog = self.inner.catalog.lock();
        let live = catalog.by_key.values().filter(|entry| entry.state.lock().live.is_some());
        live.map(|entry| entry.key).collect()
    }

    /// Whether a new checkpoint of a session is worth its while.
    fn is_due(&self, key: SessionKey, sealed: &BTreeSet<SessionKey>) -> bool {
        let checkpoints = &self.inner.checkpoints;
        let Some(entry) = self.entry(key) else { return false };
        let mut state = entry.state.lock();
        state.absorb();
        let is_sound = state.created && !state.removed && entry.is_named() && state.row.damaged.is_empty();
        if !is_sound {
            checkpoints.known.lock().forget_idle(key);
            return false;
        }
        let live = state.live.as_ref().map(|live| live.state.next_seq());
        let in_file = sealed.contains(&key).then(|| sealed_end(&state.row)).flatten();
        let idle = checkpoints.idle(key).map(|idle| idle.next_seq);
        let reachable = [live, in_file.map(|run| run.0), idle].into_iter().flatten().max();
        reachable.is_some_and(|end| checkpoints.stored_lag(&entry, end) >= CHECKPOINT_LAG_EVENTS_MIN)
    }

    /// The newest state of a session that is durable and can be had; folded only up to the end of its last sealed run.
    fn durable_snapshot(&self, key: SessionKey, sealed: &BTreeSet<SessionKey>) -> Option<Arc<Snapshot>> {
        let entry = self.entry(key)?;
        let mut state = entry.state.lock();
        state.absorb();
        let row = &state.row;
        let durable = row.durable_seq(self.inner.synced_through());
        if let Some(live) = state.live.as_ref().filter(|live| live.state.next_seq() == state.next_seq()) {
            // Encoding takes long, and so may a sync; appends need not wait for them.
            let (live, chain) = (live.state.clone(), state.summary().chain);
            drop(state);
            if live.next_seq() > durable {
                self.flush().ok()?;
            }
            return Snapshot::of(&live, chain).ok().map(Arc::new);
        }
        let idle = self.inner.checkpoints.idle(key);
        let idle = idle.filter(|idle| idle.next_seq <= durable);
        let sealed_run = sealed.contains(&key).then(|| sealed_end(row)).flatten();
        drop(state);
        match (idle, sealed_run) {
            (Some(idle), Some((end, ..))) if idle.next_seq >= end => Some(idle),
            (idle, None) => idle,
            (_, Some((end, file, row))) => {
                let chain = Summary::decode(&file.summary(&row).ok()?).ok()?.chain;
                let session = Session::new(self, entry);
                let read = |range, each: &mut super::Each<'_>| session.scan(range, each);
                let folded = session.resumed(end, chain, &read).ok()?;
                Snapshot::of(&folded, chain).ok().map(Arc::new)
            }
        }
    }

    /// What the files hold of the sessions that there are.
    fn survey_checkpoints(&self) -> Result<Survey> {
        let checkpoints = &self.inner.checkpoints;
        let catalog = self.inner.catalog.lock();
        let mut known = checkpoints.known.lock();
        checkpoints.list(&mut known);
        if !known.is_listed {
            return Err(Error::new(
                ErrorKind::Io,
                "write checkpoints: those that there are cannot be listed",
            ));
        }
        let (numbers, unread) = (known.numbers.clone(), known.unread.clone());
        let mut survey = Survey { numbers, unread, newest: BTreeMap::new(), bytes: BTreeMap::new() };
        for file in &known.files {
            for row in file.rows() {
                *survey.bytes.entry(file.number()).or_default() += u64::from(row.stored_bytes);
                let is_right = !known.discarded.contains(&(file.number(), row.key));
                let is_newest =
                    survey.newest.get(&row.key).is_none_or(|(_, other)| other.next_seq <= row.next_seq);
                if is_right && is_newest && catalog.by_key.contains_key(&row.key) {
                    survey.newest.insert(row.key, (Arc::clone(file), *row));
                }
            }
        }
        drop(known);
        survey.newest.retain(|key, (_, row)| {
            catalog.by_key.get(key).is_some_and(|entry| {
                let state = entry.state.lock();
                !state.removed && row.next_seq <= state.next_seq()
            })
        });
        Ok(survey)
    }
}

/// Where the sealed part of a session ends, and the file that says what is summed up there.
fn sealed_end(row: &Row) -> Option<(Seq, Arc<SealedFile>, SessionRow)> {
    row.runs.iter().rev().find_map(|run| match &run.at {
        Place::Sealed(file, row) => Some((run.end(), Arc::clone(file), *row)),
        Place::Frame(_) => None,
    })
}

impl Survey {
    /// The files whose place the next one is to take: all, if it is time to leave out what is of no use; else, if there are too
    /// many, the newest ones, and older ones as long as they are not much larger than those together. So each checkpoint is
    /// rewritten a few times, and those of sleeping sessions hardly ever.
    fn superseded(&self, due: &BTreeSet<SessionKey>, occasion: Occasion) -> Vec<u64> {
        let staying = self.newest.iter().filter(|(key, _)| !due.contains(key));
        let staying: u64 = staying.map(|(_, (_, row))| u64::from(row.stored_bytes)).sum();
        let bytes: u64 = self.bytes.values().sum();
        // A file without a body is one that is not right.
        let is_one = self.numbers.len() == 1 && bytes > 0 && staying == bytes && due.is_empty();
        let takes_all = 2 * staying < bytes || occasion == Occasion::Compaction && !is_one;
        let is_full = self.numbers.len() >= CHECKPOINT_FILES_MAX;
        let mut gathered = 0;
        let newest_first = self.numbers.iter().rev().filter(|number| !self.unread.contains(number));
        let taken = newest_first.take_while(|number| {
            let bytes = self.bytes.get(number).copied().unwrap_or(0);
            let is_taken = takes_all || is_full && (gathered == 0 || bytes <= MERGE_FACTOR * gathered);
            gathered += bytes;
            is_taken
        });
        taken.copied().collect()
    }
}

impl Checkpoints {
    /// How far the newest checkpoint in a file that holds for a session is behind `end`.
    fn stored_lag(&self, entry: &Entry, end: Seq) -> u64 {
        let mut known = self.known.lock();
        self.list(&mut known);
        let stored = lineage(entry, end)
            .flat_map(|(key, end)| known.stored(key).filter(move |stored| stored.next_seq <= end));
        end.get() - stored.map(|stored| stored.next_seq.get()).max().unwrap_or(0)
    }

    /// Takes in that a file was written, and that others were deleted.
    fn take_written(&self, file: Option<CheckpointFile>, superseded: &[u64]) {
        let mut known = self.known.lock();
        known.numbers.retain(|number| !superseded.contains(number));
        known.files.retain(|file| !superseded.contains(&file.number()));
        if let Some(file) = file {
            for row in file.rows() {
                if known.idle.get(&row.key).is_some_and(|idle| idle.next_seq <= row.next_seq) {
                    known.forget_idle(row.key);
                }
            }
            observe::checkpointed(file.number(), file.rows().len());
            known.numbers.push(file.number());
            known.files.push(Arc::new(file));
        }
        known.forget_discarded();
    }
}
