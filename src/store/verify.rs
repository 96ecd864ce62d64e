//! Verify: reads every byte of the log again, independently of what is in memory, and tells what is wrong.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::catalog::{Catalog, Fault};
use super::checkpoints::SessionAudit;
use super::options::StoreOptions;
use super::session::{Entry, Session};
use super::store::{SessionInfo, Store};
use crate::event::{Family, RefusalKind, SessionState, Warning, WarningKind};
use crate::ids::Seq;
use crate::limits::WARNINGS_LISTED_MAX;
use crate::log::{Damage, DamageCause};
use crate::projection::{Anomalies, Invariants, Projection, State, Warnings};
use crate::{Error, ErrorKind, Result};

/// How far a verification goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyOptions {
    /// Fold every session in two ways and compare, with what the open store has in memory too.
    pub deep: bool,
    /// Check the log invariants too (spec sections 7 and 8.3).
    pub strict: bool,
}

/// Something that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// Byte offset in it.
    pub offset: Option<u64>,
    /// The session concerned, where it is known.
    pub session: Option<String>,
    /// The first event concerned.
    pub seq: Option<Seq>,
    /// A stable word.
    pub kind: &'static str,
    /// Whose fault it is.
    pub family: Family,
    /// What is wrong and what it costs.
    pub message: String,
}

/// Something legal in a stored session that a person should know about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionWarning {
    /// The session.
    pub session: String,
    /// What, and at which event. A stored event has no line.
    pub warning: Warning,
}

/// The outcome of [`Store::verify`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// What is wrong; empty for a sound store.
    pub findings: Vec<Finding>,
    /// What is legal but worth a look: of each kind the first [`WARNINGS_LISTED_MAX`].
    pub warnings: Vec<SessionWarning>,
    /// How many warnings there were of each kind.
    pub warning_totals: BTreeMap<WarningKind, u64>,
    /// Segments read.
    pub segments: u64,
    /// Frames read.
    pub frames: u64,
    /// Sessions found.
    pub sessions: u64,
    /// Events in them, shared ones counted in each.
    pub events: u64,
}

impl Store {
    /// Reads the whole log again and checks every checksum, every record, every session's seqs and events, and what memory
    /// holds against it. `progress` is told the number of sessions done and the number of all.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the files cannot be read; [`ErrorKind::Cancelled`]. Damage is a finding, not an error.
    pub fn verify(&self, options: VerifyOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport> {
        if self.inner.writer().is_ok() {
            self.flush()?;
        }
        let before = self.list()?;
        let mut report = VerifyReport::default();
        let checkpoints = self.inner.checkpoints.audit(&mut report.findings)?;
        let fresh = StoreOptions::new().open_storage_read_only(Arc::clone(&self.inner.storage))?;
        self.check_files(&fresh, &mut report)?;
        let sessions = fresh.list()?;
        for (done, info) in sessions.iter().enumerate() {
            self.check_cancelled()?;
            report.sessions += 1;
            report.events += info.events;
            let session = fresh.find(&info.header.id)?;
            session.verify(options, checkpoints.of(session.entry.key), &mut report)?;
            if options.deep {
                self.check_live(&session, &mut report.findings)?;
            }
            progress(done as u64 + 1, sessions.len() as u64);
        }
        self.check_complete(&before, &sessions, &mut report.findings);
        Ok(report)
    }

    /// Holds what files hold, `found`, against what was known `before` they were looked at. Sessions that were written meanwhile
    /// are longer; what was there, and was not removed meanwhile, must be there.
    pub(super) fn check_complete(
        &self,
        before: &[SessionInfo],
        found: &[SessionInfo],
        findings: &mut Vec<Finding>,
    ) {
        let found: HashMap<_, _> = found.iter().map(|info| (&info.header.id, info)).collect();
        for known in before {
            let is_whole = found.get(&known.header.id).is_some_and(|found| {
                found.events > known.events || found.events == known.events && found.bytes == known.bytes
            });
            let still_there = || self.session(&known.header.id).is_ok_and(|now| now.next_seq().is_ok());
            if !is_whole && still_there() {
                findings.push(self.memory_finding(&known.header.id));
            }
        }
    }

    /// Every byte of the files as `fresh` finds them: in place, or in a copy.
    pub(super) fn check_files(&self, fresh: &Self, report: &mut VerifyReport) -> Result<()> {
        {
            let catalog = fresh.inner.catalog.lock();
            report.segments = fresh.inner.segments()?;
            report.frames = catalog.frames;
            let findings = &mut report.findings;
            findings.extend(catalog.damage.iter().map(|damage| self.damage_finding(&catalog, damage)));
            findings.extend(catalog.faults.iter().map(|fault| self.fault_finding(&catalog, fault)));
            findings.extend(catalog.nameless().map(|entry| self.nameless_finding(entry)));
        }
        self.check_sealed(fresh, report)
    }

    /// Compares the projections that the open store has in memory with a fold of what the files hold.
    fn check_live(&self, session: &Session, findings: &mut Vec<Finding>) -> Result<()> {
        let entry = self.inner.catalog.lock().by_key.get(&session.entry.key).cloned();
        let live = entry.and_then(|entry| entry.state.lock().live.as_ref().map(|live| live.state.clone()));
        let Some(live) = live else { return Ok(()) };
        let mut folded = State::new(session.id());
        match session.fold_on(&mut folded, live.next_seq()) {
            Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                return Err(error);
            }
            // Damage, which was found before.
            Err(_) => {}
            // What was queued behind the view is not there yet.
            Ok(()) if folded.next_seq() < live.next_seq() || folded == live => {}
            Ok(()) => findings.push(session.fold_finding("the projections in memory differ from a fold")),
        }
        Ok(())
    }

