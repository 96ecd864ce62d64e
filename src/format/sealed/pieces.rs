//! Pieces: texts that events refer to, each stored once.
//!
//! A piece stands alone or holds the differences to an earlier piece, its base. No way from a piece to one that stands
//! alone is longer than [`SEALED_CHAIN_MAX`], so any of them is a bounded amount of work. Equal prints are never taken
//! for equal texts: the bytes are compared.

use std::borrow::Cow;
use std::collections::HashMap;

use super::output::Output;
use super::rows::{FileMark, PieceRow};
use super::spans::{Print, print_of};
use super::{ByteSource, SealedSink};
use crate::format::compress::{DecodeFault, FrameEncoder, LEVEL_DEFAULT, TextDecoder, encode_with_prefix};
use crate::limits::{SEALED_CHAIN_MAX, SEALED_TABLE_ENTRIES_MAX};
use crate::{Error, ErrorKind, Result};

/// Level of the pieces of a sealed file: measured in [`docs`](crate::format::docs), section 10.6.
const LEVEL: i32 = LEVEL_DEFAULT;
/// A piece that its base makes so many times smaller needs no search for a better base.
const BASE_PAYS: usize = 8;
/// Pieces that stand alone and are tried as bases for the first piece of a session.
const ROOTS_TRIED: usize = 4;

/// Where pieces are read from.
pub(super) trait PieceSource {
    fn mark(&self) -> FileMark;
    fn row(&self, id: u32) -> Result<PieceRow>;
    fn stored(&self, row: &PieceRow) -> Result<Cow<'_, [u8]>>;
}

/// Reads pieces of one file at a time, reusing its buffers. The last piece read is kept, so that a chain read in
/// order costs one step a piece.
#[derive(Debug)]
pub(super) struct PieceReader {
    pub(super) decoder: TextDecoder,
    chain: Vec<(u32, PieceRow)>,
    text: Vec<u8>,
    next_text: Vec<u8>,
    held: Option<u32>,
}

impl PieceReader {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            decoder: TextDecoder::new()?,
            chain: Vec::new(),
            text: Vec::new(),
            next_text: Vec::new(),
            held: None,
        })
    }

    /// Must be called before pieces of another file are read.
    pub(super) fn forget(&mut self) {
        self.held = None;
    }

    /// Whether the piece is at hand.
    pub(super) fn holds(&self, id: u32) -> bool {
        self.held == Some(id)
    }

    /// Takes a piece of the present file whose text is known.
    pub(super) fn hold(&mut self, id: u32, text: &str) {
        self.text.clear();
        self.text.extend_from_slice(text.as_bytes());
        self.held = Some(id);
    }

    /// The text of a piece.
    pub(super) fn read(&mut self, source: &impl PieceSource, id: u32) -> Result<&[u8]> {
        self.collect_chain(source, id)?;
        self.held = None;
        if self.chain.last().is_some_and(|(_, row)| row.base.is_none()) {
            self.text.clear();
        }
        while let Some((id, row)) = self.chain.pop() {
            let stored = source.stored(&row)?;
            if !row.is_sound(source.mark(), id, &stored) {
                return Err(damaged_piece(&row, "its checksum does not match"));
            }
            let bytes = usize::try_from(row.text_bytes).unwrap_or(usize::MAX);
            self.decoder
                .decode(&stored, &self.text, bytes, &mut self.next_text)
                .map_err(|fault| decode_error(fault, row.offset))?;
            std::mem::swap(&mut self.text, &mut self.next_text);
        }
        self.held = Some(id);
        Ok(&self.text)
    }

    /// The rows from `id` up to one that stands alone, or whose base is at hand.
    fn collect_chain(&mut self, source: &impl PieceSource, id: u32) -> Result<()> {
        self.chain.clear();
        let mut next = Some(id);
        while let Some(id) = next.filter(|&id| self.held != Some(id)) {
            let row = source.row(id)?;
            if self.chain.len() >= usize::from(SEALED_CHAIN_MAX) {
                return Err(damaged_piece(&row, "it hangs on too many others"));
            }
            self.chain.push((id, row));
            next = row.base;
        }
        Ok(())
    }
}

