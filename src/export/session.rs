//! Exports a stored session as a log that the reference opens.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::jsonl::{JsonlFormat, JsonlWriter};
use super::publish::{publish_file, session_directory};
use crate::ids::Seq;
use crate::{Result, Session};

/// Writes `session` below `root` in the reference's layout (spec section 14.1) and returns the file's path. The events are
/// those that are stored: an interrupted turn stays open. With `packed`, runs of chunk events become rows.
///
/// # Errors
///
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if a log of the session lies there already; damage in the session;
/// [`ErrorKind::Io`](crate::ErrorKind::Io).
pub fn export_session(session: &Session, root: &Path, format: JsonlFormat, packed: bool) -> Result<PathBuf> {
    let cwd = session.header().cwd.as_ref().map(|cwd| cwd.to_lossy());
    let directory = session_directory(root, session.id(), cwd.as_deref())?;
    let path = directory.join(format.file_name());
    export_session_to(session, &path, format, packed)?;
    Ok(path)
}

/// Writes `session` to the file `path`, which must not exist.
///
/// # Errors
///
/// As [`export_session`].
pub fn export_session_to(session: &Session, path: &Path, format: JsonlFormat, packed: bool) -> Result<()> {
    publish_file(path, format, packed, &header_line(session), |writer| write_events(session, writer))
}

/// Writes `session` to a stream.
///
/// # Errors
///
/// Damage in the session; [`ErrorKind::Io`](crate::ErrorKind::Io).
pub fn write_session(session: &Session, out: impl Write, format: JsonlFormat, packed: bool) -> Result<()> {
    let mut writer = JsonlWriter::new(BufWriter::new(out), format, packed, &header_line(session))?;
    write_events(session, &mut writer)?;
    let mut out = writer.finish()?;
    out.flush().map_err(|source| crate::Error::io("export: write", source))
}

fn header_line(session: &Session) -> String {
    let mut line = String::new();
    session.header().write_json(&mut line);
    line
}

fn write_events<W: Write>(session: &Session, writer: &mut JsonlWriter<W>) -> Result<()> {
    session.for_each(Seq::new(0)..session.next_seq()?, &mut |event| writer.event(&event))
}
