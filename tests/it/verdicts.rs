//! The judge against the recorded verdicts of the reference and against the expectations of the bug-report cases.
//!
//! Without the shared data these tests say so and pass, except under CI.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sessionlog::event::{Event, RepairKind, SessionState, WarningKind};
use sessionlog::import::{JudgeOptions, Judgement, Lines, RecordSource, Verdict, ZstdFrames, judge};

use crate::support::shared;

fn judged(path: &Path) -> Judgement {
    judged_from(&mut Lines::new(File::open(path).expect("the log opens")))
}

fn judged_from(source: &mut dyn RecordSource) -> Judgement {
    judge(source, &JudgeOptions::default(), &mut |_| Ok(())).expect("the log is read")
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").path());
    let mut files: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

pub(crate) fn report(name: &str, total: usize, differences: &[String]) {
    let shown = differences.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(total > 0, "{name}: no data");
    assert!(differences.is_empty(), "{name}: {} of {total} differ\n{shown}", differences.len());
}

#[test]
fn recorded_logs_are_judged_as_the_reference_does() {
    verdicts("logs");
}

#[test]
fn generated_logs_are_judged_as_the_reference_does() {
    verdicts("generated");
}

/// `logs/NNN-name.jsonl` is `*/log-NNN/session.jsonl.zstd`.
#[test]
fn zstd_logs_are_judged_as_their_plain_twins() {
    let Some(data) = shared().map(|root| root.join("data")) else { return };
    let projects = fs::read_dir(data.join("zstd-root")).expect("a directory");
    let projects: Vec<_> = projects.map(|e| e.expect("an entry").path()).collect();
    let plain = files(&data.join("logs"), "jsonl");
    let difference = |path: &PathBuf| {
        let number = path.file_name()?.to_str()?.split('-').next()?;
        let twin = |project: &PathBuf| project.join(format!("log-{number}/session.jsonl.zstd"));
        let twin = projects.iter().map(twin).find(|twin| twin.exists());
        let Some(twin) = twin else { return Some(format!("{}: no twin", path.display())) };
        let mut frames = ZstdFrames::new(File::open(twin).expect("the log opens")).expect("frames");
        let (ours, theirs) = (judged_from(&mut frames), judged(path));
        let surface = |j: &Judgement| j.state.as_ref().map(|s| s.surface().to_vec());
        let same = ours.events() == theirs.events() && surface(&ours) == surface(&theirs);
        (!same || ours.refusal.is_some()).then(|| format!("{}: {:?}", path.display(), ours.refusal))
    };
    report("zstd", plain.len(), &plain.iter().filter_map(difference).collect::<Vec<_>>());
}

fn verdicts(name: &str) {
    let Some(data) = shared().map(|root| root.join("data")) else { return };
    let lines = fs::read_to_string(data.join(format!("{name}.verdicts.jsonl"))).expect("verdicts");
    let expected: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).expect("a verdict")).collect();
    let difference = |e: &Value| {
        let file = e["file"].as_str().expect("a file name");
        differs(e, judged(&data.join(name).join(file))).map(|d| format!("{file}: {d}"))
    };
    report(name, expected.len(), &expected.iter().filter_map(difference).collect::<Vec<_>>());
}

/// The first difference between the reference's verdict and ours.
pub(crate) fn differs(expected: &Value, mut judgement: Judgement) -> Option<String> {
    let verdict = judgement.verdict();
    let ok = verdict != Verdict::Refuse;
    if expected["ok"] != json!(ok) {
        return Some(format!("{verdict:?} {:?}, expected {}", judgement.refusal, expected["error"]));
    }
    let state = judgement.state.as_mut()?;
    let header = state.request_header().header().map(|h| h.text().to_owned());
    let replacements = judgement.replacements.iter().map(|r| {
        let seqs: Vec<u64> = r.shadowed.iter().map(|s| s.get()).collect();
        json!({"seq": r.seq.get(), "start": r.start.get(), "end": r.end.get(), "shadowedSeqs": seqs})
    });
    let (pairing, unpaired) = match state.cuts() {
        Ok(cuts) => (json!(cuts), Value::Null),
        Err(error) => (Value::Null, json!(error.seq().expect("a node").get())),
    };
    let ours = [
        ("events", json!(state.next_seq().get())),
        ("surface", json!(state.surface())),
        ("replaceGeneration", json!(state.visible().replace_generation())),
        ("requestHeader", header.map_or(Value::Null, |h| serde_json::from_str(&h).expect("JSON"))),
        ("messages", json!(state.message_count())),
        ("replacements", replacements.collect()),
        ("pairing", pairing),
        ("pairingError", unpaired),
        ("closers", judgement.closers.iter().map(told).collect()),
    ];
    let theirs = |key: &str| match (key, &expected[key]) {
        ("closers", Value::Array(closers)) => closers.iter().map(told_by_reference).collect(),
        ("pairingError", Value::String(text)) => {
            let seq = text.split("at surface seq ").nth(1).and_then(|rest| rest.split(' ').next());
            json!(seq.expect("it names a node").parse::<u64>().expect("a seq"))
        }
        (_, value) => value.clone(),
    };
    let differing = ours.into_iter().find(|(key, value)| *value != theirs(key));
    differing.map(|(key, value)| format!("{key}: {value}, expected {}", theirs(key)))
}

