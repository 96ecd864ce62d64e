//! `import`: brings logs into the store, judging each. One bad log never stops the others.
//!
//! Threads take the sources in the order of the plan; what is printed keeps that order. They never run further ahead of
//! what is printed than there are threads.

mod tally;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use sessionlog::import::{Importer, JudgeOptions, Judgement, PlannedSource, SourceFormat, SourceReport};
use sessionlog::{Cancel, ErrorKind, Store};

use self::tally::{Done, Tally, Warned};
use crate::cli::Context;
use crate::exit::Exit;
use crate::interrupt;
use crate::judging::{refusal_sentence, repair_hint, repair_sentence, warning_sentence};
use crate::output::json::Object;
use crate::output::progress::Progress;
use crate::output::{Output, Style, human};
use crate::source::{Input, all_done, tell_ignored, tell_waiting, unreadable};

/// Import logs: files, databases, directories of any depth, - for stdin
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ctrl-C ends the import: every log that was told is in, none is in half, and the same command \
                        run again goes on. The exit code is then 3. A second Ctrl-C ends it at once."
)]
pub(crate) struct Args {
    /// What to import
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// What the sources are; by default each is looked at
    #[arg(long, value_enum, default_value = "auto")]
    from: Format,
    /// Sources to work on side by side [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Judge only, store nothing
    #[arg(long)]
    dry_run: bool,
    /// Stop at the first source that is refused
    #[arg(long)]
    stop_on_error: bool,
    /// Take events of this type as log-only; may be repeated
    #[arg(long, value_name = "TYPE")]
    allow_type: Vec<String>,
    /// Replace invalid UTF-8 instead of refusing it
    #[arg(long)]
    lossy_utf8: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Auto,
    Jsonl,
    Sqlite,
}

pub(crate) fn run(context: &mut Context, args: &Args) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let inputs = args.paths.iter().map(|path| Input::new(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let cancel = Cancel::new();
    interrupt::throws(&cancel)?;
    let importer = importer(args)?.cancellable(&cancel);
    let plan = importer.plan(&inputs.iter().map(|input| input.path().to_owned()).collect::<Vec<_>>());
    if plan.cancelled {
        bail!("import interrupted: nothing was stored; run the same command again");
    }
    tell_ignored(&plan);
    let store = open_store(context, args.dry_run)?;
    let job = Job {
        importer: &importer,
        store: store.as_ref(),
        dry_run: args.dry_run,
        sources: &plan.sources,
        inputs: &inputs,
        style: context.out.style(),
        json: context.out.json(),
        next: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        interrupted: AtomicBool::new(false),
        progress: Progress::of_bytes(plan.sources.iter().map(|planned| planned.source.bytes).sum()),
    };
    let mut tally = Tally::default();
    for (path, error) in plan.unreadable {
        let shown = path.display().to_string();
        tally.fail(&mut context.out, &shown, unreadable(&path, error))?;
    }
    let done = job.run(args, &mut tally, &mut context.out);
    let interrupted = job.interrupted.load(Ordering::Relaxed);
    drop(job);
    // What was taken in becomes durable, and is told, whatever happened to the rest.
    let closed = store.map_or(Ok(()), Store::close);
    tally.print(&mut context.out, started.elapsed())?;
    done?;
    closed?;
    if interrupted {
        tally.failures.push(interruption(args.dry_run, tally.taken(), plan.sources.len()));
    }
    all_done(tally.failures)?;
    Ok(Exit::findings(tally.refused > 0))
}

/// What to tell somebody who ended the import.
fn interruption(dry_run: bool, taken: u64, sources: usize) -> anyhow::Error {
    let of = human::counted(u64::try_from(sources).unwrap_or(u64::MAX), "log");
    let taken = human::count(taken);
    match dry_run {
        true => anyhow!("import interrupted: {taken} of {of} were judged and found good; nothing was stored"),
        false => anyhow!(
            "import interrupted: {taken} of {of} are in; run the same command again to go on with the rest"
        ),
    }
}

/// The store to import into; for a dry run one to compare with, if there is one.
fn open_store(context: &Context, dry_run: bool) -> sessionlog::Result<Option<Store>> {
    if !dry_run {
        return context.writer(true).map(Some);
    }
    match context.reader() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        store => store.map(Some),
    }
}

fn importer(args: &Args) -> sessionlog::Result<Importer> {
    let mut options = JudgeOptions { lossy_utf8: args.lossy_utf8, ..JudgeOptions::default() };
    args.allow_type.iter().try_for_each(|name| options.vocabulary.register(name))?;
    let importer = Importer::new(options).on_wait(tell_waiting);
    Ok(match args.from {
        Format::Auto => importer,
        Format::Jsonl => importer.reading(SourceFormat::Jsonl),
        Format::Sqlite => importer.reading(SourceFormat::Sqlite),
    })
}

/// What the threads share.
struct Job<'a> {
    importer: &'a Importer,
    store: Option<&'a Store>,
    dry_run: bool,
    sources: &'a [PlannedSource],
    inputs: &'a [Input],
    style: Style,
    json: bool,
    next: AtomicUsize,
    stopped: AtomicBool,
    interrupted: AtomicBool,
    progress: Progress,
}

