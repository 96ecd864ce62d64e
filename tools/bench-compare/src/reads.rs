//! Opening, listing and reading a large store, warm, against SQLite with the same sessions, against zstd alone for the same
//! blocks, and against fixed times. Each row takes ours and its limit in turns, run by run.

use std::fmt;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use sessionlog::{Seq, Session, Store};

use crate::blocks::Blocks;
use crate::common::Common;
use crate::large::{self, Scale};
use crate::report::{self, median, sorted};
use crate::sqlite::{self, Database};
use crate::zipf::Zipf;

/// Single reads of one sample.
const READS: usize = 4_000;
/// Opening is to take no longer.
const OPEN_MAX: Duration = Duration::from_millis(100);
/// Opening and listing this store is to take no longer than [`OPEN_MAX`].
const WIDE: Scale = Scale { sessions: 100_000, events: 2 };

/// Compares opening, listing and reading with SQLite, zstd and fixed times
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of sessions
    #[arg(long, default_value_t = Scale::FULL.sessions)]
    sessions: usize,
    /// Events of each
    #[arg(long, default_value_t = Scale::FULL.events)]
    events: usize,
    /// Events of the session that is scanned
    #[arg(long, default_value_t = 20_000)]
    scanned: usize,
    #[command(flatten)]
    common: Common,
    /// Make store and database, and measure nothing
    #[arg(long)]
    only_make: bool,
}

/// Runs it and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    std::fs::create_dir_all(&arguments.common.dir)?;
    let made = Made::new(arguments)?;
    if arguments.only_make {
        return Ok(());
    }
    let mut table = Table::default();
    let Arguments { sessions, events, scanned, common: Common { runs, dir, seed }, .. } = arguments;
    for _ in 0..*runs.max(&1) {
        opening(&made, &mut table)?;
        listing(&made, &mut table)?;
        single(&made, &mut table)?;
        scanning(&made, &mut table)?;
    }
    println!("{}", report::place(dir)?);
    println!(
        "seed {seed}; {sessions} sessions of {events} events, one of {scanned}; warm; medians of {runs} runs"
    );
    print!("{table}");
    Ok(())
}

/// What is read.
struct Made {
    scale: Scale,
    seed: u64,
    store: PathBuf,
    database: PathBuf,
    long: PathBuf,
    killed: PathBuf,
    wide: PathBuf,
    wide_database: PathBuf,
    copied: PathBuf,
}

impl Made {
    fn new(arguments: &Arguments) -> Result<Self> {
        let Arguments { sessions, events, common: Common { dir, seed, .. }, .. } = arguments;
        let scale = Scale { sessions: *sessions, events: *events };
        let store = large::kept(dir, *seed, scale);
        let database = sqlite::kept(dir, *seed, scale)?;
        let wide = large::kept(dir, *seed, WIDE);
        let wide_database = sqlite::kept(dir, *seed, WIDE)?;
        let long = large::kept_session(dir, *seed, arguments.scanned);
        let killed = large::make_once(&dir.join(format!("killed-{seed}")), |path| {
            large::killed(path, *seed, sessionlog::limits::SEGMENT_BYTES_DEFAULT);
        });
        let copied = dir.join("copied");
        Ok(Self { scale, seed: *seed, store, database, long, killed, wide, wide_database, copied })
    }
}

fn opening(made: &Made, table: &mut Table) -> Result<()> {
    let (_, ours) = timed(|| Store::open_read_only(&made.store))?;
    table.add("open for reading", "100 ms", 1.0, ours, OPEN_MAX);
    let (store, ours) = timed(|| Store::open(&made.store))?;
    store.close()?;
    table.add("open for writing", "100 ms", 1.0, ours, OPEN_MAX);
    let (_, ours) = timed(|| Store::open_read_only(&made.killed))?;
    table.add("open for reading after kill -9", "100 ms", 1.0, ours, OPEN_MAX);
    large::copy(&made.killed, &made.copied);
    let (store, ours) = timed(|| Store::open(&made.copied))?;
    store.close()?;
    table.add("open for writing after kill -9", "100 ms", 1.0, ours, OPEN_MAX);
    std::fs::remove_dir_all(&made.copied)?;
    Ok(())
}

