//! The identifiers that cross module borders. No bare `u64` names a session, an event or a segment.
//!
//! All of them are plain copies with a total order; none can be confused with another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a raw number.
            #[must_use]
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// The raw number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The identifier that follows this one; the highest number, which names nothing, for itself.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// Position of an event in its session, from 0, without gaps (spec section 2.1).
    Seq
}

id! {
    /// Number that stands for a session inside the log; never used twice in one store.
    SessionKey
}

id! {
    /// Number of a segment file, from 1, never used twice in one store.
    SegmentId
}

id! {
    /// Number of one opening for writing; every segment is written in exactly one epoch.
    WriterEpoch
}

/// A place in the log: a byte offset in a segment. Ordered as the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The segment.
    pub segment: SegmentId,
    /// Byte offset from the start of the segment file.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}
