//! What the fuzz targets share: how a log is judged and judged again, and how an input becomes the rows of a database
//! and the files of a store.
//!
//! Everything goes through the public interface of the library. An input is at most [`INPUT_BYTES_MAX`] long; a longer one is
//! passed over, so that the time of a run tells something.

mod cells;
mod relog;

pub use cells::{Cell, Cells};
pub use relog::{Relog, check_admitted, judge_bytes};

/// Longest input that is looked at, in bytes.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// The first byte of an input, which chooses, and the rest; `None` if it is empty or too long.
#[must_use]
pub fn chosen(input: &[u8]) -> Option<(u8, &[u8])> {
    let (&choice, rest) = input.split_first()?;
    (input.len() <= INPUT_BYTES_MAX).then_some((choice, rest))
}

/// A directory that goes with its handle, in memory where there is a file system in memory.
///
/// # Panics
///
/// If none can be made.
#[must_use]
pub fn memory_directory() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory")
}
