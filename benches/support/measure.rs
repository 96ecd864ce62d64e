//! Measures something and its limit side by side, sample by sample, so that a busy machine slows both.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;

/// A benchmark program: criterion's measurements, and the ratios that it cannot express.
pub(crate) struct Bench {
    criterion: Criterion,
    rows: Vec<Row>,
}

struct Row {
    id: String,
    limit: &'static str,
    /// Nanoseconds an iteration: ours, the limit's.
    samples: Vec<(f64, f64)>,
}

impl Bench {
    /// A program that takes criterion's arguments.
    pub(crate) fn new() -> Self {
        let criterion = Criterion::default()
            .sample_size(10)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1))
            .without_plots()
            .configure_from_args();
        Self { criterion, rows: Vec::new() }
    }

    /// Measures `ours` beside `limit`. Both run the given number of iterations and answer the time that counts.
    pub(crate) fn ratio(
        &mut self,
        id: &str,
        limit_name: &'static str,
        mut ours: impl FnMut(u64) -> Duration,
        mut limit: impl FnMut(u64) -> Duration,
    ) {
        let mut samples = Vec::new();
        self.criterion.bench_function(id, |bencher| {
            bencher.iter_custom(|iterations| {
                let (ours, limit) = (ours(iterations), limit(iterations));
                samples.push((nanos_each(ours, iterations), nanos_each(limit, iterations)));
                ours
            });
        });
        if !samples.is_empty() {
            self.rows.push(Row { id: id.to_owned(), limit: limit_name, samples });
        }
    }

    /// Measures `run` beside a fixed time. `prepare` goes before each run, the end of what `run` gives after it; neither counts.
    pub(crate) fn within<T>(
        &mut self,
        id: &str,
        (limit_name, limit): (&'static str, Duration),
        mut prepare: impl FnMut(),
        mut run: impl FnMut() -> T,
    ) {
        let ours = |n| {
            let prepared_run = |_| {
                prepare();
                let start = Instant::now();
                let _given = black_box(run());
                start.elapsed()
            };
            (0..n).map(prepared_run).sum()
        };
        self.ratio(id, limit_name, ours, |n| limit * u32::try_from(n).unwrap_or(u32::MAX));
    }

    /// Prints the ratios.
    pub(crate) fn finish(self) {
        eprintln!("\n{:<32} {:>12} {:>12} {:>8}  limit (medians)", "what", "ours", "limit", "ratio");
        for row in &self.rows {
            let ours = median(row.samples.iter().map(|sample| sample.0));
            let limit = median(row.samples.iter().map(|sample| sample.1));
            let (id, name) = (&row.id, row.limit);
            eprintln!("{id:<32} {:>12} {:>12} {:>8.2}  {name}", show(ours), show(limit), ours / limit);
        }
        self.criterion.final_summary();
    }
}

/// The time that so many runs take.
pub(crate) fn timed(iterations: u64, mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..iterations {
        run();
    }
    start.elapsed()
}

fn nanos_each(time: Duration, iterations: u64) -> f64 {
    time.as_secs_f64() * 1e9 / iterations as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn show(nanos: f64) -> String {
    let (scale, unit) = match nanos {
        n if n < 1e3 => (1.0, "ns"),
        n if n < 1e6 => (1e3, "us"),
        n if n < 1e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{:.1} {unit}", nanos / scale)
}
