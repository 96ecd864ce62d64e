//! What a log keeps, loses and reports; over a storage that can be cut, flipped and made to fail.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::testing::{STORE_ID, Seen, TestStorage, append, batch, open, options, payload, read};
use super::*;
use crate::format::{FRAME_HEADER_BYTES, FrameKind, SEGMENT_HEADER_BYTES, segment_file_name};
use crate::ids::SegmentId;
use Durability::{Buffered, Synced};

const HEADER_BYTES: u64 = SEGMENT_HEADER_BYTES as u64;

fn name(segment: u64) -> String {
    segment_file_name(SegmentId::new(segment))
}

fn dyn_storage(storage: &Arc<TestStorage>) -> Arc<dyn Storage> {
    Arc::clone(storage) as Arc<dyn Storage>
}

fn open_error(storage: &Arc<TestStorage>, options: LogOptions) -> Error {
    Log::open(dyn_storage(storage), options, &mut Seen::default()).unwrap_err()
}

/// A killed log: batches 0..3, 3..4, 4..6 synced one by one, then 6..8 and 8..9 only buffered.
fn killed() -> (Arc<TestStorage>, Vec<Position>) {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let mut ends = Vec::new();
    for (tags, durability) in
        [(0..3, Synced), (3..4, Synced), (4..6, Synced), (6..8, Buffered), (8..9, Buffered)]
    {
        ends.push(append(&log, tags, durability).end);
    }
    (storage.after_kill(), ends)
}

/// A cleanly closed log of one segment with frames 0..9, and where its end frame stands.
fn closed() -> (Arc<TestStorage>, u64) {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    for tags in [0..3, 3..4, 4..6, 6..9] {
        append(&log, tags, Synced);
    }
    log.close().unwrap();
    (storage.after_kill(), log.synced_through().offset)
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
fn nothing_is_created_unless_asked() {
    let storage = TestStorage::new();
    let error = open_error(&storage, LogOptions { create: None, ..options() });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(storage.names().is_empty());
    let error = LogReader::open(dyn_storage(&storage), &mut Seen::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
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
fn frames_are_read_back_by_position_and_seen_again_in_order() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let at = append(&log, 0..3, Synced).at;
    let offset = {
        let mut offsets = Batch::new();
        let draft = FrameDraft { kind: FrameKind::EVENTS, subject: 9, tag: 0, count: 1 };
        offsets.push(draft, &payload(0)).unwrap();
        offsets.push(draft, &payload(1)).unwrap()
    };
    let frame = log.read(Position { offset: at.offset + offset, ..at }).unwrap();
    assert_eq!((frame.header.tag, frame.payload), (1, payload(1)));
    let error = log.read(Position { offset: at.offset + 8, ..at }).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(at.offset + 8)));
    log.close().unwrap();
    let (log, seen) = open(&storage);
    assert_eq!((seen.tags(), seen.damages.len()), (vec![0, 1, 2], 0));
    for (at, header, bytes) in seen.frames {
        assert_eq!(log.read(at).unwrap(), Frame { header, payload: bytes });
    }
    assert_eq!(log.store_id(), STORE_ID);
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
    assert_eq!(large.at.offset, HEADER_BYTES + FRAME_HEADER_BYTES as u64);
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
fn every_prefix_of_a_segment_recovers_to_whole_batches() {
    let (storage, ends) = killed();
    let bytes = storage.bytes(&name(1));
    let whole = [3, 4, 6, 8, 9];
    for cut in SEGMENT_HEADER_BYTES..=bytes.len() {
        let storage = TestStorage::new();
        storage.put(&name(1), bytes[..cut].to_vec());
        let kept = ends.iter().rposition(|end| end.offset <= cut as u64).map_or(0, |index| whole[index]);
        assert_eq!(read(&storage).tags(), (0..kept).collect::<Vec<_>>(), "cut at {cut}");
        let (log, seen) = open(&storage);
        assert_eq!(seen.tags(), (0..kept).collect::<Vec<_>>(), "cut at {cut}");
        assert!(seen.damages.is_empty(), "cut at {cut}");
        append(&log, kept..kept + 1, Synced);
        let seen = read(&storage.after_power_cut());
        assert_eq!(seen.tags(), (0..=kept).collect::<Vec<_>>(), "cut at {cut}");
        assert!(seen.damages.is_empty(), "cut at {cut}");
    }
}

#[test]
fn every_flipped_byte_that_was_durable_is_damage_to_its_batch_and_no_other() {
    let (storage, end) = closed();
    let bytes = storage.bytes(&name(1));
    let all = read(&storage);
    let batches = [0..3, 3..4, 4..6, 6..9];
    for at in 0..usize::try_from(end).unwrap() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let storage = TestStorage::new();
        storage.put(&name(1), flipped);
        let hit = all.frames.iter().rfind(|(place, header, _)| {
            (place.offset..place.offset + header.frame_bytes()).contains(&(at as u64))
        });
        let lost = hit.and_then(|(_, header, _)| batches.iter().find(|batch| batch.contains(&header.tag)));
        let expected: Vec<u64> = (0..9).filter(|tag| !lost.is_some_and(|lost| lost.contains(tag))).collect();
        for seen in [read(&storage), open(&storage).1] {
            assert_eq!(seen.tags(), expected, "byte {at}");
            assert!(!seen.damages.is_empty(), "byte {at}");
            let covered = seen
                .damages
                .iter()
                .any(|damage| (damage.at.offset..damage.at.offset + damage.bytes).contains(&(at as u64)));
            assert!(covered, "byte {at}: {:?}", seen.damages);
        }
    }
}

