//! What the engine tells a `tracing` subscriber of its host; without the feature `tracing`, nothing, at no cost.
//!
//! A subscriber is called amid the work, under locks of the log, and must not use the store.
//!
//! Owns level, message and fields of every such event, all of the target `sessionlog`. Tells of what the log and its upkeep do,
//! never of the content of a session, and nothing that a caller is not told otherwise, but for failures that cost time or space only.

#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nobody is told"))]

use crate::Error;

/// A store was opened.
pub(crate) fn opened(sessions: usize, frames: u64, damaged_places: usize) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "sessionlog", sessions, frames, damaged_places, "store opened");
}

/// Batches were written together.
pub(crate) fn group_written(batches: u64) {
    #[cfg(feature = "tracing")]
    tracing::trace!(target: "sessionlog", batches, "group written");
}

/// Everything that was written is durable.
pub(crate) fn synced(nanos: u64) {
    #[cfg(feature = "tracing")]
    tracing::trace!(target: "sessionlog", nanos, "log synced");
}

/// A segment was begun.
pub(crate) fn segment_begun() {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "sessionlog", "segment begun");
}

/// A write failed: the log takes nothing more.
pub(crate) fn log_failed(error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "sessionlog", %error, "log closed by a failure");
}

/// Segments became a sealed file, or such files another one.
pub(crate) fn sealed(file: &str, sessions: usize) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "sessionlog", file, sessions, "segments sealed");
}

/// A checkpoint file was written.
pub(crate) fn checkpointed(number: u64, sessions: usize) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "sessionlog", number, sessions, "checkpoints written");
}

/// Checkpoints could not be written: the next resume takes longer.
pub(crate) fn checkpoints_failed(error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "sessionlog", %error, "checkpoints not written");
}

/// The upkeep that a store runs by itself failed: space comes back later.
pub(crate) fn upkeep_failed(error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "sessionlog", %error, "upkeep failed");
}
