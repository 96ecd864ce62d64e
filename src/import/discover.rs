//! Finds the logs under a path and tells what each is, by its first bytes before its name.
//!
//! The walk is depth first in the order of names, needs no recursion, follows no symbolic link below the
//! path it was given, and opens regular files only. Nothing that cannot be read hides what can.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The first bytes of every SQLite database.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The first bytes of a zstd frame.
const ZSTD_MAGIC: &[u8; 4] = &[0x28, 0xB5, 0x2F, 0xFD];

/// What a file is to be read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceFormat {
    /// One record a line.
    Jsonl,
    /// The same in zstd frames.
    JsonlZstd,
    /// An SQLite database of sessions.
    Sqlite,
    /// Nothing: zero bytes.
    Empty,
}

/// A file to import from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where it lies.
    pub path: PathBuf,
    /// What it is.
    pub format: SourceFormat,
    /// Its length.
    pub bytes: u64,
}

/// What the walk comes upon.
#[derive(Debug)]
pub enum Found {
    /// A file to import from.
    Source(Source),
    /// A directory or file that could not be read.
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something in the place of a log that is none.
    Ignored {
        /// Which.
        path: PathBuf,
        /// Why, for people.
        reason: &'static str,
    },
}

/// The walk: an iterator over what lies under a path.
#[derive(Debug)]
pub struct Discovery {
    /// What is still to be looked at, the next one last.
    pending: Vec<PathBuf>,
    root: Option<PathBuf>,
    skipped: u64,
}

/// Looks for logs in the directory `path`, at any depth, or at the file `path`.
///
/// A file that is named here is always a source, as JSONL if nothing speaks for another format. Files found
/// in a directory are sources if their bytes or their name say so; all others are counted.
#[must_use]
pub fn discover(path: &Path) -> Discovery {
    Discovery { pending: Vec::new(), root: Some(path.to_owned()), skipped: 0 }
}

impl Discovery {
    /// Files passed over so far because neither name nor bytes are a log's.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The path that the walk was given: links are followed here.
    fn visit_root(&mut self, path: PathBuf) -> io::Result<Option<Found>> {
        let metadata = fs::metadata(&path)?;
        if metadata.is_dir() {
            self.enter(&path)?;
            return Ok(None);
        }
        if !metadata.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a directory nor a regular file",
            ));
        }
        let format = match metadata.len() {
            0 => SourceFormat::Empty,
            bytes => classify(path.file_name().unwrap_or_default(), &head(&path)?, bytes)
                .unwrap_or(SourceFormat::Jsonl),
        };
        Ok(Some(Found::Source(Source { path, format, bytes: metadata.len() })))
    }

    fn visit(&mut self, path: &Path) -> io::Result<Option<Found>> {
        let metadata = fs::symlink_metadata(path)?;
        let name = path.file_name().unwrap_or_default();
        let ignored = |reason| Ok(Some(Found::Ignored { path: path.to_owned(), reason }));
        if metadata.is_dir() {
            self.enter(path)?;
            return Ok(None);
        }
        if metadata.is_symlink() {
            return ignored("symbolic links are not followed");
        }
        if is_leftover(name) {
            return ignored("left over from a write that did not finish");
        }
        if metadata.is_file()
            && let Some(format) = classify(name, &head(path)?, metadata.len())
        {
            return Ok(Some(Found::Source(Source { path: path.to_owned(), format, bytes: metadata.len() })));
        }
        self.skipped += 1;
        Ok(None)
    }

    fn enter(&mut self, directory: &Path) -> io::Result<()> {
        let first = self.pending.len();
        let listed = fs::read_dir(directory)?.try_for_each(|entry| {
            self.pending.push(entry?.path());
            Ok(())
        });
        self.pending[first..].sort_unstable_by(|a, b| b.cmp(a));
        listed
    }
}

impl Iterator for Discovery {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            let (path, found) = match self.root.take() {
                Some(root) => (root.clone(), self.visit_root(root)),
                None => {
                    let path = self.pending.pop()?;
                    let found = self.visit(&path);
                    (path, found)
                }
            };
            match found {
                Ok(Some(found)) => return Some(found),
                Ok(None) => {}
                Err(error) => return Some(Found::Unreadable { path, error }),
            }
        }
    }
}

/// What a file is by its first bytes, or else by its name; `None` if neither is a log's.
fn classify(name: &OsStr, head: &[u8], bytes: u64) -> Option<SourceFormat> {
    let by_name = format_of_name(name);
    if bytes == 0 {
        return by_name.map(|_| SourceFormat::Empty);
    }
    if head.starts_with(SQLITE_MAGIC) {
        return Some(SourceFormat::Sqlite);
    }
    if head.starts_with(ZSTD_MAGIC) {
        return Some(SourceFormat::JsonlZstd);
    }
    by_name
}

/// What a name promises. A file that does not keep the promise is still read so, to be refused by name.
fn format_of_name(name: &OsStr) -> Option<SourceFormat> {
    match Path::new(name).extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "jsonl" => Some(SourceFormat::Jsonl),
        "zstd" | "zst" => Some(SourceFormat::JsonlZstd),
        "db" | "sqlite" | "sqlite3" => Some(SourceFormat::Sqlite),
        _ => None,
    }
}

