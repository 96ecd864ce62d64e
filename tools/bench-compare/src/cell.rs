//! One cell of the table, once: so many sessions, so many events a commit, one engine.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::engines::{Engine, Writer};
use crate::trace::{TraceEvent, jsonl};

/// What is written, and in what portions.
pub(crate) struct Cell<'a> {
    /// The events of each session.
    pub(crate) sessions: &'a [Vec<TraceEvent>],
    /// Events of one commit.
    pub(crate) batch: usize,
}

/// What one run of a cell gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Durable events a second, all sessions together.
    pub(crate) events_per_second: f64,
    /// Median of the time from a commit's start to its durability.
    pub(crate) commit_p50: Duration,
    /// Its 99.9th percentile.
    pub(crate) commit_p999: Duration,
    /// Syncs that a commit waited for, divided by the commits.
    pub(crate) syncs_per_commit: f64,
    /// Bytes of all files after the close, divided by those of plain JSONL.
    pub(crate) disk_per_logical: f64,
}

/// What a thread saw.
struct Span {
    start: Instant,
    end: Instant,
    commits: Vec<Duration>,
}

impl Cell<'_> {
    /// Runs the cell in an empty directory.
    pub(crate) fn measure(&self, engine: Engine, dir: &Path) -> Result<Sample> {
        let mut opened = engine.open(dir, self.sessions.len())?;
        let spans = self.run(&mut opened.writers)?;
        let syncs = opened.close()?;
        let start = spans.iter().map(|span| span.start).min().ok_or_else(|| anyhow!("no sessions"))?;
        let end = spans.iter().map(|span| span.end).max().unwrap_or(start);
        let mut commits: Vec<Duration> = spans.into_iter().flat_map(|span| span.commits).collect();
        commits.sort_unstable();
        let events: usize = self.sessions.iter().map(Vec::len).sum();
        let count = commits.len() as u64;
        Ok(Sample {
            events_per_second: events as f64 / (end - start).as_secs_f64(),
            commit_p50: commits[commits.len() / 2],
            commit_p999: commits[commits.len() * 999 / 1000],
            syncs_per_commit: syncs.unwrap_or(count) as f64 / count as f64,
            disk_per_logical: disk_bytes(dir)? as f64 / self.logical_bytes() as f64,
        })
    }

    fn run(&self, writers: &mut [Box<dyn Writer>]) -> Result<Vec<Span>> {
        let barrier = &Barrier::new(writers.len());
        thread::scope(|scope| {
            let threads: Vec<_> = writers
                .iter_mut()
                .zip(self.sessions)
                .map(|(writer, events)| {
                    scope.spawn(move || write(&mut **writer, events, self.batch, barrier))
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().map_err(|_| anyhow!("a writer panicked"))?
            };
            threads.into_iter().map(join).collect()
        })
    }

    fn logical_bytes(&self) -> usize {
        self.sessions.iter().map(|events| jsonl("session-0", events).len()).sum()
    }
}

fn write(writer: &mut dyn Writer, events: &[TraceEvent], batch: usize, barrier: &Barrier) -> Result<Span> {
    let mut commits = Vec::with_capacity(events.len() / batch + 1);
    barrier.wait();
    let start = Instant::now();
    let mut end = start;
    for batch in events.chunks(batch) {
        writer.commit(batch)?;
        let now = Instant::now();
        commits.push(now - end);
        end = now;
    }
    Ok(Span { start, end, commits })
}

fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
