//! Writes the same sessions into sessionlog and into what people use instead, durably, and compares.
//!
//! Every cell is N sessions, a thread each, that commit B events at a time and wait until they are durable. Engines take
//! turns, run by run, each in a directory of its own. Nobody's sync is left out, and sessionlog validates every event.
//!
//! The subcommand `reads` opens, lists and reads a large store instead, beside SQLite and zstd; `resume` resumes a
//! long session, beside a reader of its zstd JSONL.

#[path = "../../../benches/support/blocks.rs"]
mod blocks;
mod cell;
mod common;
mod engines;
#[path = "../../../benches/support/large.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod large;
mod reads;
mod report;
mod resume;
mod sqlite;
#[path = "../../../benches/support/trace/mod.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod trace;
#[path = "../../../benches/support/zipf.rs"]
mod zipf;

use std::path::Path;

use anyhow::Result;
use clap::Parser;

use cell::{Cell, Sample};
use common::Common;
use engines::Engine;
use report::Report;
use trace::{Shape, Trace, TraceEvent};

/// Compares durable appends of sessionlog, plain JSONL and zstd JSONL.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    appends: Arguments,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Reads(reads::Arguments),
    Resume(resume::Arguments),
    #[command(hide = true)]
    Peak(resume::PeakArguments),
}

#[derive(Debug, clap::Args)]
struct Arguments {
    /// Numbers of sessions, a thread each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    threads: Vec<usize>,
    /// Numbers of events per commit
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256])]
    batch: Vec<usize>,
    /// Events of each session
    #[arg(long, default_value_t = 2_000)]
    events: usize,
    #[command(flatten)]
    common: Common,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let CommandLine { command, appends: arguments } = CommandLine::parse();
    match command {
        Some(Command::Reads(arguments)) => return reads::run(&arguments),
        Some(Command::Resume(arguments)) => return resume::run(&arguments),
        Some(Command::Peak(arguments)) => return resume::print_peak(&arguments),
        None => {}
    }
    let Common { runs, dir, seed } = &arguments.common;
    std::fs::create_dir_all(dir)?;
    let sessions = sessions(&arguments);
    let mut report = Report::new(dir, *seed, arguments.events, *runs)?;
    for run in 0..*runs {
        for &threads in &arguments.threads {
            for &batch in &arguments.batch {
                let cell = Cell { sessions: &sessions[..threads], batch };
                for turn in 0..Engine::ALL.len() {
                    let engine = Engine::ALL[(turn + run) % Engine::ALL.len()];
                    let sample = measure(dir, &cell, engine)?;
                    report.add(threads, batch, engine, sample);
                }
            }
        }
    }
    if arguments.json {
        println!("{}", report.to_json())
    } else {
        println!("{report}")
    }
    Ok(())
}

/// The sessions of the largest cell; smaller ones use the first of them.
fn sessions(arguments: &Arguments) -> Vec<Vec<TraceEvent>> {
    let threads = arguments.threads.iter().copied().max().unwrap_or(0);
    let seeds = (0..threads).zip(arguments.common.seed..);
    seeds.map(|(_, seed)| Trace::new(Shape::CODING, seed).take(arguments.events).collect()).collect()
}

fn measure(dir: &Path, cell: &Cell<'_>, engine: Engine) -> Result<Sample> {
    let dir = dir.join("cell");
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir(&dir)?;
    let sample = cell.measure(engine, &dir);
    std::fs::remove_dir_all(&dir)?;
    sample
}
