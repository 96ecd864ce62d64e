//! The rules of [`Storage`], run over every implementation of it.

use super::fault::FaultStorage;
use super::*;
use std::io::ErrorKind;

/// Runs a test over an empty directory of each kind.
fn on_each(test: impl Fn(&dyn Storage)) {
    let dir = tempfile::tempdir().expect("tempdir");
    test(&DiskStorage::open(dir.path().join("store"), true).expect("open"));
    test(&MemoryStorage::new());
    test(&FaultStorage::new(0));
}

fn contents(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let file = storage.open(name, Access::Read).expect("open");
    let len = usize::try_from(file.len().expect("len")).expect("small");
    let mut buf = vec![0xEE; len + 1];
    let mut read = 0;
    loop {
        match file.read_at(&mut buf[read..], read as u64).expect("read") {
            0 => break,
            more => read += more,
        }
    }
    assert_eq!(read, len);
    buf.truncate(len);
    buf
}

fn create(storage: &dyn Storage, name: &str, bytes: &[u8]) -> Arc<dyn StorageFile> {
    let file = storage.create_new(name).expect("create");
    file.write_all_at(bytes, 0).expect("write");
    file
}

#[track_caller]
fn assert_refused<T>(result: io::Result<T>, kind: ErrorKind) {
    assert_eq!(result.err().map(|error| error.kind()), Some(kind));
}

#[test]
fn creation_is_exclusive_and_listed_in_order() {
    on_each(|storage| {
        assert!(storage.list().expect("list").is_empty());
        for name in ["b", "a.tmp", "c", "B", "a"] {
            create(storage, name, name.as_bytes());
        }
        assert_refused(storage.create_new("a"), ErrorKind::AlreadyExists);
        assert_eq!(contents(storage, "a"), b"a");
        assert_eq!(storage.list().expect("list"), ["B", "a", "a.tmp", "b", "c"]);
        storage.sync_directory().expect("sync");
    });
}

#[test]
fn a_rename_refuses_a_taken_name_and_keeps_handles() {
    on_each(|storage| {
        let file = create(storage, "a", b"one");
        create(storage, "b", b"two");
        assert_refused(storage.rename("a", "b"), ErrorKind::AlreadyExists);
        assert_refused(storage.rename("a", "a"), ErrorKind::AlreadyExists);
        assert_refused(storage.rename("missing", "c"), ErrorKind::NotFound);
        assert_eq!((contents(storage, "a"), contents(storage, "b")), (b"one".to_vec(), b"two".to_vec()));

        storage.rename("a", "c").expect("rename");
        file.write_all_at(b"ONE", 0).expect("write by the old handle");
        assert_eq!(storage.list().expect("list"), ["b", "c"]);
        assert_eq!(contents(storage, "c"), b"ONE");
    });
}

#[test]
fn a_removed_name_is_free_again() {
    on_each(|storage| {
        create(storage, "a", b"old");
        storage.remove("a").expect("remove");
        assert_refused(storage.remove("a"), ErrorKind::NotFound);
        assert_refused(storage.open("a", Access::Read), ErrorKind::NotFound);
        assert!(storage.list().expect("list").is_empty());
        create(storage, "a", b"new");
        assert_eq!(contents(storage, "a"), b"new");
    });
}

#[cfg(unix)]
#[test]
fn a_removed_file_serves_the_handles_it_has() {
    on_each(|storage| {
        let file = create(storage, "a", b"bytes");
        storage.remove("a").expect("remove");
        let mut buf = [0; 5];
        assert_eq!(file.read_at(&mut buf, 0).expect("read"), 5);
        assert_eq!(&buf, b"bytes");
    });
}

#[test]
fn names_stay_in_the_directory_and_off_the_lock() {
    on_each(|storage| {
        create(storage, "a", b"kept");
        for name in ["", ".", "..", "../a", "/a", "a/b", "a\\b", "c:a", "a\0", "LOCK", "lock", "LOCK.pid"] {
            assert_refused(storage.open(name, Access::Read), ErrorKind::InvalidInput);
            assert_refused(storage.create_new(name), ErrorKind::InvalidInput);
            assert_refused(storage.remove(name), ErrorKind::InvalidInput);
            assert_refused(storage.rename("a", name), ErrorKind::InvalidInput);
            assert_refused(storage.rename(name, "b"), ErrorKind::InvalidInput);
        }
        assert_eq!(storage.list().expect("list"), ["a"]);
    });
}

