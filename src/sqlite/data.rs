//! `data` as a cell: JSON text, or a zstd frame of it where that is smaller (spec section 15.3).
//!
//! Reading takes the first frame of a BLOB and never makes more text than the caller allows.

use crate::error::Result;
use crate::format::compress::{DecodeFault, FrameDecoder, FrameEncoder, LEVEL_DEFAULT};
use crate::limits::ZSTD_WINDOW_LOG_MAX;

/// Shortest text that is tried to compress, in bytes.
const COMPRESSED_BYTES_MIN: usize = 4096;
/// Longest text that is compressed: its frame has a window of the whole text, and readers bound that.
const COMPRESSED_BYTES_MAX: usize = 1 << ZSTD_WINDOW_LOG_MAX;
/// Room that is first made for the text of a frame, in bytes.
const ROOM_BYTES_MIN: usize = 16 << 10;

/// Turns texts into cells.
#[derive(Debug)]
pub(crate) struct DataEncoder {
    encoder: FrameEncoder,
    frame: Vec<u8>,
}

impl DataEncoder {
    /// # Errors
    ///
    /// [`Limit`](crate::ErrorKind::Limit) when there is no memory for it.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { encoder: FrameEncoder::with_content_size(LEVEL_DEFAULT)?, frame: Vec::new() })
    }

    /// The BLOB to store for `text`; `None` if the text itself is to be stored.
    pub(crate) fn blob(&mut self, text: &str) -> Result<Option<&[u8]>> {
        if !(COMPRESSED_BYTES_MIN..=COMPRESSED_BYTES_MAX).contains(&text.len()) {
            return Ok(None);
        }
        self.encoder.encode(text.as_bytes(), &mut self.frame)?;
        Ok((self.frame.len() < text.len()).then_some(&self.frame))
    }
}

/// Why a BLOB gives no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlobFault {
    /// The text is longer than allowed.
    TooLong,
    /// The frame ends too early.
    Cut,
    /// The frame does not decode.
    Frame(DecodeFault),
}

/// Appends the content of the first frame of `blob`, at most `bytes_max` bytes, to `text`.
///
/// # Errors
///
/// Why there is none. What `text` holds behind its former end is then not to be used.
pub(crate) fn decode(
    decoder: &mut FrameDecoder,
    mut blob: &[u8],
    bytes_max: usize,
    text: &mut Vec<u8>,
) -> Result<(), BlobFault> {
    decoder.start_frame();
    let start = text.len();
    let mut end = start;
    loop {
        if end == text.len() {
            // One byte of room beyond the bound tells a text that fits from one that does not.
            let room = ((end - start) * 2).max(ROOM_BYTES_MIN).min(bytes_max.saturating_add(1));
            if room <= end - start {
                return Err(BlobFault::TooLong);
            }
            let more = start + room - end;
            text.try_reserve_exact(more).map_err(|_| BlobFault::Frame(DecodeFault::OutOfMemory))?;
            text.resize(start + room, 0);
        }
        let step = decoder.step(blob, &mut text[end..]).map_err(BlobFault::Frame)?;
        blob = &blob[step.consumed..];
        end += step.produced;
        if step.frame_ended {
            text.truncate(end);
            return if end - start <= bytes_max { Ok(()) } else { Err(BlobFault::TooLong) };
        }
        if step.consumed == 0 && step.produced == 0 {
            return Err(BlobFault::Cut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob_of(text: &str) -> Option<Vec<u8>> {
        DataEncoder::new().unwrap().blob(text).unwrap().map(<[u8]>::to_vec)
    }

    fn text_of(blob: &[u8], bytes_max: usize) -> Result<Vec<u8>, BlobFault> {
        let mut text = b"before".to_vec();
        decode(&mut FrameDecoder::new().unwrap(), blob, bytes_max, &mut text)?;
        Ok(text.strip_prefix(b"before").unwrap().to_vec())
    }

    #[test]
    fn only_long_texts_that_shrink_become_blobs() {
        assert_eq!(blob_of(&"x".repeat(4095)), None);
        let blob = blob_of(&"x".repeat(4096)).unwrap();
        // A single segment with its content size of two bytes, no checksum.
        assert_eq!(blob[..7], [0x28, 0xB5, 0x2F, 0xFD, 0x60, 0x00, 0x0F]);
        let mut state = 1_u64;
        let noise = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from_u32(0x1000 + u32::try_from(state >> 49).unwrap()).unwrap()
        };
        let noise: String = (0..1_000).map(noise).collect();
        let stored = blob_of(&noise);
        assert!(stored.is_none_or(|blob| blob.len() < noise.len()));
    }

    #[test]
    fn a_blob_gives_its_first_frame_within_the_bound() {
        let text = "abc".repeat(100_000);
        let mut blob = blob_of(&text).unwrap();
        assert_eq!(text_of(&blob, text.len()).as_deref(), Ok(text.as_bytes()));
        assert_eq!(text_of(&blob, text.len() - 1), Err(BlobFault::TooLong));
        assert_eq!(text_of(&blob, 0), Err(BlobFault::TooLong));
        assert_eq!(text_of(&blob[..blob.len() - 1], 1 << 20), Err(BlobFault::Cut));
        blob.extend_from_slice(b"whatever follows");
        assert_eq!(text_of(&blob, 1 << 20).map(|text| text.len()), Ok(text.len()));
        assert_eq!(text_of(b"", 10), Err(BlobFault::Cut));
        assert!(matches!(text_of(b"no frame", 10), Err(BlobFault::Frame(DecodeFault::Damaged(_)))));
    }
}
