//! Which sessions there are, and where their events lie: built by one scan of the log, kept up while writing.
//!
//! The catalog holds nothing that the log does not say. A key without a create frame is an import that never
//! finished: it is no session.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::records::events_of;
use super::session::{Entry, EntryState};
use super::summary::Summary;
use crate::event::{SessionHeader, Vocabulary, parse_header_line};
use crate::format::sealed::{SealedDecoder, SealedName, SessionRow};
use crate::format::{CreatePayload, FrameHeader, FrameKind, SharedPrefix, decode_vocabulary};
use crate::ids::{Position, Seq, SessionKey};
use crate::log::{Damage, SealedFile, Visitor};
use crate::{Error, ErrorKind, Result};

/// A run of consecutive events in one place.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) first: Seq,
    pub(super) count: u32,
    pub(super) at: Place,
}

/// Where a run lies.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In one frame of a raw segment.
    Frame(Position),
    /// In a sealed file.
    Sealed(Arc<SealedFile>, SessionRow),
}

impl Run {
    pub(super) fn end(&self) -> Seq {
        Seq::new(self.first.get() + u64::from(self.count))
    }
}

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
    pub(super) runs: Vec<Run>,
    /// The seq after the last written event.
    pub(super) next_seq: u64,
    pub(super) summary: Summary,
    /// Seqs whose bytes are damaged or missing: first and end.
    pub(super) damaged: Vec<(Seq, Seq)>,
}

impl Row {
    /// Takes in that the events from `first` to before `end` cannot be read.
    fn take_damage(&mut self, first: Seq, end: Seq) {
        self.damaged.push((first, end));
        self.next_seq = self.next_seq.max(end.get());
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
    fn take_sealed(&mut self, name: SealedName, run: Run, summary: Summary) {
        let next = Seq::new(self.next_seq);
        if run.first > next {
            self.damaged.push((next, run.first));
        }
        if run.end() > next {
            self.next_seq = run.end().get();
            self.summary = summary;
        }
        self.runs.retain(|other| match &other.at {
            Place::Frame(at) => !(name.first..=name.last).contains(&at.segment),
            Place::Sealed(file, _) => !name.supersedes(&file.name()),
        });
        let place = self.runs.partition_point(|other| other.first < run.first);
        self.runs.insert(place, run);
    }
}

/// All sessions of a store.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) by_id: HashMap<String, Arc<Entry>>,
    pub(super) by_key: HashMap<SessionKey, Arc<Entry>>,
    /// Rows of keys whose create frame has not come.
    pub(super) staged: HashMap<SessionKey, Row>,
    pub(super) highest_key: u64,
    pub(super) vocabulary: Vocabulary,
    /// Damage found while scanning, as the log reported it.
    pub(super) damage: Vec<Damage>,
    pub(super) frames: u64,
    /// The sealed files that count.
    pub(super) sealed: Vec<Arc<SealedFile>>,
}

impl Catalog {
    /// A key that was never used.
    pub(super) fn next_key(&mut self) -> SessionKey {
        self.highest_key += 1;
        SessionKey::new(self.highest_key)
    }

    /// Makes a session known.
    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        self.by_id.insert(entry.header.id.clone(), Arc::clone(&entry));
        self.by_key.insert(entry.key, entry);
    }

    /// Forgets a session by its id; its events stay reachable by key for the forks that share them.
    pub(super) fn forget(&mut self, entry: &Entry) {
        if self.by_id.get(&entry.header.id).is_some_and(|known| known.key == entry.key) {
            self.by_id.remove(&entry.header.id);
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
        for entry in known.by_key.into_values() {
            let Some(found) = self.by_key.get(&entry.key).cloned() else {
                entry.state.lock().removed = true;
                continue;
            };
            let mut state = entry.state.lock();
            state.row = std::mem::take(&mut found.state.lock().row);
            state.live = None;
            drop(state);
            if self.by_id.contains_key(&entry.header.id) {
                self.by_id.insert(entry.header.id.clone(), Arc::clone(&entry));
            }
            self.by_key.insert(entry.key, entry);
        }
    }

    /// The session that a frame belongs to.
    pub(super) fn entry_of(&self, frame: &FrameHeader) -> Option<&Arc<Entry>> {
        self.by_key.get(&SessionKey::new(frame.subject))
    }

    fn with_row(&mut self, key: SessionKey, change: impl FnOnce(&mut Row)) {
        self.highest_key = self.highest_key.max(key.get());
        match self.by_key.get(&key) {
            Some(entry) => {
                let mut state = entry.state.lock();
                // What is written by now comes before what the log shows next.
                state.absorb();
                change(&mut state.row);
            }
            None => change(self.staged.entry(key).or_default()),
        }
    }

    fn take_events(&mut self, at: Position, header: &FrameHeader, payload: &[u8]) -> Result<()> {
        let run = Run { first: Seq::new(header.tag), count: header.count, at: Place::Frame(at) };
        let (first, end) = (run.first, run.end());
        let mut outcome = Ok(());
        self.with_row(SessionKey::new(header.subject), |row| {
            row.take_run(run);
            for event in events_of(payload, first, header.count) {
                match event {
                    Ok(event) => row.summary.apply(&event),
                    Err(error) => {
                        row.damaged.push((first, end));
                        outcome = Err(error);
                        break;
                    }
                }
            }
        });
        // A frame whose checksum holds but whose records do not decode hides nothing else.
        outcome.or_else(|error: Error| match error.kind() {
            ErrorKind::Unsupported => Err(error),
            _ => Ok(()),
        })
    }

    fn take_create(&mut self, key: SessionKey, payload: &[u8]) -> Result<()> {
        let create = CreatePayload::decode(payload)?;
        let header: SessionHeader = parse_header_line(create.header).map_err(Error::from)?;
        self.highest_key = self.highest_key.max(key.get());
        let mut row = self.staged.remove(&key).unwrap_or_default();
        let shared = create.shared.map(|shared| self.take_shared(&mut row, &shared)).transpose()?;
        self.insert(Arc::new(Entry { key, header, shared, state: Mutex::new(EntryState::written(row)) }));
        Ok(())
    }
}

