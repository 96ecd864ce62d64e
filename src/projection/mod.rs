//! Pure folds over admitted events. Keeps invariant 6: state equals the fold of the log up to its cursor.

use crate::event::Admitted;

/// A value derived from a session's events, one event at a time.
///
/// The engine's own projections implement it, and a host can add its own. `apply` must be deterministic and
/// total: the event has passed the gate.
pub trait Projection {
    /// Takes in the next event.
    fn apply(&mut self, event: &Admitted<'_>);
}
