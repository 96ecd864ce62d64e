//! Verify: reads every byte of the log again, independently of what is in memory, and tells what is wrong.

use std::path::PathBuf;
use std::sync::Arc;

use super::catalog::Catalog;
use super::options::StoreOptions;
use super::session::Session;
use super::store::Store;
use crate::event::{Family, RefusalKind};
use crate::format::segment_file_name;
use crate::ids::Seq;
use crate::log::{Damage, DamageCause};
use crate::projection::Invariants;
use crate::{Error, ErrorKind, Result};

/// How far a verification goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerifyOptions {
    /// Replay every session through the gate and compare what it folds to.
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

/// The outcome of [`Store::verify`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// What is wrong; empty for a sound store.
    pub findings: Vec<Finding>,
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
    /// Reads the whole log again and checks every checksum, every record, every session's seqs, and what memory holds
    /// against it. `progress` is told the number of sessions done and the number of all.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the files cannot be read; [`ErrorKind::Cancelled`]. Damage is a finding, not an error.
    pub fn verify(&self, options: VerifyOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport> {
        if self.inner.writer().is_ok() {
            self.flush()?;
        }
        let before = self.list()?;
        let fresh = StoreOptions::new().open_storage_read_only(Arc::clone(&self.inner.storage))?;
        let mut report = VerifyReport::default();
        {
            let catalog = fresh.inner.catalog.lock();
            report.segments = fresh.inner.segments()?;
            report.frames = catalog.frames;
            report.findings.extend(catalog.damage.iter().map(|damage| self.damage_finding(&catalog, damage)));
        }
        self.check_sealed(&fresh, &mut report)?;
        let sessions = fresh.list()?;
        for (done, info) in sessions.iter().enumerate() {
            self.check_cancelled()?;
            report.sessions += 1;
            report.events += info.events;
            let session = fresh.session(&info.header.id)?;
            session.verify(options, &mut report.findings)?;
            progress(done as u64 + 1, sessions.len() as u64);
        }
        // Sessions that were written meanwhile are longer in the fresh view; what was there must be there.
        for known in before {
            let same = sessions.iter().find(|s| s.header.id == known.header.id);
            if same
                .is_none_or(|s| s.events < known.events || s.events == known.events && s.bytes != known.bytes)
            {
                report.findings.push(self.memory_finding(&known.header.id));
            }
        }
        Ok(report)
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
                        path: file.path().to_owned(),
                        offset: finding.error.offset(),
                        session: entry.map(|entry| entry.header.id.clone()),
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
            DamageCause::SegmentHeader => (RefusalKind::CorruptRecord, "the segment header is damaged"),
            DamageCause::Payload => {
                (RefusalKind::FrameChecksum, "a frame's payload does not match its checksum")
            }
            DamageCause::BrokenBatch => {
                (RefusalKind::FrameBlock, "a frame is lost with the rest of its batch")
            }
            _ => (RefusalKind::FrameMagic, "no frame header stands where one should"),
        };
        let lost = match frame {
            Some(frame) if frame.count > 0 => format!("{} events from seq {} on", frame.count, frame.tag),
            _ => format!("{} bytes", damage.bytes),
        };
        Finding {
            path: self.inner.file_path(&segment_file_name(damage.at.segment)),
            offset: Some(damage.at.offset),
            session: entry.map(|entry| entry.header.id.clone()),
            seq: frame.filter(|frame| frame.count > 0).map(|frame| Seq::new(frame.tag)),
            kind: kind.as_str(),
            family: Family::Damaged,
            message: format!("{what}: {lost} cannot be read; restore the file from a backup"),
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
    fn verify(&self, options: VerifyOptions, findings: &mut Vec<Finding>) -> Result<()> {
        let end = self.next_seq()?;
        let read = self.for_each(Seq::new(0)..end, &mut |_| Ok(()));
        let mut outcome = read;
        if outcome.is_ok() && (options.deep || options.strict) {
            outcome = self.replay(options, findings);
        }
        match outcome {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                findings.push(self.finding(&error));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Folds the session through the gate twice, at once and cut in two, and compares.
    fn replay(&self, options: VerifyOptions, findings: &mut Vec<Finding>) -> Result<()> {
        let end = self.next_seq()?;
        let whole = self.state_at(Seq::new(end.get().saturating_sub(1)))?;
        let resumed = self.with_state(Clone::clone)?;
        if whole != resumed {
            let error =
                Error::new(ErrorKind::Corrupt, "fold session: projections differ from a complete fold");
            findings.push(self.finding(&error));
        }
        if options.strict {
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
        }
        Ok(())
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
