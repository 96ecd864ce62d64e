//! The commit queue, rotation, upkeep and failure.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use parking_lot::Mutex;

use crate::ErrorKind;
use crate::format::{FRAME_HEADER_BYTES, FrameKind, SEGMENT_HEADER_BYTES};
use crate::limits;
use crate::log::Durability::{Buffered, Synced};
use crate::log::testing::*;
use crate::log::{Batch, Completion, FrameDraft, Log, LogOptions, LogReader};

#[test]
fn nothing_is_created_unless_asked() {
    let storage = TestStorage::new();
    let error = open_error(&storage, LogOptions { create: None, ..options() });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(storage.names().is_empty());
    let error = LogReader::open(dyn_storage(&storage), &mut Seen::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn an_empty_store_is_small_and_stays_one_file() {
    let storage = TestStorage::new();
    open(&storage).0.close().unwrap();
    let (log, seen) = open(&storage);
    log.close().unwrap();
    assert_eq!(seen, Seen::default());
    assert_eq!(storage.names(), [name(1)]);
    assert_eq!(storage.bytes(&name(1)).len(), SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES);
}

#[test]
fn a_second_writer_is_told_who_has_the_lock() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let error = open_error(&storage, options());
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.to_string().contains("process 77"), "{error}");
    drop(log);
    open(&storage);
}

#[test]
fn what_waits_together_is_committed_together() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let waiting: Vec<_> = (0..10).map(|tag| log.enqueue(batch(tag..tag + 1), Synced)).collect();
    assert_eq!(log.metrics().queue_batches, 10);
    assert!(!waiting[0].is_done());
    let end = waiting[3].wait().unwrap().end;
    assert!(waiting.iter().all(Completion::is_done));
    assert!(log.synced_through() > end);
    let metrics = log.metrics();
    assert_eq!((metrics.groups, metrics.batches, metrics.group_batches_max, metrics.syncs), (1, 10, 10, 1));
    assert_eq!(metrics.queue_batches, 0);
}

#[test]
fn buffered_batches_are_synced_by_flush_alone() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let end = append(&log, 0..2, Buffered).end;
    assert!(log.synced_through() < end);
    assert!(read(&storage.after_power_cut()).frames.is_empty());
    log.flush().unwrap();
    assert_eq!(log.synced_through(), end);
    assert_eq!(read(&storage.after_power_cut()).tags(), [0, 1]);
}

#[test]
fn threads_share_groups_and_lose_nothing() {
    for background in [false, true] {
        let storage = TestStorage::new();
        let log =
            Log::open(dyn_storage(&storage), LogOptions { background, ..options() }, &mut Seen::default())
                .unwrap();
        thread::scope(|scope| {
            for first in (0..16_u64).map(|thread| thread * 100) {
                let log = &log;
                scope.spawn(move || {
                    for tag in first..first + 50 {
                        let completion =
                            log.enqueue(batch(tag..tag + 1), if tag % 3 == 0 { Buffered } else { Synced });
                        let committed = completion.wait().unwrap();
                        assert_eq!(log.read(committed.at).unwrap().header.tag, tag);
                        assert!(tag % 3 == 0 || log.synced_through() >= committed.end);
                    }
                });
            }
        });
        log.close().unwrap();
        let mut tags = read(&storage.after_power_cut()).tags();
        for first in (0..16).map(|thread| thread * 100) {
            let of_thread: Vec<_> = tags.iter().copied().filter(|tag| tag / 100 == first / 100).collect();
            assert!(of_thread.is_sorted());
        }
        tags.sort_unstable();
        assert_eq!(tags, (0..16).flat_map(|thread| thread * 100..thread * 100 + 50).collect::<Vec<_>>());
    }
}

#[test]
fn a_completion_can_be_awaited_with_and_without_a_background_thread() {
    for background in [false, true] {
        let storage = TestStorage::new();
        let log =
            Log::open(dyn_storage(&storage), LogOptions { background, ..options() }, &mut Seen::default())
                .unwrap();
        for tag in 0..20 {
            let committed = block_on(log.enqueue(batch(tag..tag + 1), Synced)).unwrap();
            assert!(log.synced_through() >= committed.end);
        }
    }
}

#[test]
fn a_dropped_completion_is_still_committed() {
    for background in [false, true] {
        let storage = TestStorage::new();
        let log =
            Log::open(dyn_storage(&storage), LogOptions { background, ..options() }, &mut Seen::default())
                .unwrap();
        drop(log.enqueue(batch(0..1), Buffered));
        drop(log);
        assert_eq!(read(&storage.after_power_cut()).tags(), [0]);
    }
}

