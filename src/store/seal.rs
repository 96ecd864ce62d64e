//! Sealing and compaction as the store sees them: which events are still needed, and what each session's row becomes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::catalog::Catalog;
use super::checkpoints::Occasion;
use super::places::Place;
use super::records::{VERSIONED_TYPE, event_of};
use super::session::{Entry, Session};
use super::store::Store;
use super::summary::Summary;
use crate::event::code_of;
use crate::format::{FrameKind, Record};
use crate::ids::{SegmentId, Seq, SessionKey};
use crate::log::{Damage, Keep, SealHost, SealScope, SealedFile, Visitor};
use crate::{Error, ErrorKind, Result, observe};

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of the store's files before.
    pub bytes_before: u64,
    /// Bytes after.
    pub bytes_after: u64,
    /// Segment files after, sealed ones included.
    pub segments: u64,
    /// Sessions.
    pub sessions: u64,
}

impl Store {
    /// Seals the raw segments that have ended; `sealed` gets the sessions that had events in them, also when it fails later.
    pub(super) fn seal_ended(&self, sealed: &mut BTreeSet<SessionKey>) -> Result<()> {
        while let Some(file) = self.seal(SealScope::Ended)? {
            sealed.extend(sessions_of(&file));
        }
        Ok(())
    }

    /// Rewrites everything that was written until now into one sealed file, without what removed sessions left behind. Others
    /// go on reading and appending meanwhile. Files that hold nothing else are let go first, which needs no free space. A raw
    /// segment that is damaged stays as it is, with a file before and one behind it; where events of a session are missing
    /// between two files, these stay apart as well.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], [`ErrorKind::Corrupt`] if something cannot be read, [`ErrorKind::Cancelled`]; the store holds what it
    /// held then. [`ErrorKind::Closed`].
    pub fn compact(&self) -> Result<Compacted> {
        let bytes_before = self.inner.stored_bytes()?;
        self.inner.writer()?.release_reserve();
        self.flush()?;
        if self.needs_compaction()? {
            // First what frees space and takes none, for a disk that is full.
            while self.seal(SealScope::Unneeded)?.is_some() {}
            self.seal(SealScope::Everything)?;
        }
        let sealed = self.inner.catalog.lock().sealed.clone();
        let sealed = sealed.iter().flat_map(|file| sessions_of(file)).collect();
        self.write_checkpoints(Occasion::Compaction, &sealed);
        Ok(Compacted {
            bytes_before,
            bytes_after: self.inner.stored_bytes()?,
            segments: self.inner.segments()?,
            sessions: self.list()?.len() as u64,
        })
    }

    /// Whether a compaction would change anything: there is more than one sealed file, or something to leave out.
    fn needs_compaction(&self) -> Result<bool> {
        let catalog = self.inner.catalog.lock();
        let dead = catalog.by_key.values().any(|entry| entry.state.lock().removed);
        let raw_only_is_fresh = self.inner.segments()? == catalog.sealed.len() as u64 + 1;
        let newest_is_empty = self.inner.writer()?.is_newest_empty();
        Ok(dead || catalog.sealed.len() > 1 || !raw_only_is_fresh || !newest_is_empty)
    }

    fn seal(&self, scope: SealScope) -> Result<Option<Arc<SealedFile>>> {
        let mut host = Host::new(self);
        let mut shown = Shown(self);
        self.inner.writer()?.seal(scope, &mut host, &mut shown)
    }

    /// A summary of a session's events below `seq`, for the row of the file that goes on from there.
    fn summary_before(&self, entry: &Arc<Entry>, seq: Seq) -> Result<Summary> {
        if seq == Seq::new(0) {
            return Ok(Summary::default());
        }
        if let Some(shared) = entry.shared().filter(|shared| shared.end == seq) {
            return Ok(shared.base.clone());
        }
        let sealed =
            entry.state.lock().row.runs.iter().find(|run| run.end() == seq).map(|run| run.at.clone());
        let known = match sealed {
            Some(Place::Sealed(file, row)) => file.summary(&row).and_then(|bytes| Summary::decode(&bytes)),
            _ => Session::new(self, Arc::clone(entry)).summary_at(seq).map(|(summary, _)| summary),
        };
        match known {
            // What damage took cannot be summed up; what is left goes on to be sealed.
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Summary::default()),
            known => known,
        }
    }
}

fn sessions_of(file: &SealedFile) -> impl Iterator<Item = SessionKey> {
    file.sessions().filter_map(|row| Some(row.ok()?.key))
}

/// Shows new files to the catalog of a store that goes on working.
struct Shown<'s>(&'s Store);

impl Visitor for Shown<'_> {
    fn frame(&mut self, _: crate::Position, _: &crate::format::FrameHeader, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn sealed(&mut self, file: &Arc<SealedFile>) -> Result<()> {
        observe::sealed(&file.name().file_name(), file.session_count());
        self.0.inner.catalog.lock().sealed(file)
    }

    fn damage(&mut self, _: &Damage) {}
}

/// What sealing asks.
struct Host<'s> {
    store: &'s Store,
    versioned_types: Vec<u32>,
    entries: BTreeMap<SessionKey, Arc<Entry>>,
    /// Sessions that were removed before `needed` was looked up. Others may be forked yet before they are removed.
    removed: HashSet<SessionKey>,
    /// Below which seq living forks need the events of others.
    needed: HashMap<SessionKey, Seq>,
    highest_key: u64,
    /// Something is damaged: what has no name may have lost it, and is kept.
    damaged: bool,
    /// Sessions whose create frame is kept in this file by now: one is enough.
    named: HashSet<SessionKey>,
    current: Option<(SessionKey, Summary)>,
}

