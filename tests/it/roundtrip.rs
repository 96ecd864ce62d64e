//! Whole roots in and out again.

use std::fs;
use std::path::{Path, PathBuf};

use sessionlog::export::{JsonlFormat, export_session};
use sessionlog::import::{Importer, JudgeOptions, Judgement, SourceReport, Verdict, judge_session};
use sessionlog::{AppendOptions, Draft, Store};

use crate::support::{lines, memory_store, shared};

pub(crate) fn import_all(store: &Store, root: &Path) -> Vec<SourceReport> {
    let importer = Importer::new(JudgeOptions::default());
    let plan = importer.plan(&[root.to_owned()]);
    assert!(plan.unreadable.is_empty());
    plan.sources.iter().map(|source| importer.import(store, source, &|_| ()).unwrap()).collect()
}

fn inspect_all(root: &Path) -> Vec<SourceReport> {
    let importer = Importer::new(JudgeOptions::default());
    let plan = importer.plan(&[root.to_owned()]);
    plan.sources.iter().map(|source| importer.inspect(source, &|_| ()).unwrap()).collect()
}

/// What two judgements must agree on when they are about the same events.
pub(crate) fn essence(judgement: &Judgement) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        judgement.header,
        judgement.verdict(),
        judgement.state,
        judgement.replacements,
        judgement.headers,
        judgement.closers
    )
}

#[test]
fn the_reference_root_comes_back_as_the_same_sessions() {
    let Some(shared) = shared() else { return };
    let store = memory_store();
    let root = shared.join("data/zstd-root");
    let first = import_all(&store, &root);
    assert_eq!(first.len(), 95);
    assert!(first.iter().all(|report| report.judgement.verdict() == Verdict::Accept && report.skipped == 0));
    let second = import_all(&store, &root);
    assert_eq!(second.iter().map(|report| report.added).sum::<u64>(), 0);
    assert!(second.iter().zip(&first).all(|(again, report)| again.skipped == report.added));

    let mut originals: Vec<(String, String)> = inspect_all(&shared.join("data/logs"))
        .iter()
        .map(|report| (without_id(&essence(&report.judgement)), report.path.display().to_string()))
        .collect();
    originals.sort();
    let raw = [(JsonlFormat::Plain, true), (JsonlFormat::Plain, false), (JsonlFormat::Zstd, true)];
    let sealed = raw.map(|(format, packed)| (format, packed, true));
    for (format, packed, is_sealed) in
        raw.map(|(format, packed)| (format, packed, false)).into_iter().chain(sealed)
    {
        if is_sealed {
            store.compact().unwrap();
        }
        let out = tempfile::tempdir().unwrap();
        for info in store.list().unwrap() {
            export_session(&store.session(&info.header.id).unwrap(), out.path(), format, packed, None)
                .unwrap();
        }
        let exported = inspect_all(out.path());
        assert_eq!(exported.len(), 95);
        let mut essences: Vec<String> = exported.iter().map(|r| without_id(&essence(&r.judgement))).collect();
        essences.sort();
        for (exported, (original, path)) in essences.iter().zip(&originals) {
            assert_eq!(exported, original, "{path}");
        }
    }
    let third = import_all(&store, &root);
    assert!(
        third.iter().zip(&first).all(|(again, report)| again.added == 0 && again.skipped == report.added)
    );
}

/// The root holds the same sessions as the logs under ids of its own.
fn without_id(essence: &str) -> String {
    let start = essence.find("created_at").unwrap_or(0);
    let session = essence.find("session_id: \"").map(|at| at + 13);
    let mut text = essence[start..].to_owned();
    if let Some(at) = session {
        let end = at + essence[at..].find('"').unwrap();
        let id = essence[at..end].to_owned();
        text = text.replace(&id, "ID");
    }
    text
}

