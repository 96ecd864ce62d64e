//! `export`: stored sessions as logs that the reference opens.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, ValueEnum};
use sessionlog::export::{
    JsonlFormat, Redactor, SqliteWriter, export_session, export_session_to, write_session,
};
use sessionlog::{ErrorKind, Session, Store};

use crate::cli::Context;
use crate::exit::{self, Exit, Usage};
use crate::output::json::{Object, Raw};
use crate::output::progress::Progress;
use crate::output::{Output, human, note};
use crate::redaction::Patterns;

/// Write sessions as JSONL logs or into an SQLite database
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("chosen").required(true).args(["id", "all"]))]
pub(crate) struct Args {
    /// The session
    id: Option<String>,
    /// Every session of the store
    #[arg(long)]
    all: bool,
    /// A file (a name that ends in .jsonl or .zstd), - for stdout, or a directory: the logs lie below it as
    /// <project>/<session>/session.jsonl, where an id that is too long for a name is shortened and ends in ~~ and its hash. A
    /// database is one file, named or sessions.db in the directory
    #[arg(long, value_name = "DIR|FILE")]
    to: PathBuf,
    /// How the log is stored [default: jsonl, or what the name of FILE says: .zstd, .db, .sqlite]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Pack runs of chunk events into rows
    #[arg(long, value_name = "BOOL", default_value = "true", num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, require_equals = true)]
    packed: bool,
    /// Replace secrets in texts, tool arguments and titles by tags: common key shapes, what stands behind names like
    /// password, and authorization. Keys, ids and the header line, with its cwd, stay
    #[arg(long)]
    redact: bool,
    /// Replace what matches this regular expression, or its group named `secret`; may be repeated, with or without --redact
    #[arg(long, value_name = "REGEX")]
    redact_pattern: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    #[value(name = "jsonl")]
    Jsonl,
    #[value(name = "jsonl.zstd")]
    JsonlZstd,
    #[value(name = "sqlite")]
    Sqlite,
}

/// Name of a database in a directory that was given for it.
const DATABASE_NAME: &str = "sessions.db";

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    if !args.redact && args.redact_pattern.is_empty() {
        return export(context, args, None);
    }
    let patterns = Patterns::new(args.redact, &args.redact_pattern)?;
    let find = |key: Option<&str>, text: &str| patterns.find(key, text);
    let mut redactor = Redactor::new(&find);
    let done = export(context, args, Some(&mut redactor));
    tell_redacted(context, &patterns.counts(&redactor), args.to == Path::new("-"))?;
    done
}

fn export(
    context: &mut Context,
    args: &Args,
    mut redactor: Option<&mut Redactor<'_>>,
) -> anyhow::Result<Exit> {
    let store = context.reader()?;
    if args.is_database() {
        return args.export_database(context, &store, redactor);
    }
    if let Some(id) = &args.id {
        let session = store.session(id)?;
        let path = args.export(&session, &mut context.out, single_target(&args.to), redactor)?;
        if let Some(path) = path {
            tell(context, &session, &path)?;
        }
        return Ok(Exit::Clean);
    }
    if args.to == Path::new("-") {
        return Err(Usage("export: --all needs a directory, one stream holds one log".into()).into());
    }
    let sessions = store.list()?;
    let progress = Progress::of_sessions(u64::try_from(sessions.len())?);
    let mut exit = Exit::Clean;
    for listed in &sessions {
        let exported = store.session(&listed.header.id).and_then(|session| {
            let target = Target::Directory(&args.to);
            let path = args.export(&session, &mut context.out, target, redactor.as_deref_mut())?;
            Ok((session, path))
        });
        match exported {
            Ok((session, path)) => {
                path.map_or(Ok(()), |path| progress.aside(|| tell(context, &session, &path)))?;
            }
            Err(error) if error.kind() == ErrorKind::Io => return Err(error.into()),
            // One session that cannot be written never stops the others.
            Err(error) => {
                progress.aside(|| exit::tell(&error.into()));
                exit = Exit::Findings;
            }
        }
        progress.add(1);
    }
    Ok(exit)
}

/// Where a log goes.
enum Target<'a> {
    Stdout,
    File(&'a Path),
    Directory(&'a Path),
}

fn single_target(to: &Path) -> Target<'_> {
    let named_like_a_log = ["jsonl", "zstd", "zst"].iter().any(|end| ends_in(to, end));
    match to {
        to if to == Path::new("-") => Target::Stdout,
        to if named_like_a_log && !to.is_dir() => Target::File(to),
        to => Target::Directory(to),
    }
}

