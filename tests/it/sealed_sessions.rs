//! The recorded and the generated sessions once sealed: every answer is the one that the raw segments gave.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use sessionlog::format::FrameKind;
use sessionlog::import::{Importer, JudgeOptions};
use sessionlog::storage::MemoryStorage;
use sessionlog::{HeaderSnapshot, Seq, Session, Store};

use crate::support::{frames, lines, open, shared};
use crate::verdicts::report;

/// Requests are rebuilt as of so many seqs of each session.
const REQUESTS: usize = 6;

/// All that a session answers.
fn answers(session: &Session) -> Vec<String> {
    let mut answers = lines(session);
    let count = answers.len();
    for index in (0..count).step_by(count.div_ceil(REQUESTS).max(1)).chain(count.checked_sub(1)) {
        answers.push(format!("{:?}", session.request_at(Seq::new(index as u64))));
    }
    answers.push(format!("{:?}", session.surface()));
    answers.push(format!("{:?}", session.replace_generation()));
    answers.push(format!("{:?}", session.request()));
    let headers = session.headers().unwrap().into_iter();
    // What a header takes in the store is all that may differ.
    answers.extend(headers.map(|header| format!("{:?}", HeaderSnapshot { stored_bytes: None, ..header })));
    answers
        .push(format!("{:?}", session.with_state(|state| (state.clone(), format!("{:?}", state.closers())))));
    answers.push(format!("{:?}", session.revision()));
    answers
}

fn answers_of_all(store: &Store) -> Vec<(String, Vec<String>)> {
    let listed = store.list().unwrap();
    listed
        .iter()
        .map(|info| (format!("{info:?}"), answers(&store.session(&info.header.id).unwrap())))
        .collect()
}

/// What the reference says of a log once it is resumed, against a session.
fn differs(expected: &Value, session: &Session) -> Option<String> {
    let header = session.request_header().unwrap();
    let ours = [
        ("events", json!(session.next_seq().unwrap().get())),
        ("surface", json!(session.surface().unwrap().iter().map(|seq| seq.get()).collect::<Vec<_>>())),
        ("replaceGeneration", json!(session.replace_generation().unwrap())),
        ("requestHeader", header.map_or(Value::Null, |h| serde_json::from_str(h.text()).unwrap())),
        ("messages", json!(session.request().unwrap().messages.len())),
    ];
    let differing = ours.into_iter().find(|(key, value)| *value != expected[*key]);
    differing.map(|(key, value)| format!("{key}: {value}, expected {}", expected[key]))
}

fn all_answers_survive_sealing(name: &str) {
    let Some(data) = shared().map(|root| root.join("data")) else { return };
    let storage = MemoryStorage::new();
    let store = open(Arc::new(storage.clone()));
    let importer = Importer::new(JudgeOptions::default());
    let verdicts = fs::read_to_string(data.join(format!("{name}.verdicts.jsonl"))).unwrap();
    let mut expected = Vec::new();
    for verdict in verdicts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let path = data.join(name).join(verdict["file"].as_str().unwrap());
        for source in &importer.plan(&[path]).sources {
            let report = importer.import(&store, source, &|_| ()).unwrap();
            assert_eq!(json!(report.judgement.refusal.is_none()), verdict["ok"], "{verdict}");
            if report.judgement.refusal.is_none() {
                expected.push((report.judgement.header.unwrap().id, verdict.clone()));
            }
        }
    }
    let raw = answers_of_all(&store);
    assert_eq!(raw.len(), expected.len());
    store.compact().unwrap();
    assert!(frames(&storage).iter().all(|(_, frame)| frame.kind != FrameKind::EVENTS), "all is sealed");
    let difference = |store: &Store| {
        let sealed = answers_of_all(store);
        let differing = raw.iter().zip(&sealed).filter(|(raw, sealed)| raw != sealed);
        let found: Vec<_> = differing.map(|(raw, _)| raw.0.clone()).collect();
        report(name, sealed.len(), &found);
    };
    difference(&store);
    store.close().unwrap();
    let store = open(Arc::new(storage));
    difference(&store);
    let wrong = expected.iter().filter_map(|(id, verdict)| differs(verdict, &store.resume(id).unwrap()));
    report(name, expected.len(), &wrong.collect::<Vec<_>>());
}

#[test]
fn recorded_sessions_answer_as_before() {
    all_answers_survive_sealing("logs");
}

#[test]
fn generated_sessions_answer_as_before() {
    all_answers_survive_sealing("generated");
}
