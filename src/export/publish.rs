//! Puts a finished file under its name so that it is either whole and durable or not there (spec section 14.2).
//!
//! Directories are private to the user. A name that is taken stays as it is: nothing is ever overwritten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter};
use std::path::{Path, PathBuf};

use super::jsonl::{JsonlFormat, JsonlWriter};
use crate::error::{Error, ErrorKind, Result};
use crate::event::SessionHeader;
use crate::import::layout;
use crate::storage::{Temporary, create_private_directory, sync_directory};

/// Publishes a session under `root` in the reference's layout (spec section 14.1), creating what is missing of
/// its directories, and gives the path of its log. See [`publish_file`].
///
/// # Errors
///
/// [`ErrorKind::Invalid`] for an empty id, [`ErrorKind::Limit`] for one whose directory has no name on this file system,
/// [`ErrorKind::Conflict`] where something else than a directory has the name or a log of the session lies there already, in either format; [`ErrorKind::Io`] and whatever
/// `write` answers.
pub(super) fn publish_session(
    root: &Path,
    format: JsonlFormat,
    packed: bool,
    header: &SessionHeader,
    write: impl FnOnce(&mut JsonlWriter<BufWriter<File>>) -> Result<()>,
) -> Result<PathBuf> {
    let log = session_directory(root, header)?.join(format.file_name());
    publish_file(&log, format, packed, header, write)?;
    Ok(log)
}

fn session_directory(root: &Path, header: &SessionHeader) -> Result<PathBuf> {
    let key = layout::session_key(&header.id)
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "export: a session needs an id"))?;
    let project = root.join(layout::project_key(header.cwd.as_ref()));
    let session = project.join(key);
    create_directories(root)?;
    for directory in [&project, &session] {
        create_directories(directory)?;
        // The reference does not look behind a link, so a log behind one would never be seen.
        if !fs::symlink_metadata(directory).map_err(|e| failed(directory, e))?.is_dir() {
            return Err(conflict("the directory's name is taken", directory));
        }
    }
    for format in [JsonlFormat::Plain, JsonlFormat::Zstd] {
        let log = session.join(format.file_name());
        if fs::symlink_metadata(&log).is_ok() {
            return Err(conflict("a log of this session is there already", &log));
        }
    }
    Ok(session)
}

/// Writes a log to `path`, which must not exist, in a directory that must: `write` is handed the writer,
/// with the header line written. Nothing stands at `path` before the log is whole and synced.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] when `path` exists by the time the log is whole, [`ErrorKind::Io`], and whatever
/// `write` answers.
pub(super) fn publish_file(
    path: &Path,
    format: JsonlFormat,
    packed: bool,
    header: &SessionHeader,
    write: impl FnOnce(&mut JsonlWriter<BufWriter<File>>) -> Result<()>,
) -> Result<()> {
    let (draft, file) = Draft::create(path)?;
    let mut writer = JsonlWriter::new(BufWriter::new(file), format, packed, header)?;
    write(&mut writer)?;
    let file = draft.flushed(writer.finish()?)?;
    draft.publish(file)
}

/// A file that is written beside its name, and removed when it is dropped without it.
#[derive(Debug)]
pub(crate) struct Draft {
    temporary: Temporary,
    path: PathBuf,
}

impl Draft {
    /// Begins the file that is to have the name `path`, in a directory that must exist. It is private to the user.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub(crate) fn create(path: &Path) -> Result<(Self, File)> {
        let (temporary, file) = Temporary::file(path).map_err(|e| failed(path, e))?;
        Ok((Self { temporary, path: path.to_owned() }, file))
    }

    /// Where the file is until it has its name.
    pub(crate) fn temporary_path(&self) -> &Path {
        self.temporary.path()
    }

    /// Its name to be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file with all that was written handed to the system, so that it can be read back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub(crate) fn flushed(&self, file: BufWriter<File>) -> Result<File> {
        file.into_inner().map_err(|e| failed(&self.path, e.into_error()))
    }

    /// Makes the whole file durable and gives it its name, which must be free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the name is taken, [`ErrorKind::Io`].
    pub(crate) fn publish(self, file: File) -> Result<()> {
        file.sync_all().map_err(|e| failed(&self.path, e))?;
        name(self.temporary.path(), &self.path, |from, to| fs::hard_link(from, to)).map_err(|e| {
            match e.kind() {
                io::ErrorKind::AlreadyExists => conflict("the file exists", &self.path),
                _ => failed(&self.path, e),
            }
        })?;
        // Held until now, or it could be taken for a leftover. Some systems remove only what nobody has open.
        drop(file);
        drop(self.temporary);
        sync_parent(&self.path)
    }

    /// Whether a file with the name holds what was written, as one does that a killed run left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if what was written cannot be read; a file that cannot be is another one.
    pub(crate) fn is_published(&self) -> Result<bool> {
        if !fs::symlink_metadata(&self.path).is_ok_and(|named| named.is_file()) {
            return Ok(false);
        }
        let Ok(mut named) = File::open(&self.path).map(BufReader::new) else { return Ok(false) };
        let mut draft = BufReader::new(File::open(self.temporary.path()).map_err(|e| failed(&self.path, e))?);
        loop {
            let ours = draft.fill_buf().map_err(|e| failed(&self.path, e))?;
            let Ok(theirs) = named.fill_buf() else { return Ok(false) };
            let bytes = ours.len().min(theirs.len());
            if bytes == 0 || ours[..bytes] != theirs[..bytes] {
                return Ok(ours.is_empty() && theirs.is_empty());
            }
            draft.consume(bytes);
            named.consume(bytes);
        }
    }
}

