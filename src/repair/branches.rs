//! Which writer a record comes from: records that go on with each other are a branch, and a second record of a seq that is
//! taken begins another one.
//!
//! Decided by seqs and digests alone, never by the gate, so that every pass over a source tells the same branches. Memory is
//! bounded: of each branch the last [`REPAIR_RECORDS_COMPARED_MAX`] records are known; what repeats an older one counts as
//! another branch.

use std::collections::VecDeque;

use crate::ids::Seq;
use crate::limits::{REPAIR_BRANCHES_MAX, REPAIR_RECORDS_COMPARED_MAX};

/// One side of a fork: what one of two writers made of the log from the first seq that both claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// Its number, from 1, in the order of their first records in the file.
    pub number: usize,
    /// The first seq that is claimed twice.
    pub first_seq: Seq,
    /// Line of its first record from there on, from 1; absent where that is too far back to be known.
    pub line: Option<u64>,
    /// Byte offset of that record in the (decompressed) text.
    pub offset: Option<u64>,
    /// Of a session in a database: the row of that record.
    pub row: Option<i64>,
    /// Events from there on.
    pub events: u64,
    /// Time of the first of them, in milliseconds since the Unix epoch.
    pub first_time: Option<i64>,
    /// Time of the last.
    pub last_time: Option<i64>,
    /// Type of the last.
    pub last_type: Option<String>,
}

/// A record as far as its place among others counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) seq: Seq,
    /// Events that it holds: consecutive ones from `seq` on.
    pub(super) events: u64,
    pub(super) time: Option<i64>,
    pub(super) type_name: &'a str,
    pub(super) digest: u128,
    pub(super) place: Spot,
}

/// Where a record stands in its source.
#[derive(Debug, Clone, Copy)]
pub(super) enum Spot {
    Text { line: u64, offset: u64 },
    Row(i64),
}

/// Where a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stands {
    /// It goes on with, or begins, the branch of this index.
    On(usize),
    /// It repeats an earlier record.
    Repeats,
    /// Events before it are missing.
    BehindGap,
    /// It begins one branch too many.
    OneTooMany,
}

/// The branches of a log.
#[derive(Debug)]
pub(super) struct Branches {
    tracks: Vec<Track>,
    /// The one that the last record belongs to.
    active: usize,
}

/// The records of one branch.
#[derive(Debug)]
struct Track {
    /// The branch that it leaves, and its first seq.
    parent: usize,
    first: u64,
    next: u64,
    last_time: Option<i64>,
    last_type: String,
    /// The last records, ascending by seq.
    known: VecDeque<Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    seq: u64,
    digest: u128,
    time: Option<i64>,
    place: Spot,
}

impl Branches {
    pub(super) fn new() -> Self {
        Self { tracks: vec![Track::new(0, 0)], active: 0 }
    }

    /// Places the next record.
    pub(super) fn place(&mut self, claim: &Claim<'_>) -> Stands {
        let seq = claim.seq.get();
        let stands = if self.tracks[self.active].next == seq {
            Stands::On(self.active)
        } else if self.tracks.iter().any(|track| track.knows(seq, claim.digest)) {
            Stands::Repeats
        } else if let Some(other) = self.tracks.iter().rposition(|track| track.next == seq) {
            Stands::On(other)
        } else if seq > self.tracks[self.active].next {
            Stands::BehindGap
        } else if self.tracks.len() == REPAIR_BRANCHES_MAX {
            Stands::OneTooMany
        } else {
            let parent = self.owner(self.active, seq);
            self.tracks.push(Track::new(parent, seq));
            Stands::On(self.tracks.len() - 1)
        };
        if let Stands::On(branch) = stands {
            self.active = branch;
            self.tracks[branch].push(claim);
        }
        stands
    }

    /// Whether a seq was claimed twice.
    pub(super) fn forked(&self) -> bool {
        self.tracks.len() > 1
    }

    /// The legs of the way to the end of branch `index`, last one first: of each the branch, and the seq at which the
    /// way leaves it for the next one.
    pub(super) fn way_to(&self, index: usize) -> Vec<(usize, Option<Seq>)> {
        let mut way = vec![(index, None)];
        let mut at = index;
        while at > 0 {
            let track = &self.tracks[at];
            way.push((track.parent, Some(Seq::new(track.first))));
            at = track.parent;
        }
        way
    }

    /// What a person must know to choose; none if there is nothing to choose.
    pub(super) fn described(&self) -> Vec<Branch> {
        if !self.forked() {
            return Vec::new();
        }
        (0..self.tracks.len()).map(|index| self.describe(index)).collect()
    }

