//! `source_event_seqs` as a cell: differences of seqs as varints (spec section 15.3).
//!
//! Order and repetitions are kept, and a list has one spelling: what decodes encodes to the same bytes.

use crate::ids::Seq;
use crate::limits::{SAFE_INTEGER_MAX, SOURCES_PER_EVENT_MAX};

/// Longest varint, in bytes.
const VARINT_BYTES_MAX: usize = 8;
/// The largest seq of a cell.
const SEQ_MAX: u64 = SAFE_INTEGER_MAX.unsigned_abs();

/// Appends the cell of a list: the first seq, then the difference of each to the one before.
///
/// Format: unsigned LEB128 in its shortest form; a difference d is written as 2d, or as -2d - 1 if it is negative.
pub(crate) fn encode(sources: &[Seq], cell: &mut Vec<u8>) {
    let mut previous = None;
    for seq in sources.iter().map(|seq| seq.get()) {
        let value = match previous {
            None => seq,
            Some(previous) if seq >= previous => (seq - previous) * 2,
            Some(previous) => (previous - seq) * 2 - 1,
        };
        put(value, cell);
        previous = Some(seq);
    }
}

/// Reads a cell, handing each seq to `take`.
///
/// # Errors
///
/// What is wrong with it, for people. Some seqs may have been handed out by then.
pub(crate) fn decode(mut cell: &[u8], mut take: impl FnMut(u64)) -> Result<(), &'static str> {
    let mut previous = None;
    let mut count = 0;
    while !cell.is_empty() {
        let value = varint(&mut cell)?;
        let seq = match previous {
            None => Some(value),
            Some(previous) if value % 2 == 0 => u64::checked_add(previous, value / 2),
            Some(previous) => u64::checked_sub(previous, value / 2 + 1),
        };
        let seq = seq.filter(|seq| *seq <= SEQ_MAX).ok_or("a seq in it is no integer of 0 to 2^53 - 1")?;
        count += 1;
        if count > SOURCES_PER_EVENT_MAX {
            return Err("it has more seqs than are supported");
        }
        take(seq);
        previous = Some(seq);
    }
    Ok(())
}

fn put(mut value: u64, cell: &mut Vec<u8>) {
    while value >= 0x80 {
        cell.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    cell.push((value & 0x7F) as u8);
}

fn varint(cell: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0;
    for (index, &byte) in cell.iter().take(VARINT_BYTES_MAX).enumerate() {
        value |= u64::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            *cell = &cell[index + 1..];
            return if index > 0 && byte == 0 {
                Err("a number in it is not in its shortest form")
            } else {
                Ok(value)
            };
        }
    }
    Err(if cell.len() < VARINT_BYTES_MAX { "it ends inside a number" } else { "a number in it is too long" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(cell: &[u8]) -> Result<Vec<u64>, &'static str> {
        let mut seqs = Vec::new();
        decode(cell, |seq| seqs.push(seq)).map(|()| seqs)
    }

    #[test]
    fn lists_have_the_bytes_of_the_format() {
        let largest = [9_007_199_254_740_990, 0, 9_007_199_254_740_989];
        let cases: [(&[u64], &[u8]); 7] = [
            (&[], &[]),
            (&[4], &[0x04]),
            (&[19, 20, 4], &[0x13, 0x02, 0x1F]),
            (&[5, 6, 7, 8], &[0x05, 0x02, 0x02, 0x02]),
            (&[300], &[0xAC, 0x02]),
            (&[10, 10], &[0x0A, 0x00]),
            (
                &largest,
                &[
                    0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0xFB, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                    0x1F, 0xFA, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F,
                ],
            ),
        ];
        for (seqs, bytes) in cases {
            let mut cell = Vec::new();
            encode(&seqs.iter().copied().map(Seq::new).collect::<Vec<_>>(), &mut cell);
            assert_eq!(cell, bytes, "{seqs:?}");
            assert_eq!(decoded(bytes).as_deref(), Ok(seqs));
        }
    }

    #[test]
    fn cells_that_no_list_has_are_refused() {
        let cases: [&[u8]; 8] = [
            &[0x80],                                                 // it ends inside a number
            &[0x80, 0x00],                                           // not the shortest form
            &[0xFF; 9],                                              // too long
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01], // nine bytes
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10],       // 2^53
            &[0x04, 0x09],                                           // below 0
            &[0x04, 0x02, 0x80],                                     // it ends inside the third
            &[0x01, 0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F], // 1 + (2^53 - 1)
        ];
        for cell in cases {
            assert!(decoded(cell).is_err(), "{cell:02X?}");
        }
    }
}
