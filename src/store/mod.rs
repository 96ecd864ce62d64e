//! What users hold: a [`Store`] and its [`Session`]s.
//!
//! This layer joins the gate, the projections and the log. It is the only one that gives events to the log, and it
//! gives none that [`admit`](crate::event::admit) did not accept (invariant 5).

mod append;
mod by_id;
mod cancel;
mod catalog;
mod checkpoints;
mod envelopes;
mod headers;
mod ingest;
mod inner;
mod lifecycle;
mod lost_rows;
mod options;
mod outline;
mod places;
mod read;
mod records;
mod runs;
mod seal;
mod session;
mod snapshot;
mod stats;
#[expect(clippy::module_inception, reason = "the store is what this layer is about")]
mod store;
mod summary;
mod upkeep;
mod verify;

pub use append::{AppendOptions, Appended, Draft};
pub use cancel::Cancel;
pub use envelopes::Envelope;
pub use headers::HeaderSnapshot;
pub(crate) use ingest::Ingest;
pub use options::{Clock, StoreOptions};
pub use read::Request;
pub use runs::Events;
pub use seal::Compacted;
pub use session::{Revision, Session};
pub use snapshot::Snapshot;
pub use stats::{FileStats, HeaderStats, ReplacementStats, SegmentStats, Stats, TypeStats};
pub use store::{SessionCondition, SessionInfo, Store, Submission};
pub use verify::{Finding, SessionWarning, VerifyOptions, VerifyReport};