    fn describe(&self, index: usize) -> Branch {
        let track = &self.tracks[index];
        // The first branch is told from the seq on that another one claims first.
        let claimed_by_others = self.tracks[1..].iter().map(|other| other.first).min();
        let first = if index == 0 { claimed_by_others.unwrap_or(0) } else { track.first };
        let start = track.at(first);
        let (line, offset, row) = match start.map(|known| known.place) {
            Some(Spot::Text { line, offset }) => (Some(line), Some(offset), None),
            Some(Spot::Row(row)) => (None, None, Some(row)),
            None => (None, None, None),
        };
        Branch {
            number: index + 1,
            first_seq: Seq::new(first),
            line,
            offset,
            row,
            events: track.next.saturating_sub(first),
            first_time: start.and_then(|known| known.time),
            last_time: track.last_time,
            last_type: (!track.last_type.is_empty()).then(|| track.last_type.clone()),
        }
    }

    /// The branch on the way to `index` that the event `seq` of it belongs to.
    fn owner(&self, mut index: usize, seq: u64) -> usize {
        while index > 0 && seq <= self.tracks[index].first {
            index = self.tracks[index].parent;
        }
        index
    }
}

impl Track {
    fn new(parent: usize, first: u64) -> Self {
        Self { parent, first, next: first, last_time: None, last_type: String::new(), known: VecDeque::new() }
    }

    fn push(&mut self, claim: &Claim<'_>) {
        self.next = claim.seq.get().saturating_add(claim.events);
        self.last_time = claim.time.or(self.last_time);
        self.last_type.clear();
        self.last_type.push_str(claim.type_name);
        if self.known.len() == REPAIR_RECORDS_COMPARED_MAX {
            self.known.pop_front();
        }
        let &Claim { digest, time, place, .. } = claim;
        self.known.push_back(Known { seq: claim.seq.get(), digest, time, place });
    }

    /// The record that holds `seq`, if it is known.
    fn at(&self, seq: u64) -> Option<&Known> {
        let behind = self.known.partition_point(|known| known.seq <= seq);
        self.known.get(behind.checked_sub(1)?)
    }

    fn knows(&self, seq: u64, digest: u128) -> bool {
        self.at(seq).is_some_and(|known| known.seq == seq && known.digest == digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places records given as (seq, writer's word); equal pairs are equal records.
    fn placed(records: &[(u64, char)]) -> (Branches, Vec<Stands>) {
        let mut branches = Branches::new();
        let mut stands = Vec::new();
        for (line, &(seq, word)) in (2..).zip(records) {
            let digest = u128::from(seq) << 32 | u128::from(u32::from(word));
            let seq = Seq::new(seq);
            let place = Spot::Text { line, offset: line * 10 };
            let claim = Claim { seq, events: 1, time: Some(5), type_name: "x", digest, place };
            stands.push(branches.place(&claim));
        }
        (branches, stands)
    }

    #[test]
    fn one_writer_has_one_branch_whatever_is_repeated_or_missing() {
        use Stands::{BehindGap, On, Repeats};
        let (branches, stands) =
            placed(&[(0, 'a'), (1, 'a'), (0, 'a'), (1, 'a'), (2, 'a'), (9, 'a'), (3, 'a')]);
        assert_eq!(stands, [On(0), On(0), Repeats, Repeats, On(0), BehindGap, On(0)]);
        assert!(!branches.forked() && branches.described().is_empty());
    }

    #[test]
    fn two_writers_are_told_apart_even_where_they_alternate() {
        use Stands::On;
        let (branches, stands) =
            placed(&[(0, 'a'), (1, 'a'), (2, 'a'), (1, 'b'), (2, 'b'), (3, 'a'), (3, 'b'), (4, 'a')]);
        // The next record of either could go on with both: it is taken for that of the last writer.
        assert_eq!(stands[..5], [On(0), On(0), On(0), On(1), On(1)]);
        assert_eq!(stands[5..], [On(1), On(0), On(0)]);
        let [first, second] = &branches.described()[..] else { panic!("two branches") };
        assert_eq!((first.number, first.first_seq.get(), first.line, first.events), (1, 1, Some(3), 4));
        assert_eq!((second.number, second.first_seq.get(), second.line, second.events), (2, 1, Some(5), 3));
        assert_eq!(branches.way_to(1), [(1, None), (0, Some(Seq::new(1)))]);
    }

    #[test]
    fn a_branch_of_a_branch_knows_its_way_and_there_are_only_so_many() {
        let mut records = vec![(0, 'a'), (1, 'a'), (2, 'a')];
        records.extend([(1, 'b'), (2, 'b'), (2, 'c'), (1, 'd')]);
        let (branches, stands) = placed(&records);
        assert_eq!(stands[3..], [Stands::On(1), Stands::On(1), Stands::On(2), Stands::On(3)]);
        let at = |seq| Some(Seq::new(seq));
        assert_eq!(branches.way_to(2), [(2, None), (1, at(2)), (0, at(1))]);
        assert_eq!(branches.way_to(3), [(3, None), (0, at(1))]);
        records.extend(('e'..='z').map(|word| (0, word)));
        let (branches, stands) = placed(&records);
        assert_eq!((branches.tracks.len(), stands.last()), (REPAIR_BRANCHES_MAX, Some(&Stands::OneTooMany)));
    }
}
