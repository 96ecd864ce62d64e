//! A full disk: what frees space works without any.
//!
//! Storage property: removing needs no free space beyond what the store keeps for it.

use std::sync::Arc;

use sessionlog::event::SessionHeader;
use sessionlog::storage::Storage;
use sessionlog::storage::fault::FaultStorage;
use sessionlog::{AppendOptions, Draft, ErrorKind, Store, StoreOptions};

use crate::support::lines;

fn open(storage: &FaultStorage) -> Store {
    let options = StoreOptions::new().segment_bytes_max(64 << 10).background(false);
    options.open_storage(Arc::new(storage.clone())).unwrap()
}

/// A session of a few hundred kilobytes that hardly shrink.
fn fill(store: &Store, id: &str, seed: u64) {
    let session = store.create_session(SessionHeader::new(id, 5)).unwrap();
    let mut state = seed;
    for _ in 0..20 {
        let digits = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{:016x}", state ^ (state >> 29))
        });
        let noise: String = digits.take(1_000).collect();
        let draft = Draft::new("todo/write", format!("\"{noise}\""));
        session.append(&[draft], AppendOptions::default()).unwrap().wait().unwrap();
    }
}

/// One sealed file with the sessions `a` and `b`, one with `c`.
fn two_files(storage: &FaultStorage) {
    let store = open(storage);
    fill(&store, "a", 1);
    fill(&store, "b", 2);
    store.compact().unwrap();
    store.close().unwrap();
    let store = open(storage);
    fill(&store, "c", 3);
    store.maintain().unwrap();
    store.close().unwrap();
    // What was written last is sealed by the next opening's upkeep.
    let store = open(storage);
    store.maintain().unwrap();
    store.close().unwrap();
}

fn files(storage: &FaultStorage, end: &str) -> Vec<String> {
    storage.list().unwrap().into_iter().filter(|name| name.ends_with(end)).collect()
}

#[test]
fn sessions_are_removed_and_their_files_let_go_on_a_full_disk() {
    for is_live in [false, true] {
        let storage = FaultStorage::new(1);
        two_files(&storage);
        let first = files(&storage, ".sealed").remove(0);
        let kept = lines(&open(&storage).session("c").unwrap());
        let store = open(&storage);
        storage.set_capacity(Some(storage.used_bytes()));
        if !is_live {
            let session = store.create_session(SessionHeader::new("d", 5)).unwrap();
            let failed = session.append(&[Draft::new("todo/write", "{}")], AppendOptions::default());
            assert_eq!(failed.unwrap().wait().unwrap_err().kind(), ErrorKind::Io, "the disk is full");
            drop((session, store));
        } else {
            drop(store);
        }
        let store = open(&storage);
        store.remove("a").unwrap();
        store.remove("b").unwrap();
        store.close().unwrap();

        let before = storage.used_bytes();
        let store = open(&storage);
        // What is let go first makes room for what is rewritten.
        store.compact().unwrap();
        assert!(!files(&storage, ".sealed").contains(&first), "{:?}", storage.list());
        assert!(storage.used_bytes() + 300_000 < before, "{} of {before}", storage.used_bytes());
        drop(store);
        let store = open(&storage);
        assert_eq!(store.list().unwrap().len(), 1);
        assert_eq!(lines(&store.session("c").unwrap()), kept);
        fill(&store, "e", 4);
    }
}

#[test]
fn the_space_that_is_kept_is_there_again_once_there_is_room() {
    let storage = FaultStorage::new(2);
    let store = open(&storage);
    assert_eq!(files(&storage, "reserve.tmp").len(), 1);
    fill(&store, "a", 1);
    storage.set_capacity(Some(storage.used_bytes()));
    store.remove("a").unwrap();
    assert_eq!(files(&storage, "reserve.tmp").len(), 0);
    store.maintain().unwrap();
    assert_eq!(files(&storage, "reserve.tmp").len(), 0, "there is no room, and no half of it");
    storage.set_capacity(None);
    store.maintain().unwrap();
    assert_eq!(files(&storage, "reserve.tmp").len(), 1);
}

/// What is deleted takes its space until nobody has it open.
#[cfg(target_os = "linux")]
#[test]
fn files_that_are_let_go_are_not_held_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = StoreOptions::new().background(false).open(&path).unwrap();
    let held = || -> Vec<String> {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = links.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        let links = links.map(|link| link.to_string_lossy().into_owned());
        links.filter(|link| link.starts_with(path.to_str().unwrap()) && link.ends_with("(deleted)")).collect()
    };
    fill(&store, "a", 1);
    fill(&store, "b", 2);
    store.compact().unwrap();
    let removed = store.session("b").unwrap();
    assert_eq!(lines(&removed).len(), 20);
    fill(&store, "c", 3);
    store.remove("a").unwrap();
    store.remove("b").unwrap();
    store.compact().unwrap();
    assert_eq!(held(), Vec::<String>::new(), "though a handle of a removed session is there");
    assert_eq!(removed.next_seq().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(lines(&store.session("c").unwrap()).len(), 20);
}
