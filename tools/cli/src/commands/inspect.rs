//! `inspect`: judges and describes log files without a store. Nothing is written anywhere.

use std::path::PathBuf;

use anyhow::bail;
use sessionlog::import::{Importer, JudgeOptions};

use crate::cli::Context;
use crate::exit::Exit;
use crate::judging;
use crate::output::progress::Progress;
use crate::source::{Input, all_done, tell_ignored, tell_waiting, unreadable};

/// Judge and describe a log file, or every log of a directory or a database, without a store
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A log, a database, a directory, or - for stdin
    file: PathBuf,
    /// Only this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let input = Input::new(&args.file)?;
    let importer = Importer::new(JudgeOptions::default()).on_wait(tell_waiting);
    let plan = importer.plan(&[input.path().to_owned()]);
    tell_ignored(&plan);
    let out = &mut context.out;
    let mut exit = Exit::Clean;
    let mut found = args.session.is_none();
    let mut failures: Vec<_> =
        plan.unreadable.into_iter().map(|(path, error)| unreadable(&path, error)).collect();
    // What a database names its sessions by spares judging the others.
    let wanted = |id: Option<&str>| args.session.is_none() || id == args.session.as_deref();
    for planned in plan.sources.iter().filter(|planned| planned.id().is_none_or(|id| wanted(Some(&id)))) {
        let shown = input.shown(&planned.source.path);
        let progress = Progress::of_bytes(planned.source.bytes);
        progress.tell(|| shown.clone());
        let inspected = importer.inspect(planned, &|bytes| progress.set(bytes, planned.source.bytes));
        drop(progress);
        let report = match inspected {
            Ok(report) => report,
            Err(error) => {
                failures.push(error.into());
                continue;
            }
        };
        if !wanted(report.session()) {
            continue;
        }
        found = true;
        exit = exit.max(Exit::findings(report.judgement.refusal.is_some()));
        if out.json() {
            out.line(judging::document(Some(&shown), report.id.as_deref(), &report.judgement))?;
        } else {
            let style = out.style();
            let place = report.id.as_ref().map_or(shown.clone(), |id| format!("{shown}, session {id}"));
            judging::print(out, style, &place, Some(&shown), &report.judgement)?;
        }
    }
    all_done(failures)?;
    if let Some(id) = args.session.as_ref().filter(|_| !found) {
        bail!("inspect {}: it holds no session {id}", input.shown(input.path()));
    }
    Ok(exit)
}
