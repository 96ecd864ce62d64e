//! Values of the projections as bytes: the only user of bincode.
//!
//! Its standard layout, written down in section 11.3: integers of variable width, signed ones as zigzag, sequences and
//! texts with their length before them, an option as 0 or 1 and the value, fields in order and without names.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::CHECKPOINT_SECTION_BYTES_MAX;
use crate::{Error, ErrorKind, Result};

/// The bytes of `value`.
///
/// # Errors
///
/// [`ErrorKind::Limit`] if the value cannot be written down, or could not be read again.
// Format: section 11.3.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let limit = |why: &dyn Display| Error::new(ErrorKind::Limit, format!("encode checkpoint: {why}"));
    let bytes = bincode::serde::encode_to_vec(value, bincode::config::standard());
    let bytes = bytes.map_err(|error| limit(&error))?;
    if bytes.len() > CHECKPOINT_SECTION_BYTES_MAX { Err(limit(&"it is too large")) } else { Ok(bytes) }
}

/// The value that all of `bytes` stand for, if they do. Texts are checked against the bytes that are there before
/// they are copied, and sequences grow as their members are met, so a wrong length allocates nothing; members count as wide as
/// they are in memory, so many of one byte do not become more than the bound allows.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let config = bincode::config::standard().with_limit::<CHECKPOINT_SECTION_BYTES_MAX>();
    let decoded: Result<(T, usize), _> = bincode::serde::borrow_decode_from_slice(bytes, config);
    decoded.ok().filter(|(_, consumed)| *consumed == bytes.len()).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Value = (u64, i64, Option<String>, Vec<i32>, Vec<u128>);

    #[test]
    fn the_layout_is_pinned() {
        let value: Value = (250, -1, Some("aé".into()), vec![1, -2, 300], vec![251, u128::MAX]);
        let bytes = encode(&value).unwrap();
        let mut expected =
            vec![250, 1, 1, 3, b'a', 0xc3, 0xa9, 3, 2, 3, 251, 0x58, 0x02, 2, 251, 251, 0, 254];
        expected.extend([0xff; 16]);
        assert_eq!(bytes, expected);
        assert_eq!(decode::<Value>(&bytes), Some(value));
    }

    #[test]
    fn members_of_one_byte_are_counted_as_wide_as_they_become() {
        let list = |members: usize| {
            let mut bytes = [&[252][..], &u32::try_from(members).unwrap().to_le_bytes()].concat();
            bytes.resize(bytes.len() + members, 0);
            bytes
        };
        let wide_max = CHECKPOINT_SECTION_BYTES_MAX / 16;
        assert_eq!(decode::<Vec<u128>>(&list(wide_max - 1)).map(|list| list.len()), Some(wide_max - 1));
        assert_eq!(decode::<Vec<u128>>(&list(wide_max + 1)), None);
        assert_eq!(decode::<Vec<String>>(&list(CHECKPOINT_SECTION_BYTES_MAX / 8 + 1)), None);
        assert!(encode(&"x".repeat(CHECKPOINT_SECTION_BYTES_MAX)).is_err());
    }

    #[test]
    fn cut_longer_and_boastful_bytes_are_no_value() {
        let bytes = encode(&("text".to_owned(), vec![1_u64, 2])).unwrap();
        type Pair = (String, Vec<u64>);
        for len in 0..bytes.len() {
            assert_eq!(decode::<Pair>(&bytes[..len]), None);
        }
        assert_eq!(decode::<Pair>(&[&bytes[..], &[0]].concat()), None);
        for claimed in [1_u64 << 20, 1 << 28, 1 << 40, u64::MAX] {
            let claim = [&[253][..], &claimed.to_le_bytes()].concat();
            assert_eq!(decode::<String>(&claim), None);
            assert_eq!(decode::<Vec<u128>>(&claim), None);
        }
        assert_eq!(decode::<String>(&[1, 0xff]), None, "not UTF-8");
    }
}
