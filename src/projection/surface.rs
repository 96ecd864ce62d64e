//! The model-visible surface: one ordered array of seqs (spec section 5).
//!
//! Dense and scanned in blocks: nothing beside the array says where a node stands. Must never look at a
//! payload, and keeps no history: whoever wants the replacements watches them go by.

use super::Projection;
use super::snapshot::{Checkpointed, SectionId, ascending, seqs, steps};
use crate::event::json::Digest;
use crate::event::{Admitted, Placement};
use crate::ids::Seq;

/// Nodes compared at a time, without a branch, so that the comparison runs in vector registers.
const BLOCK_NODES: usize = 64;

/// The surface of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surface {
    nodes: Vec<u32>,
    replace_generation: u64,
    digests: RewriteDigests,
}

/// One committed replacement, as a complete fold reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// The event that took the place.
    pub seq: Seq,
    /// First node shadowed, by position.
    pub start: Seq,
    /// Last node shadowed, by position.
    pub end: Seq,
    /// All nodes shadowed, in surface order.
    pub shadowed: Vec<Seq>,
}

/// What [`fold_surface`] makes of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SurfaceFold {
    /// The nodes in surface order.
    pub nodes: Vec<u32>,
    /// The replacements in the order of their events.
    pub replacements: Vec<Replacement>,
}

/// Folds a whole log and reports each replacement. The same code as the incremental [`Surface`].
pub fn fold_surface<'e, 'a: 'e>(events: impl IntoIterator<Item = &'e Admitted<'a>>) -> SurfaceFold {
    let mut surface = Surface::default();
    let mut replacements = Vec::new();
    for event in events {
        replacements.extend(surface.replacement(event.event().seq, event.placement()));
        surface.apply(event);
    }
    SurfaceFold { nodes: surface.nodes, replacements }
}

impl Surface {
    /// The nodes in surface order.
    #[must_use]
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Number of replacements committed so far.
    #[must_use]
    pub fn replace_generation(&self) -> u64 {
        self.replace_generation
    }

    /// Position of a node, by linear search.
    #[must_use]
    pub fn position_of(&self, node: Seq) -> Option<usize> {
        let node = u32::try_from(node.get()).ok()?;
        let (blocks, rest) = self.nodes.as_chunks::<BLOCK_NODES>();
        let holds = |block: &[u32; BLOCK_NODES]| block.iter().fold(false, |found, &n| found | (n == node));
        let (start, block) = match blocks.iter().position(holds) {
            Some(i) => (i * BLOCK_NODES, &blocks[i][..]),
            None => (self.nodes.len() - rest.len(), rest),
        };
        block.iter().position(|&n| n == node).map(|i| start + i)
    }

    /// What a rewrite of this node must keep; only a `tool/result` on the surface has it.
    #[must_use]
    pub fn rewrite_digest(&self, node: Seq) -> Option<Digest> {
        let digest = self.digests.get(u32::try_from(node.get()).ok()?)?;
        self.position_of(node).map(|_| digest)
    }

    /// The record of the replacement that applying an event with this placement will commit.
    #[must_use]
    pub fn replacement(&self, seq: Seq, placement: &Placement) -> Option<Replacement> {
        let Placement::Replace(range) = placement else { return None };
        let shadowed: Vec<Seq> =
            self.nodes.get(range.clone())?.iter().map(|&n| Seq::new(u64::from(n))).collect();
        Some(Replacement { seq, start: *shadowed.first()?, end: *shadowed.last()?, shadowed })
    }

    pub(crate) fn place(&mut self, seq: Seq, placement: &Placement, digest: Option<Digest>) {
        let node = node_of(seq);
        match placement {
            Placement::LogOnly => return,
            Placement::Append => self.nodes.push(node),
            Placement::Replace(range) => {
                splice_one(&mut self.nodes, range, node);
                self.replace_generation += 1;
            }
        }
        if let Some(digest) = digest {
            self.digests.push(node, digest);
        }
        self.digests.prune(&self.nodes);
    }
}

impl Projection for Surface {
    fn apply(&mut self, event: &Admitted<'_>) {
        self.place(event.event().seq, event.placement(), event.rewrite_digest());
    }
}

impl Checkpointed for Surface {
    const ID: SectionId = SectionId { code: 2, version: 1 };
    /// Replacements; nodes; seqs and digests of rewritable nodes.
    type Kept = (u64, Vec<i32>, Vec<i32>, Vec<Digest>);

    fn keep(&self) -> Self::Kept {
        let RewriteDigests { seqs, digests } = &self.digests;
        (self.replace_generation, steps(&self.nodes), steps(seqs), digests.clone())
    }

    fn restore((replace_generation, nodes, digest_seqs, digests): Self::Kept, next_seq: Seq) -> Option<Self> {
        let nodes = seqs(nodes, next_seq)?;
        let digests = RewriteDigests { seqs: ascending(digest_seqs, next_seq)?, digests };
        let sound = nodes.len() as u64 <= next_seq.get()
            && replace_generation <= next_seq.get()
            && digests.seqs.len() == digests.digests.len();
        sound.then_some(Self { nodes, replace_generation, digests })
    }
}

