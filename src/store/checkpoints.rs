//! Checkpoints of sessions: where their states are kept, and resuming from them.
//!
//! A checkpoint says: folding the events of this session below this seq, over which the chain is this, gives this state.
//! It is believed when its chain, carried on over the events behind it, gives the chain that the log says (section 8.3); else
//! the session is folded from its beginning. So deleting, damaging or confusing checkpoints changes no answer
//! (invariant 7), and nothing here is an error for a reader.
//!
//! The lock of the known checkpoints is taken last; files are read under it only while they are listed.

mod verify;
mod write;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::inner::{Access, Inner};
use super::places::Place;
use super::runs::Each;
use super::session::{Entry, Session};
use super::summary::{Summary, chained};
use crate::event::SessionState;
use crate::format::checkpoint::{CheckpointRow, SectionReader, SectionWriter};
use crate::format::codec;
use crate::ids::{Seq, SessionKey};
use crate::limits::{CHECKPOINT_FILES_READ_MAX, CHECKPOINT_IDLE_BYTES_MAX, CHECKPOINT_LAG_EVENTS_MIN};
use crate::log::{CheckpointFile, CheckpointFiles};
use crate::projection::{Projection, SectionId, SectionSink, SectionSource, State};
use crate::{Error, ErrorKind, Result};

pub(super) use verify::SessionAudit;
pub(super) use write::Occasion;

/// The checkpoints of a store.
pub(super) struct Checkpoints {
    files: CheckpointFiles,
    known: Mutex<Known>,
    /// Held while a file is written.
    writing: Mutex<()>,
}

#[derive(Default)]
struct Known {
    /// The directory was listed, and nobody changed it since.
    is_listed: bool,
    /// All files, those included that are not right.
    numbers: Vec<u64>,
    /// Those that could not be opened for a reason that may pass.
    unread: BTreeSet<u64>,
    /// The files that are right, by ascending number.
    files: Vec<Arc<CheckpointFile>>,
    /// Checkpoints that turned out to be wrong.
    discarded: HashSet<(u64, SessionKey)>,
    /// States of sessions that nobody holds any more, for the next file.
    idle: HashMap<SessionKey, Arc<Snapshot>>,
    idle_bytes: usize,
    /// Sessions in use that have run far ahead of their checkpoints.
    called_for: BTreeSet<SessionKey>,
}

/// A session's state as a checkpoint keeps it.
pub(super) struct Snapshot {
    next_seq: Seq,
    chain: u32,
    decoded_bytes: u32,
    stored: Vec<u8>,
}

/// A checkpoint that has not been read yet.
struct Candidate {
    key: SessionKey,
    next_seq: Seq,
    chain: u32,
    source: Source,
}

enum Source {
    Idle(Arc<Snapshot>),
    File(Arc<CheckpointFile>, CheckpointRow),
}

/// Reads a range of a session's events.
pub(super) type Read<'r> = dyn Fn(Range<Seq>, &mut Each<'_>) -> Result<()> + 'r;

/// Gives the data of the `request/header` event at a seq; `None` if that is another event.
type HeaderData<'h> = dyn Fn(Seq) -> Result<Option<String>> + 'h;

impl Checkpoints {
    pub(super) fn new(files: CheckpointFiles) -> Self {
        Self { files, known: Mutex::default(), writing: Mutex::default() }
    }

    /// Others may have changed the directory.
    pub(super) fn forget_listing(&self) {
        self.known.lock().is_listed = false;
    }

    /// Keeps the state of a session until the next file is written, if it is worth its while and there is room.
    fn remember(&self, entry: &Entry, state: &State, chain: u32) {
        let (key, end) = (entry.key, state.next_seq());
        if end.get() - self.newest_below(entry, end).get() < CHECKPOINT_LAG_EVENTS_MIN {
            return;
        }
        let Ok(snapshot) = Snapshot::of(state, chain) else { return };
        let mut known = self.known.lock();
        known.forget_idle(key);
        if known.idle_bytes + snapshot.stored.len() <= CHECKPOINT_IDLE_BYTES_MAX {
            known.idle_bytes += snapshot.stored.len();
            known.idle.insert(key, Arc::new(snapshot));
        }
    }

    /// The state of a session that waits for the next file.
    fn idle(&self, key: SessionKey) -> Option<Arc<Snapshot>> {
        self.known.lock().idle.get(&key).cloned()
    }

    /// The seq of the newest checkpoint that holds for a session at or below `end`; the first one if there is none.
    pub(super) fn newest_below(&self, entry: &Entry, end: Seq) -> Seq {
        let found = lineage(entry, end).flat_map(|(key, end)| self.below(key, end));
        found.map(|found| found.next_seq).max().unwrap_or(Seq::new(0))
    }

    /// A session in use has run far ahead of its checkpoints: it is due at the next upkeep.
    pub(super) fn call_for(&self, key: SessionKey) {
        self.known.lock().called_for.insert(key);
    }

