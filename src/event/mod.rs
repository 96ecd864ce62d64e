//! The event model and its single door: a candidate becomes an [`Admitted`] event here or nowhere.
//!
//! Pure: no I/O, no clock. Keeps invariant 5: no event exists that [`admit`] did not accept.

mod admit;
mod envelope;
mod header_line;
pub mod json;
mod legacy;
mod message;
mod model;
mod normalise;
mod payload;
mod request_header;
mod session_header;
mod surface_rules;
mod turn_rules;
mod verdict;
mod vocabulary;

pub use admit::admit;
pub use envelope::{parse_draft, parse_record};
pub use legacy::{legacy_kind, legacy_refusal};
pub use model::{Admitted, Candidate, Event, Origin, Placement, Provenance, SessionState, SurfaceOp};
pub use payload::Payload;
pub use request_header::{CanonicalHeader, HeaderReason};
#[cfg(feature = "sqlite")]
pub(crate) use session_header::check_format_version;
pub use session_header::{SessionHeader, parse_header_line};
pub use verdict::{Family, Refusal, RefusalKind, RepairKind, Warning, WarningKind};
pub use vocabulary::{KNOWN_TYPES, Vocabulary, code_of, is_surface_type, name_of};

#[cfg(test)]
mod tests;