    /// Every byte of the sealed files.
    fn check_sealed(&self, fresh: &Self, report: &mut VerifyReport) -> Result<()> {
        let files = fresh.inner.catalog.lock().sealed.clone();
        for file in files {
            self.check_cancelled()?;
            let findings = &mut report.findings;
            fresh.inner.with_decoder(|decoder| {
                file.by_position()?.check(decoder, &mut |finding| {
                    let key = finding.lost.as_ref().map(|(key, _)| *key);
                    let entry = key.and_then(|key| fresh.inner.catalog.lock().by_key.get(&key).cloned());
                    findings.push(Finding {
                        path: self.inner.file_path(&file.name().file_name()),
                        offset: finding.error.offset(),
                        session: entry.map(|entry| entry.header().id.clone()),
                        seq: finding.lost.map(|(_, lost)| lost.start),
                        kind: RefusalKind::FrameChecksum.as_str(),
                        family: Family::Damaged,
                        message: finding.error.message().to_owned(),
                    });
                    Ok(())
                })
            })?;
        }
        Ok(())
    }

    fn damage_finding(&self, catalog: &Catalog, damage: &Damage) -> Finding {
        let frame = damage.frame.as_ref();
        let entry = frame.and_then(|frame| catalog.entry_of(frame));
        let (kind, what) = match damage.cause {
            DamageCause::SealedFile(_) => {
                (RefusalKind::CorruptRecord, "the header or the footer of a sealed file is damaged")
            }
            DamageCause::SegmentHeader => (RefusalKind::CorruptRecord, "the segment header is damaged"),
            DamageCause::Payload => {
                (RefusalKind::FrameChecksum, "a frame's payload does not match its checksum")
            }
            DamageCause::BrokenBatch => {
                (RefusalKind::FrameBlock, "a frame is lost with the rest of its batch")
            }
            DamageCause::Patch => {
                (RefusalKind::FrameBlock, "a frame says what changed since one that is damaged")
            }
            _ => (RefusalKind::FrameMagic, "no frame header stands where one should"),
        };
        let lost = match frame {
            Some(frame) if frame.count > 0 => format!("{} events from seq {} on", frame.count, frame.tag),
            _ => format!("{} bytes", damage.bytes),
        };
        Finding {
            path: self.inner.file_path(&damage.file_name()),
            offset: Some(damage.at.offset),
            session: entry.map(|entry| entry.header().id.clone()),
            seq: frame.filter(|frame| frame.count > 0).map(|frame| Seq::new(frame.tag)),
            kind: kind.as_str(),
            family: Family::Damaged,
            message: format!("{what}: {lost} cannot be read; restore the file from a backup"),
        }
    }

    fn fault_finding(&self, catalog: &Catalog, fault: &Fault) -> Finding {
        Finding {
            path: self.inner.file_path(&fault.file_name),
            offset: fault.offset,
            session: catalog.by_key.get(&fault.key).map(|entry| entry.header().id.clone()),
            seq: fault.error.seq(),
            kind: RefusalKind::CorruptRecord.as_str(),
            family: Family::Damaged,
            message: format!("{}; restore the file from a backup", fault.error.message()),
        }
    }

