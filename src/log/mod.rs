//! The segmented append-only log of opaque frames.
//!
//! Owns the files, the commit queue, recovery, and reading by position. Knows nothing of events: a frame is
//! a kind, three numbers and a payload. It never reports a batch in part, never writes after a failure or
//! behind a cut, and never calls a torn tail damage or damage a torn tail. Why these rules hold is in
//! [`docs`].

mod batch;
mod checkpoints;
mod commit;
mod completion;
mod cursor;
mod group;
mod metrics;
mod patch;
mod reader;
mod reserve;
mod scan;
mod seal;
mod sealed;
mod segments;
mod snapshot;
mod writer;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::Mutex;

pub use batch::{Batch, Durability, FrameDraft, FrameSlot, PatchBase};
pub(crate) use checkpoints::{CheckpointFile, CheckpointFiles, CheckpointWriter};
pub use completion::{Committed, Completion};
pub(crate) use group::off_the_wakers;
pub use metrics::LogMetrics;
pub use reader::{FrameReader, LogReader, Refreshed};
pub use scan::{Damage, DamageCause, Visitor};
pub use seal::{Keep, SealHost, SealScope};
pub use sealed::{SealedFile, Want};
pub use segments::Frame;
pub(crate) use snapshot::{LogFile, files, snapshot};

use crate::format::{StoreId, segment_file_name};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::storage::{Storage, StorageLock};
use crate::{Error, ErrorKind, Result, limits};
use commit::Committer;
use cursor::{Cursor, Walked, no_store, rewritten};
use metrics::Counters;
use reserve::Reserve;
use segments::{Listing, Segments, temporary_name};
use writer::{Writer, WriterParts};

#[doc = include_str!("../docs/durability.md")]
pub mod docs {}

/// How a log is opened for writing.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// Size at which a segment is closed, in bytes; between
    /// [`SEGMENT_BYTES_MIN`](limits::SEGMENT_BYTES_MIN) and [`SEGMENT_BYTES_MAX`](limits::SEGMENT_BYTES_MAX).
    pub segment_bytes_max: u64,
    /// Whether a thread commits for those who do not block, and does the upkeep. Without it futures commit
    /// when they are polled, and upkeep is the caller's ([`Log::maintain`]).
    pub background: bool,
    /// The id of the store to create if there is none; `None`: there must be one.
    pub create: Option<StoreId>,
    /// Monotonic time in nanoseconds, for metrics only.
    pub clock: fn() -> u64,
}

impl Default for LogOptions {
    /// The default segment size, a background thread, no creation, the system's clock.
    fn default() -> Self {
        Self {
            segment_bytes_max: limits::SEGMENT_BYTES_DEFAULT,
            background: true,
            create: None,
            clock: monotonic_nanos,
        }
    }
}

/// A log opened for writing; the only one at a time. Dropping it closes it.
pub struct Log {
    committer: Arc<Committer>,
    segments: Arc<Segments>,
    store_id: StoreId,
    epoch: WriterEpoch,
    reserve: Reserve,
    background: Mutex<Option<JoinHandle<()>>>,
    /// Raw segments with damage, which stay as they are; held while sealing.
    unsealable: Mutex<BTreeSet<SegmentId>>,
    lock: Mutex<Option<Box<dyn StorageLock>>>,
}

