//! Zstd JSONL: any bytes as a file, and, chosen by the first byte, any bytes as the content of sound frames, one of which
//! may be cut or damaged.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use sessionlog::format::compress::FrameEncoder;
use sessionlog::import::{JudgeOptions, ZstdFrames};
use sessionlog_fuzz::{check_admitted, chosen, judge_bytes};

/// Where content is divided into frames: no text of a log has this byte.
const DIVIDER: u8 = 0xFF;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = chosen(input) else { return };
    let file = if choice & 1 == 0 { rest.to_vec() } else { framed(choice >> 1, rest) };
    let options = JudgeOptions::default();
    let mut frames = ZstdFrames::new(Cursor::new(&file)).expect("memory can be read");
    check_admitted(&judge_bytes(&mut frames, &options), &options);
});

/// The content in frames: bit 0 has them carry checksums, bit 1 cuts the file, bit 2 changes a byte, at a place that the
/// first two bytes of the content say.
fn framed(choice: u8, content: &[u8]) -> Vec<u8> {
    let (place, content) = content.split_at(content.len().min(2));
    let mut encoder = FrameEncoder::new(1, choice & 1 == 1).expect("memory for an encoder");
    let mut file = Vec::new();
    for text in content.split(|&byte| byte == DIVIDER) {
        let mut frame = Vec::new();
        encoder.encode(text, &mut frame).expect("memory for a frame");
        file.extend_from_slice(&frame);
    }
    let place = place.iter().fold(0, |place, &byte| place << 8 | usize::from(byte)) % file.len();
    if choice & 2 != 0 {
        file.truncate(place);
    } else if choice & 4 != 0 {
        file[place] ^= 1 + (choice >> 3);
    }
    file
}
