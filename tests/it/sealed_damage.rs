//! One damaged place in a sealed file costs the events that need it, and no others.

use std::collections::BTreeSet;
use std::sync::Arc;

use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{ErrorKind, Finding, Seq, SessionCondition, Store, StoreOptions, VerifyOptions};

use crate::sealing::{create, fill, small};

/// Session and seq.
type EventId = (String, u64);

/// A compacted store: sessions that share large headers, each with one payload that all of them have.
fn sealed() -> MemoryStorage {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let sessions: Vec<_> = (0..4).map(|n| create(&store, &format!("session-{n}"))).collect();
    // The same salt for two of them: their payloads repeat in the file.
    sessions.iter().zip([1, 1, 2, 3]).for_each(|(session, salt)| fill(session, 12, salt));
    store.compact().unwrap();
    store.close().unwrap();
    storage
}

fn sealed_file(storage: &MemoryStorage) -> String {
    storage.list().unwrap().into_iter().find(|name| name.ends_with(".sealed")).unwrap()
}

/// The store with one bit of a file changed, and without checkpoints.
fn damaged(image: &MemoryStorage, name: &str, at: usize) -> MemoryStorage {
    let damaged = MemoryStorage::new();
    for other in image.list().unwrap().iter().filter(|other| !other.ends_with(".state")) {
        let source = image.open(other, Access::Read).unwrap();
        let mut copy = vec![0; usize::try_from(source.len().unwrap()).unwrap()];
        source.read_at(&mut copy, 0).unwrap();
        if other == name {
            copy[at] ^= 0x20;
        }
        damaged.create_new(other).unwrap().write_all_at(&copy, 0).unwrap();
    }
    damaged
}

/// Offset of the directories of a sealed file, and the rows of its sessions, units and pieces.
fn directories(image: &MemoryStorage, name: &str) -> (usize, [usize; 3]) {
    let file = image.open(name, Access::Read).unwrap();
    let mut footer = [0; 20];
    file.read_at(&mut footer, file.len().unwrap() - 64).unwrap();
    let count = |at: usize| u32::from_le_bytes(footer[at..at + 4].try_into().unwrap()) as usize;
    let offset = u64::from_le_bytes(footer[..8].try_into().unwrap());
    (usize::try_from(offset).unwrap(), [8, 12, 16].map(count))
}

#[test]
fn a_session_whose_row_is_damaged_does_not_pass_for_an_empty_one() {
    let image = sealed();
    let name = sealed_file(&image);
    let reader =
        |storage: MemoryStorage| StoreOptions::new().open_storage_read_only(Arc::new(storage)).unwrap();
    let whole = events(&reader(image.clone()));
    let (start, [sessions, ..]) = directories(&image, &name);
    assert_eq!(sessions, 4);
    for at in (start..start + 4 * 44).step_by(3) {
        let lost = format!("session-{}", (at - start) / 44);
        let storage = damaged(&image, &name, at);
        let store = reader(storage.clone());
        let listed = store.list().unwrap();
        assert_eq!(listed.len(), 4, "byte {at}");
        for info in listed {
            let is_damaged = info.condition == SessionCondition::Damaged;
            assert_eq!(is_damaged, info.header.id == lost, "byte {at}: {info:?}");
        }
        let error = store.session(&lost).unwrap_err();
        let row = (at - start) / 44 * 44 + start;
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(row as u64)), "{error}");
        assert!(error.path().is_some_and(|path| path.ends_with(&name)), "{error:?}");
        assert_eq!(store.fork(&lost, None, "fork").unwrap_err().kind(), ErrorKind::Corrupt);
        let report = store.verify(VerifyOptions::default(), &mut |_, _| ()).unwrap();
        let named = |finding: &&Finding| {
            finding.session.as_ref() == Some(&lost) && finding.offset == Some(row as u64)
        };
        assert_eq!(report.findings.iter().filter(named).count(), 1, "{:?}", report.findings);
        let others: Vec<_> = whole.iter().filter(|((id, _), _)| *id != lost).cloned().collect();
        let read = |store: &Store| {
            let ids = others.iter().map(|((id, seq), _)| {
                let event = store.session(id).unwrap().event(Seq::new(*seq)).unwrap();
                let mut line = String::new();
                event.write_json(&mut line);
                ((id.clone(), *seq), Some(line))
            });
            ids.collect::<Vec<_>>()
        };
        assert_eq!(read(&store), others, "byte {at}");
        if at % 44 == start % 44 {
            let writer = small(&storage);
            assert_eq!(
                writer.compact().unwrap_err().kind(),
                ErrorKind::Corrupt,
                "what is lost stays to be mended"
            );
            assert!(storage.list().unwrap().contains(&name));
            assert_eq!(read(&writer), others);
            writer.remove(&lost).unwrap();
        }
    }
}

