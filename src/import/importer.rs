//! Imports logs into a store, or only judges them: plans all sources first, then takes each by itself.
//!
//! A source is opened for reading and never changed. One bad log never stops the others. A log that the store holds
//! already is compared event by event: it is skipped, it extends the stored session, or it is refused.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::discover::{Found, Source, SourceFormat, discover};
use super::judge::{Judge, JudgeOptions};
use super::judgement::Judgement;
use super::target::{Mode, Outcome, Target};
use super::{Item, Lines, RecordSource, ZstdFrames};
use crate::event::{Refusal, RefusalKind, parse_header_line};
use crate::{Cancel, Error, Result, Store};

/// Reads sources with one set of options.
#[derive(Debug, Clone, Default)]
pub struct Importer {
    options: JudgeOptions,
    cancel: Cancel,
}

/// All sources under some paths, in the order in which they are taken.
#[derive(Debug, Default)]
pub struct Plan {
    /// The logs.
    pub sources: Vec<PlannedSource>,
    /// Places that cannot be read, and why.
    pub unreadable: Vec<(PathBuf, io::Error)>,
    /// Things in the place of a log that are none, and why.
    pub ignored: Vec<(PathBuf, &'static str)>,
    /// Files passed over because neither name nor bytes are a log's.
    pub skipped: u64,
}

/// One log of a [`Plan`].
#[derive(Debug, Clone)]
pub struct PlannedSource {
    /// Where and what it is.
    pub source: Source,
    /// Why it must not be imported, whatever it holds: its session id lies elsewhere too.
    pub ambiguous: Option<Refusal>,
}

/// What became of one log.
#[derive(Debug)]
pub struct SourceReport {
    /// Where it lies.
    pub path: PathBuf,
    /// The judgement on it; a refusal may come from the store as well (`id-conflict`).
    pub judgement: Judgement,
    /// Events added to the store.
    pub added: u64,
    /// Events that the store held already.
    pub skipped: u64,
}

impl Importer {
    /// An importer that judges with `options`.
    #[must_use]
    pub fn new(options: JudgeOptions) -> Self {
        Self { options, cancel: Cancel::new() }
    }

    /// The same importer, ended by `cancel`: between two records of a log it then gives up with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). A new session of which it had taken in a part does not appear; of
    /// a stored one, whole batches that extend it may stay.
    #[must_use]
    pub fn cancellable(self, cancel: &Cancel) -> Self {
        Self { cancel: cancel.clone(), ..self }
    }

    /// Finds the logs at or under `paths`, each once however often it is named, and notices session ids that lie in two
    /// places. Reads one header a log.
    #[must_use]
    pub fn plan(&self, paths: &[PathBuf]) -> Plan {
        let mut plan = Plan::default();
        let mut known = HashSet::new();
        for path in paths {
            let mut walk = discover(path);
            for found in walk.by_ref() {
                match found {
                    Found::Source(source) => {
                        let real = fs::canonicalize(&source.path).unwrap_or_else(|_| source.path.clone());
                        if known.insert(real) {
                            plan.sources.push(PlannedSource { source, ambiguous: None });
                        }
                    }
                    Found::Unreadable { path, error } => plan.unreadable.push((path, error)),
                    Found::Ignored { path, reason } => plan.ignored.push((path, reason)),
                }
            }
            plan.skipped += walk.skipped();
        }
        mark_ambiguous(&mut plan.sources);
        plan
    }

    /// Judges a log without a store. `progress` is told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn inspect(&self, planned: &PlannedSource, progress: &dyn Fn(u64)) -> Result<SourceReport> {
        let (judgement, outcome) = self.pass(planned, &self.options, Target::nowhere(), progress)?;
        Ok(SourceReport::new(planned, judgement, &outcome))
    }

    /// Tells what [`import`](Self::import) would do, and changes nothing; `store` may be open for reading only.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the log or the store cannot be read.
    pub fn preview(
        &self,
        store: &Store,
        planned: &PlannedSource,
        progress: &dyn Fn(u64),
    ) -> Result<SourceReport> {
        let target = Target::store(store, Mode::Compare);
        let (judgement, outcome) = self.pass(planned, &self.options_for(store)?, target, progress)?;
        Ok(SourceReport::new(planned, judgement, &outcome))
    }

    /// Judges a log and brings it into `store`, durable with the store's next flush.
    ///
    /// A log that extends a stored session is read twice: only at its end it is known to be good. The second reading judges
    /// and compares all of it again, and counts. If the log is changed for the worse while it is read for the second time,
    /// whole batches of 4 MiB before the place that it is refused for stay, each event admitted after the stored ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), with the log's path, if it cannot be read; what writing to the store returns. A
    /// log that is refused, for itself or by the store, is no error.
    pub fn import(
        &self,
        store: &Store,
        planned: &PlannedSource,
        progress: &dyn Fn(u64),
    ) -> Result<SourceReport> {
        for name in self.options.vocabulary.registered() {
            store.register_type(name)?;
        }
        let options = self.options_for(store)?;
        let pass = |mode| self.pass(planned, &options, Target::store(store, mode), progress);
        let (mut judgement, mut outcome) = pass(Mode::Create)?;
        if outcome.extends {
            (judgement, outcome) = pass(Mode::Extend)?;
        }
        Ok(SourceReport::new(planned, judgement, &outcome))
    }

