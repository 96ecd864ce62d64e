//! An embeddable, event-sourced storage engine for the session logs of AI agents.

mod error;
pub mod event;
pub mod export;
pub mod format;
mod ids;
pub mod import;
pub mod limits;
pub mod log;
pub mod projection;
pub mod storage;

pub use error::{Error, ErrorKind, Result};
pub use ids::{Position, SegmentId, Seq, SessionKey, WriterEpoch};
