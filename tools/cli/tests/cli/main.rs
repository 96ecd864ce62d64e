//! The command line from outside: what is printed, how it ends, and that it keeps its word when killed.

mod append;
mod backup;
mod beside;
mod exits;
mod import;
mod reads;
mod redact;
mod repair;
mod sqlite;
mod stats;
mod support;
mod warnings;
