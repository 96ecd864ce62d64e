//! Sealing and compaction: ended segments, and sealed files with them, become one sealed file.
//!
//! One step from any number of consecutive files to one: read, group by session, write under a temporary name, sync,
//! rename, sync the directory; only then are the old files let go. A crash at any point leaves either the old files or
//! both, and then the new one counts. A raw segment with damage stays as it is, and so does one with events that make no
//! sense. Everything is read by position, so a bad disk is an error and not a signal.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::scan::{Damage, Visitor};
use super::sealed::{FileSink, SealedFile};
use super::segments::temporary_name;
use super::{Log, Segments};
use crate::format::sealed::{SealedBuilder, SealedDecoder, SealedHeader, SealedItem, SealedName, SessionRow};
use crate::format::{
    Features, FrameHeader, FrameKind, Record, RecordReader, SEGMENT_HEADER_BYTES, SegmentHeader,
    segment_file_name,
};
use crate::ids::{Position, SegmentId, Seq, SessionKey};
use crate::storage::Access;
use crate::{Error, ErrorKind, Result};

/// Bytes of raw segments that one sealing takes together.
const SEAL_BYTES: u64 = 256 << 20;

/// How much is sealed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealScope {
    /// The next raw segments that have ended.
    Ended,
    /// All that was written until now, the active segment included, into one file; into more than one where a raw segment that
    /// stays as it is stands between, or a session goes on behind a gap.
    Everything,
    /// A sealed file none of whose events are needed, by itself: what is left of it takes next to no space.
    Unneeded,
}

/// Which of a session's events are still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All of them.
    All,
    /// Those below a seq.
    Below(Seq),
    /// None.
    Nothing,
}

impl Keep {
    /// Events below this seq are needed.
    fn end(self) -> Seq {
        match self {
            Self::All => Seq::new(u64::MAX),
            Self::Below(end) => end,
            Self::Nothing => Seq::new(0),
        }
    }
}

/// What sealing asks of whoever knows what the frames mean.
pub trait SealHost {
    /// Type codes of events whose data are versions of one value.
    fn versioned_types(&self) -> &[u32];

    /// Another file is begun; one that was begun before is not to be.
    fn begin(&mut self);

    /// Whether to go on; asked again and again.
    ///
    /// # Errors
    /// Ends the sealing; nothing is changed.
    fn check(&self) -> Result<()>;

    /// Which events of a session to keep.
    fn keep(&mut self, key: SessionKey) -> Keep;

    /// Whether to keep a control frame; `first` and `last` say which segments the new file stands for.
    fn keep_control(&mut self, kind: FrameKind, subject: u64, range: &RangeInclusive<SegmentId>) -> bool;

    /// Is shown each event that is kept, by session and seq.
    ///
    /// # Errors
    /// Ends the sealing; nothing is changed.
    fn event(&mut self, key: SessionKey, seq: Seq, record: &Record<'_, &[Seq]>) -> Result<()>;

    /// What to keep beside a session whose events were shown, for its catalog row.
    ///
    /// # Errors
    /// As [`event`](Self::event).
    fn summary(&mut self, key: SessionKey) -> Result<Vec<u8>>;
}

impl Log {
    /// Seals within `scope`; `None` if there is nothing to seal, else the last file. The visitor is shown each new file once it
    /// counts, and before the old ones are deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Corrupt`] if a file that is to be rewritten is damaged, and those of the host and the visitor.
    /// The log is as it was then.
    pub fn seal(
        &self,
        scope: SealScope,
        host: &mut dyn SealHost,
        visitor: &mut dyn Visitor,
    ) -> Result<Option<Arc<SealedFile>>> {
        let mut unsealable = self.unsealable.lock();
        if self.lock.lock().is_none() {
            return Err(Error::new(ErrorKind::Closed, "seal segments: the log was closed; reopen the store"));
        }
        let newest = match scope {
            SealScope::Ended | SealScope::Unneeded => self.committer.newest_segment(),
            SealScope::Everything => self.committer.rotate()?,
        };
        let mut bounds =
            Bounds { from: SegmentId::new(1), newest, unsealable: &mut unsealable, apart: BTreeSet::new() };
        let mut sealed = None;
        loop {
            let inputs = choose(&self.segments, scope, &bounds, host)?;
            let Some(range) = range_of(&inputs) else { return Ok(sealed) };
            let Some(file) = self.rewrite(range.clone(), &inputs, &mut bounds, host)? else { continue };
            visitor.sealed(&file)?;
            bounds.from = range.end().next();
            self.let_go(range, &inputs);
            sealed = Some(file);
            if scope != SealScope::Everything {
                return Ok(sealed);
            }
        }
    }

