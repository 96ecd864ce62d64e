//! A database file and how it is opened: at one consistent point, and without a trace.
//!
//! Must never write to the source, lock it for longer than a look, checkpoint it or give it a sidecar file. So SQLite
//! never opens the source as a live database:
//!
//! * **At rest** (no WAL with content, no rollback journal) it is opened as *immutable*, which takes no lock, needs no
//!   right to write and makes no `-shm`. What it was then is remembered as a [`Stamp`]; who has read compares it again,
//!   and reads again if somebody wrote meanwhile. A large database at rest costs no copy.
//! * **With a WAL or a journal** the database is in two files, and an immutable database has only one. Both are copied
//!   to a private directory, where SQLite may do with them as it likes. The copy is of one point in time: pages of the
//!   database that a checkpoint changes under the copying all lie in the WAL, which is copied after them and must be
//!   the same WAL as before (its salts); a journal and its database must not have changed at all.
//!
//! An exclusive lock is respected: its holder may be writing without a journal. A process must not import a database
//! that it has open itself: closing any file of it drops the locks that POSIX gives.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::Cancel;
use crate::limits::RECORD_BYTES_MAX;

/// Length of the header of a database, in bytes.
const HEADER_BYTES: usize = 100;
/// Length of the header of a WAL, in bytes; its salts make it unique.
const WAL_HEADER_BYTES: usize = 32;
/// The first bytes of a rollback journal that is in force.
const JOURNAL_MAGIC: [u8; 8] = [0xD9, 0xD5, 0x05, 0xF9, 0x20, 0xA1, 0x63, 0xD7];
/// The first bytes of every database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Bytes that are copied between two looks at whether the work was cancelled.
const COPIED_BYTES_PER_LOOK: u64 = 16 << 20;
/// Private directories whose names are tried before giving up.
const NAMES_TRIED_MAX: u32 = 1 << 10;

/// A database as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: u64,
    modified: Option<Duration>,
    /// The header of the file, which counts the transactions of a database without a WAL.
    header: Vec<u8>,
    /// Length and header of the WAL, if there is one.
    wal: Option<(u64, Vec<u8>)>,
    /// Length and time of the journal, if one is in force.
    journal: Option<(u64, Option<Duration>)>,
}

/// Why a database cannot be opened.
#[derive(Debug)]
pub(super) enum OpenFault {
    /// Somebody is writing to it. It may be tried again.
    Busy,
    /// It is none.
    NotSqlite,
    /// It ends inside its header.
    Cut,
    /// SQLite cannot open it.
    Sqlite(rusqlite::Error),
    /// The operating system cannot.
    Io(io::Error),
}

/// What connections are made to.
#[derive(Debug)]
pub(super) enum Point {
    /// The source itself, as long as it is what it was.
    AtRest(Stamp),
    /// A copy of it.
    Copy(PrivateCopy),
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Result<Self, OpenFault> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let header = head(&file, HEADER_BYTES)?;
        if !header.starts_with(MAGIC) {
            return Err(OpenFault::NotSqlite);
        }
        if header.len() < HEADER_BYTES {
            return Err(OpenFault::Cut);
        }
        let wal = match beside(path, "-wal")? {
            Some((wal, metadata)) => Some((metadata.len(), head(&wal, WAL_HEADER_BYTES)?)),
            None => None,
        };
        let journal = match beside(path, "-journal")? {
            Some((journal, metadata)) if head(&journal, JOURNAL_MAGIC.len())? == JOURNAL_MAGIC => {
                Some((metadata.len(), modified(&metadata)))
            }
            _ => None,
        };
        Ok(Self { bytes: metadata.len(), modified: modified(&metadata), header, wal, journal })
    }

    /// Whether all of the database is in its own file.
    fn is_at_rest(&self) -> bool {
        self.journal.is_none() && self.wal.as_ref().is_none_or(|(bytes, _)| *bytes == 0)
    }

    /// Whether it is written through a WAL.
    fn is_wal_mode(&self) -> bool {
        self.header[18] == 2 || self.header[19] == 2
    }

    /// Whether the WAL that it is written through is not there.
    pub(super) fn lacks_wal(&self) -> bool {
        self.is_wal_mode() && self.wal.is_none()
    }

    /// Bytes that are missing at the end of the file, by its own count of pages.
    fn bytes_missing(&self) -> u64 {
        let word =
            |at: usize| self.header[at..at + 4].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let page_bytes = match word(16) >> 16 {
            1 => 1 << 16,
            bytes => bytes,
        };
        // The count is in force only if it was written with the last transaction.
        let counted = word(24) == word(92) && self.is_at_rest();
        if counted { (page_bytes * word(28)).saturating_sub(self.bytes) } else { 0 }
    }
}

