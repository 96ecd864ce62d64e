//! What a checkpoint keeps of the projections, and what it takes to believe it.
//!
//! Each projection is a section of its own, with a code that never changes and a version that changes with what the
//! section holds. Restoring checks all that the folds rely on, so that a wrong section gives no state, or a wrong
//! one, and never a panic. Who restores has to know by other means that the section is the session's.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Result;
use crate::ids::Seq;

/// Names what a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SectionId {
    /// The projection.
    pub(crate) code: u32,
    /// The version of what it keeps.
    pub(crate) version: u32,
}

/// Where a snapshot is written to.
pub(crate) trait SectionSink {
    /// Adds a section.
    ///
    /// # Errors
    ///
    /// Those of the sink; the snapshot is then of no use.
    fn put<T: Serialize>(&mut self, id: SectionId, kept: &T) -> Result<()>;
}

/// Where a snapshot is restored from.
pub(crate) trait SectionSource {
    /// What the section of exactly this id holds, if it is there and sound.
    fn get<T: DeserializeOwned>(&self, id: SectionId) -> Option<T>;
}

/// A projection that checkpoints keep.
pub(super) trait Checkpointed: Sized {
    const ID: SectionId;
    /// What is kept of it.
    type Kept: Serialize + DeserializeOwned;

    fn keep(&self) -> Self::Kept;

    /// The projection again; `None` if no fold of the events below `next_seq` can have left this.
    fn restore(kept: Self::Kept, next_seq: Seq) -> Option<Self>;
}

pub(super) fn put<P: Checkpointed>(sink: &mut impl SectionSink, projection: &P) -> Result<()> {
    sink.put(P::ID, &projection.keep())
}

pub(super) fn get<P: Checkpointed>(source: &impl SectionSource, next_seq: Seq) -> Option<P> {
    P::restore(source.get(P::ID)?, next_seq)
}

/// Seqs as the step from each to the next: mostly small numbers.
pub(super) fn steps(seqs: &[u32]) -> Vec<i32> {
    let mut last = 0;
    let step = |&seq: &u32| seq.wrapping_sub(std::mem::replace(&mut last, seq)).cast_signed();
    seqs.iter().map(step).collect()
}

/// The seqs again, if all are below `next_seq`.
pub(super) fn seqs(steps: Vec<i32>, next_seq: Seq) -> Option<Vec<u32>> {
    let mut last = 0_u32;
    let mut highest = 0;
    // In place: both are of one size.
    let seqs: Vec<u32> = steps
        .into_iter()
        .map(|step| {
            last = last.wrapping_add(step.cast_unsigned());
            highest = highest.max(last);
            last
        })
        .collect();
    (seqs.is_empty() || u64::from(highest) < next_seq.get()).then_some(seqs)
}

/// The seqs again, if they ascend and all are below `next_seq`.
pub(super) fn ascending(steps: Vec<i32>, next_seq: Seq) -> Option<Vec<u32>> {
    seqs(steps, next_seq).filter(|seqs| seqs.is_sorted_by(|a, b| a < b))
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::format::codec;

    /// Sections in memory, to be changed before they are restored.
    #[derive(Default, Clone)]
    pub(in crate::projection) struct Sections(pub(in crate::projection) Vec<(SectionId, Vec<u8>)>);

    impl SectionSink for Sections {
        fn put<T: Serialize>(&mut self, id: SectionId, kept: &T) -> Result<()> {
            self.0.push((id, codec::encode(kept)?));
            Ok(())
        }
    }

    impl SectionSource for Sections {
        fn get<T: DeserializeOwned>(&self, id: SectionId) -> Option<T> {
            let (_, bytes) = self.0.iter().find(|(known, _)| *known == id)?;
            codec::decode(bytes)
        }
    }

    #[test]
    fn steps_give_the_seqs_back() {
        for seqs in [vec![], vec![0], vec![7, 3, u32::MAX, 0, 1 << 31]] {
            assert_eq!(super::seqs(steps(&seqs), Seq::new(1 << 32)), Some(seqs));
        }
        assert_eq!(super::seqs(steps(&[1, 5, 2]), Seq::new(5)), None);
        assert_eq!(ascending(steps(&[1, 5, 5]), Seq::new(9)), None);
        assert_eq!(ascending(steps(&[1, 5, 8]), Seq::new(9)), Some(vec![1, 5, 8]));
    }
}
