//! The engines, each as it would be used.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use sessionlog::event::SessionHeader;
use sessionlog::{AppendOptions, Draft, Session, Store};
use zstd::bulk::Compressor;

use crate::trace::{CREATED_AT_MS, TraceEvent, header_line};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// This project, its defaults.
    Sessionlog,
    /// A JSONL file for each session, fdatasync after each batch.
    Jsonl,
    /// A zstd file for each session: each batch is a frame of level 3, then fdatasync. Chunk rows are not packed.
    ZstdJsonl,
}

/// Commits for one session.
pub(crate) trait Writer: Send {
    /// Makes the session's next events durable.
    fn commit(&mut self, events: &[TraceEvent]) -> Result<()>;
}

/// An engine at work.
pub(crate) struct Opened {
    /// A writer for each session.
    pub(crate) writers: Vec<Box<dyn Writer>>,
    store: Option<Store>,
}

impl Engine {
    /// All of them; ours first, as the ratios are ours to theirs.
    pub(crate) const ALL: [Self; 3] = [Self::Sessionlog, Self::Jsonl, Self::ZstdJsonl];

    /// Its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sessionlog => "sessionlog",
            Self::Jsonl => "jsonl",
            Self::ZstdJsonl => "zstd-jsonl",
        }
    }

    /// Sets it up in an empty directory, ready for the first event of so many sessions.
    pub(crate) fn open(self, dir: &Path, sessions: usize) -> Result<Opened> {
        let ids = (0..sessions).map(|n| format!("session-{n}"));
        if self == Self::Sessionlog {
            let store = Store::open(dir)?;
            let writers = ids.map(|id| StoreWriter::open(&store, id)).collect::<Result<_>>()?;
            return Ok(Opened { writers, store: Some(store) });
        }
        let writers =
            ids.map(|id| FileWriter::open(dir, &id, self == Self::ZstdJsonl)).collect::<Result<_>>()?;
        File::open(dir)?.sync_all()?;
        Ok(Opened { writers, store: None })
    }
}

impl Opened {
    /// Closes it. Syncs on the commit path, where they are not one per commit.
    pub(crate) fn close(self) -> Result<Option<u64>> {
        drop(self.writers);
        let Some(store) = self.store else { return Ok(None) };
        let syncs = store.metrics()?.syncs;
        store.close()?;
        Ok(Some(syncs))
    }
}

struct StoreWriter(Session);

impl StoreWriter {
    fn open(store: &Store, id: String) -> Result<Box<dyn Writer>> {
        Ok(Box::new(Self(store.create_session(SessionHeader::new(id, CREATED_AT_MS))?)))
    }
}

impl Writer for StoreWriter {
    fn commit(&mut self, events: &[TraceEvent]) -> Result<()> {
        let drafts: Vec<Draft<'_>> = events.iter().map(TraceEvent::draft).collect();
        Ok(self.0.append(&drafts, AppendOptions::default())?.wait()?)
    }
}

struct FileWriter {
    file: File,
    compressor: Option<Compressor<'static>>,
    next_seq: u64,
    text: String,
}

impl FileWriter {
    fn open(dir: &Path, id: &str, compressed: bool) -> Result<Box<dyn Writer>> {
        let file = OpenOptions::new().append(true).create_new(true).open(dir.join(id))?;
        let compressor = if compressed { Some(Compressor::new(3)?) } else { None };
        let mut writer = Self { file, compressor, next_seq: 0, text: header_line(id) };
        writer.write_text()?;
        Ok(Box::new(writer))
    }

    fn write_text(&mut self) -> Result<()> {
        match &mut self.compressor {
            None => self.file.write_all(self.text.as_bytes())?,
            Some(compressor) => self.file.write_all(&compressor.compress(self.text.as_bytes())?)?,
        }
        Ok(self.file.sync_data()?)
    }
}

impl Writer for FileWriter {
    fn commit(&mut self, events: &[TraceEvent]) -> Result<()> {
        self.text.clear();
        for event in events {
            event.write_line(self.next_seq, &mut self.text);
            self.next_seq += 1;
        }
        self.write_text()
    }
}
