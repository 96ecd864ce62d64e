//! What a store and its sessions hold and what that takes, measured in one pass over the envelopes.
//!
//! No session is held whole, and of sealed payloads only distinct request headers are decoded. Memory goes by the number of
//! distinct headers and of files, and by one surface at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::outline::RunVisitor;
use super::places::Place;
use super::records::event_of;
use super::seal::needed_by_forks;
use super::session::{Entry, Session};
use super::store::Store;
use super::summary::json_line_bytes;
use crate::event::json::{Digest, Digester, Value};
use crate::event::{CanonicalHeader, Placement, SurfaceOp, code_of};
use crate::format::sealed::{OutlineVisitor, SealedName, StoredSize};
use crate::format::{EventType, Record, segment_file_name};
use crate::ids::{SegmentId, Seq};
use crate::projection::Surface;
use crate::{Error, Result};

/// What [`Store::stats`] and [`Session::stats`] measure. All bytes are of bytes, not of blocks of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    /// Sessions.
    pub sessions: u64,
    /// Their events. What a fork shares counts once, as its owner's; if that was removed, as long as a fork needs it.
    pub events: u64,
    /// Size of the events as unpacked JSON lines, in bytes.
    pub logical_bytes: u64,
    /// Of a store: size of its segment files, space that was zeroed ahead included. Of a session: what its own events take
    /// there, that is their frames or units, and each piece that they refer to; a piece counts once for each session that
    /// refers to it, and what serves the whole file for none.
    pub stored_bytes: u64,
    /// The files.
    pub segments: SegmentStats,
    /// Request headers.
    pub headers: HeaderStats,
    /// Replacements on the surface.
    pub replacements: ReplacementStats,
    /// The events by type, those that take the most bytes first.
    pub by_type: Vec<TypeStats>,
    /// The segment files, in order.
    pub files: Vec<FileStats>,
    /// Events that are damaged, or that a newer release wrote: they count nowhere else.
    pub unreadable: u64,
}

/// How many segment files there are; of a session, how many have events of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentStats {
    /// Files that hold frames as they were written.
    pub active: u64,
    /// Sealed files.
    pub sealed: u64,
}

/// What request headers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeaderStats {
    /// `request/header` events.
    pub count: u64,
    /// Different headers among them, as [`CanonicalHeader`] compares them.
    pub distinct: u64,
    /// Size of the events' data, in bytes.
    pub logical_bytes: u64,
    /// What the data takes in the files, in bytes: each piece once; of what is compressed together with other events, its share.
    pub stored_bytes: u64,
}

/// Replacements on the surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplacementStats {
    /// Events that replaced a range.
    pub count: u64,
    /// Nodes that they took off the surface.
    pub shadowed_nodes: u64,
    /// The most nodes that a surface had at any time.
    pub largest_surface: u64,
}

/// The events of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeStats {
    /// The type's name.
    pub type_name: String,
    /// How many there are.
    pub events: u64,
    /// Their size as JSON lines, in bytes.
    pub logical_bytes: u64,
}

/// One segment file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStats {
    /// Its name.
    pub name: String,
    /// Events in it that are still needed.
    pub events: u64,
    /// Their size as JSON lines, in bytes.
    pub logical_bytes: u64,
    /// Size of the file; of a session, what is its own there.
    pub stored_bytes: u64,
}

impl Store {
    /// Measures the whole store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). Damage is no error:
    /// it is counted.
    pub fn stats(&self) -> Result<Stats> {
        let mut tally = Tally::default();
        for (entry, own) in self.counted()? {
            tally.measure(&Session::new(self, entry), &own)?;
        }
        let mut stats = tally.stats();
        stats.sessions = self.list()?.len() as u64;
        let files = self.inner.files()?;
        stats.stored_bytes = files.iter().map(|file| file.bytes).sum();
        let sealed = files.iter().filter(|file| file.is_sealed).count() as u64;
        stats.segments = SegmentStats { active: files.len() as u64 - sealed, sealed };
        let mut known: HashMap<String, FileStats> =
            stats.files.drain(..).map(|file| (file.name.clone(), file)).collect();
        stats.files = files
            .into_iter()
            .map(|file| {
                let (events, logical_bytes) =
                    known.remove(&file.name).map_or((0, 0), |found| (found.events, found.logical_bytes));
                FileStats { name: file.name, events, logical_bytes, stored_bytes: file.bytes }
            })
            .collect();
        Ok(stats)
    }

