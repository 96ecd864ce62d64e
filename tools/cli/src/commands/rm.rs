//! `rm`: removes a session for good, once `--apply` confirms the plan.

use anyhow::Context as _;

use crate::cli::Context;
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::Object;

/// Remove a session for good (prints the plan; --apply carries it out)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session
    id: String,
    /// Carry the plan out
    #[arg(long)]
    apply: bool,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let store = context.reader()?;
    store.session(&args.id)?;
    let found = store.list()?.into_iter().find(|session| session.header.id == args.id);
    let session = found.with_context(|| format!("remove session {}: it is not listed", args.id))?;
    if args.apply {
        let store = context.writer(false)?;
        store.remove(&args.id)?;
        store.close()?;
    }
    if context.out.json() {
        let document = Object::new()
            .field("id", &args.id)
            .field("events", session.events)
            .field("bytes", session.bytes)
            .field("applied", args.apply)
            .end();
        context.out.line(document)?;
    } else {
        let (events, bytes) = (human::counted(session.events, "event"), human::bytes(session.bytes));
        let id = human::one_line(&args.id);
        context.out.line(match args.apply {
            true => format!("removed {id}: {events}, {bytes}"),
            false => format!("would remove {id}: {events}, {bytes}; nothing is changed without --apply"),
        })?;
    }
    Ok(Exit::Clean)
}
