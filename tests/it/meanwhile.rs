//! What others do to a store while it is being sealed, at the moment that matters.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sessionlog::event::SessionHeader;
use sessionlog::import::{Importer, JudgeOptions};
use sessionlog::storage::{Access, LockHolder, MemoryStorage, Storage, StorageFile, StorageLock};
use sessionlog::{AppendOptions, Draft, Seq, Store, VerifyOptions};

use crate::history::small_segments;
use crate::support::lines;

type Action = Box<dyn FnOnce() + Send>;

/// A storage in memory that does something once, right before a sealed file is begun.
#[derive(Clone, Default)]
struct Interrupting {
    storage: MemoryStorage,
    action: Arc<Mutex<Option<Action>>>,
}

impl std::fmt::Debug for Interrupting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.storage.fmt(f)
    }
}

impl Storage for Interrupting {
    fn list(&self) -> io::Result<Vec<String>> {
        self.storage.list()
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn StorageFile>> {
        self.storage.open(name, access)
    }

    fn create_new(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let action = self.action.lock().unwrap().take_if(|_| name.contains(".sealed"));
        if let Some(action) = action {
            action();
        }
        self.storage.create_new(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.storage.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.storage.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.storage.sync_directory()
    }

    fn try_lock(&self) -> io::Result<Result<Box<dyn StorageLock>, LockHolder>> {
        self.storage.try_lock()
    }

    fn path(&self) -> Option<&Path> {
        self.storage.path()
    }
}

/// A session is forked and removed while its events are being sealed: the fork keeps what it shares.
#[test]
fn a_fork_made_while_its_owner_is_sealed_and_removed_keeps_its_events() {
    for compacts in [false, true] {
        let storage = Interrupting::default();
        let store = small_segments().open_storage(Arc::new(storage.clone())).unwrap();
        let owner = store.create_session(SessionHeader::new("owner", 5)).unwrap();
        let large = format!("\"{}\"", "x".repeat(30_000));
        for _ in 0..4 {
            let note = Draft::new("todo/write", large.as_str()).at_time(7);
            owner.append(&[note], AppendOptions::default()).unwrap().wait().unwrap();
        }
        let owned = lines(&owner);
        let beside = store.clone();
        *storage.action.lock().unwrap() = Some(Box::new(move || {
            beside.fork("owner", Some(Seq::new(2)), "fork").unwrap();
            beside.remove("owner").unwrap();
        }));
        let sealed = if compacts { store.compact().map(|_| ()) } else { store.maintain() };
        sealed.unwrap();
        assert!(storage.action.lock().unwrap().is_none(), "it was sealed");
        let is_whole = |store: &Store| {
            let fork = lines(&store.session("fork").unwrap());
            assert_eq!((fork.len(), &fork[..3]), (4, &owned[..3]), "compacts: {compacts}");
        };
        is_whole(&store);
        store.compact().unwrap();
        is_whole(&store);
        drop(owner);
        store.close().unwrap();
        let store = small_segments().open_storage(Arc::new(storage)).unwrap();
        is_whole(&store);
        let deep = VerifyOptions { deep: true, strict: false };
        assert_eq!(store.verify(deep, &mut |_, _| ()).unwrap().findings, []);
    }
}

/// An import that is longer than a segment is sealed while it runs, before anybody sees its session.
#[test]
fn an_import_goes_on_while_its_beginning_is_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("long.jsonl");
    let mut text =
        String::from(r#"{"type":"session","version":0,"id":"long","createdAt":5,"delegationDepth":0}"#);
    for seq in 0..500 {
        let data = format!("{seq:05}").repeat(6_000);
        text += &format!("\n{{\"type\":\"todo/write\",\"seq\":{seq},\"time\":7,\"data\":\"{data}\"}}");
    }
    fs::write(&log, text + "\n").unwrap();
    let store = small_segments().open_storage(Arc::new(MemoryStorage::new())).unwrap();
    let importer = Importer::new(JudgeOptions::default());
    let sealed = Cell::new(0);
    let report = importer.import(&store, &importer.plan(&[log]).sources[0], &|_| {
        let waiting = store.metrics().unwrap().unsealed_segments;
        store.maintain().unwrap();
        sealed.set(sealed.get() + waiting - store.metrics().unwrap().unsealed_segments);
        assert_eq!(store.list().unwrap(), [], "nobody sees it");
    });
    assert!(report.unwrap().judgement.refusal.is_none());
    assert!(sealed.get() > 0, "something was sealed while it ran");
    let is_whole = |store: &Store| {
        let found = lines(&store.session("long").unwrap());
        assert_eq!(found.len(), 500);
        let is_right = |(seq, line): (usize, &String)| line.contains(&format!("\"{seq:05}{seq:05}"));
        assert!(found.iter().enumerate().all(is_right));
    };
    is_whole(&store);
    let note = Draft::new("todo/write", "1").at_time(8);
    store.session("long").unwrap().append(&[note], AppendOptions::default()).unwrap().wait().unwrap();
    store.compact().unwrap();
    assert_eq!(lines(&store.session("long").unwrap()).len(), 501);
    let deep = VerifyOptions { deep: true, strict: false };
    assert_eq!(store.verify(deep, &mut |_, _| ()).unwrap().findings, []);
}
