//! Reading on behind damage: where the next frame begins, and what the bytes before it still yield.
//!
//! Serves repairs, which say themselves what each fault costs; a judge never reads this way. What stands between frames is
//! told as an [`Item::Fault`] by its rule: [`PADDING_RULES`] cost nothing. Invariant: work is linear in the file. A walk over
//! blocks that are no frame's may lead to the end of the file from each of many places, so such walks share
//! [`BLOCKS_WALKED_IN_VAIN_MAX`]; and [`FRAMES_RETRIED_MAX`] frames are decoded twice.

use std::io::{self, Read, Seek};

use super::walk::Extent;
use super::{Frame, ZstdFrames};
use crate::event::{Refusal, RefusalKind};
use crate::limits::{BLOCKS_WALKED_IN_VAIN_MAX, FRAMES_RETRIED_MAX};

/// Rules of faults that no text is lost by.
pub(crate) const PADDING_RULES: [&str; 2] = ["skippable-frame", "nul-padding"];

/// The state of a reader that goes on behind damage.
#[derive(Debug)]
pub(super) struct Salvage {
    retries_left: u32,
    blocks_left: u64,
}

impl<R: Read + Seek> ZstdFrames<R> {
    /// Like [`new`](Self::new), for all that can be read: frames of any layout, and those behind damaged ones.
    ///
    /// A torn frame may stand anywhere; a record goes on from a complete frame into it, never out of it.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub(crate) fn salvaging(reader: R) -> io::Result<Self> {
        let salvage =
            Some(Salvage { retries_left: FRAMES_RETRIED_MAX, blocks_left: BLOCKS_WALKED_IN_VAIN_MAX });
        Ok(Self { salvage, ..Self::new(reader)? })
    }

    /// What to decode of the bytes from `start` on, which are no complete frame, as a walk over so many blocks told; nothing if
    /// they are none at all.
    pub(super) fn salvaged(
        &mut self,
        start: u64,
        broken: Result<Extent, Refusal>,
        blocks: u64,
    ) -> io::Result<Option<Frame>> {
        let mut refusal = match broken {
            Err(refusal) if refusal.kind == RefusalKind::FrameMagic => refusal,
            _ => {
                let end = self.next_start(start + 4, blocks)?;
                return Ok(Some(Frame { start, end, torn: true }));
            }
        };
        if let Some(end) = self.source.end_of_skippable(start)? {
            let message = format!("a frame of {} bytes that another tool wrote holds no text", end - start);
            refusal = Refusal::new(RefusalKind::FrameMagic, PADDING_RULES[0], message);
            self.next_frame = end;
        } else {
            let after_nuls = self.source.end_of_nuls(start)?;
            if after_nuls > start && self.source.is_boundary(after_nuls)? {
                self.next_frame = after_nuls;
                let bytes = after_nuls - start;
                let message = format!("{bytes} NUL bytes stand between frames or behind the last one");
                refusal = Refusal::new(RefusalKind::NulPadding, PADDING_RULES[1], message);
            } else {
                self.next_frame = self.next_start(after_nuls.max(start + 1), 0)?;
                let bytes = self.next_frame - start;
                refusal.message += &format!("; {bytes} bytes up to the next frame cannot be read");
                self.splitter.forget_fragment();
            }
        }
        self.announce(refusal, start);
        Ok(None)
    }

    /// What a frame that does not decode is taken for instead. Where no frame begins at its end its structure is wrong too:
    /// it may have been cut, and another one written behind the cut.
    pub(super) fn reconsidered(&mut self, frame: Frame) -> io::Result<Option<Frame>> {
        if self.source.is_boundary(frame.end)? {
            return Ok(None);
        }
        let Some(salvage) = self.salvage.as_mut().filter(|salvage| salvage.retries_left > 0) else {
            return Ok(None);
        };
        salvage.retries_left -= 1;
        let end = self.next_start(frame.start + 4, 0)?;
        Ok(Some(Frame { end, torn: true, ..frame }))
    }

    /// The next place at or behind `from` where a frame begins, after so many blocks were walked in vain; the end of the file
    /// if there is none, or no more may be walked.
    fn next_start(&mut self, mut from: u64, mut blocks: u64) -> io::Result<u64> {
        while self.may_go_on(blocks) {
            let found = self.source.find_frame(from)?;
            if found == self.source.len() {
                return Ok(found);
            }
            let extent;
            (extent, blocks) = self.walk(found)?;
            if extent.is_ok() {
                return Ok(found);
            }
            from = found + 1;
        }
        Ok(self.source.len())
    }

    /// Charges blocks that were walked in vain. One walk may take more than is left: where a large frame was cut, what stands
    /// behind it is looked for.
    fn may_go_on(&mut self, blocks: u64) -> bool {
        let Some(salvage) = &mut self.salvage else { return false };
        let may = blocks == 0 || salvage.blocks_left > 0;
        salvage.blocks_left = salvage.blocks_left.saturating_sub(blocks);
        may
    }
}