impl<'s> Host<'s> {
    fn new(store: &'s Store) -> Self {
        // No fork becomes known meanwhile.
        let catalog = store.inner.catalog.lock();
        let removed = catalog.by_key.values().filter(|entry| entry.state.lock().removed);
        Self {
            store,
            versioned_types: code_of(VERSIONED_TYPE).map(u32::from).into_iter().collect(),
            removed: removed.map(|entry| entry.key).collect(),
            entries: catalog.by_key.clone(),
            needed: needed_by_forks(&catalog),
            highest_key: catalog.highest_key,
            damaged: !catalog.damage.is_empty() || !catalog.faults.is_empty(),
            named: HashSet::new(),
            current: None,
        }
    }
}

impl Host<'_> {
    /// A session, also one that became known meanwhile.
    fn entry(&self, key: SessionKey) -> Option<Arc<Entry>> {
        let known = self.entries.get(&key).cloned();
        known.or_else(|| self.store.inner.catalog.lock().by_key.get(&key).cloned())
    }
}

impl SealHost for Host<'_> {
    fn versioned_types(&self) -> &[u32] {
        &self.versioned_types
    }

    fn begin(&mut self) {
        self.named.clear();
        self.current = None;
    }

    fn check(&self) -> Result<()> {
        self.store.check_cancelled()
    }

    fn keep(&mut self, key: SessionKey) -> Keep {
        let Some(entry) = self.entries.get(&key) else {
            // A key that was given out before and that nobody knows by now: an import that was refused.
            let refused = key.get() <= self.highest_key && !self.damaged;
            return if refused { Keep::Nothing } else { Keep::All };
        };
        let state = entry.state.lock();
        // Without a name it is an import that a crash cut short; one that is under way has its name.
        if !self.removed.contains(&key) && (state.created || entry.is_named() || self.damaged) {
            return Keep::All;
        }
        drop(state);
        self.needed.get(&key).map_or(Keep::Nothing, |end| Keep::Below(*end))
    }

    fn keep_control(&mut self, kind: FrameKind, subject: u64, range: &RangeInclusive<SegmentId>) -> bool {
        if kind == FrameKind::CREATE && !self.named.insert(SessionKey::new(subject)) {
            return false;
        }
        // The highest key stays on record, so that it is never given out again.
        if subject == self.highest_key || !matches!(kind, FrameKind::CREATE | FrameKind::REMOVE) {
            return true;
        }
        let gone = self.keep(SessionKey::new(subject)) == Keep::Nothing;
        let nothing_older = *range.start() == SegmentId::new(1);
        !(gone && (kind == FrameKind::CREATE || nothing_older))
    }

    fn event(&mut self, key: SessionKey, seq: Seq, record: &Record<'_, &[Seq]>) -> Result<()> {
        let mut summary = match self.current.take() {
            Some((current, summary)) if current == key => summary,
            _ => match self.entry(key) {
                Some(entry) => self.store.summary_before(&entry, seq)?,
                None => Summary::default(),
            },
        };
        match event_of(seq, record, record.sources.map(Cow::Borrowed)) {
            Ok(event) => summary.apply(&event),
            // An event of a newer release is kept as it is.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error),
        }
        self.current = Some((key, summary));
        Ok(())
    }

    fn summary(&mut self, key: SessionKey) -> Result<Vec<u8>> {
        match self.current.take() {
            Some((current, summary)) if current == key => Ok(summary.encode()),
            _ => Err(Error::new(ErrorKind::Invalid, "seal segments: a session without events")),
        }
    }
}

/// Below which seq the events of each session are shared by living forks.
pub(super) fn needed_by_forks(catalog: &Catalog) -> HashMap<SessionKey, Seq> {
    let mut needed: HashMap<SessionKey, Seq> = HashMap::new();
    for entry in catalog.by_key.values().filter(|entry| !entry.state.lock().removed) {
        let mut end = Seq::new(u64::MAX);
        let mut shared = entry.shared();
        while let Some(link) = shared {
            end = end.min(link.end);
            let known = needed.entry(link.owner.key).or_insert(end);
            *known = (*known).max(end);
            shared = link.owner.shared();
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::SessionHeader;
    use crate::storage::MemoryStorage;
    use crate::{AppendOptions, Draft, StoreOptions};

    /// A session that is forked off between the look at what there is and the sealing of it is summed up with what it shares.
    #[test]
    fn a_session_that_became_known_meanwhile_is_summed_up_with_what_it_shares() {
        let storage = MemoryStorage::new();
        let options = || StoreOptions::new().background(false);
        let store = options().open_storage(Arc::new(storage.clone())).unwrap();
        let owner = store.create_session(SessionHeader::new("owner", 5)).unwrap();
        let title = Draft::new("session/title", r#"{"title":"inherited"}"#);
        owner.append(&[title], AppendOptions::default()).unwrap().wait().unwrap();
        let mut host = Host::new(&store);
        store.fork("owner", None, "fork").unwrap();
        let log = store.inner.writer().unwrap();
        assert!(log.seal(SealScope::Everything, &mut host, &mut Shown(&store)).unwrap().is_some());
        let sums = |store: &Store| {
            let listed = store.list().unwrap().into_iter();
            listed.map(|info| (info.bytes, info.title, info.revision)).collect::<Vec<_>>()
        };
        let before = sums(&store);
        assert_eq!(before.len(), 2);
        assert!(before.iter().all(|(_, title, _)| title.as_deref() == Some("inherited")));
        store.close().unwrap();
        assert_eq!(sums(&options().open_storage(Arc::new(storage)).unwrap()), before);
    }
}
