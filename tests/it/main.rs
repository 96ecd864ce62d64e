//! The integration tests, one binary; modules read as a story.

mod layers;
mod sessions;
