//! One damaged place in a sealed file costs the events that need it, and no others.

use std::collections::BTreeSet;
use std::sync::Arc;

use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{ErrorKind, Finding, Seq, Store, StoreOptions, VerifyOptions};

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
        let damaged = MemoryStorage::new();
        for other in image.list().unwrap().iter().filter(|other| !other.ends_with(".state")) {
            let source = image.open(other, Access::Read).unwrap();
            let mut copy = vec![0; usize::try_from(source.len().unwrap()).unwrap()];
            source.read_at(&mut copy, 0).unwrap();
            if *other == name {
                copy[at] ^= 0x20;
            }
            let target = damaged.create_new(other).unwrap();
            target.write_all_at(&copy, 0).unwrap();
        }
        let store =
            Store::clone(&sessionlog::StoreOptions::new().open_storage_read_only(Arc::new(damaged)).unwrap());
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
