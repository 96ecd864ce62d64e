//! A file that is read with progress.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// A file that tells how much of it was read.
pub(crate) struct Counted<'p> {
    file: File,
    read: u64,
    progress: &'p dyn Fn(u64),
}

impl<'p> Counted<'p> {
    /// `progress` is told the bytes read so far.
    pub(crate) fn new(file: File, progress: &'p dyn Fn(u64)) -> Self {
        Self { file, read: 0, progress }
    }
}

impl Read for Counted<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buf)?;
        self.read += bytes as u64;
        (self.progress)(self.read);
        Ok(bytes)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