    /// One file in the place of the inputs; `None` if they cannot become one, and the bounds say by now what can.
    fn rewrite(
        &self,
        range: RangeInclusive<SegmentId>,
        inputs: &[Input],
        bounds: &mut Bounds<'_>,
        host: &mut dyn SealHost,
    ) -> Result<Option<Arc<SealedFile>>> {
        let contents = Contents::read(&self.segments, inputs, host)?;
        if contents.divide(bounds, host) {
            return Ok(None);
        }
        let mut reader =
            RunReader { segments: &self.segments, decoder: SealedDecoder::new()?, damaged: None };
        let written = self.write_sealed(range, inputs, &contents, &mut reader, host);
        match reader.damaged {
            Some(segment) => {
                bounds.unsealable.insert(segment);
                Ok(None)
            }
            None => written.map(Some),
        }
    }

    /// Writes the file and gives it its name.
    // Format: section 3.
    fn write_sealed(
        &self,
        range: RangeInclusive<SegmentId>,
        inputs: &[Input],
        contents: &Contents,
        reader: &mut RunReader<'_>,
        host: &mut dyn SealHost,
    ) -> Result<Arc<SealedFile>> {
        let (first, last) = (*range.start(), *range.end());
        let name = SealedName { first, last, generation: self.segments.next_generation(first, last)? };
        let file_name = name.file_name();
        let temporary = temporary_name(&file_name);
        let storage = self.segments.storage();
        let failed = |source| self.segments.io_error("seal segments", &file_name, source);
        let written = (|| {
            let sink = FileSink::new(storage.create_new(&temporary).map_err(failed)?);
            let header = SealedHeader {
                store_id: self.store_id,
                name,
                epoch: self.epoch,
                features: Features::default(),
                previous_end: previous_end(&self.segments, inputs)?,
            };
            let builder = SealedBuilder::new(sink, header, host.versioned_types())?;
            let sink = contents.write(reader, builder, host, &range, covered_to(inputs))?;
            sink.sync().map_err(failed)?;
            storage.rename(&temporary, &file_name).map_err(failed)
        })();
        if let Err(error) = written {
            // What is left of it is deleted at the next opening.
            let _ = storage.remove(&temporary);
            return Err(error);
        }
        storage.sync_directory().map_err(failed)?;
        self.segments.open_sealed(name)?.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "seal segments: the file cannot be read back; the old ones stay")
                .with_path(self.segments.path(&file_name))
        })
    }

    /// Deletes what the new file stands for. A failure costs space until the next opening, and nothing else.
    fn let_go(&self, range: RangeInclusive<SegmentId>, inputs: &[Input]) {
        self.segments.forget(range);
        for input in inputs {
            let _ = self.segments.storage().remove(&input.file_name());
        }
    }
}

/// One file that goes into a sealed one.
#[derive(Debug, Clone)]
enum Input {
    Raw { segment: SegmentId, end: u64 },
    Sealed(Arc<SealedFile>),
}

impl Input {
    fn range(&self) -> (SegmentId, SegmentId) {
        match self {
            Self::Raw { segment, .. } => (*segment, *segment),
            Self::Sealed(file) => (file.name().first, file.name().last),
        }
    }

    fn file_name(&self) -> String {
        match self {
            Self::Raw { segment, .. } => segment_file_name(*segment),
            Self::Sealed(file) => file.name().file_name(),
        }
    }
}

/// What bounds the files that one sealing may take together.
struct Bounds<'l> {
    /// Where to go on.
    from: SegmentId,
    newest: SegmentId,
    /// Files that stay as they are, by their first segment.
    unsealable: &'l mut BTreeSet<SegmentId>,
    /// Files that do not go on where the one before them ends.
    apart: BTreeSet<SegmentId>,
}

/// The next consecutive files to seal.
fn choose(
    segments: &Segments,
    scope: SealScope,
    bounds: &Bounds<'_>,
    host: &mut dyn SealHost,
) -> Result<Vec<Input>> {
    let raw = segments.raw_before(bounds.newest).into_iter();
    let raw = raw.map(|(segment, end)| Input::Raw { segment, end });
    let sealed = || segments.sealed_files().into_iter().map(Input::Sealed);
    let mut all: Vec<Input> = match scope {
        SealScope::Unneeded => return Ok(unneeded(segments, host)?.map(Input::Sealed).into_iter().collect()),
        SealScope::Ended => raw.collect(),
        SealScope::Everything => raw.chain(sealed()).collect(),
    };
    all.retain(|input| input.range().0 >= bounds.from && !bounds.unsealable.contains(&input.range().0));
    all.sort_by_key(Input::range);
    let mut chosen: Vec<Input> = Vec::new();
    let mut bytes = 0;
    for input in all {
        let first = input.range().0;
        let follows =
            chosen.last().is_none_or(|last| last.range().1.next() == first && !bounds.apart.contains(&first));
        if let Input::Raw { end, .. } = &input {
            bytes += end;
        }
        if !follows || scope == SealScope::Ended && bytes > SEAL_BYTES && !chosen.is_empty() {
            break;
        }
        chosen.push(input);
    }
    Ok(chosen)
}

