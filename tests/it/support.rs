//! Where the shared data lies, and small helpers that several chapters use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sessionlog::event::SessionHeader;
use sessionlog::format::FrameHeader;
use sessionlog::log::{Damage, LogReader, Visitor};
use sessionlog::storage::{MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, Position, Seq, Session, Store, StoreOptions};

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

/// Where the events of a session have come to lie when they are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In raw segments.
    Raw,
    /// In a sealed file, rewritten while the store stays open.
    SealedBeneath,
    /// In a sealed file, from which the session is resumed.
    Sealed,
    /// The first half as in [`Sealed`](Self::Sealed), and more in a raw segment behind it.
    SealedAndTail,
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [Self::Raw, Self::SealedBeneath, Self::Sealed, Self::SealedAndTail];
}

/// A store in memory whose sessions come to lie in one shape.
pub(crate) struct Shaped {
    pub(crate) storage: MemoryStorage,
    pub(crate) store: Store,
    shape: Shape,
}

impl Shaped {
    pub(crate) fn new(shape: Shape) -> Self {
        let storage = MemoryStorage::new();
        Self { store: open(Arc::new(storage.clone())), storage, shape }
    }

    /// Runs a test in each shape; the last one told is the one that failed.
    pub(crate) fn each(test: impl Fn(&mut Self)) {
        for shape in Shape::ALL {
            eprintln!("{shape:?}");
            test(&mut Self::new(shape));
        }
    }

    /// Appends to a session, which is made if need be. Handles from before this are of no use.
    pub(crate) fn write(&mut self, id: &str, drafts: &[Draft<'_>]) -> Session {
        self.write_as(SessionHeader::new(id, 5), drafts)
    }

    pub(crate) fn write_as(&mut self, header: SessionHeader, drafts: &[Draft<'_>]) -> Session {
        let id = header.id.clone();
        let sealed = if self.shape == Shape::SealedAndTail { drafts.len().div_ceil(2) } else { drafts.len() };
        let session = self.store.session(&id).or_else(|_| self.store.create_session(header)).unwrap();
        session.append(&drafts[..sealed], AppendOptions::default()).unwrap().wait().unwrap();
        drop(session);
        self.settle();
        let session = self.store.session(&id).unwrap();
        if sealed < drafts.len() {
            session.append(&drafts[sealed..], AppendOptions::default()).unwrap().wait().unwrap();
        }
        session
    }

    /// Seals what was written, as the shape says.
    pub(crate) fn settle(&mut self) {
        match self.shape {
            Shape::Raw => {}
            Shape::SealedBeneath => drop(self.store.compact().unwrap()),
            Shape::Sealed | Shape::SealedAndTail => {
                self.store.compact().unwrap();
                self.reopen();
            }
        }
    }

    /// Closes the store and opens it again.
    pub(crate) fn reopen(&mut self) {
        self.store.clone().close().unwrap();
        self.store = open(Arc::new(self.storage.clone()));
    }
}

/// Makes a test of each named function of a [`Shaped`] store: it is run in every shape.
macro_rules! in_every_shape {
    ($($name:ident),+ $(,)?) => {
        mod in_every_shape {
            $(#[test] fn $name() { $crate::support::Shaped::each(super::$name) })+
        }
    };
}
pub(crate) use in_every_shape;

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
