//! Zstd JSONL as a stream of records (spec sections 14.3 and 21).
//!
//! Each frame is walked by its headers first, which tells a complete frame from a torn one, then proved by
//! decoding it to its end, and only then yields records: no record ever comes from a frame that turns out
//! to be damaged. A frame whose text fits in one piece is decoded once, a larger one twice, so memory is
//! bounded by the piece and the largest record, never by a frame. Invariant: nothing is sized by what a
//! frame header claims.

mod salvage;
mod walk;

use std::io::{self, Read, Seek};

pub(crate) use self::salvage::PADDING_RULES;
use self::walk::{Extent, Source};
use super::lines::Splitter;
use super::{Item, RecordSource};
use crate::event::{Refusal, RefusalKind};
use crate::format::compress::{DecodeFault, FrameDecoder};

/// Text of one frame that is decoded in one go, in bytes.
const PIECE_BYTES: usize = 512 << 10;

/// The records of a file of zstd frames. Those of complete frames are not lenient; those of a torn last
/// frame are, and follow an [`Item::TornFrame`].
///
/// Frame faults carry the byte offset in the file. Behind a frame that does not decode reading goes on with
/// the next one; behind a frame whose structure is wrong there is nothing to go on with.
#[derive(Debug)]
pub struct ZstdFrames<R> {
    source: Source<R>,
    decoder: FrameDecoder,
    piece: Vec<u8>,
    splitter: Splitter,
    state: State,
    /// What comes before the next record.
    announced: Option<Item<'static>>,
    /// Where the next frame begins, and the number of the last one, from 1.
    next_frame: u64,
    number: u64,
    /// Records come from the torn frame.
    lenient: bool,
    /// Present if all that can be read is wanted, whatever stands before it.
    salvage: Option<salvage::Salvage>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The text of all frames so far has been handed over.
    Between,
    /// Inside a proved frame that is larger than one piece.
    Streaming(Frame),
    /// No more text follows the pending record.
    Fragment,
    Done,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    start: u64,
    end: u64,
    torn: bool,
}

/// One piece of a frame's text.
#[derive(Debug, Clone, Copy)]
struct Piece {
    bytes: usize,
    last: bool,
}

impl<R: Read + Seek> ZstdFrames<R> {
    /// Reads `reader` from its start to where it ends now; what is written to it later is not seen.
    ///
    /// # Errors
    ///
    /// What the operating system reports, and a lack of memory for the decoder.
    pub fn new(reader: R) -> io::Result<Self> {
        Ok(Self {
            source: Source::new(reader)?,
            decoder: FrameDecoder::new().map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?,
            piece: vec![0; PIECE_BYTES],
            splitter: Splitter::new(),
            state: State::Between,
            announced: None,
            next_frame: 0,
            number: 0,
            lenient: false,
            salvage: None,
        })
    }

    /// Goes on to the next frame, or to the end.
    fn advance(&mut self) -> io::Result<()> {
        // Nothing that follows goes on with the record that a torn frame was cut in.
        if self.lenient && self.splitter.has_fragment() {
            self.state = State::Fragment;
            return Ok(());
        }
        let start = self.next_frame;
        let walked = if start == self.source.len() { None } else { Some(self.walk(start)?) };
        let (extent, blocks) = walked.unzip();
        self.number += u64::from(extent.is_some());
        let frame = match extent {
            Some(Ok(Extent::Complete { end })) => Frame { start, end, torn: false },
            Some(broken) if self.salvage.is_some() => {
                match self.salvaged(start, broken, blocks.unwrap_or(0))? {
                    Some(frame) => frame,
                    None => return Ok(()),
                }
            }
            Some(Err(refusal)) => {
                self.announce(refusal, start);
                self.splitter.forget_fragment();
                self.next_frame = self.source.len();
                return Ok(());
            }
            _ if self.splitter.has_fragment() => {
                self.state = State::Fragment;
                if !self.lenient && self.salvage.is_none() {
                    self.announce_unfinished_record();
                }
                return Ok(());
            }
            Some(Ok(Extent::Torn)) => Frame { start, end: self.source.len(), torn: true },
            None => {
                self.state = State::Done;
                return Ok(());
            }
        };
        self.next_frame = frame.end;
        self.open(frame)
    }

    /// How far the frame at `start` reaches, and how many blocks were walked to tell.
    fn walk(&mut self, start: u64) -> io::Result<(Result<Extent, Refusal>, u64)> {
        self.source.seek(start)?;
        let mut blocks = 0;
        let extent = walk::extent(&mut self.source, &mut blocks)?;
        Ok((extent, blocks))
    }

    /// Proves a frame and hands over its text, or at least its first piece.
    fn open(&mut self, frame: Frame) -> io::Result<()> {
        let (first, header_line) = match self.prove(frame)? {
            Ok(proved) => proved,
            // Of a torn frame that does not decode nothing is recovered.
            Err(_) if frame.torn => (Piece { bytes: 0, last: true }, false),
            Err(mut refusal) => {
                if let Some(torn) = self.reconsidered(frame)? {
                    self.next_frame = torn.end;
                    return self.open(torn);
                }
                if self.salvage.is_some() {
                    refusal.message += &format!("; its {} bytes yield nothing", frame.end - frame.start);
                }
                self.announce(refusal, frame.start);
                // The record that the frame would have gone on with is lost too.
                self.splitter.forget_fragment();
                return Ok(());
            }
        };
        self.lenient = frame.torn;
        if self.number == 1 && (frame.torn && self.salvage.is_none() || !frame.torn && !header_line) {
            let message = if frame.torn { "it is cut" } else { "it does not hold exactly one line" };
            let refusal = Refusal::new(
                RefusalKind::ZstdFirstFrame,
                "first-frame-is-header",
                format!("the first frame must be the session header alone: {message}"),
            );
            self.announce(refusal, frame.start);
        } else if frame.torn {
            self.announced = Some(Item::TornFrame { offset: frame.start, bytes: frame.end - frame.start });
        }
        if first.last {
            self.splitter.push(&self.piece[..first.bytes]);
        } else {
            self.rewind(frame)?;
            self.state = State::Streaming(frame);
        }
        Ok(())
    }

