//! The one public error. It says what was attempted, where, and — by its kind — what to do next.

use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::event::RefusalKind;
use crate::ids::Seq;

/// Result with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call itself is wrong: fix its arguments.
    Invalid,
    /// The gate refused an event or a header: fix the event. [`Error::rule`] names the rule.
    Rejected,
    /// The session moved on, or the id is taken: reload and decide again.
    Conflict,
    /// There is no such session, event or file.
    NotFound,
    /// Another process holds the store for writing: wait or ask it.
    Locked,
    /// Stored bytes are damaged: stop, keep a copy, run `verify`.
    Corrupt,
    /// The bytes are sound but belong to another version or vocabulary: use a matching release.
    Unsupported,
    /// The operating system failed: see the source. What was acknowledged stays safe.
    Io,
    /// An earlier write failed, or the store was closed: reopen it to go on.
    Closed,
    /// A bound of [`limits`](crate::limits) would be exceeded; nothing was written.
    Limit,
    /// The caller asked to stop.
    Cancelled,
}

impl ErrorKind {
    /// The kind as one lower-case word, stable for scripts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Rejected => "rejected",
            Self::Conflict => "conflict",
            Self::NotFound => "not-found",
            Self::Locked => "locked",
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::Io => "io",
            Self::Closed => "closed",
            Self::Limit => "limit",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong, where, and what to do next. One word wide; see [`Error::kind`].
pub struct Error(Box<Inner>);

#[derive(Debug, Default)]
struct Inner {
    kind: Option<ErrorKind>,
    message: String,
    rule: Option<&'static str>,
    refusal: Option<RefusalKind>,
    path: Option<PathBuf>,
    line: Option<u64>,
    offset: Option<u64>,
    seq: Option<Seq>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` whose message is lower case and begins with what was attempted.
    #[must_use]
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind: Some(kind), message: message.into(), ..Inner::default() }))
    }

    /// An [`ErrorKind::Io`] error caused by `source`.
    #[must_use]
    pub(crate) fn io(attempted: impl Into<String>, source: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, attempted).with_source(source)
    }

    pub(crate) fn with_rule(mut self, rule: &'static str) -> Self {
        self.0.rule = Some(rule);
        self
    }

    pub(crate) fn with_refusal(mut self, refusal: RefusalKind) -> Self {
        self.0.refusal = Some(refusal);
        self
    }

    pub(crate) fn with_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    pub(crate) fn with_line(mut self, line: u64) -> Self {
        self.0.line = Some(line);
        self
    }

    pub(crate) fn with_offset(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    pub(crate) fn with_seq(mut self, seq: Seq) -> Self {
        self.0.seq = Some(seq);
        self
    }

    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// The same error, its message led by what was attempted on a higher level.
    pub(crate) fn context(mut self, attempted: &str) -> Self {
        self.0.message = format!("{attempted}: {}", self.0.message);
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind.unwrap_or(ErrorKind::Io)
    }

    /// Name of the rule that refused, for [`ErrorKind::Rejected`].
    #[must_use]
    pub fn rule(&self) -> Option<&'static str> {
        self.0.rule
    }

    /// The kind of refusal, where the gate refused.
    #[must_use]
    pub fn refusal(&self) -> Option<RefusalKind> {
        self.0.refusal
    }

    /// The file concerned.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Line in that file, from 1.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.0.line
    }

    /// Byte offset in that file.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The event concerned.
    #[must_use]
    pub fn seq(&self) -> Option<Seq> {
        self.0.seq
    }

    /// The message without its place, for callers that show the place themselves.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(rule) = self.0.rule {
            write!(f, " (rule {rule})")?;
        }
        if let Some(path) = &self.0.path {
            write!(f, " in {}", path.display())?;
        }
        if let Some(line) = self.0.line {
            write!(f, ", line {line}")?;
        }
        if let Some(offset) = self.0.offset {
            write!(f, ", byte offset {offset}")?;
        }
        if let Some(seq) = self.0.seq {
            write!(f, ", seq {seq}")?;
        }
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("kind", &self.kind()).field("message", &self.to_string()).finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}

const _: () = {
    const fn wide<T: Send + Sync + 'static>() -> usize {
        size_of::<T>()
    }
    assert!(wide::<Error>() == size_of::<usize>());
};
