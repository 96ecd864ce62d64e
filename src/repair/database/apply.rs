//! Carries the plan for a database out, as [`Repairer::apply`] does for a log.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use super::plan::{DatabasePlan, SessionPlan};
use super::{Walk, json_string, open};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, RepairKind};
use crate::export::{Draft, SqliteWriter};
use crate::import::salvage::{Salvage, SalvagedSession};
use crate::import::{Judged, judge_all};
use crate::repair::Repairer;
use crate::repair::apply::{Applied, EventDigest, beside, free, name_both};
use crate::repair::pass::{Route, Sink, rows};
use crate::repair::source::written_to;

impl Repairer {
    /// Writes the repaired database to `out`, which must not exist, and lost records that are whole to `out` with
    /// `.cut.jsonl` behind its name, each as a line `{"session":ID,"record":{...}}` (of a session whose row is lost, ID may
    /// be its number or null). Both are private to the user. The database is judged from the disk before it gets its name. A file
    /// with the second name that holds the same, as a run that was killed leaves it, is taken for it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] while a branch must be chosen, what [`DatabasePlan::refusal`] says, [`ErrorKind::Conflict`] if
    /// one of the names is taken, [`ErrorKind::Locked`] if the source is not what was planned for, [`ErrorKind::Io`].
    pub fn apply_database(
        &self,
        plan: &DatabasePlan,
        out: &Path,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Applied> {
        if let Some(refusal) = &plan.refusal {
            return Err(Error::from(refusal.clone()).with_path(&plan.path));
        }
        if let Some(session) = plan.sessions.iter().find(|session| session.needs_branch()) {
            let message = format!("repair: two writers went on with session {}; choose a branch", session.id);
            return Err(Error::new(ErrorKind::Invalid, message).with_path(&plan.path));
        }
        let saved = (plan.summary.records_saved > 0).then(|| beside(out));
        free(out, &plan.path)?;
        self.write_database(plan, out, saved.as_deref(), progress)?;
        let bytes = fs::metadata(out).map_err(|error| Error::io("repair", error).with_path(out))?.len();
        Ok(Applied { out: out.to_owned(), saved, bytes })
    }

    fn write_database(
        &self,
        plan: &DatabasePlan,
        out: &Path,
        saved: Option<&Path>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<()> {
        let salvage = open(&plan.path)?.map_err(|_| written_to(&plan.path))?;
        let (cut, saved) = saved.map(Draft::create).transpose()?.unzip();
        let mut files = Files {
            database: SqliteWriter::create(out)?,
            digest: EventDigest::default(),
            saved: saved.map(BufWriter::new),
        };
        self.rewrite_database(plan, &salvage, &mut files, progress)?;
        let digest = files.digest.finish();
        let (database, file) = files.database.close()?;
        self.verify_database(plan, database.temporary_path(), digest)?;
        let cut = match cut.zip(files.saved) {
            Some((cut, saved)) => Some((cut.flushed(saved)?, cut)),
            None => None,
        };
        name_both((file, database), cut, &plan.path)
    }

    /// The walk of the plan, with files to write to. It must find what the plan found.
    fn rewrite_database(
        &self,
        plan: &DatabasePlan,
        salvage: &Salvage,
        files: &mut Files,
        progress: &dyn Fn(u64, u64),
    ) -> Result<()> {
        let mut walk = Walk::new(progress, salvage.rows());
        let plain = Route::default();
        if plan.packed.len() != salvage.sessions().len() {
            return Err(written_to(&plan.path));
        }
        for (session, packed) in salvage.sessions().iter().zip(&plan.packed) {
            let by_id = |planned: &SessionPlan| planned.id.as_bytes().cmp(session.id.as_bytes());
            let planned = plan.sessions.binary_search_by(by_id).ok().map(|at| &plan.sessions[at]);
            if planned.is_some_and(|planned| planned.refusal.is_some()) {
                leave_out(salvage, session, &mut walk, files)?;
            } else {
                let route = planned.map_or(&plain, |planned| &planned.route);
                self.carry_over((salvage, session), (route, *packed), &mut walk, files)?;
            }
        }
        let saved = &mut files.saved;
        walk.orphans(salvage, &mut |name, record| save(saved, name, record))?;
        let same = walk.digest.finish() == plan.digest && salvage.holds();
        if same { Ok(()) } else { Err(written_to(&plan.path)) }
    }

    fn carry_over(
        &self,
        (salvage, session): (&Salvage, &SalvagedSession),
        (route, packed): (&Route, bool),
        walk: &mut Walk<'_>,
        Files { database, digest, saved }: &mut Files,
    ) -> Result<()> {
        let (header, _) = salvage.header(session)?.map_err(Error::from)?;
        let name = json_string(&session.id);
        database.events_of(&header, packed, |keep| {
            let mut sink = SessionSink { name: &name, keep, digest, saved };
            let findings = rows::run((salvage, session), &header, &self.options, route, &mut sink)?;
            walk.found(session, &findings);
            Ok(())
        })?;
        digest.session(&header);
        Ok(())
    }

    /// Judges the database that was written, from the disk, by the rules of every import: it must hold what was kept.
    fn verify_database(&self, plan: &DatabasePlan, path: &Path, digest: u128) -> Result<()> {
        let mut seen = EventDigest::default();
        let mut why = None;
        judge_all(path, &self.options, &mut |judged| {
            match judged {
                Judged::Event(event) => seen.take(event),
                Judged::Fault(refusal) => why = why.take().or(Some(refusal.to_string())),
                Judged::Session(judgement) => {
                    let cut = judgement.repair.as_ref();
                    let cut = cut.filter(|repair| repair.kind != RepairKind::InterruptedTurn);
                    let refused = judgement.refusal.as_ref().map(ToString::to_string);
                    why = why.take().or(refused).or(cut.map(|cut| cut.message.clone()));
                    judgement.header.iter().for_each(|header| seen.session(header));
                }
            }
            Ok(())
        })?;
        if why.is_none() && seen.finish() == digest {
            return Ok(());
        }
        let why = why.unwrap_or_else(|| "it holds something else".to_owned());
        let message = format!(
            "repair: the new database does not read back as it was planned, so it gets no name: {why}"
        );
        Err(Error::new(ErrorKind::Corrupt, message).with_path(&plan.path))
    }
}

/// Saves what can be read of a session that is refused.
fn leave_out(
    salvage: &Salvage,
    session: &SalvagedSession,
    walk: &mut Walk<'_>,
    files: &mut Files,
) -> Result<()> {
    let name = json_string(&session.id);
    let saved = &mut files.saved;
    walk.left_out(salvage, &session.owner, &mut |record| save(saved, &name, record)).map(drop)
}

/// The files of a repair while they have no names.
struct Files {
    database: SqliteWriter,
    digest: EventDigest,
    saved: Option<BufWriter<File>>,
}

/// Takes what a pass over one session keeps and cuts.
struct SessionSink<'s, 'k> {
    /// The session's id as JSON.
    name: &'s str,
    keep: &'s mut crate::export::Sink<'k>,
    digest: &'s mut EventDigest,
    saved: &'s mut Option<BufWriter<File>>,
}

impl Sink for SessionSink<'_, '_> {
    fn keep(&mut self, event: &Event<'_>) -> Result<()> {
        self.digest.take(event);
        (self.keep)(event)
    }

    fn save(&mut self, record: &[u8]) -> Result<()> {
        save(self.saved, self.name, record)
    }
}

/// Writes a line. Bytes of a cell stay as they are, but for line feeds, which can only stand between tokens.
fn save(saved: &mut Option<BufWriter<File>>, session: &str, record: &[u8]) -> Result<()> {
    let Some(file) = saved else { return Ok(()) };
    let head = [b"{\"session\":", session.as_bytes(), b",\"record\":"];
    let parts = head.into_iter().chain(record.split_inclusive(|&byte| byte == b'\n'));
    let mut parts = parts.map(|part| part.strip_suffix(b"\n").map_or((part, &b""[..]), |part| (part, b" ")));
    let written = parts
        .try_for_each(|(part, space)| file.write_all(part).and_then(|()| file.write_all(space)))
        .and_then(|()| file.write_all(b"}\n"));
    written.map_err(|error| Error::io("repair: save what is cut", error))
}
