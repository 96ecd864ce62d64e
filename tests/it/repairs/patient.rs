//! A log of many turns, ways to damage it, and what must hold whenever it is repaired.

use std::fs;
use std::path::{Path, PathBuf};

use sessionlog::Error;
use sessionlog::format::compress::{FrameEncoder, LEVEL_DEFAULT};
use sessionlog::import::{JudgeOptions, Judgement, Lines, RecordSource, ZstdFrames, judge};
use sessionlog::repair::{Applied, Plan, Repairer};
use tempfile::TempDir;

/// A header and `turns` closed turns of nine events, one a line.
pub(super) fn log_lines(turns: usize) -> Vec<String> {
    let mut lines = vec![
        r#"{"type":"session","version":0,"id":"mended","createdAt":1000,"cwd":"/srv","delegationDepth":0}"#
            .to_owned(),
    ];
    let mut push = |name: &str, data: String, on_surface: bool| {
        let seq = lines.len() - 1;
        let op = if on_surface { r#","surfaceOp":"append""# } else { "" };
        lines.push(format!(r#"{{"type":"{name}","seq":{seq},"time":{},"data":{data}{op}}}"#, 2000 + seq));
    };
    for turn in 1..=turns {
        let message = |role: &str, source: &str| {
            format!(
                r#"{{"id":"{role}-{turn}","role":"{role}","content":[{{"type":"text","text":"höre {turn} \u0000 1E3"}}],"source":{source}}}"#
            )
        };
        push("turn/start", format!(r#"{{"turn":{turn}}}"#), false);
        push("user/message", message("user", r#"{"kind":"user"}"#), true);
        push("step/start", format!(r#"{{"turn":{turn},"step":1}}"#), false);
        for text in ["a", "b", "c"] {
            let chunk = format!(r#"{{"type":"text-delta","index":0,"text":"{text}"}}"#);
            push("assistant/chunk", format!(r#"{{"turn":{turn},"step":1,"chunk":{chunk}}}"#), false);
        }
        let answer = message("assistant", r#"{"kind":"model","provider":"p","model":"m"}"#);
        push("assistant/message", format!(r#"{{"turn":{turn},"step":1,"message":{answer}}}"#), true);
        push("step/end", format!(r#"{{"turn":{turn},"step":1}}"#), false);
        push("turn/end", format!(r#"{{"turn":{turn},"reason":{{"kind":"completed"}}}}"#), false);
    }
    lines
}

pub(super) fn text_of(lines: &[impl AsRef<str>]) -> Vec<u8> {
    lines.iter().flat_map(|line| [line.as_ref(), "\n"]).collect::<String>().into_bytes()
}

/// The lines in frames of `per_frame` lines behind that of the header.
pub(super) fn zstd_of(lines: &[String], per_frame: usize) -> Vec<u8> {
    let mut file = zstd_frame(&text_of(&lines[..1]));
    for part in lines[1..].chunks(per_frame) {
        file.extend(zstd_frame(&text_of(part)));
    }
    file
}

/// A frame that the library wrote around the text.
pub(super) fn zstd_frame(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    FrameEncoder::new(LEVEL_DEFAULT, true).unwrap().encode(text, &mut frame).unwrap();
    frame
}

/// A damaged log in a directory of its own.
pub(super) struct Patient {
    pub(super) dir: TempDir,
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl Patient {
    pub(super) fn new(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, bytes.as_ref()).unwrap();
        Self { path, dir, bytes: bytes.as_ref().to_vec() }
    }

    pub(super) fn plan(&self, branch: Option<usize>) -> Plan {
        Repairer::default().plan(&self.path, branch, &|_| ()).unwrap()
    }

    pub(super) fn apply_to(&self, plan: &Plan, name: &str) -> Result<Applied, Error> {
        let modified = fs::metadata(&self.path).unwrap().modified().unwrap();
        let applied = Repairer::default().apply(plan, &self.dir.path().join(name), &|_| ());
        assert_eq!(fs::read(&self.path).unwrap(), self.bytes, "the source keeps its bytes");
        assert_eq!(fs::metadata(&self.path).unwrap().modified().unwrap(), modified);
        applied
    }

    /// Applies a plan and gives the events of the new log, one a line, and what was saved beside it.
    pub(super) fn mended(&self, plan: &Plan) -> (Vec<String>, Vec<u8>) {
        let extension = self.path.extension().unwrap().to_str().unwrap();
        let applied = self.apply_to(plan, &format!("new.{extension}")).unwrap();
        let (judgement, events) = judged(&applied.out);
        assert_eq!(judgement.header, plan.header);
        assert_eq!(events.len() as u64, plan.summary.events_kept);
        let saved = applied.saved.map(|saved| fs::read(saved).unwrap()).unwrap_or_default();
        let records = saved.split(|&b| b == b'\n').count() as u64 - 1;
        assert_eq!(records, plan.summary.records_saved);
        (events, saved)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A log that must be accepted, or need nothing but the end of its last turn; with its events as lines.
fn judged(path: &Path) -> (Judgement, Vec<String>) {
    let file = fs::File::open(path).unwrap();
    let mut records: Box<dyn RecordSource> = match path.extension().unwrap().to_str().unwrap() {
        "zstd" => Box::new(ZstdFrames::new(file).unwrap()),
        _ => Box::new(Lines::new(file)),
    };
    let mut events = Vec::new();
    let judgement = judge(&mut *records, &JudgeOptions::default(), &mut |admitted| {
        let mut line = String::new();
        admitted.event().write_json(&mut line);
        events.push(line);
        Ok(())
    })
    .unwrap();
    assert_eq!(judgement.refusal, None, "{}", path.display());
    let repair = judgement.repair.as_ref().map(|repair| repair.kind.as_str());
    assert!(matches!(repair, None | Some("interrupted-turn")), "{}: {repair:?}", path.display());
    (judgement, events)
}
