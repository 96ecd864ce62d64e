//! Judges a stored session as if it were a log: one view for files and sessions.

use std::io;

use super::judge::{JudgeOptions, judge};
use super::judgement::Judgement;
use super::{Item, Record, RecordOrigin, RecordSource};
use crate::ids::Seq;
use crate::{Error, Events, Result, Session};

/// Judges what the store holds of `session`, closers of an interrupted turn included in the view; writes nothing.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if its bytes are damaged.
pub fn judge_session(session: &Session, options: &JudgeOptions) -> Result<Judgement> {
    let mut header = String::new();
    session.header().write_json(&mut header);
    let events = session.events(Seq::new(0)..session.next_seq()?)?;
    let mut lines = StoredLines { line: header, number: 0, offset: 0, events, failed: None };
    let judgement = judge(&mut lines, options, &mut |_| Ok(()));
    match lines.failed {
        Some(error) => Err(error),
        None => judgement,
    }
}

/// The session as the lines of a JSONL log.
struct StoredLines {
    /// The line to come, or the one handed out last.
    line: String,
    number: u64,
    offset: u64,
    events: Events,
    failed: Option<Error>,
}

impl RecordSource for StoredLines {
    fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        if self.number > 0 {
            self.offset += self.line.len() as u64 + 1;
            match self.events.next() {
                None => return Ok(None),
                Some(Ok(event)) => {
                    self.line.clear();
                    event.write_json(&mut self.line);
                }
                Some(Err(error)) => {
                    self.failed = Some(error);
                    return Err(io::Error::other("stored events cannot be read"));
                }
            }
        }
        self.number += 1;
        let record = Record {
            bytes: self.line.as_bytes(),
            line: self.number,
            offset: self.offset,
            ended: true,
            lenient: false,
            origin: RecordOrigin::Line,
        };
        Ok(Some(Item::Record(record)))
    }
}
