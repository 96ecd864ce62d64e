//! Variable-length integers: LEB128 of a `u64`, shortest form only.

/// Appends `value`.
// Format: section 8.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a signed `value`, small magnitudes short.
pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned());
}

/// Takes a value off the front of `input`; `None` if there is none in its shortest form.
pub(super) fn take(input: &mut &[u8]) -> Option<u64> {
    // Most are small.
    if let Some((&byte, rest)) = input.split_first()
        && byte < 0x80
    {
        *input = rest;
        return Some(byte.into());
    }
    let mut value = 0;
    for (index, &byte) in input.iter().take(10).enumerate() {
        let low = u64::from(byte & 0x7f);
        if index == 9 && byte > 1 {
            return None;
        }
        value |= low << (7 * index);
        if byte & 0x80 == 0 {
            *input = &input[index + 1..];
            return (index == 0 || byte != 0).then_some(value);
        }
    }
    None
}

/// Takes a signed value off the front of `input`.
pub(super) fn take_signed(input: &mut &[u8]) -> Option<i64> {
    let raw = take(input)?;
    Some((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_and_are_pinned() {
        for (value, bytes) in [(0, &[0][..]), (127, &[127]), (128, &[0x80, 1]), (300, &[0xac, 2])] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out, bytes);
        }
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            let mut input = &out[..];
            assert_eq!(take(&mut input), Some(value));
            assert!(input.is_empty());
        }
        for value in [0, -1, 1, -64, 64, i64::MIN, i64::MAX] {
            let mut out = Vec::new();
            put_signed(&mut out, value);
            assert_eq!(take_signed(&mut &out[..]), Some(value));
        }
    }

    #[test]
    fn long_cut_and_overflowing_forms_are_refused() {
        for bad in [
            &[][..],
            &[0x80],
            &[0x80, 0],
            &[0xff, 0x80, 0],
            &[0xff; 10],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        ] {
            assert_eq!(take(&mut &bad[..]), None, "{bad:?}");
        }
    }
}
