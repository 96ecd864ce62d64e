//! What is written beside its name until it is whole: a file or a directory.
//!
//! Owns the names `{target}.{12 hexadecimal digits}.sessionlog.tmp`, where the digits only need to be free, the lock that tells
//! what a killed process left from what another one is writing, and the removal of what was left. Never touches any other name.
//! Where the system has no such lock, leftovers stay.

use super::disk::{create_private_directory, private_file};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How the names end.
const END: &str = ".sessionlog.tmp";
/// Names that are tried before giving up.
const NAMES_TRIED_MAX: u32 = 1 << 16;

/// A file or a directory of our own, private to the user, that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    kind: Kind,
    is_there: bool,
    /// Of a directory, the handle that has the lock.
    held: Option<File>,
}

impl Temporary {
    /// A file beside `target`, held as long as what is returned with it is open. What killed processes left of this kind beside
    /// this target is removed.
    ///
    /// # Errors
    /// What the system reports; `AlreadyExists` if no name is free.
    pub(crate) fn file(target: &Path) -> io::Result<(Self, File)> {
        Self::create(target, Kind::File, |path| {
            let file = private_file().write(true).create_new(true).open(path)?;
            Ok(is_held(Kind::File, &file, path).then_some(file))
        })
    }

    /// A directory, in the same way, held until it is dropped.
    ///
    /// # Errors
    /// As those of [`file`](Self::file).
    pub(crate) fn directory(target: &Path) -> io::Result<Self> {
        let (mut directory, held) = Self::create(target, Kind::Directory, |path| {
            create_private_directory(path)?;
            if !Kind::Directory.is_lockable() {
                return Ok(Some(None));
            }
            match File::open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                opened => opened.map(|file| is_held(Kind::Directory, &file, path).then_some(Some(file))),
            }
        })?;
        directory.held = held;
        Ok(directory)
    }

    /// Tries names until `make` makes something there; it answers `None` if somebody took that for a leftover in the moment
    /// before it was locked.
    fn create<T>(
        target: &Path,
        kind: Kind,
        make: impl Fn(&Path) -> io::Result<Option<T>>,
    ) -> io::Result<(Self, T)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        remove_leftovers(target, kind);
        for _ in 0..NAMES_TRIED_MAX {
            let number = u64::from(std::process::id()) << 16 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xFFFF;
            let mut name = target.as_os_str().to_owned();
            name.push(format!(".{number:012x}{END}"));
            let path = PathBuf::from(name);
            match make(&path) {
                Ok(Some(made)) => return Ok((Self { path, kind, is_there: true, held: None }, made)),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "no temporary name is free"))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it another name, under which it stays.
    ///
    /// # Errors
    /// What the system reports; it is removed then.
    pub(crate) fn rename(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.is_there = false;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Best effort: a leftover is recognised by its name and harms nobody.
        if self.is_there {
            let _leftover = self.kind.remove(&self.path);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
}

impl Kind {
    /// On some systems a lock on a file may stand in the way of SQLite's own, or a directory cannot be locked.
    const fn is_lockable(self) -> bool {
        match self {
            Self::File => cfg!(target_os = "linux"),
            Self::Directory => cfg!(unix),
        }
    }

    fn remove(self, path: &Path) -> io::Result<()> {
        match self {
            Self::File => fs::remove_file(path),
            Self::Directory => fs::remove_dir_all(path),
        }
    }
}

/// Locks what was just made; `false` if it is not there any more, or somebody looks whether it is a leftover.
fn is_held(kind: Kind, file: &File, path: &Path) -> bool {
    if !kind.is_lockable() {
        return true;
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => false,
        // A file system without locks: nobody else gets one either.
        Ok(()) | Err(TryLockError::Error(_)) => path.symlink_metadata().is_ok(),
    }
}

/// Removes what nobody holds beside `target`. Only names that no other program gives are looked at.
fn remove_leftovers(target: &Path, kind: Kind) {
    let (true, Some(name)) = (kind.is_lockable(), target.file_name()) else { return };
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_type().is_ok_and(|found| match kind {
            Kind::File => found.is_file(),
            Kind::Directory => found.is_dir(),
        });
        if !is_ours || !is_temporary_of(entry.file_name().as_encoded_bytes(), name.as_encoded_bytes()) {
            continue;
        }
        // Best effort, and held while it goes.
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _gone = kind.remove(&entry.path());
        }
    }
}

fn is_temporary_of(name: &[u8], target: &[u8]) -> bool {
    let rest = name.strip_prefix(target).and_then(|rest| rest.strip_prefix(b"."));
    let digits = rest.and_then(|rest| rest.strip_suffix(END.as_bytes()));
    digits.is_some_and(|digits| digits.len() == 12 && digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_process_left_goes_with_the_next_one_and_nothing_else_does() {
        for kind in [Kind::File, Kind::Directory].into_iter().filter(|kind| kind.is_lockable()) {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("out.jsonl");
            let make = |name: &str, kind| match kind {
                Kind::File => fs::write(dir.path().join(name), "bytes").unwrap(),
                Kind::Directory => fs::create_dir(dir.path().join(name)).unwrap(),
            };
            let create = || match kind {
                Kind::File => Temporary::file(&target).map(|(temporary, file)| (temporary, Some(file))),
                Kind::Directory => Temporary::directory(&target).map(|temporary| (temporary, None)),
            };
            let held = create().unwrap();
            let left = "out.jsonl.00000000000a.sessionlog.tmp";
            let others = [
                "out.jsonl.0123456789ab.tmp",
                "out.jsonl.00000000000.sessionlog.tmp",
                "out.jsonl.00000000000x.sessionlog.tmp",
                "other.jsonl.00000000000a.sessionlog.tmp",
                "out.jsonl.sessionlog.tmp",
            ];
            others.iter().chain([&left]).for_each(|name| make(name, kind));
            if kind == Kind::Directory {
                fs::write(dir.path().join(left).join("0000000000000001.log.tmp"), "bytes").unwrap();
            }
            let of_other_kind = "out.jsonl.00000000000b.sessionlog.tmp";
            make(of_other_kind, if kind == Kind::File { Kind::Directory } else { Kind::File });
            let second = create().unwrap();
            second.0.rename(&target).unwrap();
            let found = names(dir.path());
            assert!(!found.contains(&left.to_owned()), "{found:?}");
            assert!(others.iter().all(|name| found.contains(&(*name).to_owned())), "{found:?}");
            assert!(held.0.path().exists(), "what is held stays");
            assert_eq!(found.len(), others.len() + 3, "the other kind, what is held, the target: {found:?}");
            drop(held);
            assert_eq!(names(dir.path()).len(), others.len() + 2);
        }
    }
}