/// The digests of `tool/result` nodes, ascending by seq. Digests of shadowed nodes stay until they are the
/// majority, so that a replacement never pays for more than the splice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RewriteDigests {
    seqs: Vec<u32>,
    digests: Vec<Digest>,
}

impl RewriteDigests {
    /// Entries below which pruning is not worth its while.
    const PRUNE_MIN: usize = 1024;

    fn push(&mut self, node: u32, digest: Digest) {
        self.seqs.push(node);
        self.digests.push(digest);
    }

    fn get(&self, node: u32) -> Option<Digest> {
        self.seqs.binary_search(&node).ok().map(|i| self.digests[i])
    }

    fn prune(&mut self, nodes: &[u32]) {
        if self.seqs.len() <= Self::PRUNE_MIN.max(2 * nodes.len()) {
            return;
        }
        let mut live = nodes.to_vec();
        live.sort_unstable();
        let mut live = live.into_iter().peekable();
        let mut kept = 0;
        for i in 0..self.seqs.len() {
            while live.next_if(|&node| node < self.seqs[i]).is_some() {}
            if live.peek() == Some(&self.seqs[i]) {
                self.seqs[kept] = self.seqs[i];
                self.digests[kept] = self.digests[i];
                kept += 1;
            }
        }
        self.seqs.truncate(kept);
        self.digests.truncate(kept);
    }
}

/// The array element that stands for an event. The gate admits no seq beyond 32 bits.
pub(super) fn node_of(seq: Seq) -> u32 {
    u32::try_from(seq.get()).unwrap_or(u32::MAX)
}

/// Puts one item in the place of a non-empty range: the tail moves once, nothing is allocated.
pub(super) fn splice_one<T>(items: &mut Vec<T>, range: &std::ops::Range<usize>, item: T) {
    items[range.start] = item;
    items.drain(range.start + 1..range.end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(nodes: u64) -> Surface {
        let mut surface = Surface::default();
        for seq in 0..nodes {
            surface.place(Seq::new(seq), &Placement::Append, None);
        }
        surface
    }

    #[test]
    fn every_node_is_found_at_every_length_around_a_block() {
        for len in [0, 1, 63, 64, 65, 127, 128, 129, 200] {
            let surface = grown(len);
            for seq in 0..len {
                assert_eq!(surface.position_of(Seq::new(seq)), usize::try_from(seq).ok());
            }
            assert_eq!(surface.position_of(Seq::new(len)), None);
            assert_eq!(surface.position_of(Seq::new(1 << 32)), None, "compared before it is narrowed");
        }
    }

    #[test]
    fn a_replacement_takes_the_place_of_its_range() {
        let mut surface = grown(5);
        let placement = Placement::Replace(1..4);
        let replacement = surface.replacement(Seq::new(5), &placement).expect("a replacement");
        surface.place(Seq::new(5), &placement, None);
        assert_eq!(surface.nodes(), [0, 5, 4]);
        assert_eq!(surface.replace_generation(), 1);
        assert_eq!((replacement.start, replacement.end), (Seq::new(1), Seq::new(3)));
        assert_eq!(replacement.shadowed, [1, 2, 3].map(Seq::new));
        // By position a range may start at the higher seq.
        let placement = Placement::Replace(1..3);
        let replacement = surface.replacement(Seq::new(6), &placement).expect("a replacement");
        surface.place(Seq::new(6), &placement, None);
        assert_eq!((replacement.start, replacement.end), (Seq::new(5), Seq::new(4)));
        assert_eq!(surface.nodes(), [0, 6]);
        assert_eq!(surface.position_of(Seq::new(2)), None);
    }

    #[test]
    fn log_only_events_leave_no_trace() {
        let mut surface = grown(2);
        let before = surface.clone();
        surface.place(Seq::new(2), &Placement::LogOnly, None);
        assert_eq!(surface, before);
    }

    #[test]
    fn digests_answer_for_nodes_on_the_surface_only_and_stay_bounded() {
        let mut surface = Surface::default();
        surface.place(Seq::new(0), &Placement::Append, Some(7));
        for seq in 1..10_000_u64 {
            let digest = Digest::from(seq);
            surface.place(Seq::new(seq), &Placement::Replace(0..1), Some(digest));
            assert_eq!(surface.rewrite_digest(Seq::new(seq)), Some(digest));
            assert_eq!(surface.rewrite_digest(Seq::new(seq - 1)), None);
        }
        assert!(surface.digests.seqs.len() <= RewriteDigests::PRUNE_MIN);
    }

    #[test]
    fn random_replacements_agree_with_a_plain_vector() {
        let mut random = 0x9E37_79B9_u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap_or(0) % n
        };
        let (mut surface, mut model) = (Surface::default(), Vec::new());
        for seq in 0..3_000_u32 {
            let placement = if model.is_empty() || below(3) > 0 {
                Placement::Append
            } else {
                let start = below(model.len());
                Placement::Replace(start..start + 1 + below((model.len() - start).min(7)))
            };
            surface.place(Seq::new(u64::from(seq)), &placement, None);
            match placement {
                Placement::Replace(range) => drop(model.splice(range, [seq])),
                _ => model.push(seq),
            }
            assert_eq!(surface.nodes(), model);
        }
    }
}