/// The pieces of a file that is being built.
#[derive(Debug)]
pub(super) struct PieceWriter {
    mark: FileMark,
    rows: Vec<PieceRow>,
    /// For each piece how many others are decoded on the way to it.
    depths: Vec<u8>,
    versions: HashMap<Print, u32>,
    roots: Vec<u32>,
    encoder: FrameEncoder,
    reader: PieceReader,
    frame: Vec<u8>,
    trial: Vec<u8>,
}

/// The versions of one session's versioned data, as far as the next one needs them.
#[derive(Debug, Default)]
pub(super) struct Chain {
    last: Option<u32>,
    last_text: Vec<u8>,
    /// The piece that the present run of versions began with.
    anchor: Option<u32>,
}

impl PieceWriter {
    pub(super) fn new(mark: FileMark) -> Result<Self> {
        Ok(Self {
            mark,
            rows: Vec::new(),
            depths: Vec::new(),
            versions: HashMap::new(),
            roots: Vec::new(),
            encoder: FrameEncoder::new(LEVEL, false)?,
            reader: PieceReader::new()?,
            frame: Vec::new(),
            trial: Vec::new(),
        })
    }

    pub(super) fn rows(&self) -> &[PieceRow] {
        &self.rows
    }

    /// Stores a text by itself.
    pub(super) fn store<W: SealedSink>(&mut self, out: &mut Output<W>, text: &[u8]) -> Result<u32> {
        self.encoder.encode(text, &mut self.frame)?;
        self.append(out, text, None)
    }

    /// Whether the piece `id` holds exactly `text`.
    pub(super) fn holds<W: SealedSink>(&mut self, out: &mut Output<W>, id: u32, text: &[u8]) -> Result<bool> {
        out.flush()?;
        Ok(self.reader.read(&Written { mark: self.mark, rows: &self.rows, out }, id)? == text)
    }

    /// Stores the next version of a session's versioned data: as a reference to an equal text, as the differences to
    /// the version before, or as what is smallest.
    pub(super) fn store_version<W: SealedSink>(
        &mut self,
        out: &mut Output<W>,
        chain: &mut Chain,
        text: &[u8],
    ) -> Result<u32> {
        if let Some(last) = chain.last.filter(|_| chain.last_text == text) {
            return Ok(last);
        }
        let print = print_of(text);
        let id = match self.versions.get(&print).copied() {
            Some(id) if self.holds(out, id, text)? => id,
            known => {
                let id = self.encode_version(out, chain, text)?;
                if known.is_some() || self.versions.len() < SEALED_TABLE_ENTRIES_MAX {
                    self.versions.insert(print, id);
                }
                id
            }
        };
        chain.last = Some(id);
        chain.last_text.clear();
        chain.last_text.extend_from_slice(text);
        Ok(id)
    }

    fn encode_version<W: SealedSink>(
        &mut self,
        out: &mut Output<W>,
        chain: &mut Chain,
        text: &[u8],
    ) -> Result<u32> {
        let last = chain.last.filter(|&last| self.may_be_base(last));
        if last.is_some() {
            encode_with_prefix(LEVEL, &chain.last_text, text, &mut self.frame)?;
            if self.frame.len() * BASE_PAYS <= text.len() {
                return self.append(out, text, last);
            }
        }
        let mut best = last;
        self.encoder.encode(text, &mut self.trial)?;
        if last.is_none() || self.trial.len() < self.frame.len() {
            std::mem::swap(&mut self.frame, &mut self.trial);
            best = None;
        }
        out.flush()?;
        let bases = chain.anchor.iter().chain(&self.roots).copied().filter(|&base| Some(base) != last);
        for base in bases.collect::<Vec<_>>() {
            if !self.may_be_base(base) {
                continue;
            }
            let prefix = self.reader.read(&Written { mark: self.mark, rows: &self.rows, out }, base)?;
            encode_with_prefix(LEVEL, prefix, text, &mut self.trial)?;
            if self.trial.len() < self.frame.len() {
                std::mem::swap(&mut self.frame, &mut self.trial);
                best = Some(base);
            }
        }
        let id = self.append(out, text, best)?;
        chain.anchor = Some(id);
        self.note_root(best.unwrap_or(id));
        Ok(id)
    }

