//! `stats`: what a store or a session holds, and what that takes.

use std::path::{Path, PathBuf};

use sessionlog::projection::Usage;
use sessionlog::{ErrorKind, Session, SessionInfo, Stats, Store};

use crate::cli::Context;
use crate::exit::{self, Exit};
use crate::output::json::{Object, Raw, array};
use crate::output::progress::Progress;
use crate::output::table::{Align, Table};
use crate::output::{Output, human, note};
use crate::{judging, report};

/// Rows of a table that more often than not would be long; `--json` has all of it.
const ROWS_MAX: usize = 20;
/// Sessions in the plots of a report.
const SESSIONS_PLOTTED: usize = 15;
const BAR_COLUMNS: u64 = 24;
const NAME_COLUMNS: usize = 48;

/// Measure events, bytes, headers, replacements and compression, of the store or of one session
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this session, and the tokens that it took; of a fork, what it does not share with its parent. (Tokens stand in the
    /// events' data, which a look at the whole store does not read)
    id: Option<String>,
    /// Also write a page with plots, all in one file; - is stdout
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let to_stdout = args.report.as_deref() == Some(Path::new("-"));
    if to_stdout && context.out.json() {
        return Err(exit::Usage("stats: one of --json and --report - can have stdout".into()).into());
    }
    let store = context.reader()?;
    let progress = Progress::of_unknown("measuring");
    let (stats, usage) = match &args.id {
        Some(id) => {
            let session = store.session(id)?;
            (session.stats()?, Some(usage_of(&session)?))
        }
        None => (store.stats()?, None),
    };
    if let Some(path) = &args.report {
        let sessions = if args.id.is_none() { largest_sessions(&store)? } else { Vec::new() };
        let title = args
            .id
            .as_ref()
            .map_or_else(|| format!("Store {}", context.store_dir().display()), |id| format!("Session {id}"));
        report::publish(path, &report::page(&title, &stats, usage.as_ref(), &sessions), &mut context.out)?;
    }
    drop(progress);
    if context.out.json() {
        context.out.line(document(&stats, usage.as_ref()))?;
    } else if !to_stdout {
        print(&stats, usage.as_ref(), &mut context.out)?;
    }
    if let Some(path) = args.report.as_ref().filter(|_| !to_stdout) {
        note(format_args!("the report is in {}", human::printable(&path.display().to_string())));
    }
    if stats.unreadable > 0 {
        let lost = human::counted(stats.unreadable, "event");
        note(format_args!(
            "sessionlog: {lost} cannot be read and count nowhere; `sessionlog verify` says why"
        ));
    }
    Ok(Exit::findings(stats.unreadable > 0))
}

/// Events that cannot be read are told by the stats.
fn usage_of(session: &Session) -> anyhow::Result<Usage> {
    judging::usage_of(session, |event| match event {
        Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            Err(error.into())
        }
        _ => Ok(()),
    })
}

/// The sessions with the most events, and what is their own.
fn largest_sessions(store: &Store) -> sessionlog::Result<Vec<(SessionInfo, Stats)>> {
    let mut sessions = store.list()?;
    // Equal ones stay newest first.
    sessions.sort_by_key(|session| std::cmp::Reverse(session.events));
    sessions.truncate(SESSIONS_PLOTTED);
    let mut measured = Vec::new();
    for session in sessions {
        match store.session(&session.header.id) {
            Ok(found) => measured.push((session, found.stats()?)),
            // What is lost is told with the rest that cannot be read.
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => return Err(error),
        }
    }
    Ok(measured)
}

fn document(stats: &Stats, usage: Option<&Usage>) -> String {
    let segments =
        Object::new().field("active", stats.segments.active).field("sealed", stats.segments.sealed).end();
    let headers = Object::new()
        .field("count", stats.headers.count)
        .field("distinct", stats.headers.distinct)
        .field("logicalBytes", stats.headers.logical_bytes)
        .field("storedBytes", stats.headers.stored_bytes)
        .end();
    let replacements = Object::new()
        .field("count", stats.replacements.count)
        .field("shadowedNodes", stats.replacements.shadowed_nodes)
        .field("largestSurface", stats.replacements.largest_surface)
        .end();
    let by_type = stats.by_type.iter().map(|of| {
        Object::new()
            .field("type", &of.type_name)
            .field("events", of.events)
            .field("logicalBytes", of.logical_bytes)
            .end()
    });
    let files = stats.files.iter().map(|file| {
        Object::new()
            .field("name", &file.name)
            .field("events", file.events)
            .field("logicalBytes", file.logical_bytes)
            .field("storedBytes", file.stored_bytes)
            .end()
    });
    let list = |items: Vec<String>| array(items.iter().map(|item| Raw(item)));
    let (by_type, files) = (list(by_type.collect()), list(files.collect()));
    let mut document = Object::new();
    document
        .field("sessions", stats.sessions)
        .field("events", stats.events)
        .field("logicalBytes", stats.logical_bytes)
        .field("storedBytes", stats.stored_bytes)
        .field("segments", Raw(&segments))
        .field("headers", Raw(&headers))
        .field("replacements", Raw(&replacements))
        .field("byType", Raw(&by_type))
        .field("files", Raw(&files))
        .field("unreadable", stats.unreadable)
        .optional("usage", usage)
        .end()
}