#[test]
fn a_longer_log_extends_a_stored_session_and_a_diverging_one_is_refused() {
    let head = concat!(
        "{\"type\":\"session\",\"version\":0,\"id\":\"s\",\"createdAt\":1,\"delegationDepth\":0}\n",
        "{\"type\":\"turn/start\",\"seq\":0,\"time\":1,\"data\":{\"turn\":1}}\n",
    );
    let end = "{\"type\":\"turn/end\",\"seq\":1,\"time\":2,\"data\":{\"turn\":1,\"reason\":{\"kind\":\"completed\"}}}\n";
    let other = "{\"type\":\"turn/end\",\"seq\":1,\"time\":2,\"data\":{\"turn\":1,\"reason\":{\"kind\":\"blocked\"}}}\n";
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let store = memory_store();
    let import = |path: &Path| import_all(&store, path).pop().unwrap();
    let short = import(&file("short.jsonl", head));
    assert_eq!((short.added, short.judgement.closers.len()), (1, 1), "closers are shown, not stored");
    let long = import(&file("long.jsonl", &format!("{head}{end}")));
    assert_eq!((long.added, long.skipped), (1, 1));
    let again = import(&dir.path().join("short.jsonl"));
    assert_eq!((again.added, again.skipped), (0, 1));
    let refused = import(&file("other.jsonl", &format!("{head}{other}")));
    let refusal = refused.judgement.refusal.unwrap();
    assert_eq!((refusal.kind.as_str(), refusal.seq.map(|s| s.get())), ("id-conflict", Some(1)));
    assert_eq!((refusal.line, refusal.offset), (Some(3), Some(head.len() as u64)));
    assert!(refusal.message.contains(r#""kind":"completed"}}, the log"#), "{}", refusal.message);
    let header = import(&file("header.jsonl", &head.replace("\"createdAt\":1", "\"createdAt\":2")));
    let refusal = header.judgement.refusal.unwrap();
    assert_eq!((refusal.kind.as_str(), refusal.line), ("id-conflict", Some(1)));
    assert!(refusal.message.contains("createdAt: 1, not 2"), "{}", refusal.message);
    assert_eq!(lines(&store.session("s").unwrap()).len(), 2);
}

/// A log of `events` log-only events of `padding` bytes each.
fn long_log(id: &str, events: u32, padding: usize) -> String {
    let mut text = format!(
        "{{\"type\":\"session\",\"version\":0,\"id\":\"{id}\",\"createdAt\":1,\"delegationDepth\":0}}\n"
    );
    let padding = "x".repeat(padding);
    for seq in 0..events {
        text += &format!("{{\"type\":\"todo/write\",\"seq\":{seq},\"time\":1,\"data\":\"{padding}\"}}\n");
    }
    text
}

#[test]
fn a_log_that_changes_while_it_is_read_again_adds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.jsonl");
    let (short, long) = (long_log("s", 2, 10), long_log("s", 4, 10));
    let importer = Importer::new(JudgeOptions::default());
    let unknown = long.replace("todo/write\",\"seq\":3", "acme/unknown\",\"seq\":3");
    for changed in [long.replacen("xx", "yy", 1), unknown, String::new()] {
        let store = memory_store();
        fs::write(&path, &short).unwrap();
        import_all(&store, &path);
        fs::write(&path, &long).unwrap();
        let plan = importer.plan(std::slice::from_ref(&path));
        // Changed when it was read to its end for the first time.
        let change = |bytes| {
            if bytes == long.len() as u64 {
                fs::write(&path, &changed).unwrap();
            }
        };
        let report = importer.import(&store, &plan.sources[0], &change).unwrap();
        assert_eq!((report.added, lines(&store.session("s").unwrap()).len()), (0, 2), "{changed}");
        assert_eq!(report.judgement.verdict(), Verdict::Refuse, "{changed}");
    }
}

#[test]
fn a_preview_says_what_an_import_would_do() {
    let dir = tempfile::tempdir().unwrap();
    let store = memory_store();
    let importer = Importer::new(JudgeOptions::default());
    let told = |text: &str, import: bool| {
        let path = dir.path().join("s.jsonl");
        fs::write(&path, text).unwrap();
        let plan = importer.plan(&[path]);
        let report = match import {
            true => importer.import(&store, &plan.sources[0], &|_| ()),
            false => importer.preview(&store, &plan.sources[0], &|_| ()),
        };
        let report = report.unwrap();
        (report.added, report.skipped, report.judgement.refusal.map(|refusal| refusal.kind.as_str()))
    };
    let (short, long) = (long_log("s", 2, 10), long_log("s", 4, 10));
    let steps = [(&short, (2, 0, None)), (&long, (2, 2, None)), (&long, (0, 4, None))];
    for (text, expected) in steps {
        assert_eq!(told(text, false), expected);
        assert_eq!(told(text, true), expected);
    }
    let other = long.replacen("xx", "yy", 1);
    assert_eq!(told(&other, false), (0, 0, Some("id-conflict")));
    assert_eq!(told(&other, true), (0, 0, Some("id-conflict")));
}

#[test]
fn a_damaged_stored_session_refuses_its_log_alone() {
    let (stored, logs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for id in ["a", "b"] {
        fs::write(logs.path().join(format!("{id}.jsonl")), long_log(id, 3, 9_000)).unwrap();
    }
    let store = Store::open(stored.path()).unwrap();
    import_all(&store, logs.path());
    store.close().unwrap();
    let segment = fs::read_dir(stored.path()).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let segment = segment.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let first_event = bytes.windows(9).position(|window| window == b"xxxxxxxxx").unwrap();
    bytes[first_event] = b'y';
    fs::write(&segment, bytes).unwrap();
    for id in ["a", "b"] {
        fs::write(logs.path().join(format!("{id}.jsonl")), long_log(id, 4, 9_000)).unwrap();
    }
    let store = Store::open(stored.path()).unwrap();
    let told = import_all(&store, logs.path()).into_iter();
    let told: Vec<_> =
        told.map(|report| (report.added, report.judgement.refusal.map(|r| r.kind.as_str()))).collect();
    assert_eq!(told, [(0, Some("id-conflict")), (1, None)]);
}

#[test]
fn a_log_that_is_named_twice_is_taken_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.jsonl");
    fs::write(&path, long_log("s", 2, 10)).unwrap();
    let plan = Importer::new(JudgeOptions::default()).plan(&[path.clone(), dir.path().join("."), path]);
    assert_eq!(plan.sources.len(), 1);
    assert!(plan.sources[0].ambiguous.is_none());
}

#[test]
fn a_log_that_is_refused_late_leaves_no_session() {
    let mut text = long_log("s", 100, 100_000);
    let good = text.clone();
    text += "{\"type\":\"acme/unknown\",\"seq\":100,\"time\":1,\"data\":1}\n";
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad.jsonl"), &text).unwrap();
    let store = memory_store();
    let report = import_all(&store, dir.path()).pop().unwrap();
    assert_eq!(report.judgement.refusal.unwrap().kind.as_str(), "unsupported-event");
    assert!(store.list().unwrap().is_empty());
    let compacted = store.compact().unwrap();
    assert!(compacted.bytes_before > 8 << 20 && compacted.bytes_after < 1 << 20, "{compacted:?}");
    fs::write(dir.path().join("bad.jsonl"), &good).unwrap();
    assert_eq!(import_all(&store, dir.path()).pop().unwrap().added, 100);
    assert_eq!(store.list().unwrap()[0].events, 100);
}

#[test]
fn one_id_in_two_directories_is_ambiguous_and_the_rest_comes_in() {
    let dir = tempfile::tempdir().unwrap();
    for (directory, id) in [("a", "twice"), ("b", "twice"), ("c", "once")] {
        fs::create_dir(dir.path().join(directory)).unwrap();
        let text = format!(
            "{{\"type\":\"session\",\"version\":0,\"id\":\"{id}\",\"createdAt\":1,\"delegationDepth\":0}}\n"
        );
        fs::write(dir.path().join(directory).join("session.jsonl"), text).unwrap();
    }
    let store = memory_store();
    let kinds: Vec<_> = import_all(&store, dir.path())
        .into_iter()
        .map(|report| {
            report
                .judgement
                .refusal
                .map(|refusal| (refusal.kind.as_str(), refusal.message.matches("session.jsonl").count()))
        })
        .collect();
    assert_eq!(kinds, [Some(("duplicate-id", 2)), Some(("duplicate-id", 2)), None]);
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn stored_sessions_and_files_are_judged_alike() {
    let store = memory_store();
    let session = store.create_session(sessionlog::event::SessionHeader::new("s", 1)).unwrap();
    session
        .append(&[Draft::new("turn/start", "{\"turn\":1}")], AppendOptions::default())
        .unwrap()
        .wait()
        .unwrap();
    let out = tempfile::tempdir().unwrap();
    export_session(&session, out.path(), JsonlFormat::Zstd, true, None).unwrap();
    let stored = judge_session(&session, &JudgeOptions::default()).unwrap();
    assert_eq!(stored.closers.len(), 1);
    assert_eq!(essence(&stored), essence(&inspect_all(out.path())[0].judgement));
}
