use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::format::compress::{FrameEncoder, LEVEL_DEFAULT};
use crate::import::{Lines, Record};
use crate::limits::BLOCKS_WALKED_IN_VAIN_MAX;

const HEADER: &str = "{\"type\":\"session\"}\n";
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Record { text: String, line: u64, offset: u64, ended: bool, lenient: bool },
    Fault { kind: RefusalKind, offset: Option<u64> },
    Torn { offset: u64 },
}

fn drain(source: &mut dyn RecordSource) -> Vec<Seen> {
    let mut seen = Vec::new();
    while let Some(item) = source.next_item().unwrap() {
        seen.push(match item {
            Item::Record(r) => Seen::Record {
                text: String::from_utf8_lossy(r.bytes).into_owned(),
                line: r.line,
                offset: r.offset,
                ended: r.ended,
                lenient: r.lenient,
            },
            Item::Fault(f) => Seen::Fault { kind: f.kind, offset: f.offset },
            Item::TornFrame { offset, .. } => Seen::Torn { offset },
            item => panic!("frames have no {item:?}"),
        });
    }
    seen
}

fn read(file: &[u8]) -> Vec<Seen> {
    drain(&mut ZstdFrames::new(Cursor::new(file)).unwrap())
}

/// Texts of the records, lenient ones marked.
fn records(seen: &[Seen]) -> Vec<(&str, bool)> {
    seen.iter()
        .filter_map(|s| match s {
            Seen::Record { text, lenient, .. } => Some((text.as_str(), *lenient)),
            _ => None,
        })
        .collect()
}

fn faults(seen: &[Seen]) -> Vec<(RefusalKind, Option<u64>)> {
    seen.iter()
        .filter_map(|s| match s {
            Seen::Fault { kind, offset } => Some((*kind, *offset)),
            _ => None,
        })
        .collect()
}

fn frame(text: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    FrameEncoder::new(LEVEL_DEFAULT, true).unwrap().encode(text.as_bytes(), &mut frame).unwrap();
    frame
}

/// A block by hand: its type, its size field and its payload.
fn block(last: bool, kind: u32, size: usize, payload: &[u8]) -> Vec<u8> {
    let header = u32::from(last) | kind << 1 | u32::try_from(size).unwrap() << 3;
    [&header.to_le_bytes()[..3], payload].concat()
}

/// A frame of raw blocks by hand, with a window of 128 KiB; its checksum is taken from the library's frame.
fn raw_frame(blocks: &[&str]) -> Vec<u8> {
    let mut out = [&MAGIC[..], &[0x04, 7 << 3]].concat();
    for (i, text) in blocks.iter().enumerate() {
        out.extend(block(i + 1 == blocks.len(), 0, text.len(), text.as_bytes()));
    }
    let whole = frame(&blocks.concat());
    out.extend(&whole[whole.len() - 4..]);
    out
}

#[test]
fn the_text_of_all_frames_is_one_stream() {
    let file =
        [frame(HEADER), frame("a\nb"), frame(""), raw_frame(&[""]), frame("c\n\nd"), frame("\n")].concat();
    let plain = format!("{HEADER}a\nbc\n\nd\n");
    let seen = read(&file);
    assert_eq!(records(&seen), plain.lines().map(|l| (l, false)).collect::<Vec<_>>());
    let d = Seen::Record { text: "d".into(), line: 5, offset: 25, ended: true, lenient: false };
    assert_eq!(seen.last(), Some(&d));
}

#[test]
fn an_empty_file_yields_nothing() {
    assert_eq!(read(b""), []);
}

