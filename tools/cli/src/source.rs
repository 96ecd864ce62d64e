//! Where a command reads a log from: a path, or stdin put aside in a temporary file so that it can be sought in.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use sessionlog::import::Plan;
use tempfile::NamedTempFile;

use crate::exit;
use crate::output::{human, note};

/// A path to read from; what it holds of stdin goes away with it.
pub(crate) struct Input {
    path: PathBuf,
    spooled: Option<NamedTempFile>,
}

impl Input {
    /// The path itself, or all of stdin for `-`.
    pub(crate) fn new(path: &Path) -> anyhow::Result<Self> {
        if path != Path::new("-") {
            return Ok(Self { path: path.to_owned(), spooled: None });
        }
        let mut spooled = NamedTempFile::new().context("put stdin aside")?;
        io::copy(&mut io::stdin().lock(), &mut spooled).context("put stdin aside")?;
        Ok(Self { path: spooled.path().to_owned(), spooled: Some(spooled) })
    }

    /// Where the bytes are.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How to call a path below this one in messages.
    pub(crate) fn shown(&self, path: &Path) -> String {
        if self.spooled.is_some() { "-".to_owned() } else { path.display().to_string() }
    }
}

/// Says on stderr what a plan passes over and why.
pub(crate) fn tell_ignored(plan: &Plan) {
    for (path, reason) in &plan.ignored {
        note(format_args!("{}: passed over, {reason}", human::printable(&path.display().to_string())));
    }
    if plan.skipped > 0 {
        let files = human::counted(plan.skipped, "file");
        note(format_args!("{files} passed over: neither their names nor their bytes are a log's"));
    }
}

/// Says on stderr that a database is waited for: at once, then every second.
pub(crate) fn tell_waiting(path: &Path, waited: Duration) {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    if waited.is_zero() || TOLD.swap(waited.as_secs(), Ordering::Relaxed) != waited.as_secs() {
        let path = path.display().to_string();
        let seconds = waited.as_secs();
        note(format_args!("{}: somebody writes to it, waited {seconds} s so far", human::printable(&path)));
    }
}

/// Ends a command that has done all it could: what failed makes it fail only now.
///
/// # Errors
///
/// The first failure; the others are told on stderr.
pub(crate) fn all_done(failures: impl IntoIterator<Item = anyhow::Error>) -> anyhow::Result<()> {
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else { return Ok(()) };
    failures.for_each(|error| exit::tell(&error));
    Err(first)
}

/// The error for a place that cannot be read.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("read {}", path.display()))
}
