//! `ls`: the sessions of a store, newest first.

use sessionlog::SessionInfo;
use sessionlog::event::json::JsonString;

use crate::cli::Context;
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::Object;
use crate::output::table::{Align, Table};

/// Columns of an id, a title or a path; `--json` has all of it.
const TEXT_COLUMNS: usize = 48;

/// List the sessions, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only sessions of this working directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let store = context.reader()?;
    let sessions = store.list()?;
    let wanted = |session: &&SessionInfo| match &args.cwd {
        Some(cwd) => session.header.cwd.as_ref().is_some_and(|own| *own == *cwd.as_str()),
        None => true,
    };
    let sessions = sessions.iter().filter(wanted).take(args.limit.unwrap_or(usize::MAX));
    if context.out.json() {
        for session in sessions {
            context.out.line(document(session))?;
        }
        return Ok(Exit::Clean);
    }
    let mut table = Table::new([
        ("ID", Align::Left),
        ("CREATED", Align::Left),
        ("LAST EVENT", Align::Left),
        ("EVENTS", Align::Right),
        ("BYTES", Align::Right),
        ("STATE", Align::Left),
        ("TITLE", Align::Left),
        ("CWD", Align::Left),
        ("PARENT", Align::Left),
    ]);
    for session in sessions {
        table.row([
            short(&session.header.id),
            human::time(session.header.created_at),
            session.last_time.map_or("-".into(), human::time),
            human::count(session.events),
            human::bytes(session.bytes),
            session.condition.as_str().to_owned(),
            short(session.title.as_deref().unwrap_or("-")),
            text(session.header.cwd.as_ref()),
            text(session.header.parent_session.as_ref()),
        ]);
    }
    table.print(&mut context.out)?;
    Ok(Exit::Clean)
}

fn text(value: Option<&JsonString<'_>>) -> String {
    value.map_or("-".into(), |value| short(&value.to_lossy()))
}

fn short(text: &str) -> String {
    human::cut(&human::one_line(text), TEXT_COLUMNS).into_owned()
}

fn document(session: &SessionInfo) -> String {
    Object::new()
        .field("id", &session.header.id)
        .field("createdAt", session.header.created_at)
        .field("cwd", session.header.cwd.as_ref())
        .field("events", session.events)
        .field("bytes", session.bytes)
        .field("lastTime", session.last_time)
        .field("title", session.title.as_deref())
        .field("parentSession", session.header.parent_session.as_ref())
        .field("seedLength", session.header.seed_length)
        .field("state", session.condition.as_str())
        .end()
}