#[test]
fn damage_names_the_lost_frames_whose_headers_are_sound() {
    let (storage, _) = closed();
    let second = read(&storage).frames[1].0.offset;
    let mut bytes = storage.bytes(&name(1));
    bytes[usize::try_from(second).unwrap() + FRAME_HEADER_BYTES] ^= 1;
    storage.put(&name(1), bytes);
    let mut causes: Vec<_> =
        read(&storage).damages.iter().map(|damage| (damage.frame.unwrap().tag, damage.cause)).collect();
    causes.sort_by_key(|(tag, _)| *tag);
    let broken = DamageCause::BrokenBatch;
    assert_eq!(causes, [(0, broken), (1, DamageCause::Payload), (2, broken)]);
}

#[test]
fn in_a_killed_log_a_bad_frame_is_damage_below_the_synced_end_and_a_torn_tail_above() {
    let (storage, ends) = killed();
    let bytes = storage.bytes(&name(1));
    let synced = ends[2].offset;
    for at in SEGMENT_HEADER_BYTES..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x40;
        let storage = TestStorage::new();
        storage.put(&name(1), flipped);
        let (_log, seen) = open(&storage);
        if (at as u64) < synced {
            assert!(!seen.damages.is_empty(), "byte {at}");
            assert!(seen.tags().ends_with(&[6, 7, 8]), "byte {at}");
        } else if at as u64 >= synced + FRAME_HEADER_BYTES as u64 {
            let kept = if (at as u64) < ends[3].offset { 6 } else { 8 };
            assert!(seen.damages.is_empty(), "byte {at}");
            assert_eq!(seen.tags(), (0..kept).collect::<Vec<_>>(), "byte {at}");
        }
    }
}

#[test]
fn a_zeroed_tail_is_no_damage_and_hides_nothing() {
    let (storage, _) = killed();
    let mut bytes = storage.bytes(&name(1));
    bytes.resize(bytes.len() + (1 << 20) + 3, 0);
    storage.put(&name(1), bytes);
    let (_log, seen) = open(&storage);
    assert_eq!((seen.tags(), seen.damages.len()), ((0..9).collect(), 0));
}

#[test]
fn frames_of_another_place_segment_or_epoch_are_not_taken() {
    let (storage, ends) = killed();
    let bytes = storage.bytes(&name(1));
    let frames = &bytes[SEGMENT_HEADER_BYTES..];
    let elsewhere = [&bytes[..], frames].concat();
    let storage = TestStorage::new();
    storage.put(&name(1), elsewhere);
    assert_eq!(read(&storage).tags(), (0..9).collect::<Vec<_>>());
    // The same frames under a header of the next segment, at their own offsets.
    drop(open(&storage));
    let recovered = storage.bytes(&name(2));
    let stale = [&recovered[..SEGMENT_HEADER_BYTES], frames].concat();
    storage.put(&name(2), stale);
    let seen = read(&storage);
    assert_eq!(seen.tags(), (0..6).collect::<Vec<_>>());
    assert!(seen.frames.iter().all(|(at, ..)| *at < ends[2]));
}

