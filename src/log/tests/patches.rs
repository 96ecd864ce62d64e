//! Frames that are written as what changed since another one: what is stored, moved, lost and refused.

use std::sync::Arc;

use crate::ErrorKind;
use crate::format::{
    CODEC_PATCH, FRAME_HEADER_BYTES, FrameHeader, FrameKind, FramePlace, Patch, SEGMENT_HEADER_BYTES,
    SegmentHeader, crc32, encode_patch,
};
use crate::ids::{Position, SegmentId, WriterEpoch};
use crate::limits;
use crate::log::Durability::{Buffered, Synced};
use crate::log::testing::*;
use crate::log::{
    Batch, Committed, Damage, DamageCause, FrameDraft, FrameSlot, Log, LogReader, PatchBase, Visitor,
};

const SESSION: u64 = 9;

/// The version with this number: 3 KB that do not compress, and some bytes of its own.
fn version(tag: u64) -> Vec<u8> {
    let mut random = numbers(1);
    let mut text: Vec<u8> = (0..3_000).map(|_| u8::try_from(random(256)).unwrap()).collect();
    text[1_500..1_508].copy_from_slice(&tag.to_le_bytes());
    text
}

fn draft(tag: u64) -> FrameDraft {
    FrameDraft { kind: FrameKind::EVENTS, subject: SESSION, tag, count: 1 }
}

fn push_version(batch: &mut Batch, tag: u64, base: Option<&PatchBase>) -> FrameSlot {
    let version = version(tag);
    batch.begin_frame(version.len()).extend(version);
    batch.end_version(draft(tag), base).unwrap()
}

/// A batch of a small frame, a version, and another small frame.
fn sandwich(tag: u64, base: Option<&PatchBase>) -> (Batch, [FrameSlot; 3]) {
    let mut batch = Batch::new();
    let before = batch.push(draft(tag), &payload(tag)).unwrap();
    let middle = push_version(&mut batch, tag + 1, base);
    let after = batch.push(draft(tag + 2), &payload(tag + 2)).unwrap();
    (batch, [before, middle, after])
}

/// Appends the versions 0, 1 and 2, each in a batch of its own, the last two as patches of the first.
fn three_versions(log: &Log) -> [Position; 3] {
    let mut base = None;
    [0, 1, 2].map(|tag| {
        let mut batch = Batch::new();
        let slot = push_version(&mut batch, tag, base.as_ref());
        let committed = log.enqueue(batch, Synced).wait().unwrap();
        let at = committed.position_of(&slot);
        assert_eq!(committed.patch_bytes(&slot) == 0, tag == 0);
        if tag == 0 {
            base = Some(base_at(log, at));
        }
        at
    })
}

fn base_at(log: &Log, at: Position) -> PatchBase {
    PatchBase { at, payload: log.read(at).unwrap().payload }
}

/// What a scan shows, without a look at the payloads.
fn scan(storage: &Arc<TestStorage>) -> Seen {
    let mut seen = Seen::default();
    LogReader::open(dyn_storage(storage), &mut seen).unwrap();
    seen
}

fn lost(seen: &Seen) -> Vec<(DamageCause, u64)> {
    seen.damages.iter().map(|damage| (damage.cause, damage.frame.unwrap().tag)).collect()
}

fn is_patch(seen: &Seen) -> Vec<bool> {
    seen.frames.iter().map(|(_, header, _)| header.is_patch()).collect()
}

#[test]
fn a_version_is_stored_as_what_changed_and_read_as_it_was() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let at = three_versions(&log);
    assert_eq!(log.metrics().patches, 2);
    for (tag, at) in (0..).zip(at) {
        let frame = log.read(at).unwrap();
        assert_eq!(frame.payload, version(tag));
        assert!(
            tag == 0 || frame.header.is_patch() && frame.header.payload_bytes <= 64,
            "{:?}",
            frame.header
        );
    }
    let seen = scan(&storage);
    assert_eq!(
        (seen.tags(), is_patch(&seen), seen.damages.len()),
        (vec![0, 1, 2], vec![false, true, true], 0)
    );
    assert!(seen.frames.iter().all(|(_, header, bytes)| *bytes == version(header.tag)));
}

