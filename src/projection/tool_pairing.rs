//! Where the surface may be cut without parting a tool call from its result (spec section 8.1).
//!
//! Counts by number of blocks, not by call id. Must never fail an event: an unbalanced surface is legal in
//! storage and only refuses the questions asked of it.

use super::Projection;
use super::messages::MessageParts;
use super::snapshot::{Checkpointed, SectionId};
use super::surface::{Surface, splice_one};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Admitted, Event, Placement};
use crate::ids::Seq;

/// The balance of calls and results along the surface.
#[derive(Debug, Clone, Default)]
pub struct ToolPairing {
    /// What each node adds to the count of open calls, in surface order.
    deltas: Vec<i32>,
    cuts: Cuts,
}

/// Answers worked out so far. Appends extend them, a replacement begins anew.
#[derive(Debug, Clone, Default)]
struct Cuts {
    /// Whether the cut after node `i` is balanced.
    balanced: Vec<bool>,
    open_calls: i64,
    /// Position of the first node with more results than calls up to it.
    offender: Option<usize>,
}

impl ToolPairing {
    /// For each node of the surface that this pairing was folded along with: is the cut behind it balanced?
    ///
    /// # Errors
    ///
    /// `Rejected` by rule `tool-pairing` if anywhere results outnumber calls; it names the first such node in
    /// surface order and fails every question about that surface.
    pub fn cuts(&mut self, surface: &Surface) -> Result<&[bool]> {
        self.extend();
        match self.cuts.offender {
            Some(position) => Err(unmatched(surface.nodes().get(position).copied())),
            None => Ok(&self.cuts.balanced),
        }
    }

    /// Whether the cut before a node is balanced.
    ///
    /// # Errors
    ///
    /// As [`cuts`](Self::cuts), or `NotFound` if the node is not on the surface.
    pub fn balanced_before(&mut self, surface: &Surface, node: Seq) -> Result<bool> {
        let cuts = self.cuts(surface)?;
        let position = position_of(surface, node)?;
        Ok(position.checked_sub(1).is_none_or(|before| cuts[before]))
    }

    /// Whether the cut behind a node is balanced.
    ///
    /// # Errors
    ///
    /// As [`balanced_before`](Self::balanced_before).
    pub fn balanced_after(&mut self, surface: &Surface, node: Seq) -> Result<bool> {
        let cuts = self.cuts(surface)?;
        Ok(cuts[position_of(surface, node)?])
    }

    /// Whether it can have been folded along with this surface.
    pub(super) fn is_along(&self, surface: &Surface) -> bool {
        self.deltas.len() == surface.nodes().len()
    }

    pub(super) fn take(&mut self, event: &Event<'_>, placement: &Placement, parts: &MessageParts<'_>) {
        match placement {
            Placement::LogOnly => {}
            Placement::Append => self.deltas.push(delta(event, parts)),
            Placement::Replace(range) => {
                splice_one(&mut self.deltas, range, delta(event, parts));
                self.cuts = Cuts::default();
            }
        }
    }

    fn extend(&mut self) {
        let Cuts { balanced, open_calls, offender } = &mut self.cuts;
        if offender.is_some() {
            return;
        }
        for (position, &delta) in self.deltas.iter().enumerate().skip(balanced.len()) {
            *open_calls += i64::from(delta);
            if *open_calls < 0 {
                *offender = Some(position);
                return;
            }
            balanced.push(*open_calls == 0);
        }
    }
}

/// Pairings are equal when they answer alike, whatever was asked of them before.
impl PartialEq for ToolPairing {
    fn eq(&self, other: &Self) -> bool {
        self.deltas == other.deltas
    }
}

impl Checkpointed for ToolPairing {
    const ID: SectionId = SectionId { code: 4, version: 1 };
    /// The change of each node.
    type Kept = Vec<i32>;

    fn keep(&self) -> Self::Kept {
        self.deltas.clone()
    }