/// Spec section 21, zstd JSONL: what each cut of a file of three frames must give, from the rules alone.
#[test]
fn every_cut_is_judged_by_the_rules() {
    // The last frame has blocks that end inside a record, at a record's end, and nowhere in between.
    let blocks = ["e1\ne", "2\n", "e3\ne4", "\n"];
    let frames = [frame(HEADER), frame("a\nb\nc\n"), raw_frame(&blocks)];
    let file = frames.concat();
    let second = frames[0].len();
    let third = second + frames[1].len();
    for cut in 1..=file.len() {
        let seen = read(&file[..cut]);
        let whole: Vec<_> = [(second, vec!["{\"type\":\"session\"}"]), (third, vec!["a", "b", "c"])]
            .into_iter()
            .filter(|(end, _)| cut >= *end)
            .flat_map(|(_, lines)| lines)
            .map(|l| (l, false))
            .collect();
        let strict: Vec<_> = records(&seen).into_iter().filter(|r| !r.1).collect();
        if cut < second {
            assert_eq!(faults(&seen), [(RefusalKind::ZstdFirstFrame, Some(0))], "cut at {cut}");
            continue;
        }
        assert_eq!(faults(&seen), [], "cut at {cut}");
        if cut == file.len() {
            assert_eq!(records(&seen).len(), 8);
            assert!(!seen.iter().any(|s| matches!(s, Seen::Torn { .. })));
            continue;
        }
        assert_eq!(strict, whole, "cut at {cut}");
        let torn: Vec<_> = seen.iter().filter(|s| matches!(s, Seen::Torn { .. })).collect();
        if cut == second || cut == third {
            assert_eq!(seen.len(), whole.len(), "cut at {cut}");
            continue;
        }
        let start = if cut < third { second } else { third };
        assert_eq!(torn, [&Seen::Torn { offset: start as u64 }], "cut at {cut}");
        assert_eq!(seen[whole.len()], *torn[0], "the mark stands before what is recovered");
        let recovered: String = seen[whole.len() + 1..]
            .iter()
            .map(|s| match s {
                Seen::Record { text, ended, lenient: true, .. } => {
                    format!("{text}{}", if *ended { "\n" } else { "" })
                }
                other => panic!("{other:?} after a cut at {cut}"),
            })
            .collect();
        let text = if cut < third { "a\nb\nc\n".to_owned() } else { blocks.concat() };
        assert!(text.starts_with(&recovered), "cut at {cut}: {recovered:?}");
        let end = if cut < third { third } else { file.len() };
        if end - cut <= 4 {
            assert_eq!(recovered, text, "only checksum bytes are missing after a cut at {cut}");
        }
        if cut >= third {
            // Header of the frame: 6 bytes; of each block: 3.
            let mut at = third + 6;
            let mut certain = 0;
            for block in blocks {
                at += 3 + block.len();
                certain += if cut >= at { block.len() } else { 0 };
            }
            assert!(recovered.len() >= certain, "cut at {cut}: whole blocks must be recovered");
        }
    }
}

#[test]
fn one_to_three_trailing_bytes_are_a_torn_frame_and_four_are_judged() {
    let good = [frame(HEADER), frame("a\n")].concat();
    for trailing in [&[0_u8][..], &[0; 2], &[0; 3], b"{}\n", &MAGIC[..3]] {
        let seen = read(&[&good, trailing].concat());
        assert_eq!(seen.last(), Some(&Seen::Torn { offset: good.len() as u64 }));
        assert_eq!(records(&seen).len(), 2);
    }
    for trailing in
        [&[0_u8; 4][..], b"{}\n{", &[0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0], &[0x22, 0xB5, 0x2F, 0xFD]]
    {
        let seen = read(&[&good, trailing].concat());
        assert_eq!(faults(&seen), [(RefusalKind::FrameMagic, Some(good.len() as u64))]);
        assert_eq!(records(&seen).len(), 2);
    }
}

#[test]
fn the_first_frame_holds_exactly_the_header_line() {
    for text in ["", "{\"type\":\"session\"}", "{}\n{}\n", "{}\n{}", "\n\n"] {
        let seen = read(&[frame(text), frame("a\n")].concat());
        assert_eq!(seen[0], Seen::Fault { kind: RefusalKind::ZstdFirstFrame, offset: Some(0) }, "{text:?}");
        // What can be read still is, for those who look for more in it.
        assert!(records(&seen).iter().any(|r| r.0.ends_with('a')), "{text:?}");
    }
    // Also when it is larger than one piece.
    let line = format!("{}\n", "x".repeat(3 * PIECE_BYTES));
    assert_eq!(faults(&read(&frame(&line))), []);
    assert_eq!(faults(&read(&frame(&line.repeat(2))))[0].0, RefusalKind::ZstdFirstFrame);
}

