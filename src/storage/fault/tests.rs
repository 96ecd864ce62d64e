use super::*;

const SECTOR_BYTES: usize = 512;

/// A storage with one durable file of these bytes.
fn durable_file(bytes: &[u8]) -> (FaultStorage, Arc<dyn StorageFile>) {
    let storage = FaultStorage::new(0);
    let file = storage.create_new("a").expect("create");
    file.write_all_at(bytes, 0).expect("write");
    file.sync_data().expect("sync");
    storage.sync_directory().expect("sync");
    (storage, file)
}

fn bytes_of(file: &dyn StorageFile) -> Vec<u8> {
    let mut buf = vec![0; usize::try_from(file.len().expect("len")).expect("small")];
    let read = file.read_at(&mut buf, 0).expect("read");
    assert_eq!(read, buf.len());
    buf
}

fn contents(storage: &FaultStorage, name: &str) -> Vec<u8> {
    bytes_of(&*storage.open(name, Access::Read).expect("open"))
}

fn everything(storage: &FaultStorage) -> Vec<(String, Vec<u8>)> {
    let names = storage.list().expect("list");
    names.into_iter().map(|name| (name.clone(), contents(storage, &name))).collect()
}

/// What each of many seeds leaves under a mode.
fn outcomes(storage: &FaultStorage, mode: CrashMode) -> Vec<Vec<(String, Vec<u8>)>> {
    (0..200).map(|seed| everything(&storage.crashed_copy(mode, seed))).collect()
}

#[test]
fn synced_bytes_are_kept_and_unsynced_ones_may_be_lost() {
    let (storage, file) = durable_file(b"synced");
    file.write_all_at(b"more", 6).expect("write");
    let left = |mode| contents(&storage.crashed_copy(mode, 0), "a");
    assert_eq!(left(CrashMode::DropUnsynced), b"synced");
    assert_eq!(left(CrashMode::KeepUnsynced), b"syncedmore");
    for mode in [CrashMode::TornSectors, CrashMode::TornPages] {
        let outcomes = outcomes(&storage, mode);
        for expected in [&b"synced"[..], b"synced\0\0\0\0", b"syncedmore"] {
            assert!(outcomes.iter().any(|left| left[0].1 == expected), "{mode:?} {expected:?}");
        }
    }
    file.sync_data().expect("sync");
    for mode in CrashMode::ALL {
        assert!(outcomes(&storage, mode).iter().all(|left| left[0].1 == b"syncedmore"), "{mode:?}");
    }
}

#[test]
fn a_torn_write_is_torn_at_sectors() {
    for (mode, block_bytes) in [(CrashMode::TornSectors, SECTOR_BYTES), (CrashMode::TornPages, 4096)] {
        let (storage, file) = durable_file(&[b'o'; 16384]);
        file.write_all_at(&[b'n'; 16000], 100).expect("write");
        let mut torn = 0;
        for left in outcomes(&storage, mode) {
            let bytes = &left[0].1;
            assert_eq!(bytes.len(), 16384);
            for (number, block) in bytes.chunks(block_bytes).enumerate() {
                let written = |at: &usize| (100..16100).contains(&(number * block_bytes + at));
                let (new, old): (Vec<usize>, Vec<usize>) = (0..block.len()).partition(written);
                assert!(old.iter().all(|at| block[*at] == b'o'));
                assert!(new.iter().all(|at| block[*at] == block[new[0]]), "a block is old or new as a whole");
            }
            torn += usize::from(bytes[100..16100].windows(2).any(|pair| pair[0] != pair[1]));
        }
        assert!(torn > 100, "{mode:?}: {torn} of 200 are torn");
    }
}

/// A sector is written as the cache has it, so a later write of it cannot survive without an earlier one.
#[test]
fn a_sector_goes_through_its_states_in_order() {
    let (storage, file) = durable_file(b"......");
    for (offset, byte) in [(0, b"1"), (1, b"2"), (2, b"3")] {
        file.write_all_at(byte, offset).expect("write");
    }
    let outcomes = outcomes(&storage, CrashMode::TornSectors);
    let states: [&[u8]; 4] = [b"......", b"1.....", b"12....", b"123..."];
    assert!(outcomes.iter().all(|left| states.contains(&left[0].1.as_slice())));
    assert!(states.iter().all(|state| outcomes.iter().any(|left| left[0].1 == *state)));
}

#[test]
fn a_new_length_is_volatile() {
    let (storage, file) = durable_file(b"abcdef");
    file.set_len(3).expect("cut");
    file.set_len(5).expect("grow");
    let states: [&[u8]; 3] = [b"abcdef", b"abc", b"abc\0\0"];
    let outcomes_before = outcomes(&storage, CrashMode::TornSectors);
    assert!(outcomes_before.iter().all(|left| states.contains(&left[0].1.as_slice())));
    assert!(states.iter().all(|state| outcomes_before.iter().any(|left| left[0].1 == *state)));
    file.sync_data().expect("sync");
    assert!(outcomes(&storage, CrashMode::DropUnsynced).iter().all(|left| left[0].1 == states[2]));
}

