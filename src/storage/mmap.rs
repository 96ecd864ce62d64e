//! Read-only mappings of sealed files: the one place in the crate with `unsafe`.
//!
//! Must never map a file that may still change or be cut: a mapped byte beyond a file's end raises a signal that no
//! `Result` catches. Sealed files are written, synced and then never touched but to be deleted, which leaves a mapping
//! whole. Checks and copies read by position instead, so that a bad disk is an error there.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// The bytes of a sealed file, mapped.
#[derive(Debug)]
pub struct Mapping(Mmap);

impl Mapping {
    /// Maps all of a sealed file. The file may be closed afterwards.
    ///
    /// # Errors
    /// What the system reports.
    #[expect(unsafe_code, reason = "the system's mapping is a slice only as long as nobody changes the file")]
    pub(super) fn of_sealed(file: &File) -> io::Result<Self> {
        // SAFETY: the caller hands in a sealed file. Nobody writes to or cuts one once it has its name: its bytes were
        // final before the rename that published it, and the store's lock keeps other writers out of the directory.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self(map))
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use crate::storage::{Access, DiskStorage, Storage};

    #[test]
    fn only_sealed_files_opened_for_reading_are_mapped() {
        let directory = tempfile::tempdir().unwrap();
        let storage = DiskStorage::open(directory.path(), false).unwrap();
        for name in ["a.sealed", "b.log"] {
            let file = storage.create_new(name).unwrap();
            file.write_all_at(b"bytes", 0).unwrap();
            assert!(file.map().unwrap().is_none());
        }
        assert!(storage.open("b.log", Access::Read).unwrap().map().unwrap().is_none());
        assert!(storage.open("a.sealed", Access::Write).unwrap().map().unwrap().is_none());
        let mapping = storage.open("a.sealed", Access::Read).unwrap().map().unwrap().unwrap();
        #[cfg(unix)]
        storage.remove("a.sealed").unwrap();
        assert_eq!(mapping.as_ref(), b"bytes");
    }
}
