//! Which sessions there are, and where their events lie: built by one scan of the log, kept up while writing.
//!
//! The catalog holds nothing that the log does not say, and no content of a log keeps it from being built: what is damaged
//! or makes no sense is noted, for `verify` to tell. A key without a create frame is an import that never finished, and no
//! session, unless something of it is damaged: then it is one whose create frame may be lost, under a stand-in id.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::by_id::ById;
use super::lost_rows::{LostRow, LostRows, rows_of};
use super::places::{Place, Run, Runs};
use super::records::events_of;
use super::seal::needed_by_forks;
use super::session::{Entry, EntryState, Identity};
use super::summary::Summary;
use crate::event::{Vocabulary, parse_header_line};
use crate::format::sealed::{SealedDecoder, SealedName, SessionRow};
use crate::format::{
    CreatePayload, FRAME_HEADER_BYTES, FrameHeader, FrameKind, SEGMENT_HEADER_BYTES, SharedPrefix,
    decode_vocabulary, segment_file_name,
};
use crate::ids::{Position, SegmentId, Seq, SessionKey};
use crate::log::{Damage, DamageCause, SealedFile, Visitor};
use crate::{Error, ErrorKind, Result};

/// The prefix that a fork shares with its owner.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) owner: Arc<Entry>,
    pub(super) end: Seq,
    /// Summary of the shared events.
    pub(super) base: Summary,
}

/// What the log holds of one session.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    /// Frames of the session's own events, in order.
    pub(super) runs: Runs,
    /// The seq after the last written event.
    pub(super) next_seq: u64,
    pub(super) summary: Summary,
    /// Seqs whose bytes are damaged or missing: first and end.
    pub(super) damaged: Vec<(Seq, Seq)>,
    /// How much of [`Catalog::nameless_damage`] lies before the session's beginning or some of its events, so that it cannot
    /// have taken its end.
    pub(super) damage_seen: u64,
    /// The damaged row of a sealed file that may have told where more of its events are.
    pub(super) lost: Option<Box<LostRow>>,
}

impl Row {
    /// Takes in that the events from `first` to before `end` cannot be read.
    pub(super) fn take_damage(&mut self, first: Seq, end: Seq) {
        self.damaged.push((first, end));
        self.next_seq = self.next_seq.max(end.get());
    }

    /// All seqs below this one are durable, if the log is up to `synced_through`.
    pub(super) fn durable_seq(&self, synced_through: Position) -> Seq {
        let is_durable = |run: &Run| !matches!(run.at, Place::Frame(at) if at >= synced_through);
        let undurable = self.runs.iter().rev().take_while(|run| !is_durable(run));
        undurable.map(|run| run.first).min().unwrap_or(Seq::new(self.next_seq))
    }

    /// The raw segment that holds the session's last events.
    pub(super) fn newest_segment(&self) -> Option<SegmentId> {
        self.runs.last().and_then(|run| match run.at {
            Place::Frame(at) => Some(at.segment),
            Place::Sealed(..) => None,
        })
    }

    /// Takes in an events frame. Events that are missing before it, or that stand in it again, are damage.
    pub(super) fn take_run(&mut self, run: Run) {
        let next = Seq::new(self.next_seq);
        if run.first != next {
            self.damaged.push((run.first.min(next), run.first.max(next)));
        }
        self.next_seq = self.next_seq.max(run.end().get());
        self.runs.push(run);
    }
}

impl Row {
    /// Takes in that a sealed file holds a run; runs in the files that it stands for are no longer.
    fn take_sealed(&mut self, name: SealedName, run: Run, summary: Option<Summary>, damage_seen: u64) {
        let next = Seq::new(self.next_seq);
        if run.first > next {
            self.damaged.push((next, run.first));
        }
        if run.end() > next {
            self.next_seq = run.end().get();
            self.summary = summary.unwrap_or_else(|| self.summary.clone());
            self.damage_seen = damage_seen;
        }
        self.drop_superseded(name);
        let place = self.runs.partition_point(|other| other.first < run.first);
        self.runs.insert(place, run);
    }

