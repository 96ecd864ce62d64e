//! What a repair of a database would do: steps of the database as a whole, and those of each session.

use std::path::{Path, PathBuf};

use crate::event::Refusal;
use crate::repair::branches::Branch;
use crate::repair::pass::Route;
use crate::repair::plan::{Action, Steps, Summary};

/// What a repair of one database would do.
/// [`Repairer::apply_database`](crate::repair::Repairer::apply_database) carries it out.
#[derive(Debug, Clone)]
pub struct DatabasePlan {
    /// The source.
    pub path: PathBuf,
    /// The steps of the database as a whole: what of its pages cannot be read, what is made anew, events of nobody.
    pub steps: Steps,
    /// The sessions that do not come over just as they are, by id. All others do.
    pub sessions: Vec<SessionPlan>,
    /// What is kept and what is lost in all.
    pub summary: DatabaseSummary,
    /// Why no repair helps.
    pub refusal: Option<Refusal>,
    /// Which of all its sessions pack runs of chunk events into rows; they do so in the repaired database.
    pub(super) packed: Vec<bool>,
    /// Of every row that was read.
    pub(super) digest: u128,
}

/// What a repair does to one session of a database.
#[derive(Debug, Clone)]
pub struct SessionPlan {
    /// Its id.
    pub id: String,
    /// The steps.
    pub steps: Steps,
    /// Their sums.
    pub summary: Summary,
    /// The branches, if one seq was claimed twice; else none.
    pub branches: Vec<Branch>,
    /// The branch that is kept. While there are branches and none is chosen, steps and sums are those of the first.
    pub branch: Option<usize>,
    /// Why the session is left out.
    pub refusal: Option<Refusal>,
    pub(super) route: Route,
}

/// What a repair of a database keeps and loses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DatabaseSummary {
    /// Sessions of the repaired database.
    pub sessions_kept: u64,
    /// Those of them that lose something.
    pub sessions_cut: u64,
    /// Sessions that it does not have: those that are refused, and those whose row is lost.
    pub sessions_left_out: u64,
    /// Events of the repaired database.
    pub events_kept: u64,
    /// Events that the source holds, or is known to have held, and the repaired database does not.
    pub events_lost: u64,
    /// Whole records among what is lost: a repair saves them beside the repaired database.
    pub records_saved: u64,
}

impl DatabasePlan {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            steps: Steps::default(),
            sessions: Vec::new(),
            summary: DatabaseSummary::default(),
            refusal: None,
            packed: Vec::new(),
            digest: 0,
        }
    }

    /// Whether there is nothing to do: every session loads as it is, except that an open turn is closed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.refusal.is_none() && self.steps.is_empty() && self.sessions.is_empty()
    }

    /// Whether every event of the source is kept as it is. A fork of which no branch was chosen is not lossless.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.refusal.is_none() && lossless(&self.steps) && self.sessions.iter().all(SessionPlan::is_lossless)
    }

    /// Whether a branch of a session must be chosen before this can be applied.
    #[must_use]
    pub fn needs_branch(&self) -> bool {
        self.sessions.iter().any(SessionPlan::needs_branch)
    }
}

impl SessionPlan {
    /// Whether every event of the session is kept as it is.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.refusal.is_none() && lossless(&self.steps)
    }

    /// Whether a branch of it must be chosen.
    #[must_use]
    pub fn needs_branch(&self) -> bool {
        self.refusal.is_none() && !self.branches.is_empty() && self.branch.is_none()
    }
}

fn lossless(steps: &Steps) -> bool {
    steps.totals().map(|(action, _, _)| action).all(Action::is_lossless)
}
