//! Reading a session by its envelopes: types, times, sizes and surface ops, wherever its events lie.
//!
//! Payloads of sealed files are decoded only where the visitor asks for them. What cannot be read is shown as that, and
//! reading goes on behind it: whoever measures a damaged store measures the rest.

use std::ops::Range;

use super::places::{Place, Run};
use super::runs::MOVED;
use super::session::Session;
use crate::format::RecordReader;
use crate::format::sealed::{OutlineVisitor, StoredSize};
use crate::ids::{Position, Seq};
use crate::log::FrameReader;
use crate::{Error, ErrorKind, Result};

/// Is shown a session's events by their envelopes, run by run.
pub(super) trait RunVisitor: OutlineVisitor {
    /// The events that follow lie there.
    fn run(&mut self, at: &Place);
}

impl Session {
    /// Shows the written events of `range`, in order; those of a removed session too. No lock is held meanwhile.
    pub(super) fn outline<V: RunVisitor>(&self, range: &Range<Seq>, visitor: &mut V) -> Result<()> {
        let mut next = range.start;
        self.again_if_moved(&mut || {
            let (frames, runs, end) = {
                let mut state = self.entry.state.lock();
                state.settle()?;
                let end = range.end.min(Seq::new(state.row.next_seq));
                (self.store.frames(), self.runs(&state, &(next..end)), end)
            };
            for run in &runs {
                self.check_cancelled()?;
                if run.first > next {
                    visitor.unreadable(next..run.first, &self.missing(next));
                    // Shown: not again, if this run has moved meanwhile.
                    next = run.first;
                }
                let part = next.max(run.first)..run.end().min(end);
                if part.start < part.end {
                    self.outline_run(&frames, run, &part, visitor)?;
                    next = part.end;
                }
            }
            if next < end {
                visitor.unreadable(next..end, &self.missing(next));
            }
            Ok(())
        })
    }

    fn outline_run<V: RunVisitor>(
        &self,
        frames: &FrameReader,
        run: &Run,
        part: &Range<Seq>,
        visitor: &mut V,
    ) -> Result<()> {
        visitor.run(&run.at);
        match &run.at {
            Place::Frame(at) => outline_frame(frames, *at, part, visitor),
            Place::Sealed(file, row) => {
                self.store.with_decoder(|decoder| file.outline(row, part.clone(), decoder, visitor))
            }
        }
    }
}

fn outline_frame<V: RunVisitor>(
    frames: &FrameReader,
    at: Position,
    part: &Range<Seq>,
    visitor: &mut V,
) -> Result<()> {
    let frame = match frames.read(at) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(error.with_rule(MOVED)),
        Err(error) => return unreadable(part.clone(), error, visitor),
        Ok(frame) => frame,
    };
    let header = &frame.header;
    visitor.unit(header.frame_bytes());
    let mut next = part.start;
    for item in RecordReader::new(&frame.payload, Seq::new(header.tag), header.count) {
        let (seq, record) = match item {
            Ok(item) => item,
            Err(error) => return unreadable(next..part.end, error, visitor),
        };
        if part.contains(&seq) {
            let data_bytes = record.data.len() as u64;
            let scaled = data_bytes.saturating_mul(header.payload_bytes.into());
            let text_stored_bytes = scaled.checked_div(header.decoded_bytes.into()).unwrap_or(data_bytes);
            visitor.event(seq, &record, &StoredSize { data_bytes, text_stored_bytes, pieces: Vec::new() })?;
            next = seq.next();
        }
    }
    Ok(())
}

/// Damage is shown; what is none ends the reading.
fn unreadable<V: RunVisitor>(lost: Range<Seq>, error: Error, visitor: &mut V) -> Result<()> {
    if error.kind() != ErrorKind::Corrupt {
        return Err(error);
    }
    visitor.unreadable(lost, &error);
    Ok(())
}
