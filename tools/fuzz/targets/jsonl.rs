//! Text to records to events, as strict and as lenient as it gets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sessionlog::import::{JudgeOptions, Lines};
use sessionlog_fuzz::{INPUT_BYTES_MAX, check_admitted, judge_bytes};

fuzz_target!(|input: &[u8]| {
    if input.len() > INPUT_BYTES_MAX {
        return;
    }
    for lossy_utf8 in [false, true] {
        let options = JudgeOptions { lossy_utf8, ..JudgeOptions::default() };
        check_admitted(&judge_bytes(&mut Lines::new(input), &options), &options);
    }
});
