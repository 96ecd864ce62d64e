//! Resuming one long session of a store that was closed: from opening to surface, header and next seq. Against a reader that
//! streams the same session as zstd JSONL and folds it to the same answer. And the memory that takes, in a process of its own.
//! And opening and resuming such a session whose writer was killed over a full segment, of which nothing is sealed.
//!
//! Both are warm and take turns, run by run. Before anything is measured, both must give one answer. The reader does no more
//! than that takes: it looks at four fields of a line, and checks nothing but that its JSON is well-formed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write as _};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;
use sessionlog::event::SessionHeader;
use sessionlog::limits::SEGMENT_BYTES_DEFAULT;
use sessionlog::{Session, Store};

use crate::common::Common;
use crate::large;
use crate::report::{self, median, sorted};
use crate::trace::{CREATED_AT_MS, Shape, Trace, header_line};

/// Events of one frame of the JSONL file.
const FRAME_EVENTS: usize = 16;
/// Events of one append.
const BATCH_EVENTS: usize = 256;
/// How many times as fast as the reader resuming is to be.
const TARGET: f64 = 100.0;
/// What opening and resuming may take after a kill.
const KILLED_MAX: Duration = Duration::from_millis(100);

/// The reference trace, and one whose surface only grows.
const SHAPES: [(&str, Shape); 2] = [
    ("coding agent", Shape::CODING),
    (
        "small agent, never compacted",
        Shape { header_bytes: 4 << 10, result_bytes_max: 900, turns_per_compaction: 0 },
    ),
];

/// Compares resuming a long session with reading its zstd JSONL
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Events of the session
    #[arg(long, default_value_t = 300_000)]
    events: usize,
    #[command(flatten)]
    common: Common,
    /// Make stores and files, and measure nothing
    #[arg(long)]
    only_make: bool,
}

/// What the measured processes are started with.
#[derive(Debug, clap::Args)]
pub(crate) struct PeakArguments {
    /// The store whose session is resumed; without it nothing is
    store: Option<PathBuf>,
}

/// Runs it and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    fs::create_dir_all(&arguments.common.dir)?;
    let made: Vec<Made> =
        SHAPES.iter().map(|(name, shape)| Made::new(arguments, name, *shape)).collect::<Result<_>>()?;
    if arguments.only_make {
        return Ok(());
    }
    let Arguments { events, common: Common { runs, dir, seed }, .. } = arguments;
    println!("{}", report::place(dir)?);
    println!(
        "seed {seed}; a session of {events} events; warm; medians of {runs} runs in turns; target {TARGET}x"
    );
    for made in &made {
        println!("\n{}", made.measure(*runs)?);
    }
    Ok(())
}

/// Resumes in this process and prints the most memory that it ever had, in KiB.
pub(crate) fn print_peak(arguments: &PeakArguments) -> Result<()> {
    if let Some(path) = &arguments.store {
        black_box(resume(&Store::open_read_only(path)?)?);
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!("{}", peak.context("no VmHWM")?.trim().trim_end_matches(" kB"));
    Ok(())
}

/// What an agent loop needs to go on.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    surface: Vec<u64>,
    /// The header, canonical.
    header: Option<String>,
    next_seq: u64,
}

fn resume(store: &Store) -> Result<Answer> {
    let session: Session = store.session(large::SESSION)?;
    let header = session.request_header()?.map(|header| header.text().to_owned());
    let surface = session.surface()?.into_iter().map(sessionlog::Seq::get).collect();
    Ok(Answer { surface, header, next_seq: session.next_seq()?.get() })
}

/// The same session in a store and in a file.
struct Made {
    name: &'static str,
    store: PathBuf,
    file: PathBuf,
    /// A store as a killed writer leaves it.
    killed: PathBuf,
}

impl Made {
    fn new(arguments: &Arguments, name: &'static str, shape: Shape) -> Result<Self> {
        let Arguments { events, common: Common { dir, seed, .. }, .. } = arguments;
        let name_in_dir = format!("resume-{}-{events}-{seed}", name.replace([' ', ','], "-"));
        let mut made = Ok(());
        let both = large::make_once(&dir.join(name_in_dir), |path| {
            made = fill(path, Trace::new(shape, *seed), *events);
        });
        made?;
        let name_in_dir = format!("resume-{}-killed-{seed}", name.replace([' ', ','], "-"));
        let killed = large::make_once(&dir.join(name_in_dir), |path| {
            large::killed_amid(path, iter::once(Trace::new(shape, *seed)), SEGMENT_BYTES_DEFAULT);
        });
        Ok(Self { name, store: both.join("store"), file: both.join("session.jsonl.zst"), killed })
    }

