//! Finds rows in a sealed file's directories, in place.
//!
//! A directory is never read whole but to check it. A damaged row in the way of a search does not end it: the other rows
//! are then looked through one by one, and only if none of them is the one sought is the damage the answer.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::pieces::{PieceSource, corrupt, stored_bytes};
use super::reader::narrow;
use super::rows::{
    FOOTER_BYTES, FileMark, PIECE_ROW_BYTES, PieceRow, SESSION_ROW_BYTES, SessionRow, UNIT_ROW_BYTES, UnitRow,
};
use super::{ByteSource, Sealed};
use crate::format::Crc32;
use crate::ids::{Seq, SessionKey};
use crate::limits::SEALED_WRITE_BUFFER_BYTES;
use crate::{Error, Result};

impl<S: ByteSource> Sealed<S> {
    /// The sessions, in ascending order of their keys; an error in the place of a damaged row.
    pub fn sessions(&self) -> impl Iterator<Item = Result<SessionRow>> {
        (0..self.footer.session_count).map(|number| self.session_row(number))
    }

    /// The session with this key, if the file has it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind) if a damaged row may be the one, [`ErrorKind::Io`](crate::ErrorKind).
    pub fn find(&self, key: SessionKey) -> Result<Option<SessionRow>> {
        let count = self.footer.session_count;
        let found = search(0..count, |number| Ok(self.session_row(number)?.key.cmp(&key)));
        match found {
            Ok(found) => found.map(|number| self.session_row(number)).transpose(),
            Err(error) => {
                let intact = self.sessions().flatten().find(|row| row.key == key);
                intact.map(Some).ok_or(error)
            }
        }
    }

    /// The unit that holds an event of the session; `None` if the file does not have the event.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind) if the unit's row is damaged, [`ErrorKind::Io`](crate::ErrorKind).
    pub fn unit_of(&self, session: &SessionRow, seq: Seq) -> Result<Option<UnitRow>> {
        if !(session.first..session.end()).contains(&seq) {
            return Ok(None);
        }
        let holds = |row: &UnitRow| row.first <= seq && seq < row.end();
        let about = self.unit_about(session, seq).map(|index| self.unit_row(index));
        let damage = match about {
            Some(Ok(row)) if holds(&row) => return Ok(Some(row)),
            Some(Err(error)) => Some(error),
            _ => None,
        };
        // Damage in the way misled the search, or the row sought is the damaged one.
        let mut intact = self.units_of(session)?.filter_map(|index| self.unit_row(index).ok());
        let damage = damage.unwrap_or_else(|| corrupt("no unit has the event", self.footer.directories));
        intact.find(holds).map(Some).ok_or_else(|| damage.with_seq(seq))
    }

    /// Number of the unit that holds `seq`, if no row on the way to it is damaged: none is checked.
    pub(super) fn unit_about(&self, session: &SessionRow, seq: Seq) -> Option<u32> {
        let mut units = self.units_of(session).ok()?;
        while units.end - units.start > 1 {
            let middle = units.start + (units.end - units.start) / 2;
            let row = self.source.bytes(self.footer.unit_row_offset(middle), UNIT_ROW_BYTES).ok()?;
            if UnitRow::first_unchecked(&row) <= seq {
                units.start = middle;
            } else {
                units.end = middle;
            }
        }
        units.next()
    }

    /// In how many units the events of `range` lie, if no row on the way to them is damaged.
    #[must_use]
    pub fn units_within(&self, session: &SessionRow, range: &Range<Seq>) -> u32 {
        if range.is_empty() {
            return 0;
        }
        let last = Seq::new(range.end.get() - 1);
        let unit = |seq| self.unit_about(session, seq);
        let (first, last) = (unit(range.start).unwrap_or(0), unit(last).unwrap_or(u32::MAX));
        last.saturating_sub(first).saturating_add(1)
    }

    /// Checks the CRC over all directories, a buffer at a time.
    pub(super) fn check_directories(&self) -> Result<()> {
        let end = self.source.len().saturating_sub(FOOTER_BYTES as u64);
        let mut crc = Crc32::default();
        let mut at = self.footer.directories;
        while at < end {
            let bytes = u32::try_from((end - at).min(SEALED_WRITE_BUFFER_BYTES as u64)).unwrap_or(0);
            crc.update(&stored_bytes(&self.source, at, bytes)?);
            at += u64::from(bytes);
        }
        if crc.finish() == self.footer.directories_crc {
            return Ok(());
        }
        Err(corrupt("its directories are damaged", self.footer.directories))
    }

    pub(super) fn session_row(&self, number: u32) -> Result<SessionRow> {
        let offset = self.footer.session_row_offset(number);
        let row = stored_bytes(&self.source, offset, narrow(SESSION_ROW_BYTES))?;
        SessionRow::decode(self.header.mark(), number, &row)
            .ok_or_else(|| corrupt("a session's row is damaged", offset))
    }

    pub(super) fn unit_row(&self, index: u32) -> Result<UnitRow> {
        let offset = self.footer.unit_row_offset(index);
        let row = stored_bytes(&self.source, offset, narrow(UNIT_ROW_BYTES))?;
        UnitRow::decode(self.header.mark(), index, &row)
            .ok_or_else(|| corrupt("a unit's row is damaged", offset))
    }

    /// Numbers of the session's units.
    pub(super) fn units_of(&self, session: &SessionRow) -> Result<Range<u32>> {
        let end = session.first_unit.checked_add(session.unit_count);
        let end = end.filter(|&end| end <= self.footer.unit_count);
        let end = end.ok_or_else(|| corrupt("a session names units that do not exist", 0))?;
        Ok(session.first_unit..end)
    }

    /// Numbers of the session's units, from the one that holds `seq` if that can be told.
    pub(super) fn units_from(&self, session: &SessionRow, seq: Seq) -> Result<Range<u32>> {
        let units = self.units_of(session)?;
        let start = match self.unit_of(session, seq) {
            Ok(Some(row)) => row.index,
            _ => units.start,
        };
        Ok(start..units.end)
    }

    pub(super) fn missing(&self) -> Error {
        corrupt("no unit has these events", self.footer.directories)
    }

    pub(super) fn piece_count(&self) -> u32 {
        self.footer.piece_count
    }
}

impl<S: ByteSource> PieceSource for Sealed<S> {
    fn mark(&self) -> FileMark {
        self.header.mark()
    }

    fn row(&self, id: u32) -> Result<PieceRow> {
        if id >= self.footer.piece_count {
            return Err(corrupt("a piece that does not exist", self.footer.directories));
        }
        let offset = self.footer.piece_row_offset(id);
        let row = stored_bytes(&self.source, offset, narrow(PIECE_ROW_BYTES))?;
        PieceRow::decode(id, &row).ok_or_else(|| corrupt("a piece's row is damaged", offset))
    }

    fn stored(&self, row: &PieceRow) -> Result<Cow<'_, [u8]>> {
        stored_bytes(&self.source, row.offset, row.stored_bytes)
    }
}

/// Binary search; `compare` tells how the number's row lies to what is sought.
fn search(mut range: Range<u32>, compare: impl Fn(u32) -> Result<Ordering>) -> Result<Option<u32>> {
    while range.start < range.end {
        let middle = range.start + (range.end - range.start) / 2;
        match compare(middle)? {
            Ordering::Less => range.start = middle + 1,
            Ordering::Greater => range.end = middle,
            Ordering::Equal => return Ok(Some(middle)),
        }
    }
    Ok(None)
}
