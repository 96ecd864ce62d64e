//! Pure folds over admitted events. Keeps invariant 6: state equals the fold of the log up to its cursor.

mod anomalies;
mod invariants;
mod messages;
mod request_header;
mod snapshot;
mod state;
mod surface;
mod tool_pairing;
mod turns;
mod usage;

pub use anomalies::{Anomalies, Warnings};
pub use invariants::Invariants;
pub(crate) use messages::MessageParts;
pub use messages::{Messages, derived_message};
pub use request_header::{HeaderDecision, HeaderLogger, RequestHeader};
pub(crate) use snapshot::{SectionId, SectionSink, SectionSource};
pub use state::State;
pub use surface::{Replacement, Surface, SurfaceFold, fold_surface};
pub use tool_pairing::ToolPairing;
pub use turns::Turns;
pub use usage::{TokenUsage, Usage};

use crate::event::Admitted;

/// A value derived from a session's events, one event at a time.
///
/// The engine's own projections implement it, and a host can add its own. `apply` must be deterministic and
/// total: the event has passed the gate.
pub trait Projection {
    /// Takes in the next event.
    fn apply(&mut self, event: &Admitted<'_>);
}

#[cfg(test)]
mod testing {
    use std::borrow::Cow;

    use crate::event::Event;
    use crate::ids::Seq;

    /// An event as far as folds that look at type and payload care.
    pub(super) fn event<'a>(seq: u64, type_name: &'a str, data: &'a str) -> Event<'a> {
        Event {
            type_name: Cow::Borrowed(type_name),
            seq: Seq::new(seq),
            time: 0,
            data: Cow::Borrowed(data),
            surface_op: None,
            sources: None,
            ignorable: false,
        }
    }
}

#[cfg(test)]
mod tests;
