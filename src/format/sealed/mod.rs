//! Sealed files: immutable, events grouped by session, read in place.
//!
//! Owns the layout of section 10 of [`docs`](super::docs): what is stored once, how events are cut into units, how all
//! of it is found and checked. Reads no JSON and no clock, and does no I/O but through [`ByteSource`] and [`SealedSink`].
//! Every reference resolves inside the file. Reading never panics, allocates only what a checked row names within
//! [`limits`](crate::limits), and gives for damaged bytes an error for exactly the events that need them.
//!
//! Reading order: `rows` (what is found where), `envelope` (one unit), `pieces` (what events share), `spans` (what
//! they repeat), `builder`, `reader`, `directory`, `outline`, `cache`, `lookup`, `check`.

mod builder;
mod cache;
mod check;
mod directory;
mod envelope;
mod header;
mod lookup;
mod outline;
mod output;
mod pieces;
mod reader;
mod rows;
mod spans;
#[cfg(test)]
mod tests;

pub use builder::{SealedBuilder, SealedStats};
pub use cache::{DecodedCache, FileCache};
pub use check::SealedFinding;
pub use header::{SealedHeader, SealedName};
pub use outline::{OutlineVisitor, StoredSize};
pub use reader::{ControlRecord, Sealed, SealedDecoder, SealedItem, StoredPiece, Unit};
pub use rows::{SessionRow, UnitRow};

use std::borrow::Cow;
use std::io;

/// The bytes of a sealed file, wherever they are: a mapping lends them, a positional read hands out its own.
#[expect(clippy::len_without_is_empty, reason = "a sealed file is never empty")]
pub trait ByteSource: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// The `len` bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the source ends before, and what the system reports.
    fn bytes(&self, offset: u64, len: usize) -> io::Result<Cow<'_, [u8]>>;
}

/// Where a sealed file is written: bytes are added at the end, and read back to confirm that two texts are equal.
pub trait SealedSink: ByteSource {
    /// Adds bytes at the end.
    ///
    /// # Errors
    /// What the system reports; the file is of no use then.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl<T: AsRef<[u8]> + Send + Sync> ByteSource for T {
    fn len(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn bytes(&self, offset: u64, len: usize) -> io::Result<Cow<'_, [u8]>> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        let bytes = range.and_then(|range| self.as_ref().get(range));
        bytes.map(Cow::Borrowed).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl SealedSink for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}
