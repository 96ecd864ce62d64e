//! `close`: the events that end an interrupted turn.

use crate::cli::Context;
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::Object;

/// Append the closing events of an interrupted turn
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session
    id: String,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let store = context.writer(false)?;
    let session = store.session(&args.id)?;
    let closers = session.close_turn()?;
    let next = session.next_seq()?;
    store.close()?;
    if context.out.json() {
        let document =
            Object::new().field("id", &args.id).field("closers", closers).field("nextSeq", next).end();
        context.out.line(document)?;
    } else if closers == 0 {
        context.out.line("no turn is open, nothing appended")?;
    } else {
        let closers = human::counted(closers, "closing event");
        context.out.line(format_args!("{closers} appended, the next seq is {next}"))?;
    }
    Ok(Exit::Clean)
}
