//! What `stats` counts, against a count of the events as they are read, and against the directory.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::sync::Arc;

use serde_json::Value;
use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, Seq, Session, Stats, Store};

use crate::sealing::{create, fill, small};
use crate::support::{lines, options};

/// A count by reading everything, from `start` on; what lies before is only followed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    events: u64,
    logical_bytes: u64,
    by_type: BTreeMap<String, (u64, u64)>,
    header_count: u64,
    header_bytes: u64,
    distinct: HashSet<String>,
    replacements: u64,
    shadowed: u64,
    largest_surface: u64,
}

impl Count {
    fn take(&mut self, session: &Session, start: u64) {
        let mut surface: Vec<u64> = Vec::new();
        for line in lines(session) {
            let event: Value = serde_json::from_str(&line).unwrap();
            let (seq, own) = (event["seq"].as_u64().unwrap(), event["seq"].as_u64().unwrap() >= start);
            match &event["surfaceOp"] {
                Value::String(_) => surface.push(seq),
                Value::Object(op) => {
                    let at = |key: &str| surface.iter().position(|n| Some(*n) == op[key].as_u64()).unwrap();
                    let (first, last) = (at("start"), at("end"));
                    surface.splice(first..=last, [seq]);
                    self.replacements += u64::from(own);
                    self.shadowed += if own { (last - first + 1) as u64 } else { 0 };
                }
                _ => {}
            }
            self.largest_surface = self.largest_surface.max(surface.len() as u64);
            if own {
                self.events += 1;
                let bytes = line.len() as u64 + 1;
                self.logical_bytes += bytes;
                let of_type = self.by_type.entry(event["type"].as_str().unwrap().to_owned()).or_default();
                *of_type = (of_type.0 + 1, of_type.1 + bytes);
            }
        }
        for header in session.headers().unwrap().into_iter().filter(|header| header.seq.get() >= start) {
            self.header_count += 1;
            self.header_bytes += header.bytes;
            self.distinct.insert(header.hash);
        }
    }

    fn of(stats: &Stats, distinct: HashSet<String>) -> Self {
        assert_eq!(stats.headers.distinct, distinct.len() as u64);
        let by_type = stats.by_type.iter().map(|t| (t.type_name.clone(), (t.events, t.logical_bytes)));
        Self {
            events: stats.events,
            logical_bytes: stats.logical_bytes,
            by_type: by_type.collect(),
            header_count: stats.headers.count,
            header_bytes: stats.headers.logical_bytes,
            distinct,
            replacements: stats.replacements.count,
            shadowed: stats.replacements.shadowed_nodes,
            largest_surface: stats.replacements.largest_surface,
        }
    }
}

/// Compares the store's figures with a count. `owned` names each session and its first own event.
fn check(store: &Store, storage: &dyn Storage, owned: &[(&str, u64)]) {
    let mut whole = Count::default();
    for (id, start) in owned {
        let session = store.session(id).unwrap();
        whole.take(&session, *start);
        let mut own = Count::default();
        own.take(&session, *start);
        let stats = session.stats().unwrap();
        assert_eq!(own, Count::of(&stats, own.distinct.clone()), "{id}");
        assert!(stats.stored_bytes > 0, "{id}");
    }
    let stats = store.stats().unwrap();
    assert_eq!(whole, Count::of(&stats, whole.distinct.clone()));
    assert_eq!((stats.sessions, stats.unreadable), (owned.len() as u64, 0));
    let files: BTreeMap<String, u64> = storage
        .list()
        .unwrap()
        .into_iter()
        .filter(|name| name.ends_with(".log") || name.ends_with(".sealed"))
        .map(|name| (name.clone(), storage.open(&name, Access::Read).unwrap().len().unwrap()))
        .collect();
    assert_eq!(stats.stored_bytes, files.values().sum::<u64>());
    assert_eq!(stats.segments.active + stats.segments.sealed, files.len() as u64);
    let told: BTreeMap<_, _> =
        stats.files.iter().map(|file| (file.name.clone(), file.stored_bytes)).collect();
    assert_eq!(told, files);
    assert_eq!(stats.files.iter().map(|file| file.events).sum::<u64>(), stats.events);
    let attributed: u64 =
        owned.iter().map(|(id, _)| store.session(id).unwrap().stats().unwrap().stored_bytes).sum();
    assert!(attributed <= stats.stored_bytes * 2, "{attributed} of {}", stats.stored_bytes);
}

/// Replaces the newest two messages by one.
fn replace(session: &Session) {
    let surface = session.surface().unwrap();
    let [.., first, last] = surface[..] else { panic!("too small: {surface:?}") };
    let next = session.next_seq().unwrap();
    let data = format!(
        r#"{{"id":"r{next}","role":"user","content":[{{"type":"text","text":"in short"}}],"source":{{"kind":"user"}}}}"#
    );
    let draft = Draft::new("user/message", data).replacing(first, last).with_sources(vec![first, last]);
    session.append(&[draft], AppendOptions::default()).unwrap().wait().unwrap();
}

