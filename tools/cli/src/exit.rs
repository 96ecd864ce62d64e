//! How every command ends: one exit code, one message on stderr, and what to do next.
//!
//! 0 all well (a closed pipe included), 1 findings, 2 a usage error, 3 the job could not be done.

use std::fmt;
use std::io;
use std::process::ExitCode;

use sessionlog::ErrorKind;

use crate::output::{human, note};

const USAGE: u8 = 2;
pub(crate) const FAILED: u8 = 3;

/// How a command that did its job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// All well.
    Clean,
    /// The job is done and something is wrong with what it looked at.
    Findings,
}

impl Exit {
    /// Findings, if there are any.
    pub(crate) fn findings(any: bool) -> Self {
        if any { Self::Findings } else { Self::Clean }
    }
}

/// A command line that parses and still makes no sense.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The exit code of a command; an error is told on stderr.
pub(crate) fn code(result: anyhow::Result<Exit>) -> ExitCode {
    let error = match result {
        Ok(Exit::Clean) => return ExitCode::SUCCESS,
        Ok(Exit::Findings) => return ExitCode::from(1),
        Err(error) => error,
    };
    if closed_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    tell(&error);
    let kind = library_error(&error).map(sessionlog::Error::kind);
    ExitCode::from(if error.is::<Usage>() || kind == Some(ErrorKind::Invalid) { USAGE } else { FAILED })
}

/// The exit code of a command line that clap refused, or of `--help` and `--version`.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // A closed pipe is no fault of the command line.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

/// Says on stderr what failed and what to do next.
pub(crate) fn tell(error: &anyhow::Error) {
    note(format_args!("sessionlog: {}", human::printable(&describe(error))));
    if let Some(next) = library_error(error).and_then(next_step) {
        note(format_args!("  next: {next}"));
    }
}

/// The chain of causes in one line. The library's error tells its own source.
fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
        if cause.is::<sessionlog::Error>() {
            break;
        }
    }
    text
}

fn next_step(error: &sessionlog::Error) -> Option<&'static str> {
    Some(match error.kind() {
        // An error with a path is about the store itself.
        ErrorKind::NotFound if error.path().is_some() => {
            "`--store DIR` or $SESSIONLOG_STORE names the store; `import` and `append --create` make one"
        }
        ErrorKind::NotFound => {
            "`sessionlog ls` lists what the store holds; `--store DIR` names another store"
        }
        ErrorKind::Locked => "wait for the writer or ask it; commands that only read work beside it",
        ErrorKind::Corrupt => "keep a copy of the store, then run `sessionlog verify --deep`",
        ErrorKind::Conflict if error.path().is_some() => "choose another place: nothing is written over",
        ErrorKind::Conflict => "the session has moved on or the id is taken: look at it and decide again",
        ErrorKind::Unsupported => "use a release that knows this version or vocabulary",
        ErrorKind::Closed => "run the command again: the store recovers when it is opened",
        _ => return None,
    })
}

fn library_error(error: &anyhow::Error) -> Option<&sessionlog::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// Whether the reader of stdout went away: nothing else that the commands write to is a pipe.
fn closed_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(broken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_code() {
        let piped = io::Error::from(io::ErrorKind::BrokenPipe);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let ends: [(anyhow::Result<Exit>, u8); 5] = [
            (Ok(Exit::findings(false)), 0),
            (Ok(Exit::findings(true)), 1),
            (Err(Usage("no".into()).into()), USAGE),
            (Err(full.into()), FAILED),
            (Err(anyhow::Error::from(piped).context("write the report")), 0),
        ];
        for (end, expected) in ends {
            assert_eq!(format!("{:?}", code(end)), format!("{:?}", ExitCode::from(expected)));
        }
    }
}
