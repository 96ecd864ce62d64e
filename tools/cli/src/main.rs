//! The `sessionlog` command line: a thin face of the library.
//!
//! Reading order: [`cli`] names the commands, each file under [`commands`] is one of them, [`output`] is all
//! that they print, [`report`] the page with plots, [`exit`] is how they end.

mod cli;
mod commands;
mod conversation;
mod exit;
mod interrupt;
mod judging;
mod output;
mod redaction;
mod report;
mod samples;
mod source;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => exit::code(cli.run()),
        Err(error) => exit::usage(&error),
    }
}
