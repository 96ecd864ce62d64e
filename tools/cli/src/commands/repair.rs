//! `repair`: plans how a damaged log or database becomes one that loads, and writes it to a new file once `--apply` confirms
//! the plan.

mod database;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sessionlog::event::Vocabulary;
use sessionlog::import::{Found, JudgeOptions, SourceFormat, discover};
use sessionlog::repair::{Action, Applied, Branch, Plan, Repairer, Step, Steps, Summary, Total};

use crate::cli::Context;
use crate::exit::{Exit, Usage};
use crate::judging::refusal_sentence;
use crate::output::json::{Json, Object, Raw, array};
use crate::output::progress::Progress;
use crate::output::{Style, human};
use crate::source::Input;

/// Steps of one action and kind that a person is shown.
const STEPS_SHOWN_MAX: u64 = 10;

/// Make a log that loads of a damaged one, in a new file (prints the plan; --apply carries it out)
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The damaged log is never changed. Whole records that the new log has no place for are saved \
                        beside it, in FILE.cut.jsonl. Of an SQLite database every session is repaired by itself; what \
                        is saved are lines {\"session\":ID,\"record\":{...}}.\nExit codes: 0 nothing is lost, 1 something \
                        is, a branch must be chosen, or the log cannot be repaired."
)]
pub(crate) struct Args {
    /// The damaged log or database, or - for stdin
    path: PathBuf,
    /// Which branch to keep of a log that two writers went on with; of a session in a database, SESSION=N (may be repeated)
    #[arg(long, value_name = "[SESSION=]N", value_parser = choice)]
    branch: Vec<Choice>,
    /// Take events of this type as log-only; may be repeated
    #[arg(long, value_name = "TYPE")]
    allow_type: Vec<String>,
    /// Carry the plan out
    #[arg(long, requires = "out")]
    apply: bool,
    /// The new log, which must not exist: .jsonl is plain, .zstd in frames; of a database, the new database
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let input = Input::new(&args.path)?;
    let shown = input.shown(input.path());
    let mut vocabulary = Vocabulary::default();
    args.allow_type.iter().try_for_each(|name| vocabulary.register(name))?;
    let repairer = Repairer::new(JudgeOptions { vocabulary, ..JudgeOptions::default() });
    if is_database(input.path()) {
        return database::run(context, args, &repairer, input.path(), &shown);
    }
    let branch = match args.branch.as_slice() {
        [] => None,
        [Choice { session: None, number }] => Some(*number),
        _ => return Err(Usage("--branch N, once, chooses the branch of a log".to_owned()).into()),
    };
    let total = input.path().metadata().map_or(0, |metadata| metadata.len());
    let progress = Progress::of_bytes(total);
    let tell = |bytes| progress.set(bytes, total);
    progress.tell(|| format!("planning {shown}"));
    let plan = repairer.plan(input.path(), branch, &tell)?;
    progress.tell(|| format!("repairing {shown}"));
    let applied = match &args.out {
        Some(out) if args.apply && plan.refusal.is_none() && !plan.needs_branch() => {
            Some(repairer.apply(&plan, out, &tell)?)
        }
        _ => None,
    };
    drop(progress);
    let report = Report { path: &shown, out: args.out.as_deref(), plan: &plan, applied: applied.as_ref() };
    if context.out.json() {
        context.out.line(report.document())?;
    } else {
        let style = context.out.style();
        report.print(&mut context.out, style)?;
    }
    Ok(Exit::findings(!plan.is_lossless()))
}

/// The branch of a session, or of the one log that there is.
#[derive(Debug, Clone)]
struct Choice {
    session: Option<String>,
    number: usize,
}

fn choice(text: &str) -> Result<Choice, std::num::ParseIntError> {
    let (session, number) = match text.rsplit_once('=') {
        Some((session, number)) => (Some(session.to_owned()), number),
        None => (None, text),
    };
    Ok(Choice { session, number: number.parse()? })
}

fn is_database(path: &Path) -> bool {
    let found = if path.is_file() { discover(path).next() } else { None };
    matches!(found, Some(Found::Source(source)) if source.format == SourceFormat::Sqlite)
}

struct Report<'a> {
    path: &'a str,
    out: Option<&'a Path>,
    plan: &'a Plan,
    applied: Option<&'a Applied>,
}

