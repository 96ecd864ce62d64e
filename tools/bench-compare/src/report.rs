//! The table, and what it was measured on.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cell::Sample;
use crate::engines::Engine;

/// All samples, and where they come from.
pub(crate) struct Report {
    machine: String,
    filesystem: String,
    commit: String,
    seed: u64,
    events: usize,
    runs: usize,
    rows: Vec<Row>,
}

struct Row {
    threads: usize,
    batch: usize,
    engine: Engine,
    samples: Vec<Sample>,
}

impl Report {
    /// An empty report on this machine.
    pub(crate) fn new(dir: &Path, seed: u64, events: usize, runs: usize) -> Result<Self> {
        let (filesystem, commit) = (filesystem(dir)?, commit());
        Ok(Self { machine: machine(), filesystem, commit, seed, events, runs, rows: Vec::new() })
    }

    /// Takes in a sample.
    pub(crate) fn add(&mut self, threads: usize, batch: usize, engine: Engine, sample: Sample) {
        let same = |row: &&mut Row| (row.threads, row.batch, row.engine) == (threads, batch, engine);
        match self.rows.iter_mut().find(same) {
            Some(row) => row.samples.push(sample),
            None => self.rows.push(Row { threads, batch, engine, samples: vec![sample] }),
        }
    }

    /// The report for machines; times in microseconds.
    pub(crate) fn to_json(&self) -> Value {
        let row = |row: &Row| {
            let (min, max) = row.spread();
            json!({
                "threads": row.threads, "batch": row.batch, "engine": row.engine.name(),
                "events_per_second": row.events_per_second(), "min": min, "max": max,
                "commit_p50_us": row.commit_p50_us(), "commit_p999_us": row.commit_p999_us(),
                "syncs_per_commit": row.syncs_per_commit(), "disk_per_logical": row.disk_per_logical(),
            })
        };
        json!({
            "machine": self.machine, "filesystem": self.filesystem, "commit": self.commit, "seed": self.seed,
            "events_per_session": self.events, "runs": self.runs,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// Our events a second divided by those of a row in the same cell.
    fn ratio(&self, row: &Row) -> f64 {
        let ours = self.rows.iter().find(|other| {
            (other.threads, other.batch, other.engine) == (row.threads, row.batch, Engine::Sessionlog)
        });
        ours.map_or(f64::NAN, Row::events_per_second) / row.events_per_second()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, filesystem, commit, seed, events, runs, .. } = self;
        writeln!(f, "{machine}; {filesystem}; commit {commit}")?;
        writeln!(
            f,
            "seed {seed}; {events} events a session; medians of {runs} interleaved runs in one process"
        )?;
        writeln!(
            f,
            "\n{:>8} {:<11} {:>9} {:>19} {:>6} {:>9} {:>10} {:>12} {:>12}",
            "cell",
            "engine",
            "events/s",
            "min-max",
            "ours x",
            "p50 us",
            "p99.9 us",
            "syncs/commit",
            "disk/logical"
        )?;
        for row in &self.rows {
            let (min, max) = row.spread();
            writeln!(
                f,
                "{:>8} {:<11} {:>9.0} {:>19} {:>6.2} {:>9.0} {:>10.0} {:>12.3} {:>12.3}",
                format!("{}x{}", row.threads, row.batch),
                row.engine.name(),
                row.events_per_second(),
                format!("{min:.0}-{max:.0}"),
                self.ratio(row),
                row.commit_p50_us(),
                row.commit_p999_us(),
                row.syncs_per_commit(),
                row.disk_per_logical(),
            )?;
        }
        Ok(())
    }
}

impl Row {
    fn events_per_second(&self) -> f64 {
        self.median(|sample| sample.events_per_second)
    }

    fn commit_p50_us(&self) -> f64 {
        self.median(|sample| sample.commit_p50.as_secs_f64() * 1e6)
    }

    fn commit_p999_us(&self) -> f64 {
        self.median(|sample| sample.commit_p999.as_secs_f64() * 1e6)
    }

    fn syncs_per_commit(&self) -> f64 {
        self.median(|sample| sample.syncs_per_commit)
    }

    fn disk_per_logical(&self) -> f64 {
        self.median(|sample| sample.disk_per_logical)
    }

    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(&sorted(self.samples.iter().map(of)))
    }

    /// The slowest and the fastest run, in events a second.
    fn spread(&self) -> (f64, f64) {
        let rates = self.samples.iter().map(|sample| sample.events_per_second);
        rates.fold((f64::INFINITY, 0.0), |(min, max), rate| (f64::min(min, rate), f64::max(max, rate)))
    }
}

/// Where something is measured: machine, file system, revision.
pub(crate) fn place(dir: &Path) -> Result<String> {
    Ok(format!("{}; {}; commit {}", machine(), filesystem(dir)?, commit()))
}

/// A time in seconds, for people.
pub(crate) fn duration(seconds: f64) -> String {
    let (scale, unit) = match seconds {
        s if s < 1e-6 => (1e9, "ns"),
        s if s < 1e-3 => (1e6, "us"),
        s if s < 1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{:.1} {unit}", seconds * scale)
}

/// Samples, the least first.
pub(crate) fn sorted(samples: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut samples: Vec<f64> = samples.collect();
    samples.sort_by(f64::total_cmp);
    samples
}

/// The middle one of at least one sample.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn machine() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.trim_start_matches(['\t', ' ', ':']);
    format!("{cores} cores of {model}; {} {}", std::env::consts::OS, kernel.trim())
}

/// Kind and device of the file system that holds the directory, as far as the system tells.
fn filesystem(dir: &Path) -> Result<String> {
    let dir = dir.canonicalize()?;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let holding = fields.filter(|fields| fields.len() > 3 && dir.starts_with(fields[1]));
    let mount = holding.max_by_key(|fields| fields[1].len());
    Ok(mount.map_or_else(|| "unknown file system".to_owned(), |m| format!("{} on {} ({})", m[2], m[0], m[3])))
}

/// The revision of the working tree that this was built from.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
    let revision = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    if changed { revision + " with changes" } else { revision }
}