#[test]
fn damaged_rows_of_units_and_pieces_cost_the_events_that_need_them() {
    let image = sealed();
    let name = sealed_file(&image);
    let reader =
        |storage: MemoryStorage| StoreOptions::new().open_storage_read_only(Arc::new(storage)).unwrap();
    let whole = events(&reader(image.clone()));
    let (start, [sessions, units, pieces]) = directories(&image, &name);
    let start = start + sessions * 44;
    let mut costly = 0;
    for at in (start..start + units * 44 + pieces * 24).step_by(13) {
        let store = reader(damaged(&image, &name, at));
        let read = events(&store);
        assert_eq!(read.len(), whole.len(), "byte {at}");
        let wrong = read.iter().zip(&whole).find(|(read, whole)| read.1.is_some() && read.1 != whole.1);
        assert!(wrong.is_none(), "byte {at}: {wrong:?}");
        let lost = read.iter().filter(|(_, text)| text.is_none()).count();
        let report = store.verify(VerifyOptions::default(), &mut |_, _| ()).unwrap();
        assert!(!report.findings.is_empty(), "byte {at}: {lost} lost");
        costly += usize::from(lost > 0);
    }
    assert!(costly > 10, "{costly}");
}

/// Each event by itself: its line, or `None` if it cannot be read.
fn events(store: &Store) -> Vec<(EventId, Option<String>)> {
    let mut all = Vec::new();
    for info in store.list().unwrap() {
        let session = store.session(&info.header.id).unwrap();
        for seq in 0..info.events {
            let text = match session.event(Seq::new(seq)) {
                Ok(event) => {
                    let mut line = String::new();
                    event.write_json(&mut line);
                    Some(line)
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert!(error.path().is_some() || error.seq().is_some(), "{error}");
                    None
                }
            };
            all.push(((info.header.id.clone(), seq), text));
        }
    }
    all
}

#[test]
fn a_damaged_place_costs_the_events_that_need_it_and_verify_names_them() {
    let image = sealed();
    let name = sealed_file(&image);
    let reader =
        |storage: MemoryStorage| StoreOptions::new().open_storage_read_only(Arc::new(storage)).unwrap();
    let whole = events(&reader(image.clone()));
    assert!(whole.iter().all(|(_, text)| text.is_some()));
    let file = image.open(&name, Access::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    let (mut costly, mut spared) = (0, 0);
    // Behind the header, up to the directories, whose damage may cost more.
    for at in (4096..bytes.len() - 2048).step_by(61) {
        let store = reader(damaged(&image, &name, at));
        let read = events(&store);
        assert_eq!(read.len(), whole.len(), "every session and event is listed, byte {at}");
        let mut lost = BTreeSet::new();
        for ((id, text), (_, original)) in read.into_iter().zip(&whole) {
            match text {
                Some(_) => assert_eq!(text, *original, "byte {at}: {id:?}"),
                None => drop(lost.insert(id)),
            }
        }
        let report = store.verify(VerifyOptions::default(), &mut |_, _| ()).unwrap();
        assert!(lost.is_empty() || !report.findings.is_empty(), "byte {at}: {lost:?} and no finding");
        for finding in report.findings.iter().filter(|finding| finding.seq.is_some()) {
            let id = (finding.session.clone().unwrap(), finding.seq.unwrap().get());
            assert!(lost.contains(&id), "byte {at}: {finding:?} is no loss");
        }
        for (id, seq) in lost.iter().filter(|(id, seq)| *seq == 0 || !lost.contains(&(id.clone(), seq - 1))) {
            let named = |finding: &&Finding| {
                finding.session.as_ref() == Some(id) && finding.seq == Some(Seq::new(*seq))
            };
            assert!(
                report.findings.iter().any(|finding| named(&finding)),
                "byte {at}: {id} {seq} is not named"
            );
        }
        costly += usize::from(!lost.is_empty());
        spared += usize::from(lost.len() < whole.len() / 2);
    }
    assert!(costly > 10 && spared > 10, "{costly} {spared}");
}
