//! Carries a plan out: the new log and what was cut, each whole and durable under its name or not there at all.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Repairer;
use super::pass::{self, Sink};
use super::plan::Plan;
use super::source::{Source, written_to};
use crate::error::{Error, ErrorKind, Result};
use crate::event::json::Digester;
use crate::event::{Event, RepairKind, SessionHeader};
use crate::export::{Draft, JsonlFormat, JsonlWriter};
use crate::import::{Lines, RecordSource, ZstdFrames, judge};

/// What a repair wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The repaired log.
    pub out: PathBuf,
    /// The records that are lost to it, as their lines stood in the source; absent if there are none.
    pub saved: Option<PathBuf>,
    /// Length of the repaired log.
    pub bytes: u64,
}

impl Repairer {
    /// Writes the repaired log to `out`, which must not exist, in the format that its name tells (zstd JSONL for `.zstd` and
    /// `.zst`, plain for `.jsonl`, else the source's), and lost records that are whole to `out` with `.cut.jsonl` behind its
    /// name. Both are private to the user. The log is judged from the disk before it gets its name. A file with the second name that
    /// holds the same, as a run that was killed leaves it, is taken for it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] while a branch must be chosen, what [`Plan::refusal`] says, [`ErrorKind::Conflict`] if one of
    /// the names is taken, [`ErrorKind::Locked`] if the source is not what was planned for, [`ErrorKind::Io`].
    pub fn apply(&self, plan: &Plan, out: &Path, progress: &dyn Fn(u64)) -> Result<Applied> {
        if let Some(refusal) = &plan.refusal {
            return Err(Error::from(refusal.clone()).with_path(&plan.path));
        }
        if plan.needs_branch() {
            let message = "repair: two writers went on with this log; choose a branch to keep";
            return Err(Error::new(ErrorKind::Invalid, message).with_path(&plan.path));
        }
        let saved = (plan.summary.records_saved > 0).then(|| beside(out));
        free(out, &plan.path)?;
        self.write(plan, out, saved.as_deref(), progress)?;
        let bytes = fs::metadata(out).map_err(|error| Error::io("repair", error).with_path(out))?.len();
        Ok(Applied { out: out.to_owned(), saved, bytes })
    }

    fn write(&self, plan: &Plan, out: &Path, saved: Option<&Path>, progress: &dyn Fn(u64)) -> Result<()> {
        let format = format_of(out, plan.format);
        let (log, file) = Draft::create(out)?;
        let (cut, saved) = saved.map(Draft::create).transpose()?.unzip();
        let mut files = Files::new(file, format, plan)?;
        files.saved = saved.map(BufWriter::new);
        self.rewrite(plan, &mut files, progress)?;
        let digest = files.digest.finish();
        let file = log.flushed(files.log.finish()?)?;
        self.verify(plan, log.temporary_path(), format, digest)?;
        let cut = match cut.zip(files.saved) {
            Some((cut, saved)) => Some((cut.flushed(saved)?, cut)),
            None => None,
        };
        name_both((file, log), cut, &plan.path)
    }

    /// The pass of the plan, with files to write to. It must find what the plan found.
    fn rewrite(&self, plan: &Plan, files: &mut Files, progress: &dyn Fn(u64)) -> Result<()> {
        let source = Source::look(&plan.path)?;
        if source.stamp != plan.seen.file {
            return Err(written_to(&plan.path));
        }
        let found = pass::lines::run(&source, &self.options, &plan.route, progress, files)?;
        source.unchanged()?;
        let same = found.digest == plan.seen.digest && found.summary == plan.summary;
        if same { Ok(()) } else { Err(written_to(&plan.path)) }
    }