#[test]
fn hostile_headers_are_refused_by_kind() {
    use RefusalKind::{FrameBlock, FrameMagic, Limit};
    let empty = block(true, 0, 0, &[]);
    let with = |header: &[u8]| [&MAGIC, header, &empty].concat();
    let cases: [(&str, Vec<u8>, RefusalKind); 13] = [
        ("skippable frame", [0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0].to_vec(), FrameMagic),
        ("legacy magic", [0x27, 0xB5, 0x2F, 0xFD, 0, 0, 0, 0].to_vec(), FrameMagic),
        ("plain text", b"{\"type\":1}\n".to_vec(), FrameMagic),
        ("reserved bit", with(&[0x08, 7 << 3]), FrameBlock),
        ("unused bit", with(&[0x10, 7 << 3]), FrameBlock),
        ("dictionary id", with(&[0x01, 7 << 3, 9]), FrameBlock),
        ("wide dictionary id", with(&[0x03, 7 << 3, 0, 0, 0, 1]), FrameBlock),
        ("window", with(&[0x00, 17 << 3 | 1]), Limit),
        ("largest window", with(&[0x00, 0xFF]), Limit),
        ("single segment of 2^63 bytes", with(&[0xE0, 0, 0, 0, 0, 0, 0, 0, 0x80]), Limit),
        ("block type 3", [&MAGIC[..], &[0, 7 << 3], &block(true, 3, 0, &[])].concat(), FrameBlock),
        (
            "block beyond its maximum",
            [&MAGIC[..], &[0, 7 << 3], &block(true, 1, 1 << 20, b"x")].concat(),
            FrameBlock,
        ),
        ("content size too small", with(&[0x20, 5]), FrameBlock),
    ];
    for (name, bytes, kind) in cases {
        let start = frame(HEADER).len() as u64;
        // Structure is judged in the last frame as in any other.
        let seen = read(&[frame(HEADER), bytes.clone()].concat());
        assert_eq!(faults(&seen), [(kind, Some(start))], "{name}");
        let seen = read(&[frame(HEADER), bytes, frame("a\n")].concat());
        assert_eq!(faults(&seen)[0], (kind, Some(start)), "{name}");
    }
    // Structure is judged before the rule of the first frame.
    assert_eq!(faults(&read(&with(&[0x08, 7 << 3]))), [(FrameBlock, Some(0))]);
    // A zero dictionary id is none, in any width.
    for header in [&[0x01, 7 << 3, 0][..], &[0x02, 7 << 3, 0, 0], &[0x03, 7 << 3, 0, 0, 0, 0]] {
        assert_eq!(read(&[frame(HEADER), with(header)].concat()).len(), 1);
    }
}

#[test]
fn a_damaged_frame_yields_no_record_and_the_next_one_is_read() {
    let body = raw_frame(&["b1\nb2\n"]);
    let start = (frame(HEADER).len() + frame("a\n").len()) as u64;
    let around = |damaged: &[u8]| read(&[&frame(HEADER), &frame("a\n"), damaged, &frame("c\n")].concat());

    let mut flipped = body.clone();
    flipped[10] ^= 1;
    let seen = around(&flipped);
    assert_eq!(faults(&seen), [(RefusalKind::FrameChecksum, Some(start))]);
    assert_eq!(records(&seen), [("{\"type\":\"session\"}", false), ("a", false), ("c", false)]);

    // A compressed block whose payload is no compressed block.
    let garbage = [&MAGIC[..], &[0x00, 7 << 3], &block(true, 2, 6, &[0xFF; 6])].concat();
    let seen = around(&garbage);
    assert_eq!(faults(&seen), [(RefusalKind::FrameBlock, Some(start))]);
    assert_eq!(records(&seen).len(), 3);

    // A frame of many pieces is proved to its end before its first record leaves.
    let text: String = (0..200_000).map(|i| format!("record {i}\n")).collect();
    let mut large = frame(&text);
    let seen = around(&large);
    assert_eq!((records(&seen).len(), faults(&seen).len()), (200_003, 0));
    *large.last_mut().unwrap() ^= 1;
    let seen = around(&large);
    assert_eq!(faults(&seen), [(RefusalKind::FrameChecksum, Some(start))]);
    assert_eq!(records(&seen).len(), 3);
}