#[test]
fn a_synced_file_needs_a_synced_name() {
    let storage = FaultStorage::new(0);
    let file = storage.create_new("a").expect("create");
    file.write_all_at(b"bytes", 0).expect("write");
    file.sync_data().expect("sync");
    let outcomes_before = outcomes(&storage, CrashMode::TornSectors);
    assert!(outcomes_before.iter().any(Vec::is_empty));
    assert!(outcomes_before.iter().any(|left| !left.is_empty()));
    storage.sync_directory().expect("sync");
    assert!(outcomes(&storage, CrashMode::DropUnsynced).iter().all(|left| left[0].1 == b"bytes"));
}

#[test]
fn an_unsynced_rename_leaves_one_of_the_names() {
    let (storage, _file) = durable_file(b"bytes");
    storage.rename("a", "b").expect("rename");
    storage.create_new("a").expect("create").write_all_at(b"other", 0).expect("write");
    let outcomes = outcomes(&storage, CrashMode::TornSectors);
    let mut old_names = 0;
    for left in &outcomes {
        let holders: Vec<_> = left.iter().filter(|(_, bytes)| bytes == b"bytes").collect();
        assert_eq!(holders.len(), 1, "{left:?}");
        old_names += usize::from(holders[0].0 == "a");
    }
    assert!(0 < old_names && old_names < outcomes.len());
}

#[test]
fn an_unsynced_removal_may_be_undone() {
    let (storage, _file) = durable_file(b"bytes");
    storage.remove("a").expect("remove");
    let removed = outcomes(&storage, CrashMode::TornPages).iter().filter(|left| left.is_empty()).count();
    assert!(0 < removed && removed < 200);
    assert_eq!(contents(&storage.crashed_copy(CrashMode::DropUnsynced, 0), "a"), b"bytes");
    assert!(everything(&storage.crashed_copy(CrashMode::KeepUnsynced, 0)).is_empty());
}

#[test]
fn what_was_opened_before_a_crash_is_dead() {
    let (storage, file) = durable_file(b"bytes");
    let lock = storage.try_lock().expect("lock").expect("free");
    let before = storage.counters();
    let left = storage.crash(CrashMode::KeepUnsynced, 0);
    assert!(file.len().is_err() && file.read_at(&mut [0], 0).is_err() && file.sync_data().is_err());
    assert!(file.write_all_at(b"x", 0).is_err() && file.set_len(0).is_err());
    assert!(storage.list().is_err() && storage.open("a", Access::Read).is_err());
    assert!(storage.create_new("b").is_err() && storage.rename("a", "b").is_err());
    assert!(storage.remove("a").is_err() && storage.sync_directory().is_err() && storage.try_lock().is_err());
    assert_eq!(storage.counters(), before);

    assert_eq!(left.counters(), Counters::default());
    let new_lock = left.try_lock().expect("lock").expect("not held by the dead");
    drop(lock);
    assert!(left.try_lock().expect("lock").is_err());
    drop(new_lock);
    assert_eq!(everything(&left), [("a".to_owned(), b"bytes".to_vec())]);
}

#[test]
fn the_planned_operation_fails_and_no_other() {
    let (storage, file) = durable_file(b"bytes");
    let next = storage.counters().operations;
    let before = everything(&storage.crashed_copy(CrashMode::KeepUnsynced, 0));
    for (fault, kind) in [(Fault::Io, ErrorKind::Other), (Fault::Full, ErrorKind::StorageFull)] {
        let calls: [&dyn Fn() -> io::Result<()>; 11] = [
            &|| storage.list().map(drop),
            &|| storage.open("a", Access::Read).map(drop),
            &|| storage.create_new("b").map(drop),
            &|| storage.rename("a", "b"),
            &|| storage.remove("a"),
            &|| storage.sync_directory(),
            &|| storage.try_lock().map(drop),
            &|| file.len().map(drop),
            &|| file.read_at(&mut [0], 0).map(drop),
            &|| file.write_all_at(b"x", 0),
            &|| file.set_len(0),
        ];
        for call in calls {
            storage.set_plan(FaultPlan::new().fail(storage.counters().operations, fault));
            assert_eq!(call().expect_err("planned").kind(), kind);
        }
    }
    assert_eq!(storage.counters().operations, next + 22);
    assert_eq!(everything(&storage), before);
    let shared = storage.try_lock().expect("lock");
    assert!(shared.is_ok(), "a failed attempt does not hold the lock");
}

#[test]
fn a_short_write_leaves_half() {
    let (storage, file) = durable_file(b"");
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::ShortWrite));
    let error = file.write_all_at(b"12345678", 0).expect_err("planned");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(storage.counters().bytes_written, 4);
    assert_eq!(bytes_of(&*file), b"1234");
    file.write_all_at(b"5678", 4).expect("write");
    assert_eq!(bytes_of(&*file), b"12345678");
}

