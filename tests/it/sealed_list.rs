//! The recorded and the generated logs of the reference: all that can be asked of them is answered alike wherever their
//! events lie, and what can be done with them has the same outcome.
//!
//! Without the shared data these tests say so and pass, except under CI.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sessionlog::event::json::Digester;
use sessionlog::export::{JsonlFormat, write_session};
use sessionlog::import::{JudgeOptions, Verdict, judge_session};
use sessionlog::{Result, Seq, Session, Store, VerifyOptions};

use crate::roundtrip::{essence, import_all};
use crate::support::{Shape, Shaped, lines, shared};
use crate::verdicts::{differs, report};

/// What is told of each session: for each question a digest of the answer.
type Told = BTreeMap<String, Vec<(String, u128)>>;

/// Both sets of logs, each of them in a store of its own.
fn each_set(test: impl Fn(&Path, &[Value])) {
    let Some(data) = shared().map(|root| root.join("data")) else { return };
    for name in ["logs", "generated"] {
        let verdicts = fs::read_to_string(data.join(format!("{name}.verdicts.jsonl"))).unwrap();
        let verdicts: Vec<Value> = verdicts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        test(&data.join(name), &verdicts);
    }
}

/// A store that holds the logs of a directory in one shape.
fn imported(shape: Shape, logs: &Path) -> Shaped {
    let mut case = Shaped::new(shape);
    if shape == Shape::SealedAndTail {
        import_all(&case.store, heads(logs).path());
        case.settle();
        import_all(&case.store, logs);
    } else {
        import_all(&case.store, logs);
        case.settle();
    }
    case.store.flush().unwrap();
    case
}

/// The first halves of the logs.
fn heads(logs: &Path) -> tempfile::TempDir {
    let heads = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(logs).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read(&path).unwrap();
        let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
        let half = lines[..lines.len().div_ceil(2)].concat();
        fs::write(heads.path().join(path.file_name().unwrap()), half).unwrap();
    }
    heads
}

fn told(store: &Store) -> Told {
    let listed = store.list().unwrap();
    listed
        .iter()
        .map(|info| (info.header.id.clone(), told_of(&store.session(&info.header.id).unwrap())))
        .collect()
}

/// All that can be asked of a session; each request as of each seq.
fn told_of(session: &Session) -> Vec<(String, u128)> {
    let mut told = Vec::new();
    let mut tell = |question: String, answer: &dyn Debug| {
        let mut digest = Digester::default();
        digest.bytes(format!("{answer:?}").as_bytes());
        told.push((question, digest.finish()));
    };
    tell("header".into(), session.header());
    tell("state".into(), &session.with_state(Clone::clone).unwrap());
    let mut headers = session.headers().unwrap();
    // What they take in the files is what sealing changes.
    headers.iter_mut().for_each(|header| header.stored_bytes = None);
    tell("headers".into(), &headers);
    let end = session.next_seq().unwrap();
    tell("durable".into(), &session.durable_seq());
    tell("chain".into(), &session.revision().unwrap().to_string().split('.').nth(2));
    for seq in (0..end.get()).map(Seq::new) {
        tell(format!("request at {seq}"), &session.request_at(seq).unwrap());
        tell(format!("event {seq}"), &session.event(seq).unwrap());
    }
    for packed in [false, true] {
        let mut text = Vec::new();
        write_session(session, &mut text, JsonlFormat::Plain, packed, None).unwrap();
        tell(format!("exported, packed: {packed}"), &text);
    }
    tell("judgement".into(), &essence(&judge_session(session, &JudgeOptions::default()).unwrap()));
    told
}