#[test]
fn no_record_may_be_unfinished_after_the_last_complete_frame() {
    let begun = [frame(HEADER), frame("a\nbeg")].concat();
    let rest = frame("un\nc\n");
    let fault = Seen::Fault { kind: RefusalKind::CorruptRecord, offset: Some(HEADER.len() as u64 + 2) };
    for tail in [&[][..], &rest[..rest.len() - 1], &[0, 0, 0]] {
        let seen = read(&[&begun, tail].concat());
        assert_eq!(seen[2], fault);
        let fragment = Seen::Record {
            text: "beg".into(),
            line: 3,
            offset: HEADER.len() as u64 + 2,
            ended: false,
            lenient: false,
        };
        assert_eq!(seen[3], fragment);
        assert_eq!(seen.iter().any(|s| matches!(s, Seen::Torn { .. })), !tail.is_empty());
    }
    assert_eq!(faults(&read(&[&begun[..], &rest].concat())), []);
    // Where the next frame is damaged, that is the fault.
    let seen = read(&[&begun[..], &[0; 4]].concat());
    assert_eq!(faults(&seen), [(RefusalKind::FrameMagic, Some(begun.len() as u64))]);
}

#[test]
fn nothing_is_recovered_from_a_torn_frame_that_does_not_decode() {
    let torn =
        [&MAGIC[..], &[0x04, 7 << 3], &block(false, 0, 2, b"b\n"), &block(false, 2, 6, &[0xFF; 6])].concat();
    let seen = read(&[frame(HEADER), torn.clone()].concat());
    assert_eq!(records(&seen), [("{\"type\":\"session\"}", false)]);
    assert_eq!(seen.last(), Some(&Seen::Torn { offset: frame(HEADER).len() as u64 }));
    // Without the bad block's end the same frame gives its first block.
    let seen = read(&[frame(HEADER), torn[..torn.len() - 1].to_vec()].concat());
    assert_eq!(seen.last().map(|s| matches!(s, Seen::Record { lenient: true, .. })), Some(true));
}

#[test]
fn a_torn_frame_of_many_pieces_is_streamed() {
    let text: String = (0..200_000).map(|i| format!("record {i}\n")).collect();
    let large = frame(&text);
    let seen = read(&[&frame(HEADER), &large[..large.len() - 2]].concat());
    assert_eq!(records(&seen).iter().filter(|r| r.1).count(), 200_000);
    assert_eq!(faults(&seen), []);
}

/// Counts the calls that reach the file.
struct Counted<'a>(Cursor<&'a [u8]>, &'a std::cell::Cell<usize>);

impl Read for Counted<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.1.set(self.1.get() + 1);
        self.0.read(buf)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.1.set(self.1.get() + 1);
        self.0.seek(to)
    }
}

#[test]
fn twenty_thousand_frames_need_few_calls_and_little_memory() {
    let mut file = frame(HEADER);
    for i in 0..20_000 {
        file.extend(frame(&format!("{{\"seq\":{i},\"text\":\"some more text in the record\"}}\n")));
    }
    let calls = std::cell::Cell::new(0);
    let mut source = ZstdFrames::new(Counted(Cursor::new(&file), &calls)).unwrap();
    let mut count = 0;
    while let Some(item) = source.next_item().unwrap() {
        assert!(matches!(item, Item::Record(Record { lenient: false, ended: true, .. })));
        count += 1;
    }
    assert_eq!(count, 20_001);
    assert!(calls.get() < 10 + file.len() / 10_000, "{} calls for {} bytes", calls.get(), file.len());
}

