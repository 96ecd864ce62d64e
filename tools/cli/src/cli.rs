//! The command line as clap reads it, and what every command is given.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use sessionlog::{Seq, Store, StoreOptions};

use crate::commands::{
    append, backup, close, compact, demo, export, fork, headers, import, inspect, ls, repair, replay,
    request, rm, show, stats, verify,
};
use crate::exit::Exit;
use crate::output::Output;

/// Stores, imports, inspects and exports the session logs of AI agents.
#[derive(Debug, Parser)]
#[command(name = "sessionlog", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 all well, 1 findings, 2 usage error, 3 the job could not be done.\n\
                        Results go to stdout, everything else to stderr.")]
pub(crate) struct Cli {
    /// Directory of the store [default: $SESSIONLOG_STORE, else ./sessionlog-store]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    store: Option<PathBuf>,
    /// Print JSON: one document, or one per line
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Import(import::Args),
    Inspect(inspect::Args),
    Ls(ls::Args),
    Show(show::Args),
    Request(request::Args),
    Replay(replay::Args),
    Headers(headers::Args),
    Append(append::Args),
    Fork(fork::Args),
    Close(close::Args),
    Export(export::Args),
    Verify(verify::Args),
    Stats(stats::Args),
    Backup(backup::Args),
    Repair(repair::Args),
    Compact(compact::Args),
    Rm(rm::Args),
}

impl Cli {
    /// Runs the command. What it printed is out before this returns, whatever happened.
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut context = Context { store_dir: store_dir(self.store), out: Output::new(self.json) };
        let result = self.command.run(&mut context);
        let flushed = context.out.flush();
        let exit = result?;
        flushed?;
        Ok(exit)
    }
}

impl Command {
    fn run(self, context: &mut Context) -> anyhow::Result<Exit> {
        match self {
            Self::Demo(args) => demo::run(context, &args),
            Self::Import(args) => import::run(context, &args),
            Self::Inspect(args) => inspect::run(context, &args),
            Self::Ls(args) => ls::run(context, &args),
            Self::Show(args) => show::run(context, &args),
            Self::Request(args) => request::run(context, &args),
            Self::Replay(args) => replay::run(context, &args),
            Self::Headers(args) => headers::run(context, &args),
            Self::Append(args) => append::run(context, &args),
            Self::Fork(args) => fork::run(context, &args),
            Self::Close(args) => close::run(context, &args),
            Self::Export(args) => export::run(context, &args),
            Self::Verify(args) => verify::run(context, &args),
            Self::Stats(args) => stats::run(context, &args),
            Self::Backup(args) => backup::run(context, &args),
            Self::Repair(args) => repair::run(context, &args),
            Self::Compact(args) => compact::run(context, &args),
            Self::Rm(args) => rm::run(context, &args),
        }
    }
}

/// What a command works with.
pub(crate) struct Context {
    store_dir: PathBuf,
    /// Stdout.
    pub(crate) out: Output,
}

impl Context {
    /// Directory of the store, which need not exist.
    pub(crate) fn store_dir(&self) -> &Path {
        &self.store_dir
    }

    /// The store for reading: takes no lock and writes nothing.
    pub(crate) fn reader(&self) -> sessionlog::Result<Store> {
        Store::open_read_only(&self.store_dir)
    }

    /// The store for writing. It seals when it is told to: commands are short, and do the same each time.
    pub(crate) fn writer(&self, create: bool) -> sessionlog::Result<Store> {
        StoreOptions::new().create(create).sealing(false).open(&self.store_dir)
    }
}

/// Reads a seq argument.
pub(crate) fn seq(text: &str) -> Result<Seq, String> {
    text.parse().map(Seq::new).map_err(|_| "a seq is an integer from 0".to_owned())
}

fn store_dir(given: Option<PathBuf>) -> PathBuf {
    let from_environment = || std::env::var_os("SESSIONLOG_STORE").filter(|dir| !dir.is_empty());
    given.or_else(|| from_environment().map(PathBuf::from)).unwrap_or_else(|| "sessionlog-store".into())
}
