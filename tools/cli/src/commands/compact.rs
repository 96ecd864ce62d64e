//! `compact`: rewrites the store into one sealed file, without what removed sessions left, once `--apply` confirms it.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::cli::Context;
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::Object;

/// Rewrite the store without what removed sessions left (prints the plan; --apply carries it out)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Carry the plan out
    #[arg(long)]
    apply: bool,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    if args.apply {
        apply(context)?
    } else {
        plan(context)?
    }
    Ok(Exit::Clean)
}

fn apply(context: &mut Context) -> anyhow::Result<()> {
    let store = context.writer(false)?;
    let done = store.compact()?;
    store.close()?;
    if context.out.json() {
        let document = Object::new()
            .field("before", done.bytes_before)
            .field("after", done.bytes_after)
            .field("sessions", done.sessions)
            .field("segments", done.segments)
            .end();
        return Ok(context.out.line(document)?);
    }
    let (before, after) = (human::bytes(done.bytes_before), human::bytes(done.bytes_after));
    let (sessions, segments) =
        (human::counted(done.sessions, "session"), human::counted(done.segments, "segment"));
    Ok(context.out.line(format_args!("{before} are {after} now: {sessions} in {segments}"))?)
}

/// What compacting would read; how much is dead is known only once it is read.
fn plan(context: &mut Context) -> anyhow::Result<()> {
    let sessions = context.reader()?.list()?;
    let live: u64 = sessions.iter().map(|session| session.bytes).sum();
    let sessions = u64::try_from(sessions.len())?;
    let (segments, bytes) = data_files(context.store_dir())?;
    if context.out.json() {
        let document = Object::new()
            .field("before", bytes)
            .field("after", None::<u64>)
            .field("sessions", sessions)
            .field("segments", segments)
            .end();
        return Ok(context.out.line(document)?);
    }
    let (segments, bytes) = (human::counted(segments, "segment"), human::bytes(bytes));
    let (sessions, live) = (human::counted(sessions, "session"), human::bytes(live));
    Ok(context.out.line(format_args!(
        "would rewrite {segments} of {bytes}, which hold {sessions} of {live} as JSON lines; nothing is changed \
         without --apply"
    ))?)
}

/// Number and bytes of a store's segment files, sealed ones included.
fn data_files(dir: &Path) -> anyhow::Result<(u64, u64)> {
    let mut sum = (0, 0);
    for entry in fs::read_dir(dir).context("read the store's directory")? {
        let entry = entry?;
        if Path::new(&entry.file_name()).extension().is_some_and(|end| end == "log" || end == "sealed") {
            sum = (sum.0 + 1, sum.1 + entry.metadata()?.len());
        }
    }
    Ok(sum)
}