impl Log {
    /// Opens the log, recovers what a crash left, and shows the visitor all of it.
    ///
    /// # Errors
    /// [`Locked`](ErrorKind::Locked) if another writer has it; [`NotFound`](ErrorKind::NotFound) if there
    /// is none and none is to be created; [`Corrupt`](ErrorKind::Corrupt) if a segment file is missing or
    /// belongs elsewhere; [`Unsupported`](ErrorKind::Unsupported) for files of a newer release;
    /// [`Invalid`](ErrorKind::Invalid) options; [`Io`](ErrorKind::Io), and those of the visitor. Damage
    /// inside segments is no error: it is shown to the visitor.
    pub fn open(storage: Arc<dyn Storage>, options: LogOptions, visitor: &mut dyn Visitor) -> Result<Self> {
        if !(limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX).contains(&options.segment_bytes_max) {
            return Err(Error::new(ErrorKind::Invalid, "open log: segment size beyond its limits"));
        }
        let segments = Arc::new(Segments::new(storage));
        if options.create.is_none() && segments.list()?.is_empty() {
            return Err(no_store(&segments));
        }
        let lock = take_lock(&segments)?;
        let listing = segments.open_all_sealed()?;
        for name in &listing.foreign {
            visitor.foreign_file(name);
        }
        remove_temporary(&segments, &listing)?;
        let reserve = Reserve::new(Arc::clone(&segments), listing.has_reserve);
        let counters = Arc::new(Counters::default());
        let mut parts = WriterParts {
            segments: Arc::clone(&segments),
            counters: Arc::clone(&counters),
            store_id: StoreId::default(),
            epoch: WriterEpoch::new(1),
            segment_bytes_max: options.segment_bytes_max,
            clock: options.clock,
        };
        let writer = match options.create {
            Some(store_id) if listing.is_empty() => {
                parts.store_id = store_id;
                let mut writer = Writer::new(parts.clone(), None);
                writer.begin_recovered(|_| Ok(()))?;
                writer
            }
            _ => recover(&mut parts, &reserve, visitor)?,
        };
        remove_superseded(&segments, &listing)?;
        reserve.renew();
        let committer = Arc::new(Committer::new(writer, counters, options.background));
        let log = Self {
            committer,
            segments,
            store_id: parts.store_id,
            epoch: parts.epoch,
            reserve,
            background: Mutex::default(),
            unsealable: Mutex::default(),
            lock: Mutex::new(Some(lock)),
        };
        if options.background {
            log.start_background()?;
        }
        Ok(log)
    }

    fn start_background(&self) -> Result<()> {
        let committer = Arc::clone(&self.committer);
        let thread = thread::Builder::new()
            .name("sessionlog".to_owned())
            .spawn(move || committer.run_background())
            .map_err(|source| Error::io("open log: start its background thread", source))?;
        *self.background.lock() = Some(thread);
        Ok(())
    }

    /// Queues a batch. Blocks only while the queue is full. A failure is the completion's result.
    pub fn enqueue(&self, batch: Batch, durability: Durability) -> Completion {
        self.committer.enqueue(batch, durability)
    }

    /// Commits and syncs all that was queued before.
    ///
    /// # Errors
    /// As [`Completion::wait`].
    pub fn flush(&self) -> Result<()> {
        self.enqueue(Batch::new(), Durability::Synced).wait().map(|_| ())
    }

    /// Reads the committed frame at `at`.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt), with file and offset, if there is no sound frame.
    pub fn read(&self, at: Position) -> Result<Frame> {
        self.segments.read(at)
    }

    /// Reads frames without the log.
    #[must_use]
    pub fn frames(&self) -> FrameReader {
        FrameReader::new(&self.segments)
    }

    /// Runs the upkeep that is due, on this thread: zeroes space ahead of the next commits, syncs a large
    /// backlog of buffered batches, and prepares the next segment's file. A log without it works, but
    /// commits more slowly.
    ///
    /// # Errors
    /// [`Io`](ErrorKind::Io) if a sync failed; the log is then closed. Space that cannot be prepared is no
    /// error.
    pub fn maintain(&self) -> Result<()> {
        self.committer.maintain(&|| ())?;
        self.reserve.renew();
        Ok(())
    }

    /// Frees the space that is kept for work that frees more: to be called right before it. [`maintain`](Self::maintain),
    /// [`close`](Self::close) and the next opening take it again, if there is room.
    pub fn release_reserve(&self) {
        self.reserve.release();
    }

    /// Commits what is queued, syncs, ends the segment, and gives the lock back. Everybody else's later
    /// calls get [`Closed`](ErrorKind::Closed); a second close waits for the first.
    ///
    /// # Errors
    /// [`Io`](ErrorKind::Io) if a write failed now, [`Closed`](ErrorKind::Closed) if one failed before.
    pub fn close(&self) -> Result<()> {
        let result = self.committer.close();
        self.committer.stop_background();
        if let Some(thread) = self.background.lock().take() {
            // Its panic, if any, was reported by the panic hook.
            let _ = thread.join();
        }
        // Nobody seals any more once the lock is given back.
        let _sealing_is_over = self.unsealable.lock();
        let mut lock = self.lock.lock();
        if lock.is_some() && result.is_ok() {
            self.reserve.renew();
        }
        lock.take();
        result
    }

