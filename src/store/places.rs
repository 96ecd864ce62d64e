//! Where a session's events lie: runs of consecutive events, in order of their seqs.
//!
//! Most sessions of a large store have one run, in a sealed file; it costs no allocation.

use std::ops::Deref;
use std::sync::Arc;

use crate::format::sealed::SessionRow;
use crate::ids::{Position, Seq};
use crate::log::SealedFile;

/// A run of consecutive events in one place.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) first: Seq,
    pub(super) count: u32,
    pub(super) at: Place,
}

/// Where a run lies.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In one frame of a raw segment.
    Frame(Position),
    /// In a sealed file.
    Sealed(Arc<SealedFile>, SessionRow),
}

impl Run {
    pub(super) fn end(&self) -> Seq {
        Seq::new(self.first.get() + u64::from(self.count))
    }
}

/// The runs of one session.
#[derive(Debug, Clone)]
pub(super) enum Runs {
    One(Run),
    /// None, or several.
    Many(Vec<Run>),
}

impl Runs {
    pub(super) fn push(&mut self, run: Run) {
        self.insert(self.len(), run);
    }

    /// Panics, as [`Vec::insert`] does, if there are fewer than `index` runs.
    pub(super) fn insert(&mut self, index: usize, run: Run) {
        match std::mem::take(self) {
            Self::Many(runs) if runs.is_empty() => *self = Self::One(run),
            Self::Many(mut runs) => {
                runs.insert(index, run);
                *self = Self::Many(runs);
            }
            Self::One(known) => {
                let mut runs = Vec::with_capacity(4);
                runs.push(known);
                runs.insert(index, run);
                *self = Self::Many(runs);
            }
        }
    }

    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&Run) -> bool) {
        match self {
            Self::One(run) if is_kept(run) => {}
            Self::One(_) => *self = Self::default(),
            Self::Many(runs) => {
                runs.retain(is_kept);
                if runs.is_empty() {
                    *self = Self::default();
                }
            }
        }
    }
}

impl Default for Runs {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Deref for Runs {
    type Target = [Run];

    fn deref(&self) -> &[Run] {
        match self {
            Self::One(run) => std::slice::from_ref(run),
            Self::Many(runs) => runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SegmentId;

    fn run(first: u64) -> Run {
        let at = Place::Frame(Position { segment: SegmentId::new(1), offset: first });
        Run { first: Seq::new(first), count: 1, at }
    }

    /// Every way of filling, and of taking away again, beside a vector.
    #[test]
    fn runs_are_a_vector_of_runs() {
        let firsts = |runs: &[Run]| runs.iter().map(|run| run.first.get()).collect::<Vec<_>>();
        for index in 0..=2 {
            for kept in 0..8 {
                let (mut runs, mut vector) = (Runs::default(), Vec::new());
                for n in 0..2 {
                    runs.push(run(n));
                    vector.push(run(n));
                    assert_eq!(firsts(&runs), firsts(&vector));
                }
                runs.insert(index, run(2));
                vector.insert(index, run(2));
                assert_eq!(firsts(&runs), firsts(&vector));
                for bits in [kept, kept & 1, kept] {
                    let is_kept = |run: &Run| bits >> run.first.get() & 1 == 1;
                    runs.retain(is_kept);
                    vector.retain(is_kept);
                    assert_eq!(firsts(&runs), firsts(&vector));
                }
                runs.push(run(3));
                vector.push(run(3));
                assert_eq!(firsts(&runs), firsts(&vector));
            }
        }
    }
}