impl Point {
    /// Chooses how the database at `path` is read.
    pub(super) fn of(path: &Path, cancel: &Cancel) -> Result<Self, OpenFault> {
        let stamp = Stamp::of(path)?;
        if !stamp.is_at_rest() {
            return PrivateCopy::of(path, &stamp, cancel).map(Self::Copy);
        }
        // To look for a lock where there is a WAL would make sidecar files, and there no lock keeps readers out.
        if !stamp.is_wal_mode() && stamp.wal.is_none() {
            look_for_lock(path)?;
        }
        Ok(Self::AtRest(stamp))
    }

    /// Whether what is read is still what was there.
    pub(super) fn holds(&self, path: &Path) -> bool {
        match self {
            Self::AtRest(stamp) => Stamp::of(path).is_ok_and(|now| now == *stamp),
            Self::Copy(_) => true,
        }
    }

    /// Bytes that are missing at the end of the file, if any are.
    pub(super) fn bytes_missing(&self) -> Option<u64> {
        match self {
            Self::AtRest(stamp) => Some(stamp.bytes_missing()).filter(|&bytes| bytes > 0),
            Self::Copy(_) => None,
        }
    }

    /// Whether the file is too short for its pages.
    pub(super) fn is_cut_short(&self) -> bool {
        self.bytes_missing().is_some()
    }

    /// Bytes of the files that are read.
    pub(super) fn file_bytes(&self) -> io::Result<u64> {
        match self {
            Self::AtRest(stamp) => Ok(stamp.bytes),
            Self::Copy(copy) => {
                let wal = beside(&copy.database(), "-wal")?.map_or(0, |(_, metadata)| metadata.len());
                Ok(fs::metadata(copy.database())?.len() + wal)
            }
        }
    }

    /// A new connection.
    pub(super) fn connect(&self, path: &Path) -> Result<Connection, OpenFault> {
        let connection = match self {
            Self::AtRest(_) => {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
                Connection::open_with_flags(uri(path, "?mode=ro&immutable=1")?, flags)?
            }
            Self::Copy(copy) => {
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
                Connection::open_with_flags(copy.database(), flags)?
            }
        };
        // A cell is at most a record, and a frame of one is not longer than it by much.
        let cell_bytes_max = i32::try_from(RECORD_BYTES_MAX + (1 << 20)).unwrap_or(i32::MAX);
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, cell_bytes_max)?;
        connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 16)?;
        connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        connection.execute_batch(
            "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA query_only = ON;",
        )?;
        // Without it SQLite opens no database that is too short for its pages.
        if self.is_cut_short() {
            connection.execute_batch("PRAGMA writable_schema = ON;")?;
        }
        Ok(connection)
    }
}

/// A copy of a database with its WAL or journal, in a directory of its own that goes away with it.
#[derive(Debug)]
pub(super) struct PrivateCopy {
    directory: PathBuf,
}

