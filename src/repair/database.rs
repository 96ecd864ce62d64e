//! Makes a database that loads of a damaged one: every session by itself, as a log of its own.
//!
//! A plan and its application are the same walk over the sessions, then over the rows that no kept session has; the walk
//! knows no difference but where things go. Every row that can be read is in the new database or saved beside it.

mod apply;
mod plan;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

pub use self::plan::{DatabasePlan, DatabaseSummary, SessionPlan};

use super::pass::{Findings, Nowhere, Route, rows};
use super::plan::{Action, Step, Steps, Summary};
use super::source::written_to;
use super::{Repairer, Way};
use crate::error::{Error, ErrorKind, Result};
use crate::event::json::Digester;
use crate::event::{Refusal, RefusalKind};
use crate::import::salvage::{Owner, Salvage, Salvaged, SalvagedSession};
use crate::limits::REPAIR_STEPS_LISTED_MAX;

impl Repairer {
    /// Plans the repair of the SQLite database `path`, and changes nothing. `branches` chooses what is kept of forked
    /// sessions: of the session with an id, the branch of a number in [`SessionPlan::branches`]. `progress` is told the rows
    /// read so far, and how many there are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a session or a branch that there is not, [`ErrorKind::Locked`] while somebody writes to
    /// the database, [`ErrorKind::Io`]. A database that cannot be repaired is no error: see [`DatabasePlan::refusal`].
    pub fn plan_database(
        &self,
        path: &Path,
        branches: &BTreeMap<String, usize>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<DatabasePlan> {
        let mut plan = DatabasePlan::new(path);
        let salvage = match open(path)? {
            Ok(salvage) => salvage,
            Err(refusal) => {
                plan.refusal = Some(refusal);
                return Ok(plan);
            }
        };
        let known = |id: &String| {
            salvage.sessions().binary_search_by(|session| session.id.as_bytes().cmp(id.as_bytes())).is_ok()
        };
        if let Some(id) = branches.keys().find(|id| !known(id)) {
            let message = format!("repair: the database has no session {id}");
            return Err(Error::new(ErrorKind::Invalid, message).with_path(path));
        }
        let mut walk = Walk::new(progress, salvage.rows());
        for fault in salvage.faults() {
            add_fault(&mut walk.steps, &fault.refusal, fault.lossless);
        }
        let mut listed = 0;
        for session in salvage.sessions() {
            let branch = branches.get(&session.id).copied();
            let (mut planned, packed) = self
                .plan_session(&salvage, session, branch, &mut walk)
                .map_err(|error| error.with_path(path))?;
            plan.packed.push(packed);
            if planned.refusal.is_none() && planned.steps.is_empty() {
                continue;
            }
            listed += planned.steps.listed().len();
            if listed > REPAIR_STEPS_LISTED_MAX {
                planned.steps.unlist();
            }
            plan.sessions.push(planned);
        }
        walk.orphans(&salvage, &mut |_, _| Ok(()))?;
        if !salvage.holds() {
            return Err(written_to(path));
        }
        plan.digest = walk.digest.finish();
        (plan.steps, plan.summary) = (walk.steps, walk.summary);
        Ok(plan)
    }

    fn plan_session(
        &self,
        salvage: &Salvage,
        session: &SalvagedSession,
        branch: Option<usize>,
        walk: &mut Walk<'_>,
    ) -> Result<(SessionPlan, bool)> {
        let mut packed = false;
        let mut planned = SessionPlan {
            id: session.id.clone(),
            steps: Steps::default(),
            summary: Summary::default(),
            branches: Vec::new(),
            branch: None,
            refusal: None,
            route: Route::default(),
        };
        match salvage.header(session)? {
            Err(refusal) => planned.refusal = Some(refusal),
            Ok((header, made_anew)) => {
                let pass = |route: &Route| {
                    rows::run((salvage, session), &header, &self.options, route, &mut Nowhere)
                };
                let Way { route, findings, branches } =
                    Way::find(&pass, branch).map_err(|error| no_branch(&session.id, error))?;
                if findings.refusal.is_none() {
                    walk.found(session, &findings);
                }
                packed = findings.packed;
                planned.branch = branch.filter(|_| !branches.is_empty());
                let Findings { mut steps, summary, refusal, .. } = findings;
                if let Some(fault) = made_anew {
                    add_fault(&mut steps, &fault, true);
                }
                planned = SessionPlan { steps, summary, branches, refusal, route, ..planned };
            }
        }
        if planned.refusal.is_some() {
            (planned.steps, planned.branches) = (Steps::default(), Vec::new());
            planned.summary = walk.left_out(salvage, &session.owner, &mut |_| Ok(()))?;
        }
        walk.count(&planned);
        Ok((planned, packed))
    }
}

/// The error for a branch that a session does not have, with the session.
fn no_branch(id: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Invalid => {
            Error::new(ErrorKind::Invalid, format!("repair session {id}: it has no such branch"))
                .with_source(error)
        }
        _ => error,
    }
}

/// The database, opened, or why nothing of it can be read.
fn open(path: &Path) -> Result<std::result::Result<Salvage, Refusal>> {
    match Salvage::open(path).map_err(|error| Error::io("repair: read database", error).with_path(path))? {
        Err(refusal) if refusal.kind == RefusalKind::Busy => Err(written_to(path)),
        opened => Ok(opened),
    }
}

