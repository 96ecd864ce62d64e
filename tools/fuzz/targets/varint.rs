//! The encodings built of varints and fixed fields: event records and the lists of their sources, control payloads, patches,
//! headers of frames and files. What is read is what the encoder writes, and has no other form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sessionlog::format::compress::TextDecoder;
use sessionlog::format::sealed::{SealedHeader, SealedName};
use sessionlog::format::{
    CreatePayload, FRAME_HEADER_BYTES, FrameHeader, FramePlace, Patch, Record, RecordReader, RecordWriter,
    SegmentHeader, SummaryPayload, decode_vocabulary, encode_vocabulary, parse_segment_name,
    segment_file_name,
};
use sessionlog::{SegmentId, Seq, WriterEpoch};
use sessionlog_fuzz::chosen;

/// Sources of one event that are listed one by one: a few bytes name up to `SOURCES_PER_EVENT_MAX`.
const SOURCES_LISTED_MAX: u64 = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = chosen(input) else { return };
    match choice & 15 {
        0..8 => records(u32::from(choice >> 4) + 1, rest),
        8 => create(rest),
        9 => summary(rest),
        10 => vocabulary(rest),
        11 => patch(rest),
        12 => frame_header(rest),
        13 => names(rest),
        _ => file_headers(rest),
    }
});

/// Reads records from a seq that the first four bytes say, and writes those that are sound again.
fn records(count: u32, input: &[u8]) {
    let Some((first, payload)) = input.split_first_chunk::<4>() else { return };
    let first = Seq::new(u32::from_le_bytes(*first).into());
    let mut records = Vec::new();
    let mut is_listed = true;
    for item in RecordReader::new(payload, first, count) {
        let Ok((seq, record)) = item else { return };
        assert_eq!(seq.get(), first.get() + records.len() as u64);
        let sources = record.sources.map(|sources| {
            let runs = sources.runs().map(|(start, end)| end.get() - start.get() + 1);
            assert_eq!(runs.sum::<u64>(), sources.len());
            is_listed &= sources.len() <= SOURCES_LISTED_MAX;
            let listed = usize::try_from(sources.len().min(SOURCES_LISTED_MAX)).expect("a small number");
            sources.iter().take(listed).collect::<Vec<_>>()
        });
        records.push((record, sources));
    }
    assert_eq!(records.len(), count as usize, "a reader ends with an error or the last record");
    if !is_listed {
        return;
    }
    let (mut out, mut writer) = (Vec::new(), RecordWriter::new());
    for (record, sources) in &records {
        let Record { event_type, time_ms, ignorable, surface_op, data, .. } = *record;
        let sources = sources.as_deref();
        writer.push(&mut out, &Record { event_type, time_ms, ignorable, surface_op, sources, data });
    }
    assert_eq!(out, payload);
}

fn create(payload: &[u8]) {
    let Ok(create) = CreatePayload::decode(payload) else { return };
    let mut out = Vec::new();
    create.encode(&mut out);
    assert_eq!(out, payload);
}

fn summary(payload: &[u8]) {
    let Ok(summary) = SummaryPayload::decode(payload) else { return };
    let mut out = Vec::new();
    summary.encode(&mut out);
    assert_eq!(out, payload);
}

fn vocabulary(payload: &[u8]) {
    let Ok(names) = decode_vocabulary(payload) else { return };
    let mut out = Vec::new();
    encode_vocabulary(&mut out, names);
    assert_eq!(out, payload);
}

/// A length, a base (its length first), and the patch.
fn patch(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk::<4>() else { return };
    let Some((base_bytes, rest)) = rest.split_first_chunk::<2>() else { return };
    let base_bytes = usize::from(u16::from_le_bytes(*base_bytes)).min(rest.len());
    let (base, payload) = rest.split_at(base_bytes);
    let Some(patch) = Patch::read(payload) else { return };
    let length = u32::from_le_bytes(*length);
    let (mut decoder, mut text) = (TextDecoder::new().expect("memory for a decoder"), Vec::new());
    if patch.apply(base, length, &mut decoder, &mut text).is_ok() {
        assert_eq!(u32::try_from(text.len()), Ok(length));
    }
}

/// A header whose CRC is made right: what is read says what is written.
fn frame_header(input: &[u8]) {
    let Some((bytes, _)) = input.split_first_chunk::<FRAME_HEADER_BYTES>() else { return };
    let place = FramePlace { segment: SegmentId::new(1), epoch: WriterEpoch::new(1), offset: 4096 };
    let mut bytes = *bytes;
    sessionlog::format::seal_frames(&mut bytes, place);
    let Some(header) = FrameHeader::decode(&bytes, place) else { return };
    assert_eq!(header.encode(place), bytes);
    assert!(header.frame_bytes() >= FRAME_HEADER_BYTES as u64);
    let _ = header.check_supported();
    let _ = header.matches(&input[FRAME_HEADER_BYTES..]);
}

fn names(input: &[u8]) {
    let Ok(name) = std::str::from_utf8(input) else { return };
    if let Some(segment) = parse_segment_name(name) {
        assert_eq!(segment_file_name(segment), name);
    }
    if let Some(sealed) = SealedName::parse(name) {
        assert_eq!(sealed.file_name(), name);
    }
}

/// The 128 bytes of a header, whose CRC is made right.
fn file_headers(input: &[u8]) {
    let mut bytes = [0; 4096];
    let length = input.len().min(124);
    bytes[..length].copy_from_slice(&input[..length]);
    let crc = sessionlog::format::crc32(&bytes[..124]);
    bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    if let Ok(Some(header)) = SegmentHeader::decode(&bytes) {
        assert_eq!(header.encode()[..128], bytes[..128]);
    }
    if let Ok(Some(header)) = SealedHeader::decode(&bytes) {
        assert_eq!(header.encode()[..128], bytes[..128]);
    }
}