#[test]
fn reads_end_at_the_end() {
    on_each(|storage| {
        let file = create(storage, "a", b"0123456789");
        let mut buf = [0xEE; 8];
        assert_eq!(file.read_at(&mut buf, 6).expect("read"), 4);
        assert_eq!(&buf, b"6789\xEE\xEE\xEE\xEE");
        for offset in [10, 11, 1 << 40] {
            assert_eq!(file.read_at(&mut buf, offset).expect("read"), 0);
        }
        assert_eq!(file.read_at(&mut [], 0).expect("read"), 0);
    });
}

#[test]
fn gaps_and_grown_space_are_zeros() {
    on_each(|storage| {
        let file = create(storage, "a", b"abc");
        file.write_all_at(b"def", 9_000).expect("write beyond the end");
        assert_eq!(file.len().expect("len"), 9_003);
        file.write_all_at(b"", 20_000).expect("write nothing");
        assert_eq!(file.len().expect("len"), 9_003);
        file.set_len(2).expect("cut");
        file.set_len(10_000).expect("grow");
        file.sync_data().expect("sync");
        let mut expected = vec![0; 10_000];
        expected[..2].copy_from_slice(b"ab");
        assert_eq!(contents(storage, "a"), expected);
    });
}

#[test]
fn a_handle_for_reading_refuses_changes() {
    on_each(|storage| {
        create(storage, "a", b"abc");
        let file = storage.open("a", Access::Read).expect("open");
        assert_refused(file.write_all_at(b"x", 0), ErrorKind::PermissionDenied);
        assert_refused(file.set_len(0), ErrorKind::PermissionDenied);
        assert_refused(file.sync_data(), ErrorKind::PermissionDenied);
        storage.open("a", Access::Write).expect("open").write_all_at(b"x", 1).expect("write");
        assert_eq!(contents(storage, "a"), b"axc");
    });
}

#[test]
fn the_lock_has_one_holder() {
    on_each(|storage| {
        let lock = storage.try_lock().expect("lock").expect("free");
        let holder = storage.try_lock().expect("lock").expect_err("held");
        assert_eq!(holder.pid, Some(std::process::id()));
        assert!(storage.list().expect("list").is_empty());
        drop(lock);
        storage.try_lock().expect("lock").expect("free again");
    });
}

#[test]
fn clones_of_a_memory_storage_share_it() {
    let storage = MemoryStorage::new();
    let clone = storage.clone();
    create(&storage, "a", b"abc");
    assert_eq!(contents(&clone, "a"), b"abc");
    let _lock = clone.try_lock().expect("lock").expect("free");
    assert!(storage.try_lock().expect("lock").is_err());
    assert_eq!(storage.path(), None);
}

/// Random calls give the same answers whatever lies below, pages' and sectors' ends included.
#[test]
fn all_kinds_agree_on_random_files() {
    use proptest::prelude::*;
    let near_ends =
        (0u64..4, 0u64..1200).prop_map(|(page, within)| (page * 4096 + within).saturating_sub(600));
    let change = (any::<bool>(), near_ends, 0usize..9000, any::<u8>());
    let config = ProptestConfig {
        cases: 32,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(changes in prop::collection::vec(change, 1..12))| {
        let results = std::cell::RefCell::new(Vec::new());
        on_each(|storage| {
            let file = storage.create_new("a").expect("create");
            for (cut, offset, len, byte) in &changes {
                if *cut {
                    file.set_len(*offset).expect("set_len");
                } else {
                    file.write_all_at(&vec![*byte; *len], *offset).expect("write");
                }
            }
            results.borrow_mut().push(contents(storage, "a"));
        });
        let results = results.into_inner();
        prop_assert_eq!(&results[0], &results[1]);
        prop_assert_eq!(&results[0], &results[2]);
    });
}