/// Torn frames, each before a complete one, that all go on with the same blocks up to the end of the file.
fn torn_frames_with_one_end(frames: usize, blocks: usize) -> Vec<u8> {
    let pair_bytes = 9 + frame("x\n").len();
    let mut file = frame(HEADER);
    for left in (1..=frames).rev() {
        file.extend([&MAGIC[..], &[0, 7 << 3], &block(false, 0, left * pair_bytes - 9, b"")].concat());
        file.extend(frame("x\n"));
    }
    file.extend(block(false, 0, 0, b"").repeat(blocks));
    file
}

#[test]
fn walks_in_vain_do_not_add_up() {
    let salvage = |file: &[u8]| {
        let calls = std::cell::Cell::new(0);
        let mut source = ZstdFrames::salvaging(Counted(Cursor::new(file), &calls)).unwrap();
        (drain(&mut source), calls.get())
    };
    // Each walk to the end reads the file anew, as its blocks take more than the reader's buffer.
    let blocks = usize::try_from(BLOCKS_WALKED_IN_VAIN_MAX / 4).unwrap();
    let (seen, calls) = salvage(&torn_frames_with_one_end(400, blocks));
    assert!(calls < 100, "{calls} calls");
    // What could be walked to is there.
    assert_eq!(records(&seen).iter().filter(|(text, _)| *text == "x").count(), 4);
    // Where walks are short, any number of torn frames costs nothing of the others.
    let (seen, _) = salvage(&torn_frames_with_one_end(400, 3));
    assert_eq!(records(&seen).iter().filter(|(text, _)| *text == "x").count(), 400);
    // A frame of more blocks than that, cut, takes nothing of what stands behind it along.
    let mut large = [&MAGIC[..], &[0, 7 << 3], &block(false, 0, 0, b"").repeat(5 * blocks)].concat();
    large.extend(block(false, 3, 0, b""));
    let (seen, _) = salvage(&[frame(HEADER), large, frame("x\n")].concat());
    assert_eq!(records(&seen).last(), Some(&("x", false)));
}

#[test]
fn an_expanding_frame_is_bounded_by_its_records() {
    // 64 MiB of text in 2 KiB: lines of 128 KiB.
    let mut bomb = [&MAGIC[..], &[0x00, 7 << 3]].concat();
    for _ in 0..512 {
        bomb.extend(block(false, 1, (128 << 10) - 1, b"a"));
        bomb.extend(block(false, 0, 1, b"\n"));
    }
    bomb.extend(block(true, 0, 0, &[]));
    let file = [frame(HEADER), bomb].concat();
    let mut source = ZstdFrames::new(Cursor::new(&file)).unwrap();
    let mut text_bytes = 0;
    while let Some(item) = source.next_item().unwrap() {
        let Item::Record(record) = item else { panic!("no fault expected") };
        text_bytes += record.bytes.len() + 1;
    }
    assert_eq!(text_bytes, HEADER.len() + (64 << 20));
    assert!(source.splitter.buffer_bytes() <= 4 * PIECE_BYTES);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_read_as_the_plain_text_they_hold(
        texts in prop::collection::vec("[a-c\n]{0,12}", 0..8),
    ) {
        let mut plain = format!("{HEADER}{}", texts.concat());
        let mut file = frame(HEADER);
        for text in &texts {
            file.extend(frame(text));
        }
        if !plain.ends_with('\n') {
            plain.push('\n');
            file.extend(frame("\n"));
        }
        let mut expected = drain(&mut Lines::new(plain.as_bytes()));
        for seen in &mut expected {
            if let Seen::Record { lenient, .. } = seen {
                *lenient = false;
            }
        }
        prop_assert_eq!(read(&file), expected);
    }

    #[test]
    fn no_bytes_make_it_panic_or_run_on(
        flips in prop::collection::vec((0_usize..400, any::<u8>()), 0..6),
        cut in 0_usize..400,
    ) {
        let mut file = [frame(HEADER), raw_frame(&["a\n", "b\n"]), frame(&"text\n".repeat(40)), frame("z\n")].concat();
        for (at, byte) in flips {
            let at = at % file.len();
            file[at] = byte;
        }
        file.truncate(cut.max(1));
        let seen = read(&file);
        prop_assert!(seen.len() < 200);
        prop_assert!(!seen.is_empty());
    }
}