/// A sealed file that has events, and none that is needed. One with a damaged row may have others.
fn unneeded(segments: &Segments, host: &mut dyn SealHost) -> Result<Option<Arc<SealedFile>>> {
    for file in segments.sealed_files() {
        let mut needed = file.session_count() == 0;
        for row in file.by_position()?.sessions() {
            needed |= row.map_or(true, |row| host.keep(row.key) != Keep::Nothing);
            if needed {
                break;
            }
        }
        if !needed {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

fn range_of(inputs: &[Input]) -> Option<RangeInclusive<SegmentId>> {
    Some(inputs.first()?.range().0..=inputs.last()?.range().1)
}

fn covered_to(inputs: &[Input]) -> Position {
    match inputs.last() {
        Some(Input::Raw { segment, end }) => Position { segment: *segment, offset: *end },
        Some(Input::Sealed(file)) => file.covered_to(),
        None => Position { segment: SegmentId::new(0), offset: 0 },
    }
}

/// Where the segment before the first input ends.
fn previous_end(segments: &Segments, inputs: &[Input]) -> Result<Option<Position>> {
    match inputs.first() {
        Some(Input::Sealed(file)) => Ok(file.previous_end()),
        Some(Input::Raw { segment, .. }) => {
            let name = segment_file_name(*segment);
            let failed = |source| segments.io_error("seal segments", &name, source);
            let file = segments.storage().open(&name, Access::Read).map_err(failed)?;
            let mut bytes = vec![0; SEGMENT_HEADER_BYTES];
            let filled = super::segments::read_full(&*file, &mut bytes, 0).map_err(failed)?;
            let header = SegmentHeader::decode(&bytes[..filled])?;
            Ok(header.and_then(|header| header.previous_end))
        }
        None => Ok(None),
    }
}

/// What the inputs hold: control frames in order, and where each session's events lie.
#[derive(Default)]
struct Contents {
    control: Vec<(FrameKind, u64, Vec<u8>)>,
    sessions: BTreeMap<SessionKey, Vec<Run>>,
    /// Raw segments that cannot be read in full.
    damaged: BTreeSet<SegmentId>,
}

enum Run {
    Frame { at: Position, first: Seq, count: u32 },
    Sealed(Arc<SealedFile>, SessionRow),
}

impl Run {
    fn first(&self) -> Seq {
        match self {
            Self::Frame { first, .. } => *first,
            Self::Sealed(_, row) => row.first,
        }
    }

    fn end(&self) -> Seq {
        let (first, count) = match self {
            Self::Frame { first, count, .. } => (first, *count),
            Self::Sealed(_, row) => (&row.first, row.count),
        };
        Seq::new(first.get().saturating_add(u64::from(count)))
    }

    /// The first one of its file.
    fn segment(&self) -> SegmentId {
        match self {
            Self::Frame { at, .. } => at.segment,
            Self::Sealed(file, _) => file.name().first,
        }
    }
}

impl Visitor for Contents {
    fn frame(&mut self, at: Position, header: &FrameHeader, payload: &[u8]) -> Result<()> {
        if header.kind == FrameKind::EVENTS {
            let run = Run::Frame { at, first: Seq::new(header.tag), count: header.count };
            self.sessions.entry(SessionKey::new(header.subject)).or_default().push(run);
        } else {
            self.control.push((header.kind, header.subject, payload.to_vec()));
        }
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) {
        self.damaged.insert(damage.at.segment);
    }
}

impl Contents {
    fn read(segments: &Segments, inputs: &[Input], host: &dyn SealHost) -> Result<Self> {
        let mut contents = Self::default();
        let mut decoder = SealedDecoder::new()?;
        for input in inputs {
            host.check()?;
            match input {
                Input::Raw { segment, end } => {
                    segments.scanner(*segment)?.scan(SEGMENT_HEADER_BYTES as u64, *end, &mut contents)?;
                }
                Input::Sealed(file) => {
                    let file = Arc::new(file.by_position()?);
                    file.control(&mut decoder, &mut |record| {
                        contents.control.push((record.kind, record.subject, record.payload.to_vec()));
                        Ok(())
                    })?;
                    for row in file.sessions() {
                        let row = row?;
                        let run = Run::Sealed(Arc::clone(&file), row);
                        contents.sessions.entry(row.key).or_default().push(run);
                    }
                }
            }
        }
        Ok(contents)
    }

    /// Notes what must stay as it is, or begin a file of its own: a session's events in a file follow each other. Answers
    /// whether there is any.
    fn divide(&self, bounds: &mut Bounds<'_>, host: &mut dyn SealHost) -> bool {
        if !self.damaged.is_empty() {
            bounds.unsealable.extend(&self.damaged);
            return true;
        }
        let mut divided = false;
        for (key, runs) in &self.sessions {
            let end = host.keep(*key).end();
            for pair in runs.windows(2) {
                if pair[0].end() == pair[1].first() || pair[1].first() >= end {
                    continue;
                }
                divided = true;
                let segment = pair[1].segment();
                let within = pair[0].segment() == segment;
                (if within { &mut *bounds.unsealable } else { &mut bounds.apart }).insert(segment);
            }
        }
        divided
    }

    fn write(
        &self,
        reader: &mut RunReader<'_>,
        mut builder: SealedBuilder<FileSink>,
        host: &mut dyn SealHost,
        range: &RangeInclusive<SegmentId>,
        covered_to: Position,
    ) -> Result<FileSink> {
        host.begin();
        for (kind, subject, payload) in &self.control {
            if host.keep_control(*kind, *subject, range) {
                builder.control(*kind, *subject, payload)?;
            }
        }
        let kept: Vec<_> = self.sessions.iter().map(|(key, runs)| (*key, runs, host.keep(*key))).collect();
        for (_, runs, keep) in kept.iter().filter(|(_, _, keep)| *keep != Keep::Nothing) {
            reader.each(runs, *keep, &mut |_, record| {
                host.check()?;
                builder.observe(record.event_type, record.data)
            })?;
        }
        for (key, runs, keep) in kept.iter().filter(|(_, _, keep)| *keep != Keep::Nothing) {
            let mut next = None;
            reader.each(runs, *keep, &mut |seq, record| {
                match next {
                    None => builder.begin_session(*key, seq)?,
                    Some(expected) if expected == seq => {}
                    Some(_) => return Err(out_of_order(seq)),
                }
                next = Some(seq.next());
                host.check()?;
                host.event(*key, seq, record)?;
                builder.event(record)
            })?;
            if next.is_some() {
                builder.end_session(&host.summary(*key)?)?;
            }
        }
        builder.finish(covered_to).map(|(sink, _)| sink)
    }
}

/// Is shown an event with its sources as a list.
type Visit<'v> = dyn FnMut(Seq, &Record<'_, &[Seq]>) -> Result<()> + 'v;

/// Reads the runs of a session one after the other.
struct RunReader<'s> {
    segments: &'s Segments,
    decoder: SealedDecoder,
    /// The raw segment that could not be taken in.
    damaged: Option<SegmentId>,
}

impl RunReader<'_> {
    fn each(&mut self, runs: &[Run], keep: Keep, visit: &mut Visit<'_>) -> Result<()> {
        let end = keep.end();
        let mut sources = Vec::new();
        let mut visit = |seq: Seq, record: Record<'_>| {
            if seq >= end {
                return Ok(());
            }
            sources.clear();
            sources.extend(record.sources.iter().flat_map(|sources| sources.iter()));
            visit(seq, &with_sources(&record, &sources))
        };
        for run in runs {
            match run {
                Run::Frame { at, first, count } => {
                    let taken = self.segments.read(*at).and_then(|frame| {
                        let mut records = RecordReader::new(&frame.payload, *first, *count);
                        records.try_for_each(|item| item.and_then(|(seq, record)| visit(seq, record)))
                    });
                    if taken.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
                        self.damaged = Some(at.segment);
                    }
                    taken?;
                }
                Run::Sealed(file, row) => {
                    let all = row.first..Seq::new(u64::MAX);
                    file.events(row, all, &|_, _| true, &mut self.decoder, &mut |item| match item {
                        SealedItem::Event(seq, record) => visit(seq, record),
                        SealedItem::Unreadable(_, error) => Err(error),
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn with_sources<'r>(record: &Record<'r>, sources: &'r [Seq]) -> Record<'r, &'r [Seq]> {
    Record {
        event_type: record.event_type,
        time_ms: record.time_ms,
        ignorable: record.ignorable,
        surface_op: record.surface_op,
        sources: record.sources.map(|_| sources),
        data: record.data,
    }
}

fn out_of_order(seq: Seq) -> Error {
    Error::new(ErrorKind::Corrupt, "seal segments: a session's events are not in order").with_seq(seq)
}
