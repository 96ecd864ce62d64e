//! The structure of a zstd frame, read from its headers alone (RFC 8878 section 3.1, spec section 14.3).

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use crate::event::{Refusal, RefusalKind};
use crate::limits::ZSTD_WINDOW_LOG_MAX;

const MAGIC: u32 = 0xFD2F_B528;
/// The first of the sixteen magics of frames that hold no content.
const SKIPPABLE: u64 = 0x184D_2A50;
const BUFFER_BYTES: usize = 128 << 10;

/// How far a frame reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it is there.
    Complete {
        /// The byte after its last.
        end: u64,
    },
    /// The file ends first.
    Torn,
}

/// A file that is read in order with small jumps. It ends where it ended when it was opened.
#[derive(Debug)]
pub(super) struct Source<R> {
    reader: BufReader<R>,
    position: u64,
    len: u64,
}

impl<R: Read + Seek> Source<R> {
    pub(super) fn new(mut reader: R) -> io::Result<Self> {
        let len = reader.seek(SeekFrom::End(0))?;
        reader.rewind()?;
        Ok(Self { reader: BufReader::with_capacity(BUFFER_BYTES, reader), position: 0, len })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Goes to a position within the file; free of system calls where the buffer reaches.
    pub(super) fn seek(&mut self, to: u64) -> io::Result<()> {
        let distance = i128::from(to) - i128::from(self.position);
        match i64::try_from(distance) {
            Ok(distance) => self.reader.seek_relative(distance)?,
            Err(_) => self.reader.seek(SeekFrom::Start(to)).map(drop)?,
        }
        self.position = to;
        Ok(())
    }

    /// Bytes at the position, below `end`; none only there.
    pub(super) fn fill(&mut self, end: u64) -> io::Result<&[u8]> {
        let wanted = end - self.position;
        if wanted == 0 {
            return Ok(&[]);
        }
        let bytes = self.reader.fill_buf()?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let available = usize::try_from(wanted).map_or(bytes.len(), |w| w.min(bytes.len()));
        Ok(&bytes[..available])
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.position += bytes as u64;
    }

    /// Where a frame's magic next stands at or behind `from`; the end of the file if nowhere.
    pub(super) fn find_frame(&mut self, from: u64) -> io::Result<u64> {
        const FIRST: u8 = MAGIC.to_le_bytes()[0];
        self.seek(from.min(self.len))?;
        while self.position < self.len {
            let bytes = self.fill(self.len)?;
            let found = memchr::memchr(FIRST, bytes);
            let passed = found.unwrap_or(bytes.len());
            self.consume(passed);
            let at = self.position;
            if found.is_some() {
                if self.number::<4>()? == Some(u64::from(MAGIC)) {
                    return Ok(at);
                }
                self.seek(at + 1)?;
            }
        }
        Ok(self.len)
    }

    /// The first byte at or behind `from` that is no NUL; the end of the file if there is none.
    pub(super) fn end_of_nuls(&mut self, from: u64) -> io::Result<u64> {
        self.seek(from)?;
        while self.position < self.len {
            let bytes = self.fill(self.len)?;
            let nuls = bytes.iter().take_while(|&&byte| byte == 0).count();
            let ended = nuls < bytes.len();
            self.consume(nuls);
            if ended {
                break;
            }
        }
        Ok(self.position)
    }

    /// Whether a frame of any kind begins at `at`, or the file ends there.
    pub(super) fn is_boundary(&mut self, at: u64) -> io::Result<bool> {
        self.seek(at)?;
        let magic = self.number::<4>()?;
        Ok(at == self.len || magic.is_some_and(|m| m == u64::from(MAGIC) || m >> 4 == SKIPPABLE >> 4))
    }

    /// The end of the skippable frame that begins at `from` (RFC 8878 section 3.1.2), if all of one does.
    pub(super) fn end_of_skippable(&mut self, from: u64) -> io::Result<Option<u64>> {
        self.seek(from)?;
        let (Some(magic), Some(bytes)) = (self.number::<4>()?, self.number::<4>()?) else { return Ok(None) };
        Ok(if magic >> 4 == SKIPPABLE >> 4 && self.skip(bytes)? { Some(self.position) } else { None })
    }

    /// The next `N` bytes as a little-endian number, `None` where the file ends first.
    fn number<const N: usize>(&mut self) -> io::Result<Option<u64>> {
        const { assert!(N <= 8) };
        if self.len - self.position < N as u64 {
            return Ok(None);
        }
        let mut bytes = [0; 8];
        self.reader.read_exact(&mut bytes[..N])?;
        self.position += N as u64;
        Ok(Some(u64::from_le_bytes(bytes)))
    }

    /// Passes over `bytes`; `false` where the file ends first.
    fn skip(&mut self, bytes: u64) -> io::Result<bool> {
        if self.len - self.position < bytes {
            return Ok(false);
        }
        self.seek(self.position + bytes)?;
        Ok(true)
    }
}

/// Walks the frame at the position of `source`, counting its blocks. What stands before the cut of a torn frame is judged too.
pub(super) fn extent<R: Read + Seek>(
    source: &mut Source<R>,
    blocks: &mut u64,
) -> io::Result<Result<Extent, Refusal>> {
    let has_checksum = match header(source)? {
        Ok(Some(has_checksum)) => has_checksum,
        Ok(None) => return Ok(Ok(Extent::Torn)),
        Err(refusal) => return Ok(Err(refusal)),
    };
    loop {
        let Some(block) = source.number::<3>()? else { return Ok(Ok(Extent::Torn)) };
        *blocks += 1;
        let bytes = match block >> 1 & 3 {
            0 | 2 => block >> 3,
            1 => 1,
            _ => return Ok(Err(malformed("block-type", "it has a block of the reserved type"))),
        };
        if !source.skip(bytes)? {
            return Ok(Ok(Extent::Torn));
        }
        if block & 1 == 1 {
            break;
        }
    }
    let whole = source.skip(if has_checksum { 4 } else { 0 })?;
    Ok(Ok(if whole { Extent::Complete { end: source.position() } } else { Extent::Torn }))
}

/// Reads a frame header: whether a checksum follows the last block, or `None` where the file ends first.
fn header<R: Read + Seek>(source: &mut Source<R>) -> io::Result<Result<Option<bool>, Refusal>> {
    match source.number::<4>()? {
        None => return Ok(Ok(None)),
        Some(magic) if magic == u64::from(MAGIC) => {}
        Some(magic) => {
            let message = format!("no zstd frame begins here (the first bytes are 0x{magic:08X})");
            return Ok(Err(Refusal::new(RefusalKind::FrameMagic, "frame-magic", message)));
        }
    }
    let Some(descriptor) = source.number::<1>()? else { return Ok(Ok(None)) };
    if descriptor & 0x18 != 0 {
        return Ok(Err(malformed("frame-descriptor", "its header has reserved bits set")));
    }
    let single_segment = descriptor & 0x20 != 0;
    if !single_segment {
        let Some(window) = source.number::<1>()? else { return Ok(Ok(None)) };
        let base = 1_u64 << (10 + (window >> 3));
        if let Err(refusal) = check_window(base + base / 8 * (window & 7)) {
            return Ok(Err(refusal));
        }
    }
    let dictionary = match descriptor & 3 {
        0 => Some(0),
        1 => source.number::<1>()?,
        2 => source.number::<2>()?,
        _ => source.number::<4>()?,
    };
    let Some(dictionary) = dictionary else { return Ok(Ok(None)) };
    if dictionary != 0 {
        return Ok(Err(malformed("frame-dictionary", "it needs a dictionary")));
    }
    let content_bytes = match descriptor >> 6 {
        0 if !single_segment => Some(0),
        0 => source.number::<1>()?,
        1 => source.number::<2>()?.map(|n| n + 256),
        2 => source.number::<4>()?,
        _ => source.number::<8>()?,
    };
    let Some(content_bytes) = content_bytes else { return Ok(Ok(None)) };
    if single_segment && let Err(refusal) = check_window(content_bytes) {
        return Ok(Err(refusal));
    }
    Ok(Ok(Some(descriptor & 4 != 0)))
}

fn check_window(bytes: u64) -> Result<(), Refusal> {
    if bytes <= 1 << ZSTD_WINDOW_LOG_MAX {
        return Ok(());
    }
    let message =
        format!("it needs a window of {bytes} bytes; at most 2^{ZSTD_WINDOW_LOG_MAX} are supported");
    Err(Refusal::new(RefusalKind::Limit, "frame-window", message))
}

fn malformed(rule: &'static str, message: &str) -> Refusal {
    Refusal::new(RefusalKind::FrameBlock, rule, message)
}