/// What a walk over a database comes by.
struct Walk<'p> {
    steps: Steps,
    summary: DatabaseSummary,
    digest: Digester,
    rows: (u64, u64),
    progress: &'p dyn Fn(u64, u64),
}

impl<'p> Walk<'p> {
    fn new(progress: &'p dyn Fn(u64, u64), rows: u64) -> Self {
        let (steps, summary) = (Steps::default(), DatabaseSummary::default());
        Self { steps, summary, digest: Digester::default(), rows: (0, rows), progress }
    }

    /// Takes note of a session that was read.
    fn found(&mut self, session: &SalvagedSession, findings: &Findings) {
        self.digest.bytes(session.id.as_bytes());
        self.digest.bytes(&findings.digest.to_le_bytes());
        self.tell(findings.summary.events_kept + findings.summary.records_saved);
    }

    fn count(&mut self, planned: &SessionPlan) {
        let summary = &mut self.summary;
        match planned.refusal {
            Some(_) => summary.sessions_left_out += 1,
            None => summary.sessions_kept += 1,
        }
        summary.sessions_cut += u64::from(planned.refusal.is_none() && !planned.is_lossless());
        summary.events_kept += planned.summary.events_kept;
        summary.events_lost += planned.summary.events_lost;
        summary.records_saved += planned.summary.records_saved;
    }

    /// Hands every record under a key that is not kept to `save`.
    fn left_out(
        &mut self,
        salvage: &Salvage,
        owner: &Owner,
        save: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Summary> {
        let mut summary = Summary::default();
        salvage.each_row(owner, false, &mut |row| {
            summary.events_lost += 1;
            match row {
                Salvaged::Record { bytes, .. } => {
                    summary.records_saved += 1;
                    summary.bytes_lost += bytes.len() as u64;
                    self.digest.bytes(bytes);
                    save(bytes)
                }
                Salvaged::Broken { .. } | Salvaged::Lost { .. } => Ok(()),
            }
        })?;
        self.tell(summary.events_lost);
        Ok(summary)
    }

    /// Hands every record of a session without a row to `save`.
    fn orphans(&mut self, salvage: &Salvage, save: &mut dyn FnMut(&str, &[u8]) -> Result<()>) -> Result<()> {
        let known: HashSet<&Owner> = salvage.sessions().iter().map(|session| &session.owner).collect();
        let mut leave_out = |owner: &Owner| {
            let name = name_of(salvage, owner);
            let lost = self.left_out(salvage, owner, &mut |record| save(&name, record))?;
            self.orphan(&name, &lost);
            Ok(())
        };
        let mut last = None;
        while let Some(owner) = salvage.owner_behind(last.as_ref())? {
            // Those that the index of sessions knows come below.
            if !known.contains(&owner) && !salvage.headless().contains_key(&owner) {
                leave_out(&owner)?;
            }
            last = Some(owner);
        }
        salvage.headless().keys().try_for_each(leave_out)
    }

    fn orphan(&mut self, name: &str, lost: &Summary) {
        self.summary.sessions_left_out += 1;
        if lost.events_lost == 0 {
            return;
        }
        self.summary.events_lost += lost.events_lost;
        self.summary.records_saved += lost.records_saved;
        let (action, kind) = (Action::Cut, RefusalKind::OrphanEvents.as_str());
        self.steps.add(action, kind, (lost.events_lost, lost.bytes_lost), || Step {
            bytes: lost.bytes_lost,
            ..step(
                action,
                kind,
                lost.events_lost,
                format!("table sessions has no row of session {name}: its events are cut"),
            )
        });
    }

    fn tell(&mut self, rows: u64) {
        self.rows.0 = self.rows.1.min(self.rows.0 + rows);
        (self.progress)(self.rows.0, self.rows.1);
    }
}

/// Adds what is wrong beside the events: it is made anew, or something is lost by it.
fn add_fault(steps: &mut Steps, refusal: &Refusal, lossless: bool) {
    let (action, what) = match lossless {
        true => (Action::Rebuild, "it is made anew"),
        false => (Action::Drop, "what they held is lost"),
    };
    let kind = refusal.kind.as_str();
    steps.add(action, kind, (0, 0), || Step {
        row: refusal.rowid,
        ..step(action, kind, 0, format!("{}: {what}", refusal.message))
    });
}

/// A session as JSON: its id; its number, where that is all there is; or null for nobody.
fn name_of(salvage: &Salvage, owner: &Owner) -> String {
    match (salvage.headless().get(owner), owner) {
        (Some(id), _) => json_string(id),
        (None, Owner::Id(id)) => json_string(&String::from_utf8_lossy(id)),
        (None, Owner::Number(number)) => number.to_string(),
        (None, Owner::Nobody) => "null".to_owned(),
    }
}

fn json_string(text: &str) -> String {
    let mut json = String::new();
    crate::event::json::write_string(&mut json, &text.into());
    json
}

fn step(action: Action, kind: &'static str, events: u64, message: String) -> Step {
    Step {
        action,
        kind,
        line: None,
        offset: None,
        frame: None,
        row: None,
        seq: None,
        type_name: None,
        events,
        bytes: 0,
        message,
    }
}
