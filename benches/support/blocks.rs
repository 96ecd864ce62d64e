//! The compressed blocks of a sealed file, and how long zstd alone takes for them: what reading is measured against.
//!
//! Finds them by section 10 of the format document; checks nothing.

use std::path::Path;

use zstd::zstd_safe::DCtx;

const FOOTER_BYTES: usize = 64;
const SESSION_ROW_BYTES: usize = 44;
const UNIT_ROW_BYTES: usize = 44;
const PIECE_ROW_BYTES: usize = 24;

/// A sealed file in memory.
pub(crate) struct Blocks {
    file: Vec<u8>,
    units: Vec<[Block; 2]>,
    pieces: Vec<(Block, Option<usize>)>,
    context: DCtx<'static>,
    text: Vec<u8>,
    /// Room for the texts of the pieces, which others are decoded with.
    piece_texts: Vec<Vec<u8>>,
}

#[derive(Clone, Copy)]
struct Block {
    at: usize,
    bytes: usize,
    text_bytes: usize,
}

impl Blocks {
    /// The blocks of the one sealed file of a store.
    pub(crate) fn of_store(dir: &Path) -> Self {
        let paths = std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("listed").path());
        let path = paths.into_iter().find(|path| path.extension().is_some_and(|end| end == "sealed"));
        let file = std::fs::read(path.expect("a sealed file")).expect("read");
        let footer = file.len() - FOOTER_BYTES;
        let [sessions, unit_count, piece_count] = [8, 12, 16].map(|at| u32_at(&file, footer + at));
        let units = u64_at(&file, footer) + sessions * SESSION_ROW_BYTES;
        let pieces = units + unit_count * UNIT_ROW_BYTES;
        let units: Vec<_> = (0..unit_count).map(|n| unit(&file, units + n * UNIT_ROW_BYTES)).collect();
        let pieces: Vec<_> = (0..piece_count).map(|n| piece(&file, pieces + n * PIECE_ROW_BYTES)).collect();
        let longest = units.iter().flatten().map(|block| block.text_bytes).max().unwrap_or(0);
        let piece_texts = pieces.iter().map(|(block, _)| Vec::with_capacity(block.text_bytes)).collect();
        let text = Vec::with_capacity(longest);
        Self { file, units, pieces, context: DCtx::create(), text, piece_texts }
    }

    /// Number of units.
    pub(crate) fn unit_count(&self) -> usize {
        self.units.len()
    }

    /// Decompresses one unit; the bytes of its texts.
    pub(crate) fn decompress_unit(&mut self, n: usize) -> usize {
        let mut bytes = 0;
        for block in self.units[n].iter().filter(|block| block.bytes > 0) {
            let frame = &self.file[block.at..block.at + block.bytes];
            self.text.clear();
            bytes += self.context.decompress(&mut self.text, frame).expect("decompressed");
        }
        bytes
    }

    /// Decompresses all units and all pieces; the bytes of their texts.
    pub(crate) fn decompress_all(&mut self) -> usize {
        let mut bytes = (0..self.units.len()).map(|n| self.decompress_unit(n)).sum();
        for n in 0..self.pieces.len() {
            let (block, base) = self.pieces[n];
            let frame = &self.file[block.at..block.at + block.bytes];
            let (before, rest) = self.piece_texts.split_at_mut(n);
            let prefix = base.map_or(&[][..], |base| &before[base]);
            rest[0].clear();
            bytes += self.context.decompress_using_dict(&mut rest[0], frame, prefix).expect("decompressed");
        }
        bytes
    }
}

fn unit(file: &[u8], row: usize) -> [Block; 2] {
    let at = u64_at(file, row + 8);
    let envelopes = Block { at, bytes: u32_at(file, row + 16), text_bytes: u32_at(file, row + 20) };
    let at = at + envelopes.bytes;
    [envelopes, Block { at, bytes: u32_at(file, row + 28), text_bytes: u32_at(file, row + 32) }]
}

fn piece(file: &[u8], row: usize) -> (Block, Option<usize>) {
    let at = u64_at(file, row);
    let block = Block { at, bytes: u32_at(file, row + 8), text_bytes: u32_at(file, row + 12) };
    (block, u32_at(file, row + 16).checked_sub(1))
}

fn u32_at(file: &[u8], at: usize) -> usize {
    u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes")) as usize
}

fn u64_at(file: &[u8], at: usize) -> usize {
    usize::try_from(u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"))).expect("an offset")
}