#[test]
fn recovery_moves_what_was_not_synced_and_the_old_copy_counts_no_more() {
    let (storage, ends) = killed();
    let (log, seen) = open(&storage);
    assert_eq!(seen.tags(), (0..9).collect::<Vec<_>>());
    let moved: Vec<_> =
        seen.frames.iter().filter(|(at, ..)| at.segment.get() == 2).map(|(_, h, _)| h.tag).collect();
    assert_eq!(moved, [6, 7, 8]);
    assert!(log.synced_through() > seen.frames[8].0);
    assert_eq!(log.epoch(), WriterEpoch::new(2));
    // Durable before anything was reported, and independent of what the old file holds beyond its end.
    let storage = storage.after_power_cut();
    let end = usize::try_from(ends[2].offset).unwrap();
    for tail in [&b""[..], &[0xff; 100]] {
        let bytes = [&storage.bytes(&name(1))[..end], tail].concat();
        storage.put(&name(1), bytes);
        let seen = read(&storage);
        assert_eq!((seen.tags(), seen.damages.len()), ((0..9).collect(), 0));
    }
    // What recovery moved was durable: a flip there is damage, not a tail.
    let mut bytes = storage.bytes(&name(2));
    let last = bytes.len() - 1;
    bytes[last - 50] ^= 1;
    storage.put(&name(2), bytes);
    assert!(!read(&storage).damages.is_empty());
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
        assert!(error.to_string().ends_with(": injected"), "{error}");
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
fn whatever_operation_fails_acknowledged_batches_survive_whole_and_in_order() {
    let script = |storage: &Arc<TestStorage>| -> (u64, u64) {
        let (mut offered, mut acknowledged) = (0, 0);
        for round in 0..3 {
            let mut seen = Seen::default();
            let Ok(log) = Log::open(dyn_storage(storage), options(), &mut seen) else { break };
            for step in 0..4 {
                let size = if step == 2 { 700 } else { 3 };
                offered = acknowledged.max(offered) + size;
                let completion = log.enqueue(batch(offered - size..offered), Synced);
                if completion.wait().is_err() {
                    return (offered, acknowledged);
                }
                acknowledged = offered;
                if log.maintain().is_err() {
                    return (offered, acknowledged);
                }
            }
            if round == 1 && log.close().is_err() {
                break;
            }
        }
        (offered, acknowledged)
    };
    let clean = TestStorage::new();
    script(&clean);
    let operations = clean.changes_made();
    assert!(operations > 50);
    for failing in 0..operations {
        let storage = TestStorage::new();
        storage.fail_after(failing);
        let (offered, acknowledged) = script(&storage);
        for image in [storage.after_power_cut(), storage.after_kill()] {
            let mut seen = Seen::default();
            let log = Log::open(dyn_storage(&image), options(), &mut seen).unwrap();
            seen.check();
            let kept = seen.frames.len() as u64;
            assert!(
                (acknowledged..=offered).contains(&kept),
                "operation {failing}: {kept} of {acknowledged}"
            );
            assert_eq!(seen.tags(), (0..kept).collect::<Vec<_>>(), "operation {failing}");
            assert!(seen.damages.is_empty(), "operation {failing}");
            append(&log, kept..kept + 1, Synced);
        }
    }
}

#[test]
fn a_reader_follows_its_writer_through_rotation_and_close() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let mut seen = Seen::default();
    let mut reader = LogReader::open(dyn_storage(&storage), &mut seen).unwrap();
    for tag in 0..3000 {
        append(&log, tag..tag + 1, if tag % 5 == 0 { Synced } else { Buffered });
        if tag % 97 == 0 {
            log.maintain().unwrap();
        }
        if tag % 13 == 0 {
            assert_eq!(reader.refresh(&mut seen).unwrap(), Refreshed::Current);
            assert_eq!(seen.frames.len() as u64, tag + 1);
        }
    }
    log.close().unwrap();
    assert_eq!(reader.refresh(&mut seen).unwrap(), Refreshed::Current);
    let (log, _) = open(&storage);
    append(&log, 3000..3002, Buffered);
    assert_eq!(reader.refresh(&mut seen).unwrap(), Refreshed::Current);
    seen.check();
    assert_eq!((seen.tags(), seen.damages.len()), ((0..3002).collect(), 0));
    let (at, header, bytes) = seen.frames.swap_remove(2999);
    assert_eq!(reader.read(at).unwrap(), Frame { header, payload: bytes });
    assert_eq!(reader.store_id(), STORE_ID);
}

