//! The integration tests: one binary, one module for each chapter of the engine's story.

mod backup;
#[path = "../../benches/support/mod.rs"]
mod bench_support;
mod checkpoints;
mod concurrent;
mod containers;
mod crash;
mod damage;
mod doors;
mod faults;
mod format_pin;
mod full_disk;
mod history;
mod layers;
mod meanwhile;
mod model;
#[cfg(feature = "tracing")]
mod observed;
mod patches;
mod processes;
mod reads;
mod redact;
mod repairs;
mod roundtrip;
mod sealed_damage;
mod sealed_list;
mod sealed_sizes;
mod sealing;
mod sessions;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stats;
mod support;
mod upkeep;
mod verdicts;
