//! Sealing and compaction: the same answers from other bytes.

use std::sync::Arc;

use sessionlog::event::SessionHeader;
use sessionlog::storage::{MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, ErrorKind, Seq, Session, Store, VerifyOptions};

use crate::support::{lines, open, options};

fn small(storage: &MemoryStorage) -> Store {
    options().segment_bytes_max(64 << 10).open_storage(Arc::new(storage.clone())).unwrap()
}

/// Events of many kinds and sizes, a few segments of them.
fn fill(session: &Session, turns: u64, salt: u64) {
    for turn in 1..=turns {
        let text = format!("turn {turn} of {salt} ").repeat(usize::try_from(turn % 7 * 40 + 1).unwrap());
        let user = format!(
            r#"{{"id":"u{salt}-{turn}","role":"user","content":[{{"type":"text","text":"{text}"}}],"source":{{"kind":"user"}}}}"#
        );
        let header = format!(
            r#"{{"header":{{"config":{{"provider":"p","model":"m"}},"system":"{} {}"}},"reason":"{}"}}"#,
            "You are careful. ".repeat(200),
            turn / 3,
            if turn == 1 { "initial" } else { "change" }
        );
        let mut batch = vec![
            Draft::new("turn/start", format!(r#"{{"turn":{turn}}}"#)),
            Draft::new("user/message", user).on_surface(),
            Draft::new("request/header", header),
        ];
        for n in 0..20 {
            let chunk = format!(
                r#"{{"turn":{turn},"step":1,"chunk":{{"type":"text-delta","index":0,"text":"word{n} "}}}}"#
            );
            batch.push(Draft::new("assistant/chunk", chunk));
        }
        batch.push(Draft::new("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#)));
        session.append(&batch, AppendOptions::default()).unwrap().wait().unwrap();
    }
}

fn create(store: &Store, id: &str) -> Session {
    // As a header reads once it was stored.
    let header = SessionHeader { delegation_depth: Some(0), ..SessionHeader::new(id, 1) };
    store.create_session(header).unwrap()
}

/// A digest of all that can be asked of a store; the text itself where it must be looked at.
fn answers(store: &Store) -> u128 {
    let mut digest = sessionlog::event::json::Digester::default();
    digest.bytes(answer_text(store).as_bytes());
    digest.finish()
}

fn answer_text(store: &Store) -> String {
    let mut all = String::new();
    for info in store.list().unwrap() {
        let session = store.session(&info.header.id).unwrap();
        let state = session.with_state(Clone::clone).unwrap();
        let request = session.request_at(Seq::new(info.events / 2)).unwrap();
        all += &format!(
            "{info:?}\n{:?}\n{state:?}\n{request:?}\n{:?}\n",
            session.headers().unwrap(),
            lines(&session)
        );
    }
    all
}

fn names(storage: &MemoryStorage) -> Vec<String> {
    storage.list().unwrap()
}

#[test]
fn sealed_segments_give_the_same_answers_and_take_less_space() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let (a, b) = (create(&store, "a"), create(&store, "b"));
    for round in 0..6 {
        fill(&a, 5, round);
        fill(&b, 3, 100 + round);
    }
    let before = answers(&store);
    let raw_bytes: u64 = sizes(&storage);
    assert!(names(&storage).len() > 3, "several segments: {:?}", names(&storage));
    store.maintain().unwrap();
    assert!(names(&storage).iter().any(|name| name.ends_with(".sealed")), "{:?}", names(&storage));
    assert_eq!(answers(&store), before);
    fill(&a, 2, 9);
    let after_more = answers(&store);
    let compacted = store.compact().unwrap();
    assert!(compacted.bytes_after * 4 < raw_bytes, "{compacted:?} of {raw_bytes}");
    assert_eq!(answers(&store), after_more);
    assert_eq!(
        store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap().findings,
        []
    );
    drop((a, b, store));
    let store = small(&storage);
    assert_eq!(answers(&store), after_more);
    fill(&store.session("b").unwrap(), 2, 77);
    let last = answers(&store);
    store.compact().unwrap();
    assert_eq!(answers(&store), last);
    assert_eq!(names(&storage).iter().filter(|name| name.ends_with(".sealed")).count(), 1);
}

fn sizes(storage: &MemoryStorage) -> u64 {
    let size = |name: &String| storage.open(name, sessionlog::storage::Access::Read).unwrap().len().unwrap();
    names(storage).iter().map(size).sum()
}

#[test]
fn removed_sessions_give_their_space_back_and_forks_keep_what_they_share() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let (gone, parent) = (create(&store, "gone"), create(&store, "parent"));
    fill(&gone, 20, 1);
    fill(&parent, 20, 2);
    let child = store.fork("parent", Some(Seq::new(239)), "child").unwrap();
    fill(&child, 1, 3);
    let shared = lines(&child);
    let full = store.compact().unwrap().bytes_after;
    store.remove("gone").unwrap();
    store.remove("parent").unwrap();
    let less = store.compact().unwrap().bytes_after;
    assert!(less < full, "{less} of {full}");
    assert_eq!(lines(&child), shared);
    drop((gone, parent, child, store));
    let store = small(&storage);
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(lines(&store.session("child").unwrap()), shared);
    for id in ["gone", "parent"] {
        assert_eq!(store.session(id).unwrap_err().kind(), ErrorKind::NotFound);
    }
    let again = create(&store, "gone");
    fill(&again, 1, 4);
    assert_eq!(
        again.next_seq().unwrap(),
        Seq::new(24),
        "a new session under an old id has nothing of the old one"
    );
}

#[test]
fn readers_and_handles_go_on_while_files_are_rewritten() {
    let storage = MemoryStorage::new();
    let store = small(&storage);
    let session = create(&store, "s");
    fill(&session, 12, 1);
    let reader = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let seen = reader.session("s").unwrap();
    let first = lines(&seen);
    let mut halfway = seen.events(Seq::new(0)..Seq::new(u64::MAX)).unwrap();
    let begun: Vec<_> = halfway.by_ref().take(30).map(|event| event.unwrap().seq.get()).collect();
    store.maintain().unwrap();
    fill(&session, 12, 2);
    store.compact().unwrap();
    assert_eq!(lines(&seen), first, "a reader that did not refresh still reads what it knew");
    let rest: Vec<_> = halfway.map(|event| event.unwrap().seq.get()).collect();
    assert_eq!([begun, rest].concat(), (0..first.len() as u64).collect::<Vec<_>>());
    reader.refresh().unwrap();
    assert_eq!(lines(&seen), lines(&session));
    assert_eq!(answers(&reader), answers(&store));
}

#[test]
fn a_store_without_its_raw_segments_opens_from_sealed_files_alone() {
    let storage = MemoryStorage::new();
    {
        let store = small(&storage);
        fill(&create(&store, "s"), 12, 1);
        store.compact().unwrap();
    }
    let store = open(Arc::new(storage));
    assert_eq!(store.session("s").unwrap().with_state(|state| state.last_time()).unwrap(), Some(1_000));
    assert_eq!(store.list().unwrap()[0].events, 12 * 24);
}