fn told(event: &Event<'_>) -> Value {
    let sources = event.sources.as_ref().map(|s| s.iter().map(|s| s.get()).collect::<Vec<_>>());
    let data: Value = serde_json::from_str(&event.data).expect("JSON");
    told_of(json!(event.type_name), json!(event.seq.get()), json!(event.time), &data, json!(sources))
}

fn told_by_reference(event: &Value) -> Value {
    let (data, sources) = (&event["data"], event["sourceEventSeqs"].clone());
    told_of(event["type"].clone(), event["seq"].clone(), event["time"].clone(), data, sources)
}

fn told_of(type_name: Value, seq: Value, time: Value, data: &Value, sources: Value) -> Value {
    let (code, id) = (&data["error"]["code"], &data["message"]["id"]);
    json!([type_name, seq, time, data["turn"], data["step"], code, id, sources, data["reason"]])
}

#[test]
fn retired_logs_are_refused_by_the_first_legacy_kind_that_they_hold() {
    let Some(root) = shared() else { return };
    let files = files(&root.join("data/refused"), "jsonl");
    let difference = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("text");
        let kinds = [
            ("\"type\":\"request/header-delta\"", "legacy-header-delta"),
            ("\"reason\":\"fallback\"", "legacy-fallback-reason"),
        ];
        let expected = kinds.iter().find(|(mark, _)| text.contains(mark)).map(|(_, kind)| *kind);
        let kind = judged(path).refusal.map(|r| r.kind.as_str());
        (kind != expected).then(|| format!("{}: {kind:?}, expected {expected:?}", path.display()))
    };
    report("refused", files.len(), &files.iter().filter_map(difference).collect::<Vec<_>>());
}

/// The recordings hold older shapes, times moved by the recorder, and `{{...}}` where ids were scrubbed.
#[test]
fn recorded_logs_give_no_other_warnings_than_true_ones() {
    let Some(root) = shared() else { return };
    let files = files(&root.join("data/logs"), "jsonl");
    let difference = |path: &PathBuf| {
        let warnings = judged(path).warnings;
        let odd = warnings.listed().iter().find(|w| match w.kind {
            WarningKind::Normalised | WarningKind::ClockStep => false,
            WarningKind::DuplicateMessageId => !w.message.contains("{{"),
            _ => true,
        })?;
        Some(format!("{}: {odd:?}", path.display()))
    };
    report("warnings", files.len(), &files.iter().filter_map(difference).collect::<Vec<_>>());
}

#[test]
fn bug_report_cases_are_judged_as_expected() {
    let Some(root) = shared() else { return };
    let files = files(&root.join("cases"), "jsonl");
    let difference = |path: &PathBuf| {
        let expected = fs::read_to_string(path.with_extension("expect.txt")).expect("an expectation");
        misses(&expected, &judged(path)).map(|miss| format!("{}: {miss}", path.display()))
    };
    report("cases", files.len(), &files.iter().filter_map(difference).collect::<Vec<_>>());
}

/// What an expectation of the form `WORD(kind) ... WARN(kind) ...` says that a judgement does not.
fn misses(expected: &str, judgement: &Judgement) -> Option<String> {
    let kind = judgement.refusal.as_ref().map(|r| r.kind.as_str());
    let repair = judgement.repair.as_ref().map(|r| r.kind.as_str());
    let word = match (kind, repair) {
        (Some(kind), _) => format!("REJECT({kind})"),
        (None, Some(repair)) => format!("REPAIR({repair})"),
        (None, None) => "ACCEPT".to_owned(),
    };
    if !expected.starts_with(&word) {
        return Some(format!("{word} {:?}, expected {}", judgement.refusal, expected.trim_end()));
    }
    let wanted = expected.split("WARN(").skip(1).filter_map(|rest| rest.split(')').next());
    let warned: Vec<_> = judgement.warnings.listed().iter().map(|w| w.kind.as_str()).collect();
    let missing = wanted.into_iter().find(|kind| !warned.contains(kind));
    missing.map(|kind| format!("no warning {kind}"))
}

#[test]
fn a_cut_tail_lists_what_is_lost() {
    let Some(root) = shared() else { return };
    let judgement = judged(&root.join("cases/15-seq-gap-open-tail.jsonl"));
    let repair = judgement.repair.expect("a repair");
    assert_eq!(repair.kind, RepairKind::SeqGapTail);
    assert_eq!(repair.cut_total, repair.cut.len() as u64);
    assert!(repair.cut.iter().all(|cut| cut.seq.is_some() && cut.type_name.is_some()));
    assert!(repair.bytes_cut > 0);
}
