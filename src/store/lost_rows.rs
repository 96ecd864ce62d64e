//! Sessions whose row in a sealed file's directory is damaged: what a scan can tell of whose events are lost.
//!
//! Rows stand by ascending key, so a damaged one belongs to a session whose key lies between those of its neighbours. A session
//! of which nothing else is left must not pass for an empty one. One of which there is a part counts as longer than that part
//! only if there is no other session that the row may have been of.

use super::catalog::{Catalog, Row};
use super::session::{Entry, Session};
use crate::format::sealed::{SealedName, SessionRow};
use crate::ids::{Seq, SessionKey};
use crate::log::SealedFile;
use crate::{Error, ErrorKind, Result};

/// Damaged rows side by side.
#[derive(Debug)]
pub(super) struct LostRows {
    file: SealedName,
    /// Offset of the first of them.
    offset: Option<u64>,
    rows: usize,
    /// The keys of the rows before and behind them; none is as low or as high.
    after: u64,
    before: u64,
    /// The number of this damage, as [`Catalog::nameless_damage`] counts.
    damage: u64,
}

/// A row that may have been a session's.
#[derive(Debug, Clone)]
pub(super) struct LostRow {
    file: SealedName,
    offset: Option<u64>,
}

/// The rows that can be read, and where others are.
///
/// # Errors
///
/// What is no damage.
pub(super) fn rows_of(file: &SealedFile, damage: u64) -> Result<(Vec<SessionRow>, Vec<LostRows>)> {
    let (mut rows, mut lost): (Vec<SessionRow>, Vec<LostRows>) = Default::default();
    let mut open: Option<LostRows> = None;
    for row in file.sessions() {
        match row {
            Ok(row) => {
                lost.extend(open.take().map(|open| LostRows { before: row.key.get(), ..open }));
                rows.push(row);
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let after = rows.last().map_or(0, |row| row.key.get());
                let (file, offset) = (file.name(), error.offset());
                open.get_or_insert(LostRows { file, offset, rows: 0, after, before: u64::MAX, damage })
                    .rows += 1;
            }
            Err(error) => return Err(error),
        }
    }
    lost.extend(open);
    Ok((rows, lost))
}

impl Catalog {
    /// Judges, once a scan has met all there is, whose the damaged rows were.
    pub(super) fn settle_lost_rows(&mut self) {
        if self.lost_rows.is_empty() {
            return;
        }
        for lost in std::mem::take(&mut self.lost_rows) {
            if !self.sealed.iter().any(|file| file.name() == lost.file) {
                continue;
            }
            // No range with an end: in a malformed file the rows may stand in any order.
            let behind = self.by_key.range(SessionKey::new(lost.after)..).map(|(_, entry)| entry);
            let between = behind
                .skip_while(|entry| entry.key.get() == lost.after)
                .take_while(|entry| entry.key.get() < lost.before);
            let candidates: Vec<_> = between.filter(|entry| lost.may_be_of(entry)).collect();
            for entry in &candidates {
                let row = &mut entry.state.lock().row;
                if row.runs.is_empty() || candidates.len() <= lost.rows {
                    let next = Seq::new(row.next_seq);
                    row.lost = Some(Box::new(LostRow { file: lost.file, offset: lost.offset }));
                    // At least one event: a file has no row of a session without.
                    row.take_damage(next, next.next());
                }
            }
        }
    }
}

impl LostRows {
    /// Whether one of the rows may have been this session's: the scan has met nothing of it behind them.
    fn may_be_of(&self, entry: &Entry) -> bool {
        let state = entry.state.lock();
        state.created && !state.removed && state.row.damage_seen < self.damage
    }
}

impl Session {
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the session's events are lost with the row that told where they are.
    pub(super) fn check_not_lost(&self) -> Result<()> {
        let state = self.entry.state.lock();
        let Row { lost: Some(lost), runs, .. } = &state.row else { return Ok(()) };
        if !runs.is_empty() {
            return Ok(());
        }
        let message = format!(
            "open session {}: the row that says where its events are is damaged; restore the file from a backup",
            self.id()
        );
        let error =
            Error::new(ErrorKind::Corrupt, message).with_path(self.store.file_path(&lost.file.file_name()));
        Err(match lost.offset {
            Some(offset) => error.with_offset(offset),
            None => error,
        })
    }
}
