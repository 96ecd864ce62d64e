//! Progress of long work, on stderr and only on a terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar, or nothing at all where nobody watches. It goes away when dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar over so many bytes.
    pub(crate) fn of_bytes(total: u64) -> Self {
        Self::new(total, "{bar:30} {bytes}/{total_bytes}, {binary_bytes_per_sec}, ETA {eta} {msg}")
    }

    /// A bar over so many sessions.
    pub(crate) fn of_sessions(total: u64) -> Self {
        Self::new(total, "{bar:30} {human_pos}/{human_len} sessions, {per_sec}, ETA {eta} {msg}")
    }

    /// A sign of life for work whose size is not known.
    pub(crate) fn of_unknown(what: &'static str) -> Self {
        let progress = Self::new(0, "{spinner} {msg} {elapsed}");
        progress.tell(|| what.to_owned());
        progress
    }

    fn new(total: u64, template: &str) -> Self {
        if !io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    /// So much more is done. Any thread may say so.
    pub(crate) fn add(&self, done: u64) {
        self.bar.inc(done);
    }

    /// So much is done, of so much in all.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// What the work is at.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_message(what());
        }
    }

    /// Writes to the terminal without tearing the bar.
    pub(crate) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