#[test]
fn the_queue_is_bounded_and_its_callers_drain_it() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let large = vec![7; 30 << 20];
    let waiting: Vec<_> = (0..4)
        .map(|tag| {
            let mut batch = Batch::new();
            batch.push(FrameDraft { kind: FrameKind::EVENTS, subject: 9, tag, count: 1 }, &large).unwrap();
            let completion = log.enqueue(batch, Buffered);
            assert!(log.metrics().queue_bytes <= limits::QUEUE_BYTES_MAX);
            completion
        })
        .collect();
    for completion in waiting {
        assert_eq!(log.read(completion.wait().unwrap().at).unwrap().payload, large);
    }
}

#[test]
fn a_segment_is_ended_before_the_next_begins_and_a_large_batch_gets_its_own() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let small = append(&log, 0..1, Synced);
    let large = append(&log, 1..2000, Synced);
    let next = append(&log, 2000..2001, Synced);
    let segments = [small, large, next].map(|committed| committed.at.segment.get());
    assert_eq!(segments, [1, 2, 3]);
    assert!(large.end.offset > limits::SEGMENT_BYTES_MIN);
    assert_eq!(large.at.offset, (SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES) as u64);
    for tag in 2001..4000 {
        append(&log, tag..tag + 1, Buffered);
    }
    let names = storage.names();
    assert!(names.len() > 3);
    assert!(
        names
            .iter()
            .all(|file| *file == name(2) || storage.bytes(file).len() as u64 <= limits::SEGMENT_BYTES_MIN)
    );
    log.close().unwrap();
    let seen = read(&storage.after_power_cut());
    assert_eq!((seen.tags(), seen.damages.len()), ((0..4000).collect(), 0));
}

#[test]
fn upkeep_keeps_commits_from_growing_the_file_and_close_cuts_it() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    log.maintain().unwrap();
    assert_eq!(storage.bytes(&name(1)).len(), SEGMENT_HEADER_BYTES, "nothing is prepared for an empty log");
    append(&log, 0..1, Synced);
    log.maintain().unwrap();
    let zeroed = storage.bytes(&name(1)).len();
    assert_eq!(zeroed as u64, limits::SEGMENT_BYTES_MIN);
    append(&log, 1..700, Synced);
    assert_eq!(storage.bytes(&name(1)).len(), zeroed);
    log.maintain().unwrap();
    assert!(storage.names().contains(&"spare.tmp".to_owned()));
    append(&log, 700..1400, Synced);
    assert_eq!(storage.names(), [name(1), name(2)]);
    assert_eq!(storage.bytes(&name(2)).len() as u64, limits::SEGMENT_BYTES_MIN);
    log.close().unwrap();
    let end = log.synced_through();
    assert_eq!(storage.bytes(&name(2)).len() as u64, end.offset + FRAME_HEADER_BYTES as u64);
    assert_eq!(read(&storage.after_power_cut()).tags(), (0..1400).collect::<Vec<_>>());
}

#[test]
fn upkeep_syncs_a_large_backlog_and_a_failure_there_closes_the_log() {
    let large = |tag| {
        let mut batch = Batch::new();
        batch
            .push(FrameDraft { kind: FrameKind::EVENTS, subject: 9, tag, count: 1 }, &vec![1; 9 << 20])
            .unwrap();
        batch
    };
    let storage = TestStorage::new();
    let segment_bytes_max = limits::SEGMENT_BYTES_DEFAULT;
    let options = LogOptions { segment_bytes_max, ..options() };
    let log = Log::open(dyn_storage(&storage), options, &mut Seen::default()).unwrap();
    let end = log.enqueue(large(0), Buffered).wait().unwrap().end;
    assert!(log.synced_through() < end);
    log.maintain().unwrap();
    assert_eq!(log.synced_through(), end);
    let end = log.enqueue(large(1), Buffered).wait().unwrap().end;
    let waiting = log.enqueue(batch(2..3), Buffered);
    storage.fail_after(0);
    assert_eq!(log.maintain().unwrap_err().kind(), ErrorKind::Io);
    assert!(log.synced_through() < end);
    assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(log.enqueue(batch(3..4), Buffered).wait().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn space_that_cannot_be_prepared_is_no_error() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    append(&log, 0..700, Synced);
    storage.fail_after(0);
    log.maintain().unwrap();
    storage.fail_after(1 << 40);
    append(&log, 700..1400, Synced);
    assert_eq!(read(&storage.after_power_cut()).tags(), (0..1400).collect::<Vec<_>>());
}

/// Whoever is told that a segment has ended seals it, and has to know where each batch in it stands.
#[test]
fn a_group_is_answered_before_anybody_is_told_of_the_segments_that_it_ended() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let waiting: Vec<_> = (0..3).map(|tag| log.enqueue(large_batch(tag), Buffered)).collect();
    let waiting = Arc::new(Mutex::new(waiting));
    let told = Arc::clone(&waiting);
    let (tell, done) = mpsc::channel();
    log.on_segment_end(Box::new(move || {
        tell.send(told.lock().iter().all(Completion::is_done)).unwrap();
    }));
    log.flush().unwrap();
    assert!(done.recv().unwrap());
    assert_eq!(log.metrics().groups, 1);
    waiting.lock().clear();
}