/// After a failed sync the next one succeeds, and what the first should have made durable is lost.
#[test]
fn a_failed_sync_forgets_dirty_pages() {
    let (mut lost, mut lost_unseen, mut kept) = (0, 0, 0);
    for seed in 0..100 {
        let storage = FaultStorage::new(seed);
        let file = storage.create_new("a").expect("create");
        storage.sync_directory().expect("sync");
        file.write_all_at(&[1; 8192], 0).expect("write");
        storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
        file.sync_data().expect_err("planned");
        file.sync_data().expect("the trap");
        let seen = bytes_of(&*file);
        let left = contents(&storage.crash(CrashMode::KeepUnsynced, seed), "a");
        kept += usize::from(left == [1; 8192]);
        lost += usize::from(left != [1; 8192]);
        lost_unseen += usize::from(left != seen);
    }
    assert!(kept > 0 && lost > 50 && lost_unseen > 10 && lost_unseen < lost);
}

/// Each handle is told once; one that was opened later is not.
#[test]
fn a_failed_sync_is_reported_once_by_each_open_handle() {
    let storage = FaultStorage::new(1);
    let one = storage.create_new("a").expect("create");
    let other = storage.open("a", Access::Write).expect("open");
    one.write_all_at(b"bytes", 0).expect("write");
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
    one.sync_data().expect_err("planned");
    let late = storage.open("a", Access::Write).expect("open");
    other.sync_data().expect_err("told as well");
    for told in [one, other, late] {
        told.sync_data().expect("told already");
    }
}

#[test]
fn a_sync_of_the_directory_that_fails_makes_no_name_durable() {
    let storage = FaultStorage::new(0);
    storage.create_new("a").expect("create");
    storage.set_plan(FaultPlan::new().fail(storage.counters().operations, Fault::Io));
    storage.sync_directory().expect_err("planned");
    assert!(everything(&storage.crashed_copy(CrashMode::DropUnsynced, 0)).is_empty());
    assert_eq!(storage.counters().directory_syncs, 0);
}

#[test]
fn counters_count() {
    let (storage, file) = durable_file(b"12345");
    file.write_all_at(b"678", 5).expect("write");
    file.write_all_at(b"", 5).expect("write");
    let expected = Counters { operations: 6, bytes_written: 8, file_syncs: 1, directory_syncs: 1 };
    assert_eq!(storage.counters(), expected);
}

/// Appends records, every fifth time syncs, and crashes after each operation in every mode. Gives the number
/// of crashes and of those that lost something that a sync had acknowledged.
fn crash_everywhere(plan: FaultPlan) -> (usize, usize) {
    const RECORD_BYTES: usize = 100;
    let storage = FaultStorage::new(7);
    storage.set_plan(plan);
    let file = storage.create_new("log").expect("create");
    storage.sync_directory().expect("sync");

    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let tally = Arc::new(Mutex::new((0, 0)));
    storage.on_change({
        let (acknowledged, tally) = (Arc::clone(&acknowledged), Arc::clone(&tally));
        move |point| {
            for mode in CrashMode::ALL {
                let left = everything(&point.crashed_copy(mode, point.operation()));
                let kept = left.first().is_some_and(|(_, bytes)| bytes.starts_with(&acknowledged.lock()));
                let mut tally = tally.lock();
                tally.0 += 1;
                tally.1 += usize::from(!kept);
            }
        }
    });
    let mut written = Vec::new();
    for number in 0..=255 {
        file.write_all_at(&[number; RECORD_BYTES], written.len() as u64).expect("write");
        written.extend([number; RECORD_BYTES]);
        if number % 5 == 4 {
            file.sync_data().expect("sync");
            acknowledged.lock().clone_from(&written);
        }
    }
    *tally.lock()
}

#[test]
fn a_log_that_syncs_survives_a_crash_at_every_operation() {
    assert_eq!(crash_everywhere(FaultPlan::new()), ((256 + 51) * 4, 0));
}

#[test]
fn a_lying_sync_is_found_out() {
    let (crashes, losses) = crash_everywhere(FaultPlan::new().lying_sync());
    assert!(losses > crashes / 2, "{losses} of {crashes}");
}

#[test]
fn the_same_seeds_and_calls_give_the_same_outcome() {
    let run = |seed| {
        let storage = FaultStorage::new(seed);
        storage.set_plan(FaultPlan::new().fail(10, Fault::Io));
        let mut random = Random::new(99);
        let mut files = Vec::new();
        for name in ["a", "b", "c"] {
            files.push(storage.create_new(name).expect("create"));
        }
        let mut errors = 0;
        for number in 0..60u8 {
            let file = &files[usize::from(number % 3)];
            file.write_all_at(&vec![number; 3000], random.next() % 20_000).expect("write");
            if number % 2 == 0 {
                errors += usize::from(file.sync_data().is_err());
            }
        }
        assert_eq!(errors, 1);
        storage.rename("a", "d").expect("rename");
        let modes = CrashMode::ALL.map(|mode| outcomes(&storage, mode));
        (modes, everything(&storage), storage.counters())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}
