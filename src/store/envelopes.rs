//! Events without their payloads: types, times, surface ops and sources of any number of events.
//!
//! Must never decode a payload of a sealed file, so such a read costs a part of a full one, and works where payloads are
//! damaged.

use std::ops::Range;

use super::records::{surface_op_of, type_name_of};
use super::runs::Reading;
use super::session::Session;
use crate::Result;
use crate::event::SurfaceOp;
use crate::format::Sources;
use crate::ids::Seq;

/// An event without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The `type` member.
    pub type_name: &'a str,
    /// Position in the session.
    pub seq: Seq,
    /// Milliseconds since the Unix epoch; may go backwards.
    pub time: i64,
    /// How the event changes the surface.
    pub surface_op: Option<SurfaceOp>,
    /// `sourceEventSeqs`: the events that this one derives from, in the given order.
    pub sources: Option<Sources<'a>>,
    /// Readers that do not know the type may pass over it.
    pub ignorable: bool,
}

impl Session {
    /// Calls `each` with the envelope of every event whose seq is in `range`, in order. A range beyond the end is cut. Of sealed
    /// files no payload is decoded.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) at the first event whose envelope is damaged; what `each` returns.
    pub fn envelopes(
        &self,
        range: Range<Seq>,
        each: &mut dyn FnMut(Envelope<'_>) -> Result<()>,
    ) -> Result<()> {
        let reading = Reading { want: &|_, _| false, keeps: false };
        self.read_range(range, reading, &mut |seq, record| {
            each(Envelope {
                type_name: type_name_of(seq, record.event_type)?,
                seq,
                time: record.time_ms,
                surface_op: surface_op_of(record.surface_op),
                sources: record.sources,
                ignorable: record.ignorable,
            })
        })
    }
}
