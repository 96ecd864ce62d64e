//! The integration tests: one binary, one module for each chapter of the engine's story.

mod concurrent;
mod containers;
mod crash;
mod damage;
mod doors;
mod faults;
mod history;
mod layers;
mod model;
mod roundtrip;
mod sealing;
mod sessions;
#[cfg(feature = "sqlite")]
mod sqlite;
mod support;
mod verdicts;