    /// The checkpoints of a session at or below `end`.
    fn below(&self, key: SessionKey, end: Seq) -> Vec<Candidate> {
        // A new session has none, and does without the directory.
        if end == Seq::new(0) {
            return Vec::new();
        }
        let mut known = self.known.lock();
        self.list(&mut known);
        let idle = known.idle.get(&key).map(|idle| Candidate {
            key,
            next_seq: idle.next_seq,
            chain: idle.chain,
            source: Source::Idle(Arc::clone(idle)),
        });
        let mut found: Vec<_> = idle.into_iter().chain(known.stored(key)).collect();
        found.retain(|candidate| candidate.next_seq <= end);
        found
    }

    /// Brings what is known of the directory up to date; where it cannot be listed, the next one who asks tries again. What
    /// cannot be read is left out; a file that vanishes was merged into another one, which the next listing shows.
    fn list(&self, known: &mut Known) {
        const LISTINGS_MAX: u32 = 4;
        for _ in 0..LISTINGS_MAX {
            if known.is_listed {
                return;
            }
            let Ok(numbers) = self.files.numbers() else { return };
            known.is_listed = true;
            known.numbers = numbers;
            known.unread.clear();
            known.files.retain(|file| known.numbers.contains(&file.number()));
            for number in known.numbers.iter().rev().take(CHECKPOINT_FILES_READ_MAX) {
                if known.files.iter().any(|file| file.number() == *number) {
                    continue;
                }
                match self.files.open(*number) {
                    Ok(file) => known.files.push(Arc::new(file)),
                    Err(error) if error.kind() == ErrorKind::NotFound => known.is_listed = false,
                    Err(error) if error.kind() == ErrorKind::Corrupt => {}
                    Err(_) => drop(known.unread.insert(*number)),
                }
            }
            known.files.sort_unstable_by_key(|file| file.number());
            known.forget_discarded();
        }
    }

    /// Takes a checkpoint that is wrong out of use.
    fn discard(&self, candidate: &Candidate) {
        let mut known = self.known.lock();
        match &candidate.source {
            Source::Idle(_) => known.forget_idle(candidate.key),
            Source::File(file, row) => {
                known.discarded.insert((file.number(), row.key));
            }
        }
    }
}

impl Known {
    /// The checkpoints of a session in files.
    fn stored(&self, key: SessionKey) -> impl Iterator<Item = Candidate> {
        let rows = self.files.iter().filter_map(move |file| Some((file, *file.find(key)?)));
        let sound = rows.filter(|(file, row)| !self.discarded.contains(&(file.number(), row.key)));
        sound.map(|(file, row)| Candidate {
            key: row.key,
            next_seq: row.next_seq,
            chain: row.chain,
            source: Source::File(Arc::clone(file), row),
        })
    }

    fn forget_idle(&mut self, key: SessionKey) {
        if let Some(gone) = self.idle.remove(&key) {
            self.idle_bytes -= gone.stored.len();
        }
    }

    fn forget_discarded(&mut self) {
        let files = &self.files;
        self.discarded.retain(|(number, _)| files.iter().any(|file| file.number() == *number));
    }
}

impl Snapshot {
    /// Writes down a state; `chain` is the session's there.
    fn of(state: &State, chain: u32) -> Result<Self> {
        let mut sections = Written::default();
        state.snapshot(&mut sections)?;
        let (stored, decoded_bytes) = sections.0.finish()?;
        Ok(Self { next_seq: state.next_seq(), chain, decoded_bytes, stored })
    }
}

impl Candidate {
    /// The state that it keeps, of the session `id`; `None` if it cannot be read, is not one of this release, or wrong.
    fn restore(&self, id: &str, header_data: &HeaderData<'_>) -> Result<Option<State>> {
        let Some(sections) = self.sections() else { return Ok(None) };
        let state = State::restore(id, &sections, header_data)?;
        Ok(state.filter(|state| state.next_seq() == self.next_seq))
    }

    /// What was stored is gone when this returns: the states of long sessions are large.
    fn sections(&self) -> Option<Kept> {
        let reader = match &self.source {
            Source::Idle(idle) => SectionReader::new(&idle.stored, idle.decoded_bytes),
            Source::File(file, row) => SectionReader::new(&file.read(row).ok()?, row.decoded_bytes),
        };
        reader.map(Kept)
    }
}

/// Sections on their way to a file.
#[derive(Default)]
struct Written(SectionWriter);

impl SectionSink for Written {
    fn put<T: Serialize>(&mut self, id: SectionId, kept: &T) -> Result<()> {
        self.0.put(id.code, id.version, &codec::encode(kept)?)
    }
}

/// Sections that were read.
struct Kept(SectionReader);

impl SectionSource for Kept {
    fn get<T: DeserializeOwned>(&self, id: SectionId) -> Option<T> {
        codec::decode(self.0.get(id.code, id.version)?)
    }
}

