//! Every bound of the engine, by name. Exceeding one is a [`Limit`](crate::ErrorKind::Limit) error
//! (or refusal kind `limit`), decided before anything is allocated or written.

/// Largest record: one event as it is stored, or one line of an imported log, in bytes.
pub const RECORD_BYTES_MAX: u64 = 256 << 20;
/// Largest batch: all events of one append, in bytes as stored.
pub const BATCH_BYTES_MAX: u64 = 512 << 20;
/// Longest session id, in bytes of UTF-8; an id has at least one byte.
pub const SESSION_ID_BYTES_MAX: usize = 1024;
/// Rows of a database's table of sessions without a usable id that get a fault each; the rest is counted.
pub const SESSION_ROWS_TOLD_MAX: usize = 16;
/// Most members of `sourceEventSeqs` of one event.
pub const SOURCES_PER_EVENT_MAX: usize = 1 << 25;
/// Longest event type, in bytes of UTF-8.
pub const TYPE_NAME_BYTES_MAX: usize = 1024;
/// Most event types that one frame registers.
pub const VOCABULARY_NAMES_MAX: usize = 1 << 16;
/// Most events in one session: a seq fits in 32 bits with the highest value kept free.
pub const EVENTS_PER_SESSION_MAX: u64 = u32::MAX as u64 - 1;
/// Largest integer that a JSON number carries without loss: 2^53 - 1.
pub const SAFE_INTEGER_MAX: i64 = (1 << 53) - 1;
/// Largest payload of one frame as stored or decoded, in bytes: a record and its envelope.
pub const FRAME_PAYLOAD_BYTES_MAX: u64 = RECORD_BYTES_MAX + (64 << 20);
/// Size at which a segment is closed and the next one begun, unless the options say otherwise, in bytes.
pub const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// Smallest segment size that the options accept, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Largest segment size that the options accept, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Size of one step of zeroing ahead in the active segment, in bytes.
pub const ZERO_AHEAD_STEP_BYTES: u64 = 4 << 20;
/// Space that a store keeps on the disk for removals and compactions, in bytes.
pub const RESERVE_BYTES: u64 = 16 << 10;
/// Bytes that may wait in the commit queue before callers wait for room.
pub const QUEUE_BYTES_MAX: u64 = 64 << 20;
/// Unsynced bytes in the log above which upkeep syncs them: about what recovery may have to move.
pub const UNSYNCED_BYTES_MAX: u64 = 8 << 20;
/// Size of the buffer that a commit group streams through, in bytes.
pub const WRITE_BUFFER_BYTES: usize = 1 << 20;
/// Segment files that a log keeps open for reading.
pub const SEGMENT_FILES_OPEN_MAX: usize = 128;
/// Largest window of a zstd frame that is accepted, as a power of two: 128 MiB.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Events of one append after which its run is continued in another frame, in bytes as stored.
pub const FRAME_RUN_BYTES: usize = 256 << 10;
/// Shortest data of a versioned event (a request header) that is written as what changed since an earlier one, in bytes:
/// compressing a shorter one costs more time than writing it.
pub const PATCHED_DATA_BYTES_MIN: usize = 4 << 10;
/// Frames that a scan remembers because patches refer to them.
pub const PATCH_BASES_MAX: usize = 64;
/// Their bytes together; one of any size may come on top.
pub const PATCH_BASES_BYTES_MAX: usize = 8 << 20;
/// Data text after which a unit of a sealed file is closed, in bytes; a longer event has a unit of its own.
pub const SEALED_UNIT_TEXT_BYTES: usize = 10 << 10;
/// Most events in one unit of a sealed file.
pub const SEALED_UNIT_EVENTS_MAX: u32 = 2048;
/// Encoded envelopes after which a unit of a sealed file is closed, in bytes.
pub const SEALED_UNIT_ENVELOPE_BYTES: usize = 64 << 10;
/// Control records after which a piece of them is closed, in bytes; a longer one has a piece of its own.
pub const SEALED_CONTROL_PIECE_BYTES: usize = 64 << 10;
/// Most pieces of a sealed file that reading one piece decodes on the way to it.
pub const SEALED_CHAIN_MAX: u8 = 32;
/// Shortest part of an event's data that a sealed file stores apart, in bytes.
pub const SEALED_SPAN_BYTES_MIN: usize = 4096;
/// Distinct texts that a sealed file's builder remembers to find repetitions; further ones are not looked for.
pub const SEALED_TABLE_ENTRIES_MAX: usize = 1 << 18;
/// Reads of a sealed file by position, after which it is mapped: a few times what resuming a session takes.
pub const SEALED_READS_UNMAPPED_MAX: u32 = 256;
/// Decoded units and pieces of sealed files that an open store keeps for later reads, in bytes.
pub const DECODED_CACHE_BYTES: usize = 16 << 20;
/// Most units of a range that is read through that cache: a longer one is a scan, and leaves the cache as it is.
pub const CACHED_RANGE_UNITS_MAX: u32 = 16;
/// Size of the buffer that a sealed file is written through, in bytes.
pub const SEALED_WRITE_BUFFER_BYTES: usize = 256 << 10;
/// Events of one step that a redacting export holds back to search their streamed text as a whole, in bytes of memory.
pub const REDACTION_HELD_BYTES_MAX: usize = 128 << 20;
/// Frames of a damaged zstd file that do not decode and are decoded again as torn ones.
pub const FRAMES_RETRIED_MAX: u32 = 64;
/// Blocks of a damaged zstd file that are walked without finding a complete frame.
pub const BLOCKS_WALKED_IN_VAIN_MAX: u64 = 1 << 18;
/// Last records of each branch of a log under repair that later ones are compared with.
pub const REPAIR_RECORDS_COMPARED_MAX: usize = 1 << 18;
/// Steps that the plan for a database lists of all its sessions; of further sessions the sums are kept.
pub const REPAIR_STEPS_LISTED_MAX: usize = 10_000;
/// Most branches of a forked log that a repair tells apart.
pub const REPAIR_BRANCHES_MAX: usize = 8;
/// Largest state of one session in a checkpoint once decoded, in bytes; a larger one is folded at each resume.
pub const CHECKPOINT_BYTES_MAX: usize = 256 << 20;
/// Largest section of such a state, each integer counted as wide as it is in memory and each text with the eight bytes of
/// its length, in bytes. In memory a section takes a small multiple of that at most.
pub const CHECKPOINT_SECTION_BYTES_MAX: usize = CHECKPOINT_BYTES_MAX / 8;
/// Most sessions in one checkpoint file.
pub const CHECKPOINT_SESSIONS_MAX: u32 = 1 << 22;
/// Events behind a session's last checkpoint from which on a new one is worth its while.
pub const CHECKPOINT_LAG_EVENTS_MIN: u64 = 64;
/// Events that a session in use may run ahead of its last checkpoint before a new one is called for: what a resume after a
/// crash has to fold.
pub const CHECKPOINT_LIVE_LAG_EVENTS: u64 = 8192;
/// Checkpoint files above which they are merged into one.
pub const CHECKPOINT_FILES_MAX: usize = 8;
/// Checkpoint files that are looked at, the newest ones; more are not of our making.
pub const CHECKPOINT_FILES_READ_MAX: usize = 32;
/// States of sessions that nobody holds any more which wait in memory for the next checkpoint file, in bytes as stored.
pub const CHECKPOINT_IDLE_BYTES_MAX: usize = 8 << 20;
/// Warnings of one kind, and records cut from a tail, that a report lists; the rest is counted.
pub const WARNINGS_LISTED_MAX: u64 = 100;

const _: () = assert!(RECORD_BYTES_MAX < BATCH_BYTES_MAX);
const _: () = assert!(CHECKPOINT_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(CHECKPOINT_FILES_MAX < CHECKPOINT_FILES_READ_MAX);
const _: () = assert!(CHECKPOINT_LAG_EVENTS_MIN < CHECKPOINT_LIVE_LAG_EVENTS);
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX < u32::MAX as u64);
const _: () =
    assert!(SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT && SEGMENT_BYTES_DEFAULT <= SEGMENT_BYTES_MAX);