#[test]
fn every_answer_about_a_log_is_the_same_wherever_its_events_lie() {
    each_set(|logs, _| {
        let expected = told(&imported(Shape::Raw, logs).store);
        assert!(expected.len() >= 90, "{}", expected.len());
        for shape in [Shape::SealedBeneath, Shape::Sealed, Shape::SealedAndTail] {
            let case = imported(shape, logs);
            let found = told(&case.store);
            // A head may be sound although the whole log is refused.
            for (id, expected) in &expected {
                let differs = expected.iter().zip(&found[id]).find(|(expected, found)| expected != found);
                assert!(differs.is_none(), "{shape:?}, {id}: {differs:?}");
                assert_eq!(expected.len(), found[id].len(), "{shape:?}, {id}");
            }
            let deep = VerifyOptions { deep: true, strict: false };
            assert_eq!(case.store.verify(deep, &mut |_, _| ()).unwrap().findings, []);
        }
    });
}

#[test]
fn sealed_sessions_are_judged_as_the_reference_judges_their_logs() {
    each_set(|logs, verdicts| {
        let case = imported(Shape::Sealed, logs);
        let mut differences = Vec::new();
        let mut judged = 0;
        for expected in verdicts.iter().filter(|verdict| verdict["ok"] == true) {
            let file = expected["file"].as_str().unwrap();
            let text = fs::read_to_string(logs.join(file)).unwrap();
            let header: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            let session = case.store.session(header["id"].as_str().unwrap()).unwrap();
            let judgement = judge_session(&session, &JudgeOptions::default()).unwrap();
            judged += 1;
            differences
                .extend(differs(expected, judgement).map(|difference| format!("{file}: {difference}")));
        }
        report(&logs.display().to_string(), judged, &differences);
    });
}

/// Closes what was cut, forks in the middle and at the end, removes the parents, and goes on with the children.
fn worked_on(case: &mut Shaped) -> BTreeMap<String, Vec<String>> {
    let mut outcomes = BTreeMap::new();
    let text = |outcome: Result<Session>| match outcome {
        Ok(session) => lines(&session),
        Err(error) => vec![error.to_string()],
    };
    let ids: Vec<String> = case.store.list().unwrap().iter().map(|info| info.header.id.clone()).collect();
    for id in &ids {
        let events = case.store.session(id).unwrap().next_seq().unwrap().get();
        let middle = Seq::new(events / 2);
        outcomes.insert(format!("{id} resumed"), text(case.store.resume(id)));
        outcomes.insert(format!("{id} forked"), text(case.store.fork(id, Some(middle), &format!("{id}-m"))));
        outcomes.insert(format!("{id} copied"), text(case.store.fork(id, None, &format!("{id}-e"))));
    }
    case.settle();
    ids.iter().for_each(|id| case.store.remove(id).unwrap());
    case.settle();
    for info in case.store.list().unwrap() {
        let id = info.header.id.clone();
        let child = case.store.session(&id).unwrap();
        outcomes.insert(format!("{id} left"), vec![format!("{:?}", child.request().unwrap())]);
        outcomes.insert(id, lines(&child));
    }
    outcomes
}

#[test]
fn resuming_forking_and_removing_come_to_the_same_wherever_the_events_lie() {
    each_set(|logs, _| {
        let expected = worked_on(&mut imported(Shape::Raw, logs));
        for shape in [Shape::SealedBeneath, Shape::Sealed] {
            let found = worked_on(&mut imported(shape, logs));
            for (what, outcome) in &expected {
                assert_eq!(found.get(what), Some(outcome), "{shape:?}: {what}");
            }
            assert_eq!(found.len(), expected.len());
        }
    });
}

#[test]
fn a_sealed_store_refuses_retired_logs_and_is_as_it_was() {
    let Some(data) = shared().map(|root| root.join("data")) else { return };
    let case = imported(Shape::Sealed, &data.join("logs"));
    let ids = |store: &Store| -> Vec<_> {
        store.list().unwrap().iter().map(|info| (info.header.id.clone(), info.revision)).collect()
    };
    let before = ids(&case.store);
    let refused = import_all(&case.store, &data.join("refused"));
    let files: Vec<PathBuf> = refused.iter().map(|report| report.path.clone()).collect();
    assert!(!files.is_empty());
    assert!(refused.iter().all(|report| report.judgement.verdict() == Verdict::Refuse), "{files:?}");
    assert_eq!(ids(&case.store), before);
    case.store.compact().unwrap();
    assert_eq!(ids(&case.store), before);
}
