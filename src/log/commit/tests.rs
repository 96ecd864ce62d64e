//! What happens between the steps of others, one step at a time.

use std::sync::Arc;

use super::Committer;
use crate::ErrorKind;
use crate::format::FrameKind;
use crate::ids::WriterEpoch;
use crate::limits;
use crate::log::Durability::{Buffered, Synced};
use crate::log::segments::Segments;
use crate::log::testing::*;
use crate::log::writer::{Writer, WriterParts};
use crate::log::{Batch, FrameDraft};
use crate::storage::Storage;
use crate::storage::fault::{Fault, FaultPlan, FaultStorage};

fn committer(storage: Arc<dyn Storage>) -> Arc<Committer> {
    let parts = WriterParts {
        segments: Arc::new(Segments::new(storage)),
        counters: Arc::default(),
        store_id: STORE_ID,
        epoch: WriterEpoch::new(1),
        segment_bytes_max: limits::SEGMENT_BYTES_DEFAULT,
        clock: || 0,
    };
    let mut writer = Writer::new(parts, None);
    writer.begin_recovered(|_| Ok(())).unwrap();
    Arc::new(Committer::new(writer, Arc::default(), false))
}

#[test]
fn a_commit_learns_of_the_failure_that_upkeep_was_told_of() {
    let storage = FaultStorage::new(1);
    let committer = committer(Arc::new(storage.clone()));
    let mut large = Batch::new();
    let draft = FrameDraft { kind: FrameKind::EVENTS, subject: 9, tag: 0, count: 1 };
    large.push(draft, &vec![1; 9 << 20]).unwrap();
    committer.enqueue(large, Buffered).wait().unwrap();
    let backlog = committer.writer.lock().backlog_due().unwrap();
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
    backlog.sync().unwrap_err();
    // Upkeep has not yet come to closing the log.
    let synced = committer.enqueue(batch(1..2), Synced).wait();
    assert_eq!(synced.unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_sync_of_upkeep_proves_nothing_once_a_commit_failed() {
    let storage = FaultStorage::new(1);
    let committer = committer(Arc::new(storage.clone()));
    committer.enqueue(batch(0..1), Buffered).wait().unwrap();
    assert!(committer.writer.lock().zero_ahead_step());
    let backlog = committer.writer.lock().backlog_due().unwrap();
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations + 1, Fault::Io));
    committer.enqueue(batch(1..2), Synced).wait().unwrap_err();
    let synced = committer.synced_through();
    let mut writer = committer.writer.lock();
    writer.note_synced(&backlog);
    assert_eq!(writer.synced_through(), synced);
}

#[test]
fn a_second_close_waits_for_what_the_first_one_commits() {
    let storage = TestStorage::new();
    let committer = committer(dyn_storage(&storage));
    let waiting = committer.enqueue(batch(0..1), Synced);
    // The first close has come so far.
    let first = committer.closing().unwrap();
    committer.close().unwrap();
    assert!(first.is_done());
    waiting.wait().unwrap();
    committer.close().unwrap();
    assert_eq!(read(&storage.after_power_cut()).tags(), [0]);
}
