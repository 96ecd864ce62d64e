//! The checkpoint files of a log: listing, reading and publishing them. What a body means is not known here.
//!
//! They are disposable. A reader takes what is not right for absent; it never takes it for damage of the log. A new file
//! gets its name once it is durable, and only then are the files that it stands for deleted.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Log;
use super::segments::{read_full, temporary_name};
use crate::format::StoreId;
use crate::format::checkpoint::{
    CHECKPOINT_FOOTER_BYTES, CHECKPOINT_HEADER_BYTES, CheckpointFrame, CheckpointRow, checkpoint_file_name,
    encode_checkpoint_end, encode_checkpoint_header, parse_checkpoint_name,
};
use crate::format::crc32;
use crate::ids::{Seq, SessionKey};
use crate::limits::SEALED_WRITE_BUFFER_BYTES;
use crate::storage::{Access, Storage, StorageFile};
use crate::{Error, ErrorKind, Result};

/// The checkpoint files in the directory of one store.
#[derive(Debug)]
pub(crate) struct CheckpointFiles {
    storage: Arc<dyn Storage>,
    store_id: StoreId,
}

impl CheckpointFiles {
    pub(crate) fn new(storage: Arc<dyn Storage>, store_id: StoreId) -> Self {
        Self { storage, store_id }
    }

    /// The numbers of the files that there are, ascending.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        let names = self.storage.list().map_err(|source| Error::io("list store", source))?;
        // Names are sorted, and so many digits as text as they are as numbers.
        Ok(names.iter().filter_map(|name| parse_checkpoint_name(name)).collect())
    }

    /// Opens a file and reads its directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is gone, [`ErrorKind::Corrupt`] if header, directory or footer are not right,
    /// [`ErrorKind::Unsupported`], [`ErrorKind::Io`].
    pub(crate) fn open(&self, number: u64) -> Result<CheckpointFile> {
        let name = checkpoint_file_name(number);
        let path = self.path(&name);
        let opened = self.storage.open(&name, Access::Read).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "open checkpoints: the file is gone"),
            _ => Error::io("open checkpoints", source),
        });
        let read = opened.and_then(|file| {
            let rows = self.rows(&*file, number)?;
            Ok(CheckpointFile { number, path: path.clone(), file, rows })
        });
        read.map_err(|error| error.with_path(path))
    }

    fn rows(&self, file: &dyn StorageFile, number: u64) -> Result<Vec<CheckpointRow>> {
        let file_bytes = file.len().map_err(|source| Error::io("open checkpoints", source))?;
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        let mut footer = [0; CHECKPOINT_FOOTER_BYTES];
        let Some(footer_at) = file_bytes.checked_sub(CHECKPOINT_FOOTER_BYTES as u64) else {
            return Err(cut());
        };
        read(file, &mut header, 0)?;
        read(file, &mut footer, footer_at)?;
        let frame = CheckpointFrame::decode(&header, &footer, file_bytes, self.store_id, number)?;
        let mut directory = vec![0; frame.directory_bytes];
        read(file, &mut directory, frame.directory_at)?;
        frame.rows(&directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.storage.path().map_or_else(|| PathBuf::from(name), |directory| directory.join(name))
    }
}

/// A checkpoint file whose directory is sound. It can be read on when it is deleted.
pub(crate) struct CheckpointFile {
    number: u64,
    path: PathBuf,
    file: Arc<dyn StorageFile>,
    rows: Vec<CheckpointRow>,
}

impl CheckpointFile {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Its checkpoints, by ascending session key.
    pub(crate) fn rows(&self) -> &[CheckpointRow] {
        &self.rows
    }

    /// The checkpoint of a session.
    pub(crate) fn find(&self, key: SessionKey) -> Option<&CheckpointRow> {
        self.rows.binary_search_by_key(&key, |row| row.key).ok().map(|at| &self.rows[at])
    }

    /// A checkpoint's body as stored.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it does not match its checksum, [`ErrorKind::Io`].
    pub(crate) fn read(&self, row: &CheckpointRow) -> Result<Vec<u8>> {
        // The directory was checked against the length of the file.
        let bytes = usize::try_from(row.stored_bytes).map_err(|_| cut())?;
        let mut body = vec![0; bytes];
        let found = read(&*self.file, &mut body, row.offset).and_then(|()| {
            if crc32(&body) == row.crc {
                return Ok(());
            }
            let message = "read checkpoint: the body does not match its checksum";
            Err(Error::new(ErrorKind::Corrupt, message))
        });
        found.map_err(|error| error.with_path(&self.path).with_offset(row.offset))?;
        Ok(body)
    }
}

