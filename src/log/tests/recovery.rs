//! What is kept, lost and reported after cuts, flips, crashes and failing operations.

use std::sync::Arc;

use crate::format::{FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::log::Durability::{Buffered, Synced};
use crate::log::testing::*;
use crate::log::{DamageCause, Log};

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
fn opening_what_was_closed_writes_and_syncs_nothing_until_the_first_batch() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    append(&log, 0..2, Synced);
    log.close().unwrap();
    let (changes, names) = (storage.changes_made(), storage.names());
    for _ in 0..2 {
        let (log, seen) = open(&storage);
        assert_eq!(seen.tags(), [0, 1]);
        log.close().unwrap();
    }
    assert_eq!((storage.changes_made(), storage.names()), (changes, names));
    let (log, _) = open(&storage);
    append(&log, 2..3, Synced);
    assert_eq!(read(&storage.after_power_cut()).tags(), [0, 1, 2]);
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
            let expected: Vec<u64> =
                (0..3000).filter(|&tag| segments[usize::try_from(tag).unwrap()] != gone).collect();
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
    let mut next = numbers(1);
    let room = (good.len() - SEGMENT_HEADER_BYTES) as u64;
    for _ in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..40 {
            let at = SEGMENT_HEADER_BYTES + usize::try_from(next(room)).unwrap();
            bytes[at] = next(256).to_le_bytes()[0];
        }
        storage.put(&name(1), bytes);
        let (_log, seen) = open(&storage);
        assert!(seen.frames.iter().all(|(at, ..)| at.segment.get() > 1 || at.offset < end));
    }
}

#[test]
fn an_emptied_newest_segment_is_damage_that_a_writer_passes() {
    let (storage, _) = closed();
    storage.put(&name(2), Vec::new());
    for _ in 0..2 {
        let (log, seen) = open(&storage);
        assert_eq!((seen.tags(), seen.damages.len()), ((0..9).collect(), 1));
        log.close().unwrap();
    }
    assert_eq!(storage.names(), [name(1), name(2), name(3)]);
    assert_eq!(read(&storage).tags(), (0..9).collect::<Vec<_>>());
}

#[test]
fn a_power_cut_that_tears_between_any_sectors_loses_nothing_synced_and_is_no_damage() {
    for seed in 0..60 {
        let mut next = numbers(seed);
        let mut storage = TestStorage::new();
        let (mut offered, mut synced) = (0, 0);
        for _ in 0..6 {
            let (log, seen) = open(&storage);
            let kept = seen.frames.len() as u64;
            assert!((synced..=offered).contains(&kept), "seed {seed}: {kept} of {synced}");
            assert_eq!((seen.tags(), seen.damages), ((0..kept).collect(), vec![]), "seed {seed}");
            // What recovery reported is durable.
            (offered, synced) = (kept, kept);
            for _ in 0..next(12) {
                let size = 1 + next(120);
                let durability = if next(2) == 0 { Synced } else { Buffered };
                append(&log, offered..offered + size, durability);
                offered += size;
                if durability == Synced {
                    synced = offered;
                }
                if next(4) == 0 {
                    log.maintain().unwrap();
                }
                // A rotation and upkeep sync as well; how far is not counted here.
            }
            storage = storage.after_torn_power_cut(|| next(3) > 0);
        }
    }
}
