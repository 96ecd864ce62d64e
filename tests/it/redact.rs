//! Redaction takes any part of any text out of a log and leaves the same log.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use sessionlog::event::SessionState;
use sessionlog::export::{JsonlFormat, Redactor, Secret, export_session_to};
use sessionlog::import::{Importer, JudgeOptions, Judgement, Verdict};

use crate::support::{memory_store, shared};

/// Takes a third of all words, and half words, for secrets.
fn any_words(_: Option<&str>, text: &str) -> Vec<Secret> {
    let mut found = Vec::new();
    let mut at = 0;
    for word in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let mut hasher = DefaultHasher::new();
        word.hash(&mut hasher);
        let bytes = word.trim_end_matches(|c: char| !c.is_alphanumeric()).len();
        let half = (0..=bytes / 2).rev().find(|&half| word.is_char_boundary(half)).unwrap_or(0);
        match hasher.finish() % 6 {
            0 => found.push(Secret { range: at..at + bytes, pattern: 0 }),
            1 => found.push(Secret { range: at + half..at + bytes, pattern: 1 }),
            _ => {}
        }
        at += word.len();
    }
    found
}

/// What must be the same in a log and in its redacted copy.
fn essence(mut judgement: Judgement) -> String {
    let state = judgement.state.as_mut().expect("a good log");
    let pairing = state.cuts().map(<[bool]>::to_vec).map_err(|error| error.seq());
    let seqs = (state.next_seq(), state.surface().to_vec(), state.message_count());
    let closers: Vec<_> =
        judgement.closers.iter().map(|c| (c.seq, c.type_name.clone(), c.sources.clone())).collect();
    let usage = judgement.usage.total();
    format!(
        "{:?} {seqs:?} {pairing:?} {:?} {:?} {closers:?} {usage:?}",
        judgement.header, judgement.replacements, judgement.headers
    )
}

fn logs() -> Vec<PathBuf> {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/cli/samples");
    let recorded = shared().map(|root| [root.join("data/logs"), root.join("data/generated")]);
    let dirs = [samples].into_iter().chain(recorded.into_iter().flatten());
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()));
    entries.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect()
}

#[test]
fn a_redacted_log_is_the_same_log() {
    let importer = Importer::new(JudgeOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let (mut compared, mut replaced) = (0, 0);
    for path in logs() {
        let store = memory_store();
        let plan = importer.plan(std::slice::from_ref(&path));
        let original = importer.import(&store, &plan.sources[0], &|_| ()).unwrap().judgement;
        if original.verdict() == Verdict::Refuse {
            continue;
        }
        let session = store.session(&original.header.as_ref().unwrap().id).unwrap();
        let mut redactor = Redactor::new(&any_words);
        for (name, packed) in [("packed", true), ("plain", false)] {
            let copy = dir.path().join(format!("{compared}-{name}.jsonl"));
            export_session_to(&session, &copy, JsonlFormat::Plain, packed, Some(&mut redactor)).unwrap();
            let plan = importer.plan(&[copy]);
            let judged = importer.inspect(&plan.sources[0], &|_| ()).unwrap().judgement;
            assert_eq!(judged.refusal, None, "{}", path.display());
            assert_eq!(essence(judged), essence(original.clone()), "{}", path.display());
        }
        replaced += redactor.counts().values().sum::<u64>();
        compared += 1;
    }
    assert!(compared >= 4 && replaced > 1_000, "{compared} logs, {replaced} secrets");
}
