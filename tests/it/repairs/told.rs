//! What a plan tells of rows that are kept in part, and of logs that nothing can mend.

use std::cell::Cell;

use sessionlog::repair::{Action, Repairer};

use super::patient::{Patient, log_lines, text_of};

fn chunk(seq: u64, writer: &str) -> String {
    let chunk = format!(r#"{{"type":"text-delta","index":0,"text":"{writer}"}}"#);
    format!(
        r#"{{"type":"assistant/chunk","seq":{seq},"time":9,"data":{{"turn":1,"step":1,"chunk":{chunk}}}}}"#
    )
}

#[test]
fn the_rest_of_a_row_is_told_with_its_branch_and_its_events() {
    let row = r#"{"type":"text-chunks","seq0":2,"time0":9,"data":{"turn":1,"step":1,"index":0,"dt":[0,0,0],"texts":["b","b","b","b"]}}"#;
    let mut lines = vec![log_lines(0).remove(0), chunk(0, "a"), chunk(1, "a"), chunk(1, "b"), row.to_owned()];
    lines.extend([chunk(4, "c"), chunk(5, "c")]);
    let patient = Patient::new("log.jsonl", text_of(&lines));
    let plan = patient.plan(Some(3));
    let told: Vec<_> = plan.steps.listed().iter().map(|step| (step.action, step.seq, step.events)).collect();
    let seq = |seq| Some(sessionlog::Seq::new(seq));
    assert_eq!(told, [(Action::DropBranch, seq(1), 1), (Action::DropBranch, seq(4), 2)]);
    assert!(plan.steps.listed()[1].message.contains("branch 2"), "{:?}", plan.steps.listed()[1]);
    assert_eq!((plan.summary.events_kept, plan.summary.events_lost), (6, 3));
    assert_eq!(patient.mended(&plan).0[3], chunk(3, "b"));
}

#[test]
fn bytes_of_a_row_that_are_no_utf8_are_told_once() {
    let row = br#"{"type":"text-chunks","seq0":0,"time0":9,"data":{"turn":1,"step":1,"index":0,"dt":[0,0],"texts":["b","#.to_vec();
    let log = [text_of(&log_lines(0)), row, b"\"\xFF\",\"b\"]}}\n".to_vec()].concat();
    let plan = Patient::new("log.jsonl", log).plan(None);
    assert_eq!((plan.steps.listed().len(), plan.summary.bytes_lost), (1, 1), "{:?}", plan.steps);
}

#[test]
fn what_cannot_be_mended_is_not_read_to_its_end() {
    let newer = log_lines(0)[0].replace("\"version\":0", "\"version\":1");
    let long = format!("{newer}\n{}", format!("{}\n", chunk(0, "a")).repeat(20_000));
    let cases = [("log.jsonl", long, "newer-format"), ("s.db", "x".repeat(1 << 21), "sqlite-schema")];
    for (name, bytes, kind) in cases {
        let patient = Patient::new(name, &bytes);
        let read = Cell::new(0);
        let plan = Repairer::default().plan(&patient.path, None, &|bytes| read.set(bytes)).unwrap();
        assert_eq!(plan.refusal.as_ref().map(|refusal| refusal.kind.as_str()), Some(kind));
        assert!(read.get() < bytes.len() as u64 / 2, "{name}: {} bytes", read.get());
        assert!(patient.apply_to(&plan, "new.jsonl").is_err());
    }
}
