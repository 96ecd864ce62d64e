//! `verify`: is every stored byte what was written, and does every session obey the rules?

use std::time::{Duration, Instant};

use sessionlog::event::{Family, RefusalKind};
use sessionlog::{Error, ErrorKind, Finding, SessionWarning, VerifyOptions, VerifyReport};

use crate::cli::Context;
use crate::exit::Exit;
use crate::judging::{WARNINGS_TOLD_MAX, warning_sentence};
use crate::output::human;
use crate::output::json::{Json, Object, Raw};
use crate::output::progress::Progress;

/// Check every frame, index and checkpoint of the store, and tell what is odd in its sessions
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fold every session in two ways and compare the projections
    #[arg(long)]
    deep: bool,
    /// Check the log invariants of turns, steps, calls and compactions as well
    #[arg(long)]
    strict: bool,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let store = match context.reader() {
        Err(error) if error.kind() == ErrorKind::Corrupt => return unopenable(context, &error, started),
        store => store?,
    };
    let progress = Progress::of_sessions(0);
    let options = VerifyOptions { deep: args.deep, strict: args.strict };
    let report = store.verify(options, &mut |done, total| progress.set(done, total))?;
    drop(progress);
    tell(context, &report, started.elapsed())
}

fn tell(context: &mut Context, report: &VerifyReport, taken: Duration) -> anyhow::Result<Exit> {
    if context.out.json() {
        for finding in &report.findings {
            context.out.line(document(finding))?;
        }
        let summary = Object::new()
            .field("segments", report.segments)
            .field("frames", report.frames)
            .field("sessions", report.sessions)
            .field("events", report.events)
            .field("findings", report.findings.len())
            .field("seconds", taken)
            .end();
        let document =
            Object::new().field("summary", Raw(&summary)).field("warnings", report.warnings.as_slice()).end();
        context.out.line(document)?;
    } else {
        for finding in &report.findings {
            context.out.line(sentence(finding))?;
        }
        tell_warnings(context, report)?;
        let verdict = match u64::try_from(report.findings.len()).unwrap_or(u64::MAX) {
            0 => context.out.style().good("sound"),
            findings => context.out.style().bad(&human::counted(findings, "finding")),
        };
        let (segments, frames) =
            (human::counted(report.segments, "segment"), human::counted(report.frames, "frame"));
        let (sessions, events) =
            (human::counted(report.sessions, "session"), human::counted(report.events, "event"));
        let taken = human::duration(taken);
        context.out.line(format_args!("{verdict}: {segments}, {frames}, {sessions}, {events} in {taken}"))?;
    }
    Ok(Exit::findings(!report.findings.is_empty()))
}

/// The first warnings of each kind, and how many more there are.
fn tell_warnings(context: &mut Context, report: &VerifyReport) -> anyhow::Result<()> {
    let mark = context.out.style().odd("warning");
    for (&kind, &total) in &report.warning_totals {
        let of_kind = report.warnings.iter().filter(|listed| listed.warning.kind == kind);
        let mut told = 0;
        for SessionWarning { session, warning } in of_kind.take(usize::try_from(WARNINGS_TOLD_MAX)?) {
            let sentence = format!("session {session}: {}", warning_sentence(warning));
            context.out.line(format_args!("{mark}  {}", human::one_line(&sentence)))?;
            told += 1;
        }
        if total > told {
            context.out.line(format_args!("{mark}  {kind}: {} more", human::count(total - told)))?;
        }
    }
    Ok(())
}

/// A store that damage keeps from being opened: one finding, and nothing else could be looked at.
fn unopenable(context: &mut Context, error: &Error, started: Instant) -> anyhow::Result<Exit> {
    let finding = Finding {
        path: error.path().unwrap_or(context.store_dir()).to_owned(),
        offset: error.offset(),
        session: None,
        seq: None,
        kind: error.refusal().unwrap_or(RefusalKind::CorruptRecord).as_str(),
        family: Family::Damaged,
        message: format!("{}; restore the file from a backup", error.message()),
    };
    let report = VerifyReport { findings: vec![finding], ..VerifyReport::default() };
    tell(context, &report, started.elapsed())
}

fn document(finding: &Finding) -> String {
    Object::new()
        .field("path", finding.path.display().to_string())
        .field("offset", finding.offset)
        .field("session", &finding.session)
        .field("seq", finding.seq)
        .field("kind", finding.kind)
        .field("family", finding.family.as_str())
        .field("message", &finding.message)
        .end()
}

/// A finding in one line.
pub(crate) fn sentence(finding: &Finding) -> String {
    let mut place = finding.path.display().to_string();
    if let Some(offset) = finding.offset {
        place.push_str(&format!(", byte offset {offset}"));
    }
    if let Some(session) = &finding.session {
        place.push_str(&format!(", session {session}"));
    }
    if let Some(seq) = finding.seq {
        place.push_str(&format!(", seq {seq}"));
    }
    human::printable(&format!("{place}: {} ({}): {}", finding.kind, finding.family, finding.message))
        .into_owned()
}

impl Json for SessionWarning {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("session", &self.session)
            .field("kind", self.warning.kind.as_str())
            .field("seq", self.warning.seq)
            .field("message", &self.warning.message)
            .end();
        out.push_str(&object);
    }
}
