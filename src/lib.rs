//! An embeddable, event-sourced storage engine for the session logs of AI agents.
//!
//! A session is an append-only log of events. Everything else is derived: the *surface* (the ordered events whose
//! messages the model sees, ranges of which later events may replace), the *request header* in force, the pairing of tool
//! calls, the open turn. Every event passes one gate, [`event::admit`], whichever door it comes through; what is
//! acknowledged as [`Synced`](Durability::Synced) survives a crash.
//!
//! ```
//! use sessionlog::event::SessionHeader;
//! use sessionlog::{AppendOptions, Draft, Seq, Store};
//!
//! # fn main() -> sessionlog::Result<()> {
//! # let dir = tempfile::tempdir().expect("a directory");
//! # let dir = dir.path().join("store");
//! let store = Store::open(&dir)?;
//! let session = store.create_session(SessionHeader::new("session-1", 1_767_225_600_000))?;
//!
//! let message = r#"{"id":"m1","role":"user","content":[{"type":"text","text":"hello"}],"source":{"kind":"user"}}"#;
//! let batch = [Draft::new("turn/start", r#"{"turn":1}"#), Draft::new("user/message", message).on_surface()];
//! session.append(&batch, AppendOptions::default())?.wait()?; // durable from here on
//!
//! assert_eq!(session.surface()?, [Seq::new(1)]);
//! assert_eq!(session.request()?.messages, [message]);
//!
//! let resumed = store.resume("session-1")?; // a turn that was cut is closed, durably
//! assert_eq!(resumed.next_seq()?, Seq::new(3));
//! # Ok(())
//! # }
//! ```
//!
//! Where to read on: [`docs`] (how the engine is built), [`format::docs`] (every byte on disk), [`log::docs`] (what a crash
//! can and cannot take). To read the code, start with [`event`], then `store`, then [`log`].

mod error;
pub mod event;
pub mod export;
pub mod format;
mod ids;
pub mod import;
pub mod limits;
pub mod log;
mod observe;
pub mod projection;
pub mod repair;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod storage;
mod store;

pub use error::{Error, ErrorKind, Result};
pub use ids::{Position, SegmentId, Seq, SessionKey, WriterEpoch};
pub use log::{Completion, Durability};
pub use store::{
    AppendOptions, Appended, Cancel, Clock, Compacted, Draft, Envelope, Events, FileStats, Finding,
    HeaderSnapshot, HeaderStats, ReplacementStats, Request, Revision, SegmentStats, Session,
    SessionCondition, SessionInfo, SessionWarning, Snapshot, Stats, Store, StoreOptions, Submission,
    TypeStats, VerifyOptions, VerifyReport,
};

#[doc = include_str!("docs/architecture.md")]
pub mod docs {}

/// Keeps the example of the README compiling.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
