//! A log that is judged twice: what was admitted once must be admitted again, to the same end.

use sessionlog::event::{Event, SessionState};
use sessionlog::import::{JudgeOptions, Judgement, Lines, RecordSource, judge};

/// The events that were admitted of a log, and what became of the whole.
#[derive(Debug)]
pub struct Relog {
    /// The events as JSON lines, in order.
    pub lines: Vec<String>,
    /// The judgement.
    pub judgement: Judgement,
}

/// Judges a source to its end.
///
/// # Panics
///
/// If reading fails: what is in memory can be read.
pub fn judge_bytes(source: &mut dyn RecordSource, options: &JudgeOptions) -> Relog {
    let mut lines = Vec::new();
    let judgement = judge(source, options, &mut |admitted| {
        lines.push(line_of(admitted.event()));
        Ok(())
    });
    Relog { lines, judgement: judgement.expect("memory can be read") }
}

/// Checks that an admitted log, written out, is admitted as it was, without a repair.
///
/// # Panics
///
/// If it is not.
pub fn check_admitted(relog: &Relog, options: &JudgeOptions) {
    let Relog { lines, judgement } = relog;
    let Some(state) = &judgement.state else { return };
    let header = judgement.header.as_ref().expect("an admitted log has a header");
    let mut text = String::new();
    header.write_json(&mut text);
    let closers = judgement.closers.iter().map(line_of);
    for line in lines.iter().cloned().chain(closers) {
        text.push('\n');
        text.push_str(&line);
    }
    text.push('\n');
    let again = judge_bytes(&mut Lines::new(text.as_bytes()), options);
    assert!(again.judgement.refusal.is_none(), "{:?} of\n{text}", again.judgement.refusal);
    assert!(again.judgement.repair.is_none(), "{:?} of\n{text}", again.judgement.repair);
    let state_again = again.judgement.state.as_ref().expect("an admitted log has a state");
    assert_eq!(again.judgement.header.as_ref(), Some(header));
    assert_eq!(again.lines[..lines.len()], lines[..]);
    assert_eq!(state_again.next_seq(), state.next_seq());
    assert_eq!(state_again.surface(), state.surface());
    assert_eq!(state_again.message_count(), state.message_count());
}

fn line_of(event: &Event<'_>) -> String {
    let mut line = String::new();
    event.write_json(&mut line);
    line
}