#[test]
fn frames_around_a_patch_are_where_the_batch_says() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let [first, ..] = three_versions(&log);
    let base = base_at(&log, first);
    let check = |committed: Committed, slots: &[FrameSlot], tag: u64| {
        for (tag, slot) in (tag..).zip(slots) {
            let frame = log.read(committed.position_of(slot)).unwrap();
            assert_eq!(frame.header.tag, tag);
            assert!(frame.payload == payload(tag) || frame.payload == version(tag));
        }
    };
    let (batch, slots) = sandwich(3, Some(&base));
    check(log.enqueue(batch, Synced).wait().unwrap(), &slots, 3);
    // Without a base the first version in a batch is the others'.
    let mut batch = Batch::new();
    let mut slots = vec![batch.push(draft(6), &payload(6)).unwrap()];
    slots.extend((7..10).map(|tag| push_version(&mut batch, tag, None)));
    slots.push(batch.push(draft(10), &payload(10)).unwrap());
    let committed = log.enqueue(batch, Synced).wait().unwrap();
    check(committed, &slots, 6);
    let plain: Vec<_> = slots.iter().map(|slot| committed.patch_bytes(slot) == 0).collect();
    assert_eq!(plain, [true, true, false, false, true]);
    let seen = scan(&storage);
    assert_eq!((seen.tags(), seen.damages.len()), ((0..11).collect(), 0));
}

#[test]
fn in_another_segment_than_its_base_a_version_is_plain() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let [first, ..] = three_versions(&log);
    let base = base_at(&log, first);
    let (batch, slots) = sandwich(3, Some(&base));
    log.committer.rotate().unwrap();
    let committed = log.enqueue(batch, Synced).wait().unwrap();
    assert_eq!(committed.at.segment, SegmentId::new(2));
    assert!(slots.iter().all(|slot| committed.patch_bytes(slot) == 0));
    assert_eq!(log.read(committed.position_of(&slots[1])).unwrap().payload, version(4));
    let seen = scan(&storage);
    assert_eq!((seen.tags(), seen.damages.len()), ((0..6).collect(), 0));
}

#[test]
fn no_segment_grows_beyond_its_limit_whichever_form_is_written() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let mut base: Option<PatchBase> = None;
    let mut count = 0;
    while log.metrics().segments < 4 {
        let mut batch = Batch::new();
        let slot = push_version(&mut batch, count, base.as_ref());
        batch.push(draft(count + 1), &vec![7; usize::try_from(count * 97 % 4_000).unwrap()]).unwrap();
        let committed = log.enqueue(batch, Synced).wait().unwrap();
        if committed.patch_bytes(&slot) == 0 {
            base = Some(base_at(&log, committed.position_of(&slot)));
        }
        count += 2;
    }
    for segment in 1..4 {
        let bytes = storage.bytes(&name(segment)).len() as u64;
        assert!(bytes <= limits::SEGMENT_BYTES_MIN, "segment {segment} has {bytes} bytes");
    }
    let seen = scan(&storage);
    assert_eq!((seen.frames.len() as u64, seen.damages.len()), (count, 0));
    assert_eq!(is_patch(&seen).iter().filter(|is| !**is).count() as u64, count / 2 + 4);
}