    fn nameless_finding(&self, entry: &Entry) -> Finding {
        Finding {
            path: self.inner.file_path(""),
            offset: None,
            session: Some(entry.header().id.clone()),
            seq: None,
            kind: RefusalKind::CorruptRecord.as_str(),
            family: Family::Damaged,
            message: "the session's create frame is damaged, and with it its id; a stand-in takes its place"
                .to_owned(),
        }
    }

    fn memory_finding(&self, id: &str) -> Finding {
        Finding {
            path: self.inner.file_path(""),
            offset: None,
            session: Some(id.to_owned()),
            seq: None,
            kind: RefusalKind::SeqGap.as_str(),
            family: Family::Damaged,
            message:
                "the files hold less of this session than the open store does; stop writing and keep a copy"
                    .to_owned(),
        }
    }
}

impl Session {
    fn verify(
        &self,
        options: VerifyOptions,
        checkpoints: SessionAudit,
        report: &mut VerifyReport,
    ) -> Result<()> {
        match self.check_not_lost().and_then(|()| self.replay(options, checkpoints, report)) {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                report.findings.push(self.finding(&error));
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Reads the session through the gate, which finds what is odd, and holds its checkpoints against the events. A deep look
    /// compares each checkpoint with the fold up to it, and folds the session on from a copy made halfway too.
    fn replay(
        &self,
        options: VerifyOptions,
        mut checkpoints: SessionAudit,
        report: &mut VerifyReport,
    ) -> Result<()> {
        let end = self.next_seq()?;
        let halfway = Seq::new(end.get() / 2);
        let mut stops = checkpoints.seqs();
        stops.retain(|stop| *stop <= end);
        stops.extend([halfway, end]);
        stops.sort_unstable();
        let (mut whole, mut anomalies) = (State::new(self.id()), Anomalies::default());
        let mut resumed = None;
        for stop in stops {
            self.each_admitted(&mut whole, stop, &mut |event| {
                anomalies.apply(event);
                checkpoints.take(event.event());
            })?;
            if options.deep {
                checkpoints.compare(self, stop, &whole, &mut report.findings);
                if stop == halfway {
                    resumed = Some(whole.clone());
                }
            }
        }
        report.findings.extend(checkpoints.finish(self, end));
        let header = self.header();
        let has_parent = header.parent_session.is_some();
        report.warn(self.id(), &anomalies.finish(header.seed_length, has_parent, end.get()));
        if let Some(mut resumed) = resumed {
            self.fold_on(&mut resumed, end)?;
            if whole != resumed {
                let finding = self.fold_finding("projections that were resumed differ from a complete fold");
                report.findings.push(finding);
            }
        }
        if options.strict { self.check_invariants(end, &mut report.findings) } else { Ok(()) }
    }

    /// Checks the log invariants (spec sections 7 and 8.3).
    fn check_invariants(&self, end: Seq, findings: &mut Vec<Finding>) -> Result<()> {
        let mut invariants = Invariants::default();
        let mut report = |seq, broken| {
            findings.push(Finding {
                path: self.store.file_path(""),
                offset: None,
                session: Some(self.id().to_owned()),
                seq: Some(seq),
                kind: "log-invariant",
                family: Family::Invalid,
                message: broken,
            });
        };
        self.for_each(Seq::new(0)..end, &mut |event| {
            invariants.check(&event, &mut report);
            Ok(())
        })?;
        invariants.finish(&mut report);
        Ok(())
    }

    fn fold_finding(&self, message: &str) -> Finding {
        self.finding(&Error::new(ErrorKind::Corrupt, format!("fold session: {message}")))
    }

    fn finding(&self, error: &Error) -> Finding {
        let path = error.path().map_or_else(|| self.store.file_path(""), ToOwned::to_owned);
        Finding {
            path,
            offset: error.offset(),
            session: Some(self.id().to_owned()),
            seq: error.seq(),
            kind: error.refusal().map_or(RefusalKind::CorruptRecord, |kind| kind).as_str(),
            family: Family::Damaged,
            message: error.message().to_owned(),
        }
    }
}

impl VerifyReport {
    /// All warnings of a kind are listed until the list of that kind is full.
    fn warn(&mut self, session: &str, warnings: &Warnings) {
        for (kind, found) in warnings.totals() {
            let total = self.warning_totals.entry(kind).or_default();
            let room = usize::try_from(WARNINGS_LISTED_MAX.saturating_sub(*total)).unwrap_or(usize::MAX);
            let of_kind = warnings.listed().iter().filter(|warning| warning.kind == kind).take(room);
            self.warnings.extend(
                of_kind
                    .map(|warning| SessionWarning { session: session.to_owned(), warning: warning.clone() }),
            );
            *total += found;
        }
    }
}
