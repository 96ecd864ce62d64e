//! Request headers in the active segment: stored as what changed, the same to whoever reads them.

use std::path::Path;
use std::sync::Arc;

use sessionlog::event::SessionHeader;
use sessionlog::export::{JsonlFormat, export_session};
use sessionlog::format::{FrameHeader, FrameKind, segment_file_name};
use sessionlog::import::{Importer, JudgeOptions};
use sessionlog::storage::{Access, MemoryStorage, Storage};
use sessionlog::{AppendOptions, Draft, ErrorKind, Seq, Session, Store, VerifyOptions};

use crate::history::Random;
use crate::support::{frames, lines, memory_store, open, options};

const HEADER_BYTES: usize = 60_000;

/// A header of a session; one number is one text.
fn header(session: u64, number: usize) -> Draft<'static> {
    edited_header(session, number, 0)
}

/// The same with so many words of its own at its end.
fn edited_header(session: u64, number: usize, edited: usize) -> Draft<'static> {
    const WORDS: usize = HEADER_BYTES / 17;
    let (mut random, mut other) = (Random::new(session), Random::new(!session - number as u64));
    let kept = (0..WORDS - edited).map(|_| random.next());
    let words = kept.chain((0..edited).map(|_| other.next()));
    let system: String = words.map(|word| format!("{word:016x} ")).collect();
    let data = format!(
        r#"{{"header":{{"config":{{"provider":"p","model":"m"}},"system":"{number} {system}"}},"reason":"change"}}"#
    );
    Draft::new("request/header", data)
}

