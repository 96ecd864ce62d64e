//! The logs that `demo` works on, bundled so that the binary needs no file.

use std::io;
use std::path::Path;

use sessionlog::import::Verdict;

/// One bundled log.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// How it must be judged.
    pub(crate) verdict: Verdict,
}

macro_rules! sample {
    ($name:literal, $verdict:ident) => {
        Sample { name: $name, text: include_str!(concat!("../samples/", $name)), verdict: Verdict::$verdict }
    };
}

/// Healthy logs, one that was cut in the middle of a turn, and two that must be refused.
pub(crate) const SAMPLES: [Sample; 6] = [
    sample!("01-flaky-test.jsonl", Accept),
    sample!("02-cut-mid-turn.jsonl", Repair),
    sample!("03-packed-unicode.jsonl", Accept),
    sample!("04-forked.jsonl", Accept),
    sample!("05-retired-header-delta.jsonl", Refuse),
    sample!("06-missing-event.jsonl", Refuse),
];

/// A session among them with a replacement and with all four reasons for a request header.
pub(crate) const REPLACED_SESSION: &str = "flaky-invoice-test";
/// The session that was cut in the middle of a turn.
pub(crate) const CUT_SESSION: &str = "disk-alert-db3";

/// Writes all of them into `dir`.
pub(crate) fn write_all(dir: &Path) -> io::Result<()> {
    SAMPLES.iter().try_for_each(|sample| std::fs::write(dir.join(sample.name), sample.text))
}