    /// Whose events there are, oldest session first, and which of them are to be counted as theirs.
    fn counted(&self) -> Result<Vec<(Arc<Entry>, Range<Seq>)>> {
        self.check_cancelled()?;
        let catalog = self.inner.catalog.lock();
        let needed = needed_by_forks(&catalog);
        let own = |entry: &Arc<Entry>| {
            let (created, removed) = {
                let state = entry.state.lock();
                (state.created, state.removed)
            };
            let end = match removed {
                true => needed.get(&entry.key).copied()?,
                false => created.then_some(Seq::new(u64::MAX))?,
            };
            Some((Arc::clone(entry), own_start(entry)..end))
        };
        Ok(catalog.by_key.values().filter_map(own).collect())
    }
}

impl Session {
    /// Measures what the session itself holds: of a fork, the events that it does not share with its parent.
    ///
    /// # Errors
    ///
    /// As [`Store::stats`]; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) once the session was removed.
    pub fn stats(&self) -> Result<Stats> {
        let end = self.next_seq()?;
        let mut tally = Tally { pieces: Some(HashSet::new()), ..Tally::default() };
        tally.measure(self, &(own_start(&self.entry)..end))?;
        Ok(Stats { sessions: 1, ..tally.stats() })
    }
}

fn own_start(entry: &Entry) -> Seq {
    entry.shared().map_or(Seq::new(0), |shared| shared.end)
}

/// A segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum FileId {
    Raw(SegmentId),
    Sealed(SealedName),
}

impl FileId {
    fn name(self) -> String {
        match self {
            Self::Raw(segment) => segment_file_name(segment),
            Self::Sealed(name) => name.file_name(),
        }
    }
}

/// Events and bytes.
#[derive(Debug, Default)]
struct Volume {
    events: u64,
    logical_bytes: u64,
    stored_bytes: u64,
}

/// Sums up while events go by.
#[derive(Debug, Default)]
struct Tally {
    /// Whether events are counted, or only the surface follows them.
    is_counting: bool,
    header_code: Option<u32>,
    file: Option<FileId>,
    files: BTreeMap<FileId, Volume>,
    by_type: HashMap<String, Volume>,
    headers: HeaderStats,
    /// Fingerprints of the headers.
    distinct: HashSet<Digest>,
    header_pieces: HashSet<(Option<FileId>, u32)>,
    /// All pieces that were met, where they are counted.
    pieces: Option<HashSet<(Option<FileId>, u32)>>,
    surface: Surface,
    replacements: ReplacementStats,
    unreadable: u64,
}

impl Tally {
    /// Counts a session's events in `own`. Its surface begins with what it shares.
    fn measure(&mut self, session: &Session, own: &Range<Seq>) -> Result<()> {
        self.header_code = code_of(REQUEST_HEADER).map(u32::from);
        self.surface = Surface::default();
        self.is_counting = false;
        session.outline(&(Seq::new(0)..own.start), self)?;
        self.is_counting = true;
        session.outline(own, self)
    }

    fn stats(self) -> Stats {
        let mut stats = Stats {
            headers: HeaderStats { distinct: self.distinct.len() as u64, ..self.headers },
            replacements: self.replacements,
            unreadable: self.unreadable,
            ..Stats::default()
        };
        for (file, volume) in self.files {
            stats.events += volume.events;
            stats.logical_bytes += volume.logical_bytes;
            stats.stored_bytes += volume.stored_bytes;
            match file {
                FileId::Raw(_) => stats.segments.active += 1,
                FileId::Sealed(_) => stats.segments.sealed += 1,
            }
            let Volume { events, logical_bytes, stored_bytes } = volume;
            stats.files.push(FileStats { name: file.name(), events, logical_bytes, stored_bytes });
        }
        let by_type = self.by_type.into_iter().map(|(type_name, volume)| TypeStats {
            type_name,
            events: volume.events,
            logical_bytes: volume.logical_bytes,
        });
        stats.by_type = by_type.collect();
        stats.by_type.sort_unstable_by(|a, b| {
            b.logical_bytes.cmp(&a.logical_bytes).then_with(|| a.type_name.cmp(&b.type_name))
        });
        stats
    }

    fn is_header(&self, event_type: EventType<'_>) -> bool {
        match event_type {
            EventType::Code(code) => self.header_code == Some(code),
            EventType::Name(name) => name == REQUEST_HEADER,
        }
    }

