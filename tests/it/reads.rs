//! Reading single events, short ranges and envelopes: the same answers as a scan, wherever the events lie.

use std::sync::Arc;
use std::thread;

use sessionlog::event::{Event, SessionHeader};
use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, ErrorKind, Seq, Session, Store};

use crate::support::options;

fn open(storage: &MemoryStorage) -> Store {
    options().segment_bytes_max(64 << 10).open_storage(Arc::new(storage.clone())).unwrap()
}

/// Turns with a header that changes, an image that repeats, and chunks that nobody shares.
fn fill(session: &Session, turns: u64, salt: u64) {
    let image = "iVBORw0KGgo".repeat(600);
    for turn in 1..=turns {
        let rules = "You are careful. ".repeat(300);
        let header = format!(
            r#"{{"header":{{"config":{{"provider":"p","model":"m"}},"system":"{rules}{salt}.{turn}"}},"reason":"{}"}}"#,
            if turn == 1 { "initial" } else { "change" }
        );
        let user = format!(
            r#"{{"id":"u{salt}-{turn}","role":"user","content":[{{"type":"text","text":"turn {turn} {image}"}}],"source":{{"kind":"user"}}}}"#
        );
        let mut batch = vec![
            Draft::new("turn/start", format!(r#"{{"turn":{turn}}}"#)),
            Draft::new("user/message", user).on_surface(),
            Draft::new("request/header", header),
        ];
        for n in 0..40 {
            let word = (turn * 7_919 + n * 104_729 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let chunk = format!(
                r#"{{"turn":{turn},"step":1,"chunk":{{"type":"text-delta","index":0,"text":"{}"}}}}"#,
                format!("{word:x} ").repeat(20)
            );
            batch.push(Draft::new("assistant/chunk", chunk));
        }
        batch.push(Draft::new("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#)));
        session.append(&batch, AppendOptions::default()).unwrap().wait().unwrap();
    }
}

fn create(store: &Store, id: &str) -> Session {
    store.create_session(SessionHeader::new(id, 1)).unwrap()
}

fn scan(session: &Session) -> Vec<Event<'static>> {
    let mut events = Vec::new();
    session
        .for_each(Seq::new(0)..Seq::new(u64::MAX), &mut |event| {
            events.push(event.into_owned());
            Ok(())
        })
        .unwrap();
    events
}

/// Asks for every event alone, far from the one before.
fn assert_found(session: &Session, expected: &[Event<'static>]) {
    for n in 0..expected.len() {
        let at = n * 7_919 % expected.len();
        assert_eq!(session.event(expected[at].seq).unwrap(), expected[at]);
    }
    let beyond = session.event(Seq::new(expected.len() as u64)).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::NotFound);
}

fn assert_envelopes(session: &Session, expected: &[Event<'static>]) {
    let mut seen = 0;
    session
        .envelopes(Seq::new(0)..Seq::new(u64::MAX), &mut |envelope| {
            let event = &expected[seen];
            assert_eq!((envelope.type_name, envelope.seq), (&*event.type_name, event.seq));
            assert_eq!((envelope.time, envelope.surface_op), (event.time, event.surface_op));
            assert_eq!(envelope.ignorable, event.ignorable);
            let sources = envelope.sources.map(|sources| sources.iter().collect::<Vec<_>>());
            assert_eq!(sources.as_deref(), event.sources.as_deref());
            seen += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, expected.len());
}

#[test]
fn an_event_is_the_same_wherever_it_lies_and_however_it_is_asked_for() {
    let storage = MemoryStorage::new();
    let store = open(&storage);
    let (parent, other) = (create(&store, "parent"), create(&store, "other"));
    fill(&parent, 12, 1);
    fill(&other, 5, 2);
    let end = parent.next_seq().unwrap().get() - 1;
    let child = store.fork("parent", Some(Seq::new(end)), "child").unwrap();
    let grandchild = store.fork("child", None, "grandchild").unwrap();
    fill(&grandchild, 3, 3);
    let sessions = [&parent, &child, &grandchild];
    let expected = sessions.map(scan);
    let check = || {
        for (session, expected) in sessions.iter().zip(&expected) {
            assert_found(session, expected);
            assert_envelopes(session, expected);
            let short = session.events(Seq::new(90)..Seq::new(95)).unwrap().map(Result::unwrap);
            assert!(short.eq(expected[90..95].iter().cloned()));
        }
    };
    check();
    store.maintain().unwrap();
    check();
    store.compact().unwrap();
    check();
    // Rewritten without a session: other units have the numbers that these had.
    store.remove("other").unwrap();
    fill(&grandchild, 1, 4);
    store.compact().unwrap();
    for (session, expected) in [&parent, &child].iter().zip(&expected) {
        assert_found(session, expected);
    }
    assert_found(&grandchild, &scan(&grandchild));
}

#[test]
fn messages_are_found_in_any_order_and_more_than_once() {
    let store = open(&MemoryStorage::new());
    let session = create(&store, "s");
    fill(&session, 12, 1);
    let nodes = session.surface().unwrap();
    let one_by_one: Vec<String> = nodes.iter().flat_map(|node| session.messages(&[*node]).unwrap()).collect();
    assert_eq!(one_by_one.len(), 12);
    let shuffled: Vec<usize> = (0..30).map(|n| n * 5 % 12).collect();
    let asked: Vec<Seq> = shuffled.iter().map(|n| nodes[*n]).collect();
    let expected: Vec<&String> = shuffled.iter().map(|n| &one_by_one[*n]).collect();
    for _ in 0..2 {
        assert!(session.messages(&asked).unwrap().iter().eq(expected.iter().copied()));
        store.compact().unwrap();
    }
}

#[test]
fn readers_find_their_events_while_the_files_under_them_are_rewritten() {
    let storage = MemoryStorage::new();
    let store = open(&storage);
    let session = create(&store, "s");
    fill(&session, 10, 1);
    let expected = scan(&session);
    store.compact().unwrap();
    thread::scope(|scope| {
        let readers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| (0..4).for_each(|_| assert_found(&session, &expected)))).collect();
        for n in 0..6 {
            let id = format!("passing {n}");
            fill(&create(&store, &id), 1, n);
            store.compact().unwrap();
            store.remove(&id).unwrap();
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Where the texts of all units begin in a sealed file, by section 10 of the format document.
fn texts(file: &[u8]) -> Vec<usize> {
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let u64_at =
        |at: usize| usize::try_from(u64::from_le_bytes(file[at..at + 8].try_into().unwrap())).unwrap();
    let footer = file.len() - 64;
    let units = u64_at(footer) + u32_at(footer + 8) * 44;
    let rows = (0..u32_at(footer + 12)).map(|unit| units + unit * 44);
    rows.filter(|row| u32_at(row + 28) > 0).map(|row| u64_at(row + 8) + u32_at(row + 16)).collect()
}

#[test]
fn damaged_payloads_cost_no_envelope_no_header_and_no_surface_op() {
    let storage = MemoryStorage::new();
    let store = open(&storage);
    let session = create(&store, "s");
    fill(&session, 12, 1);
    let expected = scan(&session);
    store.compact().unwrap();
    let headers = session.headers().unwrap();
    assert_eq!(headers.len(), 12);
    drop(session);
    store.close().unwrap();
    let name = storage.list().unwrap().into_iter().find(|name| name.ends_with(".sealed")).unwrap();
    let file = storage.open(&name, Access::Write).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    let texts = texts(&bytes);
    assert!(texts.len() > 2, "{texts:?}");
    for at in texts {
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    }
    let store = open(&storage);
    let session = store.session("s").unwrap();
    assert_envelopes(&session, &expected);
    assert_eq!(session.headers().unwrap(), headers);
    for event in &expected {
        match session.event(event.seq) {
            Ok(found) => assert_eq!(found, *event),
            Err(error) => {
                assert_eq!((error.kind(), error.seq()), (ErrorKind::Corrupt, Some(event.seq)));
                assert_ne!(event.type_name, "request/header");
            }
        }
    }
    let lost = session.for_each(Seq::new(0)..Seq::new(9), &mut |_| Ok(())).unwrap_err();
    assert_eq!((lost.kind(), lost.seq()), (ErrorKind::Corrupt, Some(Seq::new(0))));
}