    fn drop_superseded(&mut self, name: SealedName) {
        self.runs.retain(|run| match &run.at {
            Place::Frame(at) => !(name.first..=name.last).contains(&at.segment),
            Place::Sealed(file, _) => !name.supersedes(&file.name()),
        });
    }
}

/// A control record or an events frame whose checksum holds and whose content makes no sense.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) file_name: String,
    pub(super) offset: Option<u64>,
    pub(super) key: SessionKey,
    pub(super) error: Error,
}

/// Where a frame or a control record lies.
#[derive(Clone, Copy)]
enum Source<'s> {
    Frame(Position),
    Sealed(&'s SealedFile),
}

/// All sessions of a store.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) by_id: ById,
    /// Oldest first. A log tells of its sessions in about this order, so that most are found beside the last one.
    pub(super) by_key: BTreeMap<SessionKey, Arc<Entry>>,
    pub(super) highest_key: u64,
    pub(super) vocabulary: Vocabulary,
    /// Damage found while scanning, as the log reported it.
    pub(super) damage: Vec<Damage>,
    /// How many damaged places may have held events of nobody knows which session.
    pub(super) nameless_damage: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) frames: u64,
    /// The sealed files that count.
    pub(super) sealed: Vec<Arc<SealedFile>>,
    /// Damaged directory rows of them that nobody was found for so far.
    pub(super) lost_rows: Vec<LostRows>,
    /// Owners of shared events whose create frame was not met so far.
    unmet: Vec<Arc<Entry>>,
}

impl Catalog {
    /// A key that was never used.
    pub(super) fn next_key(&mut self) -> SessionKey {
        self.highest_key += 1;
        SessionKey::new(self.highest_key)
    }

