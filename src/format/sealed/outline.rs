//! Events by their envelopes: types, times and sizes without decoding any text.
//!
//! Reads a text only where the visitor asks for it. Keeps the reader's rule: damage costs the events that need it, and is
//! shown, while reading goes on behind it.

use std::ops::Range;

use super::check::damage_only;
use super::envelope::DataPlace;
use super::pieces::PieceSource;
use super::reader::{Part, UnitText};
use super::rows::{SessionRow, UNIT_ROW_BYTES, UnitRow};
use super::{ByteSource, Sealed, SealedDecoder, StoredPiece, Unit};
use crate::format::Record;
use crate::ids::Seq;
use crate::{Error, Result};

/// Is shown the outline of a session's events.
pub trait OutlineVisitor {
    /// A unit whose events follow, and what it takes in the file with its row, in bytes.
    fn unit(&mut self, stored_bytes: u64);

    /// Whether the data of this event is to be looked up.
    fn wants(&mut self, record: &Record<'_>, data: &StoredSize) -> bool;

    /// An event. Its data is empty if it was not wanted.
    ///
    /// # Errors
    /// Whatever it returns ends the reading.
    fn event(&mut self, seq: Seq, record: &Record<'_>, data: &StoredSize) -> Result<()>;

    /// Events whose bytes are damaged.
    fn unreadable(&mut self, lost: Range<Seq>, error: &Error);
}

/// How large the data of an event is, and what of the file it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSize {
    /// Size of the data, in bytes.
    pub data_bytes: u64,
    /// Its share of the compressed text of its unit, in bytes.
    pub text_stored_bytes: u64,
    /// The pieces that stand in it, or in its place.
    pub pieces: Vec<StoredPiece>,
}

impl<S: ByteSource> Sealed<S> {
    /// Shows the session's events in `range`, in order.
    ///
    /// # Errors
    /// Those of the visitor, [`ErrorKind::Io`](crate::ErrorKind::Io), and [`ErrorKind::Limit`](crate::ErrorKind::Limit) when
    /// memory is short. Damage is no error: it is shown to the visitor.
    pub fn outline(
        &self,
        session: &SessionRow,
        range: Range<Seq>,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn OutlineVisitor,
    ) -> Result<()> {
        decoder.enter(self);
        let mut unit = Unit::default();
        self.each_part(session, range, &mut |part| match part {
            Part::Unit(row, part) => self.outline_unit(&row, &part, decoder, &mut unit, visitor),
            Part::Lost(lost, error) => {
                visitor.unreadable(lost, &error);
                Ok(())
            }
        })
    }

    fn outline_unit(
        &self,
        row: &UnitRow,
        part: &Range<Seq>,
        decoder: &mut SealedDecoder,
        unit: &mut Unit,
        visitor: &mut dyn OutlineVisitor,
    ) -> Result<()> {
        if let Err(error) = self.decode_unit(row, false, decoder, unit) {
            visitor.unreadable(part.clone(), &damage_only(error)?);
            return Ok(());
        }
        let frames = u64::from(row.envelope.stored_bytes) + u64::from(row.text.stored_bytes);
        visitor.unit(frames + UNIT_ROW_BYTES as u64);
        let mut text = UnitText::default();
        for (seq, record, place) in unit.steps().filter(|(seq, ..)| part.contains(seq)) {
            let shown = self.stored_size(row, place).and_then(|size| {
                let wanted = visitor.wants(&record, &size);
                let data = if wanted { self.data_in(row, &mut text, place, decoder)? } else { "" };
                Ok((Record { data, ..record }, size))
            });
            match shown {
                Ok((record, size)) => visitor.event(seq, &record, &size)?,
                Err(error) => visitor.unreadable(seq..seq.next(), &damage_only(error)?),
            }
        }
        Ok(())
    }

    fn stored_size(&self, unit: &UnitRow, place: DataPlace<'_>) -> Result<StoredSize> {
        let text_bytes = match place {
            DataPlace::Inline { bytes, .. } | DataPlace::Spliced { bytes, .. } => bytes as u64,
            DataPlace::Piece(_) => 0,
        };
        let text_stored_bytes = (text_bytes.saturating_mul(u64::from(unit.text.stored_bytes)))
            .checked_div(u64::from(unit.text.text_bytes))
            .unwrap_or(0);
        let mut size = StoredSize { data_bytes: text_bytes, text_stored_bytes, pieces: Vec::new() };
        for id in place.pieces() {
            let row = self.row(id)?;
            size.data_bytes = size.data_bytes.saturating_add(u64::from(row.text_bytes));
            size.pieces.push(StoredPiece::of(id, &row));
        }
        Ok(size)
    }
}