impl Catalog {
    /// An owner's create frame stands before those of its forks, and its entry stays when it is removed.
    fn take_shared(&self, row: &mut Row, shared: &SharedPrefix<'_>) -> Result<Shared> {
        let owner = self.by_key.get(&shared.owner).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                "read create frame: the session that it was forked from is missing",
            )
        })?;
        row.summary.logical_bytes += shared.logical_bytes;
        row.summary.chain = shared.chain;
        row.summary.title = shared.title.map(Arc::from);
        row.next_seq = row.next_seq.max(shared.end.get());
        Ok(Shared { owner, end: shared.end, base: row.summary.clone() })
    }
}

impl Catalog {
    /// Takes in a control frame; one that is known already changes nothing.
    fn take_control(&mut self, kind: FrameKind, subject: u64, payload: &[u8]) -> Result<()> {
        let key = SessionKey::new(subject);
        match kind {
            FrameKind::CREATE if self.by_key.contains_key(&key) => Ok(()),
            FrameKind::CREATE => self.take_create(key, payload),
            FrameKind::REMOVE => {
                self.highest_key = self.highest_key.max(subject);
                if let Some(entry) = self.by_key.get(&key).cloned() {
                    entry.state.lock().removed = true;
                    self.forget(&entry);
                }
                Ok(())
            }
            FrameKind::VOCABULARY => {
                for name in decode_vocabulary(payload)? {
                    self.vocabulary.register(name)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_sealed_session(&mut self, file: &Arc<SealedFile>, row: SessionRow) -> Result<()> {
        let summary = Summary::decode(&file.summary(&row)?)?;
        let run = Run { first: row.first, count: row.count, at: Place::Sealed(Arc::clone(file), row) };
        self.with_row(row.key, |known| known.take_sealed(file.name(), run, summary));
        Ok(())
    }
}

impl Visitor for Catalog {
    fn frame(&mut self, at: Position, header: &FrameHeader, payload: &[u8]) -> Result<()> {
        self.frames += 1;
        match header.kind {
            FrameKind::EVENTS => self.take_events(at, header, payload),
            kind => self.take_control(kind, header.subject, payload),
        }
    }

    fn sealed(&mut self, file: &Arc<SealedFile>) -> Result<()> {
        let mut decoder = SealedDecoder::new()?;
        file.control(&mut decoder, &mut |record| {
            self.take_control(record.kind, record.subject, record.payload)
        })?;
        for row in file.sessions() {
            // A damaged row costs its session's events in this file, and verify tells; it hides no other session.
            if let Err(error) = row.and_then(|row| self.take_sealed_session(file, row))
                && error.kind() != ErrorKind::Corrupt
            {
                return Err(error);
            }
        }
        self.sealed.retain(|other| !file.name().supersedes(&other.name()));
        self.sealed.push(Arc::clone(file));
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) {
        if let Some(frame) = damage.frame.filter(|frame| frame.kind == FrameKind::EVENTS) {
            let end = Seq::new(frame.tag.saturating_add(u64::from(frame.count)));
            self.with_row(SessionKey::new(frame.subject), |row| row.take_damage(Seq::new(frame.tag), end));
        }
        self.damage.push(*damage);
    }
}