#[test]
fn raw_sealed_and_compacted_the_figures_are_those_of_a_full_count() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let (a, b) = (create(&store, "a"), create(&store, "b"));
    for round in 0..4 {
        fill(&a, 5, round);
        fill(&b, 3, 100);
        replace(&a);
    }
    let owned = [("a", 0), ("b", 0)];
    check(&store, &storage, &owned);
    store.maintain().unwrap();
    check(&store, &storage, &owned);
    let raw = store.stats().unwrap().headers.stored_bytes;
    fill(&a, 2, 9);
    store.compact().unwrap();
    check(&store, &storage, &owned);
    let stats = store.stats().unwrap();
    assert!(stats.headers.stored_bytes * 10 < stats.headers.logical_bytes, "{:?}", stats.headers);
    assert!(stats.headers.stored_bytes < raw);
    drop((a, b, store));
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    check(&reader, &storage, &owned);
}

#[test]
fn what_a_fork_shares_counts_once_and_outlives_its_owner() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let parent = create(&store, "parent");
    fill(&parent, 10, 1);
    replace(&parent);
    let at = Seq::new(119);
    let child = store.fork("parent", Some(at), "child").unwrap();
    fill(&child, 2, 2);
    let grandchild = store.fork("child", None, "grandchild").unwrap();
    let own_of_grandchild = grandchild.header().seed_length.unwrap();
    fill(&grandchild, 1, 3);
    let owned = [("parent", 0), ("child", at.get() + 1), ("grandchild", own_of_grandchild)];
    check(&store, &storage, &owned);
    store.compact().unwrap();
    check(&store, &storage, &owned);
    let before = store.stats().unwrap();
    let own: u64 = owned.iter().map(|(id, _)| store.session(id).unwrap().stats().unwrap().events).sum();
    assert_eq!(before.events, own);
    let of_parent = parent.stats().unwrap().events;
    store.remove("parent").unwrap();
    let after = store.stats().unwrap();
    assert_eq!(after.sessions, 2);
    assert_eq!(before.events - after.events, of_parent - (at.get() + 1), "the forks' part stays");
    store.compact().unwrap();
    assert_eq!(store.stats().unwrap().events, after.events);
}

#[test]
fn on_disk_the_bytes_are_those_of_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = options().segment_bytes_max(64 << 10).open(dir.path().join("store")).unwrap();
    let a = create(&store, "a");
    fill(&a, 20, 1);
    store.maintain().unwrap();
    fill(&a, 2, 2);
    let stats = store.stats().unwrap();
    let mut listed = 0;
    for entry in fs::read_dir(dir.path().join("store")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".log") || name.ends_with(".sealed") {
            listed += entry.metadata().unwrap().len();
        }
    }
    assert_eq!(stats.stored_bytes, listed);
    assert!(stats.segments.sealed > 0 && stats.segments.active > 0, "{:?}", stats.segments);
}

#[test]
fn what_is_damaged_is_counted_and_the_rest_is_measured() {
    for sealed in [false, true] {
        let storage = MemoryStorage::new();
        let store = small(&storage);
        fill(&create(&store, "a"), 20, 1);
        fill(&create(&store, "b"), 20, 2);
        if sealed {
            store.compact().unwrap();
        }
        let whole = store.stats().unwrap();
        store.close().unwrap();
        let name = &storage.list().unwrap()[0];
        let file = storage.open(name, Access::Write).unwrap();
        let mut costly = 0;
        for at in (4_096..file.len().unwrap().min(30_000)).step_by(997) {
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_all_at(&[!byte[0]], at).unwrap();
            let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
            let stats = reader.stats().unwrap();
            file.write_all_at(&byte, at).unwrap();
            assert_eq!(stats.events + stats.unreadable, whole.events, "sealed: {sealed}, at {at}");
            assert_eq!(stats.sessions, 2);
            costly += u64::from(stats.unreadable > 0);
        }
        assert!(costly > 0, "sealed: {sealed}");
    }
}

#[test]
fn a_gap_is_counted_once_though_what_follows_moves_meanwhile() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let session = create(&store, "s");
    let append = |session: &Session| {
        let draft = Draft::new("todo/write", format!("\"{}\"", "x".repeat(40_000)));
        session.append(&[draft], AppendOptions::default()).unwrap().wait().unwrap();
    };
    // One event a segment, the first one sealed.
    (0..2).for_each(|_| append(&session));
    store.maintain().unwrap();
    (0..4).for_each(|_| append(&session));
    drop(session);
    store.close().unwrap();
    let file = storage.open("0000000000000002.log", Access::Write).unwrap();
    file.write_all_at(b"damage", 20_000).unwrap();
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let store = small(&storage);
    store.maintain().unwrap();
    let names = storage.list().unwrap();
    assert!(
        names.contains(&"0000000000000002.log".into()) && !names.contains(&"0000000000000003.log".into())
    );
    let stats = reader.stats().unwrap();
    assert_eq!((stats.unreadable, stats.events), (1, 5), "{names:?}");
}
