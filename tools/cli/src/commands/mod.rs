//! The commands, a file each: its arguments and what it does with them.

pub(crate) mod append;
pub(crate) mod backup;
pub(crate) mod close;
pub(crate) mod compact;
pub(crate) mod demo;
pub(crate) mod export;
pub(crate) mod fork;
pub(crate) mod headers;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod repair;
pub(crate) mod replay;
pub(crate) mod request;
pub(crate) mod rm;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod verify;