impl Job<'_> {
    fn run(&self, args: &Args, tally: &mut Tally, out: &mut Output) -> anyhow::Result<()> {
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        let jobs = args.jobs.map_or_else(processors, usize::from).min(self.sources.len());
        let (sender, receiver) = sync_channel(jobs);
        thread::scope(|scope| {
            for _ in 0..jobs {
                let sender = sender.clone();
                scope.spawn(move || self.work(&sender));
            }
            drop(sender);
            let collected = self.collect(receiver, args.stop_on_error, tally, out);
            self.stopped.store(true, Ordering::Relaxed);
            collected
        })
    }

    fn work(&self, sender: &SyncSender<Outcome>) {
        while !self.stopped.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(planned) = self.sources.get(index) else { return };
            let outcome = self.take(planned);
            if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled) {
                self.interrupted.store(true, Ordering::Relaxed);
                self.stopped.store(true, Ordering::Relaxed);
            }
            if sender.send((index, outcome)).is_err() {
                return;
            }
        }
    }

    fn take(&self, planned: &PlannedSource) -> sessionlog::Result<Done> {
        // A log that extends a stored session is read twice and counted once.
        let told = Cell::new(0);
        let progress =
            |bytes: u64| self.progress.add(bytes.saturating_sub(told.replace(bytes.max(told.get()))));
        let report = match self.store {
            Some(store) if self.dry_run => self.importer.preview(store, planned, &progress)?,
            Some(store) => self.importer.import(store, planned, &progress)?,
            None => self.importer.inspect(planned, &progress)?,
        };
        let judgement = &report.judgement;
        let refused = judgement.refusal.as_ref().map(|refusal| refusal.kind.as_str());
        Ok(Done {
            line: self.line(&report),
            warnings: if self.json { Vec::new() } else { self.warned(&self.place(&report), judgement) },
            verdict: judgement.verdict(),
            reason: refused.or(judgement.repair.as_ref().map(|repair| repair.kind.as_str())),
            events: judgement.events().unwrap_or(0),
            skipped: report.skipped,
            bytes: planned.source.bytes,
        })
    }

    /// What is printed of a source: for scripts of each, for people of those that were not taken as they are.
    fn line(&self, report: &SourceReport) -> Option<String> {
        let path = self.shown(&report.path);
        let judgement = &report.judgement;
        if self.json {
            return Some(document(&path, report));
        }
        let (verdict, why) = match (&judgement.refusal, &judgement.repair) {
            (Some(refusal), _) => (self.style.bad("refuse"), refusal_sentence(refusal)),
            (None, Some(repair)) => (self.style.odd("repair"), repair_sentence(repair)),
            (None, None) => return None,
        };
        let place = self.place(report);
        let next = repair_hint(&path, judgement).map_or(String::new(), |hint| format!("; next: {hint}"));
        Some(format!(
            "{verdict}  {}: {}{}",
            human::one_line(&place),
            human::one_line(&why),
            human::one_line(&next)
        ))
    }

    /// The warnings for people: of each kind the first, and how many there are. Scripts have them in the document.
    fn warned(&self, path: &str, judgement: &Judgement) -> Vec<Warned> {
        let first = |kind| judgement.warnings.listed().iter().find(|warning| warning.kind == kind);
        let warned = judgement.warnings.totals().filter_map(|(kind, times)| {
            let sentence = human::one_line(&format!("{path}: {}", warning_sentence(first(kind)?)));
            let more =
                if times > 1 { format!(" (and {} more)", human::count(times - 1)) } else { String::new() };
            Some(Warned { kind, times, line: format!("{}  {sentence}{more}", self.style.odd("warning")) })
        });
        warned.collect()
    }

    /// The file of a source, and which of its sessions.
    fn place(&self, report: &SourceReport) -> String {
        let path = self.shown(&report.path);
        report.id.as_ref().map_or(path.clone(), |id| format!("{path}, session {id}"))
    }

    fn shown(&self, path: &Path) -> String {
        let input = self.inputs.iter().find(|input| input.path() == path);
        input.map_or_else(|| path.display().to_string(), |input| input.shown(path))
    }

    /// Prints what is done, in the order of the plan, and adds it up.
    fn collect(
        &self,
        done: Receiver<Outcome>,
        stop_on_error: bool,
        tally: &mut Tally,
        out: &mut Output,
    ) -> anyhow::Result<()> {
        let mut early = BTreeMap::new();
        let mut next = 0;
        for (index, outcome) in done {
            early.insert(index, outcome);
            while let Some(outcome) = early.remove(&next) {
                let path = self.shown(&self.sources[next].source.path);
                next += 1;
                self.progress.tell(|| format!("{next} of {} logs", self.sources.len()));
                match outcome {
                    Ok(done) => {
                        let warnings = tally.add(&path, &done);
                        self.progress.aside(|| {
                            done.line.iter().chain(&warnings).try_for_each(|line| out.line_now(line))
                        })?;
                    }
                    Err(error) if error.kind() == ErrorKind::Cancelled => {}
                    Err(error) => {
                        // After a failed write the store takes nothing more from any source.
                        let last = error.kind() == ErrorKind::Closed;
                        self.progress.aside(|| tally.fail(out, &path, error.into()))?;
                        if last {
                            return Ok(());
                        }
                    }
                }
                if stop_on_error && (tally.refused > 0 || !tally.failures.is_empty()) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The place of a source in the plan, and what became of it.
type Outcome = (usize, sessionlog::Result<Done>);

fn document(path: &str, report: &SourceReport) -> String {
    let judgement = &report.judgement;
    Object::new()
        .field("path", path)
        .field("session", report.session())
        .field("verdict", judgement.verdict().as_str())
        .field("events", judgement.events())
        .field("added", report.added)
        .field("skipped", report.skipped)
        .field("repair", judgement.repair.as_ref())
        .field("warnings", judgement.warnings.listed())
        .field("refusal", judgement.refusal.as_ref())
        .end()
}
