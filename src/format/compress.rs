//! Zstandard frames, encoded and decoded: the only user of the zstd library.
//!
//! Decoding is streamed into buffers of the caller's size; nothing is ever allocated from a size that a
//! header claims, except the window, which is capped. Reused contexts make a frame cost no set-up.

use zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::ZSTD_WINDOW_LOG_MAX;

/// Level of the frames that the engine writes: zstd's own default.
pub const LEVEL_DEFAULT: i32 = 3;

/// Decodes frames piece by piece. One decoder serves any number of frames.
pub struct FrameDecoder(DCtx<'static>);

/// What one step of a [`FrameDecoder`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes taken from the input.
    pub consumed: usize,
    /// Bytes written to the output.
    pub produced: usize,
    /// The frame is complete: all of its content was produced and its checksum, if any, matched.
    pub frame_ended: bool,
}

/// Why a frame does not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeFault {
    /// The content decoded, but its checksum does not match.
    Checksum,
    /// The frame is malformed; the library's own words say how.
    Damaged(&'static str),
    /// The machine has no memory for the frame's window.
    OutOfMemory,
}

impl FrameDecoder {
    /// A decoder that accepts windows of up to 2^[`ZSTD_WINDOW_LOG_MAX`] bytes and no dictionary.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] when there is no memory for it.
    pub fn new() -> Result<Self> {
        let mut context = DCtx::try_create().ok_or_else(|| no_memory("create a zstd decoder"))?;
        context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX)).map_err(library_error)?;
        Ok(Self(context))
    }

    /// Forgets the frame in progress: the next input begins a frame.
    pub fn start_frame(&mut self) {
        // Resetting the session of a live context has no way to fail.
        let _infallible = self.0.reset(ResetDirective::SessionOnly);
    }

    /// Decodes as much of `input` as `output` has room for. No progress at all means that the decoder needs
    /// more input (given that there was room).
    ///
    /// # Errors
    ///
    /// The frame's [`DecodeFault`]; after it only [`start_frame`](Self::start_frame) makes sense.
    pub fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, DecodeFault> {
        let mut source = InBuffer::around(input);
        let mut sink = OutBuffer::around(output);
        let hint = self.0.decompress_stream(&mut sink, &mut source).map_err(fault)?;
        Ok(Progress { consumed: source.pos(), produced: sink.pos(), frame_ended: hint == 0 })
    }
}

impl std::fmt::Debug for FrameDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameDecoder")
    }
}

/// Encodes whole frames. One encoder serves any number of frames.
pub struct FrameEncoder(CCtx<'static>);

impl FrameEncoder {
    /// An encoder of the given level, with or without a content checksum. Its frames state no content size,
    /// as those of the reference (spec section 21).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] when there is no memory for it, [`ErrorKind::Invalid`] for an impossible level.
    pub fn new(level: i32, checksum: bool) -> Result<Self> {
        Self::with(level, checksum, false)
    }

    /// An encoder of the given level without a content checksum. Its frames state their content size, as those in the
    /// cells of the reference's databases (spec section 21).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_content_size(level: i32) -> Result<Self> {
        Self::with(level, false, true)
    }

    fn with(level: i32, checksum: bool, content_size: bool) -> Result<Self> {
        let mut context = CCtx::try_create().ok_or_else(|| no_memory("create a zstd encoder"))?;
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::ChecksumFlag(checksum),
            CParameter::ContentSizeFlag(content_size),
        ] {
            context.set_parameter(parameter).map_err(library_error)?;
        }
        Ok(Self(context))
    }

    /// Replaces what `frame` holds by one frame with the content `text`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] when there is no memory for it.
    pub fn encode(&mut self, text: &[u8], frame: &mut Vec<u8>) -> Result<()> {
        frame.clear();
        frame.reserve(zstd_safe::compress_bound(text.len()));
        self.0.compress2(frame, text).map_err(library_error)?;
        Ok(())
    }
}

impl std::fmt::Debug for FrameEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameEncoder")
    }
}

/// The longest prefix that is searched as any text is, in bytes; searching at long distance costs half as much again.
const NEAR_PREFIX_BYTES_MAX: usize = 96 << 10;

/// Replaces what `frame` holds by one frame with the content `text`, which may refer to `prefix`: of a text that
/// differs a little from its prefix the frame holds the differences.
///
/// The window covers both, so that the start of the prefix is still in sight at the end of the text. Of a prefix longer
/// than 128 KiB level 1 loses sight even so; long-distance matching finds it.
///
/// # Errors
///
/// [`ErrorKind::Limit`] when there is no memory for it.
pub fn encode_with_prefix(level: i32, prefix: &[u8], text: &[u8], frame: &mut Vec<u8>) -> Result<()> {
    // A context borrows its prefix for as long as it lives, so each frame has its own.
    let mut context = CCtx::try_create().ok_or_else(|| no_memory("create a zstd encoder"))?;
    let reach = u64::try_from(prefix.len().saturating_add(text.len())).unwrap_or(u64::MAX);
    let window_log = (reach.max(2) - 1).ilog2() + 1;
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::ChecksumFlag(false),
        CParameter::ContentSizeFlag(false),
        CParameter::WindowLog(window_log.clamp(10, ZSTD_WINDOW_LOG_MAX)),
        CParameter::EnableLongDistanceMatching(prefix.len() > NEAR_PREFIX_BYTES_MAX),
    ] {
        context.set_parameter(parameter).map_err(library_error)?;
    }
    context.ref_prefix(prefix).map_err(library_error)?;
    frame.clear();
    frame.reserve(zstd_safe::compress_bound(text.len()));
    // Compressing in one call pledges the size.
    context.compress2(frame, text).map_err(library_error)?;
    Ok(())
}

