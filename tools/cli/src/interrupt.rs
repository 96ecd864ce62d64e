//! Ctrl-C: the first asks the work to end in good order, the second ends the process.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use sessionlog::Cancel;

use crate::exit;
use crate::output::note;

/// Has Ctrl-C throw `cancel`. A command asks for it once.
pub(crate) fn throws(cancel: &Cancel) -> anyhow::Result<()> {
    let (cancel, asked) = (cancel.clone(), AtomicBool::new(false));
    let handler = move || {
        if asked.swap(true, Ordering::Relaxed) {
            #[expect(clippy::disallowed_methods, reason = "asked twice, nobody waits for what is open")]
            process::exit(i32::from(exit::FAILED));
        }
        cancel.cancel("interrupted");
        note("interrupted: ending in good order; Ctrl-C again ends at once");
    };
    ctrlc::set_handler(handler).context("listen for Ctrl-C")
}