fn large_batch(tag: u64) -> Batch {
    let mut batch = Batch::new();
    let draft = FrameDraft { kind: FrameKind::EVENTS, subject: 9, tag, count: 1 };
    batch.push(draft, &vec![1; 40 << 10]).unwrap();
    batch
}

#[test]
fn a_failed_sync_fails_the_group_and_closes_the_log() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    append(&log, 0..1, Synced);
    let waiting = [log.enqueue(batch(1..2), Buffered), log.enqueue(batch(2..3), Synced)];
    storage.fail_after(1);
    for completion in &waiting {
        let error = completion.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let message = error.to_string();
        assert!(message.contains("free some space") && message.ends_with(": injected"), "{message}");
    }
    storage.fail_after(1 << 40);
    let changes = storage.changes_made();
    assert_eq!(log.enqueue(batch(3..4), Buffered).wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(log.flush().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(log.close().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(storage.changes_made(), changes, "nothing is retried");
    assert_eq!(read(&storage.after_power_cut()).tags(), [0]);
    assert_eq!(open(&storage).1.tags(), [0, 1, 2]);
}

#[test]
fn a_panic_while_committing_closes_the_log_and_leaves_nobody_waiting() {
    for background in [false, true] {
        let storage = TestStorage::new();
        let options = LogOptions { background, ..options() };
        let log = Log::open(dyn_storage(&storage), options, &mut Seen::default()).unwrap();
        append(&log, 0..1, Synced);
        storage.panic_after(0);
        let waiting: Vec<_> = (1..4).map(|tag| log.enqueue(batch(tag..tag + 1), Synced)).collect();
        let outcomes: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = waiting
                .iter()
                .map(|completion| {
                    scope.spawn(
                        move || if background { block_on(completion.clone()) } else { completion.wait() },
                    )
                })
                .collect();
            threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let closed = outcomes
            .iter()
            .flatten()
            .filter(|outcome| outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed));
        assert_eq!(closed.count(), if background { 3 } else { 2 }, "the others hear of it");
        assert_eq!(log.flush().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(log.close().unwrap_err().kind(), ErrorKind::Closed);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn many_may_wait_for_one_completion() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    for tag in 0..50 {
        let completion = log.enqueue(batch(tag..tag + 1), Synced);
        let answers: Vec<_> = thread::scope(|scope| {
            let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| completion.wait().unwrap())).collect();
            waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|committed| *committed == answers[0]));
    }
}

#[test]
fn waiting_awaiting_and_dropping_mix_without_anyone_being_forgotten() {
    for background in [false, true] {
        let storage = TestStorage::new();
        let options = LogOptions { background, ..options() };
        let log = Log::open(dyn_storage(&storage), options, &mut Seen::default()).unwrap();
        thread::scope(|scope| {
            for first in (0..8_u64).map(|thread| thread * 1000) {
                let log = &log;
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for tag in first..first + 200 {
                        let completion =
                            log.enqueue(batch(tag..tag + 1), if tag % 2 == 0 { Synced } else { Buffered });
                        match (tag * 2_654_435_761) >> 3 & 7 {
                            0..=2 => drop(completion.wait().unwrap()),
                            3..=5 => drop(block_on(completion).unwrap()),
                            6 => drop(completion),
                            _ => kept.push(completion),
                        }
                    }
                    assert!(kept.into_iter().all(|completion| completion.wait().is_ok()));
                });
            }
        });
        log.close().unwrap();
        let mut tags = read(&storage.after_power_cut()).tags();
        tags.sort_unstable();
        assert_eq!(tags, (0..8).flat_map(|thread| thread * 1000..thread * 1000 + 200).collect::<Vec<_>>());
    }
}
