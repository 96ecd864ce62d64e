//! `fork`: a child session that shares a prefix.

use sessionlog::Seq;

use crate::cli::{self, Context};
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::Object;

/// Begin a child session that shares the events up to a seq
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session to fork
    id: String,
    /// The last event that the child shares
    #[arg(long, value_name = "SEQ", value_parser = cli::seq)]
    at: Seq,
    /// Id of the child
    new_id: String,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let store = context.writer(false)?;
    let child = store.fork(&args.id, Some(args.at), &args.new_id)?;
    let next = child.next_seq()?;
    store.close()?;
    let shared = args.at.next();
    if context.out.json() {
        let document = Object::new()
            .field("id", &args.new_id)
            .field("parentSession", &args.id)
            .field("seedLength", shared)
            .field("nextSeq", next)
            .end();
        context.out.line(document)?;
    } else {
        let (id, parent) = (human::one_line(&args.new_id), human::one_line(&args.id));
        let shared = human::counted(shared.get(), "event");
        context.out.line(format_args!("{id} shares {shared} with {parent}, its next seq is {next}"))?;
    }
    Ok(Exit::Clean)
}