fn ends_in(path: &Path, end: &str) -> bool {
    path.extension().is_some_and(|extension| extension == end)
}

impl Args {
    /// Whether a database is asked for, by its format or by its name.
    fn is_database(&self) -> bool {
        let named = || ["db", "sqlite", "sqlite3"].iter().any(|end| ends_in(&self.to, end));
        matches!(self.format, Some(Format::Sqlite)) || self.format.is_none() && named() && !self.to.is_dir()
    }

    /// Writes one session, or all, into a new database.
    fn export_database(
        &self,
        context: &mut Context,
        store: &Store,
        mut redactor: Option<&mut Redactor<'_>>,
    ) -> anyhow::Result<Exit> {
        if self.to == Path::new("-") {
            return Err(
                Usage("export: a database needs a file, it cannot be written to a stream".into()).into()
            );
        }
        let path = if self.to.is_dir() { self.to.join(DATABASE_NAME) } else { self.to.clone() };
        let ids = match &self.id {
            Some(id) => vec![store.session(id)?.id().to_owned()],
            None => store.list()?.into_iter().map(|listed| listed.header.id.clone()).collect(),
        };
        let mut writer = SqliteWriter::create(&path)?;
        let progress = Progress::of_sessions(u64::try_from(ids.len())?);
        let mut written = Vec::new();
        let mut exit = Exit::Clean;
        for id in ids {
            let exported = store.session(&id).and_then(|session| {
                writer.session(&session, self.packed, redactor.as_deref_mut())?;
                Ok(session)
            });
            match exported {
                Ok(session) => written.push(session),
                Err(error) if self.id.is_some() || error.kind() == ErrorKind::Io => return Err(error.into()),
                // One session that cannot be written never stops the others.
                Err(error) => {
                    progress.aside(|| exit::tell(&error.into()));
                    exit = Exit::Findings;
                }
            }
            progress.add(1);
        }
        writer.finish()?;
        drop(progress);
        written.iter().try_for_each(|session| tell(context, session, &path))?;
        Ok(exit)
    }

    /// Writes one log and says where it is, unless that is stdout.
    fn export(
        &self,
        session: &Session,
        out: &mut Output,
        target: Target<'_>,
        redactor: Option<&mut Redactor<'_>>,
    ) -> sessionlog::Result<Option<PathBuf>> {
        let named_zstd = matches!(target, Target::File(path) if !ends_in(path, "jsonl"));
        let format = match self.format {
            Some(Format::Jsonl) => JsonlFormat::Plain,
            Some(Format::JsonlZstd | Format::Sqlite) => JsonlFormat::Zstd,
            None if named_zstd => JsonlFormat::Zstd,
            None => JsonlFormat::Plain,
        };
        Ok(match target {
            Target::Stdout => {
                write_session(session, out, format, self.packed, redactor)?;
                None
            }
            Target::File(path) => {
                export_session_to(session, path, format, self.packed, redactor)?;
                Some(path.to_owned())
            }
            Target::Directory(root) => Some(export_session(session, root, format, self.packed, redactor)?),
        })
    }
}

/// How many secrets were replaced: for a script the last document, unless stdout is the log.
fn tell_redacted(context: &mut Context, counts: &[(&str, u64)], to_stdout: bool) -> anyhow::Result<()> {
    if context.out.json() && !to_stdout {
        let mut by_name = Object::new();
        for (name, count) in counts {
            by_name.field(name, *count);
        }
        context.out.line(Object::new().field("redacted", Raw(&by_name.end())).end())?;
        return Ok(());
    }
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    let by_name: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{} {}", human::one_line(name), human::count(*count)))
        .collect();
    let detail = if by_name.is_empty() { String::new() } else { format!(": {}", by_name.join(", ")) };
    note(format_args!("redacted {}{detail}", human::counted(total, "secret")));
    Ok(())
}

fn tell(context: &mut Context, session: &Session, path: &Path) -> anyhow::Result<()> {
    let events = session.next_seq()?;
    let shown = path.display().to_string();
    if context.out.json() {
        let document =
            Object::new().field("id", session.id()).field("path", shown).field("events", events).end();
        context.out.line(document)?;
    } else {
        let id = human::one_line(session.id());
        let events = human::counted(events.get(), "event");
        context.out.line(format_args!("{id}: {events} to {}", human::one_line(&shown)))?;
    }
    Ok(())
}
