//! Reading by position, and readers beside a writer.

use crate::ErrorKind;
use crate::format::{FRAME_HEADER_BYTES, FrameKind, FramePlace, crc32, seal_frames};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::log::Durability::{Buffered, Synced};
use crate::log::testing::*;
use crate::log::{Batch, Frame, FrameDraft, Log, LogOptions, LogReader, Refreshed};
use crate::storage::{Access, Storage};

#[test]
fn frames_are_read_back_by_position_and_seen_again_in_order() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let at = append(&log, 0..3, Synced).at;
    let slot = {
        let mut offsets = Batch::new();
        let draft = FrameDraft { kind: FrameKind::EVENTS, subject: 9, tag: 0, count: 1 };
        offsets.push(draft, &payload(0)).unwrap();
        offsets.push(draft, &payload(1)).unwrap()
    };
    let frame = log.read(Position { offset: at.offset + slot.plain, ..at }).unwrap();
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
    let file = storage.open(&name(1), Access::Write).unwrap();
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
fn missing_foreign_and_temporary_files_are_told_apart() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    for tag in 0..3000 {
        append(&log, tag..tag + 1, Buffered);
    }
    log.close().unwrap();
    let storage = storage.after_kill();
    let theirs = ["9.log.tmp", "draft.tmp", "notes.txt"];
    theirs.iter().for_each(|name| storage.put(name, b"mine".to_vec()));
    let ours = ["0000000000000009.log.tmp", "0000000000000001-0000000000000002.1.sealed.tmp", "spare.tmp"];
    ours.iter().for_each(|name| storage.put(name, b"half".to_vec()));
    let (log, seen) = open(&storage);
    assert_eq!(seen.foreign, theirs);
    assert!(ours.iter().all(|name| !storage.names().contains(&(*name).to_owned())));
    drop(log);
    assert_eq!(read(&storage).foreign, theirs);
    assert!(theirs.iter().all(|name| storage.bytes(name) == b"mine"));
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
fn a_directory_without_a_store_is_left_as_it_is() {
    let storage = TestStorage::new();
    let theirs = ["0000000000000009.log.tmp", "draft.tmp", "spare.tmp"];
    theirs.iter().for_each(|name| storage.put(name, b"mine".to_vec()));
    let error = open_error(&storage, LogOptions { create: None, ..options() });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(storage.names(), theirs);
    storage.put("0000000000000001.log.tmp", b"of a creation that was cut short".to_vec());
    open(&storage).0.close().unwrap();
    assert!(theirs.iter().all(|name| storage.bytes(name) == b"mine"));
}

#[test]
fn a_listing_that_mixes_two_moments_is_done_again() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    for tag in 0..3000 {
        append(&log, tag..tag + 1, Buffered);
    }
    for stale in [name(1), name(2), "0000000000000001-0000000000000003.1.sealed".to_owned()] {
        storage.list_stale(&stale);
        assert_eq!(read(&storage).tags(), (0..3000).collect::<Vec<_>>());
        log.flush().unwrap();
    }
}

#[test]
fn a_reader_in_a_thread_sees_every_batch_once_in_order_and_no_damage() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let mut seen = Seen::default();
    let mut reader = LogReader::open(dyn_storage(&storage), &mut seen).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for first in (0..6000).step_by(3) {
                append(&log, first..first + 3, if first % 4 == 0 { Synced } else { Buffered });
                log.maintain().unwrap();
            }
        });
        while seen.frames.len() < 6000 {
            assert_eq!(reader.refresh(&mut seen).unwrap(), Refreshed::Current);
        }
    });
    seen.check();
    assert_eq!((seen.tags(), seen.damages.len()), ((0..6000).collect(), 0));
}

#[test]
fn frames_of_a_newer_release_are_refused_unless_they_may_be_skipped() {
    for (kind, refused) in [(7, true), (127, true), (200, false)] {
        let (storage, ends) = killed();
        let mut bytes = storage.bytes(&name(1));
        // The last batch has one frame, directly before its end.
        let at = usize::try_from(ends[4].offset).unwrap()
            - FRAME_HEADER_BYTES
            - payload(8).len().next_multiple_of(8);
        bytes[at] = kind;
        let place = FramePlace {
            segment: SegmentId::new(1),
            epoch: WriterEpoch::new(1),
            offset: u64::try_from(at).unwrap(),
        };
        seal_frames(&mut bytes[at..], place);
        storage.put(&name(1), bytes);
        let read = LogReader::open(dyn_storage(&storage), &mut Seen::default());
        let mut seen = Seen::default();
        let opened = Log::open(dyn_storage(&storage), options(), &mut seen);
        if refused {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Unsupported);
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unsupported);
        } else {
            read.unwrap();
            opened.unwrap();
            seen.check();
            assert_eq!(seen.frames[8].1.kind.get(), 200);
        }
    }
}

#[test]
fn the_bytes_of_a_small_log_are_pinned() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    append(&log, 1..3, Synced);
    append(&log, 3..4, Synced);
    log.close().unwrap();
    let bytes = storage.bytes(&name(1));
    // Computed by another program from the format document.
    assert_eq!((bytes.len(), crc32(&bytes)), (4384, 0x4A48_26A9));
}
