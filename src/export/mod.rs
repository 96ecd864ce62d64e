//! Writes sessions in formats that the reference opens. What is written reads back as the same events.
//!
//! A file appears under its name only when it is whole and durable, and never takes the place of another.

mod jsonl;
mod pack;
mod publish;

pub use jsonl::{JsonlFormat, JsonlWriter};
pub use publish::{publish_file, publish_session};