fn listing(made: &Made, table: &mut Table) -> Result<()> {
    let open_and_list = |store: &Path, database: &Path, sessions: usize| {
        let ((store, listed), ours) = timed(|| {
            let store = Store::open_read_only(store)?;
            let listed = store.list()?;
            anyhow::Ok((store, listed))
        })?;
        let ((database, rows), limit) = timed(|| {
            let database = Database::open(database)?;
            let rows = database.sessions()?;
            anyhow::Ok((database, rows))
        })?;
        anyhow::ensure!(listed.len() == sessions && rows.len() == sessions);
        anyhow::ensure!(rows.iter().zip(&listed).all(|(row, info)| row.is(info)), "another answer");
        anyhow::Ok((store, database, ours, limit))
    };
    let (store, database, ours, limit) = open_and_list(&made.store, &made.database, made.scale.sessions)?;
    table.add("open and list", "SQLite", 1.0, ours, limit);
    let (_, ours) = timed(|| store.list())?;
    let (_, limit) = timed(|| database.sessions())?;
    table.add("list", "SQLite", 1.0, ours, limit);
    drop((store, database));
    let (_, _, ours, limit) = open_and_list(&made.wide, &made.wide_database, WIDE.sessions)?;
    table.add("open and list 100,000 sessions", "100 ms", 1.0, ours, OPEN_MAX);
    table.add("open and list 100,000 sessions", "SQLite", 1.0, ours, limit);
    Ok(())
}

/// Which event is read next: session and seq.
type Next<'n> = dyn FnMut(&mut Zipf) -> (usize, usize) + 'n;

fn single(made: &Made, table: &mut Table) -> Result<()> {
    let Scale { sessions: count, events } = made.scale;
    let store = Store::open_read_only(&made.store)?;
    let sessions: Vec<Session> =
        (0..count).map(|n| store.session(&Scale::id(n))).collect::<Result<_, _>>()?;
    let database = Database::open(&made.database)?;
    let ours = |session: usize, seq: usize| Ok(sessions[session].event(Seq::new(seq as u64))?.data.len());
    let theirs = |session: usize, seq: usize| Ok(database.event(session, seq)?.data.len());

    let cached = |order: &mut Zipf| (0, order.even(events.min(100)));
    let [our_time, limit] = medians(made, 1.0, &mut { cached }, [&ours, &theirs])?;
    table.add("one event, unit cached", "SQLite", 3.0, our_time, limit);

    for (what, exponent) in
        [("one event, Zipf 1.0 over sessions", 1.0), ("one event, Zipf 1.2 over sessions", 1.2)]
    {
        let zipf = |order: &mut Zipf| (order.next(), order.even(events));
        let [our_time, limit] = medians(made, exponent, &mut { zipf }, [&ours, &theirs])?;
        table.add(what, "SQLite", 1.0, our_time, limit);
    }

    let mut turn = 0;
    let mut uncached = |order: &mut Zipf| {
        turn = (turn + 7_919) % count;
        (turn, order.even(events))
    };
    let mut blocks = Blocks::of_store(&made.store);
    let units = blocks.unit_count();
    let blocks = std::cell::RefCell::new(&mut blocks);
    let zstd = |session: usize, seq: usize| {
        let unit = (session * 7_919 + seq) % units;
        Ok(blocks.borrow_mut().decompress_unit(unit))
    };
    let [our_time, limit, sqlite] = medians(made, 1.0, &mut uncached, [&ours, &zstd, &theirs])?;
    table.add("one event, uncached", "zstd of a unit", 1.0 / 1.5, our_time, limit);
    table.add("one event, uncached", "SQLite", 0.0, our_time, sqlite);
    Ok(())
}

type Read<'r> = dyn Fn(usize, usize) -> Result<usize> + 'r;