fn todo(number: usize) -> Draft<'static> {
    Draft::new("todo/write", format!(r#"{{"todos":[{number}]}}"#))
}

fn append(session: &Session, drafts: &[Draft<'_>]) {
    session.append(drafts, AppendOptions::default()).unwrap().wait().unwrap();
}

fn create(store: &Store, id: &str) -> Session {
    store.create_session(SessionHeader::new(id, 5)).unwrap()
}

/// Two sessions of four batches, each of them a small event, a header, and a small event.
fn fill(store: &Store) {
    let sessions = ["a", "b"].map(|id| create(store, id));
    for number in 0..4 {
        for (salt, session) in (0..).zip(&sessions) {
            append(session, &[todo(number), header(salt, number), todo(number)]);
        }
    }
}

fn file_bytes(storage: &MemoryStorage, segment: u64) -> u64 {
    let name = segment_file_name(sessionlog::SegmentId::new(segment));
    storage.open(&name, Access::Read).unwrap().len().unwrap()
}

fn findings(store: &Store) -> Vec<(Option<String>, Option<Seq>)> {
    let report = store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap();
    report.findings.into_iter().map(|finding| (finding.session, finding.seq)).collect()
}

#[test]
fn a_changed_header_takes_some_bytes_and_reads_as_it_was_everywhere() {
    let storage = MemoryStorage::new();
    let store = open(Arc::new(storage.clone()));
    fill(&store);
    let (a, b) = (store.session("a").unwrap(), store.session("b").unwrap());
    assert_eq!(store.metrics().unwrap().patches, 6);
    assert!(file_bytes(&storage, 1) < 2 * HEADER_BYTES as u64 + 16_000, "{}", file_bytes(&storage, 1));
    let stored: Vec<_> = a.headers().unwrap().iter().map(|header| header.stored_bytes.unwrap()).collect();
    assert!(stored[0] > HEADER_BYTES as u64 && stored[1..].iter().all(|bytes| *bytes <= 64), "{stored:?}");
    append(&a, &[header(0, 3)]);
    assert!(a.headers().unwrap().last().unwrap().stored_bytes.unwrap() <= 64, "an equal one");

    let written = [lines(&a), lines(&b)];
    let drafts: Vec<_> = (0..4).flat_map(|number| [todo(number), header(0, number), todo(number)]).collect();
    let again = AppendOptions { expected: Some(Seq::new(0)), ..AppendOptions::default() };
    assert!(a.append(&drafts, again).unwrap().already_stored);
    let beside = options().open_storage_read_only(Arc::new(storage.clone())).unwrap();
    let reads = |store: &Store| ["a", "b"].map(|id| lines(&store.session(id).unwrap()));
    assert_eq!(reads(&beside), written);
    append(&b, &[header(1, 9)]);
    beside.refresh().unwrap();
    assert_eq!(reads(&beside), reads(&store));
    assert_eq!(findings(&store), []);
    let written = reads(&store);
    store.compact().unwrap();
    assert_eq!(reads(&store), written);
    // The base is gone with its segment.
    append(&b, &[header(1, 10), header(1, 11)]);
    assert_eq!(store.metrics().unwrap().patches, 6 + 1 + 1 + 1);
    let written = reads(&store);
    drop((a, b, store));
    assert_eq!(reads(&open(Arc::new(storage))), written);
}

#[test]
fn a_header_that_has_moved_away_from_its_base_becomes_one_before_its_patches_cost_more() {
    let store = memory_store();
    let session = create(&store, "session");
    // Each differs from every other in about 3 KB.
    (0..60).for_each(|number| append(&session, &[edited_header(0, number, 300)]));
    let stored: Vec<_> =
        session.headers().unwrap().iter().map(|header| header.stored_bytes.unwrap()).collect();
    let plain = stored.iter().filter(|bytes| **bytes > 50_000).count();
    assert!((2..=6).contains(&plain), "{plain} of {stored:?}");
    assert!(stored.iter().sum::<u64>() < 9 * HEADER_BYTES as u64, "{stored:?}");
}

#[test]
fn pipelined_and_imported_headers_are_patches_too_once_there_is_a_base() {
    let store = memory_store();
    let session = create(&store, "session");
    let queue = |number| session.append(&[header(0, number)], AppendOptions::default()).unwrap();
    let queued: Vec<_> = (0..3).map(queue).collect();
    queued.iter().for_each(|appended| appended.wait().unwrap());
    assert_eq!(store.metrics().unwrap().patches, 0, "none was written when the next was queued");
    (3..6).map(queue).collect::<Vec<_>>().iter().for_each(|appended| appended.wait().unwrap());
    assert_eq!(store.metrics().unwrap().patches, 3);

    let out = tempfile::tempdir().unwrap();
    export_session(&session, out.path(), JsonlFormat::Plain, true, None).unwrap();
    let imported = import(out.path());
    assert_eq!(lines(&imported.session("session").unwrap()), lines(&session));
    assert_eq!(imported.metrics().unwrap().patches, 5, "the first one is plain");
}

fn import(root: &Path) -> Store {
    let store = memory_store();
    let importer = Importer::new(JudgeOptions::default());
    for source in &importer.plan(&[root.to_owned()]).sources {
        importer.import(&store, source, &|_| ()).unwrap();
    }
    store
}

#[test]
fn a_damaged_base_is_found_with_each_header_that_needs_it_and_costs_nothing_else() {
    let storage = MemoryStorage::new();
    let store = open(Arc::new(storage.clone()));
    fill(&store);
    let whole = ["a", "b"].map(|id| lines(&store.session(id).unwrap()));
    store.close().unwrap();
    let is_base = |header: &FrameHeader| header.kind == FrameKind::EVENTS && header.tag == 1;
    let (base, _) =
        frames(&storage).into_iter().find(|(_, header)| header.subject == 1 && is_base(header)).unwrap();
    let file = storage.open(&segment_file_name(base.segment), Access::Write).unwrap();
    file.write_all_at(b"x", base.offset + 1_000).unwrap();

    let store = open(Arc::new(storage));
    assert_eq!(lines(&store.session("b").unwrap()), whole[1]);
    let a = store.session("a").unwrap();
    // The base takes its batch with it, as any damaged frame does; the others lose their header alone.
    let lost = [0, 1, 2, 4, 7, 10].map(Seq::new);
    for (seq, line) in (0..).map(Seq::new).zip(&whole[0]) {
        match a.event(seq) {
            Ok(event) => {
                let mut read = String::new();
                event.write_json(&mut read);
                assert_eq!((&read, lost.contains(&seq)), (line, false), "seq {seq}");
            }
            Err(error) => {
                assert_eq!(
                    (error.kind(), lost.contains(&seq)),
                    (ErrorKind::Corrupt, true),
                    "seq {seq}: {error}"
                );
            }
        }
    }
    let mut found: Vec<_> = findings(&store);
    assert!(found.iter().all(|(session, _)| session.as_deref() == Some("a")));
    found.retain(|(_, seq)| seq.is_some());
    assert!(lost.iter().all(|seq| found.iter().any(|(_, found)| found == &Some(*seq))), "{found:?}");
}
