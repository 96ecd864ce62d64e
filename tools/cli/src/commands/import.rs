//! `import`: brings logs into the store, judging each. One bad log never stops the others.
//!
//! Threads take the sources in the order of the plan; what is printed keeps that order.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use sessionlog::import::{Importer, JudgeOptions, PlannedSource, SourceFormat, SourceReport, Verdict};
use sessionlog::{ErrorKind, Store};

use crate::cli::Context;
use crate::exit::Exit;
use crate::judging::{refusal_sentence, repair_sentence};
use crate::output::json::{Object, Raw};
use crate::output::progress::Progress;
use crate::output::table::{Align, Table};
use crate::output::{Output, Style, human};
use crate::source::{Input, all_done, tell_ignored, tell_waiting, unreadable};

/// Import logs: files, databases, directories of any depth, - for stdin
#[derive(Debug, clap::Args)]
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
    let importer = importer(args)?;
    let plan = importer.plan(&inputs.iter().map(|input| input.path().to_owned()).collect::<Vec<_>>());
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
        progress: Progress::of_bytes(plan.sources.iter().map(|planned| planned.source.bytes).sum()),
    };
    let mut tally = Tally::default();
    for (path, error) in plan.unreadable {
        let shown = path.display().to_string();
        tally.fail(&mut context.out, &shown, unreadable(&path, error))?;
    }
    let done = job.run(args, &mut tally, &mut context.out);
    drop(job);
    // What was taken in becomes durable, and is told, whatever happened to the rest.
    let closed = store.map_or(Ok(()), Store::close);
    tally.print(&mut context.out, started.elapsed())?;
    done?;
    closed?;
    all_done(tally.failures)?;
    Ok(Exit::findings(tally.refused > 0))
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
    progress: Progress,
}

/// What became of one source, ready to be printed: the judgement itself is gone by then.
struct Done {
    line: Option<String>,
    verdict: Verdict,
    reason: Option<&'static str>,
    events: u64,
    bytes: u64,
}

impl Job<'_> {
    fn run(&self, args: &Args, tally: &mut Tally, out: &mut Output) -> anyhow::Result<()> {
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        let jobs = args.jobs.map_or_else(processors, usize::from).min(self.sources.len());
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            for _ in 0..jobs {
                let sender = sender.clone();
                scope.spawn(move || self.work(&sender));
            }
            drop(sender);
            let collected = self.collect(&receiver, args.stop_on_error, tally, out);
            self.stopped.store(true, Ordering::Relaxed);
            collected
        })
    }

    fn work(&self, sender: &Sender<Outcome>) {
        while !self.stopped.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(planned) = self.sources.get(index) else { return };
            if sender.send((index, self.take(planned))).is_err() {
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
            verdict: judgement.verdict(),
            reason: refused.or(judgement.repair.as_ref().map(|repair| repair.kind.as_str())),
            events: judgement.events().unwrap_or(0),
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
        let place = report.id.as_ref().map_or(path.clone(), |id| format!("{path}, session {id}"));
        Some(format!("{verdict}  {}: {}", human::one_line(&place), human::one_line(&why)))
    }

    fn shown(&self, path: &Path) -> String {
        let input = self.inputs.iter().find(|input| input.path() == path);
        input.map_or_else(|| path.display().to_string(), |input| input.shown(path))
    }

    /// Prints what is done, in the order of the plan, and adds it up.
    fn collect(
        &self,
        done: &Receiver<Outcome>,
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
                match outcome {
                    Ok(done) => {
                        if let Some(line) = &done.line {
                            self.progress.aside(|| out.line_now(line))?;
                        }
                        tally.add(&done);
                    }
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

/// The sums over all sources.
#[derive(Default)]
struct Tally {
    accepted: u64,
    repaired: u64,
    refused: u64,
    events: u64,
    bytes: u64,
    /// Sources and events by verdict and reason.
    by_reason: BTreeMap<(&'static str, &'static str), (u64, u64)>,
    /// Why sources could not be judged, or not be brought in.
    failures: Vec<anyhow::Error>,
}

impl Tally {
    fn add(&mut self, done: &Done) {
        let counter = match done.verdict {
            Verdict::Accept => &mut self.accepted,
            Verdict::Repair => &mut self.repaired,
            Verdict::Refuse => &mut self.refused,
        };
        *counter += 1;
        self.events += done.events;
        self.bytes += done.bytes;
        let row = self.by_reason.entry((done.verdict.as_str(), done.reason.unwrap_or_default())).or_default();
        row.0 += 1;
        row.1 += done.events;
    }

    /// Counts a source that could not be judged, or not be brought in; a script hears of it at once.
    fn fail(&mut self, out: &mut Output, path: &str, error: anyhow::Error) -> io::Result<()> {
        if out.json() {
            out.line_now(Object::new().field("path", path).field("error", format!("{error:#}")).end())?;
        }
        self.failures.push(error);
        Ok(())
    }

    fn print(&self, out: &mut Output, taken: Duration) -> io::Result<()> {
        let failed = u64::try_from(self.failures.len()).unwrap_or(u64::MAX);
        let sources = self.accepted + self.repaired + self.refused + failed;
        if out.json() {
            let summary = Object::new()
                .field("sources", sources)
                .field("accepted", self.accepted)
                .field("repaired", self.repaired)
                .field("refused", self.refused)
                .field("events", self.events)
                .field("bytes", self.bytes)
                .field("seconds", taken)
                .end();
            return out.line(Object::new().field("summary", Raw(&summary)).end());
        }
        let mut table = Table::new([
            ("VERDICT", Align::Left),
            ("REASON", Align::Left),
            ("LOGS", Align::Right),
            ("EVENTS", Align::Right),
        ]);
        for verdict in [Verdict::Accept, Verdict::Repair, Verdict::Refuse].map(Verdict::as_str) {
            for ((_, reason), (logs, events)) in self.by_reason.iter().filter(|((of, _), _)| *of == verdict) {
                table.row([verdict.into(), (*reason).into(), human::count(*logs), human::count(*events)]);
            }
        }
        table.print(out)?;
        let (logs, bytes, taken) =
            (human::counted(sources, "log"), human::bytes(self.bytes), human::duration(taken));
        out.line(format_args!("{logs}, {}, {bytes} in {taken}", human::counted(self.events, "event")))
    }
}

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
