//! Events of any log that a gate admits, with any parts of their texts taken for secrets: what comes out is the same number
//! of events, each with JSON for data.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sessionlog::event::json::scan;
use sessionlog::export::{Redactor, Secret};
use sessionlog::import::{JudgeOptions, Lines, judge};
use sessionlog_fuzz::chosen;

fuzz_target!(|input: &[u8]| {
    let Some((choice, log)) = chosen(input) else { return };
    let find = |_: Option<&str>, text: &str| secrets(usize::from(choice), text);
    let mut redactor = Redactor::new(&find);
    redactor.begin();
    let (mut taken, mut given) = (0, 0);
    let mut check = |event: &sessionlog::event::Event<'_>| {
        scan(&event.data).expect("redacted data is JSON");
        given += 1;
        Ok(())
    };
    judge(&mut Lines::new(log), &JudgeOptions::default(), &mut |admitted| {
        taken += 1;
        redactor.event(admitted.event().clone(), &mut check)
    })
    .expect("events are redacted");
    redactor.finish(&mut check).expect("events are redacted");
    assert_eq!(given, taken);
});

/// Each stretch of a text between two places that the choice makes, on character boundaries.
fn secrets(choice: usize, text: &str) -> Vec<Secret> {
    let step = 1 + choice % 7;
    let mut places = text.char_indices().map(|(at, _)| at).step_by(step);
    std::iter::from_fn(|| Some(places.next()?..places.next()?))
        .enumerate()
        .filter(|(number, _)| number % (1 + choice / 64) == 0)
        .map(|(number, range)| Secret { range, pattern: number % 3 })
        .collect()
}