    fn may_be_base(&self, id: u32) -> bool {
        self.depth(id).is_some_and(|depth| depth + 1 < SEALED_CHAIN_MAX)
    }

    fn depth(&self, id: u32) -> Option<u8> {
        self.depths.get(usize::try_from(id).ok()?).copied()
    }

    /// Keeps the roots that were of use last.
    fn note_root(&mut self, id: u32) {
        if self.depth(id) == Some(0) {
            self.roots.retain(|&root| root != id);
            self.roots.insert(0, id);
            self.roots.truncate(ROOTS_TRIED);
        }
    }

    /// Writes `self.frame` as the next piece.
    fn append<W: SealedSink>(&mut self, out: &mut Output<W>, text: &[u8], base: Option<u32>) -> Result<u32> {
        let id = u32::try_from(self.rows.len()).map_err(|_| too_large())?;
        let mut row = PieceRow {
            offset: out.offset(),
            stored_bytes: u32::try_from(self.frame.len()).map_err(|_| too_large())?,
            text_bytes: u32::try_from(text.len()).map_err(|_| too_large())?,
            base,
            crc: 0,
        };
        row.crc = row.crc_with(self.mark, id, &self.frame);
        out.append(&self.frame)?;
        self.rows.push(row);
        self.depths.push(base.and_then(|base| self.depth(base)).map_or(0, |depth| depth + 1));
        Ok(id)
    }
}

/// The pieces that a builder has written.
struct Written<'a, W> {
    mark: FileMark,
    rows: &'a [PieceRow],
    out: &'a Output<W>,
}

impl<W: SealedSink> PieceSource for Written<'_, W> {
    fn mark(&self) -> FileMark {
        self.mark
    }

    fn row(&self, id: u32) -> Result<PieceRow> {
        let row = usize::try_from(id).ok().and_then(|id| self.rows.get(id));
        row.copied().ok_or_else(|| Error::new(ErrorKind::Invalid, "read back piece: there is none"))
    }

    fn stored(&self, row: &PieceRow) -> Result<Cow<'_, [u8]>> {
        stored_bytes(self.out.written(), row.offset, row.stored_bytes)
    }
}

/// Bytes that a checked row or the footer names.
pub(super) fn stored_bytes<S: ByteSource>(source: &S, offset: u64, bytes: u32) -> Result<Cow<'_, [u8]>> {
    if offset.checked_add(bytes.into()).is_none_or(|end| end > source.len()) {
        return Err(corrupt("a row names bytes beyond the file", offset));
    }
    let len = usize::try_from(bytes).map_err(|_| corrupt("more bytes than memory", offset))?;
    let read = source.bytes(offset, len);
    read.map_err(|error| Error::io("read sealed file", error).with_offset(offset))
}

pub(super) fn decode_error(fault: DecodeFault, offset: u64) -> Error {
    match fault {
        DecodeFault::OutOfMemory => Error::new(ErrorKind::Limit, "read sealed file: out of memory"),
        DecodeFault::Checksum => corrupt("a frame's content does not match", offset),
        DecodeFault::Damaged(why) => corrupt(why, offset),
    }
}

pub(super) fn corrupt(why: &str, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, format!("read sealed file: {why}")).with_offset(offset)
}

fn damaged_piece(row: &PieceRow, why: &str) -> Error {
    corrupt(&format!("damaged piece: {why}"), row.offset)
}

pub(super) fn too_large() -> Error {
    Error::new(ErrorKind::Limit, "write sealed file: more than its rows can count")
}
