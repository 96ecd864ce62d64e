//! The only user of the CRC library.

/// CRC-32/ISO-HDLC of `bytes`.
// Format: section 2.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The same of bytes that come piece by piece.
#[derive(Debug, Default)]
pub(super) struct Crc32(crc32fast::Hasher);

impl Crc32 {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> u32 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn has_the_check_value_of_the_named_polynomial() {
        assert_eq!(super::crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(super::crc32(b""), 0);
    }
}
