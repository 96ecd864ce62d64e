//! The report of a database: what is done to it as a whole, then session by session.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use sessionlog::repair::{Applied, DatabasePlan, DatabaseSummary, Repairer, SessionPlan};

use super::{Args, Choice, branch_sentence, print_steps, row, summary_sentence, totals};
use crate::cli::Context;
use crate::exit::{Exit, Usage};
use crate::judging::refusal_sentence;
use crate::output::json::{Json, Object, Raw};
use crate::output::progress::Progress;
use crate::output::{Style, human};

/// Sessions that a person is shown.
const SESSIONS_SHOWN_MAX: usize = 20;

pub(super) fn run(
    context: &mut Context,
    args: &Args,
    repairer: &Repairer,
    path: &Path,
    shown: &str,
) -> anyhow::Result<Exit> {
    let mut branches = BTreeMap::new();
    for Choice { session, number } in &args.branch {
        let Some(session) = session else {
            return Err(Usage("a database has many sessions: --branch SESSION=N".to_owned()).into());
        };
        branches.insert(session.clone(), *number);
    }
    let bytes = path.metadata().map_or(0, |metadata| metadata.len());
    let progress = Progress::of_bytes(bytes);
    // Rows are what is counted; a person is told the share of the file.
    let tell = |done: u64, rows: u64| progress.set(bytes.saturating_mul(done) / rows.max(1), bytes);
    progress.tell(|| format!("planning {shown}"));
    let plan = repairer.plan_database(path, &branches, &tell)?;
    progress.tell(|| format!("repairing {shown}"));
    let applied = match &args.out {
        Some(out) if args.apply && plan.refusal.is_none() && !plan.needs_branch() => {
            Some(repairer.apply_database(&plan, out, &tell)?)
        }
        _ => None,
    };
    drop(progress);
    let out = args.out.as_deref();
    let report = Report { path: shown, out, branches: &args.branch, plan: &plan, applied: applied.as_ref() };
    if context.out.json() {
        context.out.line(report.document())?;
    } else {
        let style = context.out.style();
        report.print(&mut context.out, style)?;
    }
    Ok(Exit::findings(!plan.is_lossless()))
}

struct Report<'a> {
    path: &'a str,
    out: Option<&'a Path>,
    branches: &'a [Choice],
    plan: &'a DatabasePlan,
    applied: Option<&'a Applied>,
}

impl Report<'_> {
    fn document(&self) -> String {
        let plan = self.plan;
        let shown = |path: &Path| path.display().to_string();
        Object::new()
            .field("path", self.path)
            .field("out", self.out.map(shown))
            .field("steps", plan.steps.listed())
            .field("totals", Raw(&totals(&plan.steps)))
            .field("sessions", plan.sessions.as_slice())
            .field("summary", plan.summary)
            .field("lossless", plan.is_lossless())
            .field("applied", self.applied.is_some())
            .field("saved", self.applied.and_then(|applied| applied.saved.as_deref()).map(shown))
            .field("refusal", plan.refusal.as_ref())
            .end()
    }

    fn print(&self, out: &mut impl Write, style: Style) -> io::Result<()> {
        let plan = self.plan;
        let verdict = match plan {
            _ if plan.refusal.is_some() => style.bad("cannot be repaired"),
            _ if plan.needs_branch() => style.odd("two writers went on with a session: choose a branch"),
            _ if plan.is_sound() => style.good("sound, there is nothing to repair"),
            _ if plan.is_lossless() => style.good("can be repaired, nothing is lost"),
            _ => style.odd("can be repaired, with losses"),
        };
        writeln!(out, "{}: {verdict}", style.bold(&human::one_line(self.path)))?;
        if let Some(refusal) = &plan.refusal {
            row(out, "refused", &refusal_sentence(refusal))?;
            return row(out, "next", refusal.kind.advice().unwrap_or("restore the file from a backup"));
        }
        print_steps(out, style, &plan.steps)?;
        for session in plan.sessions.iter().take(SESSIONS_SHOWN_MAX) {
            print_session(out, style, session)?;
        }
        let more = plan.sessions.len().saturating_sub(SESSIONS_SHOWN_MAX);
        if more > 0 {
            let more = human::counted(u64::try_from(more).unwrap_or(u64::MAX), "more session");
            writeln!(out, "{more} like these: --json lists them all")?;
        }
        row(out, "result", &database_sentence(&plan.summary))?;
        self.print_next(out)
    }

    fn print_next(&self, out: &mut impl Write) -> io::Result<()> {
        let path = human::shell_word(self.path);
        if let Some(applied) = self.applied {
            let bytes = human::bytes(applied.bytes);
            row(out, "written", &format!("{}, {bytes}, read back and accepted", applied.out.display()))?;
            if let Some(saved) = &applied.saved {
                let records = human::counted(self.plan.summary.records_saved, "record");
                row(out, "saved", &format!("{}: the {records} that it has no place for", saved.display()))?;
            }
            let next = applied.out.display().to_string();
            return row(out, "next", &format!("`sessionlog import {}`", human::shell_word(&next)));
        }
        if let Some(session) = self.plan.sessions.iter().find(|session| session.needs_branch()) {
            let choice = human::shell_word(&session.id);
            let what =
                format!("`sessionlog repair {path} --branch {choice}=N` shows what keeping branch N means");
            return row(out, "next", &what);
        }
        if self.plan.is_sound() {
            return row(out, "next", "import it as it is");
        }
        let target = self
            .out
            .map_or("NEW.db".into(), |out| human::shell_word(&out.display().to_string()).into_owned());
        let branches: String = self.branches.iter().map(branch_argument).collect();
        let what = format!(
            "nothing is changed without --apply: `sessionlog repair {path}{branches} --apply --out {target}` writes the new database"
        );
        row(out, "next", &what)
    }
}

