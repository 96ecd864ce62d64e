//! Checks every byte of a sealed file against its checksums, and says what damage costs.

use std::collections::BTreeSet;
use std::ops::Range;

use super::envelope::DataPlace;
use super::pieces::{PieceSource, corrupt};
use super::rows::SessionRow;
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
            self.check_units(&session, &mut report)?;
        }
        let bad_pieces = self.check_pieces(&mut report)?;
        if bad_pieces.is_empty() {
            return Ok(());
        }
        for session in self.sessions().flatten() {
            self.name_lost_events(&session, &bad_pieces, decoder, &mut report)?;
        }
        Ok(())
    }

    fn check_units(&self, session: &SessionRow, report: &mut Report<'_>) -> Result<()> {
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
                report(Some((session.key, next..row.first)), error)?;
            }
            next = row.end();
            let text_at = row.offset.saturating_add(row.envelope.stored_bytes.into());
            let checked =
                self.frame_bytes(row.offset, row.envelope).and_then(|_| self.frame_bytes(text_at, row.text));
            found(checked, |error| report(Some((session.key, row.first..row.end())), error))?;
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

    /// Reports the session's events that need one of these pieces.
    fn name_lost_events(
        &self,
        session: &SessionRow,
        bad_pieces: &BTreeSet<u32>,
        decoder: &mut SealedDecoder,
        report: &mut Report<'_>,
    ) -> Result<()> {
        let mut unit = Unit::default();
        for index in self.units_of(session).into_iter().flatten() {
            let Ok(row) = self.unit_row(index) else { continue };
            if self.decode_unit(&row, false, decoder, &mut unit).is_err() {
                continue;
            }
            for (seq, place) in unit.places() {
                let needed = match place {
                    DataPlace::Inline { .. } => None,
                    DataPlace::Piece(id) => Some(id).filter(|id| bad_pieces.contains(id)),
                    DataPlace::Spliced { splices, .. } => {
                        splices.iter().map(|splice| splice.piece).find(|id| bad_pieces.contains(id))
                    }
                };
                if let Some(id) = needed {
                    let error = corrupt(&format!("needs the damaged piece {id}"), row.offset).with_seq(seq);
                    report(Some((session.key, seq..seq.next())), error)?;
                }
            }
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
