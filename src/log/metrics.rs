//! Counters of the commit path. Cheap enough to be always on; they take no part in any decision.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::observe;

/// What a log has done since it was opened, and what waits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LogMetrics {
    /// Groups that were committed.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Largest number of batches in one group.
    pub group_batches_max: u64,
    /// Bytes written for groups, headers and padding included.
    pub bytes: u64,
    /// Frames that were written as what changed since an earlier one.
    pub patches: u64,
    /// Syncs on the commit path.
    pub syncs: u64,
    /// Time spent in them, in nanoseconds.
    pub sync_nanos_total: u64,
    /// The longest of them, in nanoseconds.
    pub sync_nanos_max: u64,
    /// Segments that were begun.
    pub segments: u64,
    /// Batches that wait in the queue now.
    pub queue_batches: u64,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Raw segments that have ended and are not sealed, those with damage included.
    pub unsealed_segments: u64,
    /// Their bytes.
    pub unsealed_bytes: u64,
    /// What the upkeep that a store runs by itself failed at, until `maintain` returns it; a log has none.
    pub upkeep_failure: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    groups: AtomicU64,
    batches: AtomicU64,
    group_batches_max: AtomicU64,
    bytes: AtomicU64,
    patches: AtomicU64,
    syncs: AtomicU64,
    sync_nanos_total: AtomicU64,
    sync_nanos_max: AtomicU64,
    segments: AtomicU64,
}

impl Counters {
    pub(super) fn group(&self, batches: u64) {
        self.groups.fetch_add(1, Relaxed);
        self.batches.fetch_add(batches, Relaxed);
        self.group_batches_max.fetch_max(batches, Relaxed);
        observe::group_written(batches);
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn patched(&self, patches: u64) {
        self.patches.fetch_add(patches, Relaxed);
    }

    pub(super) fn synced(&self, nanos: u64) {
        self.syncs.fetch_add(1, Relaxed);
        self.sync_nanos_total.fetch_add(nanos, Relaxed);
        self.sync_nanos_max.fetch_max(nanos, Relaxed);
        observe::synced(nanos);
    }

    pub(super) fn began_segment(&self) {
        self.segments.fetch_add(1, Relaxed);
        observe::segment_begun();
    }

    pub(super) fn snapshot(&self, queue_batches: u64, queue_bytes: u64) -> LogMetrics {
        LogMetrics {
            groups: self.groups.load(Relaxed),
            batches: self.batches.load(Relaxed),
            group_batches_max: self.group_batches_max.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            patches: self.patches.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            sync_nanos_total: self.sync_nanos_total.load(Relaxed),
            sync_nanos_max: self.sync_nanos_max.load(Relaxed),
            segments: self.segments.load(Relaxed),
            queue_batches,
            queue_bytes,
            ..LogMetrics::default()
        }
    }
}