    /// The position below which everything is durable.
    #[must_use]
    pub fn synced_through(&self) -> Position {
        self.committer.synced_through()
    }

    /// Counters since the opening.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        let (unsealed_segments, unsealed_bytes) = self.segments.unsealed();
        LogMetrics { unsealed_segments, unsealed_bytes, ..self.committer.metrics() }
    }

    /// Has `hook` called from now on whenever a segment has ended; once only. It runs on
    /// the thread that commits, so it must be short, and must not use the log.
    pub fn on_segment_end(&self, hook: Box<dyn Fn() + Send + Sync>) {
        self.committer.on_segment_end(hook);
    }

    /// Whether nothing was written since the newest segment was begun.
    #[must_use]
    pub fn is_newest_empty(&self) -> bool {
        self.committer.is_newest_empty()
    }

    /// The store that the log belongs to.
    #[must_use]
    pub const fn store_id(&self) -> StoreId {
        self.store_id
    }

    /// This opening's number.
    #[must_use]
    pub const fn epoch(&self) -> WriterEpoch {
        self.epoch
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Whoever wants to know calls `close`.
        let _ = self.close();
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

fn take_lock(segments: &Segments) -> Result<Box<dyn StorageLock>> {
    let attempt = segments.storage().try_lock();
    attempt.map_err(|source| segments.io_error("lock store", "LOCK", source))?.map_err(|holder| {
        let who = holder.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
        Error::new(ErrorKind::Locked, format!("open store for writing: {who} has it"))
            .with_path(segments.path("LOCK"))
    })
}

/// Deletes what unfinished steps left. In a directory without a store that is the first segment at most.
fn remove_temporary(segments: &Segments, listing: &Listing) -> Result<()> {
    let first = temporary_name(&segment_file_name(SegmentId::new(1)));
    for name in listing.temporary.iter().filter(|name| !listing.is_empty() || **name == first) {
        segments.storage().remove(name).map_err(|source| segments.io_error("open store", name, source))?;
    }
    Ok(())
}

/// Deletes what the sealed files stand for, all of which were opened.
fn remove_superseded(segments: &Segments, listing: &Listing) -> Result<()> {
    if listing.superseded.is_empty() {
        return Ok(());
    }
    // The names of the sealed files may not have been made durable by whoever gave them.
    segments.storage().sync_directory().map_err(|source| segments.io_error("open store", "", source))?;
    for name in &listing.superseded {
        // What cannot be deleted now is so at the next opening.
        let _ = segments.storage().remove(name);
    }
    Ok(())
}

/// Shows the visitor what is on disk, and brings the log into a state in which it can be continued.
// Format: section 7, opening for writing.
fn recover(parts: &mut WriterParts, reserve: &Reserve, visitor: &mut dyn Visitor) -> Result<Writer> {
    let mut cursor = Cursor::open(Arc::clone(&parts.segments), visitor)?;
    walk_to_newest(&mut cursor, &parts.segments, visitor)?;
    parts.store_id = cursor.store_id()?;
    parts.epoch = cursor.epoch_max().next();
    cursor.features().check_write()?;
    let survey = cursor.survey()?;
    cursor.visit_to(survey.synced, visitor)?;
    let end = cursor.position();
    parts.segments.set_end(end.segment, end.offset);
    let mut writer = Writer::new(parts.clone(), Some(end));
    if !survey.cleanly_ended {
        // A full disk may be what ended the last writer.
        reserve.release();
        writer.begin_recovered(|copier| cursor.copy(survey.synced, survey.valid_end, copier))?;
        // Its successor, just written, is shown as any other segment.
        walk_to_newest(&mut cursor, &parts.segments, visitor)?;
        let moved = cursor.survey()?;
        cursor.visit_to(moved.valid_end, visitor)?;
    }
    Ok(writer)
}

/// Under the lock, a cursor that has not shown a tail cannot have gone too far.
fn walk_to_newest(cursor: &mut Cursor, segments: &Segments, visitor: &mut dyn Visitor) -> Result<()> {
    match cursor.walk_to_newest(visitor)? {
        Walked::ToNewest => Ok(()),
        Walked::TooFar => Err(rewritten(segments)),
    }
}

fn monotonic_nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}
