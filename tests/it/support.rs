//! Where the shared data lies, and small helpers that several chapters use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sessionlog::format::FrameHeader;
use sessionlog::log::{Damage, LogReader, Visitor};
use sessionlog::storage::{MemoryStorage, Storage};
use sessionlog::{Position, Seq, Session, Store, StoreOptions};

/// The shared data, or `None` with a visible message where it is absent. Under CI it must be there.
pub(crate) fn shared() -> Option<PathBuf> {
    let path = std::env::var_os("SESSIONLOG_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    if path.join("data").is_dir() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none(), "{} is absent, and CI must not skip", path.display());
    eprintln!("SKIPPED: {} is absent; set SESSIONLOG_SHARED to the shared data", path.display());
    None
}

/// Options of a store that is the same in every run.
pub(crate) fn options() -> StoreOptions {
    StoreOptions::new().background(false).clock(Arc::new(|| 1_000)).store_id([7; 16])
}

pub(crate) fn open(storage: Arc<dyn Storage>) -> Store {
    options().open_storage(storage).unwrap()
}

pub(crate) fn memory_store() -> Store {
    open(Arc::new(MemoryStorage::new()))
}

/// The events of a session as JSON lines.
pub(crate) fn lines(session: &Session) -> Vec<String> {
    let mut lines = Vec::new();
    session
        .for_each(Seq::new(0)..Seq::new(u64::MAX), &mut |event| {
            let mut line = String::new();
            event.write_json(&mut line);
            lines.push(line);
            Ok(())
        })
        .unwrap();
    lines
}

/// Collects the frames of a log without damage, in order.
#[derive(Default)]
pub(crate) struct Frames(Vec<(Position, FrameHeader)>);

impl Visitor for Frames {
    fn frame(&mut self, at: Position, header: &FrameHeader, _: &[u8]) -> sessionlog::Result<()> {
        self.0.push((at, *header));
        Ok(())
    }

    fn damage(&mut self, damage: &Damage) {
        panic!("{damage:?}");
    }
}

pub(crate) fn frames(storage: &MemoryStorage) -> Vec<(Position, FrameHeader)> {
    let mut frames = Frames::default();
    let _ = LogReader::open(Arc::new(storage.clone()), &mut frames).unwrap();
    frames.0
}
