//! The bug-report cases that are containers: zstd files and whole directories, written by their own scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sessionlog::import::{Importer, JudgeOptions, SourceReport, Verdict};
use sessionlog::{AppendOptions, Draft, Seq};

use crate::support::{memory_store, shared};

/// Runs a case's script and gives the directory that it wrote.
pub(crate) fn written(script: &str, environment: &[(&str, &str)]) -> Option<(tempfile::TempDir, PathBuf)> {
    let shared = shared()?;
    let dir = tempfile::tempdir().unwrap();
    let run = Command::new("python3")
        .arg(shared.join("cases").join(script))
        .arg(dir.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(environment.iter().copied())
        .output();
    match run {
        Ok(output) => {
            assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr))
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "python3 runs the cases: {error}");
            eprintln!("SKIPPED {script}: no python3");
            return None;
        }
    }
    let path = dir.path().to_owned();
    Some((dir, path))
}

fn inspected(path: &Path) -> Vec<SourceReport> {
    let importer = Importer::new(JudgeOptions::default());
    let plan = importer.plan(&[path.to_owned()]);
    assert!(plan.unreadable.is_empty(), "{:?}", plan.unreadable);
    plan.sources.iter().map(|source| importer.inspect(source, &|_| ()).unwrap()).collect()
}

fn only(path: &Path) -> SourceReport {
    let mut reports = inspected(path);
    assert_eq!(reports.len(), 1);
    reports.remove(0)
}

#[test]
fn case_54_all_frames_of_a_file_count() {
    let Some((_dir, path)) = written("54-multi-frame.py", &[]) else { return };
    let report = only(&path);
    assert_eq!((report.judgement.verdict(), report.judgement.events()), (Verdict::Accept, Some(12)));
}

#[test]
fn case_57_a_torn_frame_yields_what_it_holds_and_the_file_stays_as_it_is() {
    let Some((_dir, path)) = written("57-torn-frame.py", &[]) else { return };
    let file = path.join("session.jsonl.zstd");
    let before = (fs::read(&file).unwrap(), fs::metadata(&file).unwrap().modified().unwrap());
    let judgement = only(&path).judgement;
    assert_eq!((judgement.verdict(), judgement.events()), (Verdict::Repair, Some(11)));
    assert_eq!(judgement.repair.unwrap().kind.as_str(), "torn-frame");
    let closers: Vec<_> = judgement.closers.iter().map(|c| (&*c.type_name, c.seq.get())).collect();
    assert_eq!(closers, [("step/end", 9), ("turn/end", 10)]);
    assert_eq!(before, (fs::read(&file).unwrap(), fs::metadata(&file).unwrap().modified().unwrap()));
}

#[test]
fn case_59_a_frame_that_expands_greatly_is_streamed() {
    let Some((_dir, path)) = written("59-expanding-frame.py", &[("MB", "64")]) else { return };
    assert_eq!(only(&path).judgement.verdict(), Verdict::Accept);
    let Some((_dir, path)) = written("59-expanding-frame.py", &[("MB", "300")]) else { return };
    let refusal = only(&path).judgement.refusal.unwrap();
    assert_eq!(refusal.kind.as_str(), "limit", "above the limit the answer is the limit: {refusal}");
}

#[test]
fn case_61_chunk_rows_cost_nothing_on_the_surface() {
    let Some((_dir, path)) = written("61-chunk-heavy-history.py", &[]) else { return };
    let judgement = only(&path).judgement;
    assert_eq!((judgement.verdict(), judgement.events()), (Verdict::Accept, Some(100_006)));
    assert_eq!(judgement.state.unwrap().message_count(), 2);
}

#[test]
fn case_62_a_log_of_many_results_is_accepted() {
    let Some((_dir, path)) = written("62-huge-log.py", &[("MB", "8")]) else { return };
    assert_eq!(only(&path).judgement.verdict(), Verdict::Accept);
}

#[test]
fn case_64_a_large_first_message_hides_nothing() {
    let Some((_dir, path)) = written("64-large-first-message.py", &[]) else { return };
    let store = memory_store();
    let importer = Importer::new(JudgeOptions::default());
    for source in &importer.plan(&[path]).sources {
        importer.import(&store, source, &|_| ()).unwrap();
    }
    let listed = store.list().unwrap();
    assert_eq!(listed[0].header.id, "s-64");
    assert_eq!(listed[0].title.as_deref(), Some("Picture question"));
    assert_eq!(listed[0].header.cwd.as_ref().and_then(|cwd| cwd.to_str()), Some("/srv/proj"));
}

#[test]
fn case_65_every_one_of_many_sessions_is_listed() {
    let Some((_dir, path)) = written("65-many-sessions.py", &[("N", "300")]) else { return };
    assert_eq!(inspected(&path).iter().filter(|r| r.judgement.verdict() == Verdict::Accept).count(), 300);
}

#[test]
fn case_67_one_id_in_two_directories_is_never_merged() {
    let Some((_dir, path)) = written("67-same-id-in-two-directories.py", &[]) else { return };
    let store = memory_store();
    let importer = Importer::new(JudgeOptions::default());
    for source in &importer.plan(&[path]).sources {
        let refusal = importer.import(&store, source, &|_| ()).unwrap().judgement.refusal.unwrap();
        assert_eq!(refusal.kind.as_str(), "duplicate-id");
        assert!(refusal.message.contains("--srv-a--") && refusal.message.contains("--srv-b--"), "{refusal}");
    }
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn case_68_sessions_of_colliding_projects_keep_their_own_cwd() {
    let Some((_dir, path)) = written("68-project-key-collision.py", &[]) else { return };
    let cwds: Vec<_> = inspected(&path)
        .into_iter()
        .map(|r| r.judgement.header.unwrap())
        .map(|header| (header.id, header.cwd.unwrap().to_lossy().into_owned()))
        .collect();
    let expected = [("s-68a", "/srv/client/app"), ("s-68b", "/srv/client-app")];
    assert_eq!(cwds, expected.map(|(id, cwd)| (id.to_owned(), cwd.to_owned())));
}

#[cfg(not(feature = "sqlite"))]
#[test]
fn a_database_is_refused_at_once_and_hides_nothing() {
    let Some(shared) = shared() else { return };
    let refusal = only(&shared.join("data/sessions.db")).judgement.refusal.unwrap();
    assert_eq!(refusal.kind.as_str(), "sqlite-schema");
}

#[test]
fn case_79_an_append_behind_a_torn_tail_goes_on_without_a_hole() {
    let Some((_dir, path)) = written("79-append-after-torn-tail.py", &[]) else { return };
    let store = memory_store();
    let importer = Importer::new(JudgeOptions::default());
    let log = path.join("session.jsonl");
    let report = importer.import(&store, &importer.plan(&[log]).sources[0], &|_| ()).unwrap();
    assert_eq!(report.judgement.repair.unwrap().kind.as_str(), "torn-tail");
    let session = store.resume("s-79").unwrap();
    let next = session.next_seq().unwrap();
    let event = fs::read_to_string(path.join("next-event.json")).unwrap();
    let (draft, _) = Draft::parse(&event).unwrap();
    let appended = session.append(&[draft], AppendOptions::default()).unwrap();
    appended.wait().unwrap();
    assert_eq!(appended.first, next);
    let seqs: Vec<u64> =
        session.events(Seq::new(0)..Seq::new(u64::MAX)).unwrap().map(|e| e.unwrap().seq.get()).collect();
    assert_eq!(seqs, (0..=next.get()).collect::<Vec<_>>());
}