impl PrivateCopy {
    fn of(path: &Path, before: &Stamp, cancel: &Cancel) -> Result<Self, OpenFault> {
        let copy = copied(path, cancel).map_err(|error| {
            let message = format!("copy it to {}: {error}", std::env::temp_dir().display());
            io::Error::new(error.kind(), message)
        })?;
        let after = Stamp::of(path)?;
        let header_of = |stamp: &Stamp| stamp.wal.as_ref().map(|(_, header)| header.clone());
        let same = match header_of(before).filter(|header| !header.is_empty()) {
            Some(header) => {
                let copied = Stamp::of(&copy.database())?;
                header_of(&after) == Some(header.clone()) && header_of(&copied) == Some(header)
            }
            None => after == *before,
        };
        if same { Ok(copy) } else { Err(OpenFault::Busy) }
    }

    fn database(&self) -> PathBuf {
        self.directory.join("copy.db")
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        // Best effort: it lies where temporary things lie.
        let _leftover = fs::remove_dir_all(&self.directory);
    }
}

impl From<rusqlite::Error> for OpenFault {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::NotADatabase) => Self::NotSqlite,
            _ => Self::Sqlite(error),
        }
    }
}

impl From<io::Error> for OpenFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Takes the lock of a reader for a moment: whoever has locked the database exclusively refuses it.
fn look_for_lock(path: &Path) -> Result<(), OpenFault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri(path, "?mode=ro")?, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    match connection.query_row("PRAGMA schema_version", [], |_| Ok(())) {
        Err(error) => match OpenFault::from(error) {
            OpenFault::Busy => Err(OpenFault::Busy),
            // Any other fault is one of the database, and found again.
            _ => Ok(()),
        },
        Ok(()) => Ok(()),
    }
}

/// A directory that nobody else can enter.
fn private_directory() -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    for _ in 0..NAMES_TRIED_MAX {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sessionlog-{}-{number}", std::process::id()));
        match builder.create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "no name for a temporary directory is free"))
}

/// The sidecar file with this end of its name, if there is one. To open anything but a regular file could wait for ever.
fn beside(path: &Path, end: &str) -> io::Result<Option<(File, fs::Metadata)>> {
    let open = |path: &Path| -> io::Result<_> {
        if !fs::metadata(path)?.is_file() {
            return Ok(None);
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Some((file, metadata)))
    };
    match open(&with_end(path, end)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened,
    }
}

/// A copy of a database and of what belongs to it. The order matters: see the head of this file.
fn copied(path: &Path, cancel: &Cancel) -> io::Result<PrivateCopy> {
    let copy = PrivateCopy { directory: private_directory()? };
    copy_file(File::open(path)?, &copy.database(), cancel)?;
    for end in ["-wal", "-journal"] {
        if let Some((file, _)) = beside(path, end)? {
            copy_file(file, &with_end(&copy.database(), end), cancel)?;
        }
    }
    Ok(copy)
}

fn copy_file(from: File, to: &Path, cancel: &Cancel) -> io::Result<()> {
    let mut to = File::create_new(to)?;
    while io::copy(&mut (&from).take(COPIED_BYTES_PER_LOOK), &mut to)? > 0 {
        cancel.check().map_err(io::Error::other)?;
    }
    Ok(())
}

/// When a file was last written to.
fn modified(metadata: &fs::Metadata) -> Option<Duration> {
    metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn head(file: &File, bytes: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(bytes);
    file.take(bytes as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// The path as the URI that SQLite takes. Every byte that is not plain is escaped.
fn uri(path: &Path, query: &str) -> io::Result<String> {
    let path = std::path::absolute(path)?;
    let bytes = path.as_os_str().as_encoded_bytes();
    let mut uri = String::from(if bytes.starts_with(b"/") { "file://" } else { "file:///" });
    for &byte in bytes {
        match byte {
            b'\\' if cfg!(windows) => uri.push('/'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b':' => {
                uri.push(char::from(byte))
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push_str(query);
    Ok(uri)
}
