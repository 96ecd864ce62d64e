//! Exports a stored session as a log that the reference opens.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::jsonl::{JsonlFormat, JsonlWriter};
use super::publish::{publish_file, publish_session};
use super::redact::{Redactor, Sink};
use crate::ids::Seq;
use crate::{Result, Session};

/// Writes `session` below `root` in the reference's layout (spec section 14.1) and returns the file's path. The events are
/// those that are stored: an interrupted turn stays open. With `packed`, runs of chunk events become rows. A `redactor`
/// replaces secrets in the events; the header line, with its `cwd`, stays as it is.
///
/// # Errors
///
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if a log of the session lies there already;
/// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if the file system takes no name as long as the escaped id; damage in the
/// session; [`ErrorKind::Io`](crate::ErrorKind::Io); those of [`Redactor::event`].
pub fn export_session(
    session: &Session,
    root: &Path,
    format: JsonlFormat,
    packed: bool,
    redactor: Option<&mut Redactor<'_>>,
) -> Result<PathBuf> {
    let write = |writer: &mut JsonlWriter<_>| each_event(session, redactor, &mut |event| writer.event(event));
    publish_session(root, format, packed, session.header(), write)
}

/// Writes `session` to the file `path`, which must not exist.
///
/// # Errors
///
/// As [`export_session`].
pub fn export_session_to(
    session: &Session,
    path: &Path,
    format: JsonlFormat,
    packed: bool,
    redactor: Option<&mut Redactor<'_>>,
) -> Result<()> {
    let write = |writer: &mut JsonlWriter<_>| each_event(session, redactor, &mut |event| writer.event(event));
    publish_file(path, format, packed, session.header(), write)
}

/// Writes `session` to a stream.
///
/// # Errors
///
/// Damage in the session; [`ErrorKind::Io`](crate::ErrorKind::Io); those of [`Redactor::event`].
pub fn write_session(
    session: &Session,
    out: impl Write,
    format: JsonlFormat,
    packed: bool,
    redactor: Option<&mut Redactor<'_>>,
) -> Result<()> {
    let mut writer = JsonlWriter::new(BufWriter::new(out), format, packed, session.header())?;
    each_event(session, redactor, &mut |event| writer.event(event))?;
    let mut out = writer.finish()?;
    out.flush().map_err(|source| crate::Error::io("export: write", source))
}

/// Shows all events of `session`, without their secrets if there is a redactor.
pub(super) fn each_event(
    session: &Session,
    redactor: Option<&mut Redactor<'_>>,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let all = Seq::new(0)..session.next_seq()?;
    let Some(redactor) = redactor else {
        return session.for_each(all, &mut |event| sink(&event));
    };
    redactor.begin();
    session.for_each(all, &mut |event| redactor.event(event, sink))?;
    redactor.finish(sink)
}
