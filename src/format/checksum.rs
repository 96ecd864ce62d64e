//! The one call into the CRC library.

/// CRC-32/ISO-HDLC of `bytes`.
// Format: section 2.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn has_the_check_value_of_the_named_polynomial() {
        assert_eq!(super::crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(super::crc32(b""), 0);
    }
}
