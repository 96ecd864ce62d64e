//! The file under repair, read once for each pass and never changed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::plan::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Refusal, RefusalKind};
use crate::export::JsonlFormat;
use crate::import::{Counted, Found, Item, Lines, RecordSource, SourceFormat, ZstdFrames, discover};

/// A file that holds one log.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    format: SourceFormat,
    pub(super) stamp: Stamp,
}

impl Source {
    /// Looks at the file: what it is, by its first bytes before its name.
    pub(super) fn look(path: &Path) -> Result<Self> {
        let directory = fs::metadata(path).map_err(|error| unreadable(path, error))?.is_dir();
        match discover(path).next().filter(|_| !directory) {
            Some(Found::Source(source)) => {
                Ok(Self { stamp: stamp(path)?, path: source.path, format: source.format })
            }
            Some(Found::Unreadable { error, .. }) => Err(unreadable(path, error)),
            _ => {
                let message = "repair: this is a directory; name one log file";
                Err(Error::new(ErrorKind::Invalid, message).with_path(path))
            }
        }
    }

    pub(super) fn format(&self) -> JsonlFormat {
        match self.format {
            SourceFormat::JsonlZstd => JsonlFormat::Zstd,
            SourceFormat::Jsonl | SourceFormat::Empty | SourceFormat::Sqlite => JsonlFormat::Plain,
        }
    }

    /// Whether offsets in the text are offsets in the file.
    pub(super) fn is_plain(&self) -> bool {
        self.format() == JsonlFormat::Plain
    }

    /// Why a log of this format is not repaired.
    pub(super) fn foreign(&self) -> Option<Refusal> {
        let message =
            "this is an SQLite database, which is repaired session by session: plan it as a database";
        let refusal = || Refusal::new(RefusalKind::SqliteSchema, "sqlite", message);
        (self.format == SourceFormat::Sqlite).then(refusal)
    }

    /// Opens the file for one pass. `progress` is told the bytes read so far.
    pub(super) fn open<'p>(&self, progress: &'p dyn Fn(u64)) -> Result<Reader<'p>> {
        let open = || {
            let file = Counted::new(File::open(&self.path)?, progress);
            Ok(match self.format {
                SourceFormat::JsonlZstd => Reader::Frames(Box::new(ZstdFrames::salvaging(file)?)),
                _ => Reader::Lines(Lines::new(file)),
            })
        };
        open().map_err(|error| unreadable(&self.path, error))
    }

    pub(super) fn next<'r>(&self, reader: &'r mut Reader<'_>) -> Result<Option<(Item<'r>, Option<u64>)>> {
        let next = match reader {
            Reader::Lines(lines) => lines.next_item().map(|item| item.map(|item| (item, None))),
            Reader::Frames(frames) => {
                frames.next_numbered().map(|item| item.map(|(item, frame)| (item, Some(frame))))
            }
        };
        next.map_err(|error| unreadable(&self.path, error))
    }

    /// Fails if the file is another than it was when it was looked at.
    pub(super) fn unchanged(&self) -> Result<()> {
        if stamp(&self.path)? == self.stamp { Ok(()) } else { Err(written_to(&self.path)) }
    }
}

/// One pass over a source.
pub(super) enum Reader<'p> {
    Lines(Lines<Counted<'p>>),
    Frames(Box<ZstdFrames<Counted<'p>>>),
}

/// The error for a source that changes under the repair.
pub(super) fn written_to(path: &Path) -> Error {
    let message = "repair: the log is being written; stop its host first, then repair it";
    Error::new(ErrorKind::Locked, message).with_path(path)
}

fn stamp(path: &Path) -> Result<Stamp> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(path, error))?;
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(Stamp { bytes: metadata.len(), modified })
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::io("repair: read log", error).with_path(path)
}