    /// Makes a session known.
    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        self.by_key.insert(entry.key, Arc::clone(&entry));
        let _hides = self.show(entry);
    }

    /// Makes a session known by its id; answers whether another one had it, which is shown no more.
    fn show(&mut self, entry: Arc<Entry>) -> bool {
        let key = entry.key;
        let other = self.by_id.insert(entry).filter(|other| other.key != key);
        other.inspect(|other| other.state.lock().shadowed = true).is_some()
    }

    /// Forgets a session by its id; its events stay reachable by key for the forks that share them.
    pub(super) fn forget(&mut self, entry: &Entry) {
        let Some(id) = entry.known_id() else { return };
        if self.by_id.get(id).is_some_and(|known| known.key == entry.key) {
            self.by_id.remove(id);
        }
    }

    /// Forgets a session that was never written.
    pub(super) fn forget_unwritten(&mut self, entry: &Entry) {
        if !entry.state.lock().created {
            self.forget(entry);
            self.by_key.remove(&entry.key);
        }
    }

    /// Takes what a new scan found; sessions that were known keep their entries, so that handles stay good.
    pub(super) fn replace(&mut self, afresh: Self) {
        let known = std::mem::replace(self, afresh);
        let found: Vec<_> = self.by_key.values().cloned().collect();
        // An owner's key is lower than those of its forks, which are to share what is kept.
        for fresh in found {
            let kept = known.by_key.get(&fresh.key).cloned();
            let entry = kept.unwrap_or_else(|| Arc::new(Entry::unnamed(fresh.key, EntryState::default())));
            if let Some(identity) = fresh.identity() {
                let owner = |shared: &Shared| self.by_key.get(&shared.owner.key).cloned();
                let shared = identity.shared.as_deref();
                let shared =
                    shared.and_then(|shared| Some(Shared { owner: owner(shared)?, ..shared.clone() }));
                let shared = shared.map(Box::new);
                entry.name(Identity { header: Arc::clone(&identity.header), shared });
            }
            entry.state.lock().take_found(&mut fresh.state.lock());
            self.by_key.insert(entry.key, entry);
        }
        for entry in known.by_key.values().filter(|entry| !self.by_key.contains_key(&entry.key)) {
            entry.state.lock().removed = true;
        }
        for fresh in std::mem::take(&mut self.by_id).entries() {
            if let Some(entry) = self.by_key.get(&fresh.key) {
                self.by_id.insert(Arc::clone(entry));
            }
        }
    }

    /// Judges, once a scan has met all there is, the owners of shared events that have no create frame: it is lost if a living
    /// fork needs them or events of theirs are there. Else they were removed, and so were their forks: a compaction has left
    /// them out.
    pub(super) fn settle(&mut self) {
        self.settle_lost_rows();
        let mut unmet = std::mem::take(&mut self.unmet);
        unmet.retain(|owner| !owner.is_named());
        if unmet.is_empty() {
            return;
        }
        let needed = needed_by_forks(self);
        for owner in unmet {
            if needed.contains_key(&owner.key) || !owner.state.lock().row.runs.is_empty() {
                self.take_lost(owner.key);
            }
        }
    }

    /// The session that a frame belongs to.
    pub(super) fn entry_of(&self, frame: &FrameHeader) -> Option<&Arc<Entry>> {
        self.by_key.get(&SessionKey::new(frame.subject))
    }

    /// Sessions whose create frame is lost.
    pub(super) fn nameless(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.by_id.entries().filter(|entry| !entry.is_named())
    }

    fn entry(&mut self, key: SessionKey) -> Arc<Entry> {
        self.highest_key = self.highest_key.max(key.get());
        let entry = self.by_key.entry(key);
        Arc::clone(entry.or_insert_with(|| {
            let row = Row { damage_seen: self.nameless_damage, ..Row::default() };
            Arc::new(Entry::unnamed(key, EntryState::of(row)))
        }))
    }

    fn with_row(&mut self, key: SessionKey, change: impl FnOnce(&mut Row)) {
        let entry = self.entry(key);
        let mut state = entry.state.lock();
        // What is written by now comes before what the log shows next.
        state.absorb();
        change(&mut state.row);
    }

    /// Something of this session is damaged. If it has no name, its create frame may be what is lost.
    fn take_lost(&mut self, key: SessionKey) {
        let entry = self.entry(key);
        let mut state = entry.state.lock();
        if !entry.is_named() && !state.removed {
            state.created = true;
            match self.by_id.get(&entry.header().id) {
                Some(known) => state.shadowed = known.key != key,
                None => drop(self.by_id.insert(Arc::clone(&entry))),
            }
        }
    }

    fn take_fault(&mut self, source: Source<'_>, key: SessionKey, error: Error) {
        let (file_name, offset) = match source {
            Source::Frame(at) => (segment_file_name(at.segment), Some(at.offset)),
            Source::Sealed(file) => (file.name().file_name(), None),
        };
        self.faults.push(Fault { file_name, offset, key, error });
    }

    fn take_events(&mut self, at: Position, header: &FrameHeader, payload: &[u8]) {
        let key = SessionKey::new(header.subject);
        let run = Run { first: Seq::new(header.tag), count: header.count, at: Place::Frame(at) };
        let (first, end) = (run.first, run.end());
        let damage_seen = self.nameless_damage;
        let mut fault = None;
        self.with_row(key, |row| {
            row.take_run(run);
            row.damage_seen = damage_seen;
            for event in events_of(payload, first, header.count) {
                match event {
                    Ok(event) => row.summary.apply(&event),
                    // An event of a newer release is an error when it is read.
                    Err(error) if error.kind() == ErrorKind::Unsupported => {}
                    Err(error) => {
                        row.damaged.push((first, end));
                        fault = Some(error);
                        break;
                    }
                }
            }
        });
        if let Some(error) = fault {
            self.take_fault(Source::Frame(at), key, error);
        }
    }

    /// Takes in a create frame. The first one that makes sense counts.
    fn take_create(&mut self, key: SessionKey, payload: &[u8], source: Source<'_>) -> Result<()> {
        let entry = self.entry(key);
        let mut hides = false;
        if !entry.is_named() {
            let create = CreatePayload::decode(payload)?;
            let header = parse_header_line(create.header).map_err(Error::from)?;
            let shared = create.shared.map(|shared| self.take_shared(&entry, &shared)).transpose()?;
            self.forget(&entry);
            entry.name(Identity { header: header.into(), shared: shared.map(Box::new) });
            hides = self.show(Arc::clone(&entry));
        }
        let mut state = entry.state.lock();
        state.created = true;
        state.take_create_frame(match source {
            Source::Frame(at) => Some(at.segment),
            Source::Sealed(_) => None,
        });
        if hides {
            let message = "read create frame: an older session has this id; it is hidden by this one";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(())
    }

    /// An owner's entry stays when it is removed. One that is never met is judged by [`settle`](Self::settle).
    fn take_shared(&mut self, entry: &Entry, shared: &SharedPrefix<'_>) -> Result<Shared> {
        if shared.owner >= entry.key {
            let message = "read create frame: the session is older than the one that it was forked from";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let owner = self.entry(shared.owner);
        if !owner.is_named() {
            self.unmet.push(Arc::clone(&owner));
        }
        let row = &mut entry.state.lock().row;
        row.summary.logical_bytes = row.summary.logical_bytes.saturating_add(shared.logical_bytes);
        // Nothing below is the session's own.
        row.damaged.retain(|(_, end)| *end > shared.end);
        if row.next_seq <= shared.end.get() {
            row.next_seq = shared.end.get();
            row.summary.last_time = Some(shared.last_time);
            row.summary.chain = shared.chain;
            row.summary.title = shared.title.map(Arc::from);
        }
        let base = Summary {
            last_time: Some(shared.last_time),
            title: shared.title.map(Arc::from),
            open_turn: false,
            logical_bytes: shared.logical_bytes,
            chain: shared.chain,
        };
        Ok(Shared { owner, end: shared.end, base })
    }

    /// Takes in a control record; one that is known already changes nothing.
    fn take_control(&mut self, kind: FrameKind, subject: u64, payload: &[u8], source: Source<'_>) {
        let key = SessionKey::new(subject);
        let taken = match kind {
            FrameKind::CREATE => self.take_create(key, payload, source).inspect_err(|_| self.take_lost(key)),
            FrameKind::REMOVE => {
                let entry = self.entry(key);
                entry.state.lock().removed = true;
                self.forget(&entry);
                Ok(())
            }
            FrameKind::VOCABULARY => self.take_vocabulary(payload),
            _ => Ok(()),
        };
        if let Err(error) = taken {
            self.take_fault(source, key, error);
        }
    }

    /// Names that are known by now need no registration any more.
    fn take_vocabulary(&mut self, payload: &[u8]) -> Result<()> {
        for name in decode_vocabulary(payload)? {
            if !self.vocabulary.contains(name) {
                self.vocabulary.register(name)?;
            }
        }
        Ok(())
    }

    /// Takes in the sessions of a sealed file. They come in the order of their keys, so that most entries lie beside the last
    /// one and need no search.
    fn take_sealed_sessions(&mut self, file: &Arc<SealedFile>, rows: &[SessionRow]) {
        let mut unknown = Vec::new();
        let mut entries = self.by_key.range(..);
        for row in rows {
            let beside = entries.next().filter(|(key, _)| **key == row.key);
            let found = beside.or_else(|| {
                entries = self.by_key.range(row.key..);
                entries.next().filter(|(key, _)| **key == row.key)
            });
            match found {
                Some((_, entry)) => take_sealed_session(entry, file, row, self.nameless_damage),
                None => unknown.push(row),
            }
        }
        for row in unknown {
            take_sealed_session(&self.entry(row.key), file, row, self.nameless_damage);
        }
    }

    /// Sessions that are no longer were left out of a file: they must not hold on to those that it stands for, or these keep
    /// their space.
    fn let_go(&self, name: SealedName) {
        for entry in self.by_key.values() {
            let mut state = entry.state.lock();
            if state.removed || !state.created {
                state.row.drop_superseded(name);
            }
        }
    }

    /// Takes in the control records of a sealed file; answers whether all could be read.
    fn take_sealed_control(&mut self, file: &SealedFile) -> Result<bool> {
        let mut decoder = SealedDecoder::new()?;
        let read = file.control(&mut decoder, &mut |record| {
            self.take_control(record.kind, record.subject, record.payload, Source::Sealed(file));
            Ok(())
        });
        match read {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.take_fault(Source::Sealed(file), SessionKey::new(0), error);
                Ok(false)
            }
            read => read.map(|()| true),
        }
    }
}

