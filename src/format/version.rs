//! The format version and the feature bits: what this code can read, and what it can write.

use crate::{Error, ErrorKind, Result};

/// The version that this code writes, and the highest that it reads.
pub const FORMAT_VERSION: u32 = 1;

const READ_COMPATIBLE_KNOWN: u64 = 0;
const INCOMPATIBLE_KNOWN: u64 = 0;

/// Feature bits of a file, in three classes by what a reader must do about one it does not know.
// Format: section 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// May be ignored by readers and writers.
    pub compatible: u64,
    /// May be ignored by readers; a writer must not touch the store.
    pub read_compatible: u64,
    /// Nobody may ignore these.
    pub incompatible: u64,
}

impl Features {
    /// Whether a file with these bits can be read.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an unknown incompatible bit.
    pub fn check_read(self) -> Result<()> {
        refuse(self.incompatible & !INCOMPATIBLE_KNOWN, "read store: it uses incompatible features")
    }

    /// Whether a store that has a file with these bits can be written.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an unknown incompatible or read-compatible bit.
    pub fn check_write(self) -> Result<()> {
        self.check_read()?;
        refuse(
            self.read_compatible & !READ_COMPATIBLE_KNOWN,
            "write store: it uses features that only a newer release can write",
        )
    }
}

fn refuse(unknown_bits: u64, message: &str) -> Result<()> {
    if unknown_bits == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("{message} (bits {unknown_bits:#x})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_unknown_bit_refuses_what_it_must() {
        let compatible = Features { compatible: 1 << 63, ..Features::default() };
        assert!(compatible.check_read().is_ok() && compatible.check_write().is_ok());
        let read_only = Features { read_compatible: 1, ..Features::default() };
        assert!(read_only.check_read().is_ok());
        assert_eq!(read_only.check_write().unwrap_err().kind(), ErrorKind::Unsupported);
        let foreign = Features { incompatible: 2, ..Features::default() };
        assert_eq!(foreign.check_read().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(foreign.check_write().unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
