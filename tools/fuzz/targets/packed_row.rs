//! Packed chunk rows: any text as a row, alone and where a log may have one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sessionlog::event::json::{Value, scan};
use sessionlog::import::packed::expand;
use sessionlog::import::{JudgeOptions, Lines};
use sessionlog_fuzz::{check_admitted, chosen, judge_bytes};

/// A log in the middle of a step: its next seq is 2.
const BEGUN: &str = concat!(
    r#"{"type":"session","version":0,"id":"s","createdAt":5,"delegationDepth":0}"#,
    "\n",
    r#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}"#,
    "\n",
    r#"{"type":"step/start","seq":1,"time":1,"data":{"turn":1,"step":1}}"#,
    "\n",
);

fuzz_target!(|input: &[u8]| {
    let Some((choice, row)) = chosen(input) else { return };
    if choice & 1 == 0 {
        alone(row);
    }
    let mut log = BEGUN.as_bytes().to_vec();
    log.extend_from_slice(row);
    log.extend_from_slice(b"\n");
    let options = JudgeOptions { lossy_utf8: choice & 2 != 0, ..JudgeOptions::default() };
    check_admitted(&judge_bytes(&mut Lines::new(&log[..]), &options), &options);
});

/// The members of a sound row ascend, and each is one object.
fn alone(row: &[u8]) {
    let Ok(text) = std::str::from_utf8(row) else { return };
    let Ok(scanned) = scan(text) else { return };
    let Ok(Some(rows)) = expand(text, &scanned) else { return };
    let mut next = rows.next_seq();
    for member in rows {
        assert_eq!(member.seq, next);
        next = next.next();
        scan(&member.data).expect("the data of a member is JSON");
        assert!(Value::new(&member.data).is_object());
    }
}