/// The median time of one read of each kind, all in the same order of events.
fn medians<const N: usize>(
    made: &Made,
    exponent: f64,
    next: &mut Next<'_>,
    reads: [&Read<'_>; N],
) -> Result<[Duration; N]> {
    let mut order = Zipf::new(made.seed, made.scale.sessions, exponent);
    let places: Vec<_> = (0..2 * READS).map(|_| next(&mut order)).collect();
    let mut medians = [Duration::ZERO; N];
    for (median, read) in medians.iter_mut().zip(reads) {
        let mut times = Vec::with_capacity(places.len());
        for &(session, seq) in &places {
            let start = Instant::now();
            black_box(read(session, seq)?);
            times.push(start.elapsed());
        }
        // The first half warms up.
        let times = &mut times[READS..];
        times.sort_unstable();
        *median = times[READS / 2];
    }
    Ok(medians)
}

fn scanning(made: &Made, table: &mut Table) -> Result<()> {
    let store = Store::open_read_only(&made.long)?;
    let session = store.session(large::SESSION)?;
    let all = Seq::new(0)..session.next_seq()?;
    let mut blocks = Blocks::of_store(&made.long);
    blocks.decompress_all();
    let mut line = String::new();
    let (_, ours) = timed(|| {
        session.for_each(all.clone(), &mut |event| {
            line.clear();
            event.write_json(&mut line);
            black_box(&line);
            Ok(())
        })
    })?;
    let (_, limit) = timed(|| anyhow::Ok(black_box(blocks.decompress_all())))?;
    table.add("all events of a session as JSON", "zstd of the same", 0.6, ours, limit);
    let (_, ours) = timed(|| {
        session.envelopes(all.clone(), &mut |envelope| {
            black_box(envelope);
            Ok(())
        })
    })?;
    table.add("all envelopes of a session", "zstd of the same", 0.0, ours, limit);
    Ok(())
}

fn timed<T, E>(run: impl FnOnce() -> Result<T, E>) -> Result<(T, Duration), E> {
    let start = Instant::now();
    let result = run()?;
    Ok((result, start.elapsed()))
}

/// What was measured.
#[derive(Default)]
struct Table(Vec<Row>);

struct Row {
    what: &'static str,
    limit: &'static str,
    /// How many times as fast as the limit ours is to be; 0: nothing is asked.
    target: f64,
    /// Seconds: ours, the limit's.
    samples: Vec<(f64, f64)>,
}

impl Table {
    fn add(
        &mut self,
        what: &'static str,
        limit: &'static str,
        target: f64,
        ours: Duration,
        theirs: Duration,
    ) {
        let sample = (ours.as_secs_f64(), theirs.as_secs_f64());
        match self.0.iter_mut().find(|row| (row.what, row.limit) == (what, limit)) {
            Some(row) => row.samples.push(sample),
            None => self.0.push(Row { what, limit, target, samples: vec![sample] }),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["what", "ours", "limit", "times as fast", "min-max", "target", "against"];
        let [what, ours, limit, ratio, spread, target, against] = head;
        writeln!(f, "\n{what:<34} {ours:>10} {limit:>10} {ratio:>14} {spread:>13} {target:>7}  {against}")?;
        for row in &self.0 {
            let ratios = sorted(row.samples.iter().map(|(ours, limit)| limit / ours));
            let middle =
                |of: fn(&(f64, f64)) -> f64| report::duration(median(&sorted(row.samples.iter().map(of))));
            let (ours, limit) = (middle(|sample| sample.0), middle(|sample| sample.1));
            let spread = format!("{:.2}-{:.2}", ratios[0], ratios[ratios.len() - 1]);
            let target = if row.target > 0.0 { format!("{:.2}", row.target) } else { "-".to_owned() };
            let (what, ratio, against) = (row.what, median(&ratios), row.limit);
            writeln!(
                f,
                "{what:<34} {ours:>10} {limit:>10} {ratio:>14.2} {spread:>13} {target:>7}  {against}"
            )?;
        }
        Ok(())
    }
}
