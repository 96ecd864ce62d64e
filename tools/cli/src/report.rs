//! The page that `stats --report` writes: one HTML file with everything in it, plots as SVG, in light and in dark.
//!
//! No script, nothing loaded from elsewhere, and the page forbids both. Text out of a log is escaped and cannot reorder what
//! stands around it. A page takes its name when it is whole, and the place of an older page, never of anything else.

mod plot;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context as _, ensure};
use sessionlog::projection::Usage;
use sessionlog::storage::{DiskStorage, Storage as _};
use sessionlog::{FileStats, SessionInfo, Stats};

use crate::judging;
use crate::output::{Output, human};
use plot::{Mark, Row, Series, bars};

const TYPES_PLOTTED: usize = 16;
const FILES_PLOTTED: usize = 20;
const LABEL_COLUMNS: usize = 30;

/// The page of a store or a session. `sessions` are those to plot, those with the most events first.
pub(crate) fn page(
    title: &str,
    stats: &Stats,
    usage: Option<&Usage>,
    sessions: &[(SessionInfo, Stats)],
) -> String {
    let mut body = cards(stats, usage);
    body += &section("Request headers", &headers_text(stats), &headers_plot(stats));
    body += &section("Surface", SURFACE_TEXT, &surface_figures(stats));
    body += &section("Bytes by type", "Events as unpacked JSON lines.", &types_plot(stats));
    if !sessions.is_empty() {
        let shown = human::counted(sessions.len() as u64, "session");
        let most = format!("The {shown} with the most events.");
        let events = |(info, _): &(SessionInfo, Stats)| info.events;
        body += &section("Events per session", &most, &sessions_plot(sessions, events));
        let headers = |(_, own): &(SessionInfo, Stats)| own.headers.count;
        body += &section("Headers per session", &most, &sessions_plot(sessions, headers));
    }
    body += &section("Compression by file", FILES_TEXT, &files_plot(&stats.files));
    let title = escaped(&human::one_line(title));
    let style = include_str!("report/page.css");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{style}</style>\n\
         </head>\n<body>\n<header><h1>{title}</h1><p>What is stored, and what it takes.</p></header>\n\
         <main>\n{body}</main>\n<footer>sessionlog {}</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Writes the page: to stdout for `-`, else whole or not at all.
pub(crate) fn publish(path: &Path, page: &str, out: &mut Output) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return Ok(out.write_all(page.as_bytes())?);
    }
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(found) => {
            ensure!(found.is_file(), "write report {shown}: something else than a file stands there")
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("write report {shown}")),
    }
    let write = || {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".report-").suffix(".tmp").tempfile_in(parent)?;
        file.write_all(page.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        DiskStorage::open(parent, false)?.sync_directory()
    };
    write().with_context(|| format!("write report {shown}"))
}

const FILES_TEXT: &str = "Each file: the events in it as JSON lines, and what the file takes. Files that hold frames as \
                          they were written are not compressed yet.";
const SURFACE_TEXT: &str =
    "What the model sees is an ordered row of events; a replacement puts one in the place of many.";

fn cards(stats: &Stats, usage: Option<&Usage>) -> String {
    let share = human::share(stats.stored_bytes, stats.logical_bytes);
    let segments = format!(
        "{}, {} sealed",
        human::counted(stats.segments.active, "active file"),
        human::count(stats.segments.sealed)
    );
    let mut cards = vec![
        ("Sessions", human::count(stats.sessions), String::new()),
        (
            "Events",
            human::count(stats.events),
            format!("of {}", human::counted(stats.by_type.len() as u64, "type")),
        ),
        ("As JSON lines", human::bytes(stats.logical_bytes), String::new()),
        ("Stored", human::bytes(stats.stored_bytes), format!("{share} of the JSON lines; {segments}")),
    ];
    let header_share = human::share(stats.headers.logical_bytes, stats.logical_bytes);
    cards.push((
        "Request headers",
        human::count(stats.headers.count),
        format!("{header_share} of the JSON lines"),
    ));
    if let Some((usage, tokens)) = usage.and_then(|usage| Some((usage, judging::tokens(usage)?))) {
        let total = usage.total();
        cards.push(("Tokens", human::count(total.input.saturating_add(total.output)), tokens));
    }
    if stats.unreadable > 0 {
        cards.push(("Unreadable events", human::count(stats.unreadable), "run verify".into()));
    }
    figures(&cards)
}

fn figures(cards: &[(&str, String, String)]) -> String {
    let mut out = String::from("<dl class=\"cards\">\n");
    for (name, figure, note) in cards {
        let (figure, note) = (escaped(figure), escaped(note));
        out += &format!("<div><dt>{name}</dt><dd>{figure}</dd><dd class=\"note\">{note}</dd></div>\n");
    }
    out + "</dl>\n"
}

fn section(title: &str, text: &str, plot: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n<p>{}</p>\n{plot}</section>\n", escaped(text))
}

fn headers_text(stats: &Stats) -> String {
    let headers = stats.headers;
    format!(
        "{} headers, {} distinct. Each is a full snapshot of configuration, system prompt and tools; stored is what \
         changed since an earlier one. They are {} of all JSON lines and {} of what is stored.",
        human::count(headers.count),
        human::count(headers.distinct),
        human::share(headers.logical_bytes, stats.logical_bytes),
        human::share(headers.stored_bytes, stats.stored_bytes)
    )
}

