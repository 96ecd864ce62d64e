//! Imports logs into a store, or only judges them: plans all sources first, then takes each by itself.
//!
//! A source is opened for reading and never changed. One bad log never stops the others. A log that the store holds
//! already is compared event by event: it is skipped, it extends the stored session, or it is refused.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::discover::{Found, Source, SourceFormat, discover};
use super::judge::{Judge, JudgeOptions};
use super::judgement::Judgement;
use super::part::{Part, Waiting};
use super::target::{Mode, Outcome, Target};
use super::{Item, RecordSource};
use crate::event::{Refusal, RefusalKind, parse_header_line};
use crate::{Cancel, Result, Store};

/// Reads sources with one set of options.
#[derive(Debug, Clone, Default)]
pub struct Importer {
    options: JudgeOptions,
    format: Option<SourceFormat>,
    waiting: Waiting,
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
    /// It ends where the importer was [cancelled](Importer::cancellable).
    pub cancelled: bool,
}

/// One log of a [`Plan`].
#[derive(Debug, Clone)]
pub struct PlannedSource {
    /// Where and what it is. The bytes of a database are shared out among its sessions.
    pub source: Source,
    pub(super) part: Part,
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
    /// The session's id where the place alone tells it: in a database.
    pub id: Option<String>,
}

