//! `headers`: the request headers of a session and what they cost.

use crate::cli::Context;
use crate::exit::Exit;
use crate::output::human;
use crate::output::json::Object;
use crate::output::table::{Align, Table};

/// List the request headers: reason, size, and what changed since the one before
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session
    id: String,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let store = context.reader()?;
    let headers = store.session(&args.id)?.headers()?;
    if context.out.json() {
        for header in &headers {
            let document = Object::new()
                .field("seq", header.seq)
                .field("reason", &header.reason)
                .field("startsSeries", header.starts_series)
                .field("bytes", header.bytes)
                .field("storedBytes", header.stored_bytes)
                .field("changed", header.changed.as_slice())
                .field("hash", &header.hash)
                .end();
            context.out.line(document)?;
        }
        return Ok(Exit::Clean);
    }
    let mut table = Table::new([
        ("SEQ", Align::Right),
        ("REASON", Align::Left),
        ("SERIES", Align::Left),
        ("BYTES", Align::Right),
        ("STORED", Align::Right),
        ("CHANGED", Align::Left),
        ("HASH", Align::Left),
    ]);
    for header in &headers {
        table.row([
            header.seq.to_string(),
            human::one_line(&header.reason),
            if header.starts_series { "starts" } else { "" }.to_owned(),
            human::bytes(header.bytes),
            header.stored_bytes.map_or("-".into(), human::bytes),
            header.changed.join(", "),
            human::cut(&header.hash, 13).into_owned(),
        ]);
    }
    table.print(&mut context.out)?;
    Ok(Exit::Clean)
}