#[test]
fn a_reader_waits_at_a_half_written_batch() {
    let (storage, ends) = killed();
    let bytes = storage.bytes(&name(1));
    let cut = usize::try_from(ends[3].offset).unwrap() - 4;
    storage.put(&name(1), bytes[..cut].to_vec());
    let mut seen = Seen::default();
    let mut reader = LogReader::open(dyn_storage(&storage), &mut seen).unwrap();
    assert_eq!(reader.refresh(&mut seen).unwrap(), Refreshed::Current);
    assert_eq!((seen.tags(), seen.damages.len()), ((0..6).collect(), 0));
    let file = storage.open(&name(1), crate::storage::Access::Write).unwrap();
    file.write_all_at(&bytes[cut..], cut as u64).unwrap();
    assert_eq!(reader.refresh(&mut seen).unwrap(), Refreshed::Current);
    assert_eq!((seen.tags(), seen.damages.len()), ((0..9).collect(), 0));
}

#[test]
fn a_reader_that_saw_batches_which_recovery_moved_is_told_so() {
    let (storage, _) = killed();
    let mut seen = Seen::default();
    let mut reader = LogReader::open(dyn_storage(&storage), &mut seen).unwrap();
    drop(open(&storage));
    assert_eq!(reader.refresh(&mut seen).unwrap(), Refreshed::Superseded);
    assert_eq!(read(&storage).tags(), (0..9).collect::<Vec<_>>());
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

#[test]
fn missing_foreign_and_temporary_files_are_told_apart() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    for tag in 0..3000 {
        append(&log, tag..tag + 1, Buffered);
    }
    log.close().unwrap();
    let storage = storage.after_kill();
    storage.put("notes.txt", b"mine".to_vec());
    storage.put("0000000000000009.log.tmp", b"half".to_vec());
    let (log, seen) = open(&storage);
    assert_eq!(seen.foreign, ["notes.txt"]);
    assert!(!storage.names().contains(&"0000000000000009.log.tmp".to_owned()));
    drop(log);
    storage.remove(&name(2)).unwrap();
    let error = open_error(&storage, options());
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&name(2)), "{error}");

    let other = TestStorage::new();
    let theirs = LogOptions { create: Some([1; 16]), ..options() };
    Log::open(dyn_storage(&other), theirs, &mut Seen::default()).unwrap().close().unwrap();
    open(&other).0.enqueue(batch(0..1), Synced).wait().unwrap();
    storage.put(&name(2), other.bytes(&name(2)));
    let error = open_error(&storage, options());
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    storage.put(&name(2), storage.bytes(&name(1)));
    assert_eq!(open_error(&storage, options()).kind(), ErrorKind::Corrupt);
}

#[test]
fn a_segment_whose_header_is_gone_is_damage_and_hides_no_other() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let mut segments = Vec::new();
    for tag in 0..3000 {
        segments.push(append(&log, tag..tag + 1, Buffered).at.segment.get());
    }
    log.close().unwrap();
    let last = segments[2999];
    for gone in [1, 2, last] {
        let storage = storage.after_kill();
        let bytes = storage.bytes(&name(gone));
        storage.put(&name(gone), vec![0; bytes.len()]);
        for seen in [read(&storage), open(&storage).1] {
            let expected: Vec<u64> = (0..3000).filter(|&tag| segments[tag as usize] != gone).collect();
            assert_eq!(seen.tags(), expected);
            assert_eq!(seen.damages.len(), 1);
            assert_eq!(seen.damages[0].cause, DamageCause::SegmentHeader);
            assert_eq!(seen.damages[0].at, Position { segment: SegmentId::new(gone), offset: 0 });
        }
    }
}

#[test]
fn any_bytes_behind_a_sound_header_are_read_without_panic() {
    let (storage, end) = closed();
    let good = storage.bytes(&name(1));
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..40 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = SEGMENT_HEADER_BYTES
                + usize::try_from(state >> 33).unwrap() % (bytes.len() - SEGMENT_HEADER_BYTES);
            bytes[at] = state.to_le_bytes()[3];
        }
        storage.put(&name(1), bytes);
        let (_log, seen) = open(&storage);
        assert!(seen.frames.iter().all(|(at, ..)| at.segment.get() > 1 || at.offset < end));
    }
}
