//! What the commands print: results on stdout, everything else on stderr.
//!
//! Owns stdout, the choice of colour, and the rule that text out of a log never reaches a terminal raw.
//! A closed pipe surfaces as an [`io::ErrorKind::BrokenPipe`] error that [`exit`](crate::exit) turns into 0.

pub(crate) mod human;
pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod table;

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

/// Stdout, buffered, and how to write to it.
pub(crate) struct Output {
    out: BufWriter<Stdout>,
    style: Style,
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let stdout = io::stdout();
        let style = Style { on: !json && stdout.is_terminal() && colour_wanted() };
        Self { out: BufWriter::with_capacity(64 << 10, stdout), style, json }
    }

    /// Whether results are JSON documents.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// How to mark up text.
    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// One line of text or one JSON document.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{line}")
    }

    /// The same, and it is out before this returns.
    pub(crate) fn line_now(&mut self, line: impl fmt::Display) -> io::Result<()> {
        self.line(line)?;
        self.out.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Marks text with colour, or leaves it as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub(crate) fn odd(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Prints a note on stderr. A closed stderr is nobody's concern.
pub(crate) fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn colour_wanted() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}