/// Decodes whole frames of a known content length. One decoder serves any number of frames.
pub struct TextDecoder(DCtx<'static>);

impl TextDecoder {
    /// A new decoder.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`] when there is no memory for it.
    pub fn new() -> Result<Self> {
        DCtx::try_create().map(Self).ok_or_else(|| no_memory("create a zstd decoder"))
    }

    /// Replaces what `text` holds by the content of `frame`, which must be `text_bytes` long; `prefix` is what the
    /// frame was encoded with, empty if with nothing. The caller has checked the length against its limits: room
    /// for it is allocated.
    ///
    /// # Errors
    ///
    /// The frame's [`DecodeFault`].
    pub fn decode(
        &mut self,
        frame: &[u8],
        prefix: &[u8],
        text_bytes: usize,
        text: &mut Vec<u8>,
    ) -> Result<(), DecodeFault> {
        text.clear();
        text.try_reserve_exact(text_bytes).map_err(|_| DecodeFault::OutOfMemory)?;
        // Prefixes are UTF-8 texts or event records, and never look like a trained dictionary, whose magic is neither.
        self.0.decompress_using_dict(text, frame, prefix).map_err(fault)?;
        if text.len() == text_bytes {
            return Ok(());
        }
        Err(DecodeFault::Damaged("content of another length"))
    }
}

impl std::fmt::Debug for TextDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextDecoder")
    }
}

fn fault(code: zstd_safe::ErrorCode) -> DecodeFault {
    if is(code, ZSTD_ErrorCode::ZSTD_error_checksum_wrong) {
        DecodeFault::Checksum
    } else if is(code, ZSTD_ErrorCode::ZSTD_error_memory_allocation) {
        DecodeFault::OutOfMemory
    } else {
        DecodeFault::Damaged(zstd_safe::get_error_name(code))
    }
}

/// The library returns its error numbers negated, in a `size_t`.
fn is(code: zstd_safe::ErrorCode, error: ZSTD_ErrorCode) -> bool {
    usize::try_from(error as u32).is_ok_and(|number| code == number.wrapping_neg())
}

fn library_error(code: zstd_safe::ErrorCode) -> Error {
    if is(code, ZSTD_ErrorCode::ZSTD_error_memory_allocation) {
        return no_memory("compress");
    }
    Error::new(ErrorKind::Invalid, format!("use zstd: {}", zstd_safe::get_error_name(code)))
}

fn no_memory(attempted: &str) -> Error {
    Error::new(ErrorKind::Limit, format!("{attempted}: out of memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame_of(text: &[u8], checksum: bool) -> Vec<u8> {
        let mut frame = Vec::new();
        FrameEncoder::new(LEVEL_DEFAULT, checksum).unwrap().encode(text, &mut frame).unwrap();
        frame
    }

    /// Decodes one frame through small buffers.
    fn decode(decoder: &mut FrameDecoder, frame: &[u8]) -> Result<(Vec<u8>, bool), DecodeFault> {
        let (mut text, mut room, mut at) = (Vec::new(), [0; 7], 0);
        decoder.start_frame();
        loop {
            let input = &frame[at..frame.len().min(at + 5)];
            let step = decoder.step(input, &mut room)?;
            at += step.consumed;
            text.extend_from_slice(&room[..step.produced]);
            if step.frame_ended || step.consumed == 0 && step.produced == 0 {
                return Ok((text, step.frame_ended));
            }
        }
    }

    #[test]
    fn frames_have_the_shape_that_the_reference_writes() {
        let frame = frame_of(b"{}\n", true);
        assert_eq!(frame[..5], [0x28, 0xB5, 0x2F, 0xFD, 0x04]);
        assert_eq!(frame_of(b"{}\n", false)[4], 0x00);
    }

    #[test]
    fn one_context_serves_many_frames_of_any_content() {
        let mut decoder = FrameDecoder::new().unwrap();
        let mut encoder = FrameEncoder::new(LEVEL_DEFAULT, true).unwrap();
        let mut frame = Vec::new();
        for text in [Vec::new(), b"a".to_vec(), vec![b'x'; 300_000], (0..=255).cycle().take(5_000).collect()]
        {
            encoder.encode(&text, &mut frame).unwrap();
            assert_eq!(decode(&mut decoder, &frame), Ok((text, true)));
        }
    }

    #[test]
    fn a_wrong_checksum_is_told_from_other_damage_and_a_cut_from_both() {
        let frame = frame_of(b"some text that is long enough to be kept", true);
        let mut decoder = FrameDecoder::new().unwrap();

        let mut wrong = frame.clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(decode(&mut decoder, &wrong), Err(DecodeFault::Checksum));

        let mut reserved_block = frame.clone();
        reserved_block[6] |= 6;
        assert!(matches!(decode(&mut decoder, &reserved_block), Err(DecodeFault::Damaged(_))));

        let (text, ended) = decode(&mut decoder, &frame[..frame.len() - 1]).unwrap();
        assert_eq!((text.len(), ended), (40, false));
    }

    #[test]
    fn a_window_above_the_limit_is_refused() {
        // Window descriptor 17 << 3 = 128 MiB, the largest; one eighth more is too large.
        let empty_block = [0x01, 0x00, 0x00];
        let frame = |window: u8| [&[0x28, 0xB5, 0x2F, 0xFD, 0x00, window][..], &empty_block].concat();
        let mut decoder = FrameDecoder::new().unwrap();
        assert_eq!(decode(&mut decoder, &frame(17 << 3)), Ok((Vec::new(), true)));
        assert!(matches!(decode(&mut decoder, &frame(17 << 3 | 1)), Err(DecodeFault::Damaged(_))));
    }
}