impl Report<'_> {
    fn document(&self) -> String {
        let plan = self.plan;
        let shown = |path: &Path| path.display().to_string();
        Object::new()
            .field("path", self.path)
            .field("out", self.out.map(shown))
            .field("session", plan.header.as_ref().map(|header| &header.id))
            .field("steps", plan.steps.listed())
            .field("totals", Raw(&totals(&plan.steps)))
            .field("summary", plan.summary)
            .field("lossless", plan.is_lossless())
            .field("applied", self.applied.is_some())
            .field("saved", self.applied.and_then(|applied| applied.saved.as_deref()).map(shown))
            .field("branches", plan.branches.as_slice())
            .field("branch", plan.branch)
            .field("refusal", plan.refusal.as_ref())
            .end()
    }

    fn print(&self, out: &mut impl Write, style: Style) -> io::Result<()> {
        let plan = self.plan;
        let verdict = match plan {
            _ if plan.refusal.is_some() => style.bad("cannot be repaired"),
            _ if plan.needs_branch() => style.odd("two writers went on with it: choose a branch"),
            _ if plan.is_sound() => style.good("sound, there is nothing to repair"),
            _ if plan.is_lossless() => style.good("can be repaired, nothing is lost"),
            _ => style.odd("can be repaired, with losses"),
        };
        writeln!(out, "{}: {verdict}", style.bold(&human::one_line(self.path)))?;
        if let Some(refusal) = &plan.refusal {
            row(out, "refused", &refusal_sentence(refusal))?;
            return row(out, "next", refusal.kind.advice().unwrap_or("restore the file from a backup"));
        }
        for branch in &plan.branches {
            let name = if plan.branch == Some(branch.number) { "kept" } else { "branch" };
            row(out, name, &branch_sentence(branch))?;
        }
        if plan.needs_branch() {
            let what = format!(
                "`sessionlog repair {} --branch N` shows what keeping branch N means",
                human::shell_word(self.path)
            );
            return row(out, "next", &what);
        }
        print_steps(out, style, &plan.steps)?;
        let told = summary_sentence(&plan.summary);
        row(out, "result", &told)?;
        self.print_next(out)
    }

    fn print_next(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(applied) = self.applied else {
            let branch = self.plan.branch.map_or(String::new(), |number| format!(" --branch {number}"));
            let target = self
                .out
                .map_or("FILE".into(), |out| human::shell_word(&out.display().to_string()).into_owned());
            let what = if self.plan.is_sound() {
                "import it as it is".to_owned()
            } else {
                format!(
                    "nothing is changed without --apply: `sessionlog repair {}{branch} --apply --out {target}` writes the new log",
                    human::shell_word(self.path)
                )
            };
            return row(out, "next", &what);
        };
        let bytes = human::bytes(applied.bytes);
        row(out, "written", &format!("{}, {bytes}, read back and accepted", applied.out.display()))?;
        if let Some(saved) = &applied.saved {
            let records = human::counted(self.plan.summary.records_saved, "record");
            row(out, "saved", &format!("{}: the {records} that it has no place for", saved.display()))?;
        }
        row(
            out,
            "next",
            &format!("`sessionlog import {}`", human::shell_word(&applied.out.display().to_string())),
        )
    }
}

/// Of each action and kind a few steps stand for all: `--json` lists more.
fn print_steps(out: &mut impl Write, style: Style, steps: &Steps) -> io::Result<()> {
    let mut shown = BTreeMap::new();
    for step in steps.listed() {
        let count = shown.entry((step.action, step.kind)).or_insert(0_u64);
        if *count < STEPS_SHOWN_MAX {
            *count += 1;
            let name =
                if step.action.is_lossless() { style.good("lossless ") } else { style.bad("lossy    ") };
            writeln!(out, "  {name} {}", human::one_line(&step_sentence(step)))?;
        }
    }
    for (action, kind, total) in steps.totals() {
        let more = total.steps - shown.get(&(action, kind)).copied().unwrap_or(0).min(total.steps);
        if more > 0 {
            let text =
                format!("{} ({kind}): {} like these", action.as_str(), human::counted(more, "more step"));
            row(out, "", &text)?;
        }
    }
    Ok(())
}

