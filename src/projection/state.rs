//! All projections of one session together: what the gate asks, and what resuming a session needs.

use super::messages::{MessageParts, Messages};
use super::snapshot::{SectionId, SectionSink, SectionSource, get, put};
use super::{Projection, RequestHeader, Surface, ToolPairing, Turns};
use crate::error::Result;
use crate::event::json::{Digest, JsonString};
use crate::event::{Admitted, Candidate, Refusal, SessionState};
use crate::ids::Seq;
use crate::limits::EVENTS_PER_SESSION_MAX;

/// A session folded up to [`next_seq`](SessionState::next_seq).
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    session_id: String,
    next_seq: Seq,
    last_time: Option<i64>,
    surface: Surface,
    request_header: RequestHeader,
    pairing: ToolPairing,
    turns: Turns,
    messages: Messages,
}

impl State {
    /// The state of an empty session.
    #[must_use]
    pub fn new(session_id: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            next_seq: Seq::new(0),
            last_time: None,
            surface: Surface::default(),
            request_header: RequestHeader::default(),
            pairing: ToolPairing::default(),
            turns: Turns::default(),
            messages: Messages::default(),
        }
    }

    /// Time of the last event, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn last_time(&self) -> Option<i64> {
        self.last_time
    }

    /// The model-visible surface.
    #[must_use]
    pub fn visible(&self) -> &Surface {
        &self.surface
    }

    /// The request header in force.
    #[must_use]
    pub fn request_header(&self) -> &RequestHeader {
        &self.request_header
    }

    /// What is open.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Number of messages that the surface derives to.
    #[must_use]
    pub fn message_count(&self) -> usize {
        self.messages.count(&self.surface)
    }

    /// For each surface node: is the cut behind it balanced? See [`ToolPairing::cuts`].
    ///
    /// # Errors
    ///
    /// `Rejected` by rule `tool-pairing` if results outnumber calls anywhere.
    pub fn cuts(&mut self) -> Result<&[bool]> {
        self.pairing.cuts(&self.surface)
    }

    /// Whether the cut before a node is balanced. See [`ToolPairing::balanced_before`].
    ///
    /// # Errors
    ///
    /// As [`cuts`](Self::cuts), or `NotFound` if the node is not on the surface.
    pub fn balanced_before(&mut self, node: Seq) -> Result<bool> {
        self.pairing.balanced_before(&self.surface, node)
    }

    /// Whether the cut behind a node is balanced. See [`ToolPairing::balanced_after`].
    ///
    /// # Errors
    ///
    /// As [`balanced_before`](Self::balanced_before).
    pub fn balanced_after(&mut self, node: Seq) -> Result<bool> {
        self.pairing.balanced_after(&self.surface, node)
    }

    /// The candidates that close an interrupted turn here. See [`Turns::closers`].
    ///
    /// # Errors
    ///
    /// `empty-call-id` or `limit`.
    pub fn closers(&self) -> std::result::Result<Vec<Candidate<'static>>, Refusal> {
        self.turns.closers(self.next_seq, self.last_time.unwrap_or_default())
    }
}

impl State {
    /// Takes in the next event, whose message was taken apart already.
    pub(crate) fn take_in(&mut self, admitted: &Admitted<'_>, parts: &MessageParts<'_>) {
        let event = admitted.event();
        self.next_seq = event.seq.next();
        self.last_time = Some(event.time);
        self.surface.apply(admitted);
        self.request_header.apply(admitted);
        self.pairing.take(event, admitted.placement(), parts);
        self.turns.take(event, parts);
        self.messages.take(event, parts);
    }
}

/// Where the session stands: next seq, time of the last event.
const CURSOR: SectionId = SectionId { code: 1, version: 1 };

impl State {
    /// Writes down all that [`restore`](Self::restore) needs, but for the session's id and the header in force.
    ///
    /// # Errors
    ///
    /// Those of the sink.
    // Format: section 11.3.
    pub(crate) fn snapshot(&self, sink: &mut impl SectionSink) -> Result<()> {
        sink.put(CURSOR, &(self.next_seq.get(), self.last_time))?;
        put(sink, &self.surface)?;
        sink.put(RequestHeader::ID, &self.request_header.seq().map(Seq::get))?;
        put(sink, &self.pairing)?;
        put(sink, &self.turns)?;
        put(sink, &self.messages)
    }

    /// The state that was written down. `header_data` gives the data of the `request/header` event at a seq, and `None` if
    /// that is no such event.
    ///
    /// `None` if a section is missing, of another version, malformed or senseless.
    ///
    /// # Errors
    ///
    /// Those of `header_data`.
    pub(crate) fn restore(
        session_id: &str,
        source: &impl SectionSource,
        header_data: &dyn Fn(Seq) -> Result<Option<String>>,
    ) -> Result<Option<Self>> {
        let Some((state, header_seq)) = Self::restore_but_header(session_id, source) else { return Ok(None) };
        let Some(seq) = header_seq else { return Ok(Some(state)) };
        let header = header_data(seq)?.and_then(|data| RequestHeader::of(seq, data));
        Ok(header.map(|request_header| Self { request_header, ..state }))
    }

    /// The state without its header, and which event carries that.
    fn restore_but_header(session_id: &str, source: &impl SectionSource) -> Option<(Self, Option<Seq>)> {
        let (next_seq, last_time): (u64, Option<i64>) = source.get(CURSOR)?;
        if next_seq > EVENTS_PER_SESSION_MAX || last_time.is_some() != (next_seq > 0) {
            return None;
        }
        let next_seq = Seq::new(next_seq);
        let header_seq: Option<u64> = source.get(RequestHeader::ID)?;
        let header_seq = header_seq.map(Seq::new);
        let state = Self {
            session_id: session_id.to_owned(),
            next_seq,
            last_time,
            surface: get(source, next_seq)?,
            request_header: RequestHeader::default(),
            pairing: get(source, next_seq)?,
            turns: get(source, next_seq)?,
            messages: get(source, next_seq)?,
        };
        let is_sound = header_seq.is_none_or(|seq| seq < next_seq) && state.pairing.is_along(&state.surface);
        is_sound.then_some((state, header_seq))
    }
}

impl Projection for State {
    fn apply(&mut self, event: &Admitted<'_>) {
        self.take_in(event, &MessageParts::of(event.event()));
    }
}

impl SessionState for State {
    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn next_seq(&self) -> Seq {
        self.next_seq
    }

    fn surface(&self) -> &[u32] {
        self.surface.nodes()
    }

    fn position_of(&self, node: Seq) -> Option<usize> {
        self.surface.position_of(node)
    }

    fn rewrite_digest(&self, node: Seq) -> Option<Digest> {
        self.surface.rewrite_digest(node)
    }

    /// Only imports of older shapes ask, and they keep the ids themselves.
    fn message_id(&self, _event: Seq) -> Option<JsonString<'_>> {
        None
    }
}
