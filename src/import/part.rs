//! What a planned source is a part of: a file of its own, or a database that holds many.
//!
//! The one place that knows which reader a source needs. Nothing here judges.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::counted::Counted;
#[cfg(feature = "sqlite")]
use super::database::{Database, SessionKey};
use super::discover::{Source, SourceFormat};
use super::importer::PlannedSource;
use super::{Item, Lines, RecordSource, ZstdFrames};
use crate::event::Refusal;
#[cfg(feature = "sqlite")]
use crate::event::{Warning, WarningKind};
use crate::projection::Warnings;
use crate::{Cancel, Error, Result};

/// What of its file a source is.
#[derive(Debug, Clone)]
pub(super) enum Part {
    /// All of it.
    File,
    /// One session of a database.
    #[cfg(feature = "sqlite")]
    Session(Arc<Database>, SessionKey),
    /// Nothing of it can be read, or something is wrong with a database as a whole.
    Fault(Refusal),
}

/// Who is told of waiting, with the path and how long so far, and what ends it.
#[derive(Clone, Default)]
pub(super) struct Waiting {
    tell: Option<Arc<Tell>>,
    cancel: Cancel,
}

type Tell = dyn Fn(&Path, Duration) + Send + Sync;

impl Part {
    /// The parts that are to be read of a file, and how many of its bytes each is.
    pub(super) fn all_of(source: &Source, waiting: &Waiting) -> io::Result<Vec<(Self, u64)>> {
        match source.format {
            SourceFormat::Sqlite => Self::all_of_database(source, waiting),
            _ => Ok(vec![(Self::File, source.bytes)]),
        }
    }

    #[cfg(feature = "sqlite")]
    fn all_of_database(source: &Source, waiting: &Waiting) -> io::Result<Vec<(Self, u64)>> {
        let (database, contents) = match Database::open(&source.path, waiting)? {
            Ok(opened) => opened,
            Err(refusal) => return Ok(vec![(Self::Fault(refusal), source.bytes)]),
        };
        let mut parts: Vec<_> = contents.faults.into_iter().map(|fault| (Self::Fault(fault), 0)).collect();
        let mut weight_left = contents.sessions.iter().map(SessionKey::weight).fold(0, u64::saturating_add);
        let mut bytes_left = source.bytes;
        for key in contents.sessions {
            let bytes = share(bytes_left, key.weight(), weight_left);
            bytes_left -= bytes;
            weight_left = weight_left.saturating_sub(key.weight());
            parts.push((Self::Session(database.clone(), key), bytes));
        }
        Ok(parts)
    }

    #[cfg(not(feature = "sqlite"))]
    fn all_of_database(source: &Source, _waiting: &Waiting) -> io::Result<Vec<(Self, u64)>> {
        let message = "this is an SQLite database, and this build has no reader for them";
        let refusal = Refusal::new(crate::event::RefusalKind::SqliteSchema, "sqlite", message);
        Ok(vec![(Self::Fault(refusal), source.bytes)])
    }

    /// The session's id, if the place tells it.
    pub(super) fn id(&self) -> Option<String> {
        match self {
            Self::File | Self::Fault(_) => None,
            #[cfg(feature = "sqlite")]
            Self::Session(_, key) => Some(key.id()),
        }
    }

    /// Adds what the place makes worth a warning.
    #[cfg_attr(not(feature = "sqlite"), expect(unused_variables, reason = "only databases have such places"))]
    pub(super) fn warn(&self, warnings: &mut Warnings) {
        #[cfg(feature = "sqlite")]
        if let Self::Session(database, key) = self
            && database.misses_wal(key)
        {
            let kind = WarningKind::WalWithoutWalFile;
            let message = "the database is written through a WAL and has none beside it: if it was copied without its \
                           -wal file, the last events are missing";
            warnings.add(kind, || Warning { kind, line: None, seq: None, message: message.into() });
        }
    }
}

impl PlannedSource {
    /// The id of its session where the place alone tells it: in a database.
    #[must_use]
    pub fn id(&self) -> Option<String> {
        self.part.id()
    }

    /// Hands the records to `use_records`: again, from the start, as often as somebody wrote to a database meanwhile. The
    /// answer to the last time counts. `progress` is told the bytes read so far.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the source cannot be read; what `use_records` answers.
    pub(super) fn read<T>(
        &self,
        #[cfg_attr(not(feature = "sqlite"), expect(unused_variables, reason = "of cells"))] lossy_utf8: bool,
        #[cfg_attr(not(feature = "sqlite"), expect(unused_variables, reason = "for databases"))]
        waiting: &Waiting,
        progress: &dyn Fn(u64),
        mut use_records: impl FnMut(&mut dyn RecordSource) -> Result<T>,
    ) -> Result<T> {
        match &self.part {
            Part::File => self.read_file(progress, use_records),
            Part::Fault(refusal) => use_records(&mut Refused::new(refusal.clone())),
            #[cfg(feature = "sqlite")]
            Part::Session(database, key) => {
                let progress = |rows: u64| progress(share(self.source.bytes, rows, key.weight()));
                database.read(key, lossy_utf8, waiting, &progress, use_records)
            }
        }
    }

    fn read_file<T>(
        &self,
        progress: &dyn Fn(u64),
        mut use_records: impl FnMut(&mut dyn RecordSource) -> Result<T>,
    ) -> Result<T> {
        let file = File::open(&self.source.path).map_err(|error| self.unreadable(error))?;
        let file = Counted::new(file, progress);
        match self.source.format {
            SourceFormat::JsonlZstd => {
                use_records(&mut ZstdFrames::new(file).map_err(|error| self.unreadable(error))?)
            }
            SourceFormat::Jsonl | SourceFormat::Empty | SourceFormat::Sqlite => {
                use_records(&mut Lines::new(file))
            }
        }
    }

    /// The error of a source that the operating system does not let us read.
    pub(super) fn unreadable(&self, error: io::Error) -> Error {
        Error::io("read log", error).with_path(&self.source.path)
    }
}

impl Waiting {
    /// The same, told to `tell`.
    pub(super) fn telling(self, tell: impl Fn(&Path, Duration) + Send + Sync + 'static) -> Self {
        Self { tell: Some(Arc::new(tell)), ..self }
    }

    /// The same, ended by `cancel`.
    pub(super) fn ended_by(self, cancel: &Cancel) -> Self {
        Self { cancel: cancel.clone(), ..self }
    }

    /// What ends it.
    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    #[cfg(feature = "sqlite")]
    pub(super) fn tell(&self, path: &Path, waited: Duration) {
        if let Some(tell) = &self.tell {
            tell(path, waited);
        }
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tell.is_some() { "Waiting(told)" } else { "Waiting(silent)" })
    }
}

/// A source without records, and why.
pub(super) struct Refused(Option<Refusal>);

impl Refused {
    pub(super) fn new(refusal: Refusal) -> Self {
        Self(Some(refusal))
    }
}

impl RecordSource for Refused {
    fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        Ok(self.0.take().map(Item::Fault))
    }
}

/// `part` of `whole` applied to `bytes`.
#[cfg(feature = "sqlite")]
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).map_or(bytes, |share| share.min(bytes))
}