impl Visitor for Catalog {
    fn frame(&mut self, at: Position, header: &FrameHeader, payload: &[u8]) -> Result<()> {
        self.frames += 1;
        match header.kind {
            FrameKind::EVENTS => self.take_events(at, header, payload),
            kind => self.take_control(kind, header.subject, payload, Source::Frame(at)),
        }
        Ok(())
    }

    fn sealed(&mut self, file: &Arc<SealedFile>) -> Result<()> {
        // Most of the sessions, if this is the first file; a few more entries than needed otherwise.
        let sessions = file.session_count().saturating_sub(self.by_key.len());
        self.by_id.reserve(sessions);
        let control_is_whole = self.take_sealed_control(file)?;
        // A damaged row costs a session its events in this file, and hides no other session.
        let (rows, lost) = rows_of(file, self.nameless_damage + 1)?;
        self.nameless_damage += u64::from(!lost.is_empty());
        self.lost_rows.extend(lost);
        self.take_sealed_sessions(file, &rows);
        if !control_is_whole {
            rows.iter().for_each(|row| self.take_lost(row.key));
        }
        let files = self.sealed.len();
        self.sealed.retain(|other| !file.name().supersedes(&other.name()));
        if self.sealed.len() < files {
            self.let_go(file.name());
        }
        self.sealed.push(Arc::clone(file));
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) {
        self.nameless_damage += u64::from(may_have_held_events(damage));
        if let Some(frame) = damage.frame {
            let key = SessionKey::new(frame.subject);
            if frame.kind == FrameKind::EVENTS {
                let end = Seq::new(frame.tag.saturating_add(u64::from(frame.count)));
                let damage_seen = self.nameless_damage;
                self.with_row(key, |row| {
                    row.take_damage(Seq::new(frame.tag), end);
                    row.damage_seen = damage_seen;
                });
            }
            if matches!(frame.kind, FrameKind::EVENTS | FrameKind::CREATE) {
                self.take_lost(key);
            }
        }
        self.damage.push(*damage);
    }
}

fn take_sealed_session(entry: &Entry, file: &Arc<SealedFile>, row: &SessionRow, damage_seen: u64) {
    let run = Run { first: row.first, count: row.count, at: Place::Sealed(Arc::clone(file), *row) };
    // Without its summary a session's events are as good as before; `verify` names the damage.
    let summary = file.summary(row).and_then(|bytes| Summary::decode(&bytes)).ok();
    let mut state = entry.state.lock();
    // What is written by now comes before what the file shows.
    state.absorb();
    state.row.take_sealed(file.name(), run, summary, damage_seen);
}

/// Whether events may be lost of which nothing tells whose they were.
fn may_have_held_events(damage: &Damage) -> bool {
    let harmless_bytes = match damage.cause {
        // A sound copy of the header was found.
        DamageCause::SegmentHeader => SEGMENT_HEADER_BYTES,
        // A frame without payload.
        _ => FRAME_HEADER_BYTES,
    };
    damage.frame.is_none() && damage.bytes > harmless_bytes as u64
}
