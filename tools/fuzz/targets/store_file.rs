//! A store whose only file is the input, opened beside a writer and then by one: listed, verified and read.
//!
//! The first byte chooses. A raw segment gets a sound header and right checksums, so that its frames are reached; any bytes
//! under one of the names of a store get none.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sessionlog::format::{FRAME_HEADER_BYTES, FramePlace, SegmentHeader, crc32, padding_bytes, seal_frames};
use sessionlog::storage::{MemoryStorage, Storage};
use sessionlog::{SegmentId, Seq, Store, StoreOptions, VerifyOptions, WriterEpoch};
use sessionlog_fuzz::chosen;

const SEGMENT: &str = "0000000000000001.log";
const NAMES: [&str; 3] = [SEGMENT, "0000000000000001-0000000000000001.1.sealed", "0000000000000001.state"];

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = chosen(input) else { return };
    let storage = MemoryStorage::new();
    match NAMES.get(usize::from(choice)) {
        Some(name) => write(&storage, name, rest),
        None => write(&storage, SEGMENT, &segment(rest)),
    }
    let options = StoreOptions::new().background(false).clock(Arc::new(|| 1_000)).store_id([7; 16]);
    if let Ok(store) = options.clone().open_storage_read_only(Arc::new(storage.clone())) {
        read(&store);
    }
    if let Ok(store) = options.open_storage(Arc::new(storage)) {
        read(&store);
    }
});

/// Answers may be errors; they must be answers.
fn read(store: &Store) {
    let _ = store.verify(VerifyOptions { deep: true, strict: true }, &mut |_, _| ());
    let _ = store.stats();
    for info in store.list().unwrap_or_default() {
        let Ok(session) = store.session(&info.header.id) else { continue };
        let _ = session.for_each(Seq::new(0)..Seq::new(u64::MAX), &mut |_| Ok(()));
        let _ = session.surface();
        let _ = session.request();
        let _ = session.headers();
    }
}

fn write(storage: &MemoryStorage, name: &str, bytes: &[u8]) {
    let file = storage.create_new(name).expect("a new file");
    file.write_all_at(bytes, 0).expect("memory can be written");
}

/// A segment with these frames, whose checksums are made right.
fn segment(frames: &[u8]) -> Vec<u8> {
    let (segment, epoch) = (SegmentId::new(1), WriterEpoch::new(1));
    let header = SegmentHeader {
        store_id: [7; 16],
        segment,
        epoch,
        features: sessionlog::format::Features::default(),
        previous_end: None,
        published: 4096,
    };
    let mut file = header.encode();
    let place = FramePlace { segment, epoch, offset: file.len() as u64 };
    let mut frames = frames.to_vec();
    let mut at = 0;
    while let Some((head, rest)) =
        frames.get_mut(at..).and_then(|rest| rest.split_first_chunk_mut::<FRAME_HEADER_BYTES>())
    {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let Some(payload) = rest.get(..length) else { break };
        head[32..36].copy_from_slice(&crc32(payload).to_le_bytes());
        at += FRAME_HEADER_BYTES + length + padding_bytes(length);
    }
    seal_frames(&mut frames, place);
    file.extend_from_slice(&frames);
    file
}