    /// Judges the file that was written, from the disk, by the rules of every import: it must hold what was kept.
    fn verify(&self, plan: &Plan, path: &Path, format: JsonlFormat, digest: u128) -> Result<()> {
        let failed = |error| Error::io("repair: read the new log back", error).with_path(path);
        let file = File::open(path).map_err(failed)?;
        let mut records: Box<dyn RecordSource> = match format {
            JsonlFormat::Plain => Box::new(Lines::new(file)),
            JsonlFormat::Zstd => Box::new(ZstdFrames::new(file).map_err(failed)?),
        };
        let mut seen = EventDigest::default();
        let judgement = judge(&mut *records, &self.options, &mut |admitted| {
            seen.take(admitted.event());
            Ok(())
        })?;
        let cut = judgement.repair.as_ref().filter(|repair| repair.kind != RepairKind::InterruptedTurn);
        let accepted = judgement.refusal.is_none() && cut.is_none() && judgement.header == plan.header;
        if accepted && seen.finish() == digest {
            return Ok(());
        }
        let why = judgement.refusal.map_or_else(|| "it holds something else".to_owned(), |r| r.to_string());
        let message =
            format!("repair: the new log does not read back as it was planned, so it gets no name: {why}");
        Err(Error::new(ErrorKind::Corrupt, message).with_path(path))
    }
}

/// The files of a repair while they have no names.
struct Files {
    log: JsonlWriter<BufWriter<File>>,
    digest: EventDigest,
    saved: Option<BufWriter<File>>,
}

impl Files {
    fn new(file: File, format: JsonlFormat, plan: &Plan) -> Result<Self> {
        let header = plan.header.clone().unwrap_or_else(|| SessionHeader::new("", 0));
        let log = JsonlWriter::new(BufWriter::new(file), format, plan.packed, &header)?;
        Ok(Self { log, digest: EventDigest::default(), saved: None })
    }
}

impl Sink for Files {
    fn keep(&mut self, event: &Event<'_>) -> Result<()> {
        self.digest.take(event);
        self.log.event(event)
    }

    fn save(&mut self, record: &[u8]) -> Result<()> {
        let Some(saved) = &mut self.saved else { return Ok(()) };
        let written = saved.write_all(record).and_then(|()| saved.write_all(b"\n"));
        written.map_err(|error| Error::io("repair: save what is cut", error))
    }
}

/// Fingerprint of events in order.
#[derive(Default)]
pub(super) struct EventDigest {
    digester: Digester,
    line: String,
}

impl EventDigest {
    pub(super) fn take(&mut self, event: &Event<'_>) {
        self.line.clear();
        event.write_json(&mut self.line);
        self.digester.bytes(self.line.as_bytes());
    }

    /// The session of the events so far ends.
    #[cfg(feature = "sqlite")]
    pub(super) fn session(&mut self, header: &SessionHeader) {
        self.line.clear();
        header.write_json(&mut self.line);
        self.digester.bytes(self.line.as_bytes());
    }

    pub(super) fn finish(&self) -> u128 {
        self.digester.finish()
    }
}

/// Where what is lost to `out` is saved.
pub(super) fn beside(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".cut.jsonl");
    PathBuf::from(name)
}

/// Gives what is lost its name, and then the log: whoever sees the log, or the database, has both. A run that is killed between the two leaves
/// what the next one would write again, so that is no conflict.
pub(super) fn name_both(log: (File, Draft), cut: Option<(File, Draft)>, source: &Path) -> Result<()> {
    let (file, log) = log;
    let new_cut = match cut {
        Some((cut_file, cut)) if !cut.is_published()? => {
            let path = cut.path().to_owned();
            free(&path, source)?;
            cut.publish(cut_file)?;
            Some(path)
        }
        _ => None,
    };
    log.publish(file).inspect_err(|error| {
        // The log's name went to somebody else. Best effort: a leftover holds nothing that the source does not.
        if let Some(path) = new_cut.filter(|_| error.kind() == ErrorKind::Conflict) {
            let _leftover = fs::remove_file(path);
        }
    })
}

/// A name to write to must be free; links of any kind that have it are in the way as well.
pub(super) fn free(name: &Path, source: &Path) -> Result<()> {
    if fs::symlink_metadata(name).is_err() {
        return Ok(());
    }
    let same = matches!((fs::canonicalize(name), fs::canonicalize(source)), (Ok(a), Ok(b)) if a == b);
    let message = match same {
        true => "repair: this is the source, which is never changed; name a new file",
        false => "repair: this file exists, and nothing is written over; name a new one",
    };
    Err(Error::new(ErrorKind::Conflict, message).with_path(name))
}

fn format_of(out: &Path, source: JsonlFormat) -> JsonlFormat {
    match out.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("zstd" | "zst") => JsonlFormat::Zstd,
        Some("jsonl") => JsonlFormat::Plain,
        _ => source,
    }
}
