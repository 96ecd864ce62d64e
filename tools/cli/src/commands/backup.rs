//! `backup`: a consistent copy of the store, while a host may be writing to it.

use std::path::PathBuf;
use std::time::Instant;

use crate::cli::Context;
use crate::commands::verify::sentence;
use crate::exit::Exit;
use crate::output::json::Object;
use crate::output::progress::Progress;
use crate::output::{human, note};

/// Make a consistent copy of the store, also while a host is writing
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The copy: a directory that does not exist or is empty
    dir: PathBuf,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let store = context.reader()?;
    let progress = Progress::of_unknown("copying and checking");
    let done = store.snapshot_to(&args.dir)?;
    drop(progress);
    let taken = started.elapsed();
    for finding in &done.findings {
        note(format_args!("sessionlog: the source is damaged: {}", sentence(finding)));
    }
    if !done.findings.is_empty() {
        note("  next: the copy has the same damage; keep an older one, and run `sessionlog verify --deep`");
    }
    if context.out.json() {
        let document = Object::new()
            .field("path", args.dir.display().to_string())
            .field("files", done.files)
            .field("bytes", done.bytes)
            .field("sessions", done.sessions)
            .field("events", done.events)
            .field("seconds", taken)
            .field("findings", done.findings.len())
            .end();
        context.out.line(document)?;
    } else {
        let verdict = match u64::try_from(done.findings.len())? {
            0 => context.out.style().good("sound copy"),
            findings => {
                context.out.style().bad(&format!("copy with {}", human::counted(findings, "finding")))
            }
        };
        let (sessions, events) =
            (human::counted(done.sessions, "session"), human::counted(done.events, "event"));
        let (files, bytes) = (human::counted(done.files, "file"), human::bytes(done.bytes));
        let (dir, taken) =
            (human::printable(&args.dir.display().to_string()).into_owned(), human::duration(taken));
        context
            .out
            .line(format_args!("{verdict} in {dir}: {sessions}, {events}, {files} of {bytes} in {taken}"))?;
    }
    Ok(Exit::findings(!done.findings.is_empty()))
}
