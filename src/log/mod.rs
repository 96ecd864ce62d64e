//! The segmented append-only log of opaque frames.