#[test]
fn recovery_moves_versions_as_they_were_so_that_nothing_refers_to_the_old_file() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let [first, ..] = three_versions(&log);
    for tag in [3, 6] {
        let (batch, _) = sandwich(tag, Some(&base_at(&log, first)));
        log.enqueue(batch, Buffered).wait().unwrap();
    }
    let storage = storage.after_kill();
    let mut seen = Seen::default();
    let log = Log::open(dyn_storage(&storage), options(), &mut seen).unwrap();
    let moved: Vec<_> = seen.frames.iter().filter(|(at, ..)| at.segment == SegmentId::new(2)).collect();
    assert_eq!(moved.iter().map(|(_, header, _)| header.tag).collect::<Vec<_>>(), (3..9).collect::<Vec<_>>());
    assert!(moved.iter().all(|(_, header, _)| !header.is_patch()));
    assert_eq!((seen.tags(), seen.damages.len()), ((0..9).collect(), 0));
    let bytes = storage.bytes(&name(2));
    let header = SegmentHeader::decode(&bytes).unwrap().unwrap();
    assert_eq!(header.published, bytes.len() as u64);
    assert_eq!(log.synced_through().offset, header.published);
    let after = scan(&storage.after_power_cut());
    assert_eq!((after.tags(), after.damages.len()), ((0..9).collect(), 0));
    assert!(
        after
            .frames
            .iter()
            .all(|(_, header, bytes)| { *bytes == version(header.tag) || *bytes == payload(header.tag) })
    );
}

#[test]
fn a_damaged_base_costs_itself_and_its_patches_and_no_tail_is_taken_for_torn() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let [first, ..] = three_versions(&log);
    append(&log, 3..4, Synced);
    for (tag, durability) in [(4, Synced), (7, Buffered), (10, Buffered)] {
        let (batch, _) = sandwich(tag, Some(&base_at(&log, first)));
        log.enqueue(batch, durability).wait().unwrap();
    }
    let storage = storage.after_kill();
    let base_bytes = u64::try_from(FRAME_HEADER_BYTES).unwrap() + 3_000;
    let expected: Vec<u64> = [3, 4, 6, 7, 9, 10, 12].to_vec();
    for flip in (0..base_bytes).step_by(37) {
        let storage = storage.after_kill();
        let mut bytes = storage.bytes(&name(1));
        bytes[usize::try_from(first.offset + flip).unwrap()] ^= 4;
        storage.put(&name(1), bytes);
        let check = |seen: &Seen, when: &str| {
            assert_eq!(seen.tags(), expected, "{when}, flip at {flip}");
            let mut found = seen.damages.iter();
            let base = found.next().unwrap();
            assert_eq!(base.at.offset, first.offset, "{when}, flip at {flip}");
            let patches: Vec<_> = found.map(|damage| (damage.cause, damage.frame.unwrap().tag)).collect();
            let patched = [1, 2, 5, 8, 11].map(|tag| (DamageCause::Patch, tag));
            assert_eq!(patches, patched, "{when}, flip at {flip}");
        };
        check(&scan(&storage), "beside a writer");
        let mut seen = Seen::default();
        let log = Log::open(dyn_storage(&storage), options(), &mut seen).unwrap();
        check(&seen, "recovered");
        append(&log, 13..14, Synced);
        log.close().unwrap();
        let mut after = scan(&storage.after_power_cut());
        assert_eq!(after.frames.pop().unwrap().1.tag, 13);
        check(&after, "reopened");
    }
}

#[test]
fn every_prefix_of_a_segment_with_patches_recovers_to_whole_batches_without_damage() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let [first, ..] = three_versions(&log);
    for tag in [3, 6] {
        let (batch, _) = sandwich(tag, Some(&base_at(&log, first)));
        log.enqueue(batch, Buffered).wait().unwrap();
    }
    let bytes = storage.after_kill().bytes(&name(1));
    let mut whole = 0;
    for cut in (SEGMENT_HEADER_BYTES..=bytes.len()).step_by(8) {
        let storage = TestStorage::new();
        storage.put(&name(1), bytes[..cut].to_vec());
        let seen = scan(&storage);
        // A patch is never kept without its base, which stands before it.
        assert_eq!(seen.damages, [], "cut at {cut}");
        assert!(seen.frames.len() >= whole, "cut at {cut}");
        whole = seen.frames.len();
        let mut recovered = Seen::default();
        Log::open(dyn_storage(&storage), options(), &mut recovered).unwrap();
        assert_eq!((recovered.tags(), recovered.damages.len()), (seen.tags(), 0), "cut at {cut}");
    }
    assert_eq!(whole, 9);
}

