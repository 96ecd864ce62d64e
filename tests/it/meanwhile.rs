//! What others do to a store while it is being sealed, at the moment that matters.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sessionlog::event::SessionHeader;
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
