//! What an import adds up to: for a person a table on stderr, for a script one document.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use sessionlog::event::WarningKind;
use sessionlog::import::Verdict;

use crate::judging::WARNINGS_TOLD_MAX;
use crate::output::json::{Object, Raw};
use crate::output::table::{Align, Table};
use crate::output::{Output, human, note};

/// What became of one source, ready to be printed: the judgement itself is gone by then.
pub(super) struct Done {
    /// What is printed of it, its warnings apart.
    pub(super) line: Option<String>,
    pub(super) verdict: Verdict,
    /// Kind of the refusal or the repair.
    pub(super) reason: Option<&'static str>,
    pub(super) warnings: Vec<Warned>,
    pub(super) events: u64,
    /// Of these, the ones that the store held already.
    pub(super) skipped: u64,
    pub(super) bytes: u64,
}

/// The warnings of one kind in one source.
pub(super) struct Warned {
    pub(super) kind: WarningKind,
    pub(super) times: u64,
    /// The first of them, for people.
    pub(super) line: String,
}

/// The sums over all sources.
#[derive(Default)]
pub(super) struct Tally {
    accepted: u64,
    repaired: u64,
    pub(super) refused: u64,
    events: u64,
    skipped: u64,
    bytes: u64,
    by_reason: BTreeMap<(&'static str, &'static str), Row>,
    by_warning: BTreeMap<WarningKind, Row>,
    /// Why sources could not be judged, or not be brought in.
    pub(super) failures: Vec<anyhow::Error>,
}

/// One row of the table.
#[derive(Default)]
struct Row {
    logs: u64,
    /// Events in them, or warnings.
    of_them: u64,
    first: String,
}

impl Row {
    fn add(&mut self, path: &str, of_them: u64) {
        if self.logs == 0 {
            path.clone_into(&mut self.first);
        }
        self.logs += 1;
        self.of_them += of_them;
    }
}

impl Tally {
    /// Adds a source up, and gives the lines about its warnings that are to be told: of each kind, those of the first few
    /// sources.
    pub(super) fn add(&mut self, path: &str, done: &Done) -> Vec<String> {
        let counter = match done.verdict {
            Verdict::Accept => &mut self.accepted,
            Verdict::Repair => &mut self.repaired,
            Verdict::Refuse => &mut self.refused,
        };
        *counter += 1;
        self.events += done.events;
        self.skipped += done.skipped;
        self.bytes += done.bytes;
        let reason = (done.verdict.as_str(), done.reason.unwrap_or_default());
        self.by_reason.entry(reason).or_default().add(path, done.events);
        let mut told = Vec::new();
        for warned in &done.warnings {
            let row = self.by_warning.entry(warned.kind).or_default();
            row.add(path, warned.times);
            if row.logs <= WARNINGS_TOLD_MAX {
                told.push(warned.line.clone());
            }
        }
        told
    }

    /// Counts a source that could not be judged, or not be brought in; a script hears of it at once.
    pub(super) fn fail(&mut self, out: &mut Output, path: &str, error: anyhow::Error) -> io::Result<()> {
        if out.json() {
            out.line_now(Object::new().field("path", path).field("error", format!("{error:#}")).end())?;
        }
        self.failures.push(error);
        Ok(())
    }

    /// Sources that were judged good.
    pub(super) fn taken(&self) -> u64 {
        self.accepted + self.repaired
    }

    pub(super) fn print(&self, out: &mut Output, taken: Duration) -> io::Result<()> {
        let failed = u64::try_from(self.failures.len()).unwrap_or(u64::MAX);
        let sources = self.taken() + self.refused + failed;
        if out.json() {
            let summary = Object::new()
                .field("sources", sources)
                .field("accepted", self.accepted)
                .field("repaired", self.repaired)
                .field("refused", self.refused)
                .field("events", self.events)
                .field("bytes", self.bytes)
                .field("seconds", taken)
                .end();
            return out.line(Object::new().field("summary", Raw(&summary)).end());
        }
        let mut text = Vec::new();
        if !self.by_reason.is_empty() {
            self.verdicts().print(&mut text)?;
        }
        if !self.by_warning.is_empty() {
            self.warnings().print(&mut text)?;
        }
        let (logs, bytes, taken) =
            (human::counted(sources, "log"), human::bytes(self.bytes), human::duration(taken));
        let mut events = human::counted(self.events, "event");
        if self.skipped > 0 {
            events.push_str(&format!(" ({} in the store already)", human::count(self.skipped)));
        }
        // What was told of single logs comes first.
        io::Write::flush(out)?;
        note(format_args!("{}{logs}, {events}, {bytes} in {taken}", String::from_utf8_lossy(&text)));
        Ok(())
    }

    fn verdicts(&self) -> Table<5> {
        let mut table = Table::new([
            ("VERDICT", Align::Left),
            ("REASON", Align::Left),
            ("LOGS", Align::Right),
            ("EVENTS", Align::Right),
            ("FIRST", Align::Left),
        ]);
        for verdict in [Verdict::Accept, Verdict::Repair, Verdict::Refuse].map(Verdict::as_str) {
            for ((_, reason), row) in self.by_reason.iter().filter(|((of, _), _)| *of == verdict) {
                let first = if reason.is_empty() { String::new() } else { human::one_line(&row.first) };
                let (logs, events) = (human::count(row.logs), human::count(row.of_them));
                table.row([verdict.into(), (*reason).into(), logs, events, first]);
            }
        }
        table
    }

    fn warnings(&self) -> Table<4> {
        let mut table = Table::new([
            ("WARNING", Align::Left),
            ("LOGS", Align::Right),
            ("TIMES", Align::Right),
            ("FIRST", Align::Left),
        ]);
        for (kind, row) in &self.by_warning {
            let (logs, times) = (human::count(row.logs), human::count(row.of_them));
            table.row([kind.as_str().into(), logs, times, human::one_line(&row.first)]);
        }
        table
    }
}
