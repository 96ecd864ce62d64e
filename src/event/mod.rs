//! The event model and its single door: a candidate becomes an [`Admitted`] event here or nowhere.
//!
//! Pure: no I/O, no clock. Keeps invariant 5: no event exists that [`admit`] did not accept.

pub mod json;
mod model;
mod verdict;

pub use model::{Admitted, Candidate, Event, Origin, Placement, Provenance, SessionState, SurfaceOp};
pub use verdict::{Family, Refusal, RefusalKind, RepairKind, Warning, WarningKind};
