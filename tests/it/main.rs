//! The integration tests: one binary, one module for each chapter of the engine's story.

mod checkpoints;
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
mod support;
mod verdicts;
