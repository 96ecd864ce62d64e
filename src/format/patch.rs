//! Patch payloads: a frame's payload as what changed since another frame, its *base*, in the same file.
//!
//! Knows bytes only: what may be a base, and where it lies, is the log's business. A base is never a patch itself, so
//! decoding one takes the base and one decompression.

use super::compress::{DecodeFault, TextDecoder, encode_with_prefix};
use crate::{Result, limits};

/// Codec of a frame whose payload stands as it is.
pub const CODEC_PLAIN: u8 = 0;
/// Codec of an events frame whose payload is a patch.
// Format: section 5.1.
pub const CODEC_PATCH: u8 = 1;

/// The fastest level: with a prefix, others find hardly more.
const LEVEL: i32 = 1;
/// Bytes of the base's offset.
const BASE_BYTES: usize = 8;
const _: () = assert!(Patch::LOST_BYTES as usize == BASE_BYTES);

/// Appends to `out` a patch that makes `text` of `base`, which stands at the offset `base_at`.
///
/// # Errors
///
/// [`Limit`](crate::ErrorKind::Limit) when there is no memory for it.
// Format: section 5.1.
pub fn encode_patch(base_at: u64, base: &[u8], text: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut frame = Vec::new();
    encode_with_prefix(LEVEL, base, text, &mut frame)?;
    out.extend_from_slice(&base_at.to_le_bytes());
    out.extend_from_slice(&frame);
    Ok(())
}

/// A patch as it is read: the offset of its base, and what changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch<'p> {
    /// Where the base stands in the file; 0, where no frame stands, if it was lost.
    pub base_at: u64,
    frame: &'p [u8],
}

impl<'p> Patch<'p> {
    /// Bytes of [`lost`](Self::lost).
    pub const LOST_BYTES: u32 = 8;

    /// Reads a payload; `None` if it is too short to be a patch.
    #[must_use]
    pub fn read(payload: &'p [u8]) -> Option<Self> {
        let (base_at, frame) = payload.split_first_chunk::<BASE_BYTES>()?;
        Some(Self { base_at: u64::from_le_bytes(*base_at), frame })
    }

    /// Changes where the base of a patch payload stands.
    pub fn set_base(payload: &mut [u8], base_at: u64) {
        if let Some(field) = payload.first_chunk_mut::<BASE_BYTES>() {
            *field = base_at.to_le_bytes();
        }
    }

    /// The payload of a patch whose base was lost.
    #[must_use]
    pub const fn lost() -> [u8; BASE_BYTES] {
        [0; BASE_BYTES]
    }

    /// Replaces what `text` holds by what the patch makes of `base`, which must be `text_bytes` long.
    ///
    /// # Errors
    ///
    /// The [`DecodeFault`], before anything is allocated if the length exceeds
    /// [`FRAME_PAYLOAD_BYTES_MAX`](limits::FRAME_PAYLOAD_BYTES_MAX).
    pub fn apply(
        &self,
        base: &[u8],
        text_bytes: u32,
        decoder: &mut TextDecoder,
        text: &mut Vec<u8>,
    ) -> Result<(), DecodeFault> {
        let too_long = DecodeFault::Damaged("content longer than any payload");
        if u64::from(text_bytes) > limits::FRAME_PAYLOAD_BYTES_MAX {
            return Err(too_long);
        }
        let text_bytes = usize::try_from(text_bytes).map_err(|_| too_long)?;
        decoder.decode(self.frame, base, text_bytes, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of about `bytes` that differs from others at its begin, in its middle and at its end.
    fn text(bytes: usize, number: usize) -> Vec<u8> {
        let half: String = (0..).map(|n| format!("word{} ", n * 7919 % 5003)).take(bytes / 18).collect();
        format!("{number}{half}edit {number}{half}reason {number}").into_bytes()
    }

    fn apply(patch: &[u8], base: &[u8], text_bytes: usize) -> Result<Vec<u8>, DecodeFault> {
        let mut text = Vec::new();
        let patch = Patch::read(patch).ok_or(DecodeFault::Damaged("short"))?;
        assert_eq!(patch.base_at, 4136);
        let text_bytes = u32::try_from(text_bytes).unwrap();
        patch.apply(base, text_bytes, &mut TextDecoder::new().unwrap(), &mut text).map(|()| text)
    }

    #[test]
    fn what_changed_is_small_at_any_size_and_comes_back() {
        for bytes in [1 << 10, 60 << 10, 200 << 10, 1 << 20] {
            let (base, new) = (text(bytes, 1), text(bytes, 23));
            let mut patch = Vec::new();
            encode_patch(4136, &base, &new, &mut patch).unwrap();
            assert!(patch.len() < 64 + bytes / 4096, "{} bytes for {bytes}", patch.len());
            assert_eq!(apply(&patch, &base, new.len()).unwrap(), new);
            assert!(apply(&patch, &base, new.len() - 1).is_err());
            assert!(apply(&patch, &base, new.len() + 1).is_err());
        }
    }

    #[test]
    fn bytes_are_pinned() {
        let (base, new) = ([b"a text ".repeat(9), b"1".to_vec()].concat(), b"a text ".repeat(9));
        let mut patch = Vec::new();
        encode_patch(4136, &base, &new, &mut patch).unwrap();
        assert_eq!(patch[..13], [0x28, 0x10, 0, 0, 0, 0, 0, 0, 0x28, 0xB5, 0x2F, 0xFD, 0x00]);
    }

    #[test]
    fn nothing_is_read_from_too_few_bytes_and_nothing_allocated_for_too_many() {
        assert_eq!(Patch::read(&[0; 7]), None);
        assert_eq!(Patch::read(&Patch::lost()).unwrap().base_at, 0);
        let (base, new) = (text(1 << 10, 1), text(1 << 10, 2));
        let mut patch = Vec::new();
        encode_patch(4136, &base, &new, &mut patch).unwrap();
        let above = usize::try_from(limits::FRAME_PAYLOAD_BYTES_MAX).unwrap() + 1;
        assert!(apply(&patch, &base, above).is_err());
        for cut in 8..patch.len() {
            assert!(apply(&patch[..cut], &base, new.len()).is_err(), "cut at {cut}");
        }
    }
}
