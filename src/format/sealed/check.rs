//! Checks every byte of a sealed file against its checksums, and says what damage costs.

use std::collections::BTreeSet;
use std::ops::Range;

use super::envelope::DataPlace;
use super::pieces::{PieceSource, corrupt};
use super::rows::{SessionRow, UnitRow};
use super::{ByteSource, Sealed, SealedDecoder, Unit};
use crate::ids::{Seq, SessionKey};
use crate::{Error, ErrorKind, Result};

/// What [`Sealed::check_all`] found wrong.
#[derive(Debug)]
pub struct SealedFinding {
    /// The session whose events are lost, and which; `None` if the damage costs no event that can be named.
    pub lost: Option<(SessionKey, Range<Seq>)>,
    /// What is wrong, and at which offset of the file.
    pub error: Error,
}

impl<S: ByteSource> Sealed<S> {
    /// Checks the whole file: header, directories, summaries, units and pieces. Nothing is decompressed unless a damaged
    /// piece makes it necessary to find the events that need it.
    ///
    /// # Errors
    /// Those of the visitor, [`ErrorKind::Io`], and [`ErrorKind::Limit`] when memory is short. Damage is no error: it is
    /// shown to the visitor.
    pub fn check_all(
        &self,
        decoder: &mut SealedDecoder,
        visitor: &mut dyn FnMut(SealedFinding) -> Result<()>,
    ) -> Result<()> {
        let mut report = |lost, error| visitor(SealedFinding { lost, error });
        found(self.check_header(), |error| report(None, error))?;
        found(self.check_directories(), |error| report(None, error))?;
        for number in 0..self.session_count() {
            let Some(session) = found(self.session_row(number), |error| report(None, error))? else {
                continue;
            };
            found(self.summary(&session), |error| report(None, error))?;
            self.check_units(&session, decoder, &mut report)?;
        }
        let bad_pieces = self.check_pieces(&mut report)?;
        if bad_pieces.is_empty() {
            return Ok(());
        }
        let is_bad = |place: DataPlace<'_>| place.pieces().any(|id| bad_pieces.contains(&id));
        for session in self.sessions().flatten() {
            for index in self.units_of(&session).into_iter().flatten() {
                if let Ok(row) = self.unit_row(index) {
                    self.report_lost(&session, &row, &is_bad, decoder, &mut report)?;
                }
            }
        }
        Ok(())
    }

    fn check_units(
        &self,
        session: &SessionRow,
        decoder: &mut SealedDecoder,
        report: &mut Report<'_>,
    ) -> Result<()> {
        let mut next = session.first;
        let units = found(self.units_of(session), |error| report(Some((session.key, all(session))), error))?;
        let mut damage = None;
        for index in units.into_iter().flatten() {
            let row = match self.unit_row(index) {
                Ok(row) => row,
                Err(error) => {
                    damage = Some(damage_only(error)?);
                    continue;
                }
            };
            if row.first != next {
                let error = damage.take().unwrap_or_else(|| self.missing());
                report(Some((session.key, next.min(row.first)..next.max(row.first))), error)?;
            }
            next = row.end();
            let lost = Some((session.key, row.first..row.end()));
            let envelopes = self.frame_bytes(row.offset, row.envelope);
            if found(envelopes, |error| report(lost, error))?.is_none() {
                continue;
            }
            let text = self.frame_bytes(row.text_offset(), row.text);
            if found(text, |error| report(None, error))?.is_none() {
                let is_text = |place: DataPlace<'_>| !matches!(place, DataPlace::Piece(_));
                self.report_lost(session, &row, &is_text, decoder, report)?;
            }
        }
        if next != session.end() {
            let error = damage.unwrap_or_else(|| self.missing());
            report(Some((session.key, next..session.end())), error)?;
        }
        Ok(())
    }

    /// Pieces that cannot be read, because they or one that they hang on are damaged.
    fn check_pieces(&self, report: &mut Report<'_>) -> Result<BTreeSet<u32>> {
        let mut bad = BTreeSet::new();
        for id in 0..self.piece_count() {
            let checked = self.row(id).and_then(|row| {
                let stored = self.stored(&row)?;
                let sound = row.is_sound(self.mark(), id, &stored);
                if sound { Ok(row) } else { Err(corrupt("a piece is damaged", row.offset)) }
            });
            match found(checked, |error| report(None, error))? {
                Some(row) if row.base.is_none_or(|base| !bad.contains(&base)) => {}
                _ => {
                    bad.insert(id);
                }
            }
        }
        Ok(bad)
    }

    /// Reports those of a unit's events whose data is in a damaged place.
    fn report_lost(
        &self,
        session: &SessionRow,
        row: &UnitRow,
        is_damaged: &dyn Fn(DataPlace<'_>) -> bool,
        decoder: &mut SealedDecoder,
        report: &mut Report<'_>,
    ) -> Result<()> {
        let mut unit = Unit::default();
        if let Err(error) = self.decode_unit(row, false, decoder, &mut unit) {
            return damage_only(error).map(|_reported_before| ());
        }
        let mut lost = unit.places().filter(|(_, place)| is_damaged(*place)).map(|(seq, _)| seq).peekable();
        while let Some(start) = lost.next() {
            let mut end = start.next();
            while lost.next_if_eq(&end).is_some() {
                end = end.next();
            }
            let error = corrupt("the data of these events is damaged", row.offset).with_seq(start);
            report(Some((session.key, start..end)), error)?;
        }
        Ok(())
    }
}

type Report<'a> = dyn FnMut(Option<(SessionKey, Range<Seq>)>, Error) -> Result<()> + 'a;

/// Gives what was found sound; reports damage; passes on what is neither.
fn found<T>(checked: Result<T>, report: impl FnOnce(Error) -> Result<()>) -> Result<Option<T>> {
    match checked {
        Ok(sound) => Ok(Some(sound)),
        Err(error) => report(damage_only(error)?).map(|()| None),
    }
}

/// Lets damage pass as what it is, and everything else as an error of the whole read.
pub(super) fn damage_only(error: Error) -> Result<Error> {
    if error.kind() == ErrorKind::Corrupt { Ok(error) } else { Err(error) }
}

fn all(session: &SessionRow) -> Range<Seq> {
    session.first..session.end()
}
