//! Cells of a database, read from an input.

use sessionlog::format::compress::FrameEncoder;

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT, which may be no UTF-8.
    Text(Vec<u8>),
    /// BLOB.
    Blob(Vec<u8>),
}

/// Takes cells off an input: a byte that chooses the type, then eight bytes of a number, or a length (two bytes,
/// little-endian) and so many bytes. Where the input is too short, what there is counts. Behind its end all is NULL.
#[derive(Debug)]
pub struct Cells<'a>(&'a [u8]);

impl<'a> Cells<'a> {
    /// Reads `input`.
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next cell.
    pub fn next_cell(&mut self) -> Cell {
        let Some((&choice, rest)) = self.0.split_first() else { return Cell::Null };
        self.0 = rest;
        match choice {
            b'n' => Cell::Null,
            b'i' => Cell::Integer(i64::from_le_bytes(self.number())),
            b's' => Cell::Integer(i64::from(i16::from_le_bytes([self.number()[0], 0]))),
            b'r' => Cell::Real(f64::from_le_bytes(self.number())),
            b'b' => Cell::Blob(self.bytes().to_vec()),
            b'z' => Cell::Blob(frame_of(self.bytes())),
            _ => Cell::Text(self.bytes().to_vec()),
        }
    }

    fn number(&mut self) -> [u8; 8] {
        let mut number = [0; 8];
        let (taken, rest) = self.0.split_at(self.0.len().min(8));
        number[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        number
    }

    fn bytes(&mut self) -> &'a [u8] {
        let Some((length, rest)) = self.0.split_first_chunk::<2>() else {
            return std::mem::take(&mut self.0);
        };
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        self.0 = rest;
        bytes
    }
}

/// A text as one zstd frame that states its size, as a packed cell holds it.
fn frame_of(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut encoder = FrameEncoder::with_content_size(1).expect("memory for an encoder");
    encoder.encode(text, &mut frame).expect("memory for a frame");
    frame
}
