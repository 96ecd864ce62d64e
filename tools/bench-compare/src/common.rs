//! What every comparison is told.

use std::path::PathBuf;

/// Where, what from, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Times that each row is measured
    #[arg(long, default_value_t = 5)]
    pub(crate) runs: usize,
    /// Where the files are made, on the disk to be measured; large stores are kept for the next time
    #[arg(long, default_value = "target/bench-compare")]
    pub(crate) dir: PathBuf,
    /// Seed of the sessions
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
}
