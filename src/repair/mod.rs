//! Makes a log that loads of a damaged one, in a new file: a [`Plan`] first, which writes nothing, then its application.
//!
//! Owns what damage costs: each step of a plan is either lossless or lossy, and says where it stands. Kept is what the gate
//! admits, in one unbroken run of seqs; a whole record that is lost to it is saved beside the new file. Of a log that two
//! writers went on with, a person chooses the branch.
//!
//! Never touches the source, never overwrites anything, never gives a name to a file that it has not read back and judged.
//! Retired and foreign logs (spec sections 6.1 and 20) are refused, not repaired. Memory is bounded by the largest record,
//! the projections and [`limits`](crate::limits).

mod apply;
mod branches;
#[cfg(feature = "sqlite")]
mod database;
mod pass;
mod pieces;
mod plan;
mod source;

use std::path::Path;

pub use apply::Applied;
pub use branches::Branch;
#[cfg(feature = "sqlite")]
pub use database::{DatabasePlan, DatabaseSummary, SessionPlan};
pub use plan::{Action, Plan, Step, Steps, Summary, Total};

use self::pass::{Findings, Nowhere, Route, lines};
use self::plan::Seen;
use self::source::Source;
use crate::error::{Error, ErrorKind, Result};
use crate::event::RefusalKind;
use crate::import::JudgeOptions;

/// Whether a repair may keep something of a log that was refused for this kind.
#[must_use]
pub const fn may_help(kind: RefusalKind) -> bool {
    use RefusalKind as K;
    matches!(
        kind,
        K::Bom
            | K::Envelope
            | K::NotAnEvent
            | K::BlankRecord
            | K::CorruptRecord
            | K::GluedRecord
            | K::NulPadding
            | K::InvalidUtf8
            | K::NonFinite
            | K::SeqGap
            | K::SeqFork
            | K::MessageShape
            | K::EventShape
            | K::ToolResultShape
            | K::EmptyCallId
            | K::HeaderShape
            | K::Surface
            | K::SurfaceOpShape
            | K::Provenance
            | K::RangeProvenance
            | K::PackedRow
            | K::ZstdFirstFrame
            | K::FrameMagic
            | K::FrameBlock
            | K::FrameChecksum
            | K::SqliteCorrupt
            | K::SqliteTruncated
            | K::OrphanEvents
            | K::Value
    )
}

/// Plans and applies repairs with one set of options.
#[derive(Debug, Clone, Default)]
pub struct Repairer {
    options: JudgeOptions,
}

impl Repairer {
    /// A repairer whose gate knows the types of `options`. Bytes that are no UTF-8 are always replaced, as a lossy step.
    #[must_use]
    pub fn new(options: JudgeOptions) -> Self {
        Self { options }
    }

    /// Plans the repair of the log file `path`, and changes nothing. `branch` chooses what is kept of a forked log, by its
    /// number in [`Plan::branches`]. `progress` is told the bytes read so far in each pass.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a directory and for a branch that there is not, [`ErrorKind::Locked`] if the file changes
    /// meanwhile, [`ErrorKind::Io`]. A log that cannot be repaired is no error: see [`Plan::refusal`].
    pub fn plan(&self, path: &Path, branch: Option<usize>, progress: &dyn Fn(u64)) -> Result<Plan> {
        let source = Source::look(path)?;
        if let Some(refusal) = source.foreign() {
            return Ok(Plan::refused(path, source.format(), source.stamp, refusal));
        }
        let pass = |route: &Route| lines::run(&source, &self.options, route, progress, &mut Nowhere);
        let Way { route, findings, branches } =
            Way::find(&pass, branch).map_err(|error| error.with_path(path))?;
        source.unchanged()?;
        let Findings { header, steps, summary, packed, digest, refusal, .. } = findings;
        Ok(Plan {
            path: path.to_owned(),
            format: source.format(),
            header,
            steps,
            summary,
            branch: branch.filter(|_| !branches.is_empty()),
            branches,
            refusal,
            packed,
            route,
            seen: Seen { file: source.stamp, digest },
        })
    }
}

/// What of a log is kept, found in as many passes as it takes.
struct Way {
    route: Route,
    findings: Findings,
    branches: Vec<Branch>,
}

impl Way {
    /// Makes passes until the log that they keep has an end that can be closed. `branch` chooses among those of a fork.
    fn find(pass: &dyn Fn(&Route) -> Result<Findings>, branch: Option<usize>) -> Result<Self> {
        let mut route = Route::default();
        let mut findings = pass(&route)?;
        if findings.unordered {
            route.as_written = true;
            findings = pass(&route)?;
        }
        let branches = findings.branches.described();
        if let Some(number) = branch {
            if number == 0 || number > branches.len().max(1) {
                let message =
                    format!("repair: the log has no branch {number}; it has {}", branches.len().max(1));
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            if number > 1 {
                route.way = findings.branches.way_to(number - 1);
                findings = pass(&route)?;
            }
        }
        if let Some(end) = findings.unclosable.filter(|_| findings.refusal.is_none()) {
            route.end = Some(end);
            findings = pass(&route)?;
        }
        Ok(Self { route, findings, branches })
    }
}