    fn restore(deltas: Self::Kept, _: Seq) -> Option<Self> {
        Some(Self { deltas, cuts: Cuts::default() })
    }
}

impl Projection for ToolPairing {
    fn apply(&mut self, event: &Admitted<'_>) {
        self.take(event.event(), event.placement(), &MessageParts::of(event.event()));
    }
}

fn delta(event: &Event<'_>, parts: &MessageParts<'_>) -> i32 {
    match &*event.type_name {
        "assistant/message" => i32::try_from(parts.tool_calls().count()).unwrap_or(i32::MAX),
        "tool/result" => -1,
        _ => 0,
    }
}

fn position_of(surface: &Surface, node: Seq) -> Result<usize> {
    surface.position_of(node).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "ask for the balance of a cut: the node is not on the surface")
            .with_seq(node)
    })
}

fn unmatched(node: Option<u32>) -> Error {
    let seq = Seq::new(u64::from(node.unwrap_or_default()));
    let message =
        format!("pair tool calls: the tool/result at surface seq {seq} has no matching tool-call before it");
    Error::new(ErrorKind::Rejected, message).with_rule("tool-pairing").with_seq(seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::testing::event;

    const CALLS: &str = r#"{"message":{"content":[{"type":"tool-call"},"tool-call",{"type":"tool-call"}]}}"#;
    const RESULT: &str = r#"{"message":{}}"#;

    fn take(pairing: &mut ToolPairing, event: &Event<'_>, placement: &Placement) {
        pairing.take(event, placement, &MessageParts::of(event));
    }

    fn surface(nodes: u64) -> Surface {
        let mut surface = Surface::default();
        (0..nodes).for_each(|seq| surface.place(Seq::new(seq), &Placement::Append, None));
        surface
    }

    #[test]
    fn a_cut_is_balanced_where_no_call_is_open() {
        let mut pairing = ToolPairing::default();
        take(&mut pairing, &event(0, "user/message", "{}"), &Placement::Append);
        take(&mut pairing, &event(1, "assistant/message", CALLS), &Placement::Append);
        take(&mut pairing, &event(2, "tool/result", RESULT), &Placement::Append);
        assert_eq!(pairing.cuts(&surface(3)).expect("balanced"), [true, false, false]);
        take(&mut pairing, &event(3, "tool/result", RESULT), &Placement::Append);
        let surface = surface(4);
        assert_eq!(pairing.cuts(&surface).expect("balanced"), [true, false, false, true]);
        assert!(pairing.balanced_before(&surface, Seq::new(0)).expect("on the surface"));
        assert!(pairing.balanced_before(&surface, Seq::new(1)).expect("on the surface"));
        assert!(!pairing.balanced_after(&surface, Seq::new(2)).expect("on the surface"));
        let unknown = pairing.balanced_after(&surface, Seq::new(9)).expect_err("not there");
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_first_surplus_result_fails_every_question_until_a_replacement_removes_it() {
        let mut pairing = ToolPairing::default();
        let mut surface = surface(1);
        take(&mut pairing, &event(0, "user/message", "{}"), &Placement::Append);
        assert_eq!(pairing.cuts(&surface).expect("balanced"), [true]);
        for seq in [1, 2] {
            let result = event(seq, "tool/result", RESULT);
            take(&mut pairing, &result, &Placement::Append);
            surface.place(Seq::new(seq), &Placement::Append, None);
        }
        let error = pairing.balanced_before(&surface, Seq::new(0)).expect_err("surplus");
        assert_eq!((error.seq(), error.rule()), (Some(Seq::new(1)), Some("tool-pairing")));
        let summary = event(3, "user/message", "{}");
        take(&mut pairing, &summary, &Placement::Replace(1..3));
        surface.place(Seq::new(3), &Placement::Replace(1..3), None);
        assert_eq!(pairing.cuts(&surface).expect("balanced"), [true, true]);
    }
}
