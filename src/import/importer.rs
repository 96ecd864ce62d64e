//! Imports logs into a store, or only judges them: plans all sources first, then takes each by itself.
//!
//! A source is opened for reading and never changed. One bad log never stops the others. A log that the store holds
//! already is compared event by event: it is skipped, it extends the stored session, or it is refused.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::discover::{Finding, Source, SourceFormat, discover};
use super::judge::{Judge, JudgeOptions, judge};
use super::judgement::Judgement;
use super::target::Target;
use super::{Item, Lines, RecordSource, ZstdFrames};
use crate::event::{Refusal, RefusalKind, parse_header_line};
use crate::{Error, Result, Store};

/// Reads sources with one set of options.
#[derive(Debug, Clone, Default)]
pub struct Importer {
    options: JudgeOptions,
    format: Option<SourceFormat>,
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
        Self { options, format: None }
    }

    /// Takes every source for this format, whatever it looks like.
    #[must_use]
    pub fn with_format(mut self, format: SourceFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Finds the logs at or under `paths` and notices session ids that lie in two places. Reads one header a log.
    #[must_use]
    pub fn plan(&self, paths: &[PathBuf]) -> Plan {
        let mut plan = Plan::default();
        for path in paths {
            let mut walk = discover(path);
            for finding in walk.by_ref() {
                match finding {
                    Finding::Source(source) => plan.sources.push(self.planned(source)),
                    Finding::Unreadable { path, error } => plan.unreadable.push((path, error)),
                    Finding::Ignored { path, reason } => plan.ignored.push((path, reason)),
                }
            }
            plan.skipped += walk.skipped();
        }
        self.mark_ambiguous(&mut plan.sources);
        plan
    }

    /// Judges a log without a store. `progress` is told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn inspect(&self, planned: &PlannedSource, progress: &dyn Fn(u64)) -> Result<SourceReport> {
        self.take(planned, &self.options, &mut Target::Nowhere, progress)
    }

    /// Judges a log and brings it into `store`, durable with the store's next flush.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read; what writing to the store returns. A log that is refused
    /// is no error.
    pub fn import(
        &self,
        store: &Store,
        planned: &PlannedSource,
        progress: &dyn Fn(u64),
    ) -> Result<SourceReport> {
        let mut options = JudgeOptions { vocabulary: store.vocabulary(), ..self.options.clone() };
        for name in self.options.vocabulary.registered() {
            store.register_type(name)?;
            options.vocabulary.register(name)?;
        }
        self.take(planned, &options, &mut Target::Undecided(store), progress)
    }

    fn take(
        &self,
        planned: &PlannedSource,
        options: &JudgeOptions,
        target: &mut Target<'_>,
        progress: &dyn Fn(u64),
    ) -> Result<SourceReport> {
        if planned.ambiguous.is_some() {
            *target = Target::Nowhere;
        }
        let path = &planned.source.path;
        let mut judgement =
            self.with_source(planned, progress, |records| judge_into(records, options, target))?;
        if judgement.refusal.is_none() {
            judgement.refusal.clone_from(&planned.ambiguous);
        }
        let outcome = target.conclude(&judgement, &mut |extension| {
            self.with_source(planned, progress, |records| {
                judge(records, options, &mut |admitted| extension.push(admitted)).map(|_| ())
            })
        })?;
        if let Some(conflict) = outcome.conflict {
            judgement.refusal.get_or_insert(conflict);
        }
        if judgement.refusal.is_some() {
            judgement.state = None;
            judgement.repair = None;
        }
        Ok(SourceReport { path: path.clone(), judgement, added: outcome.added, skipped: outcome.skipped })
    }

    fn planned(&self, mut source: Source) -> PlannedSource {
        if let Some(format) = self.format.filter(|_| source.format != SourceFormat::Empty) {
            source.format = format;
        }
        PlannedSource { source, ambiguous: None }
    }

    fn mark_ambiguous(&self, sources: &mut [PlannedSource]) {
        let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, planned) in sources.iter().enumerate() {
            if let Some(id) = self.header_id(planned) {
                by_id.entry(id).or_default().push(index);
            }
        }
        for (id, indices) in by_id.into_iter().filter(|(_, indices)| indices.len() > 1) {
            let real = |index: usize| fs::canonicalize(&sources[index].source.path).ok();
            let others: Vec<_> = indices.iter().map(|&index| real(index)).collect();
            for (place, &index) in indices.iter().enumerate() {
                let Some(other) = (0..indices.len()).find(|&o| others[o] != others[place]) else { continue };
                let other = sources[indices[other]].source.path.clone();
                sources[index].ambiguous = Some(duplicate_id(&id, &sources[index].source.path, &other));
            }
        }
    }

    /// The session id that a log claims, if its header says one.
    fn header_id(&self, planned: &PlannedSource) -> Option<String> {
        let read = self.with_source(planned, &|_| (), |records| {
            let first = records.next_item().map_err(|source| Error::io("read a log's header", source))?;
            let Some(Item::Record(record)) = first else { return Ok(None) };
            Ok(std::str::from_utf8(record.bytes)
                .ok()
                .and_then(|text| parse_header_line(text).ok())
                .map(|h| h.id))
        });
        read.ok().flatten()
    }

    fn with_source<T>(
        &self,
        planned: &PlannedSource,
        progress: &dyn Fn(u64),
        use_records: impl FnOnce(&mut dyn RecordSource) -> Result<T>,
    ) -> Result<T> {
        let path = &planned.source.path;
        let failed = |source| Error::io("read log", source).with_path(path);
        let file = Counted { file: File::open(path).map_err(failed)?, read: 0, progress };
        match planned.source.format {
            SourceFormat::Jsonl | SourceFormat::Empty => use_records(&mut Lines::new(file)),
            SourceFormat::JsonlZstd => use_records(&mut ZstdFrames::new(file).map_err(failed)?),
            SourceFormat::Sqlite => use_records(&mut NoReader(Some(no_reader()))),
        }
        .map_err(|error| if error.path().is_none() { error.with_path(path) } else { error })
    }
}

/// Judges a source whose target is chosen once its header is known.
fn judge_into(
    records: &mut dyn RecordSource,
    options: &JudgeOptions,
    target: &mut Target<'_>,
) -> Result<Judgement> {
    let mut judge = Judge::new(options);
    while !judge.is_decided() {
        let item = records.next_item().map_err(|source| Error::io("read a log to judge it", source))?;
        let Some(item) = item else { break };
        judge.take(item, &mut |admitted| target.push(admitted))?;
        if let Some(header) = judge.header() {
            target.decide(header)?;
        }
    }
    Ok(judge.finish())
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