fn branch_argument(Choice { session, number }: &Choice) -> String {
    session
        .as_ref()
        .map_or(String::new(), |session| format!(" --branch {}={number}", human::shell_word(session)))
}

fn print_session(out: &mut impl Write, style: Style, session: &SessionPlan) -> io::Result<()> {
    let verdict = match session {
        _ if session.refusal.is_some() => style.bad("left out"),
        _ if session.needs_branch() => style.odd("choose a branch"),
        _ if session.is_lossless() => style.good("kept, nothing is lost"),
        _ => style.odd("kept, with losses"),
    };
    writeln!(out, "session {}: {verdict}", style.bold(&human::one_line(&session.id)))?;
    if let Some(refusal) = &session.refusal {
        row(out, "refused", &refusal_sentence(refusal))?;
    }
    for branch in &session.branches {
        let name = if session.branch == Some(branch.number) { "kept" } else { "branch" };
        row(out, name, &branch_sentence(branch))?;
    }
    if session.needs_branch() {
        return Ok(());
    }
    print_steps(out, style, &session.steps)?;
    row(out, "result", &summary_sentence(&session.summary))
}

fn database_sentence(summary: &DatabaseSummary) -> String {
    let mut text = format!(
        "{} and {} kept",
        human::counted(summary.sessions_kept, "session"),
        human::counted(summary.events_kept, "event")
    );
    if summary.events_lost > 0 {
        text.push_str(&format!(", {} lost", human::counted(summary.events_lost, "event")));
    }
    if summary.sessions_cut > 0 {
        text.push_str(&format!("; {} cut short", human::counted(summary.sessions_cut, "session")));
    }
    if summary.sessions_left_out > 0 {
        text.push_str(&format!("; {} left out", human::counted(summary.sessions_left_out, "session")));
    }
    if summary.records_saved > 0 {
        text.push_str(&format!("; {} saved beside", human::counted(summary.records_saved, "whole record")));
    }
    text
}

impl Json for SessionPlan {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("session", &self.id)
            .field("steps", self.steps.listed())
            .field("totals", Raw(&totals(&self.steps)))
            .field("summary", self.summary)
            .field("lossless", self.is_lossless())
            .field("branches", self.branches.as_slice())
            .field("branch", self.branch)
            .field("refusal", self.refusal.as_ref())
            .end();
        out.push_str(&object);
    }
}

impl Json for DatabaseSummary {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("sessionsKept", self.sessions_kept)
            .field("sessionsCut", self.sessions_cut)
            .field("sessionsLeftOut", self.sessions_left_out)
            .field("eventsKept", self.events_kept)
            .field("eventsLost", self.events_lost)
            .field("recordsSaved", self.records_saved)
            .end();
        out.push_str(&object);
    }
}