    fn measure(&self, runs: usize) -> Result<String> {
        let answer = resume(&Store::open_read_only(&self.store)?)?;
        let (read, line_bytes) = stream(&self.file)?;
        ensure!(answer == read, "{}: the two answers differ", self.name);
        let mut samples: Vec<[f64; 3]> = Vec::new();
        for _ in 0..runs.max(1) {
            let reading = timed(|| resumed(Store::open_read_only(&self.store)?))?;
            let writing = timed(|| resumed(Store::open(&self.store)?))?;
            let theirs = timed(|| stream(&self.file))?;
            samples.push([reading, writing, theirs].map(|time| time.as_secs_f64()));
        }
        let mut text = format!(
            "{}: {:.1} MB of JSON lines, {:.1} MB as zstd, {} surface nodes, header of {} bytes",
            self.name,
            megabytes(line_bytes),
            megabytes(fs::metadata(&self.file)?.len()),
            answer.surface.len(),
            answer.header.as_ref().map_or(0, String::len),
        );
        let theirs = sorted(samples.iter().map(|sample| sample[2]));
        for (what, column) in [("open for reading and resume", 0), ("open for writing and resume", 1)] {
            let ours = sorted(samples.iter().map(|sample| sample[column]));
            let ratios = sorted(samples.iter().map(|sample| sample[2] / sample[column]));
            write!(
                text,
                "\n  {what:<28} {:>9}   reader {:>9}   {:>6.0}x ({:.0}-{:.0})",
                report::duration(median(&ours)),
                report::duration(median(&theirs)),
                median(&ratios),
                ratios[0],
                ratios[ratios.len() - 1]
            )?;
        }
        self.write_peaks(runs, answer.surface.len(), &mut text)?;
        self.write_killed(runs, &mut text)?;
        Ok(text)
    }

    /// Opening and resuming after a kill: what stands behind the last checkpoint is folded.
    fn write_killed(&self, runs: usize, text: &mut String) -> Result<()> {
        let copied = self.killed.with_extension("copied");
        let mut samples: Vec<[f64; 4]> = Vec::new();
        let mut next_seq = 0;
        for _ in 0..runs.max(1) {
            large::copy(&self.killed, &copied);
            let (reading, read) = opened_and_resumed(|| Store::open_read_only(&self.killed), &mut next_seq)?;
            let (writing, written) = opened_and_resumed(|| Store::open(&copied), &mut next_seq)?;
            samples.push([reading, read, writing, written]);
        }
        fs::remove_dir_all(&copied)?;
        let [reading, read, writing, written] = [0, 1, 2, 3]
            .map(|column| report::duration(median(&sorted(samples.iter().map(|sample| sample[column])))));
        write!(
            text,
            "\n  open and resume after kill -9  for reading {reading} + {read}, for writing {writing} + {written}; target {}; {next_seq} events",
            report::duration(KILLED_MAX.as_secs_f64())
        )?;
        Ok(())
    }

    fn write_peaks(&self, runs: usize, nodes: usize, text: &mut String) -> Result<()> {
        let mut more = Vec::new();
        let mut bare = Vec::new();
        for _ in 0..runs.max(1) {
            let empty = peak_kib(None)?;
            more.push(peak_kib(Some(&self.store))? - empty);
            bare.push(empty);
        }
        let (more, bare) = (sorted(more.into_iter()), sorted(bare.into_iter()));
        #[allow(clippy::cast_precision_loss, reason = "far fewer nodes than that")]
        let allowed = 2048.0 + nodes as f64 * 8.0 / 1024.0;
        write!(
            text,
            "\n  peak memory                  {:.0} KiB ({:.0}-{:.0}) above the {:.0} of an empty process; target {allowed:.0}",
            median(&more),
            more[0],
            more[more.len() - 1],
            median(&bare),
        )?;
        Ok(())
    }
}

