//! Exports a stored session as a log that the reference opens.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::jsonl::{JsonlFormat, JsonlWriter};
use super::publish::{publish_file, publish_session};
use crate::ids::Seq;
use crate::{Result, Session};

/// Writes `session` below `root` in the reference's layout (spec section 14.1) and returns the file's path. The events are
/// those that are stored: an interrupted turn stays open. With `packed`, runs of chunk events become rows.
///
/// # Errors
///
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if a log of the session lies there already;
/// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if the file system takes no name as long as the escaped id; damage in the
/// session; [`ErrorKind::Io`](crate::ErrorKind::Io).
pub fn export_session(session: &Session, root: &Path, format: JsonlFormat, packed: bool) -> Result<PathBuf> {
    publish_session(root, format, packed, session.header(), |writer| write_events(session, writer))
}

/// Writes `session` to the file `path`, which must not exist.
///
/// # Errors
///
/// As [`export_session`].
pub fn export_session_to(session: &Session, path: &Path, format: JsonlFormat, packed: bool) -> Result<()> {
    publish_file(path, format, packed, session.header(), |writer| write_events(session, writer))
}

/// Writes `session` to a stream.
///
/// # Errors
///
/// Damage in the session; [`ErrorKind::Io`](crate::ErrorKind::Io).
pub fn write_session(session: &Session, out: impl Write, format: JsonlFormat, packed: bool) -> Result<()> {
    let mut writer = JsonlWriter::new(BufWriter::new(out), format, packed, session.header())?;
    write_events(session, &mut writer)?;
    let mut out = writer.finish()?;
    out.flush().map_err(|source| crate::Error::io("export: write", source))
}

fn write_events<W: Write>(session: &Session, writer: &mut JsonlWriter<W>) -> Result<()> {
    session.for_each(Seq::new(0)..session.next_seq()?, &mut |event| writer.event(&event))
}
