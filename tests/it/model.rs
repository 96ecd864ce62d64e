//! Random histories of a store against the simplest model of one: a list of lines for each session.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sessionlog::event::SessionHeader;
use sessionlog::storage::MemoryStorage;
use sessionlog::{AppendOptions, Draft, Durability, ErrorKind, Seq, Session, Store, VerifyOptions};

use crate::history::{naive_surface, small_segments};
use crate::support::lines;

/// What a session holds, as JSON lines.
type Model = BTreeMap<&'static str, Vec<String>>;

const IDS: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Debug, Clone)]
enum Step {
    Append { id: &'static str, events: Vec<Kind>, durability: Durability, again: bool },
    Seed { id: &'static str, events: Vec<Kind> },
    Fork { parent: &'static str, child: &'static str, at: usize },
    Remove { id: &'static str },
    Resume { id: &'static str },
    Maintain,
    Compact,
    Close,
    Reopen,
}

/// An event; numbers are taken modulo what is there to choose from.
#[derive(Debug, Clone)]
enum Kind {
    Turn,
    Todo(usize),
    User(usize),
    Replace(usize, usize),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        1 => Just(Kind::Turn),
        2 => (0_usize..3_000).prop_map(Kind::Todo),
        5 => (0_usize..200).prop_map(Kind::User),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Kind::Replace(a, b)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let id = || prop::sample::select(&IDS[..]);
    let events = || prop::collection::vec(kind(), 1..6);
    let durability = prop_oneof![Just(Durability::Buffered), Just(Durability::Synced)];
    prop_oneof![
        10 => (id(), events(), durability, any::<bool>())
            .prop_map(|(id, events, durability, again)| Step::Append { id, events, durability, again }),
        1 => (id(), events()).prop_map(|(id, events)| Step::Seed { id, events }),
        2 => (id(), id(), any::<usize>()).prop_map(|(parent, child, at)| Step::Fork { parent, child, at }),
        1 => id().prop_map(|id| Step::Remove { id }),
        1 => id().prop_map(|id| Step::Resume { id }),
        1 => Just(Step::Maintain),
        1 => Just(Step::Compact),
        1 => Just(Step::Close),
        2 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_store_holds_what_the_model_holds(steps in prop::collection::vec(step(), 1..60)) {
        let storage = MemoryStorage::new();
        let mut store = open(&storage);
        let mut model = Model::new();
        for step in &steps {
            if let Step::Close = step {
                store.clone().close().unwrap();
            }
            if let Step::Close | Step::Reopen = step {
                drop(store);
                store = open(&storage);
            }
            take(&store, &mut model, step);
            compare(&store, &model);
        }
        let report = store.verify(VerifyOptions { deep: true, strict: false }, &mut |_, _| ()).unwrap();
        prop_assert_eq!(report.findings, []);
        drop(store);
        compare(&open(&storage), &model);
    }
}

/// The same few cases each time, unless `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for others.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 48;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}

fn open(storage: &MemoryStorage) -> Store {
    small_segments().open_storage(Arc::new(storage.clone())).unwrap()
}

fn take(store: &Store, model: &mut Model, step: &Step) {
    match step {
        Step::Append { id, events, durability, again } => {
            append(store, model, id, events, *durability, *again)
        }
        Step::Seed { id, events } => seed(store, model, id, events),
        Step::Fork { parent, child, at } => fork(store, model, parent, child, *at),
        Step::Remove { id } => match model.remove(id) {
            Some(_) => store.remove(id).unwrap(),
            None => assert_eq!(store.remove(id).unwrap_err().kind(), ErrorKind::NotFound),
        },
        Step::Resume { id } => resume(store, model, id),
        Step::Maintain => store.maintain().unwrap(),
        Step::Compact => drop(store.compact().unwrap()),
        Step::Close | Step::Reopen => {}
    }
}

fn append(
    store: &Store,
    model: &mut Model,
    id: &'static str,
    events: &[Kind],
    durability: Durability,
    again: bool,
) {
    let session = if model.contains_key(id) { store.session(id) } else { store.create_session(header(id)) };
    let session = session.unwrap();
    let held = model.entry(id).or_default();
    let first = held.len() as u64;
    let new = written(held, events);
    let options = AppendOptions { expected: Some(Seq::new(first)), durability };
    let appended = session.append(&drafts(&new), options).unwrap();
    if again {
        let stored = session.append(&drafts(&new), options).unwrap();
        assert!(stored.already_stored && !appended.already_stored);
        stored.wait().unwrap();
    }
    appended.wait().unwrap();
    held.extend(new);
    assert_eq!((appended.first, appended.next), (Seq::new(first), Seq::new(held.len() as u64)));
}

fn seed(store: &Store, model: &mut Model, id: &'static str, events: &[Kind]) {
    let mut seed = written(&[], events);
    let seeded = store.seed_session(header(id), &drafts(&seed));
    if model.contains_key(id) {
        assert_eq!(seeded.unwrap_err().kind(), ErrorKind::Conflict);
        return;
    }
    seeded.unwrap();
    seed.push(line("session/end-seed", seed.len(), "{}", "").replace(r#""time":7"#, r#""time":1000"#));
    model.insert(id, seed);
}

/// A fork shares what its parent held then, whatever becomes of the parent.
fn fork(store: &Store, model: &mut Model, parent: &'static str, child: &'static str, at: usize) {
    let held = model.get(parent).cloned().unwrap_or_default();
    let at = if held.is_empty() { 0 } else { at % held.len() };
    let forked = store.fork(parent, Some(Seq::new(at as u64)), child).map_err(|error| error.kind());
    let expected = match model.contains_key(parent) {
        false => Err(ErrorKind::NotFound),
        true if open_turn(&held[..=at]).is_some() => Err(ErrorKind::Invalid),
        true if model.contains_key(child) => Err(ErrorKind::Conflict),
        true => Ok(()),
    };
    assert_eq!(forked.map(drop), expected);
    if expected.is_ok() {
        let mut lines = held[..=at].to_vec();
        if !lines[at].contains("session/end-seed") {
            lines.push(line("session/end-seed", at + 1, "{}", "").replace(r#""time":7"#, r#""time":1000"#));
        }
        model.insert(child, lines);
    }
}

/// Closes an open turn, and only that.
fn resume(store: &Store, model: &mut Model, id: &str) {
    let Some(held) = model.get_mut(id) else {
        assert_eq!(store.resume(id).unwrap_err().kind(), ErrorKind::NotFound);
        return;
    };
    let resumed = lines(&store.resume(id).unwrap());
    assert_eq!(resumed[..held.len()], held[..]);
    assert_eq!(resumed.len() - held.len(), usize::from(open_turn(held).is_some()));
    assert!(open_turn(&resumed).is_none());
    *held = resumed;
}

fn compare(store: &Store, model: &Model) {
    let listed: BTreeMap<String, u64> =
        store.list().unwrap().into_iter().map(|info| (info.header.id.clone(), info.events)).collect();
    let expected = model.iter().map(|(id, held)| ((*id).to_owned(), held.len() as u64)).collect();
    assert_eq!(listed, expected);
    for (id, held) in model {
        let session = store.session(id).unwrap();
        assert_eq!(lines(&session), *held, "{id}");
        compare_surface(&session, held);
    }
}

fn compare_surface(session: &Session, held: &[String]) {
    let surface = naive_surface(held.iter().map(String::as_str));
    assert_eq!(session.surface().unwrap(), surface);
    let replaced = held.iter().filter(|line| line.contains(r#""op":"replace""#)).count();
    assert_eq!(session.replace_generation().unwrap(), replaced as u64);
    let middle = held.len() / 2;
    let then = session.request_at(Seq::new(middle as u64)).unwrap();
    assert_eq!(then.surface, naive_surface(held[..=middle].iter().map(String::as_str)));
    assert_eq!(then.messages.len(), then.surface.len());
}

/// The lines that these events become behind `held`.
fn written(held: &[String], events: &[Kind]) -> Vec<String> {
    let mut all = held.to_vec();
    for kind in events {
        let seq = all.len();
        all.push(match kind {
            Kind::Turn => match open_turn(&all) {
                Some(turn) => {
                    let data = format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#);
                    line("turn/end", seq, &data, "")
                }
                None => line("turn/start", seq, &format!(r#"{{"turn":{}}}"#, seq + 1), ""),
            },
            Kind::Todo(bytes) => line("todo/write", seq, &format!(r#""{}""#, "t".repeat(*bytes)), ""),
            Kind::User(bytes) => user(seq, *bytes, r#","surfaceOp":"append""#),
            Kind::Replace(a, b) => replace(&all, *a, *b),
        });
    }
    all.split_off(held.len())
}

/// A replacement of some of the surface, or a first message where it is empty.
fn replace(all: &[String], a: usize, b: usize) -> String {
    let surface = naive_surface(all.iter().map(String::as_str));
    if surface.is_empty() {
        return user(all.len(), 1, r#","surfaceOp":"append""#);
    }
    let (a, b) = (a % surface.len(), b % surface.len());
    let shadowed = &surface[a.min(b)..=a.max(b)];
    let sources: Vec<_> = shadowed.iter().map(Seq::to_string).collect();
    let marks = format!(
        r#","sourceEventSeqs":[{}],"surfaceOp":{{"op":"replace","start":{},"end":{}}}"#,
        sources.join(","),
        shadowed[0],
        shadowed[shadowed.len() - 1]
    );
    user(all.len(), 10, &marks)
}

/// The turn that is open behind these lines.
fn open_turn(lines: &[String]) -> Option<usize> {
    let bracket = lines.iter().rposition(|line| line.contains(r#""type":"turn/"#))?;
    lines[bracket].contains("turn/start").then_some(bracket + 1)
}

fn user(seq: usize, bytes: usize, marks: &str) -> String {
    let text = "u".repeat(bytes);
    let data = format!(
        r#"{{"id":"m{seq}","role":"user","content":[{{"type":"text","text":"{text}"}}],"source":{{"kind":"user"}}}}"#
    );
    line("user/message", seq, &data, marks)
}

fn line(type_name: &str, seq: usize, data: &str, marks: &str) -> String {
    format!(r#"{{"type":"{type_name}","seq":{seq},"time":7,"data":{data}{marks}}}"#)
}

fn drafts(lines: &[String]) -> Vec<Draft<'_>> {
    lines.iter().map(|line| Draft::parse(line).unwrap().0).collect()
}

fn header(id: &str) -> SessionHeader {
    SessionHeader::new(id, 5)
}