    fn volume(&mut self) -> Option<&mut Volume> {
        Some(self.files.entry(self.file?).or_default())
    }

    fn count_stored(&mut self, bytes: u64) {
        if let Some(volume) = self.volume() {
            volume.stored_bytes += bytes;
        }
    }

    fn count(&mut self, type_name: &str, line_bytes: u64) {
        if !self.by_type.contains_key(type_name) {
            self.by_type.insert(type_name.to_owned(), Volume::default());
        }
        let file = self.file.map(|file| self.files.entry(file).or_default());
        for volume in self.by_type.get_mut(type_name).into_iter().chain(file) {
            volume.events += 1;
            volume.logical_bytes += line_bytes;
        }
    }

    fn count_header(&mut self, data: &str, size: &StoredSize) {
        self.headers.count += 1;
        self.headers.logical_bytes += size.data_bytes;
        self.headers.stored_bytes += size.text_stored_bytes;
        for piece in &size.pieces {
            if self.header_pieces.insert((self.file, piece.id)) {
                self.headers.stored_bytes += piece.stored_bytes;
            }
        }
        if !data.is_empty() {
            self.distinct.insert(fingerprint(data));
        }
    }

    fn place(&mut self, seq: Seq, op: SurfaceOp) {
        match op {
            SurfaceOp::Append => self.surface.place(seq, &Placement::Append, None),
            SurfaceOp::Replace { start, end } => {
                let range = self.surface.position_of(start).zip(self.surface.position_of(end));
                let range = range.filter(|(first, last)| first <= last).map(|(first, last)| first..last + 1);
                self.replacements.count += u64::from(self.is_counting);
                // Damage may have taken a node that was replaced.
                let Some(range) = range else { return };
                if self.is_counting {
                    self.replacements.shadowed_nodes += range.len() as u64;
                }
                self.surface.place(seq, &Placement::Replace(range), None);
            }
        }
        let nodes = self.surface.nodes().len() as u64;
        self.replacements.largest_surface = self.replacements.largest_surface.max(nodes);
    }
}

impl OutlineVisitor for Tally {
    fn unit(&mut self, stored_bytes: u64) {
        if self.is_counting {
            self.count_stored(stored_bytes);
        }
    }

    /// A header that is the same piece as an earlier one is the same header.
    fn wants(&mut self, record: &Record<'_>, data: &StoredSize) -> bool {
        self.is_counting
            && self.is_header(record.event_type)
            && match &data.pieces[..] {
                [piece] => !self.header_pieces.contains(&(self.file, piece.id)),
                _ => true,
            }
    }

    fn event(&mut self, seq: Seq, record: &Record<'_>, size: &StoredSize) -> Result<()> {
        // Its size is known without its data.
        let envelope = Record { data: "", ..*record };
        let sources = record.sources.map(|sources| sources.iter().collect());
        let Ok(event) = event_of(seq, &envelope, sources) else {
            self.unreadable += u64::from(self.is_counting);
            return Ok(());
        };
        if self.is_counting {
            self.count(&event.type_name, json_line_bytes(&event).saturating_add(size.data_bytes));
            for piece in &size.pieces {
                if self.pieces.as_mut().is_some_and(|pieces| pieces.insert((self.file, piece.id))) {
                    self.count_stored(piece.stored_bytes);
                }
            }
            if self.is_header(record.event_type) {
                self.count_header(record.data, size);
            }
        }
        if let Some(op) = event.surface_op {
            self.place(seq, op);
        }
        Ok(())
    }

    fn unreadable(&mut self, lost: Range<Seq>, _: &Error) {
        if self.is_counting {
            self.unreadable += lost.end.get().saturating_sub(lost.start.get());
        }
    }
}

impl RunVisitor for Tally {
    fn run(&mut self, at: &Place) {
        self.file = Some(match at {
            Place::Frame(at) => FileId::Raw(at.segment),
            Place::Sealed(file, _) => FileId::Sealed(file.name()),
        });
    }
}

const REQUEST_HEADER: &str = "request/header";

/// What equal headers share.
fn fingerprint(data: &str) -> Digest {
    match CanonicalHeader::from_data(Value::new(data)) {
        Some(header) => header.digest(),
        None => {
            let mut digester = Digester::default();
            digester.bytes(data.as_bytes());
            digester.finish()
        }
    }
}