fn headers_plot(stats: &Stats) -> String {
    let row = |label: &str, logical: u64, stored: u64| Row {
        label: label.to_owned(),
        hint: format!("{label}: {} as JSON, {} stored", human::bytes(logical), human::bytes(stored)),
        marks: vec![
            Mark { series: Series::Logical, value: logical, shown: human::bytes(logical) },
            Mark { series: Series::Stored, value: stored, shown: with_share(stored, logical) },
        ],
    };
    let headers = stats.headers;
    let rest = |all: u64, part: u64| all.saturating_sub(part);
    bars(
        "Headers and the rest, as JSON and as stored",
        &[
            row("headers", headers.logical_bytes, headers.stored_bytes),
            row(
                "everything else",
                rest(stats.logical_bytes, headers.logical_bytes),
                rest(stats.stored_bytes, headers.stored_bytes),
            ),
        ],
    )
}

fn types_plot(stats: &Stats) -> String {
    let row = |name: &str, events: u64, bytes: u64| Row {
        label: label(name),
        hint: format!("{}: {}", human::one_line(name), human::counted(events, "event")),
        marks: vec![Mark {
            series: Series::Logical,
            value: bytes,
            shown: with_share(bytes, stats.logical_bytes),
        }],
    };
    let (shown, rest) = stats.by_type.split_at(stats.by_type.len().min(TYPES_PLOTTED));
    let mut rows: Vec<Row> = shown.iter().map(|of| row(&of.type_name, of.events, of.logical_bytes)).collect();
    if !rest.is_empty() {
        let sum = rest.iter().fold((0, 0), |sum, of| (sum.0 + of.events, sum.1 + of.logical_bytes));
        rows.push(row(&human::counted(rest.len() as u64, "other type"), sum.0, sum.1));
    }
    bars("Bytes by type", &rows)
}

fn sessions_plot(sessions: &[(SessionInfo, Stats)], value: impl Fn(&(SessionInfo, Stats)) -> u64) -> String {
    let mut rows: Vec<Row> = sessions
        .iter()
        .map(|session| {
            let (id, title) = (&session.0.header.id, session.0.title.as_deref());
            let value = value(session);
            Row {
                label: label(title.filter(|title| !title.trim().is_empty()).unwrap_or(id)),
                hint: human::one_line(&format!("{id} {}", title.unwrap_or(""))),
                marks: vec![Mark { series: Series::Logical, value, shown: human::count(value) }],
            }
        })
        .collect();
    rows.retain(|row| row.marks.iter().any(|mark| mark.value > 0));
    rows.sort_by_key(|row| std::cmp::Reverse(row.marks.first().map(|mark| mark.value)));
    bars("By session", &rows)
}

fn files_plot(files: &[FileStats]) -> String {
    let mut largest: Vec<&FileStats> = files.iter().collect();
    largest.sort_by_key(|file| std::cmp::Reverse(file.stored_bytes.max(file.logical_bytes)));
    largest.truncate(FILES_PLOTTED);
    let rows: Vec<Row> = largest
        .into_iter()
        .map(|file| Row {
            label: short_name(&file.name),
            hint: format!("{}: {}", file.name, human::counted(file.events, "event")),
            marks: vec![
                Mark {
                    series: Series::Logical,
                    value: file.logical_bytes,
                    shown: human::bytes(file.logical_bytes),
                },
                Mark {
                    series: Series::Stored,
                    value: file.stored_bytes,
                    shown: with_share(file.stored_bytes, file.logical_bytes),
                },
            ],
        })
        .collect();
    bars("Logical and stored bytes by file", &rows)
}

fn surface_figures(stats: &Stats) -> String {
    let replacements = stats.replacements;
    let each = human::ratio(replacements.shadowed_nodes, replacements.count);
    figures(&[
        ("Replacements", human::count(replacements.count), String::new()),
        ("Shadowed nodes", human::count(replacements.shadowed_nodes), format!("{each} for each replacement")),
        ("Largest surface", human::count(replacements.largest_surface), "nodes, at any time".into()),
    ])
}

/// The name of a segment file without the zeros that lead its numbers.
fn short_name(name: &str) -> String {
    let number = |part: &str| part.trim_start_matches('0').to_owned();
    name.split('-').map(number).collect::<Vec<_>>().join("–")
}

/// Bytes, and their share where there is a whole.
fn with_share(part: u64, whole: u64) -> String {
    let bytes = human::bytes(part);
    if whole == 0 { bytes } else { format!("{bytes} ({})", human::share(part, whole)) }
}

fn label(text: &str) -> String {
    human::cut(&human::one_line(text), LABEL_COLUMNS).into_owned()
}

/// Text as HTML and SVG take it. What may not stand there even escaped is shown as its picture.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in human::printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use sessionlog::TypeStats;

    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let hostile = "</title><script>alert('x')</script>\u{0}\u{202E}&\"";
        let of = TypeStats { type_name: hostile.to_owned(), events: 1, logical_bytes: 10 };
        let stats = Stats { events: 1, logical_bytes: 10, by_type: vec![of], ..Stats::default() };
        let page = page(hostile, &stats, None, &[]);
        for bad in ["<script", "\u{0}", "\u{202E}", "'x'"] {
            assert!(!page.contains(bad), "{bad:?} in {page}");
        }
        assert!(page.contains("&lt;script&gt;"), "{page}");
    }

    #[test]
    fn an_empty_store_has_a_page_too() {
        let page = page("Store x", &Stats::default(), None, &[]);
        assert!(page.contains("</html>") && !page.contains("NaN"), "{page}");
    }
}