/// The peak of a process of this program that resumes the session, or does nothing.
fn peak_kib(store: Option<&Path>) -> Result<f64> {
    let output = Command::new(std::env::current_exe()?).arg("peak").args(store).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

/// Writes a store with one session, compacted and closed, and the session as JSONL.
fn fill(dir: &Path, mut trace: Trace, events: usize) -> Result<()> {
    fs::create_dir_all(dir)?;
    let store = Store::open(dir.join("store"))?;
    let session = store.create_session(SessionHeader::new(large::SESSION, CREATED_AT_MS))?;
    let mut file = File::create(dir.join("session.jsonl.zst"))?;
    let mut text = header_line(large::SESSION);
    for start in (0..events).step_by(BATCH_EVENTS) {
        let batch: Vec<_> = trace.by_ref().take(BATCH_EVENTS.min(events - start)).collect();
        large::append(&session, &batch, BATCH_EVENTS);
        for (frame, from) in batch.chunks(FRAME_EVENTS).zip((start..).step_by(FRAME_EVENTS)) {
            frame.iter().zip(from..).for_each(|(event, seq)| event.write_line(seq as u64, &mut text));
            file.write_all(&zstd::bulk::compress(text.as_bytes(), 3)?)?;
            text.clear();
        }
    }
    drop(session);
    store.compact()?;
    store.close()?;
    Ok(())
}

/// An event as far as the reader looks at it.
#[derive(Deserialize)]
struct Line<'l> {
    #[serde(rename = "type")]
    type_name: &'l str,
    seq: u64,
    #[serde(borrow)]
    data: &'l RawValue,
    #[serde(borrow, rename = "surfaceOp")]
    surface_op: Option<&'l RawValue>,
}

#[derive(Deserialize)]
struct Replace {
    start: u64,
    end: u64,
}

#[derive(Deserialize)]
struct HeaderData<'l> {
    #[serde(borrow)]
    header: &'l RawValue,
}

/// Folds a file line by line; also how many bytes the lines have.
fn stream(path: &Path) -> Result<(Answer, u64)> {
    let mut lines = BufReader::with_capacity(1 << 16, zstd::Decoder::new(File::open(path)?)?);
    let mut text = Vec::new();
    let (mut surface, mut header_data, mut next_seq) = (Vec::new(), String::new(), 0);
    let mut bytes = lines.read_until(b'\n', &mut text)? as u64;
    loop {
        text.clear();
        match lines.read_until(b'\n', &mut text)? {
            0 => break,
            read => bytes += read as u64,
        }
        let line: Line<'_> = serde_json::from_slice(&text)?;
        next_seq = line.seq + 1;
        if line.type_name == "request/header" {
            header_data.clear();
            header_data.push_str(line.data.get());
        }
        match line.surface_op.map(RawValue::get) {
            None => {}
            Some(r#""append""#) => surface.push(line.seq),
            Some(replace) => {
                let Replace { start, end } = serde_json::from_str(replace)?;
                let place = |node| surface.iter().position(|other| *other == node).context("no such node");
                let range = place(start)?..=place(end)?;
                surface.splice(range, [line.seq]);
            }
        }
    }
    // The trace writes headers canonical.
    let header: Option<HeaderData<'_>> =
        (!header_data.is_empty()).then(|| serde_json::from_str(&header_data)).transpose()?;
    let header = header.map(|data| data.header.get().to_owned());
    Ok((Answer { surface, header, next_seq }, bytes))
}

/// Seconds that opening takes, and resuming then.
fn opened_and_resumed(
    open: impl FnOnce() -> sessionlog::Result<Store>,
    next_seq: &mut u64,
) -> Result<(f64, f64)> {
    let start = Instant::now();
    let store = open()?;
    let opening = start.elapsed();
    *next_seq = resume(&store)?.next_seq;
    let both = start.elapsed();
    Ok((opening.as_secs_f64(), (both - opening).as_secs_f64()))
}

/// The store stays open: closing it is not measured.
fn resumed(store: Store) -> Result<(Store, Answer)> {
    let answer = resume(&store)?;
    Ok((store, answer))
}

fn timed<T>(run: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let start = Instant::now();
    let result = black_box(run()?);
    let elapsed = start.elapsed();
    drop(result);
    Ok(elapsed)
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
