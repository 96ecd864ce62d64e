//! The integration tests: one binary, one module for each chapter of the engine's story.

mod layers;
mod sessions;
mod verdicts;