impl fmt::Debug for CheckpointFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A checkpoint file that is being written.
pub(crate) struct CheckpointWriter {
    file: Arc<dyn StorageFile>,
    header: [u8; CHECKPOINT_HEADER_BYTES],
    rows: Vec<CheckpointRow>,
    buffer: Vec<u8>,
    /// Where the buffer begins in the file.
    at: u64,
}

impl CheckpointWriter {
    fn new(file: Arc<dyn StorageFile>, header: [u8; CHECKPOINT_HEADER_BYTES]) -> Self {
        Self { file, header, rows: Vec::new(), buffer: header.to_vec(), at: 0 }
    }

    /// Adds a session's checkpoint; keys ascend.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a key that does not, [`ErrorKind::Limit`], [`ErrorKind::Io`].
    pub(crate) fn push(
        &mut self,
        key: SessionKey,
        next_seq: Seq,
        chain: u32,
        decoded_bytes: u32,
        stored: &[u8],
    ) -> Result<()> {
        if self.rows.last().is_some_and(|last| last.key >= key) {
            return Err(Error::new(ErrorKind::Invalid, "write checkpoints: sessions out of order"));
        }
        let stored_bytes = u32::try_from(stored.len())
            .map_err(|_| Error::new(ErrorKind::Limit, "write checkpoints: a body is too large"))?;
        let (offset, crc) = (self.at + self.buffer.len() as u64, crc32(stored));
        self.rows.push(CheckpointRow { key, offset, next_seq, chain, stored_bytes, decoded_bytes, crc });
        self.append(stored)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= SEALED_WRITE_BUFFER_BYTES {
            self.drain()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        self.file.write_all_at(&self.buffer, self.at).map_err(write_error)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes the file durable.
    fn finish(mut self) -> Result<()> {
        let end = encode_checkpoint_end(&self.header, &self.rows)?;
        self.append(&end)?;
        self.drain()?;
        self.file.sync_data().map_err(write_error)
    }
}

impl Log {
    /// Writes a checkpoint file with what `fill` adds and gives it the name of `number`, which must be new; `None` if
    /// nothing was added. Then the files of the numbers in `superseded` are deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] once the log was closed, [`ErrorKind::Io`], and those of `fill`: the other files are as they were
    /// then. What cannot be deleted stays until somebody tries again, and is no error.
    // Format: section 3.
    pub(crate) fn write_checkpoints(
        &self,
        files: &CheckpointFiles,
        number: u64,
        superseded: &[u64],
        fill: &mut dyn FnMut(&mut CheckpointWriter) -> Result<()>,
    ) -> Result<Option<CheckpointFile>> {
        // The lock is not given back meanwhile.
        let _sealing = self.unsealable.lock();
        if self.lock.lock().is_none() {
            return Err(Error::new(ErrorKind::Closed, "write checkpoints: the log was closed"));
        }
        let storage = &*files.storage;
        let name = checkpoint_file_name(number);
        let temporary = temporary_name(&name);
        let written: Result<bool> = (|| {
            let header = encode_checkpoint_header(files.store_id, number);
            let file = storage.create_new(&temporary).map_err(write_error)?;
            let mut writer = CheckpointWriter::new(file, header);
            fill(&mut writer)?;
            if writer.rows.is_empty() {
                return Ok(false);
            }
            writer.finish()?;
            storage.rename(&temporary, &name).map_err(write_error)?;
            Ok(true)
        })();
        if !matches!(written, Ok(true)) {
            // What is left of it is deleted at the next opening.
            let _ = storage.remove(&temporary);
        }
        let file = if written? {
            storage.sync_directory().map_err(write_error)?;
            Some(files.open(number)?)
        } else {
            None
        };
        for number in superseded {
            let _ = storage.remove(&checkpoint_file_name(*number));
        }
        Ok(file)
    }
}

fn read(file: &dyn StorageFile, bytes: &mut [u8], offset: u64) -> Result<()> {
    let filled = read_full(file, bytes, offset).map_err(|source| Error::io("read checkpoints", source))?;
    if filled == bytes.len() { Ok(()) } else { Err(cut()) }
}

fn cut() -> Error {
    Error::new(ErrorKind::Corrupt, "read checkpoints: the file is cut")
}

fn write_error(source: io::Error) -> Error {
    Error::io("write checkpoints", source)
}
