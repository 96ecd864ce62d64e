//! Writes sessions in formats that the reference opens. What is written reads back as the same events.
//!
//! A file appears under its name only when it is whole and durable, and never takes the place of another. Where the file
//! system has no hard links, an empty file holds the name for the moment before.

mod jsonl;
mod pack;
mod publish;
mod redact;
mod session;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use jsonl::{JsonlFormat, JsonlWriter};
pub(crate) use publish::Draft;
pub use redact::{FindSecrets, Redactor, Secret, Sink};
pub use session::{export_session, export_session_to, write_session};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteWriter;