    /// Decodes a frame to its end. Gives its first piece (which is still in the buffer if it is the last) and
    /// whether the frame holds exactly one whole line.
    fn prove(&mut self, frame: Frame) -> io::Result<Result<(Piece, bool), Refusal>> {
        self.rewind(frame)?;
        let mut first = None;
        let (mut line_feeds, mut ends_in_line_feed) = (0, false);
        loop {
            let piece = match self.decode_piece(frame)? {
                Ok(piece) => piece,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let text = &self.piece[..piece.bytes];
            if self.number == 1 {
                line_feeds += memchr::memchr_iter(b'\n', text).count();
                ends_in_line_feed = text.last().map_or(ends_in_line_feed, |&b| b == b'\n');
            }
            let first = *first.get_or_insert(piece);
            if piece.last {
                return Ok(Ok((first, line_feeds == 1 && ends_in_line_feed)));
            }
        }
    }

    /// Hands over the next piece of a proved frame.
    fn stream(&mut self, frame: Frame) -> io::Result<()> {
        match self.decode_piece(frame)? {
            Ok(piece) => {
                self.splitter.push(&self.piece[..piece.bytes]);
                if piece.last {
                    self.state = State::Between;
                }
            }
            // It decoded a moment ago: the file is being changed.
            Err(refusal) => {
                self.announce(refusal, frame.start);
                self.splitter.forget_fragment();
                self.state = State::Between;
            }
        }
        Ok(())
    }

    fn rewind(&mut self, frame: Frame) -> io::Result<()> {
        self.decoder.start_frame();
        self.source.seek(frame.start)
    }

    /// Decodes until the piece is full or the frame ends. A torn frame ends where no more text comes.
    fn decode_piece(&mut self, frame: Frame) -> io::Result<Result<Piece, Refusal>> {
        let mut bytes = 0;
        while bytes < self.piece.len() {
            let input = self.source.fill(frame.end)?;
            let step = match self.decoder.step(input, &mut self.piece[bytes..]) {
                Ok(step) => step,
                Err(fault) => return refuse(fault).map(Err),
            };
            self.source.consume(step.consumed);
            bytes += step.produced;
            let at_end = self.source.position() == frame.end;
            if step.frame_ended && at_end && !frame.torn {
                return Ok(Ok(Piece { bytes, last: true }));
            }
            if step.frame_ended || step.consumed == 0 && step.produced == 0 {
                return if frame.torn {
                    Ok(Ok(Piece { bytes, last: true }))
                } else {
                    refuse(DecodeFault::Damaged("its content does not end where its blocks do")).map(Err)
                };
            }
        }
        Ok(Ok(Piece { bytes, last: false }))
    }

    fn announce(&mut self, mut refusal: Refusal, frame_start: u64) {
        refusal.message = format!("zstd frame {}: {}", self.number, refusal.message);
        refusal.offset = Some(frame_start);
        self.announced = Some(Item::Fault(refusal));
    }

    fn announce_unfinished_record(&mut self) {
        self.announced = Some(Item::Fault(self.splitter.refuse_fragment(
            RefusalKind::CorruptRecord,
            "record-ends-with-its-frame",
            "the last complete frame ends inside this record",
        )));
    }
}

impl<R: Read + Seek> RecordSource for ZstdFrames<R> {
    fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        Ok(self.next_numbered()?.map(|(item, _)| item))
    }
}

impl<R: Read + Seek> ZstdFrames<R> {
    /// The next item and the number of the frame, from 1, that it ends in.
    pub(crate) fn next_numbered(&mut self) -> io::Result<Option<(Item<'_>, u64)>> {
        let found = loop {
            if let Some(item) = self.announced.take() {
                return Ok(Some((item, self.number)));
            }
            if let Some(found) = self.splitter.next() {
                break found;
            }
            match self.state {
                State::Between => self.advance()?,
                State::Streaming(frame) => self.stream(frame)?,
                State::Fragment => {
                    self.state = State::Between;
                    if let Some(fragment) = self.splitter.finish() {
                        break fragment;
                    }
                }
                State::Done => return Ok(None),
            }
        };
        Ok(Some((self.splitter.item(found, self.lenient), self.number)))
    }
}

fn refuse(fault: DecodeFault) -> io::Result<Refusal> {
    match fault {
        DecodeFault::Checksum => Ok(Refusal::new(
            RefusalKind::FrameChecksum,
            "frame-checksum",
            "its content does not match its checksum",
        )),
        DecodeFault::Damaged(how) => {
            Ok(Refusal::new(RefusalKind::FrameBlock, "frame-content", format!("it does not decode: {how}")))
        }
        DecodeFault::OutOfMemory => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

#[cfg(test)]
mod tests;