/// What a forged patch says.
struct Forged {
    base_at: u64,
    subject: u64,
    decoded_bytes: u32,
    payload: Option<Vec<u8>>,
}

#[test]
fn patches_of_what_is_no_base_are_refused_and_cost_nothing_else() {
    let storage = TestStorage::new();
    let (log, _) = open(&storage);
    let [base, patch, _] = three_versions(&log);
    let small = append(&log, 3..4, Synced).at;
    let storage = storage.after_kill();
    let bytes = storage.bytes(&name(1));
    let end = bytes.len() as u64;
    let sound = || Forged { base_at: base.offset, subject: SESSION, decoded_bytes: 3_000, payload: None };
    let refused = [
        Forged { base_at: patch.offset, ..sound() },
        Forged { base_at: small.offset, ..sound() },
        Forged { base_at: small.offset - 40, ..sound() },
        Forged { base_at: base.offset + 8, ..sound() },
        Forged { base_at: 0, ..sound() },
        Forged { base_at: end, ..sound() },
        Forged { base_at: end + 8, ..sound() },
        Forged { base_at: u64::MAX, ..sound() },
        Forged { subject: SESSION + 1, ..sound() },
        Forged { decoded_bytes: 2_999, ..sound() },
        Forged { decoded_bytes: u32::MAX, ..sound() },
        Forged { payload: Some(vec![0; 3]), ..sound() },
        Forged { payload: Some(Patch::lost().to_vec()), ..sound() },
    ];
    let all = refused.into_iter().map(|forged| (forged, false)).chain([(sound(), true)]);
    for (number, (forged, is_sound)) in all.enumerate() {
        let at = Position { segment: SegmentId::new(1), offset: end };
        let storage = storage.after_kill();
        storage.put(&name(1), [&bytes[..], &forge(&forged, end)].concat());
        let seen = scan(&storage);
        if is_sound {
            assert_eq!((seen.tags(), seen.damages.len()), (vec![0, 1, 2, 3, 4], 0));
            continue;
        }
        assert_eq!(seen.tags(), [0, 1, 2, 3], "{number}");
        assert_eq!(lost(&seen), [(DamageCause::Patch, 4)], "{number}");
        let mut visitor = Ignore;
        let error = LogReader::open(dyn_storage(&storage), &mut visitor).unwrap().read(at).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(end)), "{number}: {error}");
    }
}

/// The frame as a batch of its own.
fn forge(forged: &Forged, offset: u64) -> Vec<u8> {
    let payload = forged.payload.clone().unwrap_or_else(|| {
        let mut payload = Vec::new();
        encode_patch(forged.base_at, &version(0), &version(4), &mut payload).unwrap();
        payload
    });
    let header = FrameHeader {
        begins: true,
        commits: true,
        codec: CODEC_PATCH,
        payload_bytes: u32::try_from(payload.len()).unwrap(),
        count: 1,
        decoded_bytes: forged.decoded_bytes,
        payload_crc: crc32(&payload),
        ..FrameHeader::empty(FrameKind::EVENTS, forged.subject, 4)
    };
    let place = FramePlace { segment: SegmentId::new(1), epoch: WriterEpoch::new(1), offset };
    let mut bytes = [&header.encode(place)[..], &payload].concat();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Looks at nothing.
struct Ignore;

impl Visitor for Ignore {
    fn frame(&mut self, _: Position, _: &FrameHeader, _: &[u8]) -> crate::Result<()> {
        Ok(())
    }

    fn damage(&mut self, _: &Damage) {}
}