    /// The store's event types beside those of this importer.
    fn options_for(&self, store: &Store) -> Result<JudgeOptions> {
        let mut options = JudgeOptions { vocabulary: store.vocabulary(), ..self.options.clone() };
        self.options.vocabulary.registered().try_for_each(|name| options.vocabulary.register(name))?;
        Ok(options)
    }

    /// Reads a log once from its beginning to its end.
    fn pass(
        &self,
        planned: &PlannedSource,
        options: &JudgeOptions,
        target: Target<'_>,
        progress: &dyn Fn(u64),
    ) -> Result<(Judgement, Outcome)> {
        let mut target = if planned.ambiguous.is_some() { Target::nowhere() } else { target };
        let mut judgement = with_source(planned, progress, |records| {
            let mut judge = Judge::new(options);
            while !judge.is_decided() {
                self.cancel.check()?;
                let item = records.next_item().map_err(|error| unreadable(planned, error))?;
                let Some(item) = item else { break };
                if let Item::Record(record) = &item {
                    target.next_record(record);
                }
                judge.take(item, &mut |admitted| target.push(admitted))?;
                if let Some(header) = judge.header() {
                    target.decide(header)?;
                }
            }
            Ok(judge.finish())
        })?;
        if judgement.refusal.is_none() {
            judgement.refusal.clone_from(&planned.ambiguous);
        }
        let mut outcome = target.conclude(judgement.refusal.is_some())?;
        if let Some(conflict) = outcome.conflict.take() {
            judgement.refusal.get_or_insert(conflict);
        }
        if judgement.refusal.is_some() {
            judgement.state = None;
            judgement.repair = None;
        }
        Ok((judgement, outcome))
    }
}

impl SourceReport {
    fn new(planned: &PlannedSource, judgement: Judgement, outcome: &Outcome) -> Self {
        let path = planned.source.path.clone();
        Self { path, judgement, added: outcome.added, skipped: outcome.skipped }
    }
}

/// Refuses the logs whose session id another log has too.
fn mark_ambiguous(sources: &mut [PlannedSource]) {
    let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, planned) in sources.iter().enumerate() {
        if let Some(id) = header_id(planned) {
            by_id.entry(id).or_default().push(index);
        }
    }
    for (id, indices) in by_id.into_iter().filter(|(_, indices)| indices.len() > 1) {
        for &index in &indices {
            let other = if index == indices[0] { indices[1] } else { indices[0] };
            let (here, there) = (&sources[index].source.path, &sources[other].source.path);
            sources[index].ambiguous = Some(duplicate_id(&id, here, there));
        }
    }
}

/// The session id that a log claims, if its header says one.
fn header_id(planned: &PlannedSource) -> Option<String> {
    let read = with_source(planned, &|_| (), |records| {
        let first = records.next_item().map_err(|error| unreadable(planned, error))?;
        let Some(Item::Record(record)) = first else { return Ok(None) };
        let text = std::str::from_utf8(record.bytes).ok();
        Ok(text.and_then(|text| parse_header_line(text).ok()).map(|header| header.id))
    });
    read.ok().flatten()
}

fn with_source<T>(
    planned: &PlannedSource,
    progress: &dyn Fn(u64),
    use_records: impl FnOnce(&mut dyn RecordSource) -> Result<T>,
) -> Result<T> {
    let file = File::open(&planned.source.path).map_err(|error| unreadable(planned, error))?;
    let file = Counted { file, read: 0, progress };
    match planned.source.format {
        SourceFormat::Jsonl | SourceFormat::Empty => use_records(&mut Lines::new(file)),
        SourceFormat::JsonlZstd => {
            use_records(&mut ZstdFrames::new(file).map_err(|error| unreadable(planned, error))?)
        }
        SourceFormat::Sqlite => use_records(&mut NoReader(Some(no_reader()))),
    }
}

fn unreadable(planned: &PlannedSource, error: io::Error) -> Error {
    Error::io("read log", error).with_path(&planned.source.path)
}

fn duplicate_id(id: &str, here: &Path, there: &Path) -> Refusal {
    let message = format!(
        "session {id} lies in {} and in {}: nothing tells which is the right one; give one of them a new id",
        here.display(),
        there.display()
    );
    Refusal::new(RefusalKind::DuplicateId, "one-place-per-id", message)
}

/// A database, which no reader here understands.
struct NoReader(Option<Refusal>);

fn no_reader() -> Refusal {
    let message = "this is an SQLite database; this build reads JSONL and zstd JSONL only";
    Refusal::new(RefusalKind::SqliteSchema, "sqlite", message)
}

impl RecordSource for NoReader {
    fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        Ok(self.0.take().map(Item::Fault))
    }
}

/// A file that tells how much of it was read.
struct Counted<'p> {
    file: File,
    read: u64,
    progress: &'p dyn Fn(u64),
}

impl Read for Counted<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buf)?;
        self.read += bytes as u64;
        (self.progress)(self.read);
        Ok(bytes)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
