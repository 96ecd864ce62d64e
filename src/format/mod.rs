//! Bytes to values and back. No I/O, no clock.
//!
//! The layout is stated once, in [`docs`]; each codec names the section it implements. Decoders take any
//! bytes: they never panic and allocate nothing that depends on a number they read.

pub(crate) mod checkpoint;
mod checksum;
pub(crate) mod codec;
pub mod compress;
mod control;
mod file_header;
mod frame;
mod patch;
mod record;
pub mod sealed;
mod segment;
mod varint;
mod version;

use checksum::Crc32;
pub use checksum::crc32;
pub use control::{CreatePayload, SharedPrefix, SummaryPayload, decode_vocabulary, encode_vocabulary};
pub use frame::{FrameHeader, FrameKind, FramePlace, padding_bytes, seal_frames};
pub use patch::{CODEC_PATCH, CODEC_PLAIN, Patch, encode_patch};
pub use record::{EventType, Record, RecordReader, RecordWriter, Sources, SurfaceOp};
pub use segment::{PreviousEnd, SegmentHeader, StoreId, parse_segment_name, segment_file_name};
pub use version::{FORMAT_VERSION, Features};

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 40;
/// Frames begin at multiples of this many bytes.
pub const FRAME_ALIGN_BYTES: usize = 8;
/// Bytes of a segment header: the offset of a segment's first frame.
pub const SEGMENT_HEADER_BYTES: usize = 4096;

#[doc = include_str!("../docs/format.md")]
pub mod docs {}
