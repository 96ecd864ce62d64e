//! Checking checkpoints: every byte of their files, that each is bound to what its session holds, and on a deep
//! verification that it is what the events fold to. What is wrong costs time at the next resume, and no event.

use std::path::PathBuf;
use std::sync::Arc;

use super::super::session::Session;
use super::super::summary::chained;
use super::super::verify::Finding;
use super::{Candidate, CheckpointFiles, Checkpoints, Source};
use crate::event::{Event, Family};
use crate::format::checkpoint::{CheckpointRow, SectionReader};
use crate::ids::{Seq, SessionKey};
use crate::log::CheckpointFile;
use crate::projection::State;
use crate::{Error, ErrorKind, Result};

/// The kind of all findings about checkpoints.
const KIND: &str = "checkpoint";

/// The checkpoint files as they were when a verification began, so that all that they are bound to was in the log by then.
pub(in crate::store) struct CheckpointAudit(Vec<Arc<CheckpointFile>>);

impl Checkpoints {
    /// Opens all files again and reads every byte of them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if they cannot be listed.
    pub(in crate::store) fn audit(&self, findings: &mut Vec<Finding>) -> Result<CheckpointAudit> {
        let files: &CheckpointFiles = &self.files;
        let mut opened = Vec::new();
        for number in files.numbers()? {
            match files.open(number) {
                Ok(file) => opened.push(Arc::new(file)),
                Err(error) => findings.extend(finding_of(&error)),
            }
        }
        for file in &opened {
            for row in file.rows() {
                match file.read(row) {
                    Ok(stored) if SectionReader::new(&stored, row.decoded_bytes).is_none() => {
                        findings.push(finding(file, row, None, "a checkpoint does not decode"));
                    }
                    Ok(_) => {}
                    Err(error) => findings.extend(finding_of(&error)),
                }
            }
        }
        Ok(CheckpointAudit(opened))
    }
}

impl CheckpointAudit {
    /// What there is of one session, to be held against its events as they are read.
    pub(in crate::store) fn of(&self, key: SessionKey) -> SessionAudit {
        let rows = self.0.iter().filter_map(|file| Some((Arc::clone(file), *file.find(key)?)));
        let mut waiting: Vec<_> = rows.collect();
        waiting.sort_unstable_by_key(|(file, row)| (row.next_seq, file.number()));
        SessionAudit { chain: 0, waiting, bound: Vec::new(), findings: Vec::new() }
    }
}

/// The checkpoints of one session, by the seq that they stand at.
pub(in crate::store) struct SessionAudit {
    chain: u32,
    waiting: Vec<(Arc<CheckpointFile>, CheckpointRow)>,
    /// Those whose chain is that of the events.
    bound: Vec<(Arc<CheckpointFile>, CheckpointRow)>,
    findings: Vec<Finding>,
}

impl SessionAudit {
    /// Is shown the session's events, in order from the first.
    pub(in crate::store) fn take(&mut self, event: &Event<'_>) {
        let Some(last) = self.waiting.last().map(|(_, row)| row.next_seq) else { return };
        if event.seq >= last {
            return;
        }
        self.chain = chained(self.chain, event);
        let chain = self.chain;
        let here = self.waiting.iter().filter(|(_, row)| row.next_seq == event.seq.next());
        for (file, row) in here {
            if row.chain == chain {
                self.bound.push((Arc::clone(file), *row));
            } else {
                let message = "a checkpoint is bound to other events than the session has";
                self.findings.push(finding(file, row, None, message));
            }
        }
    }

    /// What is wrong with them, once all events below `end` were shown.
    pub(in crate::store) fn finish(&mut self, session: &Session, end: Seq) -> Vec<Finding> {
        for (file, row) in self.waiting.iter().filter(|(_, row)| row.next_seq > end) {
            self.findings.push(finding(file, row, None, "a checkpoint is ahead of its session"));
        }
        let mut findings = std::mem::take(&mut self.findings);
        findings.iter_mut().for_each(|finding| finding.session = Some(session.id().to_owned()));
        findings
    }

    /// The seqs at which there is a checkpoint.
    pub(in crate::store) fn seqs(&self) -> Vec<Seq> {
        self.waiting.iter().map(|(_, row)| row.next_seq).collect()
    }

    /// Compares the checkpoints at this seq with what the events fold to.
    pub(in crate::store) fn compare(
        &self,
        session: &Session,
        seq: Seq,
        folded: &State,
        findings: &mut Vec<Finding>,
    ) {
        for (file, row) in self.bound.iter().filter(|(_, row)| row.next_seq == seq) {
            let source = Source::File(Arc::clone(file), *row);
            let candidate = Candidate { key: row.key, next_seq: row.next_seq, chain: row.chain, source };
            // Whichever event it names, that is compared; so without a header any data will do.
            let header_data = |_| Ok(Some(folded.request_header().data().unwrap_or("null").to_owned()));
            let restored = candidate.restore(session.id(), &header_data);
            // One of another release is none.
            if restored.ok().flatten().is_some_and(|restored| restored != *folded) {
                let message = "a checkpoint is not what the session's events fold to";
                findings.push(finding(file, row, Some(session.id().to_owned()), message));
            }
        }
    }
}

fn finding(file: &CheckpointFile, row: &CheckpointRow, session: Option<String>, what: &str) -> Finding {
    checkpoint_finding(file.path().to_owned(), Some(row.offset), session, Some(row.next_seq), what)
}

/// A file of a newer release, or one that is gone by now, is no finding.
fn finding_of(error: &Error) -> Option<Finding> {
    let is_wrong = !matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound);
    let path = error.path().map(ToOwned::to_owned).unwrap_or_default();
    is_wrong.then(|| checkpoint_finding(path, error.offset(), None, None, error.message()))
}

fn checkpoint_finding(
    path: PathBuf,
    offset: Option<u64>,
    session: Option<String>,
    seq: Option<Seq>,
    what: &str,
) -> Finding {
    let message = format!("{what}; no event is lost: delete the file or compact the store");
    Finding { path, offset, session, seq, kind: KIND, family: Family::Damaged, message }
}