/// Temporary files of the reference, `<log>.<12 hex digits>.tmp` (spec section 14.2), and of our own exports, which end in
/// `.sessionlog.tmp`.
fn is_leftover(name: &OsStr) -> bool {
    let stem = name.to_str().and_then(|name| name.strip_suffix(".tmp"));
    let parts = stem.and_then(|stem| stem.strip_suffix(".sessionlog").unwrap_or(stem).rsplit_once('.'));
    parts.is_some_and(|(log, mark)| {
        mark.len() == 12
            && mark.bytes().all(|b| b.is_ascii_hexdigit())
            && format_of_name(OsStr::new(log)).is_some()
    })
}

/// The first bytes of a file, as many as the longest magic has.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(SQLITE_MAGIC.len());
    File::open(path)?.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, bytes: &[u8]) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Everything found, paths relative to the root, and the number of files passed over.
    fn walk(root: &Path) -> (Vec<String>, u64) {
        let mut discovery = discover(root);
        let relative = |p: &Path| p.strip_prefix(root).unwrap().display().to_string();
        let seen = discovery
            .by_ref()
            .map(|found| match found {
                Found::Source(s) => format!("{} {:?} {}", relative(&s.path), s.format, s.bytes),
                Found::Unreadable { path, error } => format!("{} {:?}", relative(&path), error.kind()),
                Found::Ignored { path, .. } => format!("{} ignored", relative(&path)),
            })
            .collect();
        (seen, discovery.skipped())
    }

    #[test]
    fn bytes_speak_before_names_and_names_before_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let zstd = [&ZSTD_MAGIC[..], b"rest"].concat();
        write(dir.path(), "a/one.jsonl", b"{}\n");
        write(dir.path(), "a/bom.jsonl", b"\xEF\xBB\xBF{}");
        write(dir.path(), "a/nul.jsonl", &[0; 40]);
        write(dir.path(), "a/zstd-inside.jsonl", &zstd);
        write(dir.path(), "b/session.jsonl.zstd", b"{}\n");
        write(dir.path(), "b/unnamed", &zstd);
        write(dir.path(), "c.db", b"no database");
        write(dir.path(), "c/data", SQLITE_MAGIC);
        write(dir.path(), "c/empty.jsonl", b"");
        write(dir.path(), "c/empty.db", b"");
        write(dir.path(), "c/LOCK", b"");
        write(dir.path(), "c/notes.txt", b"{}\n");
        let (seen, skipped) = walk(dir.path());
        let expected = [
            "a/bom.jsonl Jsonl 5",
            "a/nul.jsonl Jsonl 40",
            "a/one.jsonl Jsonl 3",
            "a/zstd-inside.jsonl JsonlZstd 8",
            "b/session.jsonl.zstd JsonlZstd 3",
            "b/unnamed JsonlZstd 8",
            "c/data Sqlite 16",
            "c/empty.db Empty 0",
            "c/empty.jsonl Empty 0",
            "c.db Sqlite 11",
        ];
        assert_eq!((seen.iter().map(String::as_str).collect::<Vec<_>>(), skipped), (expected.to_vec(), 2));
    }

    #[test]
    fn a_named_file_is_always_a_source() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "log.txt", b"{}\n");
        write(dir.path(), "LOCK", b"");
        for (name, format) in [("log.txt", SourceFormat::Jsonl), ("LOCK", SourceFormat::Empty)] {
            let found: Vec<_> = discover(&dir.path().join(name)).collect();
            assert!(matches!(&found[..], [Found::Source(s)] if s.format == format));
        }
        let found: Vec<_> = discover(&dir.path().join("absent")).collect();
        let [Found::Unreadable { error, .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn leftovers_are_ignored_with_a_note() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "p/s/session.jsonl.0123456789ab.tmp", b"{}");
        write(dir.path(), "p/s/session.jsonl.zstd.0123456789AB.tmp", b"");
        write(dir.path(), "p/s/session.jsonl.0123456789ab.sessionlog.tmp", b"{}");
        write(dir.path(), "p/s/session.jsonl.0123456789a.tmp", b"{}");
        write(dir.path(), "p/s/session.jsonl", b"{}");
        let (seen, skipped) = walk(dir.path());
        assert_eq!(seen.len(), 4);
        assert_eq!(seen.iter().filter(|s| s.ends_with("ignored")).count(), 3);
        assert_eq!(skipped, 1);
    }

    #[test]
    fn depth_has_no_limit_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let deep: String = "d/".repeat(1_500);
        write(dir.path(), &format!("{deep}x.jsonl"), b"{}");
        assert_eq!(walk(dir.path()).0, [format!("{deep}x.jsonl Jsonl 2")]);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_special_files_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "real/a.jsonl", b"{}");
        std::os::unix::fs::symlink(root, root.join("loop")).unwrap();
        std::os::unix::fs::symlink(root.join("real/a.jsonl"), root.join("b.jsonl")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("c.jsonl")).unwrap();
        let (seen, skipped) = walk(root);
        assert_eq!(seen, ["b.jsonl ignored", "loop ignored", "real/a.jsonl Jsonl 2"]);
        assert_eq!(skipped, 1);
        // The path that was asked for may be a link itself.
        let found: Vec<_> = discover(&root.join("b.jsonl")).collect();
        assert!(matches!(&found[..], [Found::Source(_)]));
    }
}