/// Gives a whole file its name, which must be free.
fn name(whole: &Path, path: &Path, link: impl Fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    match link(whole, path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // A file system without links: the name is reserved by an empty file of our own, which the whole one replaces.
        Err(_) => {
            OpenOptions::new().write(true).create_new(true).open(path)?;
            fs::rename(whole, path).inspect_err(|_| drop(fs::remove_file(path)))
        }
    }
}

/// Creates what is missing of `directory`, from the top, each part private and durable before the next.
fn create_directories(directory: &Path) -> Result<()> {
    let missing: Vec<&Path> =
        directory.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    for part in missing.into_iter().rev() {
        match create_private_directory(part) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(part, error)),
            _ => sync_parent(part)?,
        }
    }
    // It may have been created just now by somebody who has not synced it yet. One whose parent is not ours to open is old.
    match sync_parent(directory) {
        Err(error) if missing_rights(&error) => Ok(()),
        synced => synced,
    }
}

fn missing_rights(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::PermissionDenied)
}

/// Makes the name of `path` durable.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    sync_directory(parent).map_err(|e| failed(parent, e))
}

fn failed(path: &Path, error: io::Error) -> Error {
    let error = match error.kind() {
        // Names of up to 255 bytes are made; some file systems take less.
        io::ErrorKind::InvalidFilename => {
            Error::new(ErrorKind::Limit, "export: the name is too long for this file system")
                .with_source(error)
        }
        _ => Error::io("export", error),
    };
    error.with_path(path)
}

fn conflict(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Conflict, format!("export: {what}")).with_path(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(path: &Path) -> Result<()> {
        publish_file(path, JsonlFormat::Plain, true, &SessionHeader::new("s", 0), |_| Ok(()))
    }

    fn publish_id(root: &Path, id: &str) -> Result<PathBuf> {
        publish_session(root, JsonlFormat::Zstd, true, &SessionHeader::new(id, 0), |_| Ok(()))
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_log_appears_whole_private_and_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("new/root");
        let mut header = SessionHeader::new("a/b", 7);
        header.cwd = Some("/srv/app".into());
        let log = publish_session(&root, JsonlFormat::Plain, true, &header, |_| Ok(())).unwrap();
        let session = root.join("--srv-app--/a~002Fb");
        assert_eq!(log, session.join("session.jsonl"));
        let mut line = String::new();
        header.write_json(&mut line);
        assert_eq!(fs::read_to_string(&log).unwrap(), line + "\n");
        assert_eq!(names(&session), ["session.jsonl"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
            assert_eq!([mode(&log), mode(&session), mode(&root)], [0o600, 0o700, 0o700]);
        }
    }

    #[test]
    fn nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let log = publish_id(dir.path(), "s").unwrap();
        fs::write(&log, "precious").unwrap();
        assert_eq!(publish(&log).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(names(log.parent().unwrap()), ["session.jsonl.zstd"]);
        assert_eq!(publish_id(dir.path(), "s").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(fs::read_to_string(&log).unwrap(), "precious");
        // A log in the other format is one too many as well.
        fs::rename(&log, log.with_extension("")).unwrap();
        assert_eq!(publish_id(dir.path(), "s").unwrap_err().kind(), ErrorKind::Conflict);
    }

    #[test]
    fn a_failed_export_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("out.jsonl");
        let error = publish_file(&log, JsonlFormat::Zstd, true, &SessionHeader::new("s", 0), |_| {
            Err(Error::new(ErrorKind::Cancelled, "export: stopped"))
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(names(dir.path()).is_empty());
        let absent = dir.path().join("absent/out.jsonl");
        let error = publish(&absent).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Io, Some(&*absent)));
    }

    #[test]
    fn without_links_a_name_is_taken_once_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let [whole, path] = ["whole", "path"].map(|name| dir.path().join(name));
        let no_links = |_: &Path, _: &Path| Err(io::ErrorKind::Unsupported.into());
        fs::write(&whole, "text").unwrap();
        name(&whole, &path, no_links).unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names(dir.path())),
            ("text", vec!["path".into()])
        );
        fs::write(&whole, "other").unwrap();
        let taken = name(&whole, &path, no_links).unwrap_err();
        assert_eq!((taken.kind(), names(dir.path()).len()), (io::ErrorKind::AlreadyExists, 2));
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert!(name(&dir.path().join("absent"), &dir.path().join("new"), no_links).is_err());
        assert_eq!(names(dir.path()).len(), 2, "the reserved name is free again");
    }

    #[test]
    fn an_id_is_needed_and_files_are_no_directories() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(publish_id(dir.path(), "").unwrap_err().kind(), ErrorKind::Invalid);
        fs::write(dir.path().join("_no-cwd"), "").unwrap();
        assert!(publish_id(dir.path(), "s").is_err());
        fs::remove_file(dir.path().join("_no-cwd")).unwrap();
        publish_id(dir.path(), &"/".repeat(1024)).unwrap();
        let error = publish(&dir.path().join("x".repeat(300))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_session_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
        fs::create_dir_all(dir.path().join("_no-cwd")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), dir.path().join("_no-cwd/s")).unwrap();
        assert_eq!(publish_id(dir.path(), "s").unwrap_err().kind(), ErrorKind::Conflict);
    }
}
