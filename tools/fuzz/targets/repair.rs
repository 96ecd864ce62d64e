//! Any bytes as a damaged log: what a plan promises, its application keeps.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sessionlog::import::JudgeOptions;
use sessionlog::repair::Repairer;
use sessionlog_fuzz::{INPUT_BYTES_MAX, judge_bytes, memory_directory};

fuzz_target!(|input: &[u8]| {
    if input.len() > INPUT_BYTES_MAX {
        return;
    }
    let directory = memory_directory();
    let (source, out) = (directory.path().join("log.jsonl"), directory.path().join("out.jsonl"));
    std::fs::write(&source, input).expect("a file");
    let repairer = Repairer::new(JudgeOptions::default());
    let mut plan = repairer.plan(&source, None, &|_| ()).expect("a plan");
    if plan.needs_branch() {
        plan = repairer.plan(&source, Some(plan.branches.len()), &|_| ()).expect("a plan of a branch");
    }
    assert_eq!(std::fs::read(&source).expect("the source"), input);
    if plan.refusal.is_some() {
        return;
    }
    repairer.apply(&plan, &out, &|_| ()).expect("the plan is carried out");
    let repaired = std::fs::File::open(&out).expect("the repaired log");
    let again =
        judge_bytes(&mut sessionlog::import::Lines::new(repaired), &JudgeOptions::default()).judgement;
    assert!(again.refusal.is_none(), "{:?}", again.refusal);
});
