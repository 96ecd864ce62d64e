//! Files and directories in memory: what the storages without a disk are made of.
//!
//! Owns no sharing and no locking. A file costs the pages that hold something other than zeros, so neither
//! a distant offset nor a great length allocates, and a copy shares its pages until one side writes.

use super::check_name;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
/// What file offsets are limited to on every system.
const FILE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// The bytes of one file. Absent pages, and whatever lies in a page beyond `len`, are zeros.
#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    pages: BTreeMap<u64, Arc<[u8; PAGE_BYTES]>>,
    len: u64,
}

impl Contents {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let available = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let read = available.min(buf.len());
        for piece in pieces(offset, read, PAGE_BYTES) {
            let target = &mut buf[piece.range.clone()];
            match self.pages.get(&piece.granule) {
                Some(page) => target.copy_from_slice(&page[piece.start..][..piece.range.len()]),
                None => target.fill(0),
            }
        }
        read
    }

    pub(super) fn write_all_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()> {
        let end = check_len(offset.checked_add(buf.len() as u64))?;
        for piece in pieces(offset, buf.len(), PAGE_BYTES) {
            let source = &buf[piece.range.clone()];
            let page = match self.pages.get_mut(&piece.granule) {
                Some(page) => page,
                None if source.iter().all(|byte| *byte == 0) => continue,
                None => self.pages.entry(piece.granule).or_insert_with(|| Arc::new([0; PAGE_BYTES])),
            };
            Arc::make_mut(page)[piece.start..][..source.len()].copy_from_slice(source);
        }
        if !buf.is_empty() {
            self.len = self.len.max(end);
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, len: u64) -> io::Result<()> {
        check_len(Some(len))?;
        if len < self.len {
            self.pages.split_off(&len.div_ceil(PAGE_BYTES as u64));
            if let Some(piece) = pieces(len, PAGE_BYTES, PAGE_BYTES).next()
                && let Some(page) = self.pages.get_mut(&piece.granule)
            {
                Arc::make_mut(page)[piece.start..].fill(0);
            }
        }
        self.len = len;
        Ok(())
    }
}

/// Names and what they stand for, with the rules of [`Storage`](super::Storage).
#[derive(Debug, Clone)]
pub(super) struct Directory<T>(BTreeMap<String, T>);

impl<T> Default for Directory<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Directory<T> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.0.iter()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub(super) fn get(&self, name: &str) -> io::Result<&T> {
        check_name(name)?;
        self.0.get(name).ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("no file {name:?}")))
    }

    pub(super) fn create(&mut self, name: &str, value: T) -> io::Result<()> {
        self.check_free(name)?;
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.check_free(to)?;
        let value = self.remove(from)?;
        self.0.insert(to.to_owned(), value);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<T> {
        self.get(name)?;
        self.0.remove(name).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn check_free(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        if self.0.contains_key(name) {
            return Err(io::Error::new(ErrorKind::AlreadyExists, format!("{name:?} is taken")));
        }
        Ok(())
    }
}

/// One part of a range of bytes that was cut at every multiple of a granule.
pub(super) struct Piece {
    /// The granule's number in the file.
    pub(super) granule: u64,
    /// Where the piece begins within its granule.
    pub(super) start: usize,
    /// Where the piece lies within the range that was cut.
    pub(super) range: Range<usize>,
}

/// Cuts `len` bytes at `offset` (whose sum must not overflow) at every multiple of `granule_bytes`.
pub(super) fn pieces(offset: u64, len: usize, granule_bytes: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let position = offset + done as u64;
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is less than a usize")]
        let start = (position % granule_bytes as u64) as usize;
        let end = len.min(done + (granule_bytes - start));
        let piece = Piece { granule: position / granule_bytes as u64, start, range: done..end };
        done = end;
        Some(piece)
    })
}

fn check_len(len: Option<u64>) -> io::Result<u64> {
    len.filter(|len| *len <= FILE_BYTES_MAX).ok_or_else(|| ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distant_bytes_and_zeros_allocate_nothing() {
        let mut file = Contents::default();
        file.set_len(FILE_BYTES_MAX).expect("grow");
        file.write_all_at(&[0; 3 * PAGE_BYTES], 5).expect("zeros");
        assert!(file.pages.is_empty());
        file.write_all_at(b"end", FILE_BYTES_MAX - 3).expect("write");
        assert_eq!(file.pages.len(), 1);
        let mut buf = [7; 8];
        assert_eq!(file.read_at(&mut buf, FILE_BYTES_MAX - 5), 5);
        assert_eq!(&buf, b"\0\0end\x07\x07\x07");
        assert_eq!(file.read_at(&mut buf, u64::MAX), 0);

        for (offset, len) in [(FILE_BYTES_MAX, 1), (u64::MAX, 1), (u64::MAX, 0)] {
            let error = file.write_all_at(&[1][..len], offset).expect_err("too far");
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        }
        assert_eq!(file.set_len(FILE_BYTES_MAX + 1).expect_err("too long").kind(), ErrorKind::FileTooLarge);
        file.set_len(0).expect("cut");
        assert!(file.pages.is_empty());
    }

    #[test]
    fn a_copy_keeps_its_bytes() {
        let mut file = Contents::default();
        file.write_all_at(b"before", 4090).expect("write");
        let copy = file.clone();
        file.write_all_at(b"after!", 4090).expect("write");
        file.set_len(4093).expect("cut");
        let mut buf = [0; 6];
        assert_eq!(copy.read_at(&mut buf, 4090), 6);
        assert_eq!(&buf, b"before");
        assert_eq!(file.read_at(&mut buf, 4090), 3);
        assert_eq!(&buf[..3], b"aft");
    }

    #[test]
    fn pieces_cover_a_range_once_and_stay_within_granules() {
        for (offset, len) in [(0, 0), (0, 512), (1, 512), (511, 1), (511, 2), (1000, 5000), (1024, 1023)] {
            let mut done = 0;
            for piece in pieces(offset, len, 512) {
                assert_eq!(piece.range.start, done);
                assert!(piece.start + piece.range.len() <= 512 && !piece.range.is_empty());
                assert_eq!(piece.granule * 512 + piece.start as u64, offset + done as u64);
                done = piece.range.end;
            }
            assert_eq!(done, len);
        }
    }
}