fn row(out: &mut impl Write, name: &str, text: &str) -> io::Result<()> {
    writeln!(out, "  {name:<9} {}", human::one_line(text))
}

/// The sums of steps as JSON.
fn totals(steps: &Steps) -> String {
    array(steps.totals().map(|(action, kind, total)| Totalled(action, kind, total)))
}

fn step_sentence(step: &Step) -> String {
    let mut text = format!("{} ({})", step.action.as_str(), step.kind);
    let places = [
        ("line", step.line),
        ("byte offset", step.offset),
        ("frame", step.frame),
        ("seq", step.seq.map(sessionlog::Seq::get)),
    ];
    for (name, value) in places {
        if let Some(value) = value {
            text.push_str(&format!(", {name} {value}"));
        }
    }
    if let Some(row) = step.row {
        text.push_str(&format!(", row {row}"));
    }
    if let Some(name) = &step.type_name {
        text.push_str(&format!(", {name}"));
    }
    if step.bytes > 0 {
        text.push_str(&format!(", {}", human::bytes(step.bytes)));
    }
    format!("{text}: {}", step.message)
}

fn summary_sentence(summary: &Summary) -> String {
    let mut text = format!("{} kept", human::counted(summary.events_kept, "event"));
    if summary.events_lost > 0 || summary.first_lost.is_some() {
        text.push_str(&format!(", {} lost", human::counted(summary.events_lost, "event")));
    }
    if let Some(seq) = summary.first_lost {
        text.push_str(&format!(", the first at seq {seq}"));
    }
    if summary.records_saved > 0 {
        text.push_str(&format!("; {} saved beside", human::counted(summary.records_saved, "whole record")));
    }
    if summary.open_turn {
        text.push_str("; the last turn is open, and every load closes it as interrupted");
    }
    text
}

fn branch_sentence(branch: &Branch) -> String {
    let mut text = format!("{}: from seq {}", branch.number, branch.first_seq);
    if let Some(line) = branch.line {
        text.push_str(&format!(", line {line}"));
    }
    if let Some(offset) = branch.offset {
        text.push_str(&format!(", byte offset {offset}"));
    }
    if let Some(row) = branch.row {
        text.push_str(&format!(", row {row}"));
    }
    text.push_str(&format!(", {}", human::counted(branch.events, "event")));
    if let (Some(first), Some(last)) = (branch.first_time, branch.last_time) {
        text.push_str(&format!(", {} to {}", human::time(first), human::time(last)));
    }
    if let Some(last) = &branch.last_type {
        text.push_str(&format!(", the last is {last}"));
    }
    text
}

/// The steps of one action and kind.
struct Totalled(Action, &'static str, Total);

impl Json for Totalled {
    fn write(&self, out: &mut String) {
        let Self(action, kind, total) = *self;
        let object = Object::new()
            .field("action", action.as_str())
            .field("kind", kind)
            .field("lossless", action.is_lossless())
            .field("steps", total.steps)
            .field("events", total.events)
            .field("bytes", total.bytes)
            .end();
        out.push_str(&object);
    }
}

impl Json for Step {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("action", self.action.as_str())
            .field("kind", self.kind)
            .field("lossless", self.action.is_lossless())
            .field("line", self.line)
            .field("offset", self.offset)
            .field("frame", self.frame)
            .field("row", self.row)
            .field("seq", self.seq)
            .field("type", self.type_name.as_ref())
            .field("events", self.events)
            .field("bytes", self.bytes)
            .field("message", &self.message)
            .end();
        out.push_str(&object);
    }
}

impl Json for Summary {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("eventsKept", self.events_kept)
            .field("eventsLost", self.events_lost)
            .field("firstLostSeq", self.first_lost)
            .field("recordsSaved", self.records_saved)
            .field("bytesLost", self.bytes_lost)
            .field("openTurn", self.open_turn)
            .end();
        out.push_str(&object);
    }
}

impl Json for Branch {
    fn write(&self, out: &mut String) {
        let object = Object::new()
            .field("branch", self.number)
            .field("firstSeq", self.first_seq)
            .field("line", self.line)
            .field("offset", self.offset)
            .field("row", self.row)
            .field("events", self.events)
            .field("firstTime", self.first_time)
            .field("lastTime", self.last_time)
            .field("lastType", self.last_type.as_ref())
            .end();
        out.push_str(&object);
    }
}