impl Inner {
    /// Takes note of the state of a session whose last handle is gone.
    pub(super) fn take_idle(&self, entry: &Entry, state: &State, chain: u32) {
        if matches!(self.log, Access::Write(_)) && self.writer().is_ok() {
            self.checkpoints.remember(entry, state, chain);
        }
    }
}

impl Session {
    /// The projections of the events below `end`, where the session's chain is `chain`: on from the newest checkpoint,
    /// or from the beginning.
    ///
    /// # Errors
    ///
    /// Those of reading and of the gate.
    pub(super) fn resumed(&self, end: Seq, chain: u32, read: &Read<'_>) -> Result<State> {
        if let Some((candidate, state)) = self.restored(end, &|_| true, read)? {
            match self.carried_on(state, candidate.chain, end, read) {
                Ok((state, found)) if found == chain => return Ok(state),
                Err(error) if !is_of_events(&error) => return Err(error),
                _ => self.store.checkpoints.discard(&candidate),
            }
        }
        Ok(self.carried_on(State::new(self.id()), 0, end, read)?.0)
    }

    /// The projections of the events below some seq at or below `end`, as far as that is known to be right without reading on.
    ///
    /// # Errors
    ///
    /// Those of reading, but for damage.
    pub(super) fn state_before(&self, end: Seq) -> Result<State> {
        let is_right = |candidate: &Candidate| self.chain_at(candidate.next_seq) == Some(candidate.chain);
        let restored = self.restored(end, &is_right, &|range, each| self.scan(range, each))?;
        Ok(restored.map_or_else(|| State::new(self.id()), |(_, state)| state))
    }

    /// The newest checkpoint at or below `end` that `choose` likes and that can be read, as its header can.
    fn restored(
        &self,
        end: Seq,
        choose: &dyn Fn(&Candidate) -> bool,
        read: &Read<'_>,
    ) -> Result<Option<(Candidate, State)>> {
        let checkpoints = &self.store.checkpoints;
        let mut candidates: Vec<_> =
            lineage(&self.entry, end).flat_map(|(key, end)| checkpoints.below(key, end)).collect();
        candidates.sort_by_key(|candidate| Reverse(candidate.next_seq));
        for candidate in candidates.into_iter().filter(|candidate| choose(candidate)) {
            match candidate.restore(self.id(), &|seq| header_data(seq, read)) {
                Ok(Some(state)) => return Ok(Some((candidate, state))),
                Err(error) if !is_of_events(&error) => return Err(error),
                _ => checkpoints.discard(&candidate),
            }
        }
        Ok(None)
    }

    /// Takes the events up to `end` into a state, and into the chain over those before.
    fn carried_on(
        &self,
        mut state: State,
        mut chain: u32,
        end: Seq,
        read: &Read<'_>,
    ) -> Result<(State, u32)> {
        let vocabulary = self.store.vocabulary();
        read(state.next_seq()..end, &mut |event| {
            chain = chained(chain, &event);
            state.apply(&self.load(&state, event, &vocabulary)?);
            Ok(())
        })?;
        Ok((state, chain))
    }

    /// The chain over the events below `seq`, where that is known without reading them.
    fn chain_at(&self, seq: Seq) -> Option<u32> {
        if let Some(shared) = self.entry.shared().filter(|shared| shared.end == seq) {
            return Some(shared.base.chain);
        }
        let state = self.lock().ok()?;
        if Seq::new(state.row.next_seq) == seq {
            return Some(state.row.summary.chain);
        }
        let runs = &state.row.runs;
        let run = runs.get(runs.partition_point(|run| run.end() < seq)).filter(|run| run.end() == seq)?;
        match &run.at {
            Place::Sealed(file, row) => Some(Summary::decode(&file.summary(row).ok()?).ok()?.chain),
            Place::Frame(_) => None,
        }
    }
}

/// What is wrong with the events themselves is told by the fold, as it would be without checkpoints.
fn is_of_events(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}

/// Reads the data of the `request/header` event at `seq`; `None` if that is another event.
fn header_data(seq: Seq, read: &Read<'_>) -> Result<Option<String>> {
    let mut data = None;
    read(seq..seq.next(), &mut |event| {
        data = (event.type_name == "request/header").then(|| event.data.into_owned());
        Ok(())
    })?;
    Ok(data)
}

/// The sessions whose checkpoints hold for this one, and up to where: itself, and those that it was forked from as far as their
/// events are shared.
fn lineage(entry: &Entry, end: Seq) -> impl Iterator<Item = (SessionKey, Seq)> {
    let owners = iter::successors(Some((entry, end)), |(entry, end)| {
        let shared = entry.shared()?;
        Some((&*shared.owner, (*end).min(shared.end)))
    });
    owners.map(|(entry, end)| (entry.key, end))
}
