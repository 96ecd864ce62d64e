//! Bytes to values and back. No I/O, no clock.

pub mod compress;