/// Of a store, or, with its `usage`, of a session.
fn print(stats: &Stats, usage: Option<&Usage>, out: &mut Output) -> anyhow::Result<()> {
    overview(stats, usage.is_some(), out)?;
    if let Some(tokens) = usage.and_then(judging::tokens) {
        out.line(format_args!("tokens: {tokens}"))?;
    }
    if !stats.by_type.is_empty() {
        out.line("")?;
        types(stats, out)?;
    }
    if usage.is_none() && !stats.files.is_empty() {
        out.line("")?;
        files(stats, out)?;
    }
    Ok(())
}

fn overview(stats: &Stats, of_session: bool, out: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new([("", Align::Left), ("", Align::Right), ("", Align::Left)]);
    let mut row = |what: &str, figure: String, note: String| table.row([what.to_owned(), figure, note]);
    if !of_session {
        row("sessions", human::count(stats.sessions), String::new());
    }
    row("events", human::count(stats.events), String::new());
    row("as JSON lines", human::bytes(stats.logical_bytes), String::new());
    let segments = stats.segments;
    row(
        "stored",
        human::bytes(stats.stored_bytes),
        format!(
            "{} of that, in {} and {} sealed",
            human::share(stats.stored_bytes, stats.logical_bytes),
            human::counted(segments.active, "active file"),
            human::count(segments.sealed)
        ),
    );
    let headers = stats.headers;
    row("headers", human::count(headers.count), format!("{} distinct", human::count(headers.distinct)));
    row(
        "as JSON",
        human::bytes(headers.logical_bytes),
        format!("{} of all JSON lines", human::share(headers.logical_bytes, stats.logical_bytes)),
    );
    row(
        "stored",
        human::bytes(headers.stored_bytes),
        format!(
            "{} of that, {} of what is stored",
            human::share(headers.stored_bytes, headers.logical_bytes),
            human::share(headers.stored_bytes, stats.stored_bytes)
        ),
    );
    let replacements = stats.replacements;
    row(
        "replacements",
        human::count(replacements.count),
        format!(
            "{} shadowed, the largest surface had {}",
            human::counted(replacements.shadowed_nodes, "node"),
            human::count(replacements.largest_surface)
        ),
    );
    Ok(table.print(out)?)
}

fn types(stats: &Stats, out: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new([
        ("TYPE", Align::Left),
        ("EVENTS", Align::Right),
        ("BYTES", Align::Right),
        ("SHARE", Align::Right),
        ("", Align::Left),
    ]);
    let most = stats.by_type.first().map_or(0, |of| of.logical_bytes);
    for of in stats.by_type.iter().take(ROWS_MAX) {
        table.row([
            human::cut(&human::one_line(&of.type_name), NAME_COLUMNS).into_owned(),
            human::count(of.events),
            human::bytes(of.logical_bytes),
            human::share(of.logical_bytes, stats.logical_bytes),
            out.style().dim(&bar(of.logical_bytes, most)),
        ]);
    }
    table.print(out)?;
    more(stats.by_type.len(), "type", out)
}

fn files(stats: &Stats, out: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new([
        ("FILE", Align::Left),
        ("EVENTS", Align::Right),
        ("BYTES", Align::Right),
        ("STORED", Align::Right),
        ("SHARE", Align::Right),
        ("", Align::Left),
    ]);
    let most = stats.files.iter().map(|file| file.stored_bytes).max().unwrap_or(0);
    for file in stats.files.iter().rev().take(ROWS_MAX) {
        table.row([
            file.name.clone(),
            human::count(file.events),
            human::bytes(file.logical_bytes),
            human::bytes(file.stored_bytes),
            human::share(file.stored_bytes, file.logical_bytes),
            out.style().dim(&bar(file.stored_bytes, most)),
        ]);
    }
    table.print(out)?;
    more(stats.files.len(), "older file", out)
}

fn more(rows: usize, noun: &str, out: &mut Output) -> anyhow::Result<()> {
    if let Some(hidden) = rows.checked_sub(ROWS_MAX).filter(|hidden| *hidden > 0) {
        let hidden = human::counted(u64::try_from(hidden)?, noun);
        out.line(format_args!("and {hidden}; --json has all"))?;
    }
    Ok(())
}

/// A bar in eighths of a column.
fn bar(part: u64, whole: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = u128::from(part) * u128::from(BAR_COLUMNS) * 8 / u128::from(whole.max(1));
    let eighths = usize::try_from(eighths).unwrap_or(0).max(usize::from(part > 0));
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_go_by_eighths_and_show_whatever_is_there() {
        assert_eq!([bar(0, 9), bar(1, u64::MAX), bar(1, 48), bar(9, 0)], ["", "▏", "▌", &"█".repeat(216)]);
        assert_eq!(bar(u64::MAX, u64::MAX), "█".repeat(24));
    }
}