impl Importer {
    /// An importer that judges with `options`.
    #[must_use]
    pub fn new(options: JudgeOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The same importer, ended by `cancel`: between two records of a log, and while it waits for a database, it then gives
    /// up with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled); a plan is left [incomplete](Plan::cancelled). A new session of which it had taken in a part does not appear; of
    /// a stored one, whole batches that extend it may stay.
    #[must_use]
    pub fn cancellable(self, cancel: &Cancel) -> Self {
        Self { waiting: self.waiting.ended_by(cancel), ..self }
    }

    /// Reads every source as `format`, whatever it looks like. JSONL may still be in zstd frames, and nothing is still
    /// nothing.
    #[must_use]
    pub fn reading(self, format: SourceFormat) -> Self {
        Self { format: Some(format), ..self }
    }

    /// Has `tell` called, with the path and how long was waited so far, each time a database that somebody writes to is
    /// about to be waited for. It is given up after five seconds, and waited for no more until it could be read again.
    #[must_use]
    pub fn on_wait(self, tell: impl Fn(&Path, std::time::Duration) + Send + Sync + 'static) -> Self {
        Self { waiting: self.waiting.telling(tell), ..self }
    }

    /// Finds the logs at or under `paths`, each once however often it is named, and notices session ids that lie in two
    /// places. Reads one header a log. Each session of a database is a source, and so is each fault of the database as a
    /// whole.
    #[must_use]
    pub fn plan(&self, paths: &[PathBuf]) -> Plan {
        let mut plan = Plan::default();
        let mut known = HashSet::new();
        for path in paths {
            let mut walk = discover(path);
            for found in walk.by_ref() {
                if self.waiting.cancel().is_thrown() {
                    break;
                }
                match found {
                    Found::Source(source) => {
                        let real = fs::canonicalize(&source.path).unwrap_or_else(|_| source.path.clone());
                        if known.insert(real) {
                            self.add(source, &mut plan);
                        }
                    }
                    Found::Unreadable { path, error } => plan.unreadable.push((path, error)),
                    Found::Ignored { path, reason } => plan.ignored.push((path, reason)),
                }
            }
            plan.skipped += walk.skipped();
        }
        mark_ambiguous(&mut plan.sources, self.waiting.cancel());
        plan.cancelled = self.waiting.cancel().is_thrown();
        plan
    }

    /// Adds the logs of a file.
    fn add(&self, mut source: Source, plan: &mut Plan) {
        source.format = match (self.format, source.format) {
            (_, SourceFormat::Empty) | (None, _) => source.format,
            (Some(SourceFormat::Jsonl), SourceFormat::JsonlZstd) => SourceFormat::JsonlZstd,
            (Some(format), _) => format,
        };
        let parts = Part::all_of(&source, &self.waiting);
        // What was listed by then may be no more than that somebody was still waited for.
        if self.waiting.cancel().is_thrown() {
            return;
        }
        match parts {
            Ok(parts) if parts.is_empty() => plan.ignored.push((source.path, "a database without a session")),
            Ok(parts) => plan.sources.extend(parts.into_iter().map(|(part, bytes)| PlannedSource {
                source: Source { bytes, ..source.clone() },
                part,
                ambiguous: None,
            })),
            Err(error) => plan.unreadable.push((source.path, error)),
        }
    }

    /// Judges a log without a store. `progress` is told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read.
    pub fn inspect(&self, planned: &PlannedSource, progress: &dyn Fn(u64)) -> Result<SourceReport> {
        let (judgement, outcome) = self.pass(planned, &self.options, &Target::nowhere, progress)?;
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
        let target = || Target::store(store, Mode::Compare);
        let (judgement, outcome) = self.pass(planned, &self.options_for(store)?, &target, progress)?;
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
        let pass = |mode| self.pass(planned, &options, &|| Target::store(store, mode), progress);
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

    /// Reads a log from its beginning to its end; again, if somebody wrote to it meanwhile.
    fn pass<'s>(
        &self,
        planned: &PlannedSource,
        options: &JudgeOptions,
        target: &dyn Fn() -> Target<'s>,
        progress: &dyn Fn(u64),
    ) -> Result<(Judgement, Outcome)> {
        let target = || if planned.ambiguous.is_some() { Target::nowhere() } else { target() };
        let (judgement, target) = planned.read(options.lossy_utf8, &self.waiting, progress, |records| {
            let mut target = target();
            let judgement = self.judge_into(&mut target, records, options, planned)?;
            Ok((judgement, target))
        })?;
        conclude(judgement, target, planned)
    }

    /// Judges records, and has the target take what is admitted.
    fn judge_into(
        &self,
        target: &mut Target<'_>,
        records: &mut dyn RecordSource,
        options: &JudgeOptions,
        planned: &PlannedSource,
    ) -> Result<Judgement> {
        let mut judge = Judge::new(options);
        while !judge.is_decided() {
            self.waiting.cancel().check()?;
            let item = records.next_item().or_else(|error| {
                self.waiting.cancel().check()?;
                Err(planned.unreadable(error))
            });
            let Some(item) = item? else { break };
            target.next_item(&item);
            judge.take(item, &mut |admitted| target.push(admitted))?;
            if let Some(header) = judge.header() {
                target.decide(header)?;
            }
        }
        Ok(judge.finish())
    }
}

/// Makes the events the store's, unless the log is refused.
fn conclude(
    mut judgement: Judgement,
    target: Target<'_>,
    planned: &PlannedSource,
) -> Result<(Judgement, Outcome)> {
    planned.part.warn(&mut judgement.warnings);
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

impl SourceReport {
    /// The session's id, as far as it is known.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        self.judgement.header.as_ref().map(|header| &*header.id).or(self.id.as_deref())
    }

    fn new(planned: &PlannedSource, judgement: Judgement, outcome: &Outcome) -> Self {
        let path = planned.source.path.clone();
        let id = planned.part.id();
        Self { path, judgement, added: outcome.added, skipped: outcome.skipped, id }
    }
}

/// Refuses the logs whose session id another log has too.
fn mark_ambiguous(sources: &mut [PlannedSource], cancel: &Cancel) {
    let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, planned) in sources.iter().enumerate().take_while(|_| !cancel.is_thrown()) {
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
    if !matches!(planned.part, Part::File) {
        return planned.part.id();
    }
    let read = planned.read(false, &Waiting::default(), &|_| (), |records| {
        let first = records.next_item().map_err(|error| planned.unreadable(error))?;
        let Some(Item::Record(record)) = first else { return Ok(None) };
        let text = std::str::from_utf8(record.bytes).ok();
        Ok(text.and_then(|text| parse_header_line(text).ok()).map(|header| header.id))
    });
    read.ok().flatten()
}

fn duplicate_id(id: &str, here: &Path, there: &Path) -> Refusal {
    let message = format!(
        "session {id} lies in {} and in {}: nothing tells which is the right one; give one of them a new id",
        here.display(),
        there.display()
    );
    Refusal::new(RefusalKind::DuplicateId, "one-place-per-id", message)
}
